"""The adapter of LMCache's server, called as its controllers call it."""

from __future__ import annotations

import inspect
import time
import unittest
from typing import Any

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from pool import damage
from rackline.engines.settings import SettingsError
from rackline.lmcache.l2_adapter import RacklineL2Adapter
from region import Region

SHAPE = torch.Size([2, 3, 16, 64])
LIMIT_S = 60


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


class Adapter(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("32MiB", "16KiB"))

    def adapter(self, **settings: Any) -> RacklineL2Adapter:
        given = {"region": self.region.path, "node": 0, "model_id": "tiny", **settings}
        made = RacklineL2Adapter(given)
        self.addCleanup(made.close)
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
        own.close()
        self.assertTrue(own.report_status()["is_healthy"])

    def test_what_cannot_be_is_refused_in_words(self) -> None:
        with self.assertRaisesRegex(SettingsError, 'set "region" and "node" in adapter_params'):
            RacklineL2Adapter({})
        with self.assertRaisesRegex(SettingsError, "unknown settings"):
            self.adapter(saves_max=1)

    def test_methods_are_those_of_the_interface(self) -> None:
        for name in L2AdapterInterface.__abstractmethods__:
            wanted = inspect.signature(getattr(L2AdapterInterface, name))
            got = inspect.signature(getattr(RacklineL2Adapter, name))
            self.assertEqual(list(got.parameters), list(wanted.parameters), name)


if __name__ == "__main__":
    unittest.main()
