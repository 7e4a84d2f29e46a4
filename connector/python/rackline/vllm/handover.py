"""From prefill to decode: blocks that a finished request leaves to another engine."""

from __future__ import annotations

import collections
import time
from typing import Any

import rackline
from rackline.vllm.search import Index, Search


class Handovers:
    """The blocks of finished requests, held until their decode has had time to find them."""

    def __init__(self, index: Index, hold_ms: int) -> None:
        self._index, self._hold_ms = index, hold_ms
        self._searches: list[Search] = []
        self._held: collections.deque[tuple[float, list[rackline.Prefix]]] = collections.deque()

    def begin(self, request: Any, blocks: int) -> None:
        """Holds the first blocks of a request, all of which are saved."""
        if blocks > 0:
            self._searches.append(self._index.look(request, 0, blocks, time.monotonic()))

    def look_after(self) -> None:
        """Every step: takes in what was found, and lets go what was held for long enough."""
        now_s = time.monotonic()
        under_way = []
        for search in self._searches:
            if search.found(0) is None:
                under_way.append(search)
            else:
                self._held.append((now_s + self._hold_ms / 1000, search.prefixes))
        self._searches = under_way
        while self._held and self._held[0][0] < now_s:
            for prefix in self._held.popleft()[1]:
                prefix.release()
