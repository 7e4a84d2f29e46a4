"""What a prompt of 131,072 tokens that is in the pool costs the scheduler of vLLM, with 8 ranks and blocks of
16 tokens: the calls of the connector's half, and what they make vLLM send to the workers.

No engine runs: the requests are stand-ins, the region and its sessions are real. Blocks have 4 KiB, since
nothing is copied. Milliseconds of the scheduler's thread; what it waits for lookups is told apart.
"""

from __future__ import annotations

import hashlib
import pickle
import statistics
import time
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import rackline
import torch
from rackline.vllm.chains import Chain
from rackline.vllm.identity import Identity, Place
from rackline.vllm.messages import GroupLoaded, Loaded, Report
from rackline.vllm.scheduler import SchedulerHalf
from rackline.vllm.settings import Settings
from region import Region
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

RANKS, BLOCKS, BLOCK_TOKENS, BLOCK_BYTES = 8, 8192, 16, 4096
ROUNDS = 9
ENGINE = types.SimpleNamespace(
    parallel_config=types.SimpleNamespace(
        tensor_parallel_size=RANKS,
        pipeline_parallel_size=1,
        decode_context_parallel_size=1,
        rank=0,
    ),
    cache_config=types.SimpleNamespace(block_size=BLOCK_TOKENS, prefix_match_unit=None),
    kv_transfer_config=types.SimpleNamespace(
        is_kv_consumer=True, is_kv_producer=True, kv_load_failure_policy="recompute"
    ),
    max_concurrent_batches=1,
    kv_events_config=None,
    speculative_config=None,
)


def scheduler(region: Region, blocks: int) -> SchedulerHalf:
    kept = FullAttentionSpec(
        block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=128, dtype=torch.bfloat16
    )
    caches = KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], kept)])
    given = {"region": region.path, "node": 0, "lookup_timeout_ms": 60_000, "hold_ms": 60_000}
    return SchedulerHalf(ENGINE, caches, Settings.of(given))


def identity(rank: int) -> Identity:
    """One that names the rank: the sessions ask it for nothing else."""
    model = rackline.Model(
        name="bench",
        revision="1",
        dtype="bf16",
        block_tokens=BLOCK_TOKENS,
        layers=1,
        kv_heads=8,
        head_dim=128,
        tensor_parallel_rank=rank,
        tensor_parallel_size=RANKS,
    )
    return mock.Mock(
        place=Place(0, 0, rank),
        places=RANKS,
        block_bytes=BLOCK_BYTES,
        model_of_session=lambda: model,
    )


def request_of(name: str, tokens: int) -> Request:
    ids = [token % 30_000 for token in range(tokens)]
    return Request(name, ids, SamplingParams(max_tokens=1), None)


def fill(half: SchedulerHalf, hashes: list[bytes]) -> None:
    memory = rackline.block_memory(memoryview(bytearray(BLOCK_BYTES)).cast("B", (1, BLOCK_BYTES)))
    for session in half._index._sessions.values():
        for first in range(0, len(hashes), 1024):
            part = hashes[first : first + 1024]
            result = session.publish(b"".join(part), first, memory, [0] * len(part)).wait()
            assert result.published == len(part), result.outcomes[:1]


