"""Why requests found nothing, and blocks were not loaded or not saved.

Each such request and block is counted under the name of its reason. Each reason is in the log at most once
a minute, with its sentence and what was counted since.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable

import rackline

# Outcomes of a publish after which all can find the block.
SAVED = ("published", "already_there")
# Between two lines in the log with the same reason.
TELL_EVERY_S = 60.0

# A prompt that nobody computed before is no fault, nor is what a client asks for, and the library itself has
# said once why a process is not attached.
QUIET = ("absent", "window_absent", "not_attached", "hint", "prefetch_no_agent")

# Where the library gives no sentence.
NOT_FOUND = {
    "absent": "the pool does not have the block",
    "window_absent": "the pool has the prefix, and lacks blocks of its last window, or its last state",
    "lookup_timeout": "the lookup took longer than lookup_timeout_ms: raise it, or give the host "
    "more processors",
    "hash_timeout": "the hashes of the stored blocks took longer than lookup_timeout_ms: raise it, or give all "
    "engines the same block size and no stored_block_tokens",
    "queue_full": "too many lookups wait: raise queue_depth",
    "not_attached": "this process is not attached to the pool",
    "error": "the pool refused the lookup",
    "stopped": "this engine shares no blocks since a reset: reset with a new name (weights_name_file)",
    "handover_timeout": "the prefill did not save its blocks within handover_wait_ms: look in the "
    "prefill engine's log why, or raise handover_wait_ms",
    "missed_before": "the block was found before, and could not be loaded",
}
NOT_LOADED = {
    "queue_full": "too many transfers wait to be copied: raise copy_threads or queue_depth",
    "not_attached": "this process is not attached to the pool",
    "error": "the pool refused the load",
    "aborted": "the step did not come to its end",
    "other_rank": "another rank could not load a block of the same request",
    "not_asked": "the engine computed a layer without asking for its blocks",
}
UNSAVED = {
    "queue_full": "too many transfers wait to be copied: raise copy_threads or queue_depth",
    "not_attached": "this process is not attached to the pool",
    "error": "the pool refused the blocks",
    "backlog": "ended requests kept too much of the engine's memory: raise copy_threads or "
    "save_backlog_percent",
    "stopped": "this engine shares no blocks since a reset: reset with a new name (weights_name_file)",
    "hint": "a hint of the request says so",
    "aborted": "the step did not come to its end",
    "load_failed": "the step also loaded blocks, and a load failed",
    "other_connector": "the request ended with a step in which another connector loaded blocks",
    "preempted": "the request was preempted, and the engine needs the memory",
    "not_whole": "the engine offered something else than a whole block",
    "being_saved": "the same block is being saved",
    "saves_max": "more blocks wait to be saved than saves_max: raise saves_max or copy_threads",
}
UNHELD = {
    **NOT_FOUND,
    "hint_share": "hints hold all that they may: raise hint_hold_percent, or send fewer and shorter holds",
    "too_many_hints": "too many requests have a hint to hold: send fewer and shorter holds",
}
NOT_PREFETCHED = {
    "queue_full": "too many lookups wait: raise queue_depth",
    "error": "the pool refused the prefetch",
}
# Of the library, which brings its own sentences: of a lookup that holds and of a fetch, and of a publish.
OF_HOLDS = (
    "evicted", "not_ready", "owner_dead", "spilled", "quarantined", "stale_generation", "wrong_key",
    "key_collision", "wrong_length", "torn", "malformed", "changed", "checksum", "memory_failed", "too_many_held",
    "declared_dead", "restore_unknown", "restore_damaged", "restore_too_late", "restore_busy", "restore_no_room",
    "restore_stopped", "restore_late", "restore_no_agent", "restore_requests_full", "restore_evicted_again",
    "restore_closed",
)  # fmt: skip
OF_PUBLISHES = (
    "longer_than_chunk", "segment_full", "no_chunk", "chunk_lock", "declared_dead", "outrun", "copy",
    "taken_away", "memory_failed", "drained",
)  # fmt: skip


def of_error(error: rackline.Error) -> str:
    """The reason that a refused call gives, of a process that is attached."""
    return "queue_full" if isinstance(error, rackline.Busy) else "error"


class Reasons:
    """Counts and tells. For any thread."""

    def __init__(self, logger: logging.Logger, count: Callable[[str, int], None]) -> None:
        """``count`` is called with the name of a counter, ``not_found_``, ``not_loaded_``, ``unsaved_``,
        ``unheld_``, ``not_prefetched_`` or ``ignored_hints_`` and the reason, and with what to add."""
        self._logger, self._count = logger, count
        self._changed = threading.Lock()
        self._told_s: dict[str, float] = {}
        self._untold: collections.Counter[str] = collections.Counter()

    def not_found(self, reason: str, message: str | None = None) -> None:
        """A request found nothing, or less than there was."""
        said = message or NOT_FOUND.get(reason, reason)
        level = logging.DEBUG if reason in QUIET else logging.WARNING
        text = "%d requests found nothing, or less (%s): %s"
        self._add("not_found", reason, 1, level, text, said)

    def not_loaded(self, reason: str, blocks: int, message: str | None = None) -> None:
        """Blocks were found, and could not be loaded."""
        said = message or NOT_LOADED.get(reason, reason)
        text = "%d blocks were found, and are not loaded (%s): %s"
        level = logging.DEBUG if reason in QUIET else logging.WARNING
        self._add("not_loaded", reason, blocks, level, text, said)

    def unsaved(self, reason: str, blocks: int, message: str | None = None) -> None:
        """Blocks were not saved."""
        said = message or UNSAVED.get(reason, reason)
        text = "%d blocks are not saved (%s): %s"
        level = logging.DEBUG if reason in QUIET else logging.WARNING
        self._add("unsaved", reason, blocks, level, text, said)

    def unheld(self, reason: str, blocks: int, message: str | None = None) -> None:
        """A hint asked to hold blocks, and they are not held."""
        said = message or UNHELD.get(reason, reason)
        text = "%d blocks are not held for hints (%s): %s"
        level = logging.DEBUG if reason in QUIET else logging.WARNING
        self._add("unheld", reason, blocks, level, text, said)

    def not_prefetched(self, reason: str, blocks: int, message: str | None = None) -> None:
        """Blocks of a request that waits are not asked for ahead."""
        said = NOT_PREFETCHED.get(reason) or message or reason
        text = "%d blocks are not prefetched (%s): %s"
        level = logging.DEBUG if reason in QUIET else logging.WARNING
        self._add("not_prefetched", reason, blocks, level, text, said)

    def ignored_hint(self, reason: str, message: str) -> None:
        """An action of a hint is not followed."""
        text = "%d actions of hints are ignored (%s): %s"
        self._add("ignored_hints", reason, 1, logging.WARNING, text, message)

    def outcomes(self, outcomes: list[str], messages: dict[str, str]) -> int:
        """Takes in what became of blocks. Returns how many of them were not saved."""
        unsaved = collections.Counter(it for it in outcomes if it not in SAVED)
        for reason, blocks in unsaved.items():
            self.unsaved(reason, blocks, messages.get(reason))
        return unsaved.total()

    def _add(
        self, family: str, reason: str, amount: int, level: int, text: str, said: str
    ) -> None:
        if amount <= 0:
            return
        name = f"{family}_{reason}"
        self._count(name, amount)
        now_s = time.monotonic()
        with self._changed:
            self._untold[name] += amount
            if now_s - self._told_s.get(name, -TELL_EVERY_S) < TELL_EVERY_S:
                return
            self._told_s[name] = now_s
            untold = self._untold.pop(name)
        self._logger.log(level, f"Rackline: {text}", untold, reason, said)
