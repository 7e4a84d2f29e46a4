"""The pool as a tier behind vLLM's CPU tier, in real engines."""

from __future__ import annotations

import inspect
import os
import types
import unittest
from unittest import mock

import numpy
from cases import FULL_BLOCKS, PROMPTS, TinyCase, cached, tokens
from cpu_tiers import tiers
from engine import BLOCK_TOKENS, engine, prompts
from pool import damage
from rackline.vllm.tier_lookups import TierLookups
from starter import run
from vllm.v1.kv_offload.base import Locality, make_offload_key
from vllm.v1.kv_offload.tiering.base import TransferJob

TIERING = "vllm:kv_offload_tiering_"


class Interface(unittest.TestCase):
    def test_it_is_what_vllm_asks_for(self) -> None:
        from rackline.vllm.secondary_tier import RacklineTier
        from vllm.v1.kv_offload.tiering.base import SecondaryTierManager

        self.assertEqual(RacklineTier.__abstractmethods__, frozenset())
        for name, own in vars(RacklineTier).items():
            theirs = getattr(SecondaryTierManager, name, None)
            if callable(theirs) and not name.startswith("_"):
                with self.subTest(name):
                    wanted = list(inspect.signature(theirs).parameters)
                    self.assertEqual(list(inspect.signature(own).parameters), wanted)


def request(positions: dict[bytes, int]):
    """As much of a request as lookups look at."""
    return types.SimpleNamespace(req_id="request", get_offload_key_position=positions.get)


class Lookups(unittest.TestCase):
    """Those of one step for a request, without a pool."""

    def lookups(self, blocks) -> TierLookups:
        made = TierLookups("tier", blocks)
        self.addCleanup(made.shutdown)
        return made

    def test_they_end_in_time_together(self) -> None:
        """Each takes longer than it may: with a second each, ten would take ten."""
        now_s, waits = 1000.0, []

        class Blocks:
            def find(self, hashes, wait_ms=1000):
                nonlocal now_s
                waits.append(wait_ms)
                now_s += 0.4
                return len(hashes)

        keys = [make_offload_key(bytes([number]) * 32, 0) for number in range(10)]
        clock = mock.Mock(monotonic=lambda: now_s)
        with mock.patch("rackline.vllm.tier_lookups.time", clock):
            # From the end of a window, so that each is a lookup of its own.
            asked = request({key: -number for number, key in enumerate(keys)})
            found = self.lookups(Blocks()).batch_lookup(keys, asked)
        self.assertEqual(found, [True] * 3 + [False] * 7)
        self.assertEqual(len(waits), 3)
        self.assertEqual(sorted(waits, reverse=True), waits)
        self.assertLessEqual(waits[-1], 200)

    def test_a_hash_with_a_random_seed_is_told(self) -> None:
        for digest_bytes, seed, told in [(16, None, 1), (16, "0", 0), (32, None, 0)]:
            with self.subTest((digest_bytes, seed)):
                environment = {} if seed is None else {"PYTHONHASHSEED": seed}
                keys = [make_offload_key(bytes(digest_bytes), 0)]
                own = self.lookups(mock.Mock(find=lambda hashes, wait_ms: 0))
                with mock.patch.dict("os.environ", environment):
                    if seed is None:
                        os.environ.pop("PYTHONHASHSEED", None)
                    with mock.patch("rackline.vllm.tier_lookups.logger.warning") as warned:
                        own.batch_lookup(keys, request({}))
                        own.batch_lookup(keys, request({}))
                self.assertEqual(warned.call_count, told)


