"""What of each group of KV caches is loaded and saved: with vLLM's own manager of blocks, and a stand-in for
the pool and the worker. Also of models that vLLM's build for CPUs does not run."""

from __future__ import annotations

import time
import types
import unittest
from typing import Any
from unittest import mock

import rackline
import torch
from rackline.vllm.groups import Groups, Keeps
from rackline.vllm.identity import Place
from rackline.vllm.messages import GroupLoaded, Loaded, Report, Saved
from rackline.vllm.scheduler import SchedulerHalf
from rackline.vllm.settings import Settings
from test_failed_loads import ENGINE, GIVEN
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

HEADS = dict(num_kv_heads=1, head_size=8, dtype=torch.float32)
FULL = FullAttentionSpec(block_size=4, **HEADS)
STATE = MambaSpec(
    block_size=4, shapes=((4, 8),), dtypes=(torch.float32,), mamba_cache_mode="align"
)
KINDS = {
    "full": [FULL],
    "window": [SlidingWindowSpec(block_size=4, sliding_window=10, **HEADS)],
    "full and windows": [
        FULL,
        SlidingWindowSpec(block_size=4, sliding_window=8, **HEADS),
        SlidingWindowSpec(block_size=4, sliding_window=13, **HEADS),
    ],
    # As with a draft of several layers (MTP), whose first tokens vLLM computes again.
    "window and more": [
        FULL,
        SlidingWindowSpec(block_size=4, sliding_window=8, extra_retained_tokens=3, **HEADS),
    ],
    "full and chunk": [FULL, ChunkedLocalAttentionSpec(block_size=4, attention_chunk_size=12, **HEADS)],
    "full and state": [STATE, FULL],
    "blocks of different lengths": [
        FullAttentionSpec(block_size=8, **HEADS),
        SlidingWindowSpec(block_size=4, sliding_window=9, **HEADS),
    ],
    # A latent cache, its indexer's cache beside it, and latent windows, as DeepSeek has them.
    "sparse latent": [
        MLAAttentionSpec(block_size=16, **HEADS),
        MLAAttentionSpec(block_size=16, **{**HEADS, "head_size": 4}, tokens_per_state=4),
        SlidingWindowMLASpec(block_size=8, sliding_window=20, **HEADS),
    ],
}


def caches(specs: list[Any], retention: int | None = None) -> KVCacheConfig:
    groups = [KVCacheGroupSpec([f"layers.{number}"], spec) for number, spec in enumerate(specs)]
    return KVCacheConfig(200, [], groups, prefix_cache_retention_interval=retention)


def handles_of(hashes: list[bytes]) -> bytes:
    """What stands for the handles of these blocks, without their keys."""
    length = rackline.KEYLESS_HANDLE_BYTES
    return b"".join(each[:length].ljust(length, b"-") for each in hashes)


class Lookup:
    def __init__(self, found: Any) -> None:
        self._found = found

    def wait(self, timeout_ms: int | None = None) -> Any:
        return self._found


class Prefix:
    reason = message = None

    def __init__(self, hashes: list[bytes], restored: int = 0) -> None:
        self.hashes, self.held, self.restored = hashes, True, restored

    def __len__(self) -> int:
        return len(self.hashes)

    def keyless_handles(self) -> bytes:
        return handles_of(self.hashes)

    def release(self) -> None:
        self.held = False


class Session:
    """Of one part, with the blocks that it has in the pool and on drives by their hashes."""

    key_space = b"a space"

    def __init__(self) -> None:
        self.blocks: set[bytes] = set()
        self.on_drives: set[bytes] = set()
        self.late: set[bytes] = set()
        """Of those on drives the blocks that do not come in time."""
        self.prefixes: list[Prefix] = []
        self.prefetched: list[list[bytes]] = []

    @staticmethod
    def _each(hashes: bytes) -> list[bytes]:
        return [hashes[start : start + 32] for start in range(0, len(hashes), 32)]

    def lookup(self, hashes: bytes, hold: bool, restore_wait_ms: int = 0, **_: int) -> Lookup:
        found: list[bytes] = []
        restored, late = 0, False
        for each in self._each(hashes):
            if each not in self.blocks:
                late = restore_wait_ms > 0 and each in self.late
                if restore_wait_ms == 0 or late or each not in self.on_drives:
                    break
                self.blocks.add(each)
                restored += 1
            found.append(each)
        self.prefixes.append(Prefix(found, restored))
        if late:
            self.prefixes[-1].reason = "restore_late"
        return Lookup(self.prefixes[-1])

    def prefetch(self, hashes: bytes, wait_ms: int, recompute_us: int = 0) -> Any:
        self.prefetched.append(self._each(hashes))
        told = types.SimpleNamespace(asked=1, not_asked=0, reason=None, message=None)
        return mock.Mock(**{"wait.return_value": told})

    def report_forwards(self) -> Any:
        return mock.Mock()

    def present(self, hashes: bytes, drives: bool = False) -> Lookup:
        there = self.blocks | self.on_drives if drives else self.blocks
        return Lookup(bytes(each in there for each in self._each(hashes)))

    def evict(self) -> None:
        """All blocks leave the pool, and are on drives."""
        self.on_drives |= self.blocks
        self.blocks.clear()


