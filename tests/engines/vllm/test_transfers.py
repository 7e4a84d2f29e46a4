"""What becomes of blocks of which each rank has several shares, with stand-ins for the pool and the engine."""

from __future__ import annotations

import types
import unittest
from typing import Any
from unittest import mock

import rackline
from rackline.vllm.messages import GroupLoaded, Loaded, SaveJob, Step
from rackline.vllm.parts import Share
from rackline.vllm.transfers import Fetches, Outcomes, Publishes
from rackline.vllm.worker import WorkerHalf
from test_failed_loads import BLOCKS, Fetch, step, worker


class Transfer:
    """One that ends when it is told what came of it, and can be revoked before it begins."""

    def __init__(self, begun: bool = True) -> None:
        self.result: Any = None
        self.begun, self.revoked, self.heard = begun, False, []

    def poll(self) -> Any:
        assert not self.revoked, "a revoked publish has no result"
        if isinstance(self.result, rackline.Error):
            raise self.result
        result, self.result = self.result, None
        return result

    def wait(self) -> Any:
        result = self.poll()
        assert result is not None, "it would wait for ever"
        return result

    def cancel(self) -> bool:
        self.revoked = self.revoked or not self.begun
        return self.revoked

    def layer_ready(self, layer: int, *, stream: int | None = None) -> None:
        self.heard.append(layer)

    def finish(self) -> None:
        self.heard.append("finish")

    def abort(self) -> None:
        self.heard.append("abort")


def fetched(valid_blocks: int, reason: str | None = None) -> Any:
    return types.SimpleNamespace(valid_blocks=valid_blocks, reason=reason, message=reason)


def published(*outcomes: str, **messages: str) -> Any:
    return types.SimpleNamespace(outcomes=list(outcomes), messages=messages)


def begins(*each: Any) -> Any:
    """Begins these transfers, and refuses where there is an error instead."""
    return [mock.Mock(side_effect=[one]) for one in each]


FULL = rackline.Busy("the queue is full")


class Fetching(unittest.TestCase):
    def test_the_worst_share_decides(self) -> None:
        for results, worst in [
            ([fetched(2), fetched(2)], (2, None)),
            ([fetched(2), fetched(1, "checksum"), fetched(2)], (1, "checksum")),
            ([fetched(1, "evicted"), fetched(0, "copy")], (0, "copy")),
            # It is missing in the pool, whatever became of the copy.
            ([fetched(1, "copy"), fetched(1, "evicted")], (1, "evicted")),
        ]:
            with self.subTest(worst):
                each = [Transfer() for _ in results]
                fetches = Fetches(begins(*each))
                for transfer, result in zip(each, results, strict=True):
                    self.assertIsNone(fetches.poll())
                    transfer.result = result
                result = fetches.poll()
                self.assertEqual((result.valid_blocks, result.reason), worst)

    def test_nothing_is_said_while_a_share_still_writes(self) -> None:
        """The engine would use its blocks for something else."""
        for first_to_end in (0, 1):
            with self.subTest(first_to_end=first_to_end):
                each = [Transfer(), Transfer()]
                fetches = Fetches(begins(*each))
                each[first_to_end].result = rackline.Error("broken off")
                self.assertIsNone(fetches.poll())
                each[1 - first_to_end].result = fetched(2)
                with self.assertRaisesRegex(rackline.Error, "broken off"):
                    fetches.poll()

    def test_a_share_that_is_refused_ends_the_load_when_the_others_have_ended(self) -> None:
        begun, never = Transfer(), Transfer()
        given = begins(begun, FULL, never)
        fetches = Fetches(given)
        given[2].assert_not_called()
        self.assertIsNone(fetches.poll())
        begun.result = fetched(2)
        with self.assertRaises(rackline.Busy):
            fetches.poll()

    def test_a_load_whose_first_share_is_refused_is_over(self) -> None:
        given = begins(FULL, Transfer())
        with self.assertRaises(rackline.Busy):
            Fetches(given)
        given[1].assert_not_called()


