"""The storage backend, made by SGLang's own factory, on SGLang's own host pools, called by the methods
of its own controller."""

from __future__ import annotations

from host_pool import PAGES, indices, mha, mla, page  # isort: skip

import hashlib
import inspect
import json
import pathlib
import subprocess
import sys
import threading
import types
import unittest
from unittest import mock

import torch
from pool import damage
from region import Region
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
    count_pool_hits,
)
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.storage import StorageBackendFactory

HERE = pathlib.Path(__file__).resolve().parent
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")


def keys(count: int, seed: int = 0) -> list[str]:
    """SGLang's are chained SHA-256 in hexadecimal."""
    return [hashlib.sha256(f"{seed} {number}".encode()).hexdigest() for number in range(count)]


def storage(pool, settings: dict, **config) -> HiCacheStorage:
    """A backend as SGLang makes it at start."""
    extra = {
        "backend_name": "rackline",
        "module_path": "rackline.sglang",
        "class_name": "RacklineStorage",
        "interface_v1": True,
        **settings,
    }
    defaults = dict(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=pool.layout == "page_first",
        model_name="tiny",
    )
    told = HiCacheStorageConfig(extra_config=extra, **{**defaults, **config})
    made = StorageBackendFactory.create_backend("dynamic", told, pool)
    made.register_mem_pool_host(pool)
    made.register_mem_host_pool_v2(pool, "kv")
    made.on_host_pools_registered()
    return made


def controller(own: HiCacheStorage) -> types.SimpleNamespace:
    """What the controller's methods for pages look at."""
    operation = types.SimpleNamespace(request_id="request", is_terminated=lambda: False)
    told = types.SimpleNamespace(
        storage_backend=own,
        storage_host_pool=own.mem_pool_host,
        page_size=own.mem_pool_host.page_size,
    )
    return types.SimpleNamespace(told=told, operation=operation)


class Interface(unittest.TestCase):
    def test_it_is_what_sglang_asks_for(self) -> None:
        from rackline.sglang import RacklineStorage

        self.assertTrue(issubclass(RacklineStorage, HiCacheStorage))
        self.assertEqual(RacklineStorage.__abstractmethods__, frozenset())
        shared = [name for name in vars(RacklineStorage) if hasattr(HiCacheStorage, name)]
        named = ("batch_get_v1", "batch_set_v1", "batch_exists", "get", "set", "clear")
        for name in (*named, "batch_get_v2", "batch_set_v2", "batch_exists_v2"):
            self.assertIn(name, shared)
        for name in shared:
            theirs = getattr(HiCacheStorage, name)
            if inspect.isfunction(theirs) and not name.startswith("_"):
                with self.subTest(name):
                    wanted = list(inspect.signature(theirs).parameters)
                    own = inspect.signature(getattr(RacklineStorage, name))
                    self.assertEqual(list(own.parameters), wanted)


