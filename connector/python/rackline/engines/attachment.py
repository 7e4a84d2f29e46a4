"""The attachment of a process, shared by the halves that live in it.

- **ENGINE-E1** A process that lost its membership of the pool attaches again without help, for example after
  its node was declared dead. A thread checks the membership about once a second, also without any calls.
  When it is lost, the thread closes the attachment, which waits for begun transfers. Then it tries to
  attach until it succeeds. The pool lets the node in again when all processes of the host have left.
- **ENGINE-E2** Meanwhile every call is refused: a lookup is a miss, and a block is not saved. Blocks that were
  found or held before no longer count. Each user of the pool opens its sessions again when the ``life`` of
  the attachment has changed. If that fails, it tries again about once a second.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import rackline
from rackline.engines.settings import PoolSettings, SettingsError

logger = logging.getLogger(__name__)

# Between two checks of the membership.
WATCH_EVERY_S = 1.0
# Between two tries to attach again, or to open a session again.
TRY_EVERY_S = 1.0
# Between two lines in the log that say why that failed.
TELL_EVERY_S = 60.0

_Key = tuple[int, str, int]
_attached: dict[_Key, _Attached] = {}

# Guards what is shared below. Engine steps take it, so it is never held over a call that waits.
_lock = threading.Lock()
# Held while a share begins or ends, which waits: a process attaches to a pool once at a time.
_changing = threading.Lock()


def _renew_locks() -> None:
    """In a forked child, whose parent may have held them in the fork."""
    global _lock, _changing
    _lock, _changing = threading.Lock(), threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


class _Telling:
    """Logs why a repeated attempt fails, but not each time."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._told_s: float | None = None

    def failed(self, error: Exception) -> None:
        now_s = time.monotonic()
        if self._told_s is None or now_s - self._told_s > TELL_EVERY_S:
            self._told_s = now_s
            logger.warning("Rackline: %s: %s", self._what, error)

    def worked(self) -> None:
        """The attempt succeeded: the next failure is logged at once."""
        self._told_s = None


class _Attached:
    """What all shares of a process have of one pool."""

    def __init__(self, settings: PoolSettings) -> None:
        self.options = settings.pool_options()
        self.by_layers = settings.publishes_by_layers
        self._region, self._node = settings.region, settings.node
        self.shares = 0
        self.life = 0
        """Grows when the process attached again."""
        self.out = False
        """Whether the process is known to be out of the pool."""
        self.ended = False
        """Whether no share is left."""
        self.wake = threading.Event()
        """Set when the thread must look at once."""
        self.prepare: list[Callable[[rackline.Pool], None]] = []
        self.pool = self._attach()
        self._watcher = threading.Thread(target=self._watch, name="rackline-attach", daemon=True)
        self._watcher.start()

    def _attach(self) -> rackline.Pool:
        return rackline.Pool(
            self._region, self._node, **self.options, publishes_by_layers=self.by_layers
        )

    def _watch(self) -> None:
        """In a thread of its own (ENGINE-E1). No error ends it."""
        telling = _Telling("not attached to the pool again yet")
        while not self.ended:
            self.wake.wait(TRY_EVERY_S if self.out else WATCH_EVERY_S)
            self.wake.clear()
            if self.ended:
                return
            try:
                if self.out or self._is_lost():
                    self._attach_again()
                    telling.worked()
            except Exception as error:
                telling.failed(error)

    def _is_lost(self) -> bool:
        try:
            return self.pool.metrics()["membership"] != "member"
        except rackline.Closed:
            # Somebody closed the pool itself, and wants no other.
            return False

    def _attach_again(self) -> None:
        with _lock:
            self.out = True
        # Returns at once where an earlier try closed it.
        self.pool.close()
        self._use(self._attach())

    def _use(self, pool: rackline.Pool) -> None:
        for prepare in list(self.prepare):
            try:
                prepare(pool)
            except Exception as error:
                # The caller finds out when it uses the session.
                logger.warning("Rackline: attached to the pool again, but a session did not open: %s", error)
        with _lock:
            if not self.ended:
                self.pool, self.out = pool, False
                self.life += 1
                logger.warning("Rackline: attached to the pool again")
                return
        pool.close()

    def end(self) -> None:
        """Waits for the thread, which may be attaching, and for what was begun in the pool."""
        self.wake.set()
        try:
            # Threads do not continue any more when the interpreter ends.
            if not sys.is_finalizing():
                self._watcher.join()
        finally:
            self.pool.close()


