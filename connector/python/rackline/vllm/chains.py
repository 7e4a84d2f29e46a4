"""Hashes of a request's tokens that vLLM has not made itself, by vLLM's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Hashed:
    """A request, as its own attributes say it, with other hashes of its tokens."""

    def __init__(self, request: Any, block_hashes: Sequence[bytes]) -> None:
        self._request = request
        self.block_hashes = block_hashes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


def hash_of_tokens(
    algorithm: str, request: Any, parent: bytes | None, first: int, end: int
) -> bytes:
    """vLLM's hash of the tokens ``first`` to ``end`` of a request, behind those whose hash is ``parent``: as
    of a block that ends there."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, hash_block_tokens

    # What else is in the hash: adapter, images, salt.
    extra_keys, _ = generate_block_hash_extra_keys(request, first, end, 0)
    return hash_block_tokens(
        get_hash_fn_by_name(algorithm), parent, request.all_token_ids[first:end], extra_keys
    )
