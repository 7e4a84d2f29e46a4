"""Engines that differ in the length of their blocks, and share."""

from __future__ import annotations

import unittest
from typing import Any

from cases import FULL_BLOCKS, PROMPTS, TinyCase, cached, computed, tokens
from engine import BLOCK_TOKENS, Answer, Engine, engine, greedy, prompts
from pool import damage

# Blocks of 64 tokens, each stored as two of 32.
LONG = 2 * BLOCK_TOKENS
# Of other numbers of stored blocks than blocks of 64 tokens have: three, five, and a partial one each.
OTHERS = prompts(31, 110, 170)


def params(told: Any, **more: Any) -> Any:
    return greedy(extra_args={"kv_transfer_params": told}, **more)


class BlockSizes(TinyCase):
    def long(self, **settings: Any) -> Any:
        told = self.settings(1, stored_block_tokens=BLOCK_TOKENS, **settings)
        return engine(self.model, told, block_size=LONG)

    def serve(self, own: Engine, prompt: list[int], told: Any) -> Any:
        own.begin("one", prompt, told)
        outputs = []
        while own.llm.llm_engine.has_unfinished_requests():
            outputs += own.llm.llm_engine.step()
        return outputs[-1]

    def check(self, answers: list[Answer], given: list[list[int]], expected: Any) -> None:
        self.assertEqual(tokens(answers), expected)
        whole = [(len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS for prompt in given]
        self.assertEqual([answer.cached_tokens for answer in answers], whole)

    def test_each_loads_what_the_other_stored(self) -> None:
        expected = computed(OTHERS)
        with engine(self.model, self.settings()) as short:
            self.assertEqual(tokens(short.answers(PROMPTS)), self.expected)
        with self.long() as long:
            self.check(long.answers(PROMPTS), PROMPTS, self.expected)
            self.assertEqual(long.counter("loaded_blocks"), FULL_BLOCKS)
            self.assertEqual(tokens(long.answers(OTHERS)), expected)
            self.assertGreaterEqual(long.counter("saved_blocks"), 3 + 5)
            # A prefill, and its decode.
            told = params({"rackline": {"handover": True}}, max_tokens=1)
            answer = self.serve(long, OTHERS[0], told).kv_transfer_params
            long.drain()
        with engine(self.model, self.settings()) as short:
            self.check(short.answers(OTHERS), OTHERS, expected)
            self.assertEqual(short.counter("failed_load_blocks"), 0)
            short.forget()
            output = self.serve(short, OTHERS[0], params(answer))
            self.assertEqual(list(output.outputs[0].token_ids), expected[0])
            self.assertEqual(output.num_cached_tokens, len(OTHERS[0]) - 1)
            self.assertEqual(short.counter("loaded_tails"), 1)

    def test_synchronous_loads_and_damage(self) -> None:
        longer = [prompt + more for prompt, more in zip(PROMPTS, prompts(32, 100, 100, 100))]
        expected = computed(longer)
        with engine(self.model, self.settings(save_generated=False)) as short:
            self.assertEqual(tokens(short.answers(PROMPTS)), self.expected)
        with self.long(load="sync", layerwise="both", lookup_wait_ms=5000) as long:
            # The step that loads the first part of a block saves the second.
            answers = long.answers(longer)
            self.assertEqual(tokens(answers), expected)
            self.assertEqual(cached(answers), FULL_BLOCKS * BLOCK_TOKENS)
            self.assertEqual(long.counter("loaded_blocks"), FULL_BLOCKS)
            long.forget()
            self.check(long.answers(longer), longer, expected)
            long.forget()
            self.assertGreater(damage(self.region), 0)
            loaded = long.counter("loaded_blocks")
            self.assertEqual(tokens(long.answers(longer)), expected)
            self.assertEqual(long.counter("loaded_blocks"), loaded)
            self.assertGreater(long.counter("failed_load_blocks"), 0)
            # What was computed on them is none of it in the pool.
        with engine(self.model, self.settings()) as short:
            self.assertEqual(tokens(short.answers(longer)), expected)


if __name__ == "__main__":
    unittest.main()
