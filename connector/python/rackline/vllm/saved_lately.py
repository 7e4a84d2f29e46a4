"""Which blocks were saved or loaded a moment ago, and need not be saved again.

The engine's own cache may have the beginning of a prompt. Those blocks would be saved with each request that has
them, since the pool may have evicted them. Mostly all of them are there: a prompt of 128K tokens has 8,192
blocks, each of several head groups.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

# Blocks are remembered by so many: a span begins at a multiple of that.
SPAN = 16
# Spans that are remembered: twice as many. Beyond that some blocks are saved again earlier.
SPANS_MAX = 1 << 14


class SavedLately:
    """The blocks that every rank had in the pool within the last ``lately_s`` seconds, or twice that. A block's
    hash is of all tokens before it, too, so the last hash of a span stands for the span."""

    def __init__(self, lately_s: float) -> None:
        self._lately_s = lately_s
        self.forget_all()

    def forget_all(self) -> None:
        """The pool may have none of them any more."""
        self._young: set[tuple[int, bytes]] = set()
        """The number of the group of KV caches, and the last hash of a span."""
        self._old: set[tuple[int, bytes]] = set()
        self._since_s = time.monotonic()

    def add(self, group: int, blocks: range, hashes: Sequence[bytes]) -> None:
        """The pool has these blocks of a request, whose hashes these are."""
        self._age()
        if self._lately_s > 0:
            first = -(-blocks.start // SPAN) * SPAN
            ends = range(first + SPAN, blocks.stop + 1, SPAN)
            self._young.update((group, hashes[end - 1 - blocks.start]) for end in ends)

    def forget(self, group: int, block: int, hashes: Sequence[bytes]) -> None:
        """The pool has lost a block of a request, all of whose hashes these are."""
        last = block // SPAN * SPAN + SPAN - 1
        if last < len(hashes):
            self._young.discard((group, hashes[last]))
            self._old.discard((group, hashes[last]))

    def among(self, group: int, blocks: range, hashes: Sequence[bytes]) -> list[range]:
        """The runs of these blocks of a request that the pool had lately. ``hashes`` are theirs."""
        self._age()
        runs: list[range] = []
        if not (self._young or self._old):
            return runs
        for start in range(-(-blocks.start // SPAN) * SPAN, blocks.stop - SPAN + 1, SPAN):
            end = start + SPAN
            known = (group, hashes[end - 1 - blocks.start])
            if known not in self._young and known not in self._old:
                continue
            if runs and runs[-1].stop == start:
                start = runs.pop().start
            runs.append(range(start, end))
        return runs

    def _age(self) -> None:
        now_s = time.monotonic()
        if now_s - self._since_s >= 2 * self._lately_s:
            self.forget_all()
        elif now_s - self._since_s >= self._lately_s:
            self._begin_anew(self._since_s + self._lately_s)
        elif len(self._young) >= SPANS_MAX:
            self._begin_anew(now_s)

    def _begin_anew(self, since_s: float) -> None:
        self._old, self._young, self._since_s = self._young, set(), since_s
