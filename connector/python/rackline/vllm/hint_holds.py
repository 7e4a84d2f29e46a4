"""What hints hold in the pool: blocks of requests that ended, and of requests that wait in the queue.

- **VLLM-V12** The hints of an engine hold ``hint_hold_percent`` of a host's share of the pool at most. Of a longer
  prefix the first blocks are held, and the others are counted.
- **VLLM-V13** A prefix counts once, however many requests continue it: the longer hold replaces the shorter one that
  does not outlive it. Of windows and states the longer prefix needs others: those of the shorter one stay held, for
  requests that continue it otherwise. They are the first to go when the share is used up.
"""

from __future__ import annotations

import time
from typing import Any

from rackline.engines.reasons import Reasons
from rackline.vllm.groups import Groups
from rackline.vllm.holds import Hold, Holds
from rackline.vllm.progress import Progress
from rackline.vllm.search import Index
from rackline.vllm.settings import Settings
from rackline.vllm.statistics import RacklineStats

# Holds of hints of an engine: each new one is compared with all others.
HOLDS_MAX = 1024


class HintHolds:
    """Those of an engine."""

    def __init__(
        self,
        index: Index,
        groups: Groups,
        settings: Settings,
        holds: Holds,
        stats: RacklineStats,
        reasons: Reasons,
    ) -> None:
        self._index, self._groups, self._settings = index, groups, settings
        self._holds, self._stats, self._reasons = holds, stats, reasons
        self._bytes: dict[Hold, int] = {}
        """What each hold has of the share."""
        self._asked: dict[Hold, int] = {}
        """The units that a hold asks for, until the pool has answered."""
        self._last_hashes: dict[Hold, bytes] = {}
        """The hash of the last unit, of holds that others may replace (VLLM-V13)."""
        self._replaced: dict[Hold, list[Hold]] = {}
        """What a hold replaces, until the pool has answered."""
        self._windows: dict[Hold, None] = {}
        """Holds that were replaced, and have their windows and states alone; the oldest first."""

    def __len__(self) -> int:
        return len(self._bytes)

    @property
    def bytes(self) -> int:
        """What is held, or asked for, in all parts."""
        return sum(self._bytes.values())

    def queued(self, progress: Progress) -> None:
        """Holds what a request may load once it is scheduled, which its hint asks for."""
        request = progress.request
        units = min(self._hashed_units(progress), (request.num_tokens - 1) // self._groups.unit_tokens)
        progress.prefetch = self._begin(progress.hashed, units, progress.hints.prefetch_ms)

    @staticmethod
    def scheduled(progress: Progress) -> None:
        """What the request loads is held for it, or it does not wait any more."""
        hold, progress.prefetch = progress.prefetch, None
        if hold is not None:
            hold.release()

    def ended(self, progress: Progress) -> None:
        """All of a request is saved that will be: its hint asks to hold that."""
        if progress.hints.hold_ms == 0:
            return
        request = progress.request
        tokens = request.num_computed_tokens
        if not self._settings.save_generated:
            tokens = min(tokens, request.num_prompt_tokens)
        units = min(self._hashed_units(progress), tokens // self._groups.unit_tokens)
        self._hold(progress.hashed, units, progress.hints.hold_ms)

    def _hashed_units(self, progress: Progress) -> int:
        groups = self._groups.groups
        tokens = min(group.hashed_blocks(progress.hashed) * group.block_tokens for group in groups)
        return tokens // self._groups.unit_tokens

    def _hold(self, hashed: Any, units: int, hold_ms: int) -> None:
        ends_s, replaced = time.monotonic() + hold_ms / 1000, []
        for hold, last_hash in self._last_hashes.items():
            if hold.units > units or self._hash(hashed, hold.units) != last_hash:
                continue
            if hold in self._windows and hold.units < units:
                continue
            if hold.ends_s <= ends_s:
                replaced.append(hold)
            elif hold.units == units and hold not in self._windows:
                # The same prefix is held for longer.
                return
        hold = self._begin(hashed, units, hold_ms, replaced)
        if hold is not None and not hold.is_over:
            self._last_hashes[hold] = self._hash(hashed, hold.units)

    def _hash(self, hashed: Any, units: int) -> bytes:
        return bytes(hashed.block_hashes[units * self._groups.hashes_per_unit - 1])

    def _begin(
        self, hashed: Any, units: int, hold_ms: int, replaced: list[Hold] | None = None
    ) -> Hold | None:
        replaced = replaced or []
        if units <= 0:
            return None
        while self._windows and len(self._bytes) - len(replaced) >= HOLDS_MAX:
            self._release_windows(replaced)
        if len(self._bytes) - len(replaced) >= HOLDS_MAX:
            self._reasons.unheld("too_many_hints", self._index.size(units)[0])
            return None
        while (fitting := self._fitting(units, replaced)) < units and self._windows:
            self._release_windows(replaced)
        if fitting < units and any(self._kept_bytes(hold, units) for hold in replaced):
            # There is no room for their windows.
            for hold in replaced:
                hold.release()
            replaced = []
            fitting = self._fitting(units, replaced)
        if fitting < units:
            blocks = self._index.size(units)[0] - self._index.size(fitting)[0]
            self._reasons.unheld("hint_share", blocks)
        replaced = [hold for hold in replaced if hold.units <= fitting]
        if fitting == 0:
            return None
        hold = self._holds.begin(hashed, fitting, hold_ms, self._changed)
        self._bytes[hold] = self._index.size(fitting)[1]
        self._asked[hold], self._replaced[hold] = fitting, replaced
        return hold

    def _release_windows(self, replaced: list[Hold]) -> None:
        """Of the hold that was replaced the longest ago."""
        oldest = next(iter(self._windows))
        oldest.release()
        if oldest in replaced:
            replaced.remove(oldest)

    def _kept_bytes(self, shorter: Hold, units: int) -> int:
        """What a shorter hold keeps that one of ``units`` replaces."""
        return 0 if shorter.units == units else self._index.size(shorter.units, whole=False)[1]

    def _fitting(self, units: int, replaced: list[Hold]) -> int:
        """How many units fit into what is left of the share (VLLM-V12)."""
        share_bytes = self._index.share_bytes() * self._settings.hint_hold_percent // 100
        freed_bytes = sum(self._bytes[hold] - self._kept_bytes(hold, units) for hold in replaced)
        left_bytes, low = share_bytes - self.bytes + freed_bytes, 0
        if self._index.size(units)[1] <= left_bytes:
            return units
        # The bytes of a window do not grow with the prefix.
        while low < units:
            middle = (low + units + 1) // 2
            if self._index.size(middle)[1] <= left_bytes:
                low = middle
            else:
                units = middle - 1
        return low

    def _changed(self, hold: Hold) -> None:
        """The pool has answered, or the hold is over."""
        asked = self._asked.pop(hold, None)
        if asked is not None and hold.search is not None and not hold.is_over:
            self._answered(hold, asked)
        if hold.is_over:
            self._bytes.pop(hold, None)
            self._last_hashes.pop(hold, None)
            self._replaced.pop(hold, None)
            self._windows.pop(hold, None)

    def _answered(self, hold: Hold, asked: int) -> None:
        blocks, self._bytes[hold] = self._index.size(hold.units)
        self._stats.count("hint_held_blocks", blocks)
        if hold.units < asked:
            search = hold.search
            self._reasons.unheld(search.reason, self._index.size(asked)[0] - blocks, search.message)
        if hold in self._last_hashes and hold.units > 0:
            self._last_hashes[hold] = self._hash(hold.hashed, hold.units)
        for shorter in self._replaced.pop(hold, []):
            if shorter.units <= hold.units:
                self._replace(shorter, hold.units)

    def _replace(self, shorter: Hold, units: int) -> None:
        """A hold of ``units`` has what keeps all tokens of a shorter one, or one as long."""
        kept_bytes = self._kept_bytes(shorter, units)
        if kept_bytes == 0 or shorter in self._asked:
            shorter.release()
        elif not shorter.is_over:
            self._bytes[shorter], self._windows[shorter] = kept_bytes, None
            shorter.release_whole()

    def forget(self) -> None:
        """What is held is of no use any more."""
        for hold in list(self._bytes):
            hold.release()
