"""Blocks through the Python package: what a put and a get do beside the copy.

Each figure is a ratio of speeds in one process: to numpy's copy of the same bytes, which is memcpy, between
the same memory and a file in /dev/shm that is mapped with all its pages present. A put is a publish, a get is a
lookup and a fetch; both are waited for, by threads of the pool and by the calling thread
(``Session.by_caller``). Every call is timed by itself, the four kinds in turns, and the figures
are first quartiles: other work of the machine hits some calls, and those count for nothing.
"""

from __future__ import annotations

import itertools
import mmap
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy
import rackline
from region import Region

SIZES, BATCHES = (64 << 10, 512 << 10, 2 << 20), (1, 32)
# Of calls of one size, in turns.
BYTES_MAX = 384 << 20
# More than a cache holds.
RING_BYTES = 128 << 20
# In which a process fills its page tables after it has attached.
FILLING_S = 2.0


class Times(NamedTuple):
    """Nanoseconds of each call."""

    copy_in: list[int]
    put: list[int]
    copy_out: list[int]
    get: list[int]

    def quartiles(self) -> list[float]:
        return [statistics.quantiles(times, n=4)[0] for times in self]


def session_of(pool: rackline.Pool, block_bytes: int) -> rackline.Session:
    numbers = dict(block_tokens=1, layers=1, kv_heads=1, head_dim=block_bytes // 4)
    model = rackline.Model(name="blocks", revision="1", dtype="f16", **numbers)
    return pool.session(model, block_bytes)


def rows_of(buffer: mmap.mmap, block_bytes: int) -> numpy.ndarray:
    """Blocks in memory whose pages are there."""
    rows = numpy.frombuffer(buffer, numpy.uint8).reshape(-1, block_bytes)
    rows[:] = 0x5A
    return rows


def measure(
    session: rackline.Session, blocks_a_call: int, calls: int, ring_bytes: int
) -> Times:
    """Puts and gets other blocks with each call."""
    block_bytes, times = session.block_bytes, Times([], [], [], [])
    numbers = itertools.count()
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(ring_bytes)
        mapped = rows_of(mmap.mmap(file.fileno(), ring_bytes), block_bytes)
        own = rows_of(mmap.mmap(-1, ring_bytes), block_bytes)
        memory = rackline.block_memory(own.data)
        firsts = itertools.cycle(range(0, len(own) - blocks_a_call + 1, blocks_a_call))

        def timed(into: list[int], call: Callable[[], None]) -> None:
            began = time.perf_counter_ns()
            call()
            into.append(time.perf_counter_ns() - began)

        for _ in range(calls):
            hashes = b"".join(next(numbers).to_bytes(32, "big") for _ in range(blocks_a_call))
            one_call(session, memory, (own, mapped), hashes, (firsts, timed, times))
        del own, mapped
    return times


def one_call(session, memory, arrays, hashes: bytes, how) -> None:
    """Each kind once, with other places in memory."""
    (own, mapped), (firsts, timed, times) = arrays, how
    count = len(hashes) // rackline.HASH_BYTES

    def places() -> tuple[slice, list[int]]:
        first = next(firsts)
        return slice(first, first + count), list(range(first, first + count))

    def put() -> None:
        assert session.publish(hashes, 0, memory, ids).wait().published == count

    def get() -> None:
        found = session.lookup(hashes).wait()
        assert session.fetch(found, memory, ids).wait().valid_blocks == count

    rows, _ = places()
    timed(times.copy_in, lambda: numpy.copyto(mapped[rows], own[rows]))
    rows, ids = places()
    own[rows, :8] = hashes[-1]
    timed(times.put, put)
    rows, _ = places()
    timed(times.copy_out, lambda: numpy.copyto(own[rows], mapped[rows]))
    rows, ids = places()
    timed(times.get, get)
    assert (own[rows, 0] == hashes[-1]).all()


def figures(
    sizes: Sequence[int] = SIZES,
    batches: Sequence[int] = BATCHES,
    bytes_max: int = BYTES_MAX,
    ring_bytes: int = RING_BYTES,
    filling_s: float = FILLING_S,
) -> list[str]:
    """Rows of a table."""
    rows = []
    for block_bytes, count, by_caller in itertools.product(sizes, batches, (False, True)):
        # Room for all blocks below the watermark at which eviction starts.
        region = Region(f"{bytes_max * 3 // 2 + (64 << 20) >> 20}MiB", f"{block_bytes >> 10}KiB", 1, "16MiB")
        with region, rackline.Pool(region.path, 0) as pool:
            time.sleep(filling_s)
            calls = min(1001, bytes_max // (block_bytes * count))
            session = session_of(pool, block_bytes)
            session = session.by_caller() if by_caller else session
            times = measure(session, count, calls, ring_bytes)
        copy_in, put, copy_out, get = times.quartiles()
        by = "caller" if by_caller else "threads"
        rows.append(
            f"| {block_bytes >> 10} KiB | {count} | {by} | {copy_in / 1000:.1f} | {put / 1000:.1f} "
            f"x{copy_in / put:.2f} | {copy_out / 1000:.1f} | {get / 1000:.1f} x{copy_out / get:.2f} |"
        )
    return rows


def main() -> None:
    print("| block | a call | by | copy in, us | put, us, of its speed | copy out, us | get, us, of its speed |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(figures()))


if __name__ == "__main__":
    main()
