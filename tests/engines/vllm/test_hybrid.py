"""Models with several groups of KV caches, and with layers that keep a part of the tokens."""

from __future__ import annotations

import time
import unittest
from typing import Any
from unittest import mock

from cases import PoolCase, cached, full_blocks, tokens
from engine import BLOCK_TOKENS, engine, greedy, prompts
from gate import Gate
from models import chunked, linear, tiny
from pool import damage
from starter import run

WINDOW_TOKENS = 64
PROMPTS = prompts(1, 200, 300, 170)
FULL_BLOCKS = full_blocks(PROMPTS)
# Of the tiny model: a layer's KV of a block.
LAYER_BYTES = 32 * 2 * 2 * 64 * 4


def windows(*kinds: str) -> dict[str, Any]:
    """Options by which some of the tiny model's four layers have a window."""
    told = [f"{kind}_attention" for kind in kinds]
    return dict(hf_overrides=dict(layer_types=told, sliding_window=WINDOW_TOKENS))


# Three groups with a window of one layer each, and one that keeps all tokens.
MIXED = windows("sliding", "sliding", "sliding", "full")
# A prefix needs the blocks of a window: 63 tokens before the next one.
NEEDED = 2


class Kinds(PoolCase):
    """Equal tokens with and without the pool, and nothing loaded that no layer looks at."""

    def one_by_one(self, own: Any) -> tuple[list[list[int]], int]:
        """Answers, and how many tokens they found cached. Batches would be others, and with them the
        last bits of what is computed."""
        answers = [own.answers([prompt])[0] for prompt in PROMPTS]
        own.drain()
        return tokens(answers), cached(answers)

    def check(self, model: str, bytes_of_prefix: int, cached_tokens: int, **options: Any) -> int:
        """Returns how many bytes were saved."""
        with engine(model, **options) as plain:
            expected, _ = self.one_by_one(plain)
        with engine(model, self.settings(), **options) as first:
            self.assertEqual(self.one_by_one(first), (expected, 0))
            first.answers([[5]])  # The engine tells its counters after a step.
            saved = first.counter("saved_bytes")
        with engine(model, self.settings(1), **options) as second:
            self.assertEqual(self.one_by_one(second), (expected, cached_tokens))
            self.assertEqual(second.counter("loaded_bytes"), bytes_of_prefix)
            self.assertEqual(second.counter("failed_load_blocks"), 0)
        return saved

    def test_windows_beside_layers_that_keep_all_tokens(self) -> None:
        windows_only = 3 * NEEDED * len(PROMPTS)
        needed = (FULL_BLOCKS + windows_only) * LAYER_BYTES
        saved = self.check(tiny(), needed, FULL_BLOCKS * BLOCK_TOKENS, **MIXED)
        # And two blocks of generated tokens.
        self.assertEqual(saved, needed + 2 * LAYER_BYTES)

    def test_windows_in_all_layers(self) -> None:
        needed = 4 * NEEDED * len(PROMPTS)
        options = windows(*["sliding"] * 4)
        self.check(tiny(), needed * LAYER_BYTES, FULL_BLOCKS * BLOCK_TOKENS, **options)

    def test_chunks(self) -> None:
        # 192, 288 and 160 tokens: whole chunks, four of them and a half, two of them and a half.
        needed = 2 * FULL_BLOCKS + 2 * (0 + 1 + 1)
        allowed = {"VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": "1"}
        with mock.patch.dict("os.environ", allowed):
            self.check(chunked(), needed * LAYER_BYTES, FULL_BLOCKS * BLOCK_TOKENS)

    def test_states(self) -> None:
        """vLLM makes blocks of 160 tokens of them, so that a state is as long as they are."""
        state_bytes = 2 * (4 * 64 * 64 * 4 + 3 * 512 * 2)
        needed = 3 * state_bytes + 3 * 2 * 160 * 2 * 2 * 64 * 2
        options = dict(dtype="bfloat16", enable_prefix_caching=True)
        self.check(linear(), needed, 3 * 160, **options)