class Tier(TinyCase):
    common = {"model_id": "tiny"}

    def fill(self, **more) -> None:
        """An engine of node 0 serves the prompts."""
        with engine(self.model, transfer=tiers(self.settings(**more))) as first:
            answers = first.answers(PROMPTS)
            self.assertEqual((tokens(answers), cached(answers)), (self.expected, 0))
            # The engine stops to step when it has answered, and tells what it did when it steps.
            first.answers(prompts(99, 40))
            self.assertGreaterEqual(first.counter("write_bytes", TIERING), FULL_BLOCKS << 17)

    def test_another_node_loads_what_one_stored(self) -> None:
        self.fill()
        with engine(self.model, transfer=tiers(self.settings(1))) as second:
            answers = second.answers(PROMPTS)
            self.assertEqual(tokens(answers), self.expected)
            self.assertEqual(cached(answers), FULL_BLOCKS * BLOCK_TOKENS)
            self.assertEqual(second.counter("read_bytes", TIERING), FULL_BLOCKS << 17)
            self.assertEqual(second.counter("promotion_job_failures", TIERING), 0)

    def test_engines_of_several_processes_and_ranks(self) -> None:
        """Scheduler and two ranks in a process each: a chunk has the bytes of both."""
        # What the last steps stored may be cut off by the end.
        told = dict(model=self.model, prompts=[[1, 200, 300, 170], [99, 40]], batch=3)
        told["options"] = dict(tensor_parallel_size=2)
        first = run({**told, "tier": self.settings(0)})
        self.assertEqual(first["cached_tokens"], 0)
        second = run({**told, "tier": self.settings(1)})
        self.assertEqual(second["tokens"], first["tokens"])
        self.assertGreaterEqual(second["cached_tokens"], FULL_BLOCKS * BLOCK_TOKENS)
        with engine(self.model, transfer=tiers(self.settings(1))) as alone:
            self.assertEqual(cached(alone.answers(PROMPTS)), 0, "of another number of ranks")

    def test_damaged_chunks_are_computed(self) -> None:
        self.fill()
        self.assertGreater(damage(self.region), 0)
        with engine(self.model, transfer=tiers(self.settings(1))) as second:
            answers = second.answers(PROMPTS)
            self.assertEqual((tokens(answers), cached(answers)), (self.expected, 0))
            self.assertGreater(second.counter("promotion_job_failures", TIERING), 0)

    def test_others_do_not_find_it(self) -> None:
        self.fill(tenant="a")
        for what, settings, more in [
            ("tenant", {"tenant": "b"}, {}),
            ("model", {"tenant": "a", "model_id": "another"}, {}),
            ("chunk", {"tenant": "a"}, {"blocks_per_chunk": 2}),
        ]:
            transfer = tiers(self.settings(1, **settings), **more)
            with self.subTest(what), engine(self.model, transfer=transfer) as other:
                self.assertEqual(cached(other.answers(PROMPTS)), 0)
        with engine(self.model, transfer=tiers(self.settings(1, tenant="a"))) as same:
            self.assertGreater(cached(same.answers(PROMPTS)), 0)

    def test_what_vllm_asks_of_a_tier_that_was_shut_down_fails(self) -> None:
        with engine(self.model, transfer=tiers(self.settings(1, locality="LOCAL"))) as own:
            connector = own.llm.llm_engine.engine_core.engine_core.scheduler.connector
            tier = connector.scheduler.manager.secondary_tiers[0]
            self.assertIs(tier.locality, Locality.LOCAL)
        key = make_offload_key(bytes(32), 0)
        job = TransferJob(7, [key], numpy.zeros(1, dtype=numpy.int64), True, request({key: 16}))
        tier.submit_load(job)
        tier.submit_store(job)
        told = [(result.job_id, result.success) for result in tier.get_finished_jobs()]
        self.assertEqual(told, [(7, False)] * 2)

    def test_after_new_weights_nothing_is_shared(self) -> None:
        self.fill()
        with engine(self.model, transfer=tiers(self.settings(1))) as second:
            second.llm.llm_engine.engine_core.engine_core.scheduler.reset_connector_cache()
            answers = second.answers(PROMPTS)
            self.assertEqual((tokens(answers), cached(answers)), (self.expected, 0))

    def test_what_cannot_work_is_refused_in_words(self) -> None:
        for settings, more, message in [
            ({"node": 0}, {}, 'set "region" and "node"'),
            (self.settings(nod=1), {}, "unknown settings"),
            (self.settings(model_id=""), {}, 'set "model_id"'),
            (self.settings(locality="NEAR"), {}, '"LOCAL" or "REMOTE"'),
            (self.settings(), {"canonical_layout": True}, "canonical_layout"),
        ]:
            with self.subTest(message):
                told = engine(self.model, transfer=tiers(settings, **more))
                self.assert_refused(message, told)


if __name__ == "__main__":
    unittest.main()
