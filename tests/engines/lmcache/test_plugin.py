"""The storage plugin, made and called by LMCache's own storage manager, with chunks in its own memory."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import torch
from lmcache.v1.storage_backend.abstract_backend import (
    StorageBackendInterface,
    StoragePluginInterface,
)
from managers import PLUGIN, config, content, keys, manager, metadata, put
from pool import damage
from region import Region
from test_refusals import configured

HERE = pathlib.Path(__file__).resolve().parent


class Interface(unittest.TestCase):
    def test_it_is_what_lmcache_asks_for(self) -> None:
        from rackline.lmcache import RacklineBackend

        self.assertTrue(issubclass(RacklineBackend, StoragePluginInterface))
        self.assertEqual(RacklineBackend.__abstractmethods__, frozenset())
        shared = [name for name in vars(RacklineBackend) if hasattr(StoragePluginInterface, name)]
        for name in StorageBackendInterface.__abstractmethods__:
            self.assertIn(name, shared)
        for name in shared:
            theirs = getattr(StoragePluginInterface, name)
            if inspect.isfunction(theirs) and (name == "__init__" or not name.startswith("_")):
                with self.subTest(name):
                    wanted = list(inspect.signature(theirs).parameters)
                    own = getattr(RacklineBackend, name)
                    self.assertEqual(list(inspect.signature(own).parameters), wanted)
                    self.assertEqual(
                        inspect.iscoroutinefunction(own), inspect.iscoroutinefunction(theirs)
                    )


class Plugin(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("64MiB", "16KiB"))

    def settings(self, node: int = 0, **more) -> dict:
        return {"region": self.region.path, "node": node, "model_id": "tiny", **more}

    def manager(self, node: int = 0, told=None, given: dict | None = None, **more):
        own = self.enterContext(manager(self.settings(node, **(given or {})), told, **more))
        self.assertIn(PLUGIN, own.storage_backends)
        return own

    def got(self, own, names) -> list[bytes | None]:
        """The bytes of what it gets."""
        items = own.batched_get(names, location=PLUGIN)
        contents = [content(item) for item in items]
        for item in items:
            if item is not None:
                self.assertEqual(item.get_ref_count(), 1)
                item.ref_count_down()
        return contents

    def test_chunks_come_back_byte_for_byte(self) -> None:
        for mla in (False, True):
            with self.subTest(mla=mla):
                told = metadata(mla=mla)
                first, second = self.manager(0, told), self.manager(1, told)
                names = keys(5, told, seed=mla)
                contents = put(first, names, 1)
                self.assertEqual(first.storage_backends[PLUGIN].counters()["saved_blocks"], 5)
                other = keys(1, told, seed=9)
                found, where = second.batched_contains(names + other)
                self.assertEqual((found, where), (5, {PLUGIN: names}))
                self.assertEqual(second.contains(names[2]), PLUGIN)
                self.assertIsNone(second.contains(other[0]))
                self.assertEqual(self.got(second, names + other), [*contents, None])
                item = second.get(names[3])
                self.assertEqual(content(item), contents[3])
                item.ref_count_down()

    def test_another_process_gets_what_one_saved(self) -> None:
        contents = put(self.manager(), keys(3), 2)
        told = {"settings": self.settings(1), "count": 4}
        ran = subprocess.run(
            [sys.executable, HERE / "chunk_process.py", json.dumps(told)],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "LMCACHE_LOG_LEVEL": "INFO"},
        )
        # In LMCache's log, to which nobody has pointed it.
        self.assertRegex(ran.stderr, "LMCache INFO:.* Rackline: .*loaded_blocks=3")
        expected = [hashlib.sha256(chunk).hexdigest() for chunk in contents]
        self.assertEqual(json.loads(ran.stdout.splitlines()[-1]), [*expected, None])

    def test_what_lmcache_awaits(self) -> None:
        contents = put(self.manager(), keys(3), 3)
        plugin = self.manager(1).storage_backends[PLUGIN]

        async def wanted() -> tuple[int, list]:
            names = keys(3) + keys(1, seed=9)
            found = await plugin.batched_async_contains("request", names, True)
            return found, await plugin.batched_get_non_blocking("request", names[:found])

        found, items = asyncio.run(wanted())
        self.assertEqual((found, [content(item) for item in items]), (3, contents))
        # LMCache does not unpin what it loads so.
        self.assertFalse(any(plugin.unpin(name) for name in keys(3)))
        one = plugin.get_non_blocking(keys(1)[0]).result()
        self.assertEqual(content(one), contents[0])
        for item in [*items, one]:
            item.ref_count_down()

    def test_what_differs_is_not_found(self) -> None:
        put(self.manager(), keys(2), 4)
        for what, told, given, more in [
            ("tenant", metadata(), {"tenant": "b"}, {}),
            ("model", metadata(), {"model_id": "another"}, {}),
            ("type", metadata(dtype=torch.bfloat16), {}, {}),
            ("chunk", metadata(chunk=32), {}, {}),
            ("rank", metadata(1, 2), {}, {}),
            ("ranks", metadata(0, 2), {}, {}),
            ("mla", metadata(mla=True), {}, {}),
            ("hash", metadata(), {}, {"pre_caching_hash_algorithm": "sha256"}),
        ]:
            with self.subTest(what):
                other = self.manager(1, told, given, **more)
                # Also when LMCache's own key is the same.
                for names in (keys(2), keys(2, told)):
                    self.assertEqual(other.batched_contains(names)[0], 0)
                    self.assertEqual(self.got(other, names), [None, None])
        self.assertEqual(self.manager(1).batched_contains(keys(2))[0], 2)

    def test_damaged_chunks_are_misses(self) -> None:
        put(self.manager(), keys(3), 5)
        self.assertGreater(damage(self.region), 0)
        own = self.manager(1)
        given = self.all_that_is_allocated(own)
        self.assertEqual(self.got(own, keys(3)), [None] * 3)
        counted = own.storage_backends[PLUGIN].counters()
        self.assertEqual(counted["missed_blocks"], 3, counted)
        self.assertEqual(counted["miss_checksum"], 3, counted)
        self.assertEqual([item.get_ref_count() for item in given], [0] * 3, "given back")

    def all_that_is_allocated(self, own) -> list:
        """Fills with the objects that LMCache's memory gives from now on."""
        memory, given = own.storage_backends["LocalCPUBackend"], []
        allocate = memory.allocate

        def noted(*arguments, **options):
            given.append(allocate(*arguments, **options))
            return given[-1]

        self.enterContext(mock.patch.object(memory, "allocate", noted))
        return given

    def test_a_prefix_ends_at_the_first_miss(self) -> None:
        contents = put(self.manager(), keys(3), 6)
        own = self.manager(1)
        names = [keys(3)[0], keys(1, seed=9)[0], keys(3)[2]]
        self.assertEqual(own.batched_contains(names)[0], 1)
        self.assertEqual(self.got(own, names), [contents[0], None, None])

    def test_what_is_pinned_stays(self) -> None:
        small = self.enterContext(Region("4MiB", "16KiB"))
        given = {"region": small.path, "hold_ms": 600_000}
        first, second = self.manager(0, given=given), self.manager(1, given=given)
        contents = put(first, keys(2), 7)
        found, where = second.batched_contains(keys(2), pin=True)
        self.assertEqual(found, 2)
        for seed in range(10, 30):
            put(first, keys(30, seed=seed), seed)
        self.assertLess(first.batched_contains(keys(30, seed=10))[0], 30, "others made room")
        self.assertEqual(self.got(second, keys(2)), contents)
        plugin = second.storage_backends[PLUGIN]
        second.batched_unpin(where[PLUGIN], [PLUGIN])
        self.assertFalse(plugin.unpin(keys(1)[0]), "once")
        for seed in range(30, 50):
            put(first, keys(30, seed=seed), seed)
        self.assertEqual(first.batched_contains(keys(2))[0], 0)

    def test_when_lmcache_has_no_room(self) -> None:
        """As many as there is room for, and nothing waits."""
        put(self.manager(), keys(40), 8)
        own = self.manager(1, max_local_cpu_size=0.0002)
        items = own.batched_get(keys(40), location=PLUGIN)
        had = [item for item in items if item is not None]
        self.assertTrue(0 < len(had) < 40, len(had))
        self.assertNotIn(None, items[: len(had)])
        for item in had:
            item.ref_count_down()

    def test_what_is_no_whole_chunk_is_not_saved(self) -> None:
        own = self.manager()
        told = own.metadata
        short = own.allocate(told.get_shapes(5), told.get_dtypes())
        own.batched_put(keys(1), [short])
        self.assertEqual(own.storage_backends[PLUGIN].counters()["unsaved_blocks"], 1)
        self.assertEqual(own.batched_contains(keys(1))[0], 0)
        self.assertEqual(short.get_ref_count(), 0, "given back")

    def test_lmcache_closes_its_memory_when_nothing_uses_it(self) -> None:
        """It closes that before the plugin. Each call of a kind waits in the middle until the end has
        begun: with its memory gone by then, it would be copied from and into."""
        put(self.manager(), keys(2), 11)
        with manager(self.settings(1)) as own:
            plugin, memory = own.storage_backends[PLUGIN], own.storage_backends["LocalCPUBackend"]
            told, order, begun = own.metadata, [], threading.Barrier(5)
            blocks = plugin._opened()[0]
            counted = threading.Lock()
            in_the_middle = 0

            def slowly(name, method):
                def call(*arguments):
                    nonlocal in_the_middle
                    with counted:
                        in_the_middle += 1
                        first = in_the_middle <= 4
                    if first:
                        begun.wait()
                        while blocks._shares:
                            time.sleep(0.001)
                    order.append(name)
                    return method(*arguments)

                return call

            def closed():
                order.append("memory closed")
                close()

            close = memory.memory_allocator.close
            self.enterContext(mock.patch.object(memory.memory_allocator, "close", closed))
            for name in ("save_each", "load_each"):
                method = slowly(name, getattr(blocks, name))
                self.enterContext(mock.patch.object(blocks, name, method))
            objects = [own.allocate(told.get_shapes(), told.get_dtypes()) for _ in range(6)]
            for number, item in enumerate(objects):
                own.batched_put(keys(1, seed=100 + number), [item])
            # One in LMCache's own thread, one in the plugin's.
            loads = [threading.Thread(target=plugin.get_blocking, args=keys(1))]
            loads[0].start()
            plugin.get_non_blocking(keys(2)[1])
            begun.wait()
        loads[0].join()
        self.assertEqual(order[-1], "memory closed", order)
        self.assertEqual(order.count("load_each"), 2, order)
        self.assertEqual([item.get_ref_count() for item in objects], [0] * 6, "given back")
        self.assertEqual(
            plugin.counters().get("saved_blocks", 0), 0, "what began after that is not saved"
        )

    def test_what_is_loaded_for_nobody_is_given_back(self) -> None:
        contents = put(self.manager(), keys(2), 12)
        own = self.manager(1)
        plugin, given = own.storage_backends[PLUGIN], self.all_that_is_allocated(own)
        load, goes_on = plugin._opened()[0].load_each, threading.Event()

        def later(*arguments):
            goes_on.wait()
            return load(*arguments)

        async def cancelled() -> None:
            waits = asyncio.ensure_future(plugin.batched_get_non_blocking("request", keys(2)))
            while len(given) < 2:
                await asyncio.sleep(0.001)
            waits.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waits

        with mock.patch.object(plugin._opened()[0], "load_each", later):
            asyncio.run(cancelled())
            goes_on.set()
            # What is asked next of all threads comes behind it.
            plugin._loads.shutdown()
        self.assertEqual(plugin.counters()["loaded_blocks"], 2)
        self.assertEqual([item.get_ref_count() for item in given], [0] * 2)
        self.assertEqual(self.got(own, keys(2)), contents)

    def test_an_interrupt_waits_for_what_is_written(self) -> None:
        """LMCache's memory is given back after that."""
        put(self.manager(), keys(3), 15)
        own = self.manager(1)
        blocks, given = own.storage_backends[PLUGIN]._opened()[0], self.all_that_is_allocated(own)
        session, waits, written = blocks._session, [], []

        class Interrupted:
            def lookup(self, hashes, hold):
                return session.lookup(hashes, hold=hold)

            def fetch(self, handles, memory, places):
                fetch = session.fetch(handles, memory, places)

                def wait():
                    waits.append(None)
                    if len(waits) == 1:
                        raise KeyboardInterrupt
                    result = fetch.wait()
                    written.append([item.get_ref_count() for item in given])
                    return result

                return mock.Mock(wait=wait)

        with mock.patch.object(blocks, "_session", Interrupted()):
            with self.assertRaises(KeyboardInterrupt):
                own.storage_backends[PLUGIN].batched_get_blocking(keys(3))
        self.assertEqual(written, [[1] * 3] * 3)
        self.assertEqual([item.get_ref_count() for item in given], [0] * 3)

    def test_what_lmcache_raises_is_a_miss(self) -> None:
        contents = put(self.manager(), keys(3), 13)
        own = self.manager(1)
        plugin, given = own.storage_backends[PLUGIN], self.all_that_is_allocated(own)
        memory = own.storage_backends["LocalCPUBackend"]
        allocate = memory.allocate

        def fails_at_the_third(*arguments, **options):
            if len(given) == 2:
                raise RuntimeError("no more")
            return allocate(*arguments, **options)

        with mock.patch.object(memory, "allocate", fails_at_the_third):
            with self.assertLogs("rackline.lmcache", "WARNING"):
                self.assertEqual(self.got(own, keys(3)), [None] * 3)
        self.assertEqual([item.get_ref_count() for item in given], [0] * 2, "given back")
        with mock.patch.object(plugin, "_get", side_effect=RuntimeError("broken")):
            with self.assertLogs("rackline.lmcache", "WARNING") as said:
                waits = plugin.batched_get_non_blocking("request", keys(1))
                self.assertEqual(asyncio.run(waits), [])
        self.assertIn("broken", said.output[0])
        self.assertEqual(self.got(own, keys(3)), contents)
        other = self.manager(1)
        with mock.patch("rackline.lmcache.backend.chunk_form", side_effect=TypeError("no form")):
            with self.assertLogs("rackline.lmcache", "ERROR"):
                self.assertEqual(other.batched_contains(keys(3))[0], 0)
        self.assertEqual(other.batched_contains(keys(3))[0], 0, "nor later")

    def test_a_lookup_that_takes_too_long_found_nothing(self) -> None:
        """Also one that pins; what it finds after all is let go."""
        put(self.manager(), keys(2), 14)
        plugin = self.manager(1, given={"lookup_timeout_ms": 1}).storage_backends[PLUGIN]
        waits = []

        class Late:
            def lookup(self, hashes, hold=False):
                return self

            def wait(self, timeout_ms=None):
                waits.append(timeout_ms)

        with mock.patch.object(plugin._opened()[0], "_session", Late()):
            self.assertEqual(plugin.batched_contains(keys(2), pin=True), 0)
            self.assertEqual(plugin.batched_contains(keys(2)), 0)
            self.assertIsNone(plugin.get_blocking(keys(1)[0]))
        self.assertEqual(waits, [1, 1, 1])

    def test_a_closed_plugin_finds_nothing(self) -> None:
        with manager(self.settings()) as own:
            put(own, keys(2), 9)
            plugin = own.storage_backends[PLUGIN]
            item = own.allocate(own.metadata.get_shapes(), own.metadata.get_dtypes())
        self.assertFalse(plugin.contains(keys(1)[0], pin=True))
        self.assertIsNone(plugin.get_blocking(keys(1)[0]))
        self.assertIsNone(plugin.get_non_blocking(keys(1)[0]))
        self.assertIsNone(plugin.batched_submit_put_task(keys(1), [item]))
        self.assertEqual(asyncio.run(plugin.batched_get_non_blocking("request", keys(1))), [])
        self.assertFalse(plugin.remove(keys(1)[0]))

    def test_in_a_worker_of_vllm_its_configuration_counts(self) -> None:
        from rackline.lmcache import RacklineBackend
        from vllm.config import set_current_vllm_config

        settings = {**self.settings(), "model_id": ""}
        with set_current_vllm_config(configured()), manager(settings) as own:
            put(own, keys(2), 11)
        for engine, found in [
            (configured(), 2),
            (configured(hf_overrides={"rms_norm_eps": 1e-6}), 0),
            (configured(dtype="float16"), 0),
        ]:
            place = {**settings, "node": 1}
            with self.subTest(found), set_current_vllm_config(engine), manager(place) as own:
                self.assertEqual(own.batched_contains(keys(2))[0], found)
        lora = configured(enable_lora=True, max_loras=1, max_lora_rank=8)
        with set_current_vllm_config(lora), self.assertRaisesRegex(Exception, "no LoRA adapter"):
            RacklineBackend(config=config(settings), metadata=metadata(), local_cpu_backend=object())

    def test_what_cannot_work_is_refused_in_words(self) -> None:
        from rackline.lmcache import RacklineBackend

        good = self.settings()
        for settings, told, more, message in [
            ({"node": 0}, metadata(), {}, 'set "region" and "node"'),
            ({**good, "nod": 1}, metadata(), {}, "unknown settings"),
            ({**good, "region": "/nonexistent"}, metadata(), {}, "/nonexistent"),
            ({**good, "model_id": ""}, metadata(), {}, 'set "rackline.model_id"'),
            (good, metadata(role="scheduler"), {}, "enable_scheduler_bypass_lookup"),
            (good, metadata(), {"enable_pd": True}, "enable_pd"),
            (good, metadata(), {"use_layerwise": True}, "use_layerwise"),
            (good, metadata(), {"enable_blending": True}, "enable_blending"),
            (good, metadata(), {"pre_caching_hash_algorithm": "builtin"}, "PYTHONHASHSEED"),
            (good, metadata(), {}, "max_local_cpu_size"),
        ]:
            memory = None if message == "max_local_cpu_size" else object()
            with self.subTest(message), self.assertRaisesRegex(Exception, message):
                RacklineBackend(
                    config=config(settings, **more), metadata=told, local_cpu_backend=memory
                )


if __name__ == "__main__":
    unittest.main()
