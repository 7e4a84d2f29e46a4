"""Lookups for a tier, in a thread of vLLM's."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterable

from rackline.engines.blocks import SharedBlocks
from vllm.v1.kv_offload.base import (
    OffloadKey,
    ReqContext,
    get_offload_block_hash,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager


logger = logging.getLogger(__name__)

# After which a step's lookups for a request found nothing more.
BATCH_MS = 1000
SHA256_BYTES = 32


class TierLookups(AsyncLookupManager):
    """Answers what the scheduler asks in one step, per request."""

    def __init__(self, tier_type: str, blocks: SharedBlocks) -> None:
        self._blocks = blocks
        self._hash_checked = False
        super().__init__(tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        if keys and not self._hash_checked:
            self._hash_checked = True
            check_hash(keys[0])
        there: set[OffloadKey] = set()
        ends_s = time.monotonic() + BATCH_MS / 1000
        for run in ascending_runs(keys, req_context):
            left_ms = int((ends_s - time.monotonic()) * 1000)
            if left_ms <= 0:
                break
            found = self._blocks.find([block_hash(key) for key in run], left_ms)
            there.update(run[:found])
        return [key in there for key in keys]


def check_hash(key: OffloadKey) -> None:
    """Says so where the engine's block hashes begin with something random. vLLM does not tell a tier
    which hash it uses: those that it seeds are shorter than SHA-256."""
    if len(get_offload_block_hash(key)) < SHA256_BYTES and "PYTHONHASHSEED" not in os.environ:
        logger.warning(
            "Rackline: the engine's block hash has a random seed in every process, so blocks of other "
            "engines are never found: use --prefix-caching-hash-algo sha256_cbor, or set PYTHONHASHSEED "
            "to the same number everywhere"
        )


def ascending_runs(keys: list[OffloadKey], req_context: ReqContext) -> list[list[OffloadKey]]:
    """Parts in which each chunk lies behind the one before it in the prompt: where such a chunk is
    missing, those behind it are of no use. Sliding windows are asked for from the end, one by one."""
    runs: list[list[OffloadKey]] = []
    last: tuple[int, int] | None = None
    for key in keys:
        position = req_context.get_offload_key_position(key)
        here = None if position is None else (get_offload_group_idx(key), position)
        follows = last is not None and here is not None and here[0] == last[0] and here > last
        if follows:
            runs[-1].append(key)
        else:
            runs.append([key])
        last = here
    return runs


def block_hash(key: OffloadKey) -> bytes:
    """The engine's hash and the group of layers, as 32 bytes."""
    return hashlib.sha256(key).digest()
