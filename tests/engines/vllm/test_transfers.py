"""What becomes of blocks of which each rank has several shares, with stand-ins for the pool and the engine."""

from __future__ import annotations

import types
import unittest
from typing import Any
from unittest import mock

import rackline
from rackline.vllm.messages import GroupLoaded, Loaded, SaveJob, Step
from rackline.vllm.parts import Share
from rackline.vllm.transfers import Outcomes, Publish
from rackline.vllm.worker import WorkerHalf
from test_failed_loads import BLOCKS, Fetch, step, worker


class Transfer:
    """One that ends when it is told what came of it, and can be revoked before it begins."""

    def __init__(self, begun: bool = True) -> None:
        self.result: Any = None
        self.begun, self.revoked = begun, False

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


def fetched(valid_blocks: int, reason: str | None = None) -> Any:
    return types.SimpleNamespace(valid_blocks=valid_blocks, reason=reason, message=reason)


def published(*outcomes: str, **messages: str) -> Any:
    return types.SimpleNamespace(outcomes=list(outcomes), messages=messages)


class Publishing(unittest.TestCase):
    def test_a_block_is_saved_where_all_of_its_shares_are(self) -> None:
        transfer = Transfer()
        publish = Publish(transfer, 2)
        self.assertIsNone(publish.poll())
        # Both shares of a block, and then those of the next.
        of_blocks = [
            ("published", "published"),
            ("published", "no_chunk"),
            ("published", "already_there"),
            ("already_there", "already_there"),
            ("taken_away", "no_chunk"),
        ]
        told = [outcome for each in of_blocks for outcome in each]
        transfer.result = published(*told, no_chunk="full")
        outcomes = publish.poll()
        saved = ["published", "no_chunk", "published", "already_there", "taken_away"]
        self.assertEqual(outcomes.of_blocks(), saved)
        self.assertEqual(outcomes.messages, {"no_chunk": "full"})
        self.assertEqual(outcomes.published_shares(), 4)
        self.assertTrue(outcomes.already_there())
        self.assertFalse(outcomes.of(slice(0, 2)).already_there())
        self.assertEqual(outcomes.of(slice(1, 3)).of_blocks(), ["no_chunk", "published"])
        self.assertEqual(outcomes.of(slice(1, 3)).published_shares(), 2)

    def test_the_outcomes_of_one_share_are_those_of_the_blocks(self) -> None:
        transfer = Transfer()
        transfer.result = published("published", "no_chunk", "already_there", no_chunk="full")
        outcomes = Publish(transfer, 1).wait()
        self.assertEqual(outcomes.of_blocks(), ["published", "no_chunk", "already_there"])
        self.assertEqual(outcomes.of(slice(1, 3)).of_blocks(), ["no_chunk", "already_there"])
        self.assertEqual((outcomes.published_shares(), outcomes.already_there()), (1, True))

    def test_what_was_not_tried_is_told_of_every_block(self) -> None:
        outcomes = Outcomes.none(2, "backlog", "too much")
        self.assertEqual(outcomes.of_blocks(), ["backlog"] * 2)
        self.assertEqual((outcomes.published_shares(), outcomes.already_there()), (0, False))
        self.assertEqual(outcomes.messages, {"backlog": "too much"})


class Worker(unittest.TestCase):
    """A rank with two shares of each block."""

    def worker(self, **calls: Any) -> WorkerHalf:
        half = worker(lambda *_, **__: Fetch(2, None))
        half._attachment.is_out.return_value = False
        part = half._parts[0]
        part.shares = [Share(part.identity), Share(part.identity)]
        part.together = types.SimpleNamespace(**calls)
        return half

    def test_a_block_of_which_a_share_is_damaged_is_zeroed_whole(self) -> None:
        fetch = mock.Mock(return_value=Fetch(1, "checksum"))
        half = self.worker(fetch=fetch)
        half.start_loads(step())
        half.finished(Step())
        # What was found of each share.
        self.assertEqual(len(fetch.call_args.args[0]), 2)
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

    def test_a_load_is_not_over_while_it_is_copied(self) -> None:
        copies = Transfer()
        half = self.worker(fetch=lambda *_, **__: copies)
        half.start_loads(step())
        self.assertEqual(half.finished(Step()), (set(), set()))
        self.assertIsNone(half.take_report())
        copies.result = rackline.Busy("broken off")
        self.assertEqual(half.finished(Step()), (set(), {"one"}))
        self.assertEqual(half.take_failed_blocks(), {1, 2})
        # Nothing says that the pool lacks them.
        self.assertEqual(
            half.take_report().loaded, {"one": Loaded(1, {0: GroupLoaded(0, False)})}
        )
        self.assertEqual(half.stats.data["not_loaded_queue_full"], 2)

    def test_a_preempted_request_waits_for_what_is_copied(self) -> None:
        copied, waits = Transfer(), Transfer(begun=False)
        for transfer, outcome in [(copied, "published"), (waits, "preempted")]:
            half = self.worker(publish=lambda *_, one=transfer, **__: one)
            half.start_saves(Step(saves=[SaveJob(7, "two", 0, bytes(64), 0, [4, 5])]))
            if transfer is copied:
                with self.assertRaisesRegex(AssertionError, "wait for ever"):
                    half.keep_preempted(Step(preempted=["two"]))
                copied.result = published(*["published"] * 4)
            half.keep_preempted(Step(preempted=["two"]))
            self.assertEqual(transfer.revoked, outcome == "preempted")
            self.assertEqual(half.take_report().saved[7].complete, outcome == "published")
            told = {"unsaved_blocks": 2, "unsaved_preempted": 2}
            if outcome == "published":
                told = {"saved_blocks": 2, "saved_bytes": 4 * 128}
            self.assertEqual(half.stats.data, told)

    def test_a_saved_block_is_counted_once_and_uncertain_by_any_share(self) -> None:
        told = published("published", "published", "published", "already_there")
        half = self.worker(publish=lambda *_, **__: mock.Mock(poll=lambda: told))
        half.start_saves(Step(saves=[SaveJob(7, "two", 0, bytes(64), 0, [4, 5])]))
        half.finished(Step())
        saved = half.take_report().saved[7]
        self.assertEqual((saved.complete, saved.already_there), (True, True))
        self.assertEqual(half.stats.data, {"saved_blocks": 2, "saved_bytes": 3 * 128})

    def test_all_shares_of_a_save_by_layers_are_told_in_one(self) -> None:
        told: list[Any] = []
        publish = types.SimpleNamespace(
            layer_ready=lambda layer, *, stream: told.append(layer),
            finish=lambda: told.append("finish"),
            poll=lambda: published("published", "already_there", "no_chunk", "published", no_chunk="full"),
        )
        half = worker(lambda *_, **__: Fetch(2, None), load="sync", layerwise="save")
        half._attachment.is_out.return_value = False
        part = half._parts[0]
        part.shares = [Share(part.identity), Share(part.identity)]
        part.together = types.SimpleNamespace(publish_by_layers=lambda *_: publish)
        saves = [SaveJob(7, "two", 0, bytes(32), 0, [4]), SaveJob(8, "three", 0, bytes(32), 0, [5])]
        step_ = Step(saves=saves)
        for name in part.caches:
            half.begin_layer(step_, name)
            half.end_layer(name)
        half.start_saves(step_)
        half.finished(Step())
        self.assertEqual(told, [0, 1, "finish"])
        saved = half.take_report().saved
        self.assertEqual((saved[7].complete, saved[7].already_there), (True, True))
        self.assertEqual((saved[8].complete, saved[8].already_there), (False, False))


if __name__ == "__main__":
    unittest.main()
