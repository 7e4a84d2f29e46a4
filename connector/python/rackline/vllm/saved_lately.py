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
        self._young: dict[int, set[bytes]] = {}
        """By number of the group of KV caches: the last hash of each span."""
        self._old: dict[int, set[bytes]] = {}
        self._since_s = time.monotonic()

    def add(self, group: int, blocks: range, hashes: Sequence[bytes]) -> None:
        """The pool has these blocks of a request, whose hashes these are."""
        self._age()
        if self._lately_s > 0:
            self._young.setdefault(group, set()).update(_lasts(blocks, hashes)[1])

    def forget(self, group: int, block: int, hashes: Sequence[bytes]) -> None:
        """The pool has lost a block of a request, all of whose hashes these are."""
        last = block // SPAN * SPAN + SPAN - 1
        if last < len(hashes):
            for known in (self._young, self._old):
                known.get(group, set()).discard(hashes[last])

    def among(self, group: int, blocks: range, hashes: Sequence[bytes]) -> list[range]:
        """The runs of these blocks of a request that the pool had lately. ``hashes`` are theirs."""
        self._age()
        young, old = self._young.get(group, frozenset()), self._old.get(group, frozenset())
        if not (young or old):
            return []
        first, lasts = _lasts(blocks, hashes)
        # In one expression: a prompt of 128K tokens has 512 spans.
        known = bytes(last in young or last in old for last in lasts)
        runs, start = [], known.find(1)
        while start >= 0:
            end = known.find(0, start)
            end = len(known) if end < 0 else end
            runs.append(range(first + start * SPAN, first + end * SPAN))
            start = known.find(1, end)
        return runs

    def _age(self) -> None:
        now_s = time.monotonic()
        if now_s - self._since_s >= 2 * self._lately_s:
            self.forget_all()
        elif now_s - self._since_s >= self._lately_s:
            self._begin_anew(self._since_s + self._lately_s)
        elif sum(map(len, self._young.values())) >= SPANS_MAX:
            self._begin_anew(now_s)

    def _begin_anew(self, since_s: float) -> None:
        self._old, self._young, self._since_s = self._young, {}, since_s


def _lasts(blocks: range, hashes: Sequence[bytes]) -> tuple[int, Sequence[bytes]]:
    """The first block of the first whole span among ``blocks``, and the last hash of each span."""
    first = -(-blocks.start // SPAN) * SPAN
    return first, hashes[first + SPAN - 1 - blocks.start :: SPAN]
