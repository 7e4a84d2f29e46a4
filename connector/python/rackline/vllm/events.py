"""KV events: what the engine tells routers about blocks in the pool.

- **VLLM-V7** A block is told as stored when it is certainly in the pool. A save also ends when another
  publish writes the same block, and that publish may fail. Such blocks are looked up first.
"""

from __future__ import annotations

import collections
import time
from typing import Any

from rackline.vllm.groups import Group, Groups
from rackline.vllm.lookup import Search
from rackline.vllm.messages import SaveJob
from rackline.vllm.search import Index
from rackline.vllm.told_lately import ToldLately

# Routers know the media GPU, CPU and STORAGE. Dynamo 1.6 drops events of any other medium.
MEDIUM = "CPU"
# The engine's host loads from the pool. Dynamo 1.6 drops events of any other locality, and events with an
# `ownership` that it does not know: that field is left out.
LOCALITY = "LOCAL"
# Saves whose blocks are looked up before they are told: the oldest are not told when there are more.
UNCERTAIN_MAX = 4096


class StoredEvents:
    """The events of an engine's saves."""

    def __init__(self, index: Index, groups: Groups) -> None:
        self._index, self._group = index, groups.told
        self._unit_blocks = groups.unit_tokens // groups.told.block_tokens
        self._events: list[Any] = []
        self._lately = ToldLately()
        self._uncertain: collections.deque[tuple[Any, SaveJob, Search | None]] = collections.deque(
            maxlen=UNCERTAIN_MAX
        )

    def saved(self, request: Any, job: SaveJob, certain: bool) -> None:
        """Every rank has saved the blocks of ``job``, or found them there when not ``certain``."""
        if certain:
            self._tell(request, job, len(job.block_ids))
        else:
            self._uncertain.extend((request, part, None) for part in self._lately.untold(job))

    def _tell(self, request: Any, job: SaveJob, blocks: int) -> None:
        if blocks > 0:
            self._lately.add(job, blocks)
            self._events.append(stored(request, job, blocks, self._group))

    def look_after(self) -> None:
        """Every step: tells blocks that were looked up meanwhile (VLLM-V7)."""
        for _ in range(len(self._uncertain)):
            request, job, search = self._uncertain.popleft()
            first = job.first_depth // self._unit_blocks
            if search is None:
                end = -(-(job.first_depth + len(job.block_ids)) // self._unit_blocks)
                search = self._index.look(request, first, end, time.monotonic(), hold=False)
            found = None if search is None else search.found(0)
            if found is None:
                self._uncertain.append((request, job, search))
            else:
                blocks = (first + found) * self._unit_blocks - job.first_depth
                self._tell(request, job, min(blocks, len(job.block_ids)))

    def take(self) -> list[Any]:
        events, self._events = self._events, []
        return events


def stored(request: Any, job: SaveJob, blocks: int, group: Group) -> Any:
    """The event that the first blocks of a save of a group's blocks are in the pool, on every rank."""
    from vllm.distributed.kv_events import BlockStored
    from vllm.v1.core.kv_cache_utils import (
        generate_block_hash_extra_keys,
        maybe_convert_block_hash,
        to_event_extra_keys,
    )

    first, end = job.first_depth, job.first_depth + blocks
    block_tokens, before = group.block_tokens, max(0, first - 1)
    # From the block before the first on.
    hashes = group.hashes(request, range(before, end))
    # What else is in each block's hash: adapter, images, salt.
    keys, image = [], 0
    for depth in range(first, end):
        start = depth * block_tokens
        told, image = generate_block_hash_extra_keys(request, start, start + block_tokens, image)
        keys.append(told)
    return BlockStored(
        block_hashes=[maybe_convert_block_hash(hash) for hash in hashes[first - before :]],
        parent_block_hash=maybe_convert_block_hash(hashes[0]) if first > 0 else None,
        token_ids=list(request.all_token_ids[first * block_tokens : end * block_tokens]),
        block_size=block_tokens,
        lora_id=request.lora_request.adapter_id if request.lora_request else None,
        lora_name=request.lora_request.name if request.lora_request else None,
        medium=MEDIUM,
        extra_keys=to_event_extra_keys(keys),
        group_idx=group.number,
        locality=LOCALITY,
        session_id=request.session_id,
    )
