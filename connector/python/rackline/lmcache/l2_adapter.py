"""What LMCache's server loads in its mode of several processes: its objects, shared with every server of
the rack.

- **D1** Whole objects only, copied between LMCache's memory and that of the pool, and only what the pool's
  checks let pass: an object that failed, and those behind it in its task, are not there.
- **D2** No call waits: threads carry out the tasks, and an event says when one is done.
- **D3** Nothing is raised once it is made: what fails is a miss, or not stored.
- **D4** LMCache keeps the memory of a task until it is done; when this is closed all are.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

import rackline
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform.event_notifier import create_event_notifier
from rackline.engines.attachment import Attachment
from rackline.engines.blocks import SharedBlocks
from rackline.engines.settings import PoolSettings
from rackline.engines.weights import digest_of_folder
from rackline.lmcache.l2_identity import ObjectForm, object_form, object_hash, object_model
from rackline.lmcache.pins import Pins

if TYPE_CHECKING:
    from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
    from lmcache.v1.distributed.internal_api import L1MemoryDesc
    from lmcache.v1.memory_management import MemoryObj

logger = logging.getLogger(__name__)

# Tasks that are carried out at once. Lookups and loads do not wait behind stores.
LOADS_AT_ONCE = 4
STORES_AT_ONCE = 2


@dataclasses.dataclass(frozen=True)
class L2Settings(PoolSettings):
    """How the adapter works in this server."""

    PLACE: ClassVar[str] = "adapter_params of --l2-adapter"

    lookup_timeout_ms: int = 1000
    """After which nothing was found."""


class _Tasks:
    """Results of one kind of tasks, and the event that tells of them."""

    def __init__(self) -> None:
        self.event = create_event_notifier()
        self._changed = threading.Lock()
        self._done: dict[int, Any] = {}

    def done(self, number: int, result: Any) -> None:
        with self._changed:
            self._done[number] = result
        self.event.notify()

    def take(self, number: int) -> Any:
        with self._changed:
            return self._done.pop(number, None)

    def take_all(self) -> dict[int, Any]:
        with self._changed:
            done, self._done = self._done, {}
        return done


class RacklineL2Adapter(L2AdapterInterface):
    """A plugin of LMCache's server for what lies behind its memory (``"type": "plugin"``)."""

    def __init__(
        self, adapter_params: dict[str, Any], l1_memory_desc: L1MemoryDesc | None = None
    ) -> None:
        super().__init__()
        self._settings = L2Settings.of(adapter_params)
        self._attachment = Attachment(self._settings)
        self._stores, self._lookups, self._loads = _Tasks(), _Tasks(), _Tasks()
        self._changed = threading.Lock()
        self._tasks = 0
        self._opened: dict[ObjectForm, SharedBlocks | None] = {}
        self._pins = Pins(self._settings.hold_ms)
        self._load_threads = ThreadPoolExecutor(LOADS_AT_ONCE, thread_name_prefix="rackline_load")
        self._store_threads = ThreadPoolExecutor(
            STORES_AT_ONCE, thread_name_prefix="rackline_store"
        )

    def get_store_event_fd(self) -> int:
        return self._stores.event.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookups.event.fileno()

    def get_load_event_fd(self) -> int:
        return self._loads.event.fileno()

    # Stores

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        nothing = L2StoreResult(False, 0)
        return self._submit(self._store_threads, self._stores, nothing, self._store, keys, objects)

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        return self._stores.take_all()

    def _store(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2StoreResult:
        stored: list[int] = []
        for form, places in _by_form(keys, [_form_of(*pair) for pair in zip(keys, objects)]):
            if (blocks := self._blocks(form)) is None:
                continue
            hashes = [object_hash(keys[place]) for place in places]
            memories = [_memory(objects[place], form.bytes) for place in places]
            saved = blocks.save_each(hashes, list(range(len(places))), memories)
            stored += [place for place, good in zip(places, saved, strict=True) if good]
        sizes = [objects[place].get_size() for place in stored]
        if stored:
            self._notify_keys_stored([keys[place] for place in stored], sizes)
        return L2StoreResult(len(stored) == len(keys), sum(sizes))

    # Lookups

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]
    ) -> int:
        nothing = Bitmap(len(keys))
        arguments = (self._lookup, keys, group_layout_descs)
        return self._submit(self._load_threads, self._lookups, nothing, *arguments)

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        return self._lookups.take(task_id)

    def _lookup(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]
    ) -> Bitmap:
        found = Bitmap(len(keys))
        layouts = [group_layout_descs.get(key.object_group_id) for key in keys]
        forms = [
            None if layout is None else object_form(key, layout.shapes, layout.dtypes)
            for key, layout in zip(keys, layouts, strict=True)
        ]
        for form, places in _by_form(keys, forms):
            if (blocks := self._blocks(form)) is None:
                continue
            hashes = [object_hash(keys[place]) for place in places]
            prefix = blocks.hold(hashes, self._settings.lookup_timeout_ms)
            if prefix is not None and len(prefix) > 0:
                self._pins.add(hashes[: len(prefix)], prefix)
                found.batched_set(places[: len(prefix)])
        return found

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        for key in keys:
            try:
                self._pins.drop(object_hash(key))
            except rackline.Error as error:
                # It is let go after hold_ms at the latest.
                logger.warning("Rackline: an unlock failed: %s", error)

    # Loads

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        nothing = Bitmap(len(keys))
        return self._submit(self._load_threads, self._loads, nothing, self._load, keys, objects)

    def query_load_result(self, task_id: int) -> Bitmap | None:
        return self._loads.take(task_id)

    def _load(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> Bitmap:
        loaded, good = Bitmap(len(keys)), []
        for form, places in _by_form(keys, [_form_of(*pair) for pair in zip(keys, objects)]):
            if (blocks := self._blocks(form)) is None:
                continue
            hashes = [object_hash(keys[place]) for place in places]
            prefix = blocks.hold(hashes, self._settings.lookup_timeout_ms)
            if prefix is None:
                continue
            with prefix:
                memories = [_memory(objects[place], form.bytes) for place in places[: len(prefix)]]
                valid = blocks.load_each(prefix.handles(), memories)
            loaded.batched_set(places[:valid])
            good += [keys[place] for place in places[:valid]]
        if good:
            self._notify_keys_accessed(good)
        return loaded

    # The rest

    def _blocks(self, form: ObjectForm) -> SharedBlocks | None:
        """The blocks of objects of a form; ``None`` when they cannot be shared."""
        with self._changed:
            if form not in self._opened:
                try:
                    weights = self._settings.model_id or digest_of_folder(form.model_name)
                    model = object_model(form, weights)
                    self._opened[form] = SharedBlocks(self._settings, model, form.bytes)
                except Exception as error:
                    self._opened[form] = None
                    logger.error("Rackline: %s is not shared: %r", form.model_name, error)
            return self._opened[form]

    def _submit(
        self,
        threads: ThreadPoolExecutor,
        tasks: _Tasks,
        nothing: Any,
        work: Callable[..., Any],
        *arguments: Any,
    ) -> int:
        """Begins a task, whose result is ``nothing`` when it fails, or when this is being closed."""
        with self._changed:
            self._tasks += 1
            number = self._tasks

        def carry_out() -> None:
            result = nothing
            try:
                result = work(*arguments)
            except Exception as error:
                logger.warning("Rackline: a task of LMCache failed: %r", error)
            finally:
                tasks.done(number, result)

        try:
            threads.submit(carry_out)
        except RuntimeError:
            tasks.done(number, nothing)
        return number

    def counters(self) -> dict[str, int]:
        """What was done since the start, by name."""
        with self._changed:
            opened = [blocks for blocks in self._opened.values() if blocks is not None]
        total: collections.Counter[str] = collections.Counter()
        for blocks in opened:
            total.update(blocks.counters())
        return dict(total)

    def report_status(self) -> dict[str, Any]:
        return {"is_healthy": True, "type": type(self).__name__, **self.counters()}

    def close(self) -> None:
        """Waits for what has begun; nothing of LMCache's memory is used after return (D4)."""
        with self._changed:
            opened = [blocks for blocks in self._opened.values() if blocks is not None]
        for blocks in opened:
            blocks.stop()
        self._load_threads.shutdown()
        self._store_threads.shutdown()
        self._pins.clear()
        for blocks in opened:
            blocks.close()
        self._attachment.close()
        for tasks in (self._stores, self._lookups, self._loads):
            tasks.event.close()


def _by_form(
    keys: list[ObjectKey], forms: list[ObjectForm | None]
) -> list[tuple[ObjectForm, list[int]]]:
    """The places of the keys of each form, in their order. What has none is left out."""
    places: dict[ObjectForm, list[int]] = collections.defaultdict(list)
    for place, form in enumerate(forms):
        if form is not None:
            places[form].append(place)
    return list(places.items())


def _form_of(key: ObjectKey, item: MemoryObj) -> ObjectForm | None:
    """The form of an object; ``None`` when it has not all the bytes that it should have."""
    form = object_form(key, item.get_shapes(), item.get_dtypes())
    return form if item.get_size() == form.bytes else None


def _memory(item: MemoryObj, size: int) -> rackline.BlockMemory:
    return rackline.BlockMemory([(item.data_ptr, size, size)], 1, item)