class Engine:
    """vLLM's manager of blocks and the connector's half in the scheduler, with parts that are no more than
    their hashes. Two ranks."""

    def __init__(
        self,
        specs: list[Any],
        retention: int | None = None,
        drives: bool = False,
        **settings: Any,
    ) -> None:
        config = caches(specs, retention)
        sizes = dict(
            parallel_config=types.SimpleNamespace(
                tensor_parallel_size=2, pipeline_parallel_size=1, decode_context_parallel_size=1
            ),
            cache_config=types.SimpleNamespace(
                block_size=specs[0].block_size,
                prefix_match_unit=None,
                enable_prefix_caching=True,
                prefix_caching_hash_algo="sha256",
            ),
        )
        vllm_config = types.SimpleNamespace(**{**vars(ENGINE), **sizes})
        self.unit, self.hash_tokens = resolve_kv_cache_block_sizes(config, vllm_config)
        self.manager = KVCacheManager(
            config,
            max_model_len=1024,
            max_in_flight_tokens=1024,
            scheduler_block_size=self.unit,
            hash_block_size=self.hash_tokens,
        )
        self.places = [Place(group, 0, rank) for group in range(len(specs)) for rank in range(2)]
        self.sessions = {place: Session() for place in self.places}
        with mock.patch("rackline.vllm.scheduler.Attachment") as attachment:
            opened = iter(self.sessions.values())
            attachment.return_value.life = 0
            attachment.return_value.pool.has_drives = drives
            attachment.return_value.pool.session.side_effect = lambda *_, **__: next(opened)
            self.half = SchedulerHalf(vllm_config, config, Settings.of({**GIVEN, **settings}))
            identities = [mock.Mock(place=place, places=2) for place in self.places]
            # In the order of the places.
            self.half._index.open_all(identities)
            self.half.sessions_of(
                {
                    (0, rank): [each for each in identities if each.place.heads == rank]
                    for rank in range(2)
                }
            )
        self.half.bind(self.manager)
        self.groups = self.half._groups

    def request(self, name: str, length: int, first: int = 0) -> Request:
        init_none_hash(sha256)
        hasher = get_request_block_hasher(self.hash_tokens, sha256)
        tokens = [(first + number) % 97 for number in range(length)]
        params = SamplingParams(max_tokens=8)
        return Request(name, tokens, params, None, block_hasher=hasher)

    def compute(self, request: Request, tokens: int) -> list[Any]:
        """A step that computes so many tokens more of a request; its saves."""
        assert self.manager.allocate_slots(request, tokens) is not None
        state = types.SimpleNamespace(
            get_block_ids=self.manager.get_block_ids,
            boundary_state_offloads=self.manager.take_boundary_state_offloads(),
        )
        step = self.half.build_step(
            types.SimpleNamespace(
                preempted_req_ids=None,
                num_scheduled_tokens={request.request_id: tokens},
                kv_connector_block_state=state,
            )
        )
        request.num_computed_tokens += tokens
        return step.saves

    def save(self, jobs: list[Any]) -> None:
        """Both ranks save all of it."""
        for job in jobs:
            for place in self.places:
                if place.group == job.group:
                    self.sessions[place].blocks |= set(Session._each(job.hashes))
            self.half.reported(Report(saved={job.job: Saved(2, True)}))

    def fill(self, length: int, step_tokens: int = 1024) -> None:
        request = self.request("fills", length)
        self.half.on_new_request(request)
        while request.num_computed_tokens < length:
            # vLLM ends a step where a block ends, where a model has states.
            tokens = min(step_tokens, length - request.num_computed_tokens)
            if any(group.exact_blocks for group in self.groups.groups) and tokens > self.unit:
                tokens -= (request.num_computed_tokens + tokens) % self.unit
            self.save(self.compute(request, tokens))
        self.half.request_finished(request)
        self.manager.free(request)
        self.manager.reset_prefix_cache()

    def found(self, request: Request, local_tokens: int = 0) -> int:
        self.half.on_new_request(request)
        found, _ = self.half.matched_tokens(request, local_tokens)
        return found

    def load(self, request: Request, found: int) -> Any:
        """What is loaded for a request of which so many tokens were found."""
        blocks = self.manager.allocate_slots(
            request, 0, num_external_computed_tokens=found, delay_cache_blocks=True
        )
        assert blocks is not None
        self.half.allocated(request, self.manager.get_blocks(request.request_id), found)
        (job,) = self.half._step.loads
        self.half._step.loads.clear()
        return job

    def held(self) -> int:
        prefixes = [each for session in self.sessions.values() for each in session.prefixes]
        return sum(prefix.held for prefix in prefixes)


