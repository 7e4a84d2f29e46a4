"""Blocks that the pool did not give, of which the scheduler knows."""

from __future__ import annotations

import collections
from collections.abc import Callable

# Blocks that were missed, of which the scheduler knows at most.
MISSED_HANDLES_MAX = 65536


class Misses:
    """The blocks that were found, and could not be loaded (VLLM-V6)."""

    def __init__(self) -> None:
        self._handles: collections.OrderedDict[bytes, tuple[int, int]] = collections.OrderedDict()
        """With the group of each block, and its place in its prompt, where a search looks for it."""
        self._at: collections.Counter[tuple[int, int]] = collections.Counter()
        """How many of them are at each place."""
        self.count = 0
        """How often one was added."""

    def add(self, group: int, depth: int, handles: list[bytes]) -> None:
        """A block is known as missed on every rank: on which rank it was is not known."""
        place = (group, depth)
        for handle in handles:
            if handle not in self._handles:
                self._handles[handle] = place
                self._at[place] += 1
        self.count += 1
        while len(self._handles) > MISSED_HANDLES_MAX:
            _, place = self._handles.popitem(last=False)
            self._at[place] -= 1
            if not self._at[place]:
                del self._at[place]

    def first(
        self, group: int, blocks: range, handles: Callable[[int], list[bytes]]
    ) -> int | None:
        """The first of the blocks that is known as missed; ``handles`` gives those of a block on all ranks."""
        for depth in sorted(depth for of, depth in self._at if of == group and depth in blocks):
            if any(handle in self._handles for handle in handles(depth)):
                return depth
        return None
