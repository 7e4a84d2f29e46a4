"""What the agent is told of forwards: on a CPU at once, on a GPU when its stream has come that far."""

from __future__ import annotations

import contextlib
import gc
import queue
import threading
import types
import unittest
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from cases import PROMPTS, TinyCase, tokens
from engine import engine
from gpu_case import GpuCase
from rackline.vllm import forwards
from rackline.vllm.device import Cpu
from rackline.vllm.forwards import Forwards
from rackline.vllm.messages import Step

LIMIT_S = 300
"""Far longer than on a slow machine: to end a hang, not to measure."""


class Told:
    """What was told, in order."""

    def __init__(self) -> None:
        self.seen: queue.Queue[object] = queue.Queue()

    def begin(self, computed_tokens: int, prefix_tokens: int) -> None:
        self.seen.put((computed_tokens, prefix_tokens))

    def end(self) -> None:
        self.seen.put("end")


class Gpu(Cpu):
    """One whose work is done when the test says so."""

    gpu = 0

    def __init__(self, told: Told) -> None:
        self._told = told
        self.waits = 0
        self.is_done = threading.Event()
        self.error: RuntimeError | None = None

    def waiter(self) -> Callable[[], None]:
        self.waits += 1

        def wait() -> None:
            self._told.seen.put("waits")
            self.is_done.wait()
            if self.error is not None:
                raise self.error

        return wait


def session(told: Told | None) -> Any:
    return types.SimpleNamespace(report_forwards=lambda: told)


def step(computed_tokens: int, prefix_tokens: int = 0) -> Step:
    return Step(computed_tokens=computed_tokens, prefix_tokens=prefix_tokens)


class Reported(unittest.TestCase):
    def setUp(self) -> None:
        self.told = Told()
        self.gpu = Gpu(self.told)
        self.forwards = Forwards()

    def next(self) -> object:
        return self.told.seen.get(timeout=LIMIT_S)

    def test_a_cpu_has_done_its_forward(self) -> None:
        cpu = Cpu()
        self.forwards.open(session(self.told), cpu)
        self.forwards.begin(step(5, 3))
        self.forwards.end(cpu)
        self.assertEqual((self.next(), self.next()), ((5, 3), "end"))

    def test_the_forward_of_a_gpu_ends_when_its_stream_has_done_it(self) -> None:
        self.forwards.open(session(self.told), self.gpu)
        for number in (5, 7):
            self.forwards.begin(step(number))
            self.forwards.end(self.gpu)
        self.assertEqual((self.next(), self.next()), ((5, 0), "waits"))
        # Both are launched. The thread is in the first wait.
        self.assertTrue(self.told.seen.empty())
        self.gpu.is_done.set()
        rest = [self.next() for _ in range(4)]
        self.assertEqual(rest, ["end", (7, 0), "waits", "end"])
        self.forwards.close()
        self.assertTrue(self.told.seen.empty())

    def test_a_step_without_a_forward_is_not_told_of(self) -> None:
        self.forwards.open(session(self.told), self.gpu)
        self.forwards.begin(step(0))
        self.forwards.end(self.gpu)
        self.forwards.close()
        self.assertEqual(self.gpu.waits, 0)
        self.assertTrue(self.told.seen.empty())

    def test_a_gpu_that_fails_ends_it_and_not_the_engine(self) -> None:
        self.forwards.open(session(self.told), self.gpu)
        thread, gone = self.forwards._teller._thread, weakref.ref(self.told)
        self.gpu.error = RuntimeError("device-side assert")
        self.gpu.is_done.set()
        with self.assertLogs("rackline.vllm.forwards", "WARNING") as logged:
            self.forwards.begin(step(5))
            self.forwards.end(self.gpu)
            thread.join(LIMIT_S)
        self.assertIn("any more: device-side assert", logged.output[0])
        for _ in range(100):
            self.forwards.begin(step(5))
            self.forwards.end(self.gpu)
        self.assertTrue(self.forwards._teller._todo.empty(), "nobody would take it")
        # The agent does not wait for the end of that forward: the row is given back.
        # What was logged has the error, and with it the frame of the thread.
        self.told = self.gpu = logged = None
        gc.collect()
        self.assertIsNone(gone())

    def test_a_stream_that_cannot_be_asked_ends_it(self) -> None:
        self.forwards.open(session(self.told), self.gpu)
        self.forwards.begin(step(5))
        with (
            mock.patch.object(self.gpu, "waiter", side_effect=RuntimeError("no event")),
            self.assertLogs("rackline.vllm.forwards", "WARNING") as logged,
        ):
            self.forwards.end(self.gpu)
        self.assertIn("to the agent: no event", logged.output[0])
        self.forwards.begin(step(5))
        self.forwards.end(self.gpu)
        self.assertEqual(self.gpu.waits, 0)

    def test_a_gpu_that_hangs_does_not_keep_the_engine_from_its_end(self) -> None:
        self.forwards.open(session(self.told), self.gpu)
        self.forwards.begin(step(5))
        self.forwards.end(self.gpu)
        self.assertEqual((self.next(), self.next()), ((5, 0), "waits"))
        thread = self.forwards._teller._thread
        with mock.patch.object(forwards, "CLOSE_S", 0.01):
            self.forwards.close()
        self.assertTrue(thread.is_alive() and thread.daemon)
        self.gpu.is_done.set()
        thread.join(LIMIT_S)
        self.assertFalse(thread.is_alive())

    def test_a_host_with_too_many_engines_is_told_of(self) -> None:
        with self.assertLogs("rackline.vllm.forwards", "WARNING") as logged:
            self.forwards.open(session(None), self.gpu)
        self.assertIn("64 processes of this host report theirs", logged.output[0])


@contextlib.contextmanager
def recorded() -> Iterator[list[str]]:
    """What engines tell their agent meanwhile."""
    calls: list[str] = []

    class Recorded:
        def __init__(self, told: Any) -> None:
            self._told = told

        def begin(self, *tokens: int) -> None:
            calls.append("begin")
            self._told.begin(*tokens)

        def end(self) -> None:
            calls.append("end")
            self._told.end()

    now, later = forwards._Now, forwards._Later
    with (
        mock.patch.object(forwards, "_Now", lambda told: now(Recorded(told))),
        mock.patch.object(forwards, "_Later", lambda told: later(Recorded(told))),
    ):
        yield calls


class OfEngines(GpuCase, TinyCase):
    def check(self, own: Any, calls: list[str]) -> None:
        self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
        own.drain()
        # The last forward of a GPU may be under way.
        pairs = len(calls) // 2
        self.assertGreater(pairs, 1)
        self.assertEqual(calls[: 2 * pairs], ["begin", "end"] * pairs)

    def test_engines_tell_their_agents_of_each_forward(self) -> None:
        with recorded() as calls, engine(self.model, self.settings()) as own:
            self.check(own, calls)
        with recorded() as calls, self.on_gpu(1) as own:
            self.check(own, calls)


if __name__ == "__main__":
    unittest.main()
