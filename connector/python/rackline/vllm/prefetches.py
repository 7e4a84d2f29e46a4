"""Blocks on drives of requests that wait in the engine's queue: restored before the engine asks for them.

- **VLLM-V15** A request that waits after a step in which it could have been scheduled has its blocks restored ahead.
  Nothing is held for it, and nothing here waits. It ends when the request is scheduled or is over.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import rackline
from rackline.engines.reasons import Reasons, of_error
from rackline.vllm.chains import Chains
from rackline.vllm.groups import Groups
from rackline.vllm.progress import Progress
from rackline.vllm.search import Index
from rackline.vllm.statistics import RacklineStats

# Requests whose prefetch begins in one step: each is a look at the hashes of a prompt.
BEGUN_MAX = 8
# Nothing begins for so long after what had no room, or where no agent lives.
AGAIN_S = 1.0


@dataclasses.dataclass
class _Begun:
    """The prefetches of a request, one for each part of its blocks."""

    progress: Progress
    handles: list[rackline.Prefetch]
    untold: list[rackline.Prefetch]
    """Those that have not said yet what they took up."""
    replaced: list[rackline.Prefetch] = dataclasses.field(default_factory=list)
    """Those before them, which are taken back when the later ones have what they want."""


class Prefetches:
    """Those of an engine."""

    def __init__(
        self, index: Index, groups: Groups, chains: Chains, stats: RacklineStats, reasons: Reasons
    ) -> None:
        self._index, self._groups, self._chains = index, groups, chains
        self._stats, self._reasons = stats, reasons
        self.engine_blocks: Any = None
        """The engine's manager of its blocks."""
        self._waiting: dict[str, Progress] = {}
        """Requests by name, whose prefetch is to begin, in the order of the queue."""
        self._begun: dict[str, _Begun] = {}
        self._again_s = 0.0
        """When the next may begin."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._begun)

    def queued(self, progress: Progress) -> None:
        """The engine has queued a request."""
        if self._index.prefetch_wait_ms > 0:
            self._waiting[progress.request.request_id] = progress

    def over(self, progress: Progress) -> None:
        """The engine has given the request blocks, or it has ended."""
        name = progress.request.request_id
        self._waiting.pop(name, None)
        if (begun := self._begun.pop(name, None)) is not None:
            self._cancel(begun)

    def forget(self) -> None:
        """What was asked for is of no use any more."""
        for begun in self._begun.values():
            self._cancel(begun)
        self._begun.clear()
        self._waiting.clear()

    def look_after(self) -> None:
        """Every step: takes in what was told, and begins for requests that go on waiting."""
        now_s = time.monotonic()
        for begun in list(self._begun.values()):
            if begun.untold:
                self._take_in(begun, now_s)
        begins = BEGUN_MAX
        for name, progress in list(self._waiting.items()):
            if begins == 0 or now_s < self._again_s:
                break
            if progress.is_scheduled or progress.search is not None:
                # The engine has asked for it: its lookup asks drives itself.
                del self._waiting[name]
            elif self._chains.are_made(progress.hashed, progress.request.num_prompt_tokens):
                del self._waiting[name]
                begins -= 1
                self._begin(progress, now_s)

    def _begin(self, progress: Progress, now_s: float) -> None:
        request, unit_tokens = progress.request, self._groups.unit_tokens
        hashed_tokens = min(
            group.hashed_blocks(progress.hashed) * group.block_tokens for group in self._groups.groups
        )
        last = min(hashed_tokens, request.num_tokens - 1) // unit_tokens
        first = self._cached(progress, last)
        if first >= last:
            return
        handles: list[rackline.Prefetch] = []
        try:
            for handle in self._index.prefetch(progress.hashed, first, last):
                handles.append(handle)
        except rackline.Error as error:
            self._reasons.not_prefetched(of_error(error), 1, str(error))
            self._put_off(progress, now_s)
        if handles:
            begun = self._begun.setdefault(request.request_id, _Begun(progress, [], []))
            begun.replaced += begun.handles
            begun.handles, begun.untold = handles, list(handles)

    def _cached(self, progress: Progress, last: int) -> int:
        """How many of the first units the engine's own cache has. A hint: of a prompt the end leaves first."""
        if not self._groups.keep_all or progress.hashed is not progress.request:
            return 0
        pool, hashes, low = self.engine_blocks.block_pool, progress.request.block_hashes, 0
        while low < last:
            middle = (low + last) // 2
            if pool.get_cached_block(hashes[middle], [0]) is None:
                last = middle
            else:
                low = middle + 1
        return low

    def _take_in(self, begun: _Begun, now_s: float) -> None:
        untold, begun.untold = begun.untold, []
        is_full = False
        for handle in untold:
            try:
                told = handle.wait(0)
            except rackline.Error as error:
                self._reasons.not_prefetched(of_error(error), 1, str(error))
                continue
            if told is None:
                begun.untold.append(handle)
                continue
            self._stats.count("prefetched_blocks", told.asked)
            # What is nowhere is computed, and is none of this.
            if told.reason not in (None, "prefetch_absent"):
                self._reasons.not_prefetched(told.reason, told.not_asked, told.message)
            is_full |= told.reason == "prefetch_full"
            if told.reason == "prefetch_no_agent":
                # Nor for the others.
                self._again_s = now_s + AGAIN_S
        if not begun.untold:
            for handle in begun.replaced:
                handle.cancel()
            begun.replaced = []
        if is_full:
            self._put_off(begun.progress, now_s)

    def _put_off(self, progress: Progress, now_s: float) -> None:
        """There was no room: it is tried again, before those that came later."""
        self._again_s = now_s + AGAIN_S
        self._waiting = {progress.request.request_id: progress, **self._waiting}

    @staticmethod
    def _cancel(begun: _Begun) -> None:
        for handle in (*begun.replaced, *begun.handles):
            handle.cancel()