class Windows(PoolCase):
    @classmethod
    def setUpClass(cls) -> None:
        with engine(tiny(), **MIXED) as plain:
            cls.expected = tokens(plain.answers(PROMPTS))

    def fill(self) -> None:
        with engine(tiny(), self.settings(), **MIXED) as first:
            self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
            first.drain()

    def test_a_prefix_ends_where_a_group_lacks_a_block_of_its_window(self) -> None:
        from rackline.vllm.groups import Groups

        def without_fifth(groups: Any, group: Any, request: Any, blocks: range) -> list[bool]:
            return [group.number != 1 or block != 4 for block in blocks]

        with mock.patch.object(Groups, "worth_saving", without_fifth):
            self.fill()
        with engine(tiny(), self.settings(1), **MIXED) as second:
            answers = second.answers(PROMPTS)
            self.assertEqual(tokens(answers), self.expected)
            # Of six, nine and five blocks: the fifth is not in the window of the second prompt.
            self.assertEqual([answer.cached_tokens for answer in answers], [128, 288, 128])
            self.assertEqual(second.counter("failed_load_blocks"), 0)

    def test_damaged_blocks_are_computed_again(self) -> None:
        """vLLM knows no first bad block among several groups: all of the request is computed."""
        self.fill()
        self.assertGreater(damage(self.region), 0)
        with engine(tiny(), self.settings(1), **MIXED) as second:
            answers = second.answers(PROMPTS)
            self.assertEqual(tokens(answers), self.expected)
            self.assertGreater(second.counter("failed_load_blocks"), 0)
            # It does not find them again, and its own blocks take their place for nobody.
            second.forget()
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
        with engine(tiny(), self.settings(1), policy="fail", **MIXED) as third:
            reasons = [answer.finish_reason for answer in third.answers(PROMPTS)]
            self.assertEqual(reasons, ["error"] * 3)

    def test_no_block_is_given_away_while_it_is_saved(self) -> None:
        """VLLM-V8: blocks leave the window and their request before they are read."""
        tight = dict(cache_bytes=60 * LAYER_BYTES, max_num_batched_tokens=128, max_model_len=512)
        # vLLM keeps every block then, not only those of the last window of a prompt.
        tight["prefix_cache_retention_interval"] = BLOCK_TOKENS
        long = prompts(7, 200, 180)
        with engine(tiny(), **MIXED) as plain:
            expected = tokens(plain.answers(long, tokens=150))
        with Gate() as gate, engine(tiny(), self.settings(), **tight, **MIXED) as own:
            all_blocks = own.free_blocks()
            gate.close()

            def open_late(step: int) -> None:
                if step == 50:
                    # Also of blocks that all requests have given up since.
                    self.assertGreater(gate.waiting("publish"), 12)
                if step == 140:
                    gate.open()

            named = {str(number): prompt for number, prompt in enumerate(long)}
            served = own.serve(named, open_late, max_tokens=150)
            got = [list(served[name].outputs[0].token_ids) for name in named]
            self.assertEqual(got, expected)
            own.drain()
            self.assertEqual(own.free_blocks(), all_blocks)
            self.assertEqual(len(own.connector._saving), 0)
        longer = [prompt + answer for prompt, answer in zip(long, expected, strict=True)]
        # Each ends in another window.
        cuts = [whole[:length] for whole in longer for length in range(70, 330, 32)]
        with engine(tiny(), **MIXED) as plain:
            expected = tokens(plain.answers(cuts))
        with engine(tiny(), self.settings(1), **MIXED) as second:
            answers = []
            for cut in cuts:
                answers += second.answers([cut])
                second.forget()
            self.assertEqual(tokens(answers), expected)
            self.assertEqual(cached(answers), full_blocks(cuts) * BLOCK_TOKENS)

    def test_requests_that_are_preempted_or_aborted(self) -> None:
        long = prompts(5, 100, 110, 120)
        with engine(tiny(), **MIXED) as plain:
            expected = tokens(plain.answers(long, tokens=200))
        tight = dict(cache_bytes=44 * LAYER_BYTES, max_num_batched_tokens=128, max_model_len=512)
        with engine(tiny(), self.settings(), **tight, **MIXED) as own:
            all_blocks = own.free_blocks()
            for _ in range(2):
                self.assertEqual(tokens(own.answers(long, tokens=200)), expected)
                own.forget()
            self.assertGreater(own.counter("num_preemptions", "vllm:"), 0)
            self.assertGreater(own.counter("loaded_blocks"), 0)
            self.assertEqual(own.counter("failed_load_blocks"), 0)
            for abort_at in (1, 2, 4):
                def abort(step: int, at: int = abort_at) -> None:
                    if step == at:
                        own.abort("gone")

                served = own.serve({"gone": long[0], "one": long[1]}, abort, max_tokens=200)
                self.assertEqual(list(served["one"].outputs[0].token_ids), expected[1])
                own.forget()
            self.assertEqual(own.free_blocks(), all_blocks)
            self.assertEqual(own.connector._requests, {})
            self.assertEqual(len(own.connector._saving), 0)

    def test_a_prefill_hands_over(self) -> None:
        prompt = PROMPTS[1]

        def params(**told: Any) -> Any:
            return greedy(max_tokens=1, extra_args={"kv_transfer_params": {"rackline": told}})

        with engine(tiny(), self.settings(), role="kv_producer", **MIXED) as prefill:
            prefill.begin("one", prompt, params(handover=True))
            outputs = []
            while prefill.scheduler.has_requests():
                outputs += [each for each in prefill.llm.llm_engine.step() if each.finished]
            told = outputs[0].kv_transfer_params
            self.assertEqual(told["rackline"]["blocks"], 9)
            time.sleep(0.1)
            prefill.llm.llm_engine.step()
            with engine(tiny(), self.settings(1), role="kv_consumer", **MIXED) as decode:
                decode.begin("one", prompt, params(**told["rackline"]))
                outputs = []
                while decode.llm.llm_engine.has_unfinished_requests():
                    outputs += decode.llm.llm_engine.step()
                self.assertEqual(outputs[-1].num_cached_tokens, 288)
                self.assertEqual(list(outputs[-1].outputs[0].token_ids), self.expected[1][:1])


