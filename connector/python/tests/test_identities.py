"""Identities of blocks in words, in the pool and in `rackline status`."""

from __future__ import annotations

import json
import subprocess
import time
import unittest
from types import SimpleNamespace
from unittest import mock

import rackline
from rackline import identities
from rackline._native import identity_hash
from rackline.engines.blocks import SharedBlocks
from rackline.engines.identities import REGISTER_EVERY_S, Others, Registration, why_different
from rackline.engines.settings import PoolSettings
from rackline.engines.words import words_of
from region import Region, command

BLOCK_BYTES = 64 << 10


def model(**given: object) -> rackline.Model:
    told = dict(name="m", revision="1", dtype="f32", block_tokens=8, layers=1, kv_heads=1, head_dim=64)
    return rackline.Model(**{**told, **given})


class Identities(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("16MiB", "64KiB"))

    def blocks(self, node: int = 0, bytes_: int = BLOCK_BYTES, tenant: str = "", **given: object) -> SharedBlocks:
        settings = PoolSettings.of({"region": self.region.path, "node": node, "tenant": tenant})
        own = SharedBlocks(settings, model(**given), bytes_)
        self.addCleanup(own.close)
        return own

    def registered(self, count: int) -> list[tuple[dict, int]]:
        deadline_s = time.monotonic() + 30
        while len(found := identities(self.region.path)) < count:
            self.assertLess(time.monotonic(), deadline_s, found)
            time.sleep(0.01)
        self.assertEqual(len(found), count)
        return [(json.loads(text), node) for text, node in found]

    def registered_texts(self, count: int) -> None:
        deadline_s = time.monotonic() + 30
        while len(found := identities(self.region.path)) < count:
            self.assertLess(time.monotonic(), deadline_s, found)
            time.sleep(0.01)

    def status(self, *arguments: str) -> str:
        told = [command(), "status", "--region", self.region.path, *arguments]
        return subprocess.run(told, check=True, stdout=subprocess.PIPE, text=True).stdout

    def test_status_lists_them_and_how_they_differ(self) -> None:
        self.assertEqual(json.loads(self.status("--json"))["identities"], [])
        self.blocks()
        self.registered(1)
        # The same: once in the pool.
        self.blocks(1)
        self.assertIn("identities of blocks: 1, all engines share", self.status())
        self.blocks(1, dtype="f16", bytes_=BLOCK_BYTES // 2)
        self.assertEqual({words["dtype"] for words, _ in self.registered(2)}, {"f32", "f16"})
        said = self.status()
        self.assertIn("identities of blocks: 2, which share nothing; they differ in block_bytes, dtype", said)
        self.assertRegex(said, 'block_bytes=32768 dtype="f16" name="m"')
        told = json.loads(self.status("--json"))
        self.assertEqual(told["identities_differ_in"], ["block_bytes", "dtype"])
        self.assertEqual({node for it in told["identities"] for node in it["nodes"]}, {0, 1})

    def test_an_engine_that_finds_nothing_names_the_word(self) -> None:
        first = self.blocks()
        self.registered(1)
        second = self.blocks(1, dtype="f16")
        self.registered(2)
        with self.assertLogs("rackline.engines.blocks", "WARNING") as log:
            deadline_s = time.monotonic() + 30
            while "not_found_identity_dtype" not in second.counters():
                self.assertLess(time.monotonic(), deadline_s, second.counters())
                self.assertEqual(second.find([bytes(32)]), 0)
                time.sleep(0.01)
        self.assertIn("their dtype is 'f32', here it is 'f16'", log.output[0])
        self.assertEqual(first.counters(), {})

    def test_what_is_no_identity_is_none(self) -> None:
        with rackline.Pool(self.region.path, 0) as pool:
            session = pool.identity_session(BLOCK_BYTES)
            content = bytearray(b"one".ljust(BLOCK_BYTES, b"\0"))
            memory = rackline.block_memory(memoryview(content).cast("B", (1, BLOCK_BYTES)))
            session.publish(identity_hash("two"), 0, memory, [0]).wait()
            self.assertEqual(identities(self.region.path), [])
            session.publish(identity_hash("one"), 0, memory, [0]).wait()
            self.assertEqual(identities(self.region.path), [("one", 0)])
        with self.assertRaisesRegex(rackline.Error, "at most 4096"):
            identity_hash("x" * 4097)
        with self.assertRaises(rackline.Error):
            identities("/nonexistent")

    def test_a_text_of_another_program_hides_no_identity(self) -> None:
        """Texts that are no objects, or that no reader of JSON takes."""
        with rackline.Pool(self.region.path, 0) as pool:
            session = pool.identity_session(BLOCK_BYTES)
            for text in ("?", "[1]", "7", "[" * 4096, '{"tenant": {"a": []}}', "{}"):
                content = bytearray(text.encode().ljust(BLOCK_BYTES, b"\0"))
                memory = rackline.block_memory(memoryview(content).cast("B", (1, BLOCK_BYTES)))
                session.publish(identity_hash(text), 0, memory, [0]).wait()
            self.blocks(1, dtype="f16")
            self.registered_texts(7)
            words = words_of(model(), BLOCK_BYTES, "")
            others = Others(self.region.path, words)
            deadline_s = time.monotonic() + 30
            while (why := others.why_absent()) is None:
                self.assertLess(time.monotonic(), deadline_s)
                time.sleep(0.01)
            self.assertEqual(why[0], "identity_dtype")
            self.assertIn("identities of blocks: 7", self.status())

    def test_what_is_cleared_is_registered_again(self) -> None:
        own = self.blocks()
        self.registered(1)
        self.assertEqual(rackline.clear(self.region.path, 1, tenant=None), [])
        self.assertEqual(identities(self.region.path), [])
        with mock.patch("time.monotonic", return_value=time.monotonic() + REGISTER_EVERY_S):
            own._registration.renew()
        self.registered(1)
        self.assertLessEqual(REGISTER_EVERY_S, 60)

    def test_an_identity_that_the_pool_refuses_is_said_and_tried_again(self) -> None:
        results: list[object] = []
        publish = SimpleNamespace(poll=lambda: results.pop(0))
        session = SimpleNamespace(publish=mock.Mock(return_value=publish))
        pool = SimpleNamespace(identity_session=lambda _: session)
        registration = Registration(SimpleNamespace(pool=pool), {"model": "m"}, BLOCK_BYTES)
        full = SimpleNamespace(outcomes=["no_chunk"], messages={"no_chunk": "the pool is full"})
        done = SimpleNamespace(outcomes=["published"], messages={})
        results += [None, full, full, done, full]
        times_s = iter(range(0, 10_000, 31))
        with mock.patch("time.monotonic", side_effect=lambda: float(next(times_s))):
            with self.assertLogs("rackline.engines.identities", "WARNING") as log:
                for _ in range(9):
                    registration.renew()
        self.assertEqual(results, [])
        self.assertEqual(len(log.output), 2, "once, and again after it was there")
        self.assertIn("the pool is full", log.output[0])
        self.assertGreaterEqual(session.publish.call_count, 4)

    def test_an_identity_that_fits_no_block_is_said_once(self) -> None:
        pool = SimpleNamespace(identity_session=lambda _: SimpleNamespace(publish=None))
        for block_bytes, length, said in ((100, 200, "a block has 100"), (BLOCK_BYTES, 5000, "at most 4096")):
            registration = Registration(SimpleNamespace(pool=pool), {"model": "m" * length}, block_bytes)
            with self.assertLogs("rackline.engines.identities", "WARNING") as log:
                for now_s in (100.0, 1000.0, 2000.0):
                    with mock.patch("time.monotonic", return_value=now_s):
                        registration.renew()
            self.assertEqual(len(log.output), 1)
            self.assertIn(said, log.output[0])

    def test_words_that_one_version_does_not_know_say_nothing(self) -> None:
        own = {"tenant": "t", "model": "m", "dtype": "a", "ranks": 1, "new": 1, "newer": 2}
        older = {"tenant": "t", "model": "m", "dtype": "b", "ranks": 1}
        far = {**own, "ranks": 2, "dtype": "c"}
        self.assertEqual(why_different(own, [far, older])[0], "identity_dtype")
        self.assertIn("their dtype is 'b'", why_different(own, [far, older])[1])

    def test_only_engines_that_were_meant_to_share_count(self) -> None:
        own = {"tenant": "t", "model": "m", "dtype": "a", "ranks": 1}
        self.assertIsNone(why_different(own, [own, {**own, "tenant": "u", "dtype": "b"}, {"more": 1}]))
        far, near = {**own, "dtype": "b", "ranks": 2}, {**own, "ranks": 4}
        reason, message = why_different(own, [far, near])
        self.assertEqual(reason, "identity_ranks")
        self.assertIn("their ranks is 4, here it is 1", message)
        self.assertIn("the same model, options and version", message)
        own, other = {**own, "head_groups": 8}, {**own, "head_groups": "ranks"}
        reason, message = why_different(own, [other])
        self.assertEqual(reason, "identity_head_groups")
        self.assertIn('set "head_groups" to one number on all engines', message)
        reason, message = why_different({**own, "block_tokens": 64}, [{**own, "block_tokens": 16}])
        self.assertEqual(reason, "identity_block_tokens")
        self.assertIn('set "stored_block_tokens" on the engine with the longer blocks', message)


if __name__ == "__main__":
    unittest.main()
