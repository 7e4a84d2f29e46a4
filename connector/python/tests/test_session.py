"""The session API on a real region."""

from __future__ import annotations

import gc
import importlib.metadata
import multiprocessing
import os
import socket
import subprocess
import sys
import time
import unittest
import unittest.mock
import weakref
from typing import Any

import rackline
from rackline._native import check_pool_options
from rackline.engines.attachment import Attachment
from rackline.engines.settings import NUMBER_MAX, PoolSettings, SettingsError
from region import Region

BLOCK_BYTES = 4096 + 100
BLOCKS = 16


def hashes(count: int) -> list[bytes]:
    return [bytes([number]) * 32 for number in range(count)]


def model(**other) -> rackline.Model:
    numbers = dict(block_tokens=16, layers=2, kv_heads=1, head_dim=64)
    return rackline.Model(**{**dict(name="tiny", revision="1", dtype="f16"), **numbers, **other})


def buffer(fill: int | None = None) -> memoryview:
    """16 blocks: block b is full of `b + fill`, or of zeros."""
    memory = bytearray(BLOCKS * BLOCK_BYTES)
    if fill is not None:
        for number in range(BLOCKS):
            memory[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES] = (
                bytes([number + fill]) * BLOCK_BYTES
            )
    return memoryview(memory).cast("B", (BLOCKS, BLOCK_BYTES))


def fetch_elsewhere(path: str, handles: bytes, found: multiprocessing.Queue) -> None:
    with rackline.Pool(path, 1) as pool:
        session = pool.session(model(), BLOCK_BYTES)
        target = buffer()
        memory = rackline.block_memory(target)
        count = len(handles) // rackline.HANDLE_BYTES
        result = session.fetch(handles, memory, list(range(count))).wait()
        found.put((result.valid_blocks, result.reason, target.tobytes()))


