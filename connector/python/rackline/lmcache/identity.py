"""What decides what the bytes of a chunk mean, as far as LMCache knows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from typing import Any

import rackline

# The order of the bytes in a chunk is LMCache's. Counted up when what is taken of it changes.
LAYOUT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class ChunkForm:
    """A whole chunk in memory."""

    shapes: list[Any]
    dtypes: list[Any]
    format: Any

    @property
    def bytes(self) -> int:
        """Its length."""
        return sum(
            math.prod(shape) * dtype.itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )


def chunk_form(metadata: Any) -> ChunkForm:
    """The form of the chunks of this engine. Known when LMCache knows the engine's KV."""
    from lmcache.v1.memory_management import MemoryFormat

    form = MemoryFormat.KV_MLA_FMT if metadata.use_mla else MemoryFormat.KV_2LTD
    return ChunkForm(metadata.get_shapes(), metadata.get_dtypes(), form)


def chunk_model(
    config: Any, metadata: Any, weights: str, engine: str, form: ChunkForm
) -> rackline.Model:
    """The identity of this worker's chunks: of the weights that ``weights`` stands for, as ``engine``
    computes with them."""
    from importlib.metadata import version

    layers, _, _, heads, dim = metadata.kv_shape
    rank, ranks = storage_rank(config, metadata)
    told = {
        "engine": engine,
        "shapes": [list(shape) for shape in form.shapes],
        "types": [str(dtype) for dtype in form.dtypes],
        "format": form.format.name,
        "hash": config.pre_caching_hash_algorithm,
        "seed": os.environ.get("PYTHONHASHSEED"),
        "kv": [str(metadata.kv_dtype), list(metadata.kv_shape)],
        "mla": metadata.use_mla,
    }
    return rackline.Model(
        name=weights,
        revision=f"lmcache {version('lmcache')} {json.dumps(told, sort_keys=True)}",
        dtype=str(metadata.kv_dtype).removeprefix("torch."),
        layout_version=LAYOUT_VERSION,
        block_tokens=config.chunk_size,
        tensor_parallel_rank=rank,
        tensor_parallel_size=ranks,
        layers=layers,
        kv_heads=heads,
        head_dim=dim,
    )


def storage_rank(config: Any, metadata: Any) -> tuple[int, int]:
    """Which part of the KV this worker stores, of how many. With MLA the first stores for all, unless
    LMCache is told otherwise."""
    first_only = config.get_extra_config_value("save_only_first_rank", metadata.use_mla)
    if metadata.use_mla and first_only:
        return 0, 1
    return metadata.worker_id, metadata.world_size


def chunk_hash(key: Any) -> bytes:
    """All of LMCache's key, as 32 bytes."""
    fields = [
        key.model_name,
        key.world_size,
        key.worker_id,
        key.chunk_hash_hex,
        str(key.dtype),
        key.tags,
    ]
    return hashlib.sha256(json.dumps(fields, default=str).encode()).digest()
