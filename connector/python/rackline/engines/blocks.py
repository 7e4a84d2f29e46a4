"""Finding, loading and saving blocks for engines that wait for them, each in a thread of its own.

Nothing here raises once it is open: what fails is a miss, or not saved, and counted.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from typing import Any

import rackline
from rackline.engines.attachment import Attachment, Renewal
from rackline.engines.identities import Others, Registration
from rackline.engines.reasons import SAVED, Reasons, of_error
from rackline.engines.settings import PoolSettings
from rackline.engines.words import words_of

logger = logging.getLogger(__name__)

# Transfers that are under way at once for one call.
AT_ONCE = 64
# Between two lines in the log.
TELL_EVERY_S = 60.0


class SharedBlocks:
    """The blocks of one model and namespace, in one process. For any thread."""

    def __init__(self, settings: PoolSettings, model: rackline.Model, block_bytes: int) -> None:
        self._settings, self._model, self._block_bytes = settings, model, block_bytes
        self._attachment = Attachment(settings)
        self._renewal = Renewal(self._attachment)
        try:
            self._renewal.open(self._open_session)
        except BaseException:
            self._attachment.close()
            raise
        self._of_thread = threading.local()
        words = words_of(model, block_bytes, settings.tenant)
        self._registration = Registration(self._attachment, words, block_bytes)
        self._others = Others(settings.region, words)
        self._what = f"{model.name}, rank {model.tensor_parallel_rank}"
        self._shares = True
        self._changed = threading.Lock()
        self._counters: collections.Counter[str] = collections.Counter()
        self._reasons = Reasons(logger, lambda name, amount: self._count(**{name: amount}))
        self._told_s = time.monotonic()
        self._registration.renew()
        logger.info(
            "Rackline: %s of %d: blocks of %d tokens, %d bytes",
            self._what,
            model.tensor_parallel_size,
            model.block_tokens,
            block_bytes,
        )

    def _open_session(self) -> None:
        self._session = self._attachment.pool.session(
            self._model,
            self._block_bytes,
            tenant=self._settings.tenant,
            hold_ms=self._settings.hold_ms,
        )

    def _current(self) -> rackline.Session:
        """The session, opened anew where the process attached to the pool again (ENGINE-E2)."""
        with self._changed:
            self._renewal.renew(self._open_session)
            # Another thread may renew it before this one's call has failed.
            self._of_thread.life = self._renewal.life
            return self._session

    @property
    def block_bytes(self) -> int:
        """Length of every block in bytes."""
        return self._block_bytes

    def counters(self) -> dict[str, int]:
        """What was done since the start: ``lookup_blocks`` and ``hit_blocks``, ``loaded_blocks``,
        ``missed_blocks`` (were to be loaded, and are not) and ``miss_*`` by reason, ``saved_blocks``,
        ``already_there_blocks``, ``unsaved_blocks`` and ``unsaved_*`` by reason, ``not_found_*`` (lookups
        that found nothing, or less than there was) by reason, ``errors``, and ``not_attached``: calls that did
        nothing because the process lost its membership of the pool, until it has attached again."""
        with self._changed:
            return dict(self._counters)

    def find(self, hashes: list[bytes], wait_ms: int = 1000) -> int:
        """How many blocks from the first on are in the pool; none after ``wait_ms``. Blocks on drives are
        restored first, for as long as ``restore_wait_ms`` allows."""
        if not self._shares or not hashes:
            return 0
        prefix = self._look(hashes, wait_ms, hold=self._waits_for_drives())
        if prefix is None:
            return 0
        prefix.release()
        return len(prefix)

    def _waits_for_drives(self) -> bool:
        return self._settings.restore_wait_ms > 0 and self._attachment.pool.has_drives

    def _look(self, hashes: list[bytes], wait_ms: int, hold: bool) -> rackline.Prefix | None:
        """What was found within ``wait_ms``. A lookup that nobody waits for any more releases what it
        finds."""
        prefix, reason, message = None, "lookup_timeout", None
        restore = {}
        if hold and self._waits_for_drives():
            restore = self._settings.restore_options(self._model.block_tokens, wait_ms)
        try:
            prefix = self._current().lookup(hashes, hold=hold, **restore).wait(wait_ms)
        except rackline.Error as error:
            reason, message = self._refused("a lookup", error)
        found = 0 if prefix is None else len(prefix)
        self._count(lookup_blocks=len(hashes), hit_blocks=found)
        if prefix is not None:
            reason, message = prefix.reason or "absent", prefix.message
        if found == 0 and reason == "absent" and not self._counters["hit_blocks"]:
            reason, message = self._others.why_absent() or (reason, message)
        if found == 0 or (found < len(hashes) and reason != "absent"):
            self._reasons.not_found(reason, message)
        return prefix

    def load(self, hashes: list[bytes], memory: rackline.BlockMemory, places: list[int]) -> int:
        """Fetches blocks into ``places`` of ``memory``, and returns how many from the first on have
        their right bytes. What is in the other places is undefined. No memory is written to after return,
        also when Ctrl-C ends the call."""
        if not self._shares or not hashes:
            return 0
        valid, reason = 0, "miss_absent"
        try:
            session = self._current().by_caller()
            with session.lookup(hashes, hold=True).wait() as prefix:
                if len(prefix) > 0:
                    result = _result(session.fetch(prefix, memory, places[: len(prefix)]))
                    valid = result.valid_blocks
                    if result.reason is not None:
                        reason = f"miss_{result.reason}"
                        logger.warning("Rackline: %s: %s", self._what, result.message)
                if valid == len(prefix) and prefix.reason is not None:
                    reason = f"miss_{prefix.reason}"
        except rackline.Error as error:
            reason = self._failed("a load", error)
        missed = len(hashes) - valid
        self._count(loaded_blocks=valid, missed_blocks=missed, **{reason: missed})
        return valid

    def hold(self, hashes: list[bytes], wait_ms: int = 1000) -> rackline.Prefix | None:
        """The blocks from the first on that are in the pool, held until they are released; ``None``
        where that is not known, or not within ``wait_ms``: what is found later is released."""
        if not self._shares or not hashes:
            return None
        return self._look(hashes, wait_ms, hold=True)

    def load_each(self, handles: bytes, memories: list[rackline.BlockMemory]) -> int:
        """Fetches the first blocks that were found, each into a memory of its own of one block, and
        returns how many from the first on have their right bytes. No memory is written to after return."""
        if not self._shares:
            return 0
        valid, reason, sound = 0, "miss_none", True
        length = rackline.HANDLE_BYTES
        for start in range(0, len(memories), AT_ONCE):
            if not self._shares:
                break
            fetches: list[rackline.Fetch | str] = []
            for number, memory in enumerate(memories[start : start + AT_ONCE], start):
                try:
                    handle = handles[number * length : (number + 1) * length]
                    fetches.append(self._current().fetch(handle, memory, [0]))
                except rackline.Error as error:
                    fetches.append(self._failed("a load", error))
            # Every one that was begun is waited for, also behind one that failed.
            try:
                outcomes = [self._fetched(fetch) for fetch in fetches]
            except BaseException:
                # Ctrl-C while it waits: who gets the memory back must not have it written to.
                for fetch in fetches:
                    _wait_quietly(fetch)
                raise
            for good, why in outcomes:
                if sound and good:
                    valid += 1
                elif sound:
                    sound, reason = False, why
            if not sound:
                break
        missed = len(memories) - valid
        self._count(loaded_blocks=valid, missed_blocks=missed, **{reason: missed})
        return valid

    def _fetched(self, fetch: rackline.Fetch | str) -> tuple[bool, str]:
        """Whether a block is good, and else the name of the counter of why it is not: that of a fetch
        which was not begun is known."""
        if isinstance(fetch, str):
            return False, fetch
        try:
            result = fetch.wait()
        except rackline.Error as error:
            return False, self._failed("a load", error)
        if result.reason is not None:
            logger.warning("Rackline: %s: %s", self._what, result.message)
        return result.valid_blocks == 1, f"miss_{result.reason}"

    def save_each(
        self, hashes: list[bytes], depths: list[int], memories: list[rackline.BlockMemory]
    ) -> list[str]:
        """Publishes blocks, each from a memory of its own of one block. Returns for each the outcome:
        one of ``SAVED`` when all can find it now, or why not."""
        outcomes = []
        for name, depth, memory in zip(hashes, depths, memories, strict=True):
            outcomes += self._publish([name], depth, memory, [0])
        return outcomes

    def save(
        self,
        hashes: list[bytes],
        first_depth: int,
        memory: rackline.BlockMemory,
        places: list[int],
    ) -> list[bool]:
        """Publishes the blocks in ``places`` of ``memory``, the first of them behind ``first_depth``
        others in its prompt. Returns for each whether all can find it now. No memory is read after return,
        also when Ctrl-C ends the call: the caller may write other blocks there."""
        return [
            outcome in SAVED for outcome in self._publish(hashes, first_depth, memory, places)
        ]

    def _publish(
        self,
        hashes: list[bytes],
        first_depth: int,
        memory: rackline.BlockMemory,
        places: list[int],
    ) -> list[str]:
        messages: dict[str, str] = {}
        if self._shares:
            self._registration.renew()
        if not self._shares or not hashes:
            outcomes = ["stopped"] * len(hashes)
        else:
            try:
                session = self._current().by_caller()
                result = _result(session.publish(hashes, first_depth, memory, places))
                outcomes, messages = result.outcomes, result.messages
            except rackline.Error as error:
                reason, message = self._refused("a save", error)
                outcomes, messages = [reason] * len(hashes), {reason: message}
        self._count(
            saved_blocks=outcomes.count("published"),
            already_there_blocks=outcomes.count("already_there"),
            unsaved_blocks=self._reasons.outcomes(outcomes, messages),
        )
        return outcomes

    def left_out(self, blocks: int, reason: str) -> None:
        """Counts blocks that the engine offered and that are not saved, for a reason of
        `rackline.engines.reasons`."""
        self._count(unsaved_blocks=blocks)
        self._reasons.unsaved(reason, blocks)

    def stop(self) -> None:
        """From now on nothing is found, loaded or saved; what was begun continues."""
        self._shares = False

    def close(self) -> None:
        """Ends this share of the process's attachment: the last one waits for what was begun, and
        leaves the pool. A caller that uses the memory of a transfer waits for the transfer first."""
        self.stop()
        self._tell(self.counters())
        self._attachment.close()

    def _count(self, **amounts: int) -> None:
        now_s, tell = time.monotonic(), None
        with self._changed:
            self._counters.update({name: more for name, more in amounts.items() if more})
            if now_s - self._told_s > TELL_EVERY_S:
                self._told_s, tell = now_s, dict(self._counters)
        if tell is not None:
            self._tell(tell)

    def _tell(self, counters: dict[str, int]) -> None:
        text = ", ".join(f"{name}={count}" for name, count in sorted(counters.items()))
        logger.info("Rackline: %s: %s", self._what, text or "nothing done yet")

    def _refused(self, what: str, error: rackline.Error) -> tuple[str, str]:
        """The reason that an error gives, and its sentence."""
        if self._attachment.is_out(error, self._of_thread.life):
            # The pool has said so, once; here it is counted.
            self._count(not_attached=1)
            return "not_attached", str(error)
        self._count(errors=1)
        return of_error(error), f"{self._what}: {what} failed: {error}"

    def _failed(self, what: str, error: rackline.Error) -> str:
        """The name of the counter of blocks that are missed for it."""
        if self._attachment.is_out(error, self._of_thread.life):
            # The pool has said so, once; here it is counted.
            self._count(not_attached=1)
            return "miss_not_attached"
        logger.warning("Rackline: %s: %s failed: %s", self._what, what, error)
        self._count(errors=1)
        return "miss_error"


def _result(transfer: Any) -> Any:
    """What a fetch or a publish gives. Ctrl-C is raised when the transfer is over."""
    try:
        return transfer.wait()
    except BaseException:
        _wait_quietly(transfer)
        raise


def _wait_quietly(transfer: rackline.Fetch | rackline.Publish | str) -> None:
    """Waits until nothing of a transfer is written or read any more."""
    # One whose result was had already says so.
    with contextlib.suppress(rackline.Error):
        if not isinstance(transfer, str):
            transfer.wait()
