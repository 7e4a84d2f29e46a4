"""What decides what the bytes of an offloaded chunk mean, as far as vLLM tells a tier."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import rackline
from rackline.engines.settings import SettingsError

# The order of the bytes in a chunk is vLLM's: a row of the primary tier. Counted up when what is
# taken of it changes.
LAYOUT_VERSION = 1


def tier_model(config: Any, model: str, chunk_bytes: int) -> rackline.Model:
    """The identity of the chunks of an engine whose ``OffloadingConfig`` is ``config``, of the
    weights that ``model`` stands for. A chunk has the bytes of all ranks."""
    import vllm

    from rackline.vllm.layout import machine

    parallel = config.parallel
    if parallel.pp_size > 1 or parallel.pcp_size > 1 or parallel.dcp_size > 1:
        raise SettingsError(
            "pipeline and context parallelism are not supported: set the sizes of both to 1"
        )
    if config.canonical_layout:
        raise SettingsError(
            'the tier stores rows as they are: leave "canonical_layout" out of '
            "kv_connector_extra_config"
        )
    told = {
        "groups": [dataclasses.asdict(group) for group in config.groups],
        "cache": dataclasses.asdict(config.cache),
        "worker_bytes": config.worker_kv_bytes_per_block,
        "chunk_bytes": chunk_bytes,
        "world_size": parallel.world_size,
        "replicated": config.replicated_layout,
        "layout": config.kv_cache_layout,
        "machine": machine(),
    }
    return rackline.Model(
        name=model,
        revision=f"vllm {vllm.__version__} tier {json.dumps(told, sort_keys=True)}",
        dtype=config.model.dtype,
        layout_version=LAYOUT_VERSION,
        block_tokens=config.groups[0].tokens_per_block * config.cache.blocks_per_chunk,
        tensor_parallel_rank=0,
        tensor_parallel_size=parallel.tp_size,
        layers=sum(len(group.layer_names) for group in config.groups),
        # A tier is not told: with the layers' names and the length of a block it is enough.
        kv_heads=0,
        head_dim=0,
    )
