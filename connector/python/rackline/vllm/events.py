"""KV events: what the engine tells routers about blocks in the pool.

- **VLLM-V7** A block is told as stored when it is certainly in the pool. A save also ends when another
  publish writes the same block, and that publish may fail. Such blocks are looked up first.
"""

from __future__ import annotations

import collections
import time
from typing import Any

from rackline.vllm.messages import SaveJob
from rackline.vllm.search import Index, Search

# Routers know the media GPU, CPU and STORAGE. Dynamo 1.6 drops events of any other medium.
MEDIUM = "CPU"
# The engine's host loads from the pool. Dynamo 1.6 drops events of any other locality, and events with an
# `ownership` that it does not know: that field is left out.
LOCALITY = "LOCAL"
# Saves whose blocks are looked up before they are told: the oldest are not told when there are more.
UNCERTAIN_MAX = 4096


class StoredEvents:
    """The events of an engine's saves."""

    def __init__(self, index: Index, block_tokens: int) -> None:
        self._index, self._block_tokens = index, block_tokens
        self._events: list[Any] = []
        self._uncertain: collections.deque[tuple[Any, SaveJob, Search | None]] = collections.deque(
            maxlen=UNCERTAIN_MAX
        )

    def saved(self, request: Any, job: SaveJob, certain: bool) -> None:
        """Every rank has saved the blocks of ``job``, or found them there when not ``certain``."""
        if certain:
            self._tell(request, job, len(job.block_ids))
        else:
            self._uncertain.append((request, job, None))

    def _tell(self, request: Any, job: SaveJob, blocks: int) -> None:
        if blocks > 0:
            self._events.append(stored(request, job, blocks, self._block_tokens))

    def look_after(self) -> None:
        """Every step: tells blocks that were looked up meanwhile (VLLM-V7)."""
        for _ in range(len(self._uncertain)):
            request, job, search = self._uncertain.popleft()
            if search is None:
                end = job.first_depth + len(job.block_ids)
                search = self._index.look(
                    request, job.first_depth, end, time.monotonic(), hold=False
                )
            found = None if search is None else search.found(0)
            if found is None:
                self._uncertain.append((request, job, search))
            else:
                self._tell(request, job, found)

    def take(self) -> list[Any]:
        events, self._events = self._events, []
        return events


def stored(request: Any, job: SaveJob, blocks: int, block_tokens: int) -> Any:
    """The event that the first blocks of a save are in the pool, on every rank."""
    from vllm.distributed.kv_events import BlockStored
    from vllm.v1.core.kv_cache_utils import (
        generate_block_hash_extra_keys,
        maybe_convert_block_hash,
        to_event_extra_keys,
    )

    first, end = job.first_depth, job.first_depth + blocks
    hashes = request.block_hashes
    # What else is in each block's hash: adapter, images, salt.
    keys, image = [], 0
    for depth in range(first, end):
        start = depth * block_tokens
        told, image = generate_block_hash_extra_keys(request, start, start + block_tokens, image)
        keys.append(told)
    return BlockStored(
        block_hashes=[maybe_convert_block_hash(hashes[depth]) for depth in range(first, end)],
        parent_block_hash=maybe_convert_block_hash(hashes[first - 1]) if first > 0 else None,
        token_ids=list(request.all_token_ids[first * block_tokens : end * block_tokens]),
        block_size=block_tokens,
        lora_id=request.lora_request.adapter_id if request.lora_request else None,
        lora_name=request.lora_request.name if request.lora_request else None,
        medium=MEDIUM,
        extra_keys=to_event_extra_keys(keys),
        group_idx=0,
        locality=LOCALITY,
        session_id=request.session_id,
    )
