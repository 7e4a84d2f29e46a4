"""The identity of an engine's blocks in words: what has to be equal before two engines share blocks."""

from __future__ import annotations

import hashlib
from typing import Any

import rackline

Words = dict[str, "str | int"]


def tenant_word(tenant: str) -> str:
    """Tells tenants apart without naming them: other users may read these words."""
    return hashlib.sha256(b"rackline tenant word" + tenant.encode()).hexdigest()[:16]


def words_of(model: rackline.Model, block_bytes: int, tenant: str) -> Words:
    """Of a session's model; its rank aside."""
    return {
        "tenant": tenant_word(tenant),
        "name": model.name,
        "revision": model.revision,
        "dtype": model.dtype,
        "layout_version": model.layout_version,
        "block_tokens": model.block_tokens,
        "block_bytes": block_bytes,
        "layers": model.layers,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ranks": model.tensor_parallel_size,
    }


def remedy(word: str) -> str:
    """What to do about engines that differ in ``word``."""
    if word == "head_groups":
        return (
            'set "head_groups" to one number on all engines; the number of the model\'s KV heads fits every '
            "tensor_parallel_size"
        )
    if word == "block_tokens":
        return (
            "give the engines one block size, or, in vLLM, set \"stored_block_tokens\" on the engine with the "
            "longer blocks to the block size of the other"
        )
    return "start the engines with the same model, options and version of the engine"


def difference(own: Words, other: dict[str, Any]) -> str | None:
    """The first word, in the order of ``own``, that ``other`` has with another value."""
    return next((name for name, value in own.items() if other.get(name, value) != value), None)
