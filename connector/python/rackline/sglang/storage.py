"""The class that SGLang loads: pages of its host pool, shared with every engine of the rack.

- **SGLANG-S1** Whole pages only, copied between the host pool and the memory of the pool, and only what the
  pool's checks let pass: a page that failed, and those behind it, were not fetched.
- **SGLANG-S2** Nothing is raised once the engine runs: SGLang calls from threads of its own, which wait, and
  what fails is a miss, or not stored.
- **SGLANG-S3** A page as it lies in the host pool and a page that the pool made flat may have their bytes in
  another order: they are never taken for each other.
- **SGLANG-S4** Once the storage was cleared, which is how new weights are announced, this process shares nothing
  any more, also with a backend that is attached later.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from typing import Any

import rackline
import torch
from rackline.engines.blocks import SharedBlocks
from rackline.engines.settings import SettingsError
from rackline.sglang.host_pages import page_numbers, pages_in_memory
from rackline.sglang.identity import page_model, server_arguments
from rackline.sglang.settings import Settings, check_engine
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolTransfer,
    PoolTransferResult,
)

logger = logging.getLogger(__name__)

# Set when the storage of this process was cleared (SGLANG-S4): a backend that is attached later is another one.
_cleared = threading.Event()


class RacklineStorage(HiCacheStorage):
    """A storage backend of HiCache."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict | None = None) -> None:
        if _cleared.is_set():
            raise SettingsError(
                "the storage of this process was cleared, and its weights may be new: start the engine "
                "anew to share again"
            )
        given = storage_config.extra_config or {}
        self._settings = Settings.of(given)
        self._config, self._arguments = storage_config, server_arguments()
        check_engine(storage_config, self._arguments, self._settings)
        # SGLang calls either the methods with `_v1`, or those that take tensors.
        self._zero_copy = bool(given.get("interface_v1", False))
        self._pool: Any = None
        self._memory: rackline.BlockMemory | None = None
        self._blocks: SharedBlocks | None = None
        self._changed = threading.Lock()
        self._stats = self._no_stats()

    # Start and end

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        memory, lengths = pages_in_memory(mem_pool_host)
        form = "pages" if self._zero_copy else "flat"
        model = page_model(
            self._config, self._arguments, self._settings.model_id, mem_pool_host, lengths, form
        )
        self._pool, self._memory = mem_pool_host, memory
        self._blocks = SharedBlocks(self._settings, model, sum(lengths))

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if host_pool is not self._pool:
            self.close()
            raise SettingsError(
                f"the model keeps more than KV of full attention ({host_pool_name}): hybrid models, "
                "sparse attention with an indexer, and draft models are not supported"
            )

    # SGLang registers its host pools when its threads run: what it asks of more than one after that was
    # refused is not there, and is not stored.

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        return PoolTransferResult.empty()

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        return {transfer.name: [False] * len(transfer.keys or []) for transfer in transfers}

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        return {transfer.name: [False] * len(transfer.keys or []) for transfer in transfers}

    def clear(self) -> bool:
        """What is in the pool is other engines' too, and stays; from now on this engine does not
        find it, and shares nothing (SGLANG-S4)."""
        _cleared.set()
        if self._blocks is not None:
            self._blocks.stop()
        logger.warning(
            "Rackline: the storage was cleared: this engine shares no pages until you restart it"
        )
        return True

    def close(self) -> None:
        """Waits for what was begun, and leaves the pool."""
        if self._blocks is not None:
            self._blocks.close()
        self._memory = None

    # Pages as they lie in the host pool

    def batch_exists(
        self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> int:
        if self._blocks is None:
            return 0
        return self._blocks.find(_hashes(keys), self._settings.lookup_timeout_ms)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_get_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        pages = self._pages(keys, host_indices)
        if pages is None:
            return [False] * len(keys)
        began_s = time.monotonic()
        # SGLANG-S1, SGLANG-S2.
        valid = self._blocks.load(_hashes(keys), self._memory, pages)
        self._observe("prefetch", valid, began_s)
        return [number < valid for number in range(len(keys))]

    def batch_set_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        pages = self._pages(keys, host_indices)
        if pages is None:
            return [False] * len(keys)
        began_s = time.monotonic()
        saved = self._blocks.save(_hashes(keys), _depth(extra_info), self._memory, pages)
        self._observe("backup", sum(saved), began_s)
        return saved

    def _pages(self, keys: list[str], host_indices: torch.Tensor) -> list[int] | None:
        if self._blocks is None or self._memory is None or not self._zero_copy:
            return None
        pages = page_numbers(host_indices, self._pool.page_size, len(keys))
        if pages is None:
            logger.error("Rackline: SGLang passed %d keys and indices of another number of pages", len(keys))
        return pages

    # Pages that the host pool made flat

    def batch_get(
        self,
        keys: list[str],
        target_locations: Any | None = None,
        target_sizes: Any | None = None,
    ) -> list[torch.Tensor | None]:
        valid = 0
        if self._takes_flat(keys, target_locations):
            began_s = time.monotonic()
            staged = torch.empty(len(keys), self._blocks.block_bytes, dtype=torch.uint8)
            memory = rackline.block_memory(staged)
            valid = self._blocks.load(_hashes(keys), memory, list(range(len(keys))))
            for target, page in zip(target_locations[:valid], staged):
                target.view(torch.uint8).copy_(page)
            self._observe("prefetch", valid, began_s)
        found = list(target_locations[:valid]) if valid else []
        return found + [None] * (len(keys) - valid)

    def batch_set(
        self,
        keys: list[str],
        values: Any | None = None,
        target_locations: Any | None = None,
        target_sizes: Any | None = None,
    ) -> bool:
        flat = None if values is None else [value.contiguous().flatten() for value in values]
        if not self._takes_flat(keys, flat):
            return False
        began_s = time.monotonic()
        staged = torch.stack([value.view(torch.uint8) for value in flat])
        memory = rackline.block_memory(staged)
        saved = self._blocks.save(_hashes(keys), 0, memory, list(range(len(keys))))
        self._observe("backup", sum(saved), began_s)
        return all(saved)

    def get(
        self, key: str, target_location: Any | None = None, target_sizes: Any | None = None
    ) -> torch.Tensor | None:
        targets = None if target_location is None else [target_location]
        return self.batch_get([key], targets)[0]

    def set(
        self,
        key: str,
        value: Any | None = None,
        target_location: Any | None = None,
        target_sizes: Any | None = None,
    ) -> bool:
        return self.batch_set([key], None if value is None else [value])

    def _takes_flat(self, keys: list[str], tensors: Any) -> bool:
        """Whether these are tensors in memory of the host, of a page each, and pages are flat here (SGLANG-S3)."""
        if self._blocks is None or self._zero_copy or tensors is None or not keys:
            return False
        return len(tensors) == len(keys) and all(
            tensor.device.type == "cpu"
            and tensor.is_contiguous()
            and tensor.dim() == 1
            and tensor.numel() * tensor.element_size() == self._blocks.block_bytes
            for tensor in tensors
        )

    # What was done

    def counters(self) -> dict[str, int]:
        """What was done since the start, by name."""
        return {} if self._blocks is None else self._blocks.counters()

    def get_stats(self) -> Any:
        """For SGLang's metrics: pages and GiB/s of each call since the last report."""
        if not self._config.enable_storage_metrics:
            return None
        with self._changed:
            stats, self._stats = self._stats, self._no_stats()
        return stats

    def _no_stats(self) -> Any:
        if not self._config.enable_storage_metrics:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        return StorageMetrics()

    def _observe(self, what: str, pages: int, began_s: float) -> None:
        if self._stats is None or pages == 0:
            return
        gib = pages * self._blocks.block_bytes / (1 << 30)
        with self._changed:
            getattr(self._stats, f"{what}_pgs").append(pages)
            speed = gib / max(time.monotonic() - began_s, 1e-9)
            getattr(self._stats, f"{what}_bandwidth").append(speed)


def _hashes(keys: list[str]) -> list[bytes]:
    """SGLang's chained page hashes, SHA-256 in hexadecimal, as bytes; of anything else a digest."""
    return [_hash(key) for key in keys]


def _hash(key: str) -> bytes:
    try:
        found = bytes.fromhex(key)
    except ValueError:
        found = b""
    return found if len(found) == 32 else hashlib.sha256(key.encode()).digest()


def _depth(extra_info: HiCacheStorageExtraInfo | None) -> int:
    """Pages before these in their prompt, where SGLang tells (``hicache_storage_pass_prefix_keys``)."""
    return len(extra_info.prefix_keys or ()) if extra_info is not None else 0
