"""Prefixes that stay in the pool for a time: of requests that were handed over, and of hints.

The pool itself ends a hold after its time. An engine without requests makes no steps, and ends none.
"""

from __future__ import annotations

import collections
import heapq
import time
from collections.abc import Callable
from typing import Any

import rackline
from rackline.vllm.lookup import Search
from rackline.vllm.search import Index

# So many holds are kept before those are taken out that were released before their time.
TIDY_MIN = 64


class Hold:
    """The first units of a request, which are to be held, and are when the pool has answered."""

    def __init__(
        self, hashed: Any, units: int, hold_ms: int, changed: Callable[[Hold], None]
    ) -> None:
        self.hashed: Any = hashed
        """What has the hashes of the request; ``None`` after the answer."""
        self.units = units
        """After the answer: units that are held."""
        self.hold_ms = hold_ms
        self.ends_s = time.monotonic() + hold_ms / 1000
        """When it is released, by the clock of ``time.monotonic``. The time begins anew with the answer."""
        self.is_over = False
        self.search: Search | None = None
        self._whole: list[rackline.Prefix] = []
        """What is held in the parts that keep all tokens."""
        self._others: list[rackline.Prefix] = []
        self._changed = changed

    def answered(self, found: int, now_s: float) -> None:
        """The pool has said how many units are held."""
        self.units, self.ends_s = found, now_s + self.hold_ms / 1000
        self._whole, self._others = self.search.prefixes_by_kind
        self._changed(self)
        # A search has the tokens of its request, which may be many, and the hold may be long.
        self.search = self.hashed = None
        if found == 0:
            self.release()

    def release_whole(self) -> None:
        """Another hold has its blocks of the parts that keep all tokens. Those of windows and states stay
        held; without any it is over."""
        for prefix in self._whole:
            prefix.release()
        self._whole = []
        if not self._others:
            self.release()

    def release(self) -> None:
        """Its blocks may be evicted. A second call does nothing."""
        if self.is_over:
            return
        self.is_over = True
        if self.search is not None:
            self.search.release()
        for prefix in (*self._whole, *self._others):
            prefix.release()
        self.search, self._whole, self._others = None, [], []
        self._changed(self)
        self.hashed = None


class Holds:
    """All holds of an engine but those of requests that load."""

    def __init__(self, index: Index, hold_ms: int) -> None:
        self._index, self._hold_ms = index, hold_ms
        self._waiting: collections.deque[tuple[Hold, int | None]] = collections.deque()
        """There was no room for their lookups."""
        self._under_way: list[Hold] = []
        self._held: list[tuple[float, int, Hold]] = []
        """A heap, the first to end first."""
        self._number = 0
        self._tidy_at = TIDY_MIN
        self._life = index.life

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way) + len(self._held)

    def begin(
        self,
        hashed: Any,
        units: int,
        hold_ms: int | None = None,
        changed: Callable[[Hold], None] = lambda hold: None,
    ) -> Hold:
        """Holds the first ``units`` of a request, as far as they are in the pool, for ``hold_ms``; else for
        the time of the setting. Calls ``changed`` when the pool has answered, and when the hold is over."""
        hold = Hold(hashed, units, self._hold_ms if hold_ms is None else hold_ms, changed)
        if units > 0:
            self._waiting.append((hold, hold_ms))
            self._look()
        else:
            hold.release()
        return hold

    def _look(self) -> None:
        while self._waiting:
            hold, hold_ms = self._waiting[0]
            if not hold.is_over:
                now_s = time.monotonic()
                hold.search = self._index.look(hold.hashed, 0, hold.units, now_s, hold_ms=hold_ms)
                if hold.search is None:
                    return
                self._under_way.append(hold)
            self._waiting.popleft()

    def look_after(self) -> None:
        """Every step: takes in what was found, and releases what was held for long enough."""
        if self._life != self._index.life:
            self._life = self._index.life
            for _, _, hold in self._held:
                hold.release()
        self._look()
        now_s = time.monotonic()
        self._end_unanswered(now_s)
        under_way, self._under_way = self._under_way, []
        for hold in under_way:
            found = None if hold.is_over else hold.search.found(0)
            if found is not None:
                hold.answered(found, now_s)
                if found > 0:
                    self._number += 1
                    heapq.heappush(self._held, (hold.ends_s, self._number, hold))
            elif not hold.is_over:
                self._under_way.append(hold)
        while self._held and self._held[0][0] <= now_s:
            heapq.heappop(self._held)[2].release()
        if len(self._held) >= self._tidy_at:
            self._held = [entry for entry in self._held if not entry[2].is_over]
            heapq.heapify(self._held)
            self._tidy_at = max(TIDY_MIN, 2 * len(self._held))

    def _end_unanswered(self, now_s: float) -> None:
        """A hold that the pool has not answered in its whole time is of no use."""
        for hold in [*self._under_way, *(hold for hold, _ in self._waiting)]:
            if hold.ends_s <= now_s:
                hold.release()
