"""LMCache's own storage manager with the plugin in it, as an engine's worker makes it."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.event_manager import EventManager
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.storage_manager import StorageManager

CHUNK_TOKENS = 16
LAYERS, HEADS, DIM = 3, 2, 32
PLUGIN = "rackline"


def metadata(
    worker: int = 0, workers: int = 1, dtype: torch.dtype = torch.float16, mla: bool = False,
    chunk: int = CHUNK_TOKENS, role: str = "worker",
) -> LMCacheMetadata:
    """What LMCache is told of an engine."""
    shape = (LAYERS, 1, chunk, 1, DIM) if mla else (LAYERS, 2, chunk, HEADS, DIM)
    return LMCacheMetadata(
        model_name="tiny",
        world_size=workers,
        local_world_size=workers,
        worker_id=worker,
        local_worker_id=worker,
        kv_dtype=dtype,
        kv_shape=shape,
        use_mla=mla,
        role=role,
        chunk_size=chunk,
    )


def config(settings: dict[str, Any], chunk: int = CHUNK_TOKENS, **more: Any) -> LMCacheEngineConfig:
    """LMCache's configuration: nothing is kept in its own memory."""
    extra = {
        f"storage_plugin.{PLUGIN}.module_path": "rackline.lmcache",
        f"storage_plugin.{PLUGIN}.class_name": "RacklineBackend",
        **{f"rackline.{name}": value for name, value in settings.items()},
    }
    defaults = dict(
        chunk_size=chunk,
        local_cpu=False,
        max_local_cpu_size=0.02,
        pre_caching_hash_algorithm="sha256_cbor",
        storage_plugins=[PLUGIN],
        extra_config=extra,
    )
    return LMCacheEngineConfig.from_defaults(**{**defaults, **more})


@contextlib.contextmanager
def manager(
    settings: dict[str, Any], told: LMCacheMetadata | None = None, **more: Any
) -> Iterator[StorageManager]:
    """A storage manager, closed at the end."""
    told = told or metadata()
    made = StorageManager(config(settings, told.chunk_size, **more), told, EventManager())
    try:
        yield made
    finally:
        made.close()


def keys(count: int, told: LMCacheMetadata | None = None, seed: int = 0) -> list[CacheEngineKey]:
    """The keys of the chunks of a prompt, as LMCache makes them."""
    told = told or metadata()
    hashes = [
        int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:8], "big")
        for number in range(count)
    ]
    workers = 1 if told.use_mla else told.world_size
    return [
        CacheEngineKey("tiny", workers, told.worker_id, chunk, told.kv_dtype) for chunk in hashes
    ]


def put(own: StorageManager, names: list[CacheEngineKey], seed: int) -> list[bytes]:
    """Stores chunks of random bytes, waits until they are saved, and returns their bytes."""
    told = own.metadata
    form = MemoryFormat.KV_MLA_FMT if told.use_mla else MemoryFormat.KV_2LTD
    generator = torch.Generator().manual_seed(seed)
    objects, contents = [], []
    for _ in names:
        item = own.allocate(told.get_shapes(), told.get_dtypes(), fmt=form)
        raw = torch.randint(1, 256, (item.get_size(),), generator=generator, dtype=torch.uint8)
        item.raw_data[: item.get_size()].copy_(raw)
        objects.append(item)
        contents.append(raw.numpy().tobytes())
    own.batched_put(names, objects)
    plugin = own.storage_backends[PLUGIN]
    # What one has taken up is done before what another asks of the same threads.
    for _ in range(2):
        plugin._saves.submit(lambda: None).result()
    while any(plugin.exists_in_put_tasks(name) for name in names):
        time.sleep(0.001)
    # The objects are given back after that.
    while any(item.get_ref_count() > 0 for item in objects):
        time.sleep(0.001)
    return contents


def content(item: Any) -> bytes | None:
    """The bytes of an object."""
    return None if item is None else bytes(item.byte_array)
