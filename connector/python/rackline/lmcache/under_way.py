"""Calls that use LMCache's memory, and the end of them all."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class UnderWay:
    """For any thread. As a context manager it is one call, in which its value says whether that may
    use the memory."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls = 0
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether no call begins any more."""
        return self._ended

    def end(self) -> None:
        """From now on no call may use the memory. Does not wait."""
        with self._changed:
            self._ended = True

    def wait(self) -> None:
        """Waits until no call is under way."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls == 0)

    def __enter__(self) -> bool:
        with self._changed:
            # Also one that may not is counted, so that each is left alike.
            self._calls += 1
            return not self._ended

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()
