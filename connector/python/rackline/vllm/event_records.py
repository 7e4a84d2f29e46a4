"""Records: what this engine describes in the pool for ``rackline events``.

The publication logs have keys only. A router wants tokens and the engine's hashes, so an engine publishes
records of them, each as a block of its own. ``deploy/cli/src/events/record.rs`` reads them: the version, the
hash of the record (which begins with eight zeros), the time, the key spaces of the ranks, and runs of blocks
with vLLM's event for each run. A record says nothing of what is in the pool: ``rackline events`` looks.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

import msgspec

import rackline
from rackline.engines.attachment import Attachment, Renewal
from rackline.vllm.events import stored
from rackline.vllm.groups import Group
from rackline.vllm.messages import SaveJob
from rackline.vllm.search import Index
from rackline.vllm.statistics import RacklineStats

VERSION = 1
RECORD_BYTES = 16 << 10
# The rest is for the fields around the runs: 26 bytes for each rank.
RUNS_BYTES_MAX = 12 << 10
# Records that are being published at once. Blocks beyond that are not described, and counted.
RECORDS_MAX = 64
# The same in every engine.
MODEL = dict(name="rackline events", revision="1", dtype="messagepack")


class EventRecords:
    """The records of an engine."""

    def __init__(
        self, attachment: Attachment, index: Index, group: Group, stats: RacklineStats
    ) -> None:
        self._attachment, self._index = attachment, index
        self._group, self._stats = group, stats
        self._bytes = memoryview(bytearray(RECORDS_MAX * RECORD_BYTES))
        self._memory = rackline.block_memory(self._bytes.cast("B", (RECORDS_MAX, RECORD_BYTES)))
        self._renewal = Renewal(attachment)
        self._renewal.open(self._open)
        self._under_way: dict[int, tuple[rackline.Publish, int]] = {}
        """By place in the memory: the publish, and how many blocks the record describes."""
        self._runs: list[msgspec.Raw] = []
        self._run_bytes = self._blocks = 0

    def _open(self) -> None:
        model = rackline.Model(**MODEL, block_tokens=1, layers=1, kv_heads=1, head_dim=1)
        self._session = self._attachment.pool.session(model, RECORD_BYTES)

    def saved(self, request: Any, job: SaveJob) -> None:
        """Every rank has saved the blocks of ``job``, or found them there."""
        if job.group != self._group.number:
            return
        self._describe(request, job, 0, len(job.block_ids))

    def _describe(self, request: Any, job: SaveJob, first: int, end: int) -> None:
        size = rackline.HASH_BYTES
        hashes = job.hashes[first * size : end * size]
        part = dataclasses.replace(job, hashes=hashes, first_depth=job.first_depth + first)
        event = stored(request, part, end - first, self._group)
        run = msgspec.msgpack.encode([bytes(part.hashes), event])
        if len(run) > RUNS_BYTES_MAX:
            if end - first == 1:
                self._stats.count("undescribed_blocks", 1)
                return
            middle = (first + end) // 2
            self._describe(request, job, first, middle)
            self._describe(request, job, middle, end)
            return
        if self._run_bytes + len(run) > RUNS_BYTES_MAX:
            self.flush()
        self._runs.append(msgspec.Raw(run))
        self._run_bytes += len(run)
        self._blocks += end - first

    def flush(self) -> None:
        """Publishes what was described. Called whenever the workers have reported: an engine that becomes
        idle makes no further step."""
        self._end_publishes()
        if not self._runs:
            return
        runs, blocks = self._runs, self._blocks
        self._runs, self._run_bytes, self._blocks = [], 0, 0
        self._renewal.renew(self._open)
        free = next((place for place in range(RECORDS_MAX) if place not in self._under_way), None)
        if free is None:
            self._stats.count("undescribed_blocks", blocks)
            return
        record_hash = bytes(8) + os.urandom(rackline.HASH_BYTES - 8)
        fields = [VERSION, record_hash, time.time(), self._index.key_spaces(self._group.number), runs]
        record = msgspec.msgpack.encode(fields)
        if len(record) > RECORD_BYTES:
            self._stats.count("undescribed_blocks", blocks)
            return
        start = free * RECORD_BYTES
        self._bytes[start : start + len(record)] = record
        try:
            publish = self._session.publish(record_hash, 0, self._memory, [free])
        except rackline.Error:
            # The engine's own saves say in the log what is wrong with the pool.
            self._stats.count("undescribed_blocks", blocks)
            return
        self._under_way[free] = (publish, blocks)

    def _end_publishes(self) -> None:
        for place, (publish, blocks) in list(self._under_way.items()):
            try:
                result = publish.poll()
            except rackline.Error:
                published = 0
            else:
                if result is None:
                    continue
                published = result.published
            del self._under_way[place]
            if published == 0:
                self._stats.count("undescribed_blocks", blocks)
