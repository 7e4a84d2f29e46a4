"""KV events: what the engine tells routers about blocks in the pool."""

from __future__ import annotations

from typing import Any

from rackline.vllm.messages import SaveJob

MEDIUM = "CXL"


def stored(request: Any, job: SaveJob, block_tokens: int) -> Any:
    """The event that a save is complete on every rank."""
    from vllm.distributed.kv_events import BlockStored
    from vllm.v1.core.kv_cache_utils import (
        generate_block_hash_extra_keys,
        maybe_convert_block_hash,
        to_event_extra_keys,
    )

    first, end = job.first_depth, job.first_depth + len(job.hashes)
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
        session_id=request.session_id,
    )
