"""What LMCache's server loads in its mode of several processes: its objects, shared with every server of
the rack.

- **LMCACHE-D1** Whole objects only, copied between LMCache's memory and that of the pool, and only what the pool's
  checks let pass: an object that failed, and those behind it in its task, are not there.
- **LMCACHE-D2** No call waits: threads carry out the tasks, and an event says when one is done. Nor does a thread
  wait for a model that is being opened: what LMCache stores, and offers only once, is put off until it is
  open; a lookup is put off for so long, and finds nothing then.
- **LMCACHE-D3** Nothing is raised once it is made: what fails is a miss, or not stored.
- **LMCACHE-D4** LMCache keeps the memory of a task until it is done, except for ``--l1-read-ttl-seconds`` at most: then
  it may give it to another chunk, whose bytes would be stored under this one's name. A task that has waited
  for ``task_timeout_ms`` is given up, put off or not. When this is closed all are done.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import rackline
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from rackline.engines.attachment import Attachment
from rackline.engines.reasons import SAVED
from rackline.lmcache.l2_identity import ObjectForm, object_form, object_hash
from rackline.lmcache.l2_openings import Opening, Openings
from rackline.lmcache.l2_settings import L2Settings
from rackline.lmcache.l2_tasks import Tasks
from rackline.lmcache.log import use_log_of_lmcache
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
class _Part:
    """The objects of one form in a task."""

    form: ObjectForm
    places: list[int]
    opening: Opening


class RacklineL2Adapter(L2AdapterInterface):
    """A plugin of LMCache's server for what lies behind its memory (``"type": "plugin"``)."""

    def __init__(
        self, adapter_params: dict[str, Any], l1_memory_desc: L1MemoryDesc | None = None
    ) -> None:
        # The server's class has attributes of its own, which begin with an underscore, too.
        super().__init__()
        use_log_of_lmcache()
        self._settings = L2Settings.of(adapter_params)
        self._attachment = Attachment(self._settings)
        self._openings = Openings(self._settings)
        self._pins = Pins(self._settings.hold_ms)
        self._load_threads = ThreadPoolExecutor(LOADS_AT_ONCE, thread_name_prefix="rackline_load")
        self._store_threads = ThreadPoolExecutor(
            STORES_AT_ONCE, thread_name_prefix="rackline_store"
        )
        self._stores, self._lookups, self._loads = [
            Tasks(threads, self._settings.task_timeout_ms)
            for threads in (self._store_threads, self._load_threads, self._load_threads)
        ]
        self._numbers = itertools.count(1)

    def get_store_event_fd(self) -> int:
        return self._stores.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookups.fileno()

    def get_load_event_fd(self) -> int:
        return self._loads.fileno()

    # Stores

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        number = next(self._numbers)
        nothing = L2StoreResult(False, 0)
        self._stores.begin(number, nothing, lambda _: self._store(keys, objects))
        return number

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        return self._stores.take_all()

    def _store(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2StoreResult | Future:
        parts = self._parts([_form_of(*pair) for pair in zip(keys, objects, strict=True)])
        for part in parts:
            if not part.opening.put_off.done():
                return part.opening.put_off
        there, new = 0, []
        for part in parts:
            if (blocks := part.opening.blocks) is None:
                continue
            outcomes = blocks.save_each(
                [object_hash(keys[place]) for place in part.places],
                list(range(len(part.places))),
                [_memory(objects[place], part.form.bytes) for place in part.places],
            )
            there += sum(outcome in SAVED for outcome in outcomes)
            new += [
                place
                for place, outcome in zip(part.places, outcomes, strict=True)
                if outcome == "published"
            ]
        # What was there already was counted by the process that stored it.
        sizes = [objects[place].get_size() for place in new]
        if new:
            self._notify_keys_stored([keys[place] for place in new], sizes)
        return L2StoreResult(there == len(keys), sum(sizes))

    # Lookups

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]
    ) -> int:
        number = next(self._numbers)
        self._lookups.begin(
            number,
            Bitmap(len(keys)),
            lambda began_s: self._lookup(keys, group_layout_descs, began_s),
        )
        return number

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        return self._lookups.take(task_id)

    def _lookup(
        self,
        keys: list[ObjectKey],
        group_layout_descs: dict[int, MemoryLayoutDesc],
        began_s: float,
    ) -> Bitmap | Future:
        layouts = [group_layout_descs.get(key.object_group_id) for key in keys]
        parts = self._parts(
            [
                None if layout is None else object_form(key, layout.shapes, layout.dtypes)
                for key, layout in zip(keys, layouts, strict=True)
            ]
        )
        for part in parts:
            if not part.opening.waited.done():
                return part.opening.waited
        found = Bitmap(len(keys))
        for part in parts:
            if (blocks := part.opening.blocks) is None:
                continue
            hashes = [object_hash(keys[place]) for place in part.places]
            waited_ms = int((time.monotonic() - began_s) * 1000)
            prefix = blocks.hold(hashes, max(0, self._settings.lookup_timeout_ms - waited_ms))
            if prefix is not None and len(prefix) > 0:
                self._pins.add(hashes[: len(prefix)], prefix)
                found.batched_set(part.places[: len(prefix)])
        return found

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        for key in keys:
            try:
                self._pins.drop(object_hash(key))
            except rackline.Error as error:
                # LMCACHE-D3. It is let go after hold_ms at the latest.
                logger.warning("Rackline: an unlock failed: %s", error)

    # Loads

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        number = next(self._numbers)
        self._loads.begin(number, Bitmap(len(keys)), lambda _: self._load(keys, objects))
        return number

    def query_load_result(self, task_id: int) -> Bitmap | None:
        return self._loads.take(task_id)

    def _load(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> Bitmap | Future:
        parts = self._parts([_form_of(*pair) for pair in zip(keys, objects, strict=True)])
        for part in parts:
            if not part.opening.waited.done():
                # LMCACHE-D2.
                return part.opening.waited
        loaded, good = Bitmap(len(keys)), []
        for part in parts:
            if (blocks := part.opening.blocks) is None:
                continue
            hashes = [object_hash(keys[place]) for place in part.places]
            prefix = blocks.hold(hashes, self._settings.lookup_timeout_ms)
            if prefix is None:
                continue
            with prefix:
                places = part.places[: len(prefix)]
                memories = [_memory(objects[place], part.form.bytes) for place in places]
                # LMCACHE-D1.
                valid = blocks.load_each(prefix.handles(), memories)
            loaded.batched_set(places[:valid])
            good += [keys[place] for place in places[:valid]]
        if good:
            self._notify_keys_accessed(good)
        return loaded

    # The rest

    def _parts(self, forms: list[ObjectForm | None]) -> list[_Part]:
        """The objects of each form, in their order, of which this begins to open what is not open. What
        has no form is left out."""
        places: dict[ObjectForm, list[int]] = collections.defaultdict(list)
        for place, form in enumerate(forms):
            if form is not None:
                places[form].append(place)
        return [_Part(form, found, self._openings.of(form)) for form, found in places.items()]

    def counters(self) -> dict[str, int]:
        """What was done since the start, by name."""
        total: collections.Counter[str] = collections.Counter()
        for blocks in self._openings.shared():
            total.update(blocks.counters())
        return dict(total)

    def report_status(self) -> dict[str, Any]:
        """Healthy while every model that was asked for can be shared. ``not_shared`` says which cannot,
        and why, and ``opening`` which is not open yet."""
        refused = self._openings.refused()
        return {
            "is_healthy": not refused,
            "type": type(self).__name__,
            "not_shared": refused,
            "opening": self._openings.opening(),
            **self.counters(),
        }

    def close(self) -> None:
        """Waits for what has begun; nothing of LMCache's memory is used after return (LMCACHE-D4)."""
        self._openings.stop()
        self._load_threads.shutdown()
        self._store_threads.shutdown()
        self._pins.clear()
        self._openings.close()
        self._attachment.close()
        for tasks in (self._stores, self._lookups, self._loads):
            tasks.close()


def _form_of(key: ObjectKey, item: MemoryObj) -> ObjectForm | None:
    """The form of an object; ``None`` when it has not all the bytes that it should have, or no memory
    any more (LMCACHE-D4)."""
    form = object_form(key, item.get_shapes(), item.get_dtypes())
    return form if item.is_valid() and item.get_size() == form.bytes else None


def _memory(item: MemoryObj, size: int) -> rackline.BlockMemory:
    return rackline.BlockMemory([(item.data_ptr, size, size)], 1, item)
