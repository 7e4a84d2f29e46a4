"""What the agent is told of forwards: from the moment when an engine has asked for all that a step needs, to the
output of the oldest one."""

from __future__ import annotations

import contextlib
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
from rackline.vllm.messages import Step
from rackline.vllm.scheduler import SchedulerHalf
from test_scheduling import steps_ahead


class Told:
    """What was told, in order."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def begin(self, computed_tokens: int, prefix_tokens: int) -> None:
        self.seen.append((computed_tokens, prefix_tokens))

    def end(self) -> None:
        self.seen.append("end")


def session(told: Told | None | Exception) -> Any:
    return types.SimpleNamespace(report_forwards=mock.Mock(side_effect=[told]))


def step(computed_tokens: int, prefix_tokens: int = 0) -> Step:
    return Step(computed_tokens=computed_tokens, prefix_tokens=prefix_tokens)


class Reported(unittest.TestCase):
    def setUp(self) -> None:
        self.told = Told()
        self.forwards = Forwards()

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
        self.follow(session(self.told))
        self.forwards.made(step(5))
        self.forwards.made(step(7))
        self.assertEqual(self.told.seen, [(5, 0)])
        self.forwards.output_came()
        self.assertEqual(self.told.seen, [(5, 0), "end"], "the engine asks now")
        self.forwards.made(step(9))
        self.assertEqual(self.told.seen[2:], [(7, 0)], "it is the next to end")
        self.forwards.output_came()
        self.forwards.output_came()
        self.assertEqual(self.told.seen[3:], ["end"], "of an output for which no step was made")

    def test_a_step_that_computes_nothing_is_not_told_of(self) -> None:
        self.follow(session(self.told))
        for computed in (0, 5):
            self.forwards.made(step(computed))
            self.forwards.output_came()
        self.assertEqual(self.told.seen, [(5, 0), "end"])

    def test_reports_begin_with_a_step_when_the_pool_has_answered(self) -> None:
        self.forwards.made(step(5))
        self.follow(session(self.told))
        self.forwards.output_came()
        self.assertEqual(self.told.seen, [])
        self.forwards.made(step(7))
        self.assertEqual(self.told.seen, [(7, 0)])

    def test_another_session_is_followed_and_none_ends_it(self) -> None:
        first, other = session(self.told), session(Told())
        self.follow(first)
        self.forwards.made(step(5))
        self.follow(other)
        self.forwards.follow(other)
        other.report_forwards.assert_called_once()
        self.forwards.output_came()
        self.forwards.made(step(7))
        self.assertEqual(self.told.seen, [(5, 0)], "of a session that is not there any more")
        self.forwards.follow(None)
        self.forwards.made(step(9))
        self.forwards.output_came()

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

    def test_what_is_not_reported_is_said(self) -> None:
        for answer, why in (
            (None, "64 processes of this host report theirs"),
            (rackline.Busy("a queue is full"), "a queue is full"),
        ):
            with self.subTest(why), self.assertLogs("rackline.vllm.forwards", "WARNING") as logged:
                self.follow(session(answer))
                self.forwards.made(step(5))
                self.forwards.output_came()
            self.assertIn(f"forwards are not reported to the agent: {why}", logged.output[0])


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
    def check(self, calls: list[str], ahead: bool = False) -> None:
        runs, computed, outside, asked = False, 0, 0, 0
        # Where steps are ahead, the first ones are made while nothing has come back yet.
        filling = ahead
        for call in calls:
            if call in ("begin", "end"):
                self.assertEqual(runs, call == "end", calls)
                runs = call == "begin"
                filling &= runs
            elif call == "computes":
                computed += 1
                outside += not runs
            else:
                asked += runs and not filling
        self.assertFalse(runs)
        self.assertGreater(computed, 10)
        self.assertEqual(outside, 0, f"{computed} were computed: {calls}")
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
            self.check(calls, ahead=True)

    def test_the_agent_gets_what_is_told(self) -> None:
        with engine(self.model, self.settings()) as own:
            own.answers(PROMPTS)
            told = own.scheduler.connector.scheduler._forwards
            told._opening.join()
            self.assertIsInstance(told._told, rackline.Forwards)
            self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
            own.drain()
            self.assertFalse(told._runs or told._steps)


if __name__ == "__main__":
    unittest.main()
