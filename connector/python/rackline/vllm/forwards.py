"""When a rank computes, told to the agent of its host, which writes to drives meanwhile.

On a GPU a forward is launched, and not done, when the engine says that its save begins. So a thread waits until the
engine's stream has come that far, and reports the end then. It reports the next forward after that, also where the
engine has launched it before: on the GPU, too, one follows another.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol

import rackline
from rackline.vllm.device import Device
from rackline.vllm.messages import Step

logger = logging.getLogger(__name__)

CLOSE_S = 1.0
"""How long the end of the engine waits for the thread. It may wait itself, for a GPU that hangs."""

Do = Callable[[rackline.Forwards], None]


class _Teller(Protocol):
    def begin(self, computed_tokens: int, prefix_tokens: int) -> None: ...

    def end(self, device: Device) -> None: ...

    def close(self) -> None: ...


class Forwards:
    """The forwards of a rank."""

    def __init__(self) -> None:
        self._teller: _Teller | None = None
        self._runs = False
        """Whether a forward was begun, and not ended."""

    def open(self, session: rackline.Session | None, device: Device) -> None:
        """The process attached to the pool; ``session`` is one of the rank, unless it reports nothing."""
        self.close()
        if session is None:
            return
        try:
            told = session.report_forwards()
            if told is None:
                self._are_not_reported("64 processes of this host report theirs")
            else:
                self._teller = _Now(told) if device.gpu is None else _Later(told)
        except (rackline.Error, RuntimeError) as error:
            # The engine leaves no window then (VLLM-W6).
            self._are_not_reported(error)

    def begin(self, step: Step) -> None:
        if self._teller is not None and step.computed_tokens > 0:
            self._runs = True
            self._teller.begin(step.computed_tokens, step.prefix_tokens)

    def end(self, device: Device | None) -> None:
        """The forward is done, or launched on a GPU."""
        runs, self._runs = self._runs, False
        if self._teller is None or device is None or not runs:
            return
        try:
            self._teller.end(device)
        except RuntimeError as error:  # torch's, of a GPU that has failed (VLLM-W6)
            self.close()
            self._are_not_reported(error)

    def close(self) -> None:
        teller, self._teller, self._runs = self._teller, None, False
        if teller is not None:
            teller.close()

    def _are_not_reported(self, why: object) -> None:
        logger.warning("Rackline: forwards are not reported to the agent: %s", why)


class _Now:
    """Of a CPU, which has done what it was given."""

    def __init__(self, told: rackline.Forwards) -> None:
        self._told = told

    def begin(self, computed_tokens: int, prefix_tokens: int) -> None:
        self._told.begin(computed_tokens, prefix_tokens)

    def end(self, device: Device) -> None:
        self._told.end()

    def close(self) -> None:
        pass


class _Later:
    """Of a GPU: on a thread of its own."""

    def __init__(self, told: rackline.Forwards) -> None:
        self._todo: queue.SimpleQueue[Do | None] = queue.SimpleQueue()
        # A daemon: a GPU that hangs does not keep the process from its end.
        self._thread = threading.Thread(
            target=_report, args=(told, self._todo), name="rackline-forwards", daemon=True
        )
        self._thread.start()

    def begin(self, computed_tokens: int, prefix_tokens: int) -> None:
        self._put(lambda told: told.begin(computed_tokens, prefix_tokens))

    def end(self, device: Device) -> None:
        wait = device.waiter()

        def end(told: rackline.Forwards) -> None:
            wait()
            told.end()

        self._put(end)

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join(CLOSE_S)

    def _put(self, do: Do) -> None:
        if self._thread.is_alive():
            self._todo.put(do)


def _report(told: rackline.Forwards, todo: queue.SimpleQueue[Do | None]) -> None:
    """Until there is nothing more to report, or the GPU fails."""
    try:
        for do in iter(todo.get, None):
            do(told)
    except RuntimeError as error:
        logger.warning("Rackline: forwards are not reported to the agent any more: %s", error)
