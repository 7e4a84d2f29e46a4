"""Requests that wait: their blocks on drives are restored ahead."""

from __future__ import annotations

import subprocess
import tempfile
import types
import unittest
from typing import Any
from unittest import mock

import rackline
from cases import FULL_BLOCKS, PROMPTS, TinyCase, tokens
from drive_agent import DriveAgent
from engine import engine, greedy, prompts
from rackline.engines.reasons import Reasons
from rackline.vllm import prefetches
from rackline.vllm.groups import Group, Groups, Keeps
from rackline.vllm.handover import RouterParams
from rackline.vllm.prefetches import BEGUN_MAX, Prefetches
from rackline.vllm.progress import Progress
from rackline.vllm.settings import Settings
from rackline.vllm.statistics import COUNTERS, RacklineStats
from region import command

BLOCK_TOKENS = 16


class Handle:
    """What a session gives for a prefetch."""

    def __init__(self, asked: int, reason: str | None, not_asked: int) -> None:
        self.told: Any = types.SimpleNamespace(
            asked=asked, reason=reason, not_asked=not_asked, message="a sentence"
        )
        self.cancelled = 0

    def wait(self, timeout_ms: int) -> Any:
        assert timeout_ms == 0, "the scheduler never waits"
        return self.told

    def cancel(self) -> None:
        self.cancelled += 1


class Queue(unittest.TestCase):
    def setUp(self) -> None:
        self.stats = RacklineStats()
        self.index = mock.Mock(prefetch_wait_ms=1000)
        self.asked: list[tuple[Any, int, int]] = []
        self.handles: list[Handle] = []
        self.next = (5, None, 0)
        self.index.prefetch.side_effect = self.prefetch
        self.chains = mock.Mock()
        self.chains.are_made.return_value = True
        groups = Groups((Group(0, Keeps.ALL, BLOCK_TOKENS, 1),), BLOCK_TOKENS)
        reasons = Reasons(mock.Mock(), self.stats.count)
        self.own = Prefetches(self.index, groups, self.chains, self.stats, reasons)
        self.cached: set[bytes] = set()
        pool = mock.Mock()
        pool.get_cached_block.side_effect = lambda each, groups: each in self.cached or None
        self.own.engine_blocks = mock.Mock(block_pool=pool)

    def prefetch(self, request: Any, first: int, last: int) -> list[Handle]:
        self.asked.append((request.request_id, first, last))
        self.handles.append(Handle(*self.next))
        return self.handles[-1:]

    def progress(self, name: str, blocks: int = 10) -> Progress:
        tokens = blocks * BLOCK_TOKENS
        hashes = [f"{name} {number}".encode() for number in range(blocks)]
        request = types.SimpleNamespace(
            request_id=name, block_hashes=hashes, num_prompt_tokens=tokens, num_tokens=tokens
        )
        progress = Progress(request, request, RouterParams())
        self.own.queued(progress)
        return progress

    def test_a_request_that_waits_is_asked_for_once(self) -> None:
        waits, scheduled, looked_up = (self.progress(name) for name in ("a", "b", "c"))
        scheduled.is_scheduled, looked_up.search = True, mock.Mock()
        for _ in range(3):
            self.own.look_after()
        self.assertEqual(self.asked, [("a", 0, 9)], "one token is always computed")
        self.assertEqual(self.stats.data, {"prefetched_blocks": 5})
        for _ in range(2):
            self.own.over(waits)
        self.assertEqual((self.handles[0].cancelled, len(self.own)), (1, 0))

    def test_blocks_of_the_engines_own_cache_are_not_asked_for(self) -> None:
        progress = self.progress("a")
        self.cached = set(progress.request.block_hashes[:7])
        self.own.look_after()
        whole = self.progress("b")
        self.cached = set(whole.request.block_hashes)
        self.own.look_after()
        self.assertEqual(self.asked, [("a", 7, 9)])

    def test_hashes_are_waited_for(self) -> None:
        self.chains.are_made.return_value = False
        progress = self.progress("a")
        self.own.look_after()
        self.assertEqual((self.asked, len(self.own)), ([], 1))
        self.own.over(progress)
        self.chains.are_made.return_value = True
        self.own.look_after()
        self.assertEqual((self.asked, len(self.own)), ([], 0))

    def test_a_step_begins_few_and_the_answers_come_later(self) -> None:
        for number in range(BEGUN_MAX + 2):
            self.progress(f"{number}")
        self.own.look_after()
        self.assertEqual(len(self.asked), BEGUN_MAX)
        told, self.handles[0].told = self.handles[0].told, None
        self.own.look_after()
        self.assertEqual(self.stats.data, {"prefetched_blocks": 5 * (BEGUN_MAX - 1)})
        self.handles[0].told = told
        self.own.look_after()
        self.assertEqual(self.stats.data, {"prefetched_blocks": 5 * (BEGUN_MAX + 2)})

    def test_what_has_no_room_is_tried_again_before_all_others(self) -> None:
        with mock.patch.object(prefetches.time, "monotonic") as now:
            now.return_value = 100.0
            self.next = (2, "prefetch_full", 7)
            first = self.progress("a")
            self.own.look_after()
            self.own.look_after()
            self.progress("b")
            self.own.look_after()
            self.assertEqual([name for name, _, _ in self.asked], ["a"])
            self.assertEqual(
                self.stats.data, {"prefetched_blocks": 2, "not_prefetched_prefetch_full": 7}
            )
            now.return_value, self.next = 101.0, (1, "prefetch_absent", 1)
            self.own.look_after()
            self.assertEqual([handle.cancelled for handle in self.handles], [0, 0, 0])
            self.own.look_after()
            # What it took up is the second's now.
            self.assertEqual([handle.cancelled for handle in self.handles], [1, 0, 0])
            self.assertEqual([name for name, _, _ in self.asked], ["a", "a", "b"])
            self.assertEqual(self.stats.data["prefetched_blocks"], 4)
            self.own.over(first)
            self.assertEqual([handle.cancelled for handle in self.handles], [1, 1, 0])
            self.own.forget()
            self.assertEqual([handle.cancelled for handle in self.handles], [1, 1, 1])
            self.assertEqual(len(self.own), 0)

    def test_without_an_agent_few_are_tried(self) -> None:
        with mock.patch.object(prefetches.time, "monotonic") as now:
            now.return_value, self.next = 100.0, (0, "prefetch_no_agent", 9)
            self.progress("a")
            self.own.look_after()
            self.own.look_after()
            self.progress("b")
            self.own.look_after()
            self.assertEqual([name for name, _, _ in self.asked], ["a"])
            now.return_value = 101.0
            self.own.look_after()
            self.assertEqual([name for name, _, _ in self.asked], ["a", "b"])
            self.assertEqual(self.stats.data, {"not_prefetched_prefetch_no_agent": 9})

    def test_a_refusal_has_a_reason(self) -> None:
        for error, reason in [(rackline.Busy("full"), "queue_full"), (rackline.Error("no"), "error")]:
            self.stats.reset()
            self.own._again_s = 0.0
            self.index.prefetch.side_effect = error
            self.own.over(self.progress("b"))
            self.progress("a")
            self.own.look_after()
            self.assertEqual(self.stats.data, {f"not_prefetched_{reason}": 1})
        self.index.prefetch_wait_ms = 0
        self.own.forget()
        self.progress("off")
        self.assertEqual(len(self.own), 0)
        self.assertIn("prefetched_blocks", COUNTERS)
        self.assertEqual(Settings.of({"region": "/dev/null", "node": 0}).prefetch_wait_ms, 10_000)


