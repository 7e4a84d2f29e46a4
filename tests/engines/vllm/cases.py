"""What the tests of engines in this process start from."""

from __future__ import annotations

import functools
import json
import unittest
from typing import Any

from engine import BLOCK_TOKENS, Answer, engine, prompts
from models import tiny
from region import Region

PROMPTS = prompts(1, 200, 300, 170)

# Three requests that need thirty blocks, and a cache of twenty: they are preempted, and their prompts
# are computed in parts.
LONG = prompts(5, 250, 260, 270)
SMALL = dict(cache_bytes=20 * 131072, max_num_batched_tokens=128, max_model_len=512)


def full_blocks(given: list[list[int]]) -> int:
    """Blocks of prompts that can be found: one token is always computed."""
    return sum((len(prompt) - 1) // BLOCK_TOKENS for prompt in given)


FULL_BLOCKS = full_blocks(PROMPTS)


def tokens(answers: list[Answer]) -> list[list[int]]:
    return [answer.tokens for answer in answers]


def cached(answers: list[Answer]) -> int:
    return sum(answer.cached_tokens for answer in answers)


def computed(given: list[list[int]], length: int = 24) -> list[list[int]]:
    """What the tiny model answers in an engine without a connector."""
    return _computed(json.dumps(given), length)


@functools.cache
def _computed(given: str, length: int) -> list[list[int]]:
    with engine(tiny()) as plain:
        return tokens(plain.answers(json.loads(given), tokens=length))


class PoolCase(unittest.TestCase):
    """Each test has a pool of its own."""

    common: dict[str, Any] = {}
    """Settings of all engines."""

    def setUp(self) -> None:
        self.renew_pool()

    def renew_pool(self) -> None:
        self.region = self.enterContext(Region("256MiB", "256KiB", chunk="4MiB"))

    def settings(self, node: int = 0, **more: Any) -> dict[str, Any]:
        return {"region": self.region.path, "node": node, **self.common, **more}

    def assert_refused(self, message: str, start: Any) -> None:
        """An engine does not start, and says so."""
        with self.assertRaises(Exception) as raised, start:
            pass
        said, error = [], raised.exception
        while error is not None:
            said.append(str(error))
            error = error.__cause__ or error.__context__
        self.assertIn(message, json.dumps(said, ensure_ascii=False).replace('\\"', '"'))


class TinyCase(PoolCase):
    """With the tiny model, and what it answers to the prompts without a pool."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.model, cls.expected = tiny(), computed(PROMPTS)