class Clock:
    """Time of the scheduler's thread in calls, by name, and of the wall."""

    def __init__(self) -> None:
        self.cpu_ms: dict[str, float] = {}
        self.wall_ms: dict[str, float] = {}

    def time(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        wall, cpu = time.perf_counter(), time.thread_time()
        result = call(*arguments)
        for spent, since, now in [
            (self.cpu_ms, cpu, time.thread_time()),
            (self.wall_ms, wall, time.perf_counter()),
        ]:
            spent[name] = spent.get(name, 0) + (now - since) * 1000
        return result

    def steps(self, waiting: int) -> list[tuple[float, int]]:
        """What each kind of step of the scheduler took in all, and how many of them there were."""
        ms = self.cpu_ms
        looks, waits = "get_num_new_matched_tokens, first step", "build_connector_meta, waiting"
        later = "get_num_new_matched_tokens, later steps"
        sends = ms["update_state_after_alloc"] + ms["build_connector_meta"]
        return [
            (ms[looks], 1),
            (ms.get(later, 0) + ms.get(waits, 0), max(1, waiting)),
            # With the answer, which may have come in the first step.
            (sends + ms.get(later, 0) / max(1, waiting), 1),
            (ms["update_connector_output"] + ms["request_finished"], 1),
        ]


def one_prompt(half: SchedulerHalf, hashes: list[bytes], number: int) -> tuple[Clock, int, int]:
    """A request is looked up, allocated, sent to the workers and reported as loaded."""
    clock, steps, prompt_tokens = Clock(), 0, len(hashes) * BLOCK_TOKENS
    request, block_ids = request_of(f"request {number}", prompt_tokens + 1), list(range(len(hashes)))
    request.block_hashes = hashes
    output = types.SimpleNamespace(preempted_req_ids=None, num_scheduled_tokens={})
    name, tokens = "get_num_new_matched_tokens, first step", None
    while tokens is None:
        tokens, _ = clock.time(name, half.matched_tokens, request, 0)
        name = "get_num_new_matched_tokens, later steps"
        if tokens is None:
            clock.time("build_connector_meta, waiting", half.build_step, output)
            time.sleep(0.005)
            steps += 1
    assert tokens == prompt_tokens, tokens
    blocks = types.SimpleNamespace(get_block_ids=lambda: [block_ids])
    clock.time("update_state_after_alloc", half.allocated, request, blocks, tokens)
    step = clock.time("build_connector_meta", half.build_step, output)
    sent = clock.time("pickle, by vLLM", pickle.dumps, step, pickle.HIGHEST_PROTOCOL)
    report = Report(loaded={request.request_id: Loaded(RANKS, {0: GroupLoaded(len(hashes), False)})})
    clock.time("update_connector_output", half.reported, report)
    clock.time("request_finished", half.request_finished, request)
    return clock, steps, len(sent)


def hash_short_blocks(algorithm: str, blocks: int) -> list[float]:
    """Makes the hashes of the prompt's blocks in an engine whose own are four times as long
    (`stored_block_tokens`), as a thread does beside the scheduler. Milliseconds of each slice."""
    function = get_hash_fn_by_name(algorithm)
    init_none_hash(function)
    tokens = blocks * BLOCK_TOKENS
    request = request_of("one", tokens)
    chain = Chain(request, BLOCK_TOKENS, get_request_block_hasher(BLOCK_TOKENS, function))
    slices = []
    while chain.missing(tokens) > 0:
        began = time.thread_time()
        chain.grow(tokens)
        slices.append((time.thread_time() - began) * 1000)
    return slices


def measure(blocks: int, rounds: int, size: str = "1GiB") -> list[tuple[Clock, int, int]]:
    """Prompts of so many blocks: the calls of each, its steps until the answer, and the bytes that are sent."""
    hashes = [hashlib.sha256(number.to_bytes(4, "big")).digest() for number in range(blocks)]
    with Region(size, "4KiB", chunk="16MiB") as region:
        half = scheduler(region, blocks)
        half.sessions_of({(0, rank): [identity(rank)] for rank in range(RANKS)})
        fill(half, hashes)
        found = [one_prompt(half, hashes, number) for number in range(rounds)]
        half.close()
    return found


def main() -> None:
    rounds = measure(BLOCKS, ROUNDS + 1)[1:]
    print(f"{RANKS} ranks, {BLOCKS} blocks; medians of {ROUNDS}: ms of the thread, ms by the wall")
    names = list(dict.fromkeys(name for clock, *_ in rounds for name in clock.cpu_ms))
    for name in names:
        cpu = statistics.median(clock.cpu_ms.get(name, 0) for clock, *_ in rounds)
        wall = statistics.median(clock.wall_ms.get(name, 0) for clock, *_ in rounds)
        print(f"{name:42} {cpu:8.3f} {wall:8.3f}")
    own = [
        sum(ms for name, ms in clock.cpu_ms.items() if "pickle" not in name) for clock, *_ in rounds
    ]
    print(f"{'all of the connector':42} {statistics.median(own):8.3f}")
    dearest = [
        max(ms / calls for ms, calls in clock.steps(steps)) for clock, steps, _ in rounds
    ]
    print(f"{'the dearest of its steps':42} {statistics.median(dearest):8.3f}")
    print(f"steps until the answer {statistics.median(steps for _, steps, _ in rounds)}")
    print(f"message to the workers {rounds[-1][2]} bytes")
    for algorithm in ("sha256", "sha256_cbor"):
        slices = hash_short_blocks(algorithm, BLOCKS)
        took, each = sum(slices), statistics.median(slices)
        print(f"hashes of short blocks, {algorithm}: {took:.0f} ms, {each:.2f} a slice")


if __name__ == "__main__":
    main()
