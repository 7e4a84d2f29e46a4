"""Engines of different tensor_parallel_size that share blocks, by the heads of the model."""

from __future__ import annotations

import dataclasses
import unittest
from typing import Any
from unittest import mock

from cases import PROMPTS, PoolCase, cached, full_blocks, tokens
from engine import BLOCK_TOKENS, engine, prompts
from models import tiny
from starter import run
from test_hybrid import MIXED

OTHERS = prompts(9, 170, 230)


class Unequal(PoolCase):
    def two_ranks(self, node: int, given: list[list[int]], settings: dict, **more: Any) -> dict:
        """What an engine of two ranks does, one prompt after another."""
        told = dict(model=tiny(), given=given, rounds=[False], at_once=1)
        told["settings"] = self.settings(node, **settings)
        told["options"] = dict(tensor_parallel_size=2, **more)
        (done,) = run(told, "rounds_process")
        return done

    def one_rank(self, node: int, given: list[list[int]], settings: dict, **more: Any) -> tuple:
        """What an engine of one rank answers, how many tokens it found, and how many blocks failed."""
        with engine(tiny(), self.settings(node, **settings), **more) as own:
            answers = [own.answers([prompt])[0] for prompt in given]
            own.drain()
            return tokens(answers), cached(answers), own.counter("failed_load_blocks")

    def check(self, settings: dict, **more: Any) -> list[list[int]]:
        """Returns what the last engine answers."""
        given = [*PROMPTS, *OTHERS]
        with engine(tiny(), **more) as plain:
            expected = [tokens(plain.answers([prompt]))[0] for prompt in given]
        of_first, of_others = expected[: len(PROMPTS)], expected[len(PROMPTS) :]
        self.assertEqual(self.one_rank(0, PROMPTS, settings, **more), (of_first, 0, 0))
        # All of what one rank saved, and nothing of the others.
        done = self.two_ranks(1, given, settings, **more)
        self.assertEqual(done["tokens"], expected)
        self.assertEqual(done["cached_tokens"], full_blocks(PROMPTS) * BLOCK_TOKENS)
        self.assertEqual(done["failed_load_blocks"], 0)
        # And the other way.
        found = full_blocks(OTHERS) * BLOCK_TOKENS
        self.assertEqual(self.one_rank(0, OTHERS, settings, **more), (of_others, found, 0))
        return of_others

    def test_ranks_of_one_size_load_what_ranks_of_another_saved(self) -> None:
        self.exchange_heads(self.check({}))

    def exchange_heads(self, expected: list[list[int]]) -> None:
        """The control: each head in the place of the other passes every check but that of the tokens."""
        from rackline.vllm import parts

        def exchanged(*arguments: Any) -> Any:
            heads = parts_heads_of(*arguments)
            return dataclasses.replace(heads, numbers=heads.numbers[::-1])

        parts_heads_of = parts.heads_of
        with mock.patch.object(parts, "heads_of", exchanged):
            answers, found, failed = self.one_rank(0, OTHERS, {})
        self.assertEqual((found, failed), (full_blocks(OTHERS) * BLOCK_TOKENS, 0))
        self.assertNotEqual(answers, expected)

    def test_windows_beside_layers_that_keep_all_tokens(self) -> None:
        """Their blocks are too short to be divided by themselves."""
        self.check({"head_groups": 2}, **MIXED)


if __name__ == "__main__":
    unittest.main()
