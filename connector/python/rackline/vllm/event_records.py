"""Records: what this engine describes in the pool for ``rackline events``.

The publication logs have keys only. A router wants tokens and the engine's hashes, so an engine publishes
records of them, each as a block of its own. ``deploy/cli/src/events/record.rs`` reads them: the version, the
hash of the record (which begins with eight zeros), the time, the key spaces of the ranks, and runs of blocks
with vLLM's event for each run. A record says nothing of what is in the pool: ``rackline events`` looks.
"""

from __future__ import annotations

import collections
import mmap
import os
import time
from typing import Any, NamedTuple

import msgspec

import rackline
from rackline.engines.attachment import Attachment, Renewal
from rackline.vllm.events import stored
from rackline.vllm.groups import Group
from rackline.vllm.messages import SaveJob
from rackline.vllm.search import Index
from rackline.vllm.statistics import RacklineStats
from rackline.vllm.told_lately import ToldLately, part_of

VERSION = 1
RECORD_BYTES = 16 << 10
# The rest is for the fields around the runs: 26 bytes for each rank.
RUNS_BYTES_MAX = 12 << 10
# Records that are being published at once, and as many that wait for that: ten prompts of 128K tokens each.
# Blocks beyond that are not described, and counted.
RECORDS_MAX = 1024
# The same in every engine.
MODEL = dict(name="rackline events", revision="1", dtype="messagepack")


class Record(NamedTuple):
    """A record to be published."""

    hash: bytes
    content: bytes
    blocks: int
    """How many it describes."""


class Written(NamedTuple):
    """A record that is being published."""

    place: int
    blocks: int


class EventRecords:
    """The records of an engine."""

    def __init__(
        self, attachment: Attachment, index: Index, group: Group, stats: RacklineStats
    ) -> None:
        self._attachment, self._index = attachment, index
        self._group, self._stats = group, stats
        # Taken from the system when it is used.
        self._bytes = memoryview(mmap.mmap(-1, RECORDS_MAX * RECORD_BYTES))
        self._memory = rackline.block_memory(self._bytes.cast("B", (RECORDS_MAX, RECORD_BYTES)))
        self._free = list(range(RECORDS_MAX))
        """Places in the memory."""
        self._renewal = Renewal(attachment)
        self._renewal.open(self._open)
        self._under_way: list[tuple[rackline.Publish, list[Written]]] = []
        self._waiting: collections.deque[Record] = collections.deque()
        self._runs: list[msgspec.Raw] = []
        self._run_bytes = self._blocks = 0
        self._run_blocks = 64
        """Blocks of a run that fill a record, by the runs before."""
        self._lately = ToldLately()

    def _open(self) -> None:
        model = rackline.Model(**MODEL, block_tokens=1, layers=1, kv_heads=1, head_dim=1)
        self._session = self._attachment.pool.session(model, RECORD_BYTES)

    def saved(self, request: Any, job: SaveJob, certain: bool) -> None:
        """Every rank has saved the blocks of ``job``, or found them there when not ``certain``."""
        if job.group != self._group.number:
            return
        for part in [job] if certain else self._lately.untold(job):
            self._lately.add(part, len(part.block_ids))
            self._describe(request, part)

    def _describe(self, request: Any, job: SaveJob) -> None:
        first, blocks = 0, len(job.block_ids)
        while first < blocks:
            end = min(first + self._run_blocks, blocks)
            part = part_of(job, first, end)
            event = stored(request, part, end - first, self._group)
            run = msgspec.msgpack.encode([bytes(part.hashes), event])
            if len(run) > RUNS_BYTES_MAX and end - first > 1:
                self._run_blocks = (end - first) // 2
                continue
            self._run_blocks = max(1, RUNS_BYTES_MAX * (end - first) // (len(run) + 64))
            first = end
            if len(run) > RUNS_BYTES_MAX:
                self._stats.count("undescribed_blocks", 1)
                continue
            if self._run_bytes + len(run) > RUNS_BYTES_MAX:
                self._end_record()
            self._runs.append(msgspec.Raw(run))
            self._run_bytes += len(run)
            self._blocks += len(part.block_ids)

    def _end_record(self) -> None:
        """What was described until now is a record."""
        if not self._runs:
            return
        runs, blocks = self._runs, self._blocks
        self._runs, self._run_bytes, self._blocks = [], 0, 0
        record_hash = bytes(8) + os.urandom(rackline.HASH_BYTES - 8)
        fields = [VERSION, record_hash, time.time(), self._index.key_spaces(self._group.number), runs]
        record = Record(record_hash, msgspec.msgpack.encode(fields), blocks)
        if len(record.content) > RECORD_BYTES or len(self._waiting) == RECORDS_MAX:
            self._stats.count("undescribed_blocks", blocks)
        else:
            self._waiting.append(record)

    def flush(self) -> None:
        """Publishes what was described. Called whenever the workers have reported: an engine that becomes
        idle makes no further step."""
        self._end_publishes()
        self._end_record()
        if not self._waiting or not self._free:
            return
        self._renewal.renew(self._open)
        records = [self._waiting.popleft() for _ in range(min(len(self._free), len(self._waiting)))]
        places, self._free = self._free[: len(records)], self._free[len(records) :]
        for place, record in zip(places, records, strict=True):
            start = place * RECORD_BYTES
            self._bytes[start : start + len(record.content)] = record.content
        hashes = b"".join(record.hash for record in records)
        try:
            publish = self._session.publish(hashes, 0, self._memory, places)
        except rackline.Busy:
            # By the next report.
            self._free += places
            self._waiting.extendleft(reversed(records))
            return
        except rackline.Error:
            # The engine's own saves say in the log what is wrong with the pool.
            self._free += places
            self._stats.count("undescribed_blocks", sum(record.blocks for record in records))
            return
        written = [
            Written(place, record.blocks) for place, record in zip(places, records, strict=True)
        ]
        self._under_way.append((publish, written))

    def _end_publishes(self) -> None:
        still = []
        for publish, written in self._under_way:
            try:
                result = publish.poll()
            except rackline.Error:
                outcomes = ["lost"] * len(written)
            else:
                if result is None:
                    still.append((publish, written))
                    continue
                outcomes = result.outcomes
            self._free += [record.place for record in written]
            for record, outcome in zip(written, outcomes, strict=True):
                if outcome != "published":
                    self._stats.count("undescribed_blocks", record.blocks)
        self._under_way = still
