"""Requests of all kinds, and prompts of all lengths: whatever is cached, something is computed."""

from __future__ import annotations

import unittest

from cases import TinyCase, tokens
from engine import BLOCK_TOKENS, engine, greedy, prompts

# Less than a block, a block, one token more, and several blocks to the token.
LENGTHS = (1, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 4 * BLOCK_TOKENS)
FOUND = [(length - 1) // BLOCK_TOKENS * BLOCK_TOKENS for length in LENGTHS]


class Requests(TinyCase):
    def test_of_all_kinds(self) -> None:
        edges, one = prompts(31, *LENGTHS), prompts(32, 128)[0]
        several = greedy(n=3, temperature=1.0, seed=7)
        with engine(self.model) as plain:
            expected = tokens(plain.answers(edges))
            wanted = self.sampled(plain, one, several)
            scores = plain.serve({"one": one}, prompt_logprobs=1, max_tokens=4)["one"]
        # Of three that load while others compute none waits for another.
        for load, loaders in (("async", 3), ("sync", 1)):
            self.renew_pool()
            settings = self.settings(load=load, lookup_wait_ms=5000)
            with self.subTest(load), engine(self.model, settings) as own:
                with self.subTest("prompts at the edge of a block"):
                    self.assertEqual(tokens(own.answers(edges)), expected)
                    own.forget()
                    answers = own.answers(edges)
                    self.assertEqual(tokens(answers), expected)
                    self.assertEqual([answer.cached_tokens for answer in answers], FOUND)
                with self.subTest("one token"):
                    own.forget()
                    answers = own.answers(edges, tokens=1)
                    self.assertEqual(tokens(answers), [each[:1] for each in expected])
                    self.assertEqual([answer.cached_tokens for answer in answers], FOUND)
                with self.subTest("several answers"):
                    for _ in range(2):
                        self.assertEqual(self.sampled(own, one, several), wanted)
                        own.forget()
                loaded, looked = own.counter("loaded_blocks"), own.counter("lookups")
                with self.subTest("scores of the prompt, which is computed whole"):
                    found = own.serve({"one": one}, prompt_logprobs=1, max_tokens=4)["one"]
                    self.assertEqual(found.outputs[0].token_ids, scores.outputs[0].token_ids)
                    self.assertEqual(self.ranks(found), self.ranks(scores))
                    self.assertEqual(own.counter("loaded_blocks"), loaded)
                    self.assertEqual(own.counter("lookups"), looked)
                self.assertEqual(loaded, 2 * sum(FOUND) // BLOCK_TOKENS + 3 * loaders)
                self.assertEqual(own.counter("failed_load_blocks"), 0)

    @staticmethod
    def sampled(own, prompt: list[int], params) -> list[list[int]]:
        output = own.llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0]
        return [list(answer.token_ids) for answer in output.outputs]

    @staticmethod
    def ranks(output) -> list[list[tuple[int, int]]]:
        """The tokens at each place of the prompt, and how likely they are among all."""
        return [
            sorted((token, score.rank) for token, score in (place or {}).items())
            for place in output.prompt_logprobs
        ]


if __name__ == "__main__":
    unittest.main()
