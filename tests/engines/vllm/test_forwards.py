"""What the agent is told of forwards: from the moment when an engine has asked for all that a step needs, to the
output of the oldest one."""

from __future__ import annotations

import contextlib
import time
import types
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

import rackline
from cases import PROMPTS, tokens
from engine import engine
from gpu_case import GpuCase
from rackline.vllm import forwards
from rackline.vllm.forwards import Forwards
from rackline.vllm.identity import Place
from rackline.vllm.messages import Step
from rackline.vllm.scheduler import SchedulerHalf
from rackline.vllm.settings import Settings
from test_attached_again import Attached
from test_failed_loads import CACHES, ENGINE, GIVEN
from test_scheduling import steps_ahead

LIMIT_S = 300
"""Far longer than on a slow machine: to end a hang, not to measure."""


class Told:
    """What was told, in order."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def begin(self, computed_tokens: int, prefix_tokens: int) -> None:
        self.seen.append((computed_tokens, prefix_tokens))

    def end(self) -> None:
        self.seen.append("end")

    def begun(self) -> list[object]:
        return [each for each in self.seen if each != "end"]


class WithDrives(Attached):
    def use(self, **calls: Any) -> None:
        super().use(**calls)
        self.pool.has_drives = True

    def close(self) -> None:
        pass


def session(*answers: Told | None | Exception) -> Any:
    return types.SimpleNamespace(report_forwards=mock.Mock(side_effect=answers))


def step(computed_tokens: int, prefix_tokens: int = 0) -> Step:
    return Step(computed_tokens=computed_tokens, prefix_tokens=prefix_tokens)


class Reported(unittest.TestCase):
    def setUp(self) -> None:
        self.told = Told()
        self.forwards = Forwards(1)

    def follow(self, session: Any) -> None:
        self.forwards.follow(session)
        self.forwards._opening.join()

    def test_a_forward_lasts_until_the_output_of_its_step(self) -> None:
        self.follow(session(self.told))
        self.forwards.made(step(5, 3))
        self.assertEqual(self.told.seen, [(5, 3)])
        self.forwards.output_came()
        self.assertEqual(self.told.seen, [(5, 3), "end"])

    def test_steps_ahead_are_told_of_as_the_step_that_ends(self) -> None:
        self.forwards = Forwards(2)
        self.follow(session(self.told))
        self.forwards.made(step(5))
        self.assertEqual(self.told.seen, [], "the engine makes another step first")
        self.forwards.made(step(7))
        self.assertEqual(self.told.seen, [(5, 0)])
        self.forwards.output_came()
        self.assertEqual(self.told.seen[1:], ["end"], "the engine asks now")
        self.forwards.made(step(9))
        self.assertEqual(self.told.seen[2:], [(7, 0)], "it is the next to end")

    def test_a_step_that_computes_nothing_is_not_told_of(self) -> None:
        self.follow(session(self.told))
        for computed in (0, 5):
            self.forwards.made(step(computed))
            self.forwards.output_came()
        self.assertEqual(self.told.begun(), [(5, 0)])

    def test_a_step_whose_output_never_comes_is_forgotten(self) -> None:
        for ahead in (1, 2):
            with self.subTest(ahead=ahead):
                self.told, self.forwards = Told(), Forwards(ahead)
                self.follow(session(self.told))
                for lost in range(ahead):
                    self.forwards.made(step(100 + lost))
                # The engine recovers, and fills its queue before it waits.
                for number in range(1, 1 + ahead):
                    self.forwards.made(step(number))
                for number in range(1, 5):
                    self.assertEqual(self.told.seen[-1], (number, 0))
                    self.forwards.output_came()
                    self.forwards.made(step(number + ahead))

    def test_an_output_without_a_step_changes_nothing(self) -> None:
        self.follow(session(self.told))
        self.forwards.output_came()
        self.forwards.made(step(5))
        self.assertEqual(self.told.begun(), [(5, 0)])

    def test_reports_begin_with_a_step_when_the_pool_has_answered(self) -> None:
        self.forwards.made(step(5))
        self.follow(session(self.told))
        self.forwards.output_came()
        self.forwards.made(step(7))
        self.assertEqual(self.told.begun(), [(7, 0)])

    def test_another_session_is_followed_and_none_ends_it(self) -> None:
        second = Told()
        first, other = session(self.told), session(second)
        self.follow(first)
        self.forwards.made(step(5))
        with mock.patch.object(forwards.threading.Thread, "start"):
            # It has not answered yet.
            self.forwards.follow(other)
            self.forwards.output_came()
            self.forwards.made(step(6))
            self.assertEqual(self.told.seen, [(5, 0)], "of a session that is not there any more")
        self.forwards._opening.run()
        self.forwards.follow(other)
        other.report_forwards.assert_called_once()
        self.forwards.output_came()
        self.forwards.made(step(7))
        self.assertEqual(second.begun(), [(7, 0)])
        self.forwards.follow(None)
        self.forwards.output_came()
        self.forwards.made(step(9))
        self.assertEqual(second.begun(), [(7, 0)])

    def test_an_answer_for_an_earlier_session_is_not_taken(self) -> None:
        late = session(self.told)
        asked = late.report_forwards.side_effect

        def overtaken() -> Any:
            self.forwards.close()
            return next(asked)

        late.report_forwards.side_effect = overtaken
        self.follow(late)
        self.forwards.made(step(5))
        self.assertEqual(self.told.seen, [])

    def test_a_pool_without_room_is_asked_again_and_said_once(self) -> None:
        for full, why in (
            (None, "64 processes of this host report theirs"),
            (rackline.Busy("a queue is full"), "a queue is full"),
        ):
            asked = session(full, full, self.told)
            with (
                self.subTest(why),
                mock.patch.object(forwards, "RETRY_S", 0.001),
                self.assertLogs("rackline.vllm.forwards", "WARNING") as logged,
            ):
                self.follow(asked)
            [said] = logged.output
            self.assertIn(f"forwards are not reported to the agent: {why}; this is tried", said)
            self.assertIs(self.forwards._told, self.told)

    def test_a_pool_that_refuses_is_not_asked_again(self) -> None:
        with self.assertLogs("rackline.vllm.forwards", "WARNING") as logged:
            self.follow(session(rackline.Closed("the pool was closed")))
        self.assertIn("not reported to the agent: the pool was closed", logged.output[0])
        self.forwards.made(step(5))
        self.forwards.output_came()

    def test_a_wait_for_room_ends_with_the_engine(self) -> None:
        with self.assertLogs("rackline.vllm.forwards", "WARNING"):
            full = session()
            full.report_forwards = mock.Mock(return_value=None)
            self.forwards.follow(full)
            while not full.report_forwards.called:
                time.sleep(0.001)
            self.forwards.close()
            self.forwards._opening.join(LIMIT_S)
        self.assertFalse(self.forwards._opening.is_alive())


class AttachedAgain(unittest.TestCase):
    """An engine that asks for nothing, such as one that only saves, or that decodes what it has."""

    def half(self, attachment: Any, consumer: bool) -> SchedulerHalf:
        transfer = types.SimpleNamespace(
            is_kv_consumer=consumer, is_kv_producer=True, kv_load_failure_policy="recompute"
        )
        own = types.SimpleNamespace(**{**vars(ENGINE), "kv_transfer_config": transfer})
        with mock.patch("rackline.vllm.scheduler.Attachment", return_value=attachment):
            half = SchedulerHalf(own, CACHES, Settings.of(GIVEN))
        half.sessions_of({(0, 0): [mock.Mock(place=Place(0, 0, 0), places=1, block_bytes=128)]})
        return half

    def steps(self, half: SchedulerHalf, count: int) -> None:
        none = types.SimpleNamespace(req_ids=[], new_block_ids=[], num_computed_tokens=[])
        for _ in range(count):
            half.build_step(
                types.SimpleNamespace(
                    preempted_req_ids=set(),
                    num_scheduled_tokens={"x": 5},
                    scheduled_new_reqs=[],
                    scheduled_cached_reqs=none,
                )
            )
            if half._forwards._opening is not None:
                half._forwards._opening.join()
            half.take_events()

    def test_the_new_pool_is_told(self) -> None:
        for consumer in (False, True):
            with self.subTest(consumer=consumer):
                old, new = Told(), Told()
                attachment = WithDrives(report_forwards=lambda old=old: old)
                half = self.half(attachment, consumer)
                self.steps(half, 2)
                before = len(old.seen)
                self.assertGreater(before, 0)
                attachment.attach_again(report_forwards=lambda new=new: new, lookup=None)
                self.steps(half, 3)
                self.assertEqual(len(old.seen), before)
                self.assertIn((5, 0), new.seen)
                half.close()
                self.assertIsNone(half._forwards._told, "the row is another's then")


@contextlib.contextmanager
def recorded() -> Iterator[list[str]]:
    """What an engine tells its agent, what it asks the pool for, and when it computes."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    calls: list[str] = []
    computes, asks = GPUModelRunner._model_forward, SchedulerHalf.matched_tokens

    class Recorded(Told):
        def begin(self, *tokens: int) -> None:
            calls.append("begin")

        def end(self) -> None:
            calls.append("end")

    def compute(runner: Any, *arguments: Any, **options: Any) -> Any:
        calls.append("computes")
        return computes(runner, *arguments, **options)

    def ask(half: SchedulerHalf, *arguments: Any) -> Any:
        calls.append("asks")
        return asks(half, *arguments)

    def follow(own: Forwards, session: Any) -> None:
        if own._session is None and session is not None:
            own._session, own._told = session, Recorded()

    with (
        mock.patch.object(GPUModelRunner, "_model_forward", compute),
        mock.patch.object(SchedulerHalf, "matched_tokens", ask),
        mock.patch.object(forwards.Forwards, "follow", follow),
    ):
        yield calls


