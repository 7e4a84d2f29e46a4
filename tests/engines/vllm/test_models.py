"""Other kinds of models: with LoRA adapters, with drafts, with latent attention."""

from __future__ import annotations

import unittest

from cases import FULL_BLOCKS, PROMPTS, TinyCase, computed, tokens
from engine import engine
from models import adapter, eagle, latent, tiny
from starter import run

# Long enough for blocks in which drafts were rejected.
LENGTH = 80


class Adapters(TinyCase):
    def test_blocks_are_those_of_one_adapter(self) -> None:
        from vllm.lora.request import LoRARequest

        first, second = LoRARequest("a", 1, adapter(1)), LoRARequest("b", 2, adapter(2))
        options = dict(enable_lora=True, max_loras=2, max_lora_rank=8)
        with engine(self.model, **options) as plain:
            expected = [tokens(plain.answers(PROMPTS, lora=each)) for each in (first, second)]
        self.assertNotEqual(expected[0], self.expected)
        self.assertNotEqual(expected[1], expected[0])
        for node, hits in [(0, 0), (1, FULL_BLOCKS)]:
            settings = self.settings(node, lora_same_everywhere=True)
            with self.subTest(node=node), engine(self.model, settings, **options) as own:
                given = [(None, self.expected), (first, expected[0]), (second, expected[1])]
                for count, (lora, wanted) in enumerate(given, start=1):
                    self.assertEqual(tokens(own.answers(PROMPTS, lora=lora)), wanted)
                    self.assertEqual(own.counter("lookup_hit_blocks"), count * hits)
                self.assertEqual(own.counter("loaded_blocks"), 3 * hits)


class Drafts(TinyCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.model, cls.expected = tiny(), computed(PROMPTS, LENGTH)

    def rounds(self, drafts: dict) -> list[dict]:
        """An engine with drafts, of which vLLM makes one a process, computes the prompts, and then
        loads them."""
        told = dict(model=self.model, given=PROMPTS, tokens=LENGTH, rounds=[False, True])
        told["settings"] = self.settings()
        told["options"] = dict(speculative_config=drafts)
        first, second = run(told, "rounds_process")
        for answers in (first, second):
            self.assertEqual(answers["tokens"], self.expected)
        self.assertGreaterEqual(first["saved_blocks"], FULL_BLOCKS)
        self.assertEqual(second["loaded_blocks"], FULL_BLOCKS)
        return [first, second]

    def test_of_a_model(self) -> None:
        """The same one, so that a draft is rejected only where it is computed on wrong KV of its own:
        that lies in the blocks, too."""
        first, second = self.rounds(
            dict(method="draft_model", model=tiny(), num_speculative_tokens=3)
        )
        self.assertGreater(first["num_draft_tokens"], 0)
        self.assertEqual(second["num_draft_tokens"], 2 * first["num_draft_tokens"])
        self.assertEqual(second["num_accepted_tokens"], second["num_draft_tokens"])

    def test_of_an_eagle_layer(self) -> None:
        """Whose KV depends on one token behind the block, which vLLM computes again: the pool has the
        block with that of another request at worst, which costs a draft."""
        first, _ = self.rounds(dict(method="eagle", model=eagle(), num_speculative_tokens=2))
        self.assertGreater(first["num_draft_tokens"], 0)

    def test_that_are_rejected(self) -> None:
        """Blocks that were full of other tokens before: another engine finds the right ones."""
        told = dict(method="ngram", num_speculative_tokens=3, prompt_lookup_min=1)
        _, second = self.rounds({**told, "prompt_lookup_max": 4})
        self.assertGreater(second["num_draft_tokens"], 2 * second["num_accepted_tokens"])
        answered = zip(PROMPTS, self.expected, strict=True)
        longer = [prompt + answer for prompt, answer in answered]
        expected = computed(longer)
        with engine(self.model, self.settings(1)) as other:
            self.assertEqual(tokens(other.answers(longer)), expected)
            # Those of the answers, too.
            self.assertGreater(other.counter("loaded_blocks"), FULL_BLOCKS + 3)

    def test_identity_has_the_drafting_model(self) -> None:
        from rackline.vllm.identity import configuration_digest, weights_digest
        from vllm.engine.arg_utils import EngineArgs

        weights, configurations = set(), set()
        for drafts in (None, tiny(), tiny(1)):
            told = dict(method="draft_model", model=drafts, num_speculative_tokens=3)
            arguments = EngineArgs(
                self.model,
                skip_tokenizer_init=True,
                speculative_config=None if drafts is None else told,
            )
            told = arguments.create_engine_config()
            weights.add(weights_digest(told))
            configurations.add(configuration_digest(told))
        self.assertEqual(len(weights), 3)
        # The same one for both models; none without.
        self.assertEqual(len(configurations), 2)


class Windows(TinyCase):
    def test_layers_that_look_at_a_window_keep_all_tokens(self) -> None:
        kinds = ["sliding_attention", "full_attention"] * 2
        windows = dict(hf_overrides=dict(layer_types=kinds, sliding_window=64))
        # With it these layers have a group of their own (`test_hybrid`).
        windows["disable_hybrid_kv_cache_manager"] = True
        with engine(self.model, **windows) as plain:
            expected = tokens(plain.answers(PROMPTS))
        self.assertNotEqual(expected, self.expected)
        for node, load, loaded in [(0, "async", 0), (1, "async", FULL_BLOCKS), (1, "sync", FULL_BLOCKS)]:
            # Whatever it is called, it is another model with windows than without.
            settings = self.settings(node, load=load, model_id="tiny")
            with self.subTest(node=node, load=load), engine(self.model, settings, **windows) as own:
                self.assertEqual(tokens(own.answers(PROMPTS)), expected)
                self.assertEqual(own.counter("loaded_blocks"), loaded)
        with engine(self.model, self.settings(1, model_id="tiny")) as without:
            self.assertEqual(tokens(without.answers(PROMPTS)), self.expected)
            self.assertEqual(without.counter("lookup_hit_blocks"), 0)


class Latent(TinyCase):
    def test_attention_that_cannot_go_on_behind_cached_blocks_is_refused(self) -> None:
        told = engine(latent(), self.settings(), attention_backend="CPU_MLA")
        self.assert_refused("continue after cached blocks", told)


if __name__ == "__main__":
    unittest.main()
