"""Sessions on a real GPU, with PyTorch: every byte, a damaged block, a GPU that fails, and speeds. No part
of the suite, as machines that run it have no GPU:

    RACKLINE_COMMAND=... python connector/python/tests/on_gpu.py"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import torch

import rackline
from region import Region

GPU = 0
BLOCKS, LAYERS, LAYER_BYTES = 256, 64, 32 << 10
BLOCK_BYTES = LAYERS * LAYER_BYTES
ROUNDS = 3
HASHES = [number.to_bytes(32, "little") for number in range(BLOCKS)]
NUMBERS = list(range(BLOCKS))


def attach(region: Region, threads: int) -> rackline.Pool:
    return rackline.Pool(region.path, 0, copy_threads=threads)


def session_of(pool: rackline.Pool, name: str) -> rackline.Session:
    model = rackline.Model(
        name=name, revision="1", dtype="f16", block_tokens=16, layers=LAYERS, kv_heads=8, head_dim=64
    )
    return pool.session(model, BLOCK_BYTES)


def memory_of(tensor: torch.Tensor, by_layers: bool) -> rackline.BlockMemory:
    """A block as one row, or as an engine has it: a part in each layer's tensor."""
    start = tensor.data_ptr()
    if by_layers:
        apart = BLOCKS * LAYER_BYTES
        parts = [(start + layer * apart, LAYER_BYTES, LAYER_BYTES) for layer in range(LAYERS)]
    else:
        parts = [(start, BLOCK_BYTES, BLOCK_BYTES)]
    return rackline.BlockMemory(parts, BLOCKS, tensor, gpu=GPU if tensor.is_cuda else None)


def new(seed: int | None = None) -> torch.Tensor:
    if seed is None:
        return torch.zeros(BLOCKS * BLOCK_BYTES, dtype=torch.uint8, device="cuda")
    torch.manual_seed(seed)
    return torch.randint(0, 256, (BLOCKS * BLOCK_BYTES,), dtype=torch.uint8, device="cuda")


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def seconds(work) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def plain_gib_per_s() -> tuple[float, float]:
    on_gpu = new()
    pinned = torch.empty(BLOCKS * BLOCK_BYTES, dtype=torch.uint8, pin_memory=True)
    down = [seconds(lambda: pinned.copy_(on_gpu, non_blocking=True)) for _ in range(ROUNDS)]
    up = [seconds(lambda: on_gpu.copy_(pinned, non_blocking=True)) for _ in range(ROUNDS)]
    gib = BLOCKS * BLOCK_BYTES / 2**30
    return gib / statistics.median(down), gib / statistics.median(up)


def every_byte(region: Region, threads: int, by_layers: bool) -> None:
    with attach(region, threads) as pool:
        gpu = pool.gpu(GPU)
        assert (gpu.reach, gpu.summing) == ("registered", "by the GPU"), (gpu.reach, gpu.summing)
        stored, loaded = [], []
        for round_ in range(ROUNDS):
            session = session_of(pool, f"{threads} {by_layers} {round_}")
            source, target = new(seed=round_), new()
            memory, into = memory_of(source, by_layers), memory_of(target, by_layers)

            def publish(session=session, memory=memory):
                done = session.publish(HASHES, 0, memory, NUMBERS, stream=stream()).wait()
                assert done.outcomes == ["published"] * BLOCKS, (set(done.outcomes), done.messages)

            def fetch(session=session, into=into):
                prefix = session.lookup(HASHES, hold=True).wait()
                assert len(prefix) == BLOCKS, len(prefix)
                done = session.fetch(prefix, into, NUMBERS, stream=stream()).wait()
                assert done.valid_blocks == BLOCKS, (done.valid_blocks, done.reason)

            stored.append(seconds(publish))
            loaded.append(seconds(fetch))
            assert torch.equal(source, target), "other bytes came back"
            # Another engine's, as it were: the CPU checks what the GPU has summed.
            on_cpu = torch.zeros(BLOCKS * BLOCK_BYTES, dtype=torch.uint8)
            prefix = session.lookup(HASHES).wait()
            done = session.fetch(prefix, memory_of(on_cpu, by_layers), NUMBERS).wait()
            assert done.valid_blocks == BLOCKS, (done.valid_blocks, done.reason)
            assert torch.equal(on_cpu, source.cpu()), "the CPU finds other bytes"
            for tag in ("stored", "loaded"):
                assert gpu.figures()[f"{tag}_bytes"] == (round_ + 1) * BLOCKS * BLOCK_BYTES
        gib = BLOCKS * BLOCK_BYTES / 2**30
        down, up = plain_gib_per_s()
        speeds = gib / statistics.median(stored), gib / statistics.median(loaded)
        print(
            f"{threads} threads, parts of {(LAYER_BYTES if by_layers else BLOCK_BYTES) >> 10} KiB: "
            f"publish {speeds[0]:.1f} GiB/s, {speeds[0] / down:.2f} of plain; "
            f"lookup and fetch {speeds[1]:.1f} GiB/s, {speeds[1] / up:.2f} of plain"
        )


def a_damaged_block(region: Region) -> None:
    with attach(region, 2) as pool:
        pool.gpu(GPU)
        session = session_of(pool, "damaged")
        source, target = new(seed=77), new()
        session.publish(HASHES[:3], 0, memory_of(source, False), [0, 1, 2], stream=stream()).wait()
        bytes_ = bytes(source[BLOCK_BYTES : BLOCK_BYTES + 64].tolist())
        with open(region.path, "r+b") as file:
            place = file.read().index(bytes_)
            file.seek(place)
            file.write(bytes([bytes_[0] ^ 1]))
            file.flush()
        prefix = session.lookup(HASHES[:3], hold=True).wait()
        done = session.fetch(prefix, memory_of(target, False), [0, 1, 2], stream=stream()).wait()
        assert (done.valid_blocks, done.reason) == (1, "checksum"), (done.valid_blocks, done.reason)
        print("a damaged block: found by the GPU's checksum, and a miss")


def a_gpu_that_fails(region: Region) -> None:
    """In a process of its own, whose GPU is of no use afterwards."""
    child = subprocess.run([sys.executable, __file__, "--fails", region.path], check=False)
    assert child.returncode == 0, child.returncode
    print("a GPU that fails: its blocks are not published, and the process lives")


def fails(path: str) -> None:
    with rackline.Pool(path, 0) as pool:
        pool.gpu(GPU)
        session = session_of(pool, "fails")
        source = new(seed=5)
        # An error of the engine's own kernel, which the copy comes after.
        broken = torch.zeros(3, device="cuda")[torch.tensor([10**6], device="cuda")]
        memory = memory_of(source, False)
        done = session.publish(HASHES[:2], 0, memory, [0, 1], stream=stream()).wait()
        print("said:", done.outcomes, done.messages)
        assert done.outcomes == ["copy"] * 2
        assert len(session.lookup(HASHES[:2]).wait()) == 0
        del broken


def main() -> None:
    if sys.argv[1:2] == ["--fails"]:
        fails(sys.argv[2])
        return
    print(torch.cuda.get_device_name(GPU))
    with Region("8GiB", "2MiB", chunk="64MiB") as region:
        for threads, by_layers in [(1, False), (4, False), (8, False), (4, True)]:
            every_byte(region, threads, by_layers)
    with Region("1GiB", "2MiB", chunk="64MiB") as region:
        a_damaged_block(region)
        a_gpu_that_fails(region)


if __name__ == "__main__":
    main()
