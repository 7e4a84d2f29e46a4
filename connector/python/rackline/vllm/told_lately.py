"""Which blocks routers were told of a moment ago.

A request whose prompt the engine has in its own cache is saved once more from its first block on, as the pool may
have lost blocks since. Mostly all of them are there. Of a prompt of 128K tokens these are 8,192 blocks, which
need not be told with every request.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import rackline
from rackline.vllm.messages import SaveJob

# For how long a block is not told again, at least. A block that was evicted and saved again within that time
# is told by the next save of it that comes later.
LATELY_S = 60
# Blocks that are remembered: twice as many. Beyond that some are told again earlier.
BLOCKS_MAX = 1 << 17


class ToldLately:
    """The blocks that were told within the last minute or two."""

    def __init__(self) -> None:
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()
        self._since_s = time.monotonic()

    def add(self, job: SaveJob, blocks: int) -> None:
        """The first ``blocks`` of ``job`` are told now."""
        self._age()
        self._young.update(_hashes(job)[:blocks])

    def untold(self, job: SaveJob) -> Iterator[SaveJob]:
        """The runs of blocks of ``job`` that are to be told."""
        self._age()
        hashes = _hashes(job)
        first = None
        for block in range(len(hashes) + 1):
            is_told = block == len(hashes) or hashes[block] in self._young or hashes[block] in self._old
            if first is None and not is_told:
                first = block
            elif first is not None and is_told:
                yield part_of(job, first, block)
                first = None

    def _age(self) -> None:
        now_s = time.monotonic()
        if now_s - self._since_s >= 2 * LATELY_S:
            self._young = set()
        if now_s - self._since_s >= LATELY_S or len(self._young) >= BLOCKS_MAX:
            self._old, self._young, self._since_s = self._young, set(), now_s


def part_of(job: SaveJob, first: int, end: int) -> SaveJob:
    """The blocks ``first`` to ``end`` of a save."""
    if (first, end) == (0, len(job.block_ids)):
        return job
    size = rackline.HASH_BYTES
    return dataclasses.replace(
        job,
        hashes=job.hashes[first * size : end * size],
        first_depth=job.first_depth + first,
        block_ids=job.block_ids[first:end],
    )


def _hashes(job: SaveJob) -> list[bytes]:
    size = rackline.HASH_BYTES
    return [bytes(job.hashes[at : at + size]) for at in range(0, len(job.hashes), size)]