class Publishing(unittest.TestCase):
    def test_a_block_is_saved_where_all_of_its_shares_are(self) -> None:
        each = [Transfer(), Transfer()]
        publishes = Publishes(4, begins(*each))
        each[1].result = published("published", "no_chunk", "already_there", "already_there", no_chunk="full")
        self.assertIsNone(publishes.poll())
        each[0].result = published("published", "published", "published", "already_there")
        outcomes = publishes.poll()
        self.assertEqual(
            outcomes.of_blocks(), ["published", "no_chunk", "published", "already_there"]
        )
        self.assertEqual(outcomes.messages, {"no_chunk": "full"})
        self.assertEqual(outcomes.published_shares(), 4)
        self.assertTrue(outcomes.already_there())
        self.assertFalse(outcomes.of(slice(0, 2)).already_there())
        self.assertEqual(outcomes.of(slice(1, 3)).of_blocks(), ["no_chunk", "published"])

    def test_only_what_was_not_begun_is_revoked(self) -> None:
        """Of a half that is copied the engine's blocks stay until that is over."""
        for begun in ([False, False], [True, False], [False, True], [True, True]):
            with self.subTest(begun=begun):
                each = [Transfer(begins_) for begins_ in begun]
                publishes = Publishes(1, begins(*each))
                self.assertEqual(publishes.cancel("preempted"), not any(begun))
                if not any(begun):
                    continue
                self.assertIsNone(publishes.poll())
                for transfer in each:
                    if transfer.begun:
                        transfer.result = published("published")
                outcomes = publishes.wait()
                reason = "published" if all(begun) else "preempted"
                self.assertEqual(outcomes.of_blocks(), [reason])
                self.assertEqual(outcomes.published_shares(), sum(begun))

    def test_a_share_that_has_ended_is_not_revoked(self) -> None:
        each = [Transfer(), Transfer(begun=False)]
        publishes = Publishes(1, begins(*each))
        each[0].result = published("published")
        self.assertIsNone(publishes.poll())
        self.assertFalse(publishes.cancel("preempted"))
        self.assertCountEqual(publishes.poll().of_shares, [["preempted"], ["published"]])

    def test_a_refused_share_is_told_when_nothing_reads_the_blocks(self) -> None:
        begun = Transfer()
        publishes = Publishes(1, begins(begun, FULL))
        self.assertIsNone(publishes.poll())
        begun.result = published("published")
        with self.assertRaises(rackline.Busy):
            publishes.poll()

    def test_all_shares_hear_of_layers(self) -> None:
        each = [Transfer(), Transfer()]
        publishes = Publishes(1, begins(*each))
        publishes.layer_ready(1, None)
        publishes.finish()
        self.assertEqual([transfer.heard for transfer in each], [[1, "finish"]] * 2)

    def test_nothing_is_saved_by_layers_without_one_share(self) -> None:
        begun = Transfer()
        publishes = Publishes(1, begins(begun, FULL))
        publishes.layer_ready(0, None)
        publishes.finish()
        self.assertEqual(begun.heard, [0, "abort"])

    def test_what_was_not_tried_is_told_of_every_block(self) -> None:
        outcomes = Outcomes.none(2, "backlog", "too much")
        self.assertEqual(outcomes.of_blocks(), ["backlog"] * 2)
        self.assertEqual((outcomes.published_shares(), outcomes.already_there()), (0, False))
        self.assertEqual(outcomes.messages, {"backlog": "too much"})


class Worker(unittest.TestCase):
    """A rank with two shares of each block."""

    def worker(self, *calls: dict[str, Any], **settings: Any) -> WorkerHalf:
        half = worker(lambda *_, **__: Fetch(2, None), **settings)
        half._attachment.is_out.return_value = False
        part = half._parts[0]
        part.shares = [
            Share(part.identity, types.SimpleNamespace(**each)) for each in calls
        ]
        return half

    def test_a_block_of_which_a_share_is_damaged_is_zeroed_whole(self) -> None:
        half = self.worker(
            {"fetch": lambda *_, **__: Fetch(2, None)},
            {"fetch": lambda *_, **__: Fetch(1, "checksum")},
        )
        half.start_loads(step())
        half.finished(Step())
        self.assertEqual(half.take_failed_blocks(), {2})
        for cache in half._parts[0].caches.values():
            zeroed = {block for block in range(BLOCKS) if not cache[block].any()}
            self.assertEqual(zeroed, {2})
        self.assertEqual(
            half.take_report().loaded, {"one": Loaded(1, {0: GroupLoaded(1, True)})}
        )
        # Of 128 bytes each.
        told = {"loaded_blocks": 1, "loaded_bytes": 256, "failed_load_blocks": 1}
        self.assertEqual(half.stats.data, {**told, "not_loaded_checksum": 1})

    def test_a_load_is_not_over_while_a_share_is_copied(self) -> None:
        copies = Transfer()
        half = self.worker(
            {"fetch": lambda *_, **__: copies}, {"fetch": mock.Mock(side_effect=FULL)}
        )
        half.start_loads(step())
        self.assertEqual(half.finished(Step()), (set(), set()))
        self.assertIsNone(half.take_report())
        copies.result = fetched(2)
        self.assertEqual(half.finished(Step()), (set(), {"one"}))
        self.assertEqual(half.take_failed_blocks(), {1, 2})
        # Nothing says that the pool lacks them.
        self.assertEqual(
            half.take_report().loaded, {"one": Loaded(1, {0: GroupLoaded(0, False)})}
        )
        self.assertEqual(half.stats.data["not_loaded_queue_full"], 2)

    def test_a_preempted_request_waits_for_the_share_that_is_copied(self) -> None:
        copied, waits = Transfer(), Transfer(begun=False)
        half = self.worker(
            {"publish": lambda *_, **__: copied}, {"publish": lambda *_, **__: waits}
        )
        half.start_saves(Step(saves=[SaveJob(7, "two", 0, bytes(64), 0, [4, 5])]))
        with self.assertRaisesRegex(AssertionError, "wait for ever"):
            half.keep_preempted(Step(preempted=["two"]))
        copied.result = published("published", "published")
        half.keep_preempted(Step(preempted=["two"]))
        self.assertTrue(waits.revoked)
        self.assertFalse(half.take_report().saved[7].complete)
        told = {"saved_bytes": 256, "unsaved_blocks": 2, "unsaved_preempted": 2}
        self.assertEqual(half.stats.data, told)

    def test_a_saved_block_is_counted_once_and_uncertain_by_any_share(self) -> None:
        both = [published("published", "published"), published("published", "already_there")]
        each = [{"publish": lambda *_, one=one, **__: mock.Mock(poll=lambda: one)} for one in both]
        half = self.worker(*each)
        half.start_saves(Step(saves=[SaveJob(7, "two", 0, bytes(64), 0, [4, 5])]))
        half.finished(Step())
        saved = half.take_report().saved[7]
        self.assertEqual((saved.complete, saved.already_there), (True, True))
        self.assertEqual(half.stats.data, {"saved_blocks": 2, "saved_bytes": 3 * 128})


if __name__ == "__main__":
    unittest.main()