class InAnEngine(TinyCase):
    common = {"restore_wait_ms": 60_000, "lookup_timeout_ms": 60_000, "prefetch_wait_ms": 60_000}

    def test_blocks_of_requests_that_wait_are_in_the_pool_when_they_are_scheduled(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        agent = DriveAgent(self.region.path, folder, "256MiB")
        self.addCleanup(agent.kill)
        with engine(self.model, self.settings(), max_num_seqs=1) as own:
            self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
            own.drain()
            agent.wait_until_announced(own.counter("saved_blocks"))
            clear = ["clear", "--pool-only", "--region", self.region.path, "--node", "0", "--all"]
            subprocess.run([command(), *clear], check=True)
            own.forget()
            # The engine is at work on another request while these wait.
            waiting = {str(number): prompt for number, prompt in enumerate(PROMPTS)}

            def add(step: int) -> None:
                while own.scheduler.running and waiting:
                    name, prompt = waiting.popitem()
                    own.begin(name, prompt, greedy(max_tokens=24))

            first = {"first": prompts(77, 200)[0]}
            outputs = own.serve(first, add, max_tokens=64)
            answers = [list(outputs[str(number)].outputs[0].token_ids) for number in range(3)]
            self.assertEqual(answers, self.expected)
            own.drain()
            blocks = FULL_BLOCKS * len(own.connector._index.key_spaces(0))
            self.assertEqual(own.counter("prefetched_blocks"), blocks)
            self.assertEqual(own.counter("lookup_hit_blocks"), FULL_BLOCKS)
            counted = own.connector._attachment.pool.metrics()
            asked, restored, used, late = (
                counted[f"prefetch_{what}_blocks"] for what in ("asked", "restored", "used", "late")
            )
            # Late is what a request was scheduled before: its own lookup brought it.
            self.assertEqual((asked, restored + late, used), (blocks, blocks, restored))
            self.assertEqual(len(own.connector._prefetches), 0)
