"""Tasks that LMCache's server gives an adapter: carried out by threads, their results fetched later."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lmcache.v1.platform.event_notifier import create_event_notifier

logger = logging.getLogger(__name__)

Work = Callable[[float], Any]
"""Carries a task out that was begun at that time (of ``time.monotonic``), and returns its result; or a
``Future`` without which it cannot go on: it is called again when that is done."""


class Tasks:
    """The tasks of one kind. For any thread. One that could not be carried out within ``timeout_ms`` is
    given up: its memory may be another's by then (LMCACHE-D4)."""

    def __init__(self, threads: ThreadPoolExecutor, timeout_ms: int) -> None:
        self._threads, self._timeout_ms = threads, timeout_ms
        self._event = create_event_notifier()
        self._changed = threading.Lock()
        self._done: dict[int, Any] = {}
        self._open = True

    def fileno(self) -> int:
        """Of the event that tells of results."""
        return self._event.fileno()

    def begin(self, number: int, nothing: Any, work: Work) -> None:
        """Begins a task. Its result is ``nothing`` when it fails, or when the threads have ended."""
        try:
            self._threads.submit(self._carry_out, number, nothing, work, time.monotonic())
        except RuntimeError:
            self._end(number, nothing)

    def take(self, number: int) -> Any:
        """The result of a task, once; ``None`` when there is none."""
        with self._changed:
            return self._done.pop(number, None)

    def take_all(self) -> dict[int, Any]:
        """All results that were not taken."""
        with self._changed:
            done, self._done = self._done, {}
        return done

    def close(self) -> None:
        """Nothing is told from now on."""
        with self._changed:
            self._open = False
            self._event.close()

    def _carry_out(self, number: int, nothing: Any, work: Work, began_s: float) -> None:
        result = nothing
        try:
            if (time.monotonic() - began_s) * 1000 < self._timeout_ms:
                result = work(began_s)
            else:
                logger.warning("Rackline: a task of LMCache was given up: it waited longer than task_timeout_ms")
        except Exception as error:
            logger.warning("Rackline: a task of LMCache failed: %r", error)
        if not isinstance(result, Future):
            self._end(number, result)
            return

        def go_on(_: Future[Any]) -> None:
            # Not here: who ends the future has other things to do.
            try:
                self._threads.submit(self._carry_out, number, nothing, work, began_s)
            except RuntimeError:
                self._end(number, nothing)

        result.add_done_callback(go_on)

    def _end(self, number: int, result: Any) -> None:
        with self._changed:
            self._done[number] = result
            # The number of an event that was closed may be that of another file by now.
            if self._open:
                self._event.notify()
