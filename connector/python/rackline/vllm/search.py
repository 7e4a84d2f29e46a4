"""Finding prefixes: what the scheduler asks, and what it is told.

- **V1** Nothing here waits for the pool, but for lookups: ``lookup_wait_ms`` a step at most, for all of
  them; who has no answer by then is asked about again.
- **V2** What the scheduler is told is there is held on every rank until it is loaded.
- **V6** A block that the pool did not give is not found again by this engine: asked once more, it would
  not be loaded once more. Where a load failed for another reason, a queue that is full or a copy that
  went wrong, its blocks may be good: others find them, and the request looks no more, and computes.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import time
from typing import Any

import rackline
from rackline.vllm.identity import Identity
from rackline.vllm.settings import Settings

logger = logging.getLogger(__name__)

# Blocks that were missed, of which the scheduler knows at most.
MISSED_HANDLES_MAX = 65536


@dataclasses.dataclass
class Search:
    """A lookup for a request, on every rank, and what it found."""

    first: int
    """The first block that was looked for."""
    looked_for: int
    began_s: float
    lookups: list[rackline.Lookup] = dataclasses.field(default_factory=list)
    prefixes: list[rackline.Prefix] = dataclasses.field(default_factory=list)
    counted: bool = False
    """Whether it is in the statistics."""

    def found(self, wait_ms: int) -> int | None:
        """Blocks that every rank has; ``None`` when that is not known within so long."""
        ends_s = time.monotonic() + wait_ms / 1000
        while self.lookups:
            try:
                left_ms = max(0, int((ends_s - time.monotonic()) * 1000))
                prefix = self.lookups[0].wait(left_ms)
            except rackline.Error as error:
                logger.warning("Rackline: a lookup failed: %s", error)
                self.lookups.clear()
                self.prefixes.clear()
                return 0
            if prefix is None:
                return None
            self.lookups.pop(0)
            self.prefixes.append(prefix)
        return min((len(prefix) for prefix in self.prefixes), default=0)

    def release(self) -> None:
        for prefix in self.prefixes:
            prefix.release()


class Index:
    """The sessions of all ranks, and what is known of them."""

    def __init__(self, pool: rackline.Pool, settings: Settings) -> None:
        self._pool, self._settings = pool, settings
        self._sessions: dict[int, rackline.Session] = {}
        self._wait_ends_s: float | None = None
        """When this step has waited for lookups for long enough; ``None`` before the first."""
        self._missed_handles: collections.OrderedDict[bytes, None] = collections.OrderedDict()

    def open(self, identity: Identity) -> None:
        """Opens a session for the blocks of a rank of storage."""
        if identity.rank not in self._sessions:
            self._sessions[identity.rank] = self._pool.session(
                identity.model_of_session(),
                identity.block_bytes,
                tenant=self._settings.tenant,
                hold_ms=self._settings.hold_ms,
            )

    def next_step(self) -> None:
        """There is time to wait again (V1)."""
        self._wait_ends_s = None

    def look(self, request: Any, first: int, last: int, now_s: float) -> Search:
        """Begins to look for the blocks ``first`` to ``last`` of a request, to be held."""
        hashes = [hash_bytes(block) for block in request.block_hashes[first:last]]
        search = Search(first, last - first, now_s)
        try:
            for session in self._sessions.values():
                search.lookups.append(session.lookup(hashes, hold=True))
        except rackline.Error as error:
            logger.warning("Rackline: a lookup was refused: %s", error)
            search.lookups.clear()
        return search

    def found(self, search: Search, now_s: float) -> int | None:
        """Blocks that may be loaded on every rank; ``None`` when that is not known yet."""
        if self._wait_ends_s is None:
            self._wait_ends_s = now_s + self._settings.lookup_wait_ms / 1000
        found = search.found(max(0, int((self._wait_ends_s - now_s) * 1000)))
        if found and self._missed_handles:
            for prefix in search.prefixes:
                for depth, handle in enumerate(prefix.handles()[:found]):
                    if handle in self._missed_handles:
                        found = depth
                        break
        return found

    def missed(self, search: Search, depth: int) -> None:
        """A block that was found was not there to be loaded, or was no good (V6). On which rank that
        was is not known: a prefix counts when every rank has it."""
        for prefix in search.prefixes:
            self._missed_handles[prefix.handles()[depth]] = None
        while len(self._missed_handles) > MISSED_HANDLES_MAX:
            self._missed_handles.popitem(last=False)

    def handles(self, search: Search, count: int) -> dict[int, list[bytes]]:
        """The first blocks that were found, by rank of storage."""
        return {
            rank: prefix.handles()[:count]
            for rank, prefix in zip(self._sessions, search.prefixes, strict=True)
        }


def hash_bytes(block_hash: bytes) -> bytes:
    """The engine's hash as 32 bytes: shorter ones are filled up with zeros."""
    return bytes(block_hash).ljust(32, b"\0")