class EveryKind(unittest.TestCase):
    def test_what_is_loaded_is_what_vllm_gives_blocks_for(self) -> None:
        """Every block, and no other; with the hash that says what is in it."""
        for kind, specs in KINDS.items():
            for length in (17, 33, 50, 64, 65, 101):
                with self.subTest(kind, length=length):
                    own = Engine(specs)
                    own.fill(length, step_tokens=24)
                    request = own.request("loads", length)
                    found = own.found(request)
                    longest = (length - 1) // own.unit * own.unit
                    # A step that ends with the prompt's last block leaves no state before that.
                    without_state = kind == "full and state" and length == 64
                    self.assertEqual(found, 48 if without_state else longest)
                    if not found:
                        continue
                    job = own.load(request, found)
                    self.assert_complete(own, request, job)
                    loaded = {
                        load.group: GroupLoaded(len(load.block_ids), False) for load in job.groups
                    }
                    own.half.reported(Report(loaded={"loads": Loaded(2, loaded)}))
                    self.assertEqual(own.held(), 0)

    def assert_complete(self, own: Engine, request: Request, job: Any) -> None:
        tables = own.manager.get_block_ids("loads")
        null = own.manager.block_pool.null_block.block_id
        loads = {load.group: load for load in job.groups}
        for group in own.groups.groups:
            real = [
                (depth, block) for depth, block in enumerate(tables[group.number]) if block != null
            ]
            load = loads.get(group.number)
            self.assertEqual([block for _, block in real], load.block_ids if load else [])
            each = group.hashes_per_block
            hashes = [request.block_hashes[(depth + 1) * each - 1] for depth, _ in real]
            for rank in range(2 if load else 0):
                place = Place(group.number, 0, rank)
                self.assertEqual(load.handles[place], handles_of(hashes))
                self.assertEqual(load.hashes, b"".join(hashes))

    def test_a_prefix_needs_every_block_that_is_loaded(self) -> None:
        """Without any one of them, on one rank, another prefix is found, or none."""
        for kind, specs in KINDS.items():
            own = Engine(specs)
            own.fill(101, step_tokens=24)
            request = own.request("loads", 101)
            longest = own.found(request)
            self.half_forgets(own, request)
            for group in own.groups.groups:
                for depth in group.needed(0, longest):
                    with self.subTest(kind, group=group.number, depth=depth):
                        place = Place(group.number, 0, 1)
                        (missing,) = group.hashes(request, range(depth, depth + 1))
                        own.sessions[place].blocks.remove(missing)
                        found = own.found(request)
                        self.assertLess(found, longest)
                        self.assertTrue(self.is_there(own, request, found))
                        self.half_forgets(own, request)
                        own.sessions[place].blocks.add(missing)

    def is_there(self, own: Engine, request: Request, tokens: int) -> bool:
        return all(
            set(group.hashes(request, group.needed(0, tokens))) <= own.sessions[place].blocks
            for place in own.places
            for group in [own.groups.groups[place.group]]
        )

    def half_forgets(self, own: Engine, request: Request) -> None:
        own.half.request_finished(request)
        self.assertEqual(own.held(), 0)

    def test_what_is_saved_of_windows_is_what_a_prefix_needs(self) -> None:
        """Also where vLLM keeps tokens before the window: with its default, which keeps the last one."""
        own = Engine(KINDS["window and more"], retention=0)
        own.fill(101, step_tokens=24)
        self.assertEqual(own.found(own.request("loads", 101)), 100)
        # The identity of the blocks has the layer as vLLM describes it.
        self.assertIs(own.groups.groups[1].policy.layer, KINDS["window and more"][1])

    def test_blocks_that_the_engine_has_are_not_loaded(self) -> None:
        for kind, specs in KINDS.items():
            with self.subTest(kind):
                own = Engine(specs)
                own.fill(200, step_tokens=24)
                request = own.request("loads", 200)
                first = 3 * own.unit
                self.assertGreater(own.found(request, first), 0)
                search = own.half._requests["loads"].search
                for group, blocks, *_ in search.loads(search.answer):
                    self.assertGreaterEqual(blocks.start * group.block_tokens, first)


