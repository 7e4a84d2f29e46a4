"""The class that LMCache loads: chunks of its CPU memory, shared with every engine of the rack.

- **C1** Whole chunks only, copied between LMCache's memory and that of the pool, and only what the
  pool's checks let pass: a chunk that failed, and those behind it, are not there.
- **C2** Saving never waits in the engine's thread: LMCache's objects are kept while threads copy them,
  and what is too much is not saved.
- **C3** Nothing is raised once it is made: what fails is a miss, or not saved.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import rackline
from lmcache import torch_device_type
from lmcache.v1.storage_backend.abstract_backend import StoragePluginInterface
from rackline.engines.attachment import Attachment
from rackline.engines.blocks import SharedBlocks
from rackline.engines.settings import SettingsError
from rackline.engines.weights import digest_of_folder
from rackline.lmcache.identity import ChunkForm, chunk_form, chunk_hash, chunk_model
from rackline.lmcache.pins import Pins
from rackline.lmcache.settings import Settings, check_engine

if TYPE_CHECKING:
    from lmcache.utils import CacheEngineKey
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.memory_management import MemoryObj
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend.abstract_backend import AllocatorBackendInterface
    from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

logger = logging.getLogger(__name__)

# Calls that are waited for at once. Loads do not wait behind saves.
LOADS_AT_ONCE = 4
SAVES_AT_ONCE = 2


class RacklineBackend(StoragePluginInterface):
    """A storage plugin of LMCache."""

    def __init__(
        self,
        dst_device: str = torch_device_type,
        config: LMCacheEngineConfig | None = None,
        metadata: LMCacheMetadata | None = None,
        local_cpu_backend: LocalCPUBackend | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(dst_device, config, metadata, local_cpu_backend, loop)
        check_engine(config, metadata)
        self._settings = Settings.of(config.extra_config or {})
        if local_cpu_backend is None:
            raise SettingsError("chunks are fetched into LMCache's memory: set max_local_cpu_size")
        self._model_name = self._settings.model_id or digest_of_folder(metadata.model_name)
        self._attachment = Attachment(self._settings)
        self._changed = threading.Lock()
        self._open: tuple[SharedBlocks, ChunkForm] | None = None
        self._ended = False
        self._saving: set[CacheEngineKey] = set()
        self._pins = Pins(self._settings.hold_ms)
        self._loads = ThreadPoolExecutor(LOADS_AT_ONCE, thread_name_prefix="rackline_load")
        self._saves = ThreadPoolExecutor(SAVES_AT_ONCE, thread_name_prefix="rackline_save")

    def __str__(self) -> str:
        return "RacklineBackend"

    def _opened(self) -> tuple[SharedBlocks, ChunkForm] | None:
        """The blocks, and the form of a chunk, which LMCache may not know before the engine has told
        it of its KV. ``None`` when they are not to be had."""
        with self._changed:
            if self._open is None and not self._ended:
                form = chunk_form(self.metadata)
                model = chunk_model(self.config, self.metadata, self._model_name, form)
                try:
                    self._open = SharedBlocks(self._settings, model, form.bytes), form
                except rackline.Error as error:
                    self._ended = True
                    logger.error("Rackline: nothing is shared: %s", error)
            return None if self._ended else self._open

    # Lookups

    def contains(self, key: CacheEngineKey, pin: bool = False) -> bool:
        return self.batched_contains([key], pin) == 1

    def batched_contains(self, keys: list[CacheEngineKey], pin: bool = False) -> int:
        if (opened := self._opened()) is None:
            return 0
        hashes = [chunk_hash(key) for key in keys]
        if not pin:
            return opened[0].find(hashes, self._settings.lookup_timeout_ms)
        prefix = opened[0].hold(hashes)
        if prefix is None:
            return 0
        self._pins.add(hashes[: len(prefix)], prefix)
        return len(prefix)

    async def batched_async_contains(
        self, lookup_id: str, keys: list[CacheEngineKey], pin: bool = False
    ) -> int:
        return await self._in_thread(0, self.batched_contains, keys, pin)

    def pin(self, key: CacheEngineKey) -> bool:
        return self.contains(key, pin=True)

    def unpin(self, key: CacheEngineKey) -> bool:
        return self._pins.drop(chunk_hash(key))

    # Loads

    def get_blocking(self, key: CacheEngineKey) -> MemoryObj | None:
        found = self._get([key])
        return found[0] if found else None

    def batched_get_blocking(self, keys: list[CacheEngineKey]) -> list[MemoryObj | None]:
        found = self._get(keys)
        return [*found, *[None] * (len(keys) - len(found))]

    def get_non_blocking(
        self, key: CacheEngineKey, location: str | None = None
    ) -> Future | None:
        return None if self._ended else self._loads.submit(self.get_blocking, key)

    async def batched_get_non_blocking(
        self, lookup_id: str, keys: list[CacheEngineKey], transfer_spec: Any = None
    ) -> list[MemoryObj]:
        return await self._in_thread([], self._get, keys)

    def _get(self, keys: list[CacheEngineKey]) -> list[MemoryObj]:
        """The chunks from the first on that are good, in LMCache's memory."""
        if (opened := self._opened()) is None:
            return []
        blocks, form = opened
        prefix = blocks.hold([chunk_hash(key) for key in keys])
        if prefix is None or len(prefix) == 0:
            return []
        with prefix:
            objects = self._allocate(len(prefix), form)
            valid = 0
            try:
                memories = [_memory(item, form.bytes) for item in objects]
                valid = blocks.load_each(prefix.handles()[: len(objects)], memories)
            finally:
                for item in objects[valid:]:
                    item.ref_count_down()
        return objects[:valid]

    def _allocate(self, count: int, form: ChunkForm) -> list[MemoryObj]:
        """As many objects as LMCache has room for."""
        objects: list[MemoryObj] = []
        while len(objects) < count:
            # What waits for others to give room may wait for ever.
            item = self.local_cpu_backend.allocate(
                form.shapes, form.dtypes, form.format, eviction=True, busy_loop=False
            )
            if item is None:
                logger.warning(
                    "Rackline: room for %d of %d chunks: raise max_local_cpu_size",
                    len(objects),
                    count,
                )
                break
            objects.append(item)
        return objects

    # Saves

    def exists_in_put_tasks(self, key: CacheEngineKey) -> bool:
        with self._changed:
            return key in self._saving

    def batched_submit_put_task(
        self,
        keys: Sequence[CacheEngineKey],
        objs: list[MemoryObj],
        transfer_spec: Any = None,
        on_complete_callback: Callable[[CacheEngineKey], None] | None = None,
    ) -> list[Future] | None:
        if (opened := self._opened()) is None:
            return None
        blocks, form = opened
        taken: list[tuple[int, CacheEngineKey, MemoryObj]] = []
        with self._changed:
            for depth, (key, item) in enumerate(zip(keys, objs)):
                whole = item.get_size() == form.bytes
                whole = whole and item.get_memory_format() == form.format
                if whole and key not in self._saving and len(self._saving) < self._settings.saves_max:
                    self._saving.add(key)
                    item.ref_count_up()
                    taken.append((depth, key, item))
        if len(taken) < len(keys):
            blocks.left_out(len(keys) - len(taken))
        if not taken:
            return None
        try:
            return [self._saves.submit(self._save, blocks, form, taken, on_complete_callback)]
        except RuntimeError:
            # It is being closed.
            self._let_go(taken)
            return None

    def _save(
        self,
        blocks: SharedBlocks,
        form: ChunkForm,
        taken: list[tuple[int, CacheEngineKey, MemoryObj]],
        on_complete_callback: Callable[[CacheEngineKey], None] | None,
    ) -> None:
        """In a thread: saves chunks, and gives their objects back."""
        try:
            saved = blocks.save_each(
                [chunk_hash(key) for _, key, _ in taken],
                [depth for depth, _, _ in taken],
                [_memory(item, form.bytes) for _, _, item in taken],
            )
        finally:
            self._let_go(taken)
        for (_, key, _), good in zip(taken, saved, strict=True):
            if good and on_complete_callback is not None:
                try:
                    on_complete_callback(key)
                except Exception as error:
                    logger.warning("Rackline: LMCache's callback for a chunk failed: %s", error)

    def _let_go(self, taken: list[tuple[int, CacheEngineKey, MemoryObj]]) -> None:
        with self._changed:
            self._saving.difference_update(key for _, key, _ in taken)
        for _, _, item in taken:
            item.ref_count_down()

    # The rest

    def remove(self, key: CacheEngineKey, force: bool = True) -> bool:
        """What is in the pool is other engines' too, and stays."""
        return False

    def touch_cache(self) -> None:
        """The pool counts what is used by itself."""

    def get_allocator_backend(self) -> AllocatorBackendInterface:
        return self.local_cpu_backend

    def counters(self) -> dict[str, int]:
        """What was done since the start, by name."""
        return {} if self._open is None else self._open[0].counters()

    def close(self) -> None:
        with self._changed:
            self._ended = True
        self._loads.shutdown()
        self._saves.shutdown()
        self._pins.clear()
        if self._open is not None:
            self._open[0].close()
        self._attachment.close()

    async def _in_thread(self, else_: Any, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._loads, call, *arguments)
        except RuntimeError:
            # It is being closed.
            return else_


def _memory(item: MemoryObj, chunk_bytes: int) -> rackline.BlockMemory:
    return rackline.BlockMemory([(item.data_ptr, chunk_bytes, chunk_bytes)], 1, item)
