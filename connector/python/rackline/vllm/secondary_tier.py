"""The pool as a tier behind vLLM's own CPU tier: a ``SecondaryTierManager`` of its
``OffloadingConnector``. For engines whose KV is on a GPU: vLLM copies between the GPU and its CPU
tier, and this tier between that and the pool.

- **VLLM-T1** Nothing here waits for the pool in the scheduler: lookups, loads and stores run in threads,
  and it asks what is done.
- **VLLM-T2** A chunk is looked up and held again when it is loaded: one that went away since the scheduler
  was told of it was not loaded, and is not found again for that request.
- **VLLM-T3** After the engine's cache was reset, which is how new weights are announced, nothing is shared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

import rackline
from rackline.engines.blocks import SharedBlocks
from rackline.engines.settings import PoolSettings, SettingsError
from rackline.vllm.log import use_log_of_vllm
from rackline.vllm.tier_identity import tier_model
from rackline.vllm.tier_lookups import TierLookups, block_hash
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.metrics.cache_hit_source import CacheHitSource

if TYPE_CHECKING:
    from typing_extensions import Self
    from vllm.v1.kv_offload.base import OffloadingSpec
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector

logger = logging.getLogger(__name__)

# Jobs that are waited for at once. Loads do not wait behind stores.
LOADS_AT_ONCE = 4
STORES_AT_ONCE = 2


@dataclasses.dataclass(frozen=True)
class TierSettings(PoolSettings):
    """The entries of the tier in ``secondary_tiers``, besides ``type`` and ``module_path``."""

    PLACE: ClassVar[str] = 'the tier\'s entry in "secondary_tiers"'

    locality: str = ""
    """What vLLM takes the tier for where requests choose among tiers: ``LOCAL`` or ``REMOTE``; either
    when it is not set."""

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        settings = super().of(given)
        if settings.locality and settings.locality not in {known.value for known in Locality}:
            raise SettingsError(
                f'the setting "locality" is {settings.locality!r}: "LOCAL" or "REMOTE"'
            )
        if not settings.model_id:
            raise SettingsError(
                "vLLM does not tell a tier of all that decides what KV is computed: set \"model_id\" to "
                "a name that stands for the weights, and for --quantization, --hf-overrides, the scales "
                "of the KV and LoRA adapters, the same on every host where these are the same"
            )
        return settings


class RacklineTier(SecondaryTierManager):
    """Chunks of vLLM's CPU tier, shared with every engine of the rack."""

    # In vLLM's count of prompt tokens by where they came from.
    cache_hit_source = CacheHitSource.HOST

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        use_log_of_vllm()
        own = TierSettings.of(settings)
        config = offloading_spec.config
        self._memory: rackline.BlockMemory | None = rackline.block_memory(primary_kv_view)
        self.locality = Locality(own.locality) if own.locality else None
        model = tier_model(config, own.model_id, self._memory.block_bytes)
        self._tokens = model.block_tokens
        self._blocks = SharedBlocks(own, model, self._memory.block_bytes)
        self._lookups = TierLookups(tier_type, self._blocks)
        self._loads = ThreadPoolExecutor(LOADS_AT_ONCE, thread_name_prefix="rackline_load")
        self._stores = ThreadPoolExecutor(STORES_AT_ONCE, thread_name_prefix="rackline_store")
        self._under_way: set[Future[None]] = set()
        self._changed = threading.Lock()
        self._finished: queue.SimpleQueue[tuple[TransferJob, JobResult]] = queue.SimpleQueue()
        self._shares = True

    # Lookups

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if not self._shares:
            return LookupResult.MISS
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._lookups.flush()

    # Transfers

    def submit_store(self, job_metadata: TransferJob) -> None:
        keys = list(job_metadata.keys)
        ends = [job_metadata.req_context.get_offload_key_position(key) for key in keys]
        # Chunks of the end of a prompt are evicted before those of its beginning.
        depth = max(0, min((end for end in ends if end), default=0) // self._tokens - 1)
        self._begin(self._stores, self._store, job_metadata, depth)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._begin(self._loads, self._load, job_metadata)

    def _begin(
        self,
        threads: ThreadPoolExecutor,
        transfer: Callable[..., int],
        job: TransferJob,
        *arguments: Any,
    ) -> None:
        future = None
        if self._shares:
            # Refused after the tier was shut down.
            with contextlib.suppress(RuntimeError):
                # VLLM-T1.
                future = threads.submit(self._run, transfer, job, *arguments)
        if future is None:
            self._finished.put((job, JobResult(job.job_id, success=False)))
            return
        with self._changed:
            self._under_way.add(future)
        future.add_done_callback(self._ended)

    def _ended(self, future: Future[None]) -> None:
        with self._changed:
            self._under_way.discard(future)

    def _run(self, transfer: Callable[..., int], job: TransferJob, *arguments: Any) -> None:
        """In a thread: a job, to its result. What fails is not loaded, or not stored."""
        began_s = time.monotonic()
        try:
            done = transfer(job, *arguments)
        except Exception as error:
            # Whatever it is: a job without a result would keep its chunks for ever.
            what = "loaded" if job.is_promotion else "stored"
            logger.warning("Rackline: %s: not %s: %s", job.req_context.req_id, what, error)
            done = 0
        keys = list(job.keys)
        result = JobResult(
            job.job_id,
            success=done == len(keys),
            successful_keys=tuple(keys[:done]) if job.is_promotion and done else None,
            transfer_time=time.monotonic() - began_s,
            transfer_bytes=done * self._blocks.block_bytes,
        )
        self._finished.put((job, result))

    def _store(self, job: TransferJob, depth: int) -> int:
        """How many chunks can be found now."""
        hashes = [block_hash(key) for key in job.keys]
        return sum(self._blocks.save(hashes, depth, self._memory, job.chunk_ids.tolist()))

    def _load(self, job: TransferJob) -> int:
        """How many chunks, from the first on, are loaded (VLLM-T2)."""
        hashes = [block_hash(key) for key in job.keys]
        return self._blocks.load(hashes, self._memory, job.chunk_ids.tolist())

    def get_finished_jobs(self) -> Iterable[JobResult]:
        results = []
        while True:
            try:
                job, result = self._finished.get_nowait()
            except queue.Empty:
                return results
            if job.is_promotion and not result.success:
                loaded = len(result.successful_keys or ())
                self._lookups.mark_miss(list(job.keys)[loaded:])
            results.append(result)

    def drain_jobs(self) -> None:
        """Waits for what was begun. The engine calls this when its cache is reset, so that from then
        on nothing is shared (VLLM-T3)."""
        self._wait()
        if self._shares:
            self._shares = False
            logger.warning(
                "Rackline: the cache was reset, and the weights may be new: this engine shares no "
                "blocks until you restart it"
            )

    def _wait(self) -> None:
        while True:
            with self._changed:
                waited_for = list(self._under_way)
            if not waited_for:
                return
            for future in waited_for:
                future.exception()

    def shutdown(self) -> None:
        self._lookups.shutdown()
        self._loads.shutdown()
        self._stores.shutdown()
        # The engine unmaps it next.
        self._memory = None
        self._blocks.close()
