"""What the connector's halves make of loads that fail, with stand-ins for the pool and the engine."""

from __future__ import annotations

import types
import unittest
from typing import Any
from unittest import mock

import rackline
import torch
from rackline.vllm.device import Cpu
from rackline.vllm.identity import Place
from rackline.vllm.layout import clear_blocks
from rackline.vllm.messages import (
    GroupLoad,
    GroupLoaded,
    Loaded,
    LoadJob,
    Report,
    Saved,
    SaveJob,
    Step,
)
from rackline.vllm.scheduler import SchedulerHalf
from rackline.vllm.settings import Settings
from rackline.vllm.short_blocks import plain_piece
from rackline.vllm.worker import WorkerHalf
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

BLOCKS = 8
GIVEN = {"region": "/dev/null", "node": 0}
ENGINE = types.SimpleNamespace(
    max_concurrent_batches=1,
    parallel_config=types.SimpleNamespace(
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        decode_context_parallel_size=1,
        rank=0,
    ),
    cache_config=types.SimpleNamespace(block_size=4, prefix_match_unit=None),
    device_config=types.SimpleNamespace(device_type="cpu"),
    kv_transfer_config=types.SimpleNamespace(
        is_kv_consumer=True, is_kv_producer=True, kv_load_failure_policy="recompute"
    ),
    kv_events_config=None,
    speculative_config=None,
)


FULL = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=4, dtype=torch.float32)
LAYERS = ["layers.0", "layers.1"]
CACHES = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(LAYERS, FULL)])
CACHE = torch.ones(BLOCKS, 4, 4)
HASHES, HANDLES = bytes(2 * rackline.HASH_BYTES), bytes(2 * rackline.KEYLESS_HANDLE_BYTES)


def loaded(ranks: int, valid_blocks: int, missed: bool) -> Loaded:
    """What came of a load in an engine with one group of KV caches."""
    return Loaded(ranks, {0: GroupLoaded(valid_blocks, missed)})


class Fetch:
    """One that comes to this, or is broken off by an error."""

    def __init__(self, valid_blocks: int, reason: str | None) -> None:
        self._valid_blocks, self._reason = valid_blocks, reason

    def wait(self) -> Any:
        if self._reason == "error":
            raise rackline.Error("broken off")
        return types.SimpleNamespace(
            valid_blocks=self._valid_blocks, reason=self._reason, message=self._reason
        )

    poll = wait

    def wait_layer(self, layer: int) -> bool:
        return True


def refused(*arguments: Any, **options: Any) -> Fetch:
    raise rackline.Error("the queue is full")


def worker(fetch: Any, **settings: Any) -> WorkerHalf:
    """A rank with two layers of ones, whose fetches are these."""
    shares = types.SimpleNamespace(fetch=fetch, fetch_by_layers=fetch)
    identity = mock.Mock(place=Place(0, 0, 0), places=1, block_bytes=2 * 64, words=lambda tenant: {})
    caches = {name: torch.ones(BLOCKS, 4, 4) for name in LAYERS}
    with (
        mock.patch("rackline.vllm.worker.Attachment"),
        mock.patch("rackline.vllm.parts.identity_of", return_value=identity),
        mock.patch("rackline.Shares", return_value=shares),
    ):
        half = WorkerHalf(ENGINE, CACHES, Settings.of({**GIVEN, **settings}))
        half.register(caches)
    return half


def step() -> Step:
    """One that loads two blocks, and computes on them into two more."""
    return Step(loads=[LoadJob("one", [GroupLoad(0, HASHES, {Place(0, 0, 0): HANDLES}, [1, 2])], [3, 4])])


