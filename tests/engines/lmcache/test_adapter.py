"""The adapter of LMCache's server, called as its controllers call it."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
import time
import unittest
from typing import Any
from unittest import mock

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from pool import damage
from rackline.engines.blocks import SharedBlocks
from rackline.engines.settings import SettingsError
from rackline.lmcache.l2_adapter import LOADS_AT_ONCE, STORES_AT_ONCE, RacklineL2Adapter
from rackline.lmcache.l2_identity import object_form
from region import Region

SHAPE = torch.Size([2, 3, 16, 64])
LIMIT_S = 60
# A process that reads weights in a thread like those that open models, for much longer, and ends.
ENDS_WHILE_IT_READS = f"""
import pathlib, threading, time
from rackline.engines import digests
reads = threading.Event()
digests._digest = lambda file: reads.set() or time.sleep({2 * LIMIT_S})
threading.Thread(target=digests.digests, args=([pathlib.Path()],), daemon=True).start()
reads.wait()
"""


def item(fill: int, dtype: torch.dtype = torch.float16) -> TensorMemoryObj:
    """An object whose bytes are all `fill`."""
    size = SHAPE.numel() * dtype.itemsize
    about = MemoryObjMetadata(
        shape=SHAPE,
        dtype=dtype,
        address=0,
        phy_size=size,
        ref_count=1,
        fmt=MemoryFormat.KV_2LTD,
        shapes=[SHAPE],
        dtypes=[dtype],
    )
    return TensorMemoryObj(torch.full((size,), fill, dtype=torch.uint8), about, None)


def keys(count: int, **other: Any) -> list[ObjectKey]:
    fields = {"model_name": "tiny", "kv_rank": 0, **other}
    return [ObjectKey(chunk_hash=bytes([number]) * 32, **fields) for number in range(count)]


def result(take: Any) -> Any:
    """What a task comes to; nothing (none, or no results of any) is there before."""
    deadline_s = time.monotonic() + LIMIT_S
    while (found := take()) is None or found == {}:
        if time.monotonic() > deadline_s:
            raise AssertionError("the task does not end")
        time.sleep(0.001)
    return found


class Gate:
    """What stands for a function of the adapter, and ends when it is opened, for one model."""

    def __init__(self, function: Any, of: str = "") -> None:
        self._function, self._of = function, of
        self.reached, self.open, self.passed = threading.Event(), threading.Event(), 0

    def __call__(self, *arguments: Any) -> Any:
        if not self._of or arguments[0] == self._of:
            self.reached.set()
            if not self.open.wait(LIMIT_S):
                raise AssertionError("nobody opens the gate")
        self.passed += 1
        return self._function(*arguments)


def openings_end() -> None:
    """Waits until no thread opens anything."""
    for thread in threading.enumerate():
        if thread.name == "rackline_open":
            thread.join(LIMIT_S)


class Adapter(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("32MiB", "16KiB"))

    def adapter(self, **settings: Any) -> RacklineL2Adapter:
        given = {"region": self.region.path, "node": 0, "model_id": "tiny", **settings}
        made = RacklineL2Adapter(given)
        # As the server does when it has made one: what it sets must not be the adapter's own.
        made.set_backend_identity("plugin")
        self.addCleanup(made.close)
        return made

    def gate(self, what: str, function: Any, of: str = "") -> Gate:
        """Before a function that the module of the openings calls."""
        made = Gate(function, of)
        self.enterContext(mock.patch(f"rackline.lmcache.l2_openings.{what}", made))
        self.addCleanup(made.open.set)
        return made

    def store(self, own: RacklineL2Adapter, names: list[ObjectKey], items: list[Any]) -> Any:
        number = own.submit_store_task(names, items)
        return result(own.pop_completed_store_tasks)[number]

    def lookup(
        self, own: RacklineL2Adapter, names: list[ObjectKey], dtype: torch.dtype = torch.float16
    ) -> list[int]:
        number = own.submit_lookup_and_lock_task(names, {0: MemoryLayoutDesc([SHAPE], [dtype])})
        found = result(lambda: own.query_lookup_and_lock_result(number))
        own.submit_unlock(names)
        return [place for place in range(len(names)) if found.test(place)]

    def load(self, own: RacklineL2Adapter, names: list[ObjectKey], items: list[Any]) -> list[int]:
        number = own.submit_load_task(names, items)
        loaded = result(lambda: own.query_load_result(number))
        return [place for place in range(len(names)) if loaded.test(place)]

    def test_what_one_stores_another_loads_and_nobody_else(self) -> None:
        own = self.adapter()
        stored = self.store(own, keys(3), [item(1), item(2), item(3)])
        self.assertTrue(stored.is_successful())
        self.assertEqual(stored.bytes_transferred(), 3 * item(0).get_size())

        other = self.adapter()
        self.assertEqual(self.lookup(other, keys(4)), [0, 1, 2])
        places = [item(0) for _ in range(4)]
        self.assertEqual(self.load(other, keys(4), places), [0, 1, 2])
        for place, fill in zip(places, (1, 2, 3, 0), strict=True):
            self.assertTrue(bool((place.raw_data == fill).all()))

        self.assertEqual(self.lookup(other, keys(3), dtype=torch.bfloat16), [])
        self.assertEqual(self.load(other, keys(3), [item(0, torch.bfloat16)] * 3), [])
        for names in [
            keys(3, model_name="large"),
            keys(3, kv_rank=1),
            keys(3, cache_salt="a"),
        ]:
            self.assertEqual(self.lookup(other, names), [])
        for settings in [{"tenant": "b"}, {"model_id": "finer"}]:
            self.assertEqual(self.lookup(self.adapter(**settings), keys(3)), [])

    def test_what_is_there_already_is_not_counted_as_stored(self) -> None:
        own = self.adapter()
        self.store(own, keys(3), [item(1), item(2), item(3)])
        again = self.store(own, keys(4), [item(1), item(2), item(3), item(4)])
        self.assertTrue(again.is_successful())
        self.assertEqual(again.bytes_transferred(), item(0).get_size())
        self.assertEqual(own.get_usage().total_bytes_used, 4 * item(0).get_size())
        self.assertEqual(own.counters(), {"saved_blocks": 4, "already_there_blocks": 3})

    def test_a_model_that_is_being_opened_stops_no_other(self) -> None:
        gate = self.gate("digest_of_folder", lambda name: name, of="large")
        own = self.adapter(model_id="", lookup_timeout_ms=200)
        large = [keys(1, model_name="large", cache_salt=str(task)) for task in range(9)]
        self.assertGreater(len(large), STORES_AT_ONCE + LOADS_AT_ONCE)
        stores = [own.submit_store_task(names, [item(7)]) for names in large]
        self.assertTrue(gate.reached.wait(LIMIT_S))
        for names in large:
            # It is not waited for any longer than for a lookup, and there is nothing of it.
            self.assertEqual(self.lookup(own, names), [])
            self.assertEqual(self.load(own, names, [item(0)]), [])

        # More than there are threads wait for the one; the other is stored and found.
        self.assertTrue(self.store(own, keys(2), [item(1), item(2)]).is_successful())
        self.assertEqual(self.lookup(own, keys(2)), [0, 1])
        self.assertEqual(self.load(own, keys(2), [item(0), item(0)]), [0, 1])
        status = own.report_status()
        self.assertEqual((status["is_healthy"], status["opening"]), (True, ["large"]))
        self.assertEqual(own.pop_completed_store_tasks(), {})

        # What LMCache wanted to be stored meanwhile, and will not offer again, is stored now.
        gate.open.set()
        done: dict[int, Any] = {}
        while len(done) < len(stores):
            done.update(result(own.pop_completed_store_tasks))
        self.assertTrue(all(done[number].is_successful() for number in stores))
        for names in large:
            self.assertEqual(self.lookup(own, names), [0])
        place = item(0)
        self.assertEqual(self.load(own, large[8], [place]), [0])
        self.assertTrue(bool((place.raw_data == 7).all()))
        self.assertEqual(own.report_status()["opening"], [])

    def test_what_has_waited_for_too_long_is_not_stored(self) -> None:
        """LMCache keeps its memory for so long only: another chunk is there, under its name."""
        gate = self.gate("digest_of_folder", lambda name: name)
        own = self.adapter(model_id="", task_timeout_ms=400)
        waits = item(1)
        self.assertFalse(self.store(own, keys(1), [waits]).is_successful())
        waits.raw_data.fill_(2)
        gate.open.set()
        openings_end()
        self.assertEqual(self.lookup(own, keys(1)), [])
        # Put off for less than that, but then no thread had time for it.
        with mock.patch.object(time, "monotonic", lambda now=time.monotonic: now() - 1):
            number = own.submit_store_task(keys(1), [waits])
        self.assertFalse(result(own.pop_completed_store_tasks)[number].is_successful())
        # Nor what LMCache has given up.
        waits.invalidate()
        self.assertFalse(self.store(own, keys(1), [waits]).is_successful())
        self.assertEqual(self.lookup(own, keys(1)), [])
        self.assertTrue(self.store(own, keys(1), [item(1)]).is_successful())

    def test_a_lookup_waits_for_a_model_that_is_open_soon(self) -> None:
        self.store(self.adapter(model_id="large"), keys(1), [item(1)])
        gate = self.gate("digest_of_folder", lambda name: "large")
        own = self.adapter(model_id="", lookup_timeout_ms=LIMIT_S * 1000)
        number = own.submit_lookup_and_lock_task(
            keys(1), {0: MemoryLayoutDesc([SHAPE], [torch.float16])}
        )
        self.assertTrue(gate.reached.wait(LIMIT_S))
        self.assertIsNone(own.query_lookup_and_lock_result(number))
        gate.open.set()
        self.assertTrue(result(lambda: own.query_lookup_and_lock_result(number)).test(0))

    def test_the_weights_of_a_model_are_read_once(self) -> None:
        gate = self.gate("digest_of_folder", lambda name: name)
        own = self.adapter(model_id="")
        ranks = [keys(1, kv_rank=rank) for rank in range(4)]
        for names in ranks:
            own.submit_store_task(names, [item(1)])
        gate.open.set()
        done: dict[int, Any] = {}
        while len(done) < len(ranks):
            done.update(result(own.pop_completed_store_tasks))
        self.assertTrue(all(end.is_successful() for end in done.values()))
        self.assertEqual(gate.passed, 1)

    def test_nothing_is_opened_once_it_is_closed(self) -> None:
        weights = self.gate("digest_of_folder", lambda name: name)
        opened = self.gate("SharedBlocks", SharedBlocks)
        opened.open.set()
        own = self.adapter(model_id="")
        number = own.submit_store_task(keys(1), [item(1)])
        self.assertTrue(weights.reached.wait(LIMIT_S))
        # Does not wait for the weights.
        own.close()
        self.assertFalse(own.pop_completed_store_tasks()[number].is_successful())
        late = object_form(keys(1, kv_rank=1)[0], [SHAPE], [torch.float16])
        self.assertTrue(own._openings.of(late).opened.done())
        weights.open.set()
        openings_end()
        self.assertEqual(opened.passed, 0)
        # Nothing keeps the process attached, which may attach with other options.
        self.adapter(queue_depth=16)

    def test_the_server_ends_while_weights_are_read(self) -> None:
        subprocess.run([sys.executable, "-c", ENDS_WHILE_IT_READS], check=True, timeout=LIMIT_S)

    def test_what_is_being_opened_when_it_is_closed_is_closed(self) -> None:
        opened = self.gate("SharedBlocks", SharedBlocks)
        own = self.adapter()
        number = own.submit_store_task(keys(1), [item(1)])
        self.assertTrue(opened.reached.wait(LIMIT_S))
        closing = threading.Thread(target=own.close)
        closing.start()
        # It would end here if it did not wait for what is being opened.
        closing.join(0.2)
        opened.open.set()
        closing.join(LIMIT_S)
        openings_end()
        self.assertIn(number, own.pop_completed_store_tasks())
        self.adapter(queue_depth=16)

    def test_hosts_whose_cpus_order_bytes_in_other_ways_share_nothing(self) -> None:
        own, on_gpu = self.adapter(), self.adapter(engines_on_gpu=True)
        self.store(own, keys(1), [item(1)])
        self.assertEqual(self.lookup(on_gpu, keys(1)), [])
        self.store(on_gpu, keys(1), [item(1)])
        amx = torch.cpu._is_amx_tile_supported()
        for what, other in [
            ("torch.cpu._is_amx_tile_supported", not amx),
            ("platform.machine", "another"),
        ]:
            with self.subTest(what), mock.patch(what, lambda other=other: other):
                self.assertEqual(self.lookup(self.adapter(), keys(1)), [])
                self.assertEqual(self.lookup(self.adapter(engines_on_gpu=True), keys(1)), [0])
        self.assertEqual(self.lookup(self.adapter(), keys(1)), [0])

    def test_damaged_objects_are_misses(self) -> None:
        own = self.adapter()
        self.store(own, keys(2), [item(1), item(2)])
        self.assertGreater(damage(self.region), 0)
        self.assertEqual(self.load(own, keys(2), [item(0), item(0)]), [])
        self.assertEqual(own.counters()["miss_checksum"], 2)

    def test_nothing_is_raised_after_the_start(self) -> None:
        # Nothing says which weights these are.
        own = RacklineL2Adapter({"region": self.region.path, "node": 0})
        self.assertFalse(self.store(own, keys(1), [item(1)]).is_successful())
        self.assertEqual(self.lookup(own, keys(1)), [])
        own.submit_unlock(keys(1))
        self.assertTrue(self.adapter().report_status()["is_healthy"])
        status = own.report_status()
        self.assertFalse(status["is_healthy"])
        self.assertEqual(list(status["not_shared"]), ["tiny"])
        self.assertIn('set "model_id"', status["not_shared"]["tiny"])
        own.close()
        self.assertFalse(self.store(own, keys(1), [item(1)]).is_successful())
        self.assertEqual(self.lookup(own, keys(1)), [])
        self.assertEqual(self.lookup(own, keys(1, kv_rank=1)), [])

    def test_a_model_without_a_thread_to_open_it_is_not_waited_for(self) -> None:
        own = self.adapter()
        no_more = mock.Mock(side_effect=RuntimeError("no more threads"))
        threads = mock.Mock(wraps=threading, Thread=lambda **_: mock.Mock(start=no_more))
        with mock.patch("rackline.lmcache.l2_openings.threading", threads):
            self.assertFalse(self.store(own, keys(1), [item(1)]).is_successful())
        self.assertEqual(own.report_status()["not_shared"], {"tiny": "no more threads"})

    def test_what_cannot_be_is_refused_in_words(self) -> None:
        with self.assertRaisesRegex(SettingsError, 'set "region" and "node" in adapter_params'):
            RacklineL2Adapter({})
        with self.assertRaisesRegex(SettingsError, '"task_timeout_ms" is 0: at least 100'):
            self.adapter(task_timeout_ms=0)
        with self.assertRaisesRegex(SettingsError, "unknown settings"):
            self.adapter(saves_max=1)

    def test_nothing_of_the_interface_is_overwritten(self) -> None:
        class Nothing(RacklineL2Adapter):
            def __init__(self) -> None:
                L2AdapterInterface.__init__(self)

        made = RacklineL2Adapter({"region": self.region.path, "node": 0})
        self.addCleanup(made.close)
        theirs, own = vars(Nothing()), vars(made)
        for name, value in theirs.items():
            self.assertIs(type(own[name]), type(value), name)

    def test_methods_are_those_of_the_interface(self) -> None:
        for name in L2AdapterInterface.__abstractmethods__:
            wanted = inspect.signature(getattr(L2AdapterInterface, name))
            got = inspect.signature(getattr(RacklineL2Adapter, name))
            self.assertEqual(list(got.parameters), list(wanted.parameters), name)


if __name__ == "__main__":
    unittest.main()