class Sessions(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("16MiB", "4KiB"))

    def attach(self, node: int = 0, **options) -> rackline.Pool:
        return self.enterContext(rackline.Pool(self.region.path, node, **options))

    def refused(self, **options) -> None:
        """Options that are refused alike with a pool and without."""
        with self.assertRaises(rackline.Error) as alone:
            check_pool_options(**options)
        with self.assertRaises(rackline.Error) as attaching:
            rackline.Pool(self.region.path, 0, **options)
        self.assertEqual(str(alone.exception), str(attaching.exception))
        raise attaching.exception

    def test_the_share_of_a_node(self) -> None:
        with self.attach() as pool:
            share_bytes = (self.region.bytes - self.region.payload_offset) // 2
            self.assertEqual(pool.share_bytes, share_bytes)
        # The process attaches again, and what is asked until then has an answer.
        self.assertEqual(pool.share_bytes, share_bytes)

    def test_settings_of_engines_are_checked_as_options_are(self) -> None:
        given = {"region": self.region.path, "node": 0}
        quotas = [{"tenant": "a", "bytes": 4096}]
        settings = PoolSettings.of({**given, "copy_threads": 2, "quotas": quotas})
        self.attach(**settings.pool_options())
        for wrong, message in [
            ({"copy_threads": 65}, "the settings: copy_threads is 65: it must be from 1 to 64"),
            ({"copy_threads": 0}, "copy_threads is 0"),
            ({"queue_depth": 1 << 21}, "queue_depth is 2097152"),
            ({"copy_threads": 1 << 70}, "copy_threads' is 1180591620717411303424: 2147483647 at most"),
            ({"restore_wait_ms": 1 << 32}, "restore_wait_ms' is 4294967296: 2147483647 at most"),
            ({"high_watermark_percent": 10}, "watermarks of 10 and 90"),
            ({"quotas": [{"percent": 101}]}, "percent 101: 100 at most"),
            ({"quotas": [7]}, "7"),
            ({"quotas": {"a": 1}}, "not of type list"),
        ]:
            with self.subTest(message), self.assertRaisesRegex(SettingsError, message):
                PoolSettings.of({**given, **wrong})

    def test_every_number_that_a_setting_may_be_is_one_of_a_call(self) -> None:
        largest = dict(restore_wait_ms=NUMBER_MAX, recompute_ms=NUMBER_MAX)
        settings = PoolSettings.of({"region": self.region.path, "node": 0, **largest})
        session = self.attach().session(model(), BLOCK_BYTES)
        options = settings.restore_options(16)
        self.assertEqual(len(session.lookup(hashes(1), hold=True, **options).wait()), 0)

    def test_one_setting_has_the_numbers_of_all_hosts(self) -> None:
        given = {"region": self.region.path}
        with unittest.mock.patch.dict(os.environ, {"RACKLINE_HOST": "rack1-b"}):
            nodes = {"rack1-a": 0, "rack1-b": 1}
            self.assertEqual(PoolSettings.of({**given, "node": nodes}).node, 1)
            for wrong, message in [
                ({"rack1-a": 0}, "no number for this host, rack1-b; add it"),
                ({"rack1-a": 1, "rack1-b": 1}, "two hosts one number"),
                ({"rack1-b": "1"}, "'node' is '1', not of type int"),
                ({"rack1-b": -1}, "too small"),
            ]:
                with self.subTest(message), self.assertRaisesRegex(SettingsError, message):
                    PoolSettings.of({**given, "node": wrong})
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("RACKLINE_HOST", None)
            self.assertEqual(PoolSettings.of({**given, "node": {socket.gethostname(): 3}}).node, 3)

    def test_the_version_is_that_of_the_package(self) -> None:
        self.assertEqual(rackline.__version__, importlib.metadata.version("rackline"))

    def test_a_session_by_its_caller_is_done_when_the_call_returns(self) -> None:
        pool = self.attach()
        session = pool.session(model(), BLOCK_BYTES).by_caller()
        source, target = buffer(7), buffer()
        publish = session.publish(hashes(3), 0, rackline.block_memory(source), [0, 1, 2])
        self.assertEqual(publish.poll().published, 3)
        self.assertEqual(session.present(hashes(4)).wait(0), bytes([1, 1, 1, 0]))
        found = session.lookup(hashes(4), hold=True).poll()
        self.assertEqual(len(found), 3)
        fetch = session.fetch(found, rackline.block_memory(target), [5, 6, 7])
        self.assertEqual(fetch.poll().valid_blocks, 3)
        self.assertEqual(target[5:8].tobytes(), source[:3].tobytes())

    def test_a_process_has_one_attachment_with_one_set_of_options(self) -> None:
        given = {"region": self.region.path, "node": 0}
        first = Attachment(PoolSettings.of({**given, "queue_depth": 64}))
        second = Attachment(PoolSettings.of({**given, "queue_depth": 64, "tenant": "other"}))
        self.assertIs(first.pool, second.pool)
        for other, message in [
            ({}, "with queue_depth 64 and not 256: .* set the same for both"),
            ({"queue_depth": 64, "copy_threads": 2}, "copy_threads 1 and not 2"),
            ({"queue_depth": 64, "quotas": [{"percent": 1}]}, "quotas"),
        ]:
            with self.subTest(message), self.assertRaisesRegex(SettingsError, message):
                Attachment(PoolSettings.of({**given, **other}))
        first.close()
        second.close()
        Attachment(PoolSettings.of(given)).close()

    def test_numbers_out_of_range_and_a_closed_pool_are_one_clear_error(self) -> None:
        for node in (-1, 65536, 1 << 80):
            with self.assertRaisesRegex(rackline.Error, f"^node is {node}: out of range$"):
                rackline.Pool(self.region.path, node)
        pool = self.attach()
        session = pool.session(model(), BLOCK_BYTES)
        memory = rackline.block_memory(buffer(fill=1))
        with self.assertRaisesRegex(rackline.Error, "^first_depth is -1: out of range$"):
            session.publish(hashes(1), -1, memory, [0])
        with self.assertRaisesRegex(rackline.Error, "^blocks of 1048577 bytes do not fit this region"):
            pool.session(model(), (1 << 20) + 1)
        self.assertEqual(pool.session(model(), 1 << 20).block_bytes, 1 << 20)
        pool.close()
        for call in (lambda: pool.session(model(), BLOCK_BYTES), pool.metrics):
            with self.assertRaisesRegex(rackline.Closed, "^the pool was closed in this process$"):
                call()

    def test_watermarks_and_quotas_are_kept(self) -> None:
        pool = self.attach(
            copy_threads=64,
            high_watermark_percent=2,
            low_watermark_percent=1,
            quotas=[{"tenant": "modest", "percent": 0}],
        )
        usual = pool.session(model(), BLOCK_BYTES)
        modest = pool.session(model(), BLOCK_BYTES, tenant="modest")
        memory = rackline.block_memory(buffer(fill=1))
        usual.publish(hashes(2), 0, memory, [0, 1]).wait()
        # What is being written cannot be evicted.
        for number in range(1000):
            modest.publish([number.to_bytes(2, "big") * 16], number, memory, [2]).wait()
        deadline_s = time.monotonic() + 60
        while pool.metrics()["evicted_blocks"] < 200:
            self.assertLess(time.monotonic(), deadline_s, pool.metrics())
            time.sleep(0.001)
        self.assertEqual(len(usual.lookup(hashes(2)).wait()), 2, "the older, but within their room")

    def test_another_process_of_another_node_fetches_what_was_published(self) -> None:
        session = self.attach().session(model(), BLOCK_BYTES)
        memory = rackline.block_memory(buffer(fill=100))
        published = session.publish(hashes(5), 0, memory, [1, 2, 3, 4, 5]).wait()
        self.assertEqual((published.published, published.already_there), (5, 0))
        self.assertEqual(published.outcomes, ["published"] * 5)
        again = session.publish(hashes(6), 0, memory, [1, 2, 3, 4, 5, 6]).wait()
        self.assertEqual((again.published, again.already_there), (1, 5))

        prefix = session.lookup(hashes(9), hold=True).wait()
        self.assertEqual((len(prefix), prefix.held), (6, True))
        spawn = multiprocessing.get_context("spawn")
        found = spawn.Queue()
        other = spawn.Process(
            target=fetch_elsewhere, args=(self.region.path, prefix.handles(), found)
        )
        other.start()
        valid, reason, got = found.get(timeout=60)
        other.join()
        self.assertEqual((valid, reason), (6, None))
        expected = b"".join(bytes([100 + number]) * BLOCK_BYTES for number in range(1, 7))
        self.assertEqual(got[: len(expected)], expected)
        prefix.release()
        self.assertFalse(prefix.held)

    def test_hashes_and_handles_are_one_buffer(self) -> None:
        session = self.attach().session(model(), BLOCK_BYTES)
        source, target = buffer(fill=50), buffer()
        memory = rackline.block_memory(source)
        whole = b"".join(hashes(5))
        self.assertEqual(session.publish(whole, 0, memory, [0, 1, 2, 3, 4]).wait().published, 5)
        for form in [whole, bytearray(whole), memoryview(whole), memoryview(whole)[::1], hashes(5)]:
            self.assertEqual(len(session.lookup(form).wait()), 5)
        self.assertEqual(len(session.lookup(memoryview(whole)[32:]).wait()), 4)
        self.assertEqual(len(session.lookup(b"").wait()), 0)
        for wrong in ["text", 64, [1, 2], None]:
            with self.assertRaises(TypeError):
                session.lookup(wrong)
        handles = session.lookup(whole).wait().handles()
        self.assertEqual(len(handles), 5 * rackline.HANDLE_BYTES)
        last = memoryview(handles)[3 * rackline.HANDLE_BYTES :]
        result = session.fetch(last, rackline.block_memory(target), [7, 6]).wait()
        self.assertEqual(result.valid_blocks, 2)
        self.assertEqual((target[7, 0], target[6, 0]), (53, 54))

    def test_handles_without_keys_are_those_of_the_hashes(self) -> None:
        pool = self.attach()
        session = pool.session(model(), BLOCK_BYTES)
        source, whole = buffer(fill=50), b"".join(hashes(4))
        session.publish(whole, 0, rackline.block_memory(source), [0, 1, 2, 3]).wait()
        prefix = session.lookup(whole).wait()
        keyless = prefix.keyless_handles()
        self.assertEqual(len(keyless), 4 * rackline.KEYLESS_HANDLE_BYTES)

        def fetched(own: rackline.Session, found: rackline.Prefix | tuple[bytes, bytes]) -> Any:
            target = buffer()
            result = own.fetch(found, rackline.block_memory(target), [7, 6, 5, 4]).wait()
            return result.valid_blocks, result.reason, [target[row, 0] for row in (7, 6, 5, 4)]

        expected = (4, None, [50, 51, 52, 53])
        self.assertEqual(fetched(session, (whole, keyless)), expected)
        self.assertEqual(fetched(session, (hashes(4), bytearray(keyless))), expected)
        size = rackline.KEYLESS_HANDLE_BYTES
        with self.subTest("the hash of another block"):
            others = whole[:32] + whole[64:96] + whole[32:64] + whole[96:]
            self.assertEqual(fetched(session, (others, keyless))[:2], (1, "wrong_key"))
        with self.subTest("the handle of another block"):
            swapped = keyless[:size] + keyless[2 * size : 3 * size] + keyless[size : 2 * size]
            swapped += keyless[3 * size :]
            self.assertEqual(fetched(session, (whole, swapped))[:2], (1, "wrong_key"))
        with self.subTest("another tenant"):
            other = pool.session(model(), BLOCK_BYTES, tenant="other")
            self.assertEqual(fetched(other, (whole, keyless))[:2], (0, "wrong_key"))
        with self.subTest("none of it is quarantined"):
            self.assertEqual(fetched(session, (whole, keyless)), expected)

    def layered(self, pool: rackline.Pool) -> tuple[rackline.Session, list[bytearray]]:
        """A session for blocks of three layers, the second of two parts, and the arrays of them."""
        lengths = [1000, 1500, 96, 1600]
        arrays = [bytearray(BLOCKS * length) for length in lengths]
        return pool.session(model(), sum(lengths)), arrays

    @staticmethod
    def layered_memory(arrays: list[bytearray]) -> rackline.BlockMemory:
        parts = [
            memoryview(array).cast("B", (BLOCKS, len(array) // BLOCKS)) for array in arrays
        ]
        return rackline.block_memory(*parts, layers=[1, 2, 1])

    def test_layers_are_published_as_they_are_ready_and_fetched_one_by_one(self) -> None:
        session, source = self.layered(self.attach(publishes_by_layers=True))
        memory = self.layered_memory(source)
        self.assertEqual((memory.layers, memory.block_bytes), (3, BLOCK_BYTES))
        publish = session.publish_by_layers(hashes(3), [0, 1, 2], memory, [1, 2, 3])
        # What is written before a layer is ready is what is published.
        for layer, arrays in [(0, source[:1]), (1, source[1:3]), (2, source[3:])]:
            for array in arrays:
                array[:] = os.urandom(len(array))
            publish.layer_ready(layer)
        with self.assertRaisesRegex(rackline.Error, "finish"):
            publish.poll()
        with self.assertRaisesRegex(rackline.Error, "no layer 3: a block has 3"):
            publish.layer_ready(3)
        self.assertEqual(len(session.lookup(hashes(3)).wait()), 0)
        publish.finish()
        publish.finish()
        self.assertEqual(publish.wait().outcomes, ["published"] * 3)

        other, target = self.layered(self.attach(1))
        prefix = other.lookup(hashes(3)).wait()
        fetch = other.fetch_by_layers(prefix, self.layered_memory(target), [1, 2, 3])
        for layer, arrays in [(0, [0]), (1, [1, 2]), (2, [3])]:
            self.assertTrue(fetch.wait_layer(layer))
            for number in arrays:
                block = len(source[number]) // BLOCKS
                got = target[number][block : 4 * block]
                self.assertEqual(got, source[number][block : 4 * block])
        with self.assertRaisesRegex(rackline.Error, "ended"):
            fetch.wait_layer(3)
        result = fetch.wait()
        self.assertEqual((result.valid_blocks, result.reason), (3, None))
        # The same bytes as whole blocks.
        whole = [bytearray(len(array)) for array in source]
        prefix = other.lookup(hashes(3)).wait()
        other.fetch(prefix, self.layered_memory(whole), [1, 2, 3]).wait()
        self.assertEqual(whole, target)

    def test_what_is_aborted_dropped_or_closed_is_not_published(self) -> None:
        pool = self.attach(publishes_by_layers=True)
        session, source = self.layered(pool)
        memory = self.layered_memory(source)
        publish = session.publish_by_layers(hashes(2), [0, 1], memory, [1, 2])
        publish.layer_ready(0)
        publish.abort()
        publish.finish()
        self.assertEqual(publish.wait().outcomes, ["aborted"] * 2)
        dropped = session.publish_by_layers(hashes(2), [0, 1], memory, [1, 2])
        dropped.layer_ready(0)
        del dropped
        waiting = session.publish_by_layers(hashes(2), [0, 1], memory, [1, 2])
        also = session.publish_by_layers(hashes(2), [0, 1], memory, [1, 2])
        pool.close()
        # Closing aborted it, whatever is said to it afterwards, or not.
        self.assertEqual(also.wait().outcomes, ["aborted"] * 2)
        waiting.finish()
        self.assertEqual(waiting.wait().outcomes, ["aborted"] * 2)
        # Not even when nobody closes or drops anything: the interpreter ends all the same.
        again, source = self.layered(pool := self.attach(publishes_by_layers=True))
        self.assertEqual(len(again.lookup(hashes(2)).wait()), 0)
        left_over = (
            "import rackline, sys\n"
            "from test_session import BLOCK_BYTES, buffer, hashes, model\n"
            "pool = rackline.Pool(sys.argv[1], 1, publishes_by_layers=True)\n"
            "session = pool.session(model(), BLOCK_BYTES)\n"
            "memory = rackline.block_memory(buffer())\n"
            "publish = session.publish_by_layers(hashes(2), [0, 1], memory, [1, 2])\n"
        )
        done = subprocess.run([sys.executable, "-c", left_over, self.region.path], timeout=120)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(len(again.lookup(hashes(2)).wait()), 0)

    def test_layers_that_do_not_fit_are_refused(self) -> None:
        array = memoryview(bytearray(BLOCKS * BLOCK_BYTES)).cast("B", (BLOCKS, BLOCK_BYTES))
        for layers in ([], [0, 1], [2], [1, 1]):
            with self.assertRaisesRegex(rackline.Error, "1 in all"):
                rackline.block_memory(array, layers=layers)
        session = self.attach().session(model(), BLOCK_BYTES)
        memory = rackline.block_memory(array)
        with self.assertRaisesRegex(rackline.Error, "publishes_by_layers=True"):
            session.publish_by_layers(hashes(1), [0], memory, [1])

    def test_models_tenants_and_salts_do_not_meet(self) -> None:
        pool = self.attach()
        memory = rackline.block_memory(buffer(fill=1))
        session = pool.session(model(), BLOCK_BYTES, tenant="a", salt=b"1")
        session.publish(hashes(1), 0, memory, [0]).wait()
        for other, found in [
            (pool.session(model(), BLOCK_BYTES, tenant="a", salt=b"1"), 1),
            (pool.session(model(), BLOCK_BYTES, tenant="b", salt=b"1"), 0),
            (pool.session(model(), BLOCK_BYTES, tenant="a", salt=b"2"), 0),
            (pool.session(model(tensor_parallel_size=2), BLOCK_BYTES, tenant="a", salt=b"1"), 0),
        ]:
            self.assertEqual(len(other.lookup(hashes(1)).wait()), found)

    def test_blocks_are_present_each_for_itself(self) -> None:
        pool = self.attach()
        session = pool.session(model(), BLOCK_BYTES)
        memory = rackline.block_memory(buffer(fill=1))
        session.publish(hashes(5)[1:3], 1, memory, [0, 1]).wait()
        session.publish(hashes(5)[4:], 4, memory, [2]).wait()
        lookups = pool.metrics()["lookups"]
        self.assertEqual(session.present(hashes(5)).wait(), bytes([0, 1, 1, 0, 1]))
        self.assertEqual(session.present(b"".join(hashes(2))).wait(), bytes([0, 1]))
        self.assertEqual(session.present([]).wait(), b"")
        self.assertEqual(pool.metrics()["lookups"], lookups)
        # The prefix of the same hashes ends before the first block.
        self.assertEqual(len(session.lookup(hashes(5)).wait()), 0)

    def test_a_foreign_handle_is_a_miss(self) -> None:
        pool = self.attach()
        session = pool.session(model(), BLOCK_BYTES)
        target = buffer()
        memory = rackline.block_memory(target)
        for handle in [bytes(rackline.HANDLE_BYTES), b"\xff" * rackline.HANDLE_BYTES]:
            result = session.fetch(handle, memory, [0]).wait()
            self.assertEqual(result.valid_blocks, 0)
            self.assertIsNotNone(result.message)
            self.assertGreaterEqual(pool.metrics()["misses"][result.reason], 1)
        self.assertEqual(target.tobytes(), bytes(BLOCKS * BLOCK_BYTES))

    def test_a_block_is_in_one_transfer_that_writes(self) -> None:
        pool = self.attach()
        session = pool.session(model(), BLOCK_BYTES)
        memory = rackline.block_memory(buffer(fill=1))
        session.publish(hashes(2), 0, memory, [0, 1]).wait()
        prefix = session.lookup(hashes(2)).wait()
        with self.assertRaisesRegex(rackline.Error, "cannot write block 3 twice"):
            session.fetch(prefix, memory, [3, 3])
        # Nothing of the refused call stays taken.
        self.assertEqual(session.fetch(prefix, memory, [3, 4]).wait().valid_blocks, 2)

    def test_two_memories_of_the_same_bytes_exclude_each_other(self) -> None:
        pool = self.attach(publishes_by_layers=True)
        session = pool.session(model(), BLOCK_BYTES)
        array = buffer(fill=1)
        whole, later = rackline.block_memory(array), rackline.block_memory(array[4:])
        session.publish(hashes(2), 0, whole, [0, 1]).wait()
        prefix = session.lookup(hashes(2)).wait()
        # It reads block 7 until it ends.
        reads = session.publish_by_layers([b"x" * 32], [9], whole, [7])
        with self.assertRaisesRegex(rackline.Error, "block 3 is in another transfer: wait for"):
            session.fetch(prefix, later, [2, 3])
        self.assertEqual(session.fetch(prefix, later, [2, 4]).wait().valid_blocks, 2)
        reads.abort()
        reads.wait()
        self.assertEqual(session.fetch(prefix, later, [2, 3]).wait().valid_blocks, 2)
        twice = rackline.block_memory(*2 * [memoryview(bytearray(BLOCK_BYTES)).cast("B", (2, 2098))])
        with self.assertRaisesRegex(rackline.Error, "overlap in block 1: pass arrays that do not"):
            session.fetch(prefix.handles()[: rackline.HANDLE_BYTES], twice, [1])

    def test_bad_arguments_say_what_is_wrong(self) -> None:
        pool = self.attach()
        session = pool.session(model(), BLOCK_BYTES)
        memory = rackline.block_memory(buffer())
        small = rackline.block_memory(bytearray(100))
        for wrong, message in [
            (lambda: session.lookup([b"short"]), "a block hash of 5 bytes"),
            (lambda: session.publish(hashes(1), 0, memory, [BLOCKS]), "there is no block 16"),
            (lambda: session.publish(hashes(2), 0, memory, [1]), "2 blocks, and 1 places"),
            (lambda: session.publish(hashes(1), 0, small, [1]), "blocks of 1 bytes"),
            (lambda: session.lookup(bytes(33)), "33 bytes of block hashes: pass a multiple of 32"),
            (lambda: session.fetch(b"x", memory, [1]), "1 bytes of handles: pass a multiple of 34"),
            (
                lambda: session.fetch((bytes(32), b"x"), memory, [1]),
                "1 bytes of handles without keys: pass a multiple of 10",
            ),
            (
                lambda: session.fetch((bytes(64), bytes(10)), memory, [1]),
                "1 handles without keys, and 2 hashes: pass the hash",
            ),
            (lambda: session.fetch((bytes(33), bytes(10)), memory, [1]), "33 bytes of block hashes"),
            (lambda: rackline.block_memory(b"bytes"), "read-only"),
            (lambda: rackline.block_memory(), "needs an array"),
            (lambda: rackline.BlockMemory([(4096, 10, 20)], 2, None), "one over the other"),
            (lambda: rackline.BlockMemory([(4096, 2**62, 20)], 9, None), "addressed"),
            (lambda: pool.session(model(), 0), "a block needs 1 to"),
            (lambda: pool.session(model(), 1, hold_ms=10**12), "hold_ms"),
            (lambda: rackline.Pool(self.region.path, 99), "node"),
            (lambda: self.refused(copy_threads=0), "copy_threads is 0: it must be from 1 to 64"),
            (lambda: self.refused(copy_threads=65), "copy_threads is 65: it must be from 1 to 64"),
            (lambda: self.refused(copy_threads=-1), "copy_threads is -1: out of range"),
            (lambda: self.refused(queue_depth=1 << 70), "queue_depth is 1180591620717411303424: out of"),
            (lambda: self.refused(fetch_threads=65), "fetch_threads is 65: 64 at most"),
            (lambda: self.refused(queue_depth=0), "queue_depth is 0: it must be from 1 to 1048576"),
            (lambda: self.refused(high_watermark_percent=101), "watermarks of 101 and 90"),
            (lambda: self.refused(low_watermark_percent=95), "watermarks of 95 and 95"),
            (lambda: self.refused(low_watermark_percent=70000), "is 70000: out of range"),
            (lambda: self.refused(quotas=[{"tenant": "a"}]), 'of "a" must have bytes, or percent'),
            (lambda: self.refused(quotas=[{"bytes": 1, "percent": 1}]), "bytes, or percent"),
            (lambda: self.refused(quotas=[{"percent": 101}]), "percent 101: 100 at most"),
            (lambda: self.refused(quotas=[{"bytes": 2**63}]), "9223372036854775807 at most"),
            (lambda: self.refused(quotas=[{"bytes": -1}]), "bytes of a quota is -1"),
            (lambda: self.refused(quotas=[{"share": 1}]), "a quota has no share"),
            (lambda: self.refused(quotas=[{"bytes": 1}] * 2), "already has a quota"),
            (lambda: rackline.Pool("/nonexistent", 0), "/nonexistent"),
        ]:
            with self.subTest(message), self.assertRaisesRegex(rackline.Error, message):
                wrong()

    def test_memory_outlives_its_transfers(self) -> None:
        class Owner:
            pass

        session = self.attach().session(model(), BLOCK_BYTES)
        target = buffer(fill=1)
        parts = rackline.block_memory(target)
        del parts
        owner = Owner()
        owner.array = target
        gone = weakref.ref(owner)
        import ctypes

        address = ctypes.addressof(ctypes.c_char.from_buffer(target))
        memory = rackline.BlockMemory([(address, BLOCK_BYTES, BLOCK_BYTES)], BLOCKS, owner)
        publish = session.publish(hashes(1), 0, memory, [0])
        del owner, memory
        gc.collect()
        self.assertEqual(publish.wait().published, 1)
        del publish
        gc.collect()
        self.assertIsNone(gone(), "nothing keeps it any more")

    def test_a_result_is_had_once(self) -> None:
        session = self.attach().session(model(), BLOCK_BYTES)
        lookup = session.lookup(hashes(1))
        self.assertEqual(len(lookup.wait(60_000)), 0)
        with self.assertRaisesRegex(rackline.Error, "no result"):
            lookup.poll()

    def test_a_closed_pool_takes_nothing(self) -> None:
        pool = self.attach()
        session = pool.session(model(), BLOCK_BYTES)
        pool.close()
        with self.assertRaises(rackline.Closed):
            session.lookup(hashes(1))

    def test_a_forked_child_is_refused(self) -> None:
        session = self.attach(publishes_by_layers=True).session(model(), BLOCK_BYTES)
        memory = rackline.block_memory(buffer())
        layered = session.publish_by_layers(hashes(1), [0], memory, [0])
        child = os.fork()
        if child == 0:
            own = rackline.block_memory(buffer())
            attached_again = rackline.Pool(self.region.path, 1).session(model(), BLOCK_BYTES)
            refused = 0
            for call in (
                lambda: session.lookup(hashes(1)),
                # Whether a block of the parent's memory is in use is not asked.
                lambda: session.publish(hashes(1), 0, memory, [0]),
                lambda: attached_again.publish(hashes(1), 0, memory, [1]),
                lambda: session.publish_by_layers(hashes(1), [0], memory, [0]),
                lambda: session.publish_by_layers(hashes(1), [0], own, [0]),
                lambda: session.fetch_by_layers(b"", memory, []),
                lambda: layered.layer_ready(0),
                layered.finish,
            ):
                try:
                    call()
                except rackline.Forked:
                    refused += 1
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 8)
        layered.abort()
        layered.wait()
        self.assertEqual(len(session.lookup(hashes(1)).wait()), 0, "the parent goes on")

    def test_a_pool_smaller_than_what_is_published_evicts(self) -> None:
        pool = self.attach()
        session = pool.session(model(), BLOCK_BYTES)
        memory = rackline.block_memory(buffer(fill=1))
        available = 0
        for start in range(0, 6000, BLOCKS):
            names = [number.to_bytes(32, "little") for number in range(start, start + BLOCKS)]
            result = session.publish(names, start, memory, list(range(BLOCKS))).wait()
            available += result.published
        self.assertEqual(available, 6000)
        self.assertGreater(pool.metrics()["evicted_blocks"], 0)


if __name__ == "__main__":
    unittest.main()
