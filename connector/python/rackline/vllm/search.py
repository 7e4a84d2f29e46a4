"""Finding prefixes: what the scheduler asks, and what it is told.

- **VLLM-V1** Nothing here waits for the pool, except for lookups: ``lookup_wait_ms`` a step at most, for all of
  them; a request without an answer by then is asked about again.
- **VLLM-V2** What the scheduler is told is there is held on every rank until it is loaded.
- **VLLM-V6** A block that the pool did not give is not found again by this engine: asked once more, it would
  not be loaded once more. Where a load failed for another reason, a queue that is full or a copy that
  went wrong, its blocks may be good: others find them, and the request looks no more, and computes.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any

import rackline
from rackline.engines.attachment import Attachment, Renewal
from rackline.engines.reasons import of_error
from rackline.engines.words import Words
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
    handles: list[bytes] = dataclasses.field(default_factory=list)
    """Those of each prefix, one behind the other, when they were asked for."""
    answer: int | None = None
    """Blocks that may be loaded, when that is known."""
    misses_known: int = 0
    """How many misses were known when it was answered."""
    counted: bool = False
    """Whether it is in the statistics."""
    failed: bool = False
    """Whether there is no answer but an error."""
    reason: str = "absent"
    """Why the next block is not there: a name of `rackline.engines.reasons`."""
    message: str | None = None
    """What the pool says of it."""
    out: bool = False
    """Whether that says that this process is not attached to the pool."""
    life: int = 0
    """Of the attachment: what was found in an earlier one is not held any more."""
    is_out: Callable[[rackline.Error], bool] = lambda error: False
    """Whether an error says that."""

    def found(self, wait_ms: int) -> int | None:
        """Blocks that every rank has; ``None`` when that is not known within so long."""
        ends_s = time.monotonic() + wait_ms / 1000
        while self.lookups:
            try:
                left_ms = max(0, int((ends_s - time.monotonic()) * 1000))
                prefix = self.lookups[0].wait(left_ms)
            except rackline.Error as error:
                self.fail("a lookup failed", error)
                return 0
            if prefix is None:
                return None
            self.lookups.pop(0)
            self.prefixes.append(prefix)
        shortest = min(self.prefixes, key=len, default=None)
        if shortest is None:
            return 0
        if shortest.reason is not None:
            self.reason, self.message = shortest.reason, shortest.message
        return len(shortest)

    def handles_of_ranks(self) -> list[bytes]:
        if not self.handles:
            self.handles = [prefix.handles() for prefix in self.prefixes]
        return self.handles

    def handles_of(self, number: int) -> list[bytes]:
        """The handle of one of the blocks on every rank."""
        start = number * rackline.HANDLE_BYTES
        return [
            handles[start : start + rackline.HANDLE_BYTES] for handles in self.handles_of_ranks()
        ]

    def fail(self, what: str, error: rackline.Error) -> None:
        """There is no answer but this error."""
        self.failed, self.out = True, self.is_out(error)
        self.give_up("not_attached" if self.out else of_error(error), f"{what}: {error}")

    def give_up(self, reason: str, message: str | None = None) -> None:
        """It has found nothing, as far as its request is concerned."""
        self.reason, self.message = reason, message
        self.lookups.clear()
        self.release()
        self.prefixes.clear()
        self.answer = 0

    def release(self) -> None:
        for prefix in self.prefixes:
            prefix.release()


class Index:
    """The sessions of all ranks, and what is known of them."""

    def __init__(self, attachment: Attachment, settings: Settings) -> None:
        self._attachment, self._settings = attachment, settings
        self._renewal = Renewal(attachment)
        self._identities: dict[int, Identity] = {}
        self._sessions: dict[int, rackline.Session] = {}
        self._wait_ends_s: float | None = None
        """When this step has waited for lookups for long enough; ``None`` before the first."""
        self._missed_handles: collections.OrderedDict[bytes, int] = collections.OrderedDict()
        """With the place of each block in its prompt, where a search looks for it."""
        self._missed_at: collections.Counter[int] = collections.Counter()
        """How many of them are at each place."""
        self._misses = 0

    def words(self) -> Words:
        """What the blocks of this engine are, on all ranks."""
        identity = next(iter(self._identities.values()))
        return identity.words(self._settings.tenant)

    def open(self, identity: Identity) -> None:
        """Opens a session for the blocks of a rank of storage."""
        if identity.rank not in self._sessions:
            self._identities[identity.rank] = identity
            self._sessions[identity.rank] = self._open(identity)

    def _open(self, identity: Identity) -> rackline.Session:
        return self._attachment.pool.session(
            identity.model_of_session(),
            identity.block_bytes,
            tenant=self._settings.tenant,
            hold_ms=self._settings.hold_ms,
        )

    def _renew(self) -> None:
        """Opens the sessions anew where this process attached to the pool again (ENGINE-E2)."""
        self._renewal.renew(self._open_all)

    def _open_all(self) -> None:
        self._sessions = {
            rank: self._open(identity) for rank, identity in self._identities.items()
        }

    def is_current(self, search: Search) -> bool:
        """Whether what it found is held: not when this process attached again since."""
        return search.life == self._attachment.life

    def next_step(self) -> None:
        """There is time to wait again (VLLM-V1)."""
        self._wait_ends_s = None

    def look(
        self, request: Any, first: int, last: int, now_s: float, *, hold: bool = True
    ) -> Search | None:
        """Begins to look for the blocks ``first`` to ``last`` of a request, to be held. ``None`` when
        as many lookups are waiting as there is room for."""
        hashes = hashes_in_one(request.block_hashes[first:last])
        self._renew()
        life = self._renewal.life
        search = Search(first, last - first, now_s, life=life)
        search.is_out = lambda error: self._attachment.is_out(error, life)
        try:
            for session in self._sessions.values():
                search.lookups.append(session.lookup(hashes, hold=hold))
        except rackline.Busy:
            return None
        except rackline.Error as error:
            search.fail("a lookup was refused", error)
        return search

    def found(self, search: Search, now_s: float) -> int | None:
        """Blocks that may be loaded on every rank; ``None`` when that is not known yet."""
        if search.answer is None:
            if self._wait_ends_s is None:
                self._wait_ends_s = now_s + self._settings.lookup_wait_ms / 1000
            search.answer = search.found(max(0, int((self._wait_ends_s - now_s) * 1000)))
        if search.answer and search.misses_known != self._misses:
            search.misses_known = self._misses
            ends = search.first + search.answer
            for place in sorted(at for at in self._missed_at if search.first <= at < ends):
                number = place - search.first
                if any(it in self._missed_handles for it in search.handles_of(number)):
                    search.answer, search.reason, search.message = number, "missed_before", None
                    break
        return search.answer

    def missed(self, search: Search, depth: int) -> None:
        """A block that was found was not there to be loaded, or was no good (VLLM-V6). On which rank that
        was is not known: a prefix counts when every rank has it."""
        place = search.first + depth
        for handle in search.handles_of(depth):
            if handle not in self._missed_handles:
                self._missed_handles[handle] = place
                self._missed_at[place] += 1
        self._misses += 1
        while len(self._missed_handles) > MISSED_HANDLES_MAX:
            _, place = self._missed_handles.popitem(last=False)
            self._missed_at[place] -= 1
            if not self._missed_at[place]:
                del self._missed_at[place]

    def handles(self, search: Search, count: int) -> dict[int, bytes]:
        """The first blocks that were found, by rank of storage."""
        return {
            rank: handles[: count * rackline.HANDLE_BYTES]
            for rank, handles in zip(self._sessions, search.handles_of_ranks(), strict=True)
        }


def hashes_in_one(block_hashes: list[bytes]) -> bytes:
    """The engine's hashes, one behind the other, in the length of the pool's: shorter hashes are filled up
    with zeros, and of longer ones the SHA-256 stands for them."""
    if not block_hashes:
        return b""
    length = rackline.HASH_BYTES
    # An engine's hashes are of one length: one call does for all of a long prompt.
    filling = bytes(max(0, length - len(block_hashes[0])))
    whole = filling.join(block_hashes) + filling
    if len(whole) == len(block_hashes) * length:
        return whole
    return b"".join(
        block.ljust(length, b"\0") if len(block) <= length else hashlib.sha256(block).digest()
        for block in block_hashes
    )
