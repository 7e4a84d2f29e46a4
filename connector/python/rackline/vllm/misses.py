"""Blocks that the pool did not give, of which the scheduler knows."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Sequence

# Handles of blocks that were missed, of which the scheduler knows at most.
MISSED_HANDLES_MAX = 65536
# How long it knows of a block. The block may be good again after that, and its handles the same.
MISSED_FOR_S = 600.0


class Misses:
    """The blocks that were found, and could not be loaded (VLLM-V6).

    A search asks in every step that it waits, with up to thousands of blocks, and after the death of a host
    thousands are known. So the blocks are by group and by place, and of a place only the handle of the first
    rank is compared, unless that one is known.
    """

    def __init__(self) -> None:
        self._by_group: dict[int, dict[int, dict[bytes, tuple[bytes, ...]]]] = {}
        """By group, and by place in the prompt: the handles of a block on every rank, by that of the first."""
        self._order: collections.OrderedDict[tuple[int, int, bytes], float] = collections.OrderedDict()
        """Group, place and first handle of each block, the oldest first, and when it was added."""
        self._handles = 0
        self.count = 0
        """How often one was added."""

    def add(self, group: int, depth: int, handles: list[bytes]) -> None:
        """A block is known as missed by its handles on all ranks: on which rank it was is not known."""
        self.count += 1
        if not handles:
            return
        entry = (group, depth, handles[0])
        self._forget(entry)
        self._by_group.setdefault(group, {}).setdefault(depth, {})[handles[0]] = tuple(handles)
        self._order[entry] = time.monotonic()
        self._handles += len(handles)
        while self._handles > MISSED_HANDLES_MAX:
            self._forget(next(iter(self._order)))

    def first(
        self, group: int, blocks: range, handle_of: Sequence[Callable[[int], bytes]]
    ) -> int | None:
        """The first of the blocks that is known as missed; ``handle_of`` gives the handle of a block, for
        each rank. A block with another handle on one rank was saved anew: it may be good."""
        self._forget_old()
        depths = self._by_group.get(group)
        if not depths or not handle_of:
            return None
        of_first = handle_of[0]
        for depth in _in_both(depths, blocks):
            known = depths[depth].get(of_first(depth))
            if known is not None and known == tuple(handle(depth) for handle in handle_of):
                return depth
        return None

    def _forget_old(self) -> None:
        since_s = time.monotonic() - MISSED_FOR_S
        while self._order and next(iter(self._order.values())) < since_s:
            self._forget(next(iter(self._order)))

    def _forget(self, entry: tuple[int, int, bytes]) -> None:
        if self._order.pop(entry, None) is None:
            return
        group, depth, first = entry
        depths = self._by_group[group]
        self._handles -= len(depths[depth].pop(first))
        if not depths[depth]:
            del depths[depth]
        if not depths:
            del self._by_group[group]


def _in_both(depths: dict[int, dict[bytes, tuple[bytes, ...]]], blocks: range) -> Iterable[int]:
    """Those of the blocks that have misses, in order."""
    if len(depths) < len(blocks):
        return sorted(depth for depth in depths if depth in blocks)
    return (depth for depth in blocks if depth in depths)