class FromDrives(unittest.TestCase):
    """VLLM-V9 over the pool and drives."""

    def evicted(self, kind: str, **settings: Any) -> Engine:
        own = Engine(KINDS[kind], drives=True, **settings)
        own.fill(101, step_tokens=24)
        for session in own.sessions.values():
            session.evict()
        return own

    def test_each_kind_of_group_is_found_on_drives(self) -> None:
        """As long a prefix as in the pool, of which nothing but what is needed is restored."""
        for kind in KINDS:
            with self.subTest(kind):
                in_pool = Engine(KINDS[kind])
                in_pool.fill(101, step_tokens=24)
                own = self.evicted(kind)
                request = own.request("loads", 101)
                found = own.found(request)
                self.assertEqual(found, in_pool.found(in_pool.request("loads", 101)))
                self.assertGreater(found, 0)
                for place, session in own.sessions.items():
                    group = own.groups.groups[place.group]
                    needed = set(group.hashes(request, group.needed(0, found)))
                    self.assertLessEqual(needed, session.blocks)
                    if group.keeps is not Keeps.ALL:
                        self.assertEqual(needed, session.blocks, "restored for nothing")
                units = own.half.stats.data["lookup_restored_blocks"]
                self.assertEqual(units, found // own.unit if kind != "window" else 3)

    def test_what_a_waiting_request_needs_is_asked_for_ahead(self) -> None:
        nobody = types.SimpleNamespace(preempted_req_ids=None, num_scheduled_tokens={})
        for kind in KINDS:
            with self.subTest(kind):
                own = Engine(KINDS[kind], drives=True)
                waits = own.request("waits", 101)
                own.half.on_new_request(waits)
                own.half.build_step(nobody)
                own.half.build_step(nobody)
                last = 100 // own.unit * own.unit
                for place, session in own.sessions.items():
                    group = own.groups.groups[place.group]
                    needed = group.hashes(waits, group.needed(0, last))
                    self.assertEqual(session.prefetched, [[bytes(each) for each in needed]])
                self.assertEqual(own.half.stats.data, {"prefetched_blocks": len(own.places)})
                self.assertEqual(len(own.half._prefetches), 1)
                own.half.request_finished(waits)
                self.assertEqual(len(own.half._prefetches), 0)
                # Neither without a wait, nor for a request that loads nothing.
                for settings in (dict(prefetch_wait_ms=0), dict(restore_wait_ms=0)):
                    off = Engine(KINDS[kind], drives=True, **settings)
                    off.half.on_new_request(off.request("waits", 101))
                    self.assertEqual(len(off.half._prefetches), 0)

    def test_nothing_is_restored_where_drives_are_not_asked(self) -> None:
        for kind in KINDS:
            with self.subTest(kind):
                own = self.evicted(kind, restore_wait_ms=0)
                self.assertEqual(own.found(own.request("loads", 101)), 0)

    def test_a_window_that_comes_too_late_leaves_a_shorter_prefix(self) -> None:
        """The whole prefix came. The last window did not, on one rank; the one before is there."""
        own = self.evicted("full and windows")
        request = own.request("loads", 101)
        group = own.groups.groups[1]
        last = group.needed(0, 100)
        own.sessions[Place(1, 0, 1)].late = set(group.hashes(request, last[-1:]))
        self.assertEqual(own.found(request), last[-1] * 4)
        search = own.half._requests["loads"].search
        self.assertEqual(search.reason, "restore_late")
        self.assertEqual(own.half.stats.data.get("not_found_restore_late"), 1)
        own.half.request_finished(request)
        self.assertEqual(own.held(), 0)


    def test_windows_that_do_not_come_leave_what_is_in_the_pool(self) -> None:
        """A search does not spend all of its tries on windows that no drive gives."""
        own = Engine(KINDS["full and windows"], drives=True)
        request, pool_tokens = own.request("loads", 401), 24
        for place, session in own.sessions.items():
            group = own.groups.groups[place.group]
            own_hashes = list(group.hashes(request, range(100)))
            if group.keeps is Keeps.ALL:
                session.blocks = set(own_hashes)
            else:
                session.blocks = set(own_hashes[: pool_tokens // 4])
                session.on_drives = session.late = set(own_hashes[pool_tokens // 4 :])
        self.assertEqual(own.found(request), pool_tokens)
        self.assertEqual(own.half._requests["loads"].search.reason, "restore_late")
        own.half.request_finished(request)
        self.assertEqual(own.held(), 0)

    def test_windows_on_drives_do_not_count_when_the_wait_is_over(self) -> None:
        """The prefix took all of the time: a window comes from the pool, or not at all."""
        own = Engine(KINDS["full and windows"], drives=True)
        request, pool_tokens = own.request("loads", 401), 24
        for place, session in own.sessions.items():
            group = own.groups.groups[place.group]
            own_hashes = list(group.hashes(request, range(100)))
            session.blocks = set(own_hashes)
            if group.keeps is not Keeps.ALL:
                session.evict()
                session.blocks = set(own_hashes[: pool_tokens // 4])
                session.on_drives -= session.blocks
        search = own.half._index.look(request, 0, 100, time.monotonic())
        search.began_s -= 3600
        self.assertEqual(search.found(0), pool_tokens // own.unit)
        search.release()
        self.assertEqual(own.held(), 0)


class Saving(unittest.TestCase):
    def test_windows_are_saved_where_vllm_keeps_them(self) -> None:
        """Only the last of a prompt by default; with an interval the last before every multiple, too."""
        window = SlidingWindowSpec(block_size=4, sliding_window=8, **HEADS)
        for retention, saved in [(0, 2), (16, 2 * 6 + 1), (None, 25)]:
            with self.subTest(retention=retention):
                own = Engine([FULL, window], retention)
                own.fill(101, step_tokens=24)
                self.assertEqual(len(own.sessions[Place(0, 0, 0)].blocks), 25)
                self.assertEqual(len(own.sessions[Place(1, 0, 0)].blocks), saved)

    def test_blocks_are_held_in_the_engine_until_they_are_saved(self) -> None:
        """VLLM-V8: the manager has given up those outside of the window by then."""
        window = SlidingWindowSpec(block_size=4, sliding_window=8, **HEADS)
        own = Engine([FULL, window])
        free = own.manager.block_pool.get_num_free_blocks()
        request = own.request("one", 40)
        own.half.on_new_request(request)
        jobs = own.compute(request, 40)
        table = own.manager.get_block_ids("one")[1]
        own.compute(request, 1)
        pool = own.manager.block_pool
        given_up = [block for block in table if block not in own.manager.get_block_ids("one")[1]]
        self.assertGreater(len(given_up), 5)
        self.assertTrue(all(pool.blocks[block].ref_cnt == 1 for block in given_up))
        own.save(jobs)
        self.assertTrue(all(pool.blocks[block].ref_cnt == 0 for block in given_up))
        own.half.request_finished(request)
        own.manager.free(request)
        self.assertEqual(pool.get_num_free_blocks(), free)

    def test_a_state_is_saved_in_the_block_that_the_engine_offers(self) -> None:
        own = Engine([STATE, FULL])
        request = own.request("one", 23)
        own.half.on_new_request(request)
        jobs = own.compute(request, 20) + own.compute(request, 3)
        states = [job for job in jobs if job.group == 0]
        self.assertEqual([(job.first_depth, len(job.block_ids)) for job in states], [(4, 1)])
        self.assertEqual(own.groups.groups[0].keeps, Keeps.STATE)

    def test_a_failed_load_of_one_group_is_one_of_the_request(self) -> None:
        own = Engine(KINDS["full and windows"])
        own.fill(101)
        request = own.request("loads", 101)
        job = own.load(request, own.found(request))
        loaded = {load.group: GroupLoaded(len(load.block_ids), False) for load in job.groups}
        loaded[1] = GroupLoaded(1, True)
        own.half.reported(Report(loaded={"loads": Loaded(2, loaded)}))
        own.manager.free(request)
        # The second block of that window is not found again: the prefix ends before it.
        missed = own.groups.groups[1].needed(0, 100).start + 1
        self.assertEqual(own.found(request), missed * 4)
        # All of it is computed and saved again, where it is not found.
        self.assertEqual(own.half._requests["loads"].loaded, {})


    def test_what_is_not_shared_after_a_reset_is_counted(self) -> None:
        """A request once, and every block of every rank; the engine gets back what it holds for a save."""
        own = Engine(KINDS["full and windows"])
        free = own.manager.block_pool.get_num_free_blocks()
        with self.assertLogs("rackline.vllm.scheduler", "WARNING") as log:
            own.half.reset()
            request = own.request("one", 40)
            self.assertEqual([own.found(request), own.found(request)], [0, 0])
            self.assertEqual(own.compute(request, 40), [])
        # Two ranks, three groups.
        counted = {name: own.half.stats.data.get(name) for name in ("not_found_stopped", "unsaved_stopped")}
        self.assertEqual(counted, {"not_found_stopped": 1, "unsaved_stopped": 2 * 3 * 10})
        self.assertEqual(own.half.stats.data["unsaved_blocks"], 2 * 3 * 10)
        self.assertTrue(any("(stopped)" in line for line in log.output))
        own.half.request_finished(request)
        own.manager.free(request)
        self.assertEqual(own.manager.block_pool.get_num_free_blocks(), free)

    def test_a_pool_that_is_out_at_a_reset_ends_sharing_and_not_the_engine(self) -> None:
        """vLLM's pause and sleep fail when the reset does. The next one takes the same name."""
        own = Engine(KINDS["full and windows"])
        with mock.patch.object(own.half._index, "rename", side_effect=rackline.Closed("gone")):
            with self.assertLogs("rackline.vllm.scheduler", "WARNING") as log:
                self.assertTrue(own.half.reset("b"))
        self.assertIn("called again: gone", log.output[0])
        self.assertTrue(own.half._stopped)
        with mock.patch.object(own.half._index, "rename"):
            self.assertTrue(own.half.reset("b"))
        self.assertFalse(own.half._stopped)


class Stages(unittest.TestCase):
    def test_reports_of_stages_without_a_group_are_added(self) -> None:
        report = Report()
        for told in [{0: GroupLoaded(3, False)}, {1: GroupLoaded(1, True)}, {0: GroupLoaded(2, True)}]:
            report.add(Report(loaded={"one": Loaded(1, told)}))
        expected = {0: GroupLoaded(2, True), 1: GroupLoaded(1, True)}
        self.assertEqual(report.loaded, {"one": Loaded(3, expected)})

    def test_a_unit_is_whole_blocks_of_every_group(self) -> None:
        own = Engine(KINDS["blocks of different lengths"])
        self.assertEqual(own.groups.unit_tokens, 8)
        self.assertIsInstance(own.groups, Groups)
        self.assertEqual([group.hashes_per_block for group in own.groups.groups], [2, 1])
        self.assertEqual(own.groups.hashes_per_unit, 2)

    def test_a_handover_of_long_units_has_the_hash_of_its_last_one(self) -> None:
        own = Engine(KINDS["blocks of different lengths"])
        request = own.request("one", 24)
        request.kv_transfer_params = {"rackline": {"handover": True}}
        own.half._index.words = lambda: {"model": "m"}
        own.half.on_new_request(request)
        jobs = own.compute(request, 24)
        _, told = own.half.request_finished(request)
        self.assertEqual(told["rackline"]["blocks"], 3)
        self.assertEqual(told["rackline"]["last_hash"], bytes(request.block_hashes[5]).hex())
        own.save(jobs)


if __name__ == "__main__":
    unittest.main()
