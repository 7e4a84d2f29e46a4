"""Finding prefixes: what the scheduler asks, and what it is told.

- **VLLM-V1** Nothing here waits for the pool, except for lookups: ``lookup_wait_ms`` a step at most, for all of
  them; a request without an answer by then is asked about again.
- **VLLM-V2** What the scheduler is told is there is held on every rank until it is loaded.
- **VLLM-V6** A block that the pool did not give is not found again by this engine for ten minutes, unless it is
  saved anew: asked once more, it would not be loaded once more. Where a load failed for another reason, a queue that is full or a copy that
  went wrong, its blocks may be good: others find them, and the request looks no more, and computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import rackline
from rackline.engines.attachment import Attachment, Renewal
from rackline.engines.settings import SettingsError
from rackline.engines.words import Words
from rackline.vllm.groups import Group, Groups, Keeps
from rackline.vllm.identity import Identity, Place
from rackline.vllm.lookup import Search, hashes_in_one
from rackline.vllm.misses import Misses
from rackline.vllm.settings import Settings


class Index:
    """The sessions of all parts, and what is known of them."""

    def __init__(self, attachment: Attachment, settings: Settings, groups: Groups) -> None:
        self._attachment, self._settings, self._groups = attachment, settings, groups
        self._renewal = Renewal(attachment)
        self._identities: dict[Place, Identity] = {}
        self._sessions: dict[Place, rackline.Session] = {}
        self._wait_ends_s: float | None = None
        """When this step has waited for lookups for long enough; ``None`` before the first."""
        self._misses = Misses()

    def words(self) -> Words:
        """What the blocks of this engine are: of its first part, on all ranks."""
        identity = next(iter(self._identities.values()))
        return identity.words(self._settings.tenant)

    def open_all(self, identities: list[Identity]) -> None:
        """Opens a session for each place where a rank has blocks. Ranks with the same heads have one place.
        :class:`SettingsError` when the ranks together do not have all of the model's KV."""
        known = dict(self._identities)
        for identity in identities:
            if known.setdefault(identity.place, identity) != identity:
                raise SettingsError(
                    f"two ranks say that blocks at {identity.place} are {identity}, and "
                    f"{known[identity.place]}: start all ranks with the same options"
                )
        for identity in identities:
            told = {place.heads for place in known if place[:2] == identity.place[:2]}
            if told != set(range(identity.places)):
                raise SettingsError(
                    f"the ranks have the parts {sorted(told)} of a group of KV caches, which has "
                    f"{identity.places}: start all ranks with the same options"
                )
        self._identities = known
        for place, identity in known.items():
            if place not in self._sessions:
                self._sessions[place] = self._open(identity)

    def rename(self, weights: str) -> None:
        """Looks for blocks of weights of another name from now on. Raises :class:`rackline.Error` when no
        session can be opened, and nothing is changed."""
        renamed = {
            place: dataclasses.replace(identity, model=weights)
            for place, identity in self._identities.items()
        }
        sessions = {place: self._open(identity) for place, identity in renamed.items()}
        self._identities, self._sessions = renamed, sessions
        self._misses = Misses()

    def share_bytes(self) -> int:
        """Bytes of the pool's memory for blocks, divided by the number of nodes."""
        return self._attachment.pool.share_bytes

    @property
    def restore_wait_ms(self) -> int:
        """How long an answer may wait for drives: not at all where the region has no room to announce any."""
        return self._settings.restore_wait_ms if self._attachment.pool.has_drives else 0

    def session_with_drives(self) -> rackline.Session | None:
        """The session of the first part; ``None`` before there is one, while none is of the present attachment,
        and where the region has no room to announce blocks on drives."""
        self._renew()
        session = next(iter(self._sessions.values()), None)
        is_current = self._renewal.life == self._attachment.life
        return session if is_current and self._attachment.pool.has_drives else None

    def _restore(self, block_tokens: int) -> dict[str, int]:
        waits = self.restore_wait_ms > 0
        return self._settings.restore_options(block_tokens) if waits else {}

    @property
    def prefetch_wait_ms(self) -> int:
        """How long blocks of a request that is queued may take to come from drives; 0: they are not asked for."""
        return self._settings.prefetch_wait_ms if self.restore_wait_ms > 0 else 0

    def prefetch(self, request: Any, first: int, last: int) -> Iterator[rackline.Prefetch]:
        """Has the units ``first`` to ``last`` restored that are on drives, in every part: a prefetch of each."""
        self._renew()
        unit_tokens = self._groups.unit_tokens
        for place, session in self._sessions.items():
            group = self._groups.groups[place.group]
            blocks = group.needed(first * unit_tokens, last * unit_tokens)
            if not blocks:
                continue
            recompute_us = self._settings.recompute_ms * group.block_tokens
            hashes = hashes_in_one(group.hashes(request, blocks))
            yield session.prefetch(
                hashes, wait_ms=self.prefetch_wait_ms, recompute_us=recompute_us
            )

    def size(self, units: int, *, whole: bool = True) -> tuple[int, int]:
        """The number of blocks that a prefix of ``units`` needs, and their bytes: in all parts, or in those
        that do not keep the ``whole`` prefix."""
        tokens, blocks, all_bytes = units * self._groups.unit_tokens, 0, 0
        for place, identity in self._identities.items():
            group = self._groups.groups[place.group]
            if group.keeps is Keeps.ALL and not whole:
                continue
            needed = len(group.needed(0, tokens))
            blocks += needed
            all_bytes += needed * identity.block_bytes
        return blocks, all_bytes

    def _open_all(self, hold_ms: int) -> dict[Place, rackline.Session]:
        return {
            place: self._open(identity, hold_ms) for place, identity in self._identities.items()
        }

    def _open(self, identity: Identity, hold_ms: int | None = None) -> rackline.Session:
        return self._attachment.pool.session(
            identity.model_of_session(),
            identity.block_bytes,
            tenant=self._settings.tenant,
            hold_ms=self._settings.hold_ms if hold_ms is None else hold_ms,
        )

    def _renew(self) -> None:
        """Opens the sessions anew where this process attached to the pool again (ENGINE-E2)."""
        self._renewal.renew(self._open_again)

    def _open_again(self) -> None:
        self._sessions = {
            place: self._open(identity) for place, identity in self._identities.items()
        }

    @property
    def life(self) -> int:
        """Of the attachment: what was held in an earlier one is not held any more (ENGINE-E2)."""
        return self._attachment.life

    def is_current(self, search: Search) -> bool:
        """Whether what it found is held: not when this process attached again since."""
        return search.life == self._attachment.life

    def key_spaces(self, group: int) -> list[bytes]:
        """What tells the keys of a group's blocks from those of others, for each rank."""
        places = self._sessions.items()
        return [session.key_space for place, session in places if place.group == group]

    def next_step(self) -> None:
        """There is time to wait again (VLLM-V1)."""
        self._wait_ends_s = None

    def look(
        self,
        request: Any,
        first: int,
        last: int,
        now_s: float,
        *,
        hold: bool = True,
        hold_ms: int | None = None,
    ) -> Search | None:
        """Begins to look for the units ``first`` to ``last`` of a request, to be held, for ``hold_ms`` or
        for the time of the setting. ``None`` when as many lookups are waiting as there is room for."""
        self._renew()
        life = self._renewal.life
        search = Search(
            first,
            last - first,
            now_s,
            request=request,
            groups=self._groups,
            misses=self._misses,
            sessions=self._sessions,
            hold=hold,
            restore=self._restore,
            life=life,
            is_out=lambda error: self._attachment.is_out(error, life),
        )
        try:
            if hold_ms is not None:
                # The time of a hold is that of its session, of which opening is a matter of microseconds.
                search.sessions = self._open_all(hold_ms)
            search.begin()
        except rackline.Busy:
            # What was asked already is answered meanwhile: :meth:`Search.found` asks the rest.
            return search if search.has_asked else None
        except rackline.Error as error:
            search.fail("a lookup was refused", error)
        return search

    def found(self, search: Search, now_s: float) -> int | None:
        """Units that may be loaded in every part; ``None`` when that is not known yet."""
        wait_ms = 0
        if search.answer is None:
            if self._wait_ends_s is None:
                self._wait_ends_s = now_s + self._settings.lookup_wait_ms / 1000
            wait_ms = max(0, int((self._wait_ends_s - now_s) * 1000))
        if search.answer is None or (search.answer and search.misses_known != self._misses.count):
            known = self._misses.count
            search.answer = search.found(wait_ms)
            search.misses_known = known
        return search.answer

    def missed(self, search: Search, group: Group, depth: int) -> None:
        """A block that was found was not there to be loaded, or was no good (VLLM-V6). On which rank that
        was is not known: a prefix counts when every rank has it."""
        self._misses.add(group.number, depth, search.handles_at(group.number, depth))