class Ranks(PoolCase):
    def test_a_load_that_fails_on_one_rank_is_computed_on_both(self) -> None:
        told = dict(model=tiny(), given=PROMPTS, rounds=[False, True], settings=self.settings())
        told["options"] = dict(MIXED, tensor_parallel_size=2, module="failing_rank")
        computed, loaded = run(told, "rounds_process")
        self.assertEqual(loaded["tokens"], computed["tokens"])
        self.assertEqual(loaded["lookup_hit_blocks"], FULL_BLOCKS)
        self.assertGreater(loaded["failed_load_blocks"], 0)

    def test_each_stage_stores_its_layers(self) -> None:
        """Of pipeline parallelism. The group that keeps all tokens has a layer in the second stage only."""
        with engine(tiny(), **MIXED) as plain:
            expected = tokens(plain.answers(PROMPTS))
        told = dict(model=tiny(), given=PROMPTS, rounds=[False, True], settings=self.settings())
        told["options"] = dict(MIXED, pipeline_parallel_size=2)
        computed, loaded = run(told, "stages")
        self.assertEqual(computed["tokens"], expected)
        self.assertEqual(loaded["tokens"], expected)
        self.assertEqual(loaded["cached_tokens"], FULL_BLOCKS * BLOCK_TOKENS)
        self.assertEqual(loaded["loaded_blocks"], FULL_BLOCKS + 3 * NEEDED * len(PROMPTS))
        self.assertEqual(loaded["failed_load_blocks"], 0)


if __name__ == "__main__":
    unittest.main()
