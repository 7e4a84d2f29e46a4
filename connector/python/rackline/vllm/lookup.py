"""One search for the prefix of a request, in all parts of the engine's KV.

First it asks, in every part that keeps all tokens, how long the prefix is; and of the other groups, which
blocks are in the pool or on drives at all. From that follows the longest prefix that may be there (VLLM-V9).
Then it has the blocks of that prefix restored and held that the other parts need. When one of them has gone
meanwhile, or does not come from its drive, it takes the next shorter prefix. When the wait for drives is
over, or too many prefixes lacked a block, it asks again what the pool has, and drives do not count any more.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import rackline
from rackline.engines.reasons import of_error
from rackline.vllm.groups import Group, Groups, Keeps
from rackline.vllm.identity import Place
from rackline.vllm.misses import Misses

# Prefixes that a search tries before it takes the request for one that is not in the pool.
TRIES_MAX = 8


@dataclasses.dataclass
class Asked:
    """What was asked about one part: some of its blocks, from the first on."""

    place: Place
    group: Group
    blocks: range
    hashes: bytes
    """Those of the blocks."""
    lookup: rackline.Lookup | None
    prefix: rackline.Prefix | None = None
    _handles: bytes | None = None

    @property
    def found(self) -> range:
        return self.blocks[: len(self.prefix)]

    def handles(self, blocks: range) -> bytes:
        """Those of blocks without their keys, one behind the other; of fewer than these where they were not
        found."""
        if self._handles is None:
            self._handles = self.prefix.keyless_handles()
        return self._of(self._handles, blocks, rackline.KEYLESS_HANDLE_BYTES)

    def handle(self, block: int) -> bytes:
        """That of one block that was found."""
        return self.handles(range(block, block + 1))

    def hashes_of(self, blocks: range) -> bytes:
        """Those of blocks, one behind the other."""
        return self._of(self.hashes, blocks, rackline.HASH_BYTES)

    def _of(self, records: bytes, blocks: range, length: int) -> bytes:
        start = (blocks.start - self.blocks.start) * length
        return records[start : start + len(blocks) * length] if start >= 0 else b""

    def release(self) -> None:
        if self.prefix is not None:
            self.prefix.release()


@dataclasses.dataclass
class _Present:
    """Which blocks of a group are in the pool or on drives, as far as one of its parts was asked."""

    group: Group
    first: int
    """The first block that was asked about."""
    asked: rackline.Presence
    ask: Callable[[], rackline.Presence]
    """Asks again, without drives."""
    drives: bool = False
    """Whether drives were asked, too."""
    blocks: bytearray | None = None
    """For each block a byte, 1 or 0."""

    def shorter(self, needed: range) -> int | None:
        """Blocks of the longest prefix that may be there, where one of ``needed`` is missing; ``None`` when
        none is."""
        missing = self.blocks.rfind(0, needed.start - self.first, needed.stop - self.first)
        if missing < 0:
            return None
        if self.group.keeps is Keeps.CHUNK:
            return self.first + missing
        # The last block of a prefix is in its window, and is its state.
        return self.first + self.blocks.rfind(1, 0, missing) + 1

    def lacks(self, block: int) -> None:
        self.blocks[block - self.first] = 0


@dataclasses.dataclass
class Search:
    """A search for a request, on every rank, and what it found. Numbers without another unit are units of
    prefixes (:attr:`Groups.unit_tokens`)."""

    first: int
    """The first unit that was looked for."""
    looked_for: int
    began_s: float
    request: Any = None
    groups: Groups | None = None
    misses: Misses = dataclasses.field(default_factory=Misses)
    sessions: dict[Place, rackline.Session] = dataclasses.field(default_factory=dict)
    hold: bool = True
    restore: Callable[[int], dict[str, int]] = lambda block_tokens: {}
    """How the lookup of blocks of so many tokens waits for drives."""
    answer: int | None = None
    """Units that may be loaded, when that is known."""
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
    _unasked: list[tuple[Place, rackline.Session]] | None = None
    """The parts that were not asked the first question; ``None`` before :meth:`begin`."""
    _whole: list[Asked] = dataclasses.field(default_factory=list)
    _present: list[_Present] = dataclasses.field(default_factory=list)
    _needed: list[Asked] = dataclasses.field(default_factory=list)
    """What was asked for the prefix of ``_tried`` units, in the parts that keep a part of the tokens."""
    _unheld: list[tuple[Place, rackline.Session]] = dataclasses.field(default_factory=list)
    """The parts that were not asked for it."""
    _lacking: tuple[str, str | None] = ("window_absent", None)
    """Why the parts that keep a part of the tokens end a prefix."""
    _tried: int | None = None
    _tries: int = 0

    def begin(self) -> None:
        """Asks the first questions. :class:`rackline.Error` when there is no room for one: what was asked
        until then is kept, and the next call goes on behind it."""
        if self._unasked is None:
            self._unasked = list(self.sessions.items())
        end = self.first + self.looked_for
        hashes = _Hashes(self.request)
        while self._unasked:
            place, session = self._unasked[0]
            group = self.groups.groups[place.group]
            if group.keeps is Keeps.ALL:
                blocks = self._blocks(group, self.first, end)
                own = hashes.of(group, blocks)
                lookup = session.lookup(own, hold=self.hold, **self._restore(group))
                self._whole.append(Asked(place, group, blocks, own, lookup))
            elif not any(group.is_like(asked.group) for asked in self._present):
                # One of those that keep the same; the others are found out when they are held.
                blocks = self._blocks(group, self.first, end)
                ask = functools.partial(session.present, hashes.of(group, blocks))
                drives = bool(self._restore(group))
                present = ask(drives=True) if drives else ask()
                self._present.append(_Present(group, blocks.start, present, ask, drives))
            self._unasked.pop(0)

    def _restore(self, group: Group) -> dict[str, int]:
        """How a lookup of the group waits for drives: for what is left of the wait of the whole search."""
        restore = self.restore(group.block_tokens) if self.hold else {}
        if not restore:
            return {}
        left_ms = restore["restore_wait_ms"] - int((time.monotonic() - self.began_s) * 1000)
        return {**restore, "restore_wait_ms": left_ms} if left_ms > 0 else {}

    @property
    def has_asked(self) -> bool:
        """Whether there was room for one of its questions."""
        return bool(self._whole or self._present)

    def _blocks(self, group: Group, first: int, end: int) -> range:
        each = self.groups.unit_tokens // group.block_tokens
        return range(first * each, end * each)

    @property
    def restored(self) -> int:
        """Units that were restored from drives, in the part that waited for most."""
        tokens = (
            each.prefix.restored * each.group.block_tokens
            for each in [*self._whole, *self._needed]
            if each.prefix is not None
        )
        return -(-max(tokens, default=0) // self.groups.unit_tokens) if self.groups else 0

    @property
    def prefixes(self) -> list[rackline.Prefix]:
        return [prefix for prefixes in self.prefixes_by_kind for prefix in prefixes]

    @property
    def prefixes_by_kind(self) -> tuple[list[rackline.Prefix], list[rackline.Prefix]]:
        """What is held in the parts that keep all tokens, and in the others."""
        whole, others = (
            [each.prefix for each in asked if each.prefix is not None]
            for asked in (self._whole, self._needed)
        )
        return whole, others

    def found(self, wait_ms: int) -> int | None:
        """Units that every part has; ``None`` when that is not known within so long."""
        if self.failed or self.groups is None:
            return 0
        ends_s = time.monotonic() + wait_ms / 1000
        try:
            return self._found(ends_s)
        except rackline.Busy:
            return None
        except rackline.Error as error:
            self.fail("a lookup failed", error)
            return 0

    def _found(self, ends_s: float) -> int | None:
        if self._unasked:
            self.begin()
        if not _wait_for(self._whole, ends_s):
            return None
        while True:
            if not self._know_present(ends_s):
                return None
            units = self._longest()
            if units == self.first or not self._present or not self.hold:
                break
            if self._tried != units and self._leaves_drives():
                continue
            if self._tried != units and self._tries == TRIES_MAX:
                self._forget_needed()
                return 0
            self._ask_for(units)
            if not _wait_for(self._needed, ends_s):
                return None
            if self._are_there():
                break
        return units - self.first

    def _know_present(self, ends_s: float) -> bool:
        """Whether it is known which blocks are there."""
        for present in self._present:
            if present.blocks is None:
                told = present.asked.wait(_left_ms(ends_s))
                if told is None:
                    return False
                present.blocks = bytearray(told)
        return True

    def _leaves_drives(self) -> bool:
        """Asks again where drives were asked, when no more blocks of drives can come or too many did not.
        From then on what is in the pool counts. Returns whether it asked."""
        asked = [present for present in self._present if present.drives]
        if not asked or (self._tries < TRIES_MAX and all(self._restore(it.group) for it in asked)):
            return False
        # What is refused for want of room is asked with the next call.
        self._tries = TRIES_MAX
        for present in asked:
            present.asked = present.ask()
            present.drives, present.blocks = False, None
        self._tries = 0
        return True

    def _longest(self) -> int:
        """Units of the longest prefix that may be there, with those before the first."""
        units = self.first + self.looked_for
        for _, asked in self._by_group(self._whole):
            shortest = min(asked, key=lambda each: len(each.found))
            end = shortest.found.stop
            reason, message = shortest.prefix.reason, shortest.prefix.message
            if (missed := self._missed(asked, shortest.found)) is not None:
                end, reason, message = missed, "missed_before", None
            if reason is not None:
                self.reason, self.message = reason, message
            units = min(units, end * asked[0].group.block_tokens // self.groups.unit_tokens)
        unsure = True
        while unsure and units > self.first:
            unsure = False
            for present in self._present:
                needed = present.group.needed(*self._tokens(self.first, units))
                if (blocks := present.shorter(needed)) is not None:
                    units = blocks * present.group.block_tokens // self.groups.unit_tokens
                    self.reason, self.message = self._lacking
                    unsure = True
                    break
        return max(units, self.first)

    def _ask_for(self, units: int) -> None:
        """Has the blocks held that a prefix needs in the parts that keep a part of the tokens. Goes on
        where there was no room for more questions."""
        if self._tried != units:
            self._forget_needed()
            self._tried = units
            self._tries += 1
            self._unheld = list(self.sessions.items())
        hashes = _Hashes(self.request)
        while self._unheld:
            place, session = self._unheld[0]
            group = self.groups.groups[place.group]
            blocks = group.needed(*self._tokens(self.first, units))
            if group.keeps is not Keeps.ALL and blocks:
                own = hashes.of(group, blocks)
                lookup = session.lookup(own, hold=True, **self._restore(group))
                self._needed.append(Asked(place, group, blocks, own, lookup))
            self._unheld.pop(0)

    def _are_there(self) -> bool:
        """Whether every part has what was asked for; what it has not is known as lacking then."""
        complete = True
        for number, asked in self._by_group(self._needed):
            blocks = min((each.found for each in asked), key=len)
            lacking = self._missed(asked, blocks)
            if lacking is None and len(blocks) < len(asked[0].blocks):
                lacking = blocks.stop
                shortest = min(asked, key=lambda each: len(each.found)).prefix
                if shortest.reason is not None:
                    self._lacking = shortest.reason, shortest.message
            if lacking is not None:
                complete = False
                group = self.groups.groups[number]
                next(each for each in self._present if group.is_like(each.group)).lacks(lacking)
        return complete

    def _missed(self, asked: list[Asked], blocks: range) -> int | None:
        """The first of the blocks that the pool did not give before (VLLM-V6)."""
        return self.misses.first(asked[0].group.number, blocks, [each.handle for each in asked])

    @staticmethod
    def _by_group(asked: list[Asked]) -> list[tuple[int, list[Asked]]]:
        groups: dict[int, list[Asked]] = {}
        for each in asked:
            groups.setdefault(each.group.number, []).append(each)
        return list(groups.items())

    def _tokens(self, *units: int) -> tuple[int, ...]:
        return tuple(each * self.groups.unit_tokens for each in units)

    def loads(self, units: int) -> list[tuple[Group, range, bytes, dict[Place, bytes]]]:
        """What is loaded for the first units that were found: for each group its blocks, their hashes, and
        their handles by place."""
        loads = []
        for number, asked in self._by_group([*self._whole, *self._needed]):
            group = self.groups.groups[number]
            blocks = group.needed(*self._tokens(self.first, self.first + units))
            if blocks:
                handles = {each.place: each.handles(blocks) for each in asked}
                loads.append((group, blocks, asked[0].hashes_of(blocks), handles))
        return loads

    def handles_at(self, group: int, depth: int) -> list[bytes]:
        """Those of one block on every rank."""
        asked = [each for each in [*self._whole, *self._needed] if each.group.number == group]
        return [each.handle(depth) for each in asked]

    def fail(self, what: str, error: rackline.Error) -> None:
        """There is no answer but this error."""
        self.failed, self.out = True, self.is_out(error)
        self.give_up("not_attached" if self.out else of_error(error), f"{what}: {error}")

    def give_up(self, reason: str, message: str | None = None) -> None:
        """It has found nothing, as far as its request is concerned."""
        self.reason, self.message = reason, message
        self.release()
        self._whole, self._present = [], []
        self.groups = None
        self.answer = 0

    def _forget_needed(self) -> None:
        for asked in self._needed:
            asked.release()
        self._needed, self._unheld, self._tried = [], [], None

    def release(self) -> None:
        for asked in self._whole:
            asked.release()
        self._forget_needed()


class _Hashes:
    """The hashes of a request's blocks, made once for groups with blocks of one length."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._made: dict[tuple[int, range], bytes] = {}

    def of(self, group: Group, blocks: range) -> bytes:
        key = (group.hashes_per_block, blocks)
        if key not in self._made:
            self._made[key] = hashes_in_one(group.hashes(self._request, blocks))
        return self._made[key]


def _wait_for(asked: Iterable[Asked], ends_s: float) -> bool:
    """Whether all of it is answered."""
    for each in asked:
        if each.prefix is None:
            each.prefix = each.lookup.wait(_left_ms(ends_s))
            if each.prefix is None:
                return False
            each.lookup = None
    return True


def _left_ms(ends_s: float) -> int:
    return max(0, int((ends_s - time.monotonic()) * 1000))


def hashes_in_one(block_hashes: Sequence[bytes]) -> bytes:
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