class Storage(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("64MiB", "16KiB"))
        # As in a process of its own.
        fresh = mock.patch("rackline.sglang.storage._cleared", threading.Event())
        self.enterContext(fresh)

    def settings(self, node: int = 0, **more) -> dict:
        return {"region": self.region.path, "node": node, "model_id": "tiny", **more}

    def storage(self, pool, node: int = 0, *, given: dict | None = None, **config):
        own = storage(pool, self.settings(node, **(given or {})), **config)
        self.addCleanup(own.close)
        return own

    def fill(self, pool, pages: list[int], **options) -> list[str]:
        """A backend of node 0 stores these pages."""
        names = keys(len(pages))
        own = self.storage(pool, **options)
        self.assertEqual(own.batch_set_v1(names, indices(pool, pages)), [True] * len(pages))
        return names

    def assert_not_found(self, own: HiCacheStorage, names: list[str]) -> None:
        self.assertEqual(own.batch_exists(names), 0)
        got = own.batch_get_v1(names, indices(own.mem_pool_host, list(range(len(names)))))
        self.assertEqual(got, [False] * len(names))

    def test_pages_of_every_layout_come_back_byte_for_byte(self) -> None:
        made = [(layout, mha, {}) for layout in LAYOUTS]
        made += [(layout, mla, {"is_mla_model": True}) for layout in LAYOUTS[:3]]
        for layout, make, config in made:
            with self.subTest(layout, make=make.__name__):
                full, empty = make(layout, seed=1), make(layout)
                # A tenant each: the keys are the same.
                given = {"tenant": f"{layout} {make.__name__}"}
                first = controller(self.storage(full, 0, given=given, **config))
                second = controller(self.storage(empty, 1, given=given, **config))
                names, source, target = keys(4), [7, 2, 9, 4], [0, 11, 3, 5]
                self.assertTrue(
                    HiCacheController._page_set_zero_copy(
                        first.told, names, indices(full, source), HiCacheStorageExtraInfo()
                    )
                )
                self.assertEqual(second.told.storage_backend.batch_exists(names + keys(1, 9)), 4)
                got = HiCacheController._page_get_zero_copy(
                    second.told, second.operation, names, indices(empty, target)
                )
                self.assertEqual(got, 4)
                for here, there in zip(source, target, strict=True):
                    self.assertEqual(page(full, here), page(empty, there))
                for other in set(range(PAGES)) - set(target):
                    self.assertEqual(page(empty, other), bytes(len(page(empty, other))))

    def test_pages_that_are_made_flat_come_back(self) -> None:
        for layout in ("layer_first", "page_first"):
            with self.subTest(layout):
                given = {"tenant": layout, "interface_v1": False}
                full, empty = mha(layout, seed=2), mha(layout)
                first = controller(self.storage(full, 0, given=given))
                second = controller(self.storage(empty, 1, given=given))
                names = keys(3)
                stored = HiCacheController._generic_page_set(
                    first.told, names, indices(full, [3, 1, 8])
                )
                self.assertTrue(stored)
                got = HiCacheController._generic_page_get(
                    second.told, second.operation, names + keys(1, 9), indices(empty, [2, 0, 5, 6])
                )
                self.assertEqual(got, 3)
                for here, there in zip([3, 1, 8], [2, 0, 5], strict=True):
                    self.assertEqual(page(full, here), page(empty, there))
                # In the order of the host pool they are other bytes.
                self.assert_not_found(
                    self.storage(mha(layout), 1, given={**given, "interface_v1": True}), names
                )

    def test_another_process_gets_what_one_stored(self) -> None:
        full = mha(seed=3)
        names = self.fill(full, [5, 6, 7])
        told = {"layout": "page_first", "settings": self.settings(1), "keys": names + keys(1, 9)}
        ran = subprocess.run(
            [sys.executable, HERE / "page_process.py", json.dumps(told)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        got = json.loads(ran.stdout.splitlines()[-1])
        self.assertEqual((got["found"], got["got"]), (3, [True, True, True, False]))
        expected = [hashlib.sha256(page(full, number)).hexdigest() for number in (5, 6, 7)]
        self.assertEqual(got["digests"][:3], expected)

    def test_what_differs_is_not_found(self) -> None:
        names = self.fill(mha(seed=4), [0, 1, 2])
        for what, pool, given, config in [
            ("tenant", mha(), {"tenant": "b"}, {}),
            ("model", mha(), {"model_id": "another"}, {}),
            ("layout", mha("page_first_direct"), {}, {}),
            ("page", mha(page_tokens=32), {}, {}),
            ("type", mha(dtype=torch.bfloat16), {}, {}),
            ("rank", mha(), {}, {"tp_rank": 1, "tp_size": 2}),
            ("ranks", mha(), {}, {"tp_rank": 0, "tp_size": 2}),
            ("stage", mha(), {}, {"pp_rank": 0, "pp_size": 2}),
            ("context", mha(), {}, {"attn_cp_rank": 0, "attn_cp_size": 2}),
        ]:
            with self.subTest(what):
                self.assert_not_found(self.storage(pool, 1, given=given, **config), names)
        self.assertEqual(self.storage(mha(), 1).batch_exists(names), 3)

    def test_ranks_have_one_copy_with_mla_and_their_own_without(self) -> None:
        full = mla(seed=5)
        own = self.storage(full, is_mla_model=True, tp_rank=0, tp_size=2)
        names = keys(2)
        self.assertEqual(own.batch_set_v1(names, indices(full, [1, 2])), [True, True])
        other = mla()
        second = self.storage(other, 1, is_mla_model=True, tp_rank=1, tp_size=2)
        self.assertEqual(second.batch_get_v1(names, indices(other, [8, 9])), [True, True])
        self.assertEqual(page(other, 9), page(full, 2))

        sharded = mha(seed=6)
        own = self.storage(sharded, tp_rank=0, tp_size=2)
        self.assertEqual(own.batch_set_v1(names, indices(sharded, [1, 2])), [True, True])
        self.assert_not_found(self.storage(mha(), 1, tp_rank=1, tp_size=2), names)

    def test_damaged_pages_are_misses(self) -> None:
        names = self.fill(mha(seed=7), [0, 1, 2])
        self.assertGreater(damage(self.region), 0)
        own = self.storage(mha(), 1)
        got = own.batch_get_v1(names, indices(own.mem_pool_host, [0, 1, 2]))
        self.assertEqual(got, [False] * 3)
        counted = own.counters()
        self.assertEqual(counted["missed_blocks"], 3, counted)
        self.assertEqual(counted["miss_checksum"], 3, counted)

    def test_a_prefix_ends_at_the_first_miss(self) -> None:
        names = self.fill(mha(seed=8), [0, 1, 2])
        with_a_gap = [names[0], keys(1, 9)[0], names[2]]
        own = self.storage(mha(), 1)
        self.assertEqual(own.batch_exists(with_a_gap), 1)
        got = own.batch_get_v1(with_a_gap, indices(own.mem_pool_host, [0, 1, 2]))
        self.assertEqual(got, [True, False, False])

    def test_what_is_no_page_is_refused_without_an_error(self) -> None:
        names = self.fill(mha(seed=9), [0, 1])
        own = self.storage(mha(), 1)
        pool = own.mem_pool_host
        for wrong in (
            indices(pool, [0, 1]) + 1,
            indices(pool, [0]),
            indices(pool, [0, 1]).flip(0),
            None,
        ):
            with self.assertLogs("rackline.sglang", "ERROR"):
                self.assertEqual(own.batch_get_v1(names, wrong), [False, False])
                self.assertEqual(own.batch_set_v1(names, wrong), [False, False])
        self.assertEqual(own.batch_get(names, [torch.zeros(3)] * 2), [None, None])
        self.assertFalse(own.set(names[0], torch.zeros(3)))
        own.close()
        self.assert_not_found(own, names)
        self.assertEqual(own.batch_set_v1(names, indices(pool, [0, 1])), [False, False])

    def test_after_a_clear_nothing_is_shared(self) -> None:
        names = self.fill(mha(seed=10), [0, 1])
        own = self.storage(mha(), 1)
        self.assertEqual(own.batch_exists(names), 2)
        self.assertTrue(own.clear())
        self.assert_not_found(own, names)
        self.assertFalse(any(own.batch_set_v1(keys(2, 5), indices(own.mem_pool_host, [0, 1]))))
        # Detached and attached it is another backend, of a process that may have new weights.
        own.close()
        with self.assertRaisesRegex(Exception, "start the engine anew"):
            self.storage(mha(), 1)
        with mock.patch("rackline.sglang.storage._cleared", threading.Event()):
            self.assertEqual(self.storage(mha(), 1).batch_exists(names), 2, "it is the others' too")

    def test_what_runs_on_after_a_refused_pool_misses(self) -> None:
        """SGLang registers its pools when its threads run, and a refusal at run time stops none."""
        names = self.fill(mha(seed=13), [0, 1])
        own = self.storage(mha(), 1)
        with self.assertRaisesRegex(ValueError, "hybrid models"):
            own.register_mem_host_pool_v2(mha(), PoolName.MAMBA)
        moved = [PoolTransfer(PoolName.MAMBA, keys=names), PoolTransfer(PoolName.SWA)]
        operation = types.SimpleNamespace(
            token_ids=list(range(32)), last_hash=None, assume_stored=False, prefix_keys=None,
            pool_transfers=moved, pool_storage_result=PoolTransferResult.empty(),
        )
        told = types.SimpleNamespace(storage_backend=own, page_size=16)
        # Their hash is compiled where it runs.
        with mock.patch(f"{HybridCacheController.__module__}.get_storage_hash_str") as hashes:
            hashes.return_value = names
            found = HybridCacheController._storage_hit_query(told, operation)
        self.assertEqual(found, ([], 0))
        self.assertIsNone(operation.pool_storage_result.restorable_prefix_pages)
        for call in (own.batch_get_v2, own.batch_set_v2):
            got = call(moved, HiCacheStorageExtraInfo())
            self.assertEqual(got, {PoolName.MAMBA: [False, False], PoolName.SWA: []})
            self.assertEqual(count_pool_hits(got), {PoolName.MAMBA: 0, PoolName.SWA: 0})
        self.assert_not_found(own, names)

    def test_a_full_pool_makes_room(self) -> None:
        small = self.enterContext(Region("4MiB", "16KiB"))
        full = mha(seed=11)
        own = storage(full, self.settings(region=small.path))
        self.addCleanup(own.close)
        for seed in range(60):
            stored = own.batch_set_v1(keys(PAGES, seed), indices(full, list(range(PAGES))))
            self.assertEqual(stored, [True] * PAGES)
        self.assertGreater(own.counters()["saved_blocks"], 4 << 20 >> 14)

    def test_metrics_are_those_of_sglang(self) -> None:
        full = mha(seed=12)
        own = self.storage(full, enable_storage_metrics=True)
        own.batch_set_v1(keys(3), indices(full, [0, 1, 2]))
        own.batch_get_v1(keys(3), indices(full, [3, 4, 5]))
        stats = own.get_stats()
        self.assertEqual((stats.backup_pgs, stats.prefetch_pgs), ([3], [3]))
        self.assertGreater(stats.prefetch_bandwidth[0], 0)
        self.assertEqual(own.get_stats().prefetch_pgs, [], "told once")

    def test_what_cannot_work_is_refused_in_words(self) -> None:
        good = self.settings()
        for pool, settings, config, message in [
            (mha(), {"node": 0}, {}, 'set "region" and "node"'),
            (mha(), {**good, "nod": 1}, {}, "unknown settings"),
            (mha(), {**good, "model_id": ""}, {}, 'set "model_id"'),
            (mha(), {**good, "region": "/nonexistent"}, {}, "/nonexistent"),
            (mha(), good, {"should_split_heads": True}, "tp_lcm_size"),
        ]:
            with self.subTest(message), self.assertRaisesRegex(Exception, message):
                storage(pool, settings, **config)
        own = self.storage(mha())
        with self.assertRaisesRegex(ValueError, "hybrid models"):
            own.register_mem_host_pool_v2(mha(), "mamba")
        self.assertEqual(own.batch_exists(keys(1)), 0, "and it does nothing from then on")


if __name__ == "__main__":
    unittest.main()