class Attachment:
    """A share of this process's attachment to a pool; the last to be closed ends it."""

    def __init__(self, settings: PoolSettings) -> None:
        """Raises :class:`SettingsError` when the process is attached with other options, which hold for
        all that is in it."""
        self._key = (os.getpid(), settings.region, settings.node)
        with _changing:
            attached = _attached.get(self._key)
            options = settings.pool_options()
            if attached is None:
                attached = _attached[self._key] = _Attached(settings)
            elif options != attached.options:
                raise SettingsError(_difference(options, attached.options))
            elif settings.publishes_by_layers and not attached.by_layers:
                raise SettingsError(
                    "another plugin in this process is attached to the pool and does not save layer by "
                    'layer: set "layerwise" to the same value for both'
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
        """Which attachment it is, from 0: sessions of an earlier one are refused everything (ENGINE-E2)."""
        return self._attached.life

    def prepare(self, prepare: Callable[[rackline.Pool], None]) -> None:
        """Has a pool prepared that is attached again, in the thread that attaches, before it is used."""
        self._attached.prepare.append(prepare)

    def is_out(self, error: rackline.Error, life: int) -> bool:
        """Whether the error of a session of this ``life`` says that the session's attachment is lost.
        The process attaches again without help (ENGINE-E1)."""
        # Not the lock in a forked child: the thread and the pool are the parent's.
        if self._key[0] != os.getpid() or not self._open:
            return False
        if not isinstance(error, (rackline.Closed, rackline.MembershipLost)):
            return False
        attached = self._attached
        with _lock:
            if attached.out or life < attached.life:
                return True
        if isinstance(error, rackline.Closed):
            return False
        attached.wake.set()
        return True

    def close(self) -> None:
        """Ends this share. Where it is the last, waits for all that was begun in the pool, by any
        share; else for no more than another share that begins or ends."""
        if self._key[0] != os.getpid():
            return
        with _changing:
            if not self._open:
                return
            self._open = False
            attached = self._attached
            attached.shares -= 1
            if attached.shares > 0:
                return
            with _lock:
                attached.ended = True
            try:
                # Not beside the next one: a process attaches once.
                attached.end()
            finally:
                del _attached[self._key]


class Renewal:
    """Opens the sessions of one user of an attachment, and opens them anew (ENGINE-E2). Not for several
    threads at once."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self.life = attachment.life
        """Of the attachment that the sessions are of."""
        self._try_s = 0.0
        self._telling = _Telling("no session could be opened yet in the pool, which was attached again")

    def open(self, open_sessions: Callable[[], None]) -> None:
        """Calls ``open_sessions``, and raises what it raises."""
        # The life first: a session that is older than it is opened anew the next time.
        life = self._attachment.life
        open_sessions()
        self.life = life

    def again(self) -> None:
        """The sessions are of no attachment: the next :meth:`renew` opens them."""
        self.life = -1

    def renew(self, open_sessions: Callable[[], None]) -> bool:
        """Opens the sessions anew where the process attached again since. Returns whether it did.
        A failure is logged, and tried again in a later call: until then the old sessions are refused
        everything, which is counted."""
        now_s = time.monotonic()
        if self.life == self._attachment.life or now_s < self._try_s:
            return False
        try:
            self.open(open_sessions)
        except Exception as error:
            self._try_s = now_s + TRY_EVERY_S
            self._telling.failed(error)
            return False
        self._try_s = 0.0
        self._telling.worked()
        return True


def _difference(asked: dict[str, Any], found: dict[str, Any]) -> str:
    differ = [name for name in asked if asked[name] != found[name]]
    said = ", ".join(f"{name} {found[name]!r} and not {asked[name]!r}" for name in differ)
    return (
        f"something else in this process is attached to the pool with {said}: a process has one "
        "attachment, so set the same for both"
    )
