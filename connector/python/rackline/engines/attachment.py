"""The attachment of a process, shared by the halves that live in it.

- **E1** A process that is put out of the pool (its node was declared dead, say) attaches again by itself:
  a thread closes the attachment, which waits for what was begun, and tries to attach until it can. The
  pool lets the node in again when all processes of the host have left.
- **E2** Meanwhile every call is refused, which is a miss, or a block that is not saved. What was found or
  held before does not count any more: who uses the pool opens its sessions anew when the ``life`` of the
  attachment has changed, and looks again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import rackline
from rackline.engines.settings import PoolSettings, SettingsError

logger = logging.getLogger(__name__)

# Between two tries to attach again, and between two lines in the log that say why that failed.
TRY_EVERY_S = 1.0
TELL_EVERY_S = 60.0

_lock = threading.Lock()
_Key = tuple[int, str, int]
_attached: dict[_Key, _Attached] = {}


class _Attached:
    """What all shares of a process have of one pool."""

    def __init__(self, settings: PoolSettings) -> None:
        self.options = settings.pool_options()
        self.by_layers = settings.publishes_by_layers
        self._region, self._node = settings.region, settings.node
        self.shares = 0
        self.life = 0
        """Grows when the process attached again."""
        self.again: threading.Thread | None = None
        """Tries to attach again."""
        self.ended = threading.Event()
        """Set when no share is left."""
        self.prepare: list[Callable[[rackline.Pool], None]] = []
        self.pool = self._attach()

    def _attach(self) -> rackline.Pool:
        return rackline.Pool(
            self._region, self._node, **self.options, publishes_by_layers=self.by_layers
        )

    def attach_again(self) -> None:
        """In a thread of its own (E1)."""
        self.pool.close()
        told_s = None
        while not self.ended.is_set():
            try:
                pool = self._attach()
            except rackline.Error as error:
                now_s = time.monotonic()
                if told_s is None or now_s - told_s > TELL_EVERY_S:
                    told_s = now_s
                    logger.warning("Rackline: not attached to the pool again yet: %s", error)
                self.ended.wait(TRY_EVERY_S)
                continue
            self._use(pool)
            return

    def _use(self, pool: rackline.Pool) -> None:
        for prepare in list(self.prepare):
            try:
                prepare(pool)
            except Exception as error:
                # Who asked for it finds out when it is used.
                logger.warning("Rackline: attached to the pool again, but: %s", error)
        with _lock:
            if not self.ended.is_set():
                self.pool, self.again = pool, None
                self.life += 1
                logger.warning("Rackline: attached to the pool again, as a new life of its node")
                return
        pool.close()


class Attachment:
    """A share of this process's attachment to a pool; the last to be closed ends it."""

    def __init__(self, settings: PoolSettings) -> None:
        """Raises :class:`SettingsError` when the process is attached with other options, which hold for
        all that is in it."""
        self._key = (os.getpid(), settings.region, settings.node)
        with _lock:
            attached = _attached.get(self._key)
            options = settings.pool_options()
            if attached is None:
                attached = _attached[self._key] = _Attached(settings)
            elif options != attached.options:
                raise SettingsError(_difference(options, attached.options))
            elif settings.publishes_by_layers and not attached.by_layers:
                raise SettingsError(
                    "something else in this process is attached to the pool and does not save layer "
                    "by layer: set it to do so, too, or this one not to"
                )
            attached.shares += 1
        self._attached = attached
        self._open = True

    @property
    def pool(self) -> rackline.Pool:
        """The pool; another object in each :attr:`life`."""
        return self._attached.pool

    @property
    def life(self) -> int:
        """Which attachment it is, from 0: sessions of an earlier one are refused everything (E2)."""
        return self._attached.life

    def prepare(self, prepare: Callable[[rackline.Pool], None]) -> None:
        """Has a pool prepared that is attached again, in the thread that attaches, before it is used."""
        self._attached.prepare.append(prepare)

    def is_out(self, error: rackline.Error) -> bool:
        """Whether the error says that this process is not attached. It attaches again by itself
        (E1)."""
        with _lock:
            if not self._open or self._key[0] != os.getpid():
                return False
            attached = self._attached
            if isinstance(error, rackline.Closed):
                # Of a session that is older than the attachment, or while there is none.
                return attached.again is not None or attached.life > 0
            if not isinstance(error, rackline.MembershipLost):
                return False
            # A call of an earlier life may come to its end in this one.
            if attached.again is None and attached.pool.metrics()["membership"] != "member":
                attached.again = threading.Thread(
                    target=attached.attach_again, name="rackline-attach", daemon=True
                )
                attached.again.start()
            return True

    def close(self) -> None:
        """Ends this share. Waits for nothing but where it is the last: then for all that was begun in
        the pool, by any share."""
        with _lock:
            if not self._open or self._key[0] != os.getpid():
                return
            self._open = False
            attached = self._attached
            attached.shares -= 1
            if attached.shares > 0:
                return
            del _attached[self._key]
            attached.ended.set()
            # Not beside the next one: a process attaches once.
            attached.pool.close()


def _difference(asked: dict[str, Any], found: dict[str, Any]) -> str:
    differ = [name for name in asked if asked[name] != found[name]]
    said = ", ".join(f"{name} {found[name]!r} and not {asked[name]!r}" for name in differ)
    return (
        f"something else in this process is attached to the pool with {said}: a process has one "
        "attachment, so set the same for both"
    )