class Workers(unittest.TestCase):
    def forward(self, half: WorkerHalf, asks: bool = True) -> dict[str, Loaded]:
        """A step whose forward computes no numbers, and what the worker tells of it."""
        told = step()
        half.start_loads(told)
        for name, cache in half._parts[0].caches.items():
            if asks:
                half.begin_layer(told, name)
            cache[3:5] = torch.nan
        half.start_saves(told)
        half.finished(told)
        return half.take_report().loaded

    def test_what_was_computed_on_blocks_that_failed_by_layers_is_cleared(self) -> None:
        for layerwise, spoilt in [("load", {2, 3, 4}), ("both", {2, 3, 4}), ("off", {2})]:
            with self.subTest(layerwise):
                half = worker(lambda *_, **__: Fetch(1, "checksum"), load="sync", layerwise=layerwise)
                self.forward(half)
                for cache in half._parts[0].caches.values():
                    zeroed = {block for block in range(BLOCKS) if not cache[block].any()}
                    self.assertEqual(zeroed, spoilt)
                self.assertEqual(half.take_failed_blocks(), {2})

    def test_a_short_block_that_failed_spoils_the_block_of_the_engine(self) -> None:
        """The engine computes it again from its start. Of blocks of four tokens each half is stored."""
        pieces = mock.patch.object(Cpu, "pieces", lambda *_, tokens: plain_piece(CACHE, tokens))
        for valid, spoilt in [(3, set()), (2, {2}), (1, {1, 2}), (0, {1, 2})]:
            with self.subTest(valid=valid), pieces:
                reason = None if valid == 3 else "checksum"
                half = worker(lambda *_, **__: Fetch(valid, reason), stored_block_tokens=2)  # noqa: B023
                handles = {Place(0, 0, 0): bytes(3 * rackline.KEYLESS_HANDLE_BYTES)}
                half.start_loads(Step(loads=[LoadJob("one", [GroupLoad(0, HASHES, handles, [2, 3, 4])], [])]))
                half.finished(Step())
                for cache in half._parts[0].caches.values():
                    zeroed = {block for block in range(BLOCKS) if not cache[block].any()}
                    self.assertEqual(zeroed, spoilt)
                self.assertEqual(half.take_failed_blocks(), spoilt)
                self.assertEqual(half.take_report().loaded, {"one": loaded(1, valid, valid < 3)})

    def test_a_step_that_saves_into_a_block_that_it_loads(self) -> None:
        told = Step(loads=[LoadJob("one", [GroupLoad(0, b"", {}, [4, 5, 6])], [])])
        for numbers, beside in [([0, 3], False), ([7], True), ([2, 8], False), ([4], True), ([], False)]:
            told.saves = [SaveJob(1, "one", 0, b"", 0, numbers)]
            self.assertEqual(told.saves_beside_loads(2), beside)
        # Blocks of the engine's own length are loaded or saved.
        self.assertFalse(told.saves_beside_loads(1))

    def test_nothing_is_cleared_behind_blocks_that_are_good(self) -> None:
        half = worker(lambda *_, **__: Fetch(2, None), load="sync", layerwise="load")
        self.assertEqual(self.forward(half), {"one": loaded(1, 2, False)})
        for cache in half._parts[0].caches.values():
            self.assertTrue(cache.isnan()[3:5].all())

    def test_only_what_the_pool_did_not_give_is_missed(self) -> None:
        for load, layerwise in [("async", "off"), ("sync", "off"), ("sync", "load")]:
            for fetch, expected in [
                (lambda *_, **__: Fetch(1, "evicted"), loaded(1, 1, True)),
                (lambda *_, **__: Fetch(0, "checksum"), loaded(1, 0, True)),
                (lambda *_, **__: Fetch(1, "copy"), loaded(1, 1, False)),
                (lambda *_, **__: Fetch(0, "error"), loaded(1, 0, False)),
                (refused, loaded(1, 0, False)),
            ]:
                with self.subTest(load=load, layerwise=layerwise, expected=expected):
                    half = worker(fetch, load=load, layerwise=layerwise)
                    self.assertEqual(self.forward(half), {"one": expected})

    def test_nothing_is_missed_where_the_forward_did_not_ask(self) -> None:
        half = worker(lambda *_, **__: Fetch(2, None), load="sync", layerwise="load")
        self.assertEqual(self.forward(half, asks=False), {"one": loaded(1, 0, False)})
        for cache in half._parts[0].caches.values():
            self.assertFalse(cache[1:5].any())

    def test_why_blocks_are_not_loaded_is_counted(self) -> None:
        """Each of the blocks that failed, by name; and in the log once, not for each load."""
        for load in ("async", "sync"):
            for fetch, reason, blocks in [
                (lambda *_, **__: Fetch(1, "evicted"), "evicted", 1),
                (lambda *_, **__: Fetch(0, "error"), "error", 2),
                (mock.Mock(side_effect=rackline.Busy("full")), "queue_full", 2),
            ]:
                with self.subTest(reason, load=load):
                    half = worker(fetch, load=load)
                    half._attachment.is_out.return_value = False
                    with self.assertLogs("rackline.vllm.worker", "WARNING") as log:
                        self.forward(half)
                        self.forward(half)
                    self.assertEqual(half.stats.data["failed_load_blocks"], 2 * blocks)
                    self.assertEqual(half.stats.data[f"not_loaded_{reason}"], 2 * blocks)
                    (line,) = log.output
                    self.assertIn(f"{blocks} blocks were found, and are not loaded ({reason})", line)

    def test_a_load_that_the_step_spoilt_says_so(self) -> None:
        half = worker(lambda *_, **__: Fetch(2, None), load="sync", layerwise="load")
        self.forward(half, asks=False)
        self.assertEqual(half.stats.data["not_loaded_not_asked"], 2)
        half = worker(lambda *_, **__: Fetch(1, "evicted"), load="sync")
        with mock.patch("rackline.vllm.loads._least_of_all_ranks", lambda config, own: [0]):
            self.forward(half)
        self.assertEqual(half.stats.data["not_loaded_other_rank"], 2)

    def test_why_blocks_are_not_saved_is_counted(self) -> None:
        full = types.SimpleNamespace(
            outcomes=["published", "no_chunk", "no_chunk"], messages={"no_chunk": "the pool is full"}
        )
        for publish, reason, blocks in [
            (mock.Mock(side_effect=rackline.Busy("the queue is full")), "queue_full", 3),
            (mock.Mock(side_effect=rackline.Error("refused")), "error", 3),
            (mock.Mock(return_value=mock.Mock(poll=lambda: full)), "no_chunk", 2),
        ]:
            with self.subTest(reason):
                half = worker(lambda *_, **__: Fetch(2, None))
                half._attachment.is_out.return_value = False
                half._parts[0].together.publish = publish
                told = Step(saves=[SaveJob(7, "two", 0, b"cde", 1, [5, 6, 7])])
                with self.assertLogs("rackline.vllm.worker", "WARNING") as log:
                    half.start_saves(told)
                    half.finished(told)
                self.assertEqual(half.stats.data["unsaved_blocks"], blocks)
                self.assertEqual(half.stats.data[f"unsaved_{reason}"], blocks)
                self.assertIn(f"{blocks} blocks are not saved ({reason})", log.output[0])

    def test_ended_requests_keep_a_bounded_part_of_the_memory(self) -> None:
        """VLLM-W9: of 16 blocks, a quarter. The oldest saves go that were not begun."""
        half = worker(lambda *_, **__: Fetch(2, None))
        part = half._parts[0]
        part.blocks = 16
        revoked: list[int] = []

        def publish(hashes: bytes, first_depth: int, *_: Any, **__: Any) -> Any:
            begun = first_depth == 0

            def cancel() -> bool:
                if not begun:
                    revoked.append(first_depth)
                return not begun

            return mock.Mock(poll=lambda: None, cancel=cancel)

        part.together.publish = publish
        ids = [[2 * job % BLOCKS, 2 * job % BLOCKS + 1] for job in range(5)]
        saves = [SaveJob(job, str(job), 0, b"ab", job, ids[job]) for job in range(5)]
        half.start_saves(Step(saves=saves))
        # As long as requests run their blocks are their own.
        self.assertEqual(half.finished(Step()), (set(), set()))
        self.assertEqual(revoked, [])
        with self.assertLogs("rackline.vllm.worker", "WARNING") as log:
            sent, _ = half.finished(Step(finished=["0", "1", "2", "3"]))
        self.assertEqual((sent, revoked), ({"1", "2"}, [1, 2]))
        self.assertEqual(half.stats.data["unsaved_backlog"], 4)
        self.assertIn("(backlog): ended requests kept too much", log.output[0])
        self.assertEqual(half.finished(Step(finished=["4"])), ({"3"}, set()))

    def test_what_a_failed_load_kept_from_the_pool_is_put_off(self) -> None:
        """VLLM-W8: blocks of another request, in the same step."""
        for layerwise in ("off", "both"):
            with self.subTest(layerwise):
                half = worker(
                    lambda *_, **__: Fetch(1, "checksum"), load="sync", layerwise=layerwise
                )
                ended = types.SimpleNamespace(outcomes=["aborted"] * 2, messages={})
                publish = mock.Mock(poll=lambda: ended)
                half._parts[0].together.publish_by_layers = mock.Mock(return_value=publish)
                told = step()
                told.saves.append(SaveJob(7, "two", 0, b"cd", 1, [6, 7]))
                half.start_loads(told)
                for name in half._parts[0].caches:
                    half.begin_layer(told, name)
                    half.end_layer(name)
                half.start_saves(told)
                half.finished(told)
                self.assertEqual(half.take_report().saved, {7: Saved(1, False, 2)})
                self.assertEqual(half.stats.data.get("put_off_blocks"), 2)
                self.assertNotIn("unsaved_blocks", half.stats.data)

    def test_a_rank_that_missed_behind_what_all_have_missed_nothing(self) -> None:
        """Synchronous loads: the ranks agree on the least."""
        half = worker(lambda *_, **__: Fetch(1, "evicted"), load="sync")
        with mock.patch("rackline.vllm.loads._least_of_all_ranks", lambda config, own: [0]):
            self.assertEqual(self.forward(half), {"one": loaded(1, 0, False)})