class OfEngines(GpuCase):
    def check(self, calls: list[str], outside_max: int = 0) -> None:
        """No block is asked for in a forward, and each step is computed in one, but for ``outside_max``."""
        runs, computed, outside, asked = False, 0, 0, 0
        for call in calls:
            if call == "computes":
                computed += 1
                outside += not runs
            elif call == "asks":
                asked += runs
            else:
                self.assertFalse(runs and call == "begin", calls)
                runs = call == "begin"
        self.assertFalse(runs)
        self.assertGreater(computed, 10)
        self.assertLessEqual(outside, outside_max, f"of {computed}: {calls}")
        self.assertEqual(asked, 0, calls)
        self.assertIn("asks", calls)

    def test_engines_tell_their_agents_of_each_forward(self) -> None:
        for name, opened in (
            ("cpu", lambda: engine(self.model, self.settings())),
            ("sync", lambda: engine(self.model, self.settings(load="sync"))),
            ("gpu", lambda: self.on_gpu(1)),
        ):
            with self.subTest(name), recorded() as calls, opened() as own:
                calls.clear()
                self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
                own.drain()
                self.check(calls)

    def test_an_engine_that_is_steps_ahead_asks_between_forwards(self) -> None:
        with steps_ahead(), recorded() as calls, engine(self.model, self.settings()) as own:
            calls.clear()
            self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
            own.drain()
            # The first step each time that the engine becomes busy: once, or where lookups take long once
            # for each prompt.
            self.check(calls, outside_max=len(PROMPTS))

    def test_the_agent_gets_what_is_told(self) -> None:
        with engine(self.model, self.settings()) as own:
            own.answers(PROMPTS)
            told = own.scheduler.connector.scheduler._forwards
            told._opening.join()
            self.assertIsInstance(told._told, rackline.Forwards)
            self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
            own.drain()
            self.assertFalse(told._steps)


if __name__ == "__main__":
    unittest.main()
