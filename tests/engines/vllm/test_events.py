"""Which saves are told to routers as stored, and when."""

from __future__ import annotations

import unittest
from typing import Any
from unittest import mock

from rackline.vllm.events import StoredEvents
from rackline.vllm.groups import Group, Groups, Keeps
from rackline.vllm.messages import Report, Saved, SaveJob

JOB = SaveJob(1, "one", 0, bytes(3 * 32), 0, [4, 5, 6])


class Lookup:
    """A lookup of the pool, and what it answers in turn."""

    def __init__(self, *answers: int | None) -> None:
        self.answers = list(answers)

    def found(self, wait_ms: int) -> int | None:
        return self.answers.pop(0)


class Certainty(unittest.TestCase):
    """VLLM-V7."""

    def setUp(self) -> None:
        self.index = mock.Mock()
        self.events = StoredEvents(self.index, Groups((Group(0, Keeps.ALL, 16, 1),), 16))
        told = mock.patch("rackline.vllm.events.stored", lambda _, job, blocks, __: (job.job, blocks))
        told.start()
        self.addCleanup(told.stop)

    def after_a_step(self) -> list[Any]:
        self.events.look_after()
        return self.events.take()

    def test_what_was_published_is_told_at_once(self) -> None:
        self.events.saved(mock.Mock(), JOB, certain=True)
        self.assertEqual(self.events.take(), [(1, 3)])
        self.index.look.assert_not_called()

    def test_what_was_there_is_told_when_a_lookup_has_found_it(self) -> None:
        # No room in the queue, no answer yet, found.
        self.index.look.side_effect = [None, Lookup(None, 3)]
        self.events.saved(mock.Mock(), JOB, certain=False)
        self.assertEqual([self.after_a_step() for _ in range(4)], [[], [], [(1, 3)], []])

    def test_what_another_publish_has_not_written_is_not_told(self) -> None:
        for found, told in [(0, []), (2, [(1, 2)])]:
            self.index.look.side_effect = [Lookup(found)]
            self.events.saved(mock.Mock(), JOB, certain=False)
            self.assertEqual(self.after_a_step(), told)

    def test_one_rank_makes_a_save_uncertain(self) -> None:
        report = Report(saved={1: Saved(1, True, 0, True)})
        report.add(Report(saved={1: Saved(1, True)}))
        self.assertTrue(report.saved[1].already_there)


if __name__ == "__main__":
    unittest.main()