class Reports(unittest.TestCase):
    def test_ranks_missed_what_the_first_to_fail_missed(self) -> None:
        for one, other, both in [
            (loaded(1, 2, False), loaded(1, 1, True), loaded(2, 1, True)),
            (loaded(1, 0, False), loaded(1, 1, True), loaded(2, 0, False)),
            (loaded(1, 1, False), loaded(1, 1, True), loaded(2, 1, True)),
            (loaded(1, 1, False), loaded(1, 0, False), loaded(2, 0, False)),
        ]:
            for order in [(one, other), (other, one)]:
                report = Report()
                for told in order:
                    report.add(Report(loaded={"one": told}))
                self.assertEqual(report.loaded, {"one": both})


class Schedulers(unittest.TestCase):
    def setUp(self) -> None:
        with mock.patch("rackline.vllm.scheduler.Attachment"):
            self.half = SchedulerHalf(ENGINE, CACHES, Settings.of(GIVEN))
        self.half._index = self.index = mock.Mock()
        self.index.found.return_value = 2
        self.group = self.half._groups.groups[0]
        self.index.look.return_value = mock.Mock(first=0, began_s=float("inf"), looked_for=2)
        found = [(self.group, range(2), HASHES, {Place(0, 0, 0): HANDLES})]
        self.index.look.return_value.loads.return_value = found
        self.request = mock.Mock(
            request_id="one",
            num_tokens=12,
            num_prompt_tokens=12,
            block_hashes=[bytes([number]) * 32 for number in range(3)],
            skip_reading_prefix_cache=False,
            kv_transfer_params=None,
            kv_hints=None,
        )
        self.index.look.return_value.request = self.request

    def load(self, told: Loaded, ends: bool = True) -> None:
        self.assertEqual(self.half.matched_tokens(self.request, 0), (8, True))
        blocks = types.SimpleNamespace(get_block_ids=lambda: [[5, 6, 7]])
        self.half.allocated(self.request, blocks, 8)
        (job,) = self.half._step.loads
        self.assertEqual([load.block_ids for load in job.groups], [[5, 6]])
        self.assertEqual(job.behind_ids, [7])
        if ends:
            self.half.build_step(mock.Mock(preempted_req_ids=None, num_scheduled_tokens={}))
            self.half.reported(Report(loaded={"one": told}))

    def test_a_block_that_was_missed_is_not_found_again(self) -> None:
        self.load(loaded(1, 1, True))
        self.index.missed.assert_called_once_with(self.index.look.return_value, self.group, 1)
        self.assertEqual(self.half.matched_tokens(self.request, 0), (8, True))

    def test_a_load_that_was_not_tried_says_nothing_of_its_blocks(self) -> None:
        """The request looks no more: it would be told of the same blocks again and again."""
        self.load(loaded(1, 0, False))
        self.index.missed.assert_not_called()
        self.assertEqual(self.half.matched_tokens(self.request, 0), (0, False))
        self.assertEqual(self.index.look.call_count, 1)
        self.request.request_id = "two"
        self.assertEqual(self.half.matched_tokens(self.request, 0), (8, True))

    def save(self, step_tokens: int, preempted: Any = None) -> list[tuple[int, int]]:
        """A step that computes so many tokens more; what it saves: first block, and how many."""
        state = types.SimpleNamespace(get_block_ids=lambda _: [[5, 6, 7]])
        made = self.half.build_step(
            types.SimpleNamespace(
                preempted_req_ids=preempted,
                num_scheduled_tokens={"one": step_tokens},
                kv_connector_block_state=state,
            )
        )
        self.request.num_computed_tokens += step_tokens
        return [(job.first_depth, len(job.block_ids)) for job in made.saves]

    def test_a_preempted_request_saves_all_that_it_computes_again(self) -> None:
        """Its blocks may be evicted meanwhile: those that it loaded, and those that it saved."""
        self.request.num_computed_tokens, self.request.num_prompt_tokens = 8, 12
        self.load(loaded(1, 2, False))
        self.assertEqual(self.save(4), [(2, 1)])
        (number,) = self.half._saving._jobs
        self.half.reported(Report(saved={number: Saved(1, True)}))
        self.assertEqual(self.save(0, {"one"}), [(0, 3)])

    def test_what_a_preempted_request_loads_anew_is_not_saved(self) -> None:
        """vLLM tells of requests that it preempts between two steps with the step in which they go on."""
        self.request.num_computed_tokens, self.request.num_prompt_tokens = 0, 12
        self.index.found.return_value = 0
        self.half.matched_tokens(self.request, 0)
        self.assertEqual(self.save(12), [(0, 3)])
        (number,) = self.half._saving._jobs
        self.half.reported(Report(saved={number: Saved(1, True)}))
        self.index.found.return_value, self.request.num_computed_tokens = 2, 8
        self.half._requests["one"].search = None
        self.load(loaded(1, 2, False), ends=False)
        self.assertEqual(self.save(4, {"one"}), [(2, 1)])

    def test_what_was_put_off_is_saved_with_the_next_step(self) -> None:
        """VLLM-W8: once; what the pool refused is not tried again."""
        self.request.num_computed_tokens, self.request.num_prompt_tokens = 0, 12
        self.index.found.return_value = 0
        self.half.matched_tokens(self.request, 0)
        self.assertEqual(self.save(8), [(0, 2)])
        (number,) = self.half._saving._jobs
        self.half.reported(Report(saved={number: Saved(1, False, 2)}))
        self.assertEqual(self.save(4), [(0, 3)])
        (number,) = self.half._saving._jobs
        self.half.reported(Report(saved={number: Saved(1, False)}))
        self.assertEqual(self.save(1), [])
        self.half.request_finished(self.request)
        self.assertNotIn("unsaved_blocks", self.half.stats.data)

    def test_what_was_put_off_of_a_request_that_ended_is_unsaved(self) -> None:
        self.request.num_computed_tokens, self.request.num_prompt_tokens = 0, 12
        self.index.found.return_value = 0
        for ends_first in (True, False):
            with self.subTest(ends_first=ends_first):
                self.half.stats.reset()
                self.request.num_computed_tokens = 0
                self.half.matched_tokens(self.request, 0)
                self.save(8)
                (number,) = self.half._saving._jobs
                # Of two blocks, one was there already.
                report = Report(saved={number: Saved(1, False, 1)})
                told = [
                    lambda: self.half.request_finished(self.request),
                    lambda: self.half.reported(report),
                ]
                for tell in told if ends_first else reversed(told):
                    tell()
                self.assertEqual(self.half.stats.data["unsaved_blocks"], 1)

    def test_a_load_that_nobody_knows_of_is_passed_over(self) -> None:
        self.half.reported(Report(loaded={"gone": loaded(1, 0, True)}))
        self.index.missed.assert_not_called()


class Clearing(unittest.TestCase):
    def test_blocks_are_zeroed_in_every_layout(self) -> None:
        for name, cache, dimension in [
            ("blocks first", torch.ones(BLOCKS, 2, 4, 8), 0),
            ("K and V apart", torch.ones(2, BLOCKS, 4, 8), 1),
            ("blocks of the engine's in pieces", torch.ones(4 * BLOCKS, 4, 8), 0),
            ("other order in memory", torch.ones(BLOCKS, 8, 4, 2).permute(0, 3, 2, 1), 0),
            ("8 bits", torch.ones(BLOCKS, 4, 8).to(torch.float8_e4m3fn), 0),
        ]:
            with self.subTest(name):
                clear_blocks({"layers.0": cache}, BLOCKS, [6, 1])
                seen = cache.float().movedim(dimension, 0).reshape(BLOCKS, -1)
                self.assertFalse(seen[[1, 6]].any())
                self.assertTrue(bool((seen[[0, 2, 3, 4, 5, 7]] == 1).all()))

    def test_nothing_to_clear_touches_no_cache(self) -> None:
        clear_blocks({"layers.0": None}, BLOCKS, [])


if __name__ == "__main__":
    unittest.main()
