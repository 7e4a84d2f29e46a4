"""The class that LMCache loads: chunks of its CPU memory, shared with every engine of the rack.

- **LMCACHE-C1** Whole chunks only, copied between LMCache's memory and that of the pool, and only what the
  pool's checks let pass: a chunk that failed, and those behind it, are not there.
- **LMCACHE-C2** Saving never waits in the engine's thread: LMCache's objects are kept while threads copy them,
  and what is too much is not saved.
- **LMCACHE-C3** Nothing is raised once it is made: what fails is a miss, or not saved.
- **LMCACHE-C4** Nothing is copied from or into LMCache's memory once LMCache closes that, which it does before
  it closes this: what has not begun then is dropped, and what has is waited for.
"""

from __future__ import annotations

import asyncio
import collections
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
from rackline.engines.reasons import SAVED
from rackline.engines.settings import SettingsError
from rackline.lmcache.engine import weights_and_engine
from rackline.lmcache.identity import ChunkForm, chunk_form, chunk_hash, chunk_model
from rackline.lmcache.log import use_log_of_lmcache
from rackline.lmcache.pins import Pins
from rackline.lmcache.settings import Settings, check_engine
from rackline.lmcache.under_way import UnderWay

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
        use_log_of_lmcache()
        check_engine(config, metadata)
        self._settings = Settings.of(config.extra_config or {})
        if local_cpu_backend is None:
            raise SettingsError("chunks are fetched into LMCache's memory: set max_local_cpu_size")
        self._weights, self._engine = weights_and_engine(self._settings)
        self._attachment = Attachment(self._settings)
        self._changed = threading.Lock()
        self._open: tuple[SharedBlocks, ChunkForm] | None = None
        self._ended = False
        self._saving: set[CacheEngineKey] = set()
        self._pins = Pins(self._settings.hold_ms)
        self._loads = ThreadPoolExecutor(LOADS_AT_ONCE, thread_name_prefix="rackline_load")
        self._saves = ThreadPoolExecutor(SAVES_AT_ONCE, thread_name_prefix="rackline_save")
        self._under_way = UnderWay()
        self._drain_before_close_of(local_cpu_backend)

    def __str__(self) -> str:
        return "RacklineBackend"

    def _opened(self) -> tuple[SharedBlocks, ChunkForm] | None:
        """The blocks, and the form of a chunk, which LMCache may not know before the engine has told
        it of its KV. ``None`` when they are not available."""
        with self._changed:
            if self._open is None and not self._ended:
                try:
                    form = chunk_form(self.metadata)
                    model = chunk_model(
                        self.config, self.metadata, self._weights, self._engine, form
                    )
                    self._open = SharedBlocks(self._settings, model, form.bytes), form
                except Exception as error:
                    # Also what LMCache's own description of a chunk raises (LMCACHE-C3).
                    self._ended = True
                    logger.error("Rackline: this engine shares no chunks: %r", error)
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
        prefix = opened[0].hold(hashes, self._settings.lookup_timeout_ms)
        if prefix is None:
            return 0
        self._pins.add(hashes[: len(prefix)], prefix)
        return len(prefix)

    async def batched_async_contains(
        self, lookup_id: str, keys: list[CacheEngineKey], pin: bool = False
    ) -> int:
        found = await self._in_thread(self.batched_contains, keys, pin)
        return 0 if found is None else found

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
        return self._submit(self._loads, self.get_blocking, key)

    async def batched_get_non_blocking(
        self, lookup_id: str, keys: list[CacheEngineKey], transfer_spec: Any = None
    ) -> list[MemoryObj]:
        try:
            return await self._in_thread(self._get, keys, unwanted=_give_back) or []
        finally:
            # What LMCache has pinned to load it so, it does not unpin.
            for key in keys:
                self.unpin(key)

    def _get(self, keys: list[CacheEngineKey]) -> list[MemoryObj]:
        """The chunks from the first on that are good, in LMCache's memory."""
        with self._under_way as may_use:
            if not may_use or (opened := self._opened()) is None:
                return []
            return self._get_with(opened[0], opened[1], [chunk_hash(key) for key in keys])

    def _get_with(
        self, blocks: SharedBlocks, form: ChunkForm, hashes: list[bytes]
    ) -> list[MemoryObj]:
        prefix = blocks.hold(hashes, self._settings.lookup_timeout_ms)
        if prefix is None or len(prefix) == 0:
            return []
        objects: list[MemoryObj] = []
        valid = 0
        with prefix:
            try:
                self._allocate(objects, len(prefix), form)
                memories = [_memory(item, form.bytes) for item in objects]
                # LMCACHE-C1.
                valid = blocks.load_each(prefix.handles(), memories)
            except Exception as error:
                logger.warning("Rackline: %d chunks are not loaded: %r", len(objects), error)
            finally:
                _give_back(objects[valid:])
        return objects[:valid]

    def _allocate(self, objects: list[MemoryObj], count: int, form: ChunkForm) -> None:
        """Fills ``objects`` with as many as LMCache has room for."""
        while len(objects) < count:
            # What waits for others to give room may wait for ever.
            item = self.local_cpu_backend.allocate(
                form.shapes, form.dtypes, form.format, eviction=True, busy_loop=False
            )
            if item is None:
                logger.warning(
                    "Rackline: LMCache has room for %d of %d chunks: raise max_local_cpu_size",
                    len(objects),
                    count,
                )
                break
            objects.append(item)

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
        with self._under_way as may_use:
            if not may_use or (opened := self._opened()) is None:
                return None
            begun = self._begin_to_save(*opened, keys, objs, on_complete_callback)
        return None if begun is None else [begun]

    def _begin_to_save(
        self,
        blocks: SharedBlocks,
        form: ChunkForm,
        keys: Sequence[CacheEngineKey],
        objs: list[MemoryObj],
        on_complete_callback: Callable[[CacheEngineKey], None] | None,
    ) -> Future | None:
        taken: list[tuple[int, CacheEngineKey, MemoryObj]] = []
        left_out: collections.Counter[str] = collections.Counter()
        with self._changed:
            for depth, (key, item) in enumerate(zip(keys, objs)):
                if item.get_size() != form.bytes or item.get_memory_format() != form.format:
                    left_out["not_whole"] += 1
                elif key in self._saving:
                    left_out["being_saved"] += 1
                elif len(self._saving) >= self._settings.saves_max:
                    left_out["saves_max"] += 1
                else:
                    self._saving.add(key)
                    item.ref_count_up()
                    taken.append((depth, key, item))
        for reason, chunks in left_out.items():
            blocks.left_out(chunks, reason)
        if not taken:
            return None
        # LMCACHE-C2.
        begun = self._submit(self._saves, self._save, blocks, form, taken, on_complete_callback)
        if begun is None:
            self._let_go(taken)
        return begun

    def _save(
        self,
        blocks: SharedBlocks,
        form: ChunkForm,
        taken: list[tuple[int, CacheEngineKey, MemoryObj]],
        on_complete_callback: Callable[[CacheEngineKey], None] | None,
    ) -> None:
        """In a thread: saves chunks, and gives their objects back."""
        with self._under_way as may_use:
            outcomes = ["stopped"] * len(taken)
            try:
                if may_use:
                    outcomes = blocks.save_each(
                        [chunk_hash(key) for _, key, _ in taken],
                        [depth for depth, _, _ in taken],
                        [_memory(item, form.bytes) for _, _, item in taken],
                    )
            finally:
                self._let_go(taken)
        for (_, key, _), outcome in zip(taken, outcomes, strict=True):
            if outcome in SAVED and on_complete_callback is not None:
                try:
                    on_complete_callback(key)
                except Exception as error:
                    logger.warning("Rackline: LMCache's callback for a chunk failed: %s", error)

    def _let_go(self, taken: list[tuple[int, CacheEngineKey, MemoryObj]]) -> None:
        with self._changed:
            self._saving.difference_update(key for _, key, _ in taken)
        _give_back([item for _, _, item in taken])

    # The rest

    def remove(self, key: CacheEngineKey, force: bool = True) -> bool:
        """What is in the pool is other engines' too, and stays."""
        return False

    def touch_cache(self) -> None:
        """Nothing to do: the pool counts uses without calls."""

    def get_allocator_backend(self) -> AllocatorBackendInterface:
        return self.local_cpu_backend

    def counters(self) -> dict[str, int]:
        """What was done since the start, by name."""
        return {} if self._open is None else self._open[0].counters()

    # The end

    def _drain_before_close_of(self, memory: LocalCPUBackend) -> None:
        """LMCache closes its backends in the order in which it made them: its memory on the CPU
        first, while this one still copies from and into it (LMCACHE-C4)."""
        close = memory.close

        def drain_and_close() -> None:
            self._drain()
            close()

        self._drains_before = (memory, drain_and_close)
        memory.close = drain_and_close

    def _drain(self) -> None:
        """From now on LMCache's memory is not used: drops what has not begun, waits for the rest."""
        self._under_way.end()
        with self._changed:
            self._ended = True
        if self._open is not None:
            self._open[0].stop()
        self._loads.shutdown()
        self._saves.shutdown()
        self._under_way.wait()

    def close(self) -> None:
        self._drain()
        memory, drain_and_close = self._drains_before
        # Another one may have been made since for the same memory.
        if vars(memory).get("close") is drain_and_close:
            del memory.close
        self._pins.clear()
        if self._open is not None:
            self._open[0].close()
        self._attachment.close()

    # Threads

    def _submit(
        self, threads: ThreadPoolExecutor, call: Callable[..., Any], *arguments: Any
    ) -> Future | None:
        """Begins a call in a thread; ``None`` when this is being closed."""
        try:
            return threads.submit(call, *arguments)
        except RuntimeError:
            return None

    async def _in_thread(
        self,
        call: Callable[..., Any],
        *arguments: Any,
        unwanted: Callable[[Any], None] | None = None,
    ) -> Any:
        """What a call returns; ``None`` when this is being closed, or it failed. A caller that is cancelled
        while it waits leaves the result to ``unwanted``."""
        begun = self._submit(self._loads, call, *arguments)
        if begun is None:
            return None
        try:
            return await asyncio.wrap_future(begun)
        except asyncio.CancelledError:
            if unwanted is not None:
                begun.add_done_callback(lambda ended: _leave(ended, unwanted))
            raise
        except Exception as error:
            logger.warning("Rackline: a call of LMCache failed: %r", error)
            return None


def _leave(ended: Future, unwanted: Callable[[Any], None]) -> None:
    """Hands the result of a call that nobody waits for any more to ``unwanted``."""
    if not ended.cancelled() and ended.exception() is None:
        unwanted(ended.result())


def _give_back(objects: list[MemoryObj]) -> None:
    for item in objects:
        item.ref_count_down()


def _memory(item: MemoryObj, chunk_bytes: int) -> rackline.BlockMemory:
    return rackline.BlockMemory([(item.data_ptr, chunk_bytes, chunk_bytes)], 1, item)
