"""The class that vLLM loads: hands each call to the half it belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from rackline.engines.settings import SettingsError
from rackline.vllm.asked_layout import asked_layout
from rackline.vllm.log import use_log_of_vllm
from rackline.vllm.messages import Handshake, Report, Step
from rackline.vllm.scheduler import SchedulerHalf
from rackline.vllm.settings import Settings, check_engine
from rackline.vllm.statistics import RacklinePromMetrics, RacklineStats
from rackline.vllm.worker import WorkerHalf

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class RacklineConnector(KVConnectorBase_V1, SupportsHMA):
    """Shares KV blocks with every engine of the rack, through its pool."""

    # In vLLM's count of prompt tokens by where they came from.
    _cache_hit_source = CacheHitSource.HOST

    def __init__(
        self,
        vllm_config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: KVCacheConfig,
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        use_log_of_vllm()
        settings = Settings.of(self._kv_transfer_config.kv_connector_extra_config)
        check_engine(vllm_config, kv_cache_config, settings)
        # vLLM asks twice for each layer of each step.
        self._by_layers = settings.layerwise != "off"
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerHalf(vllm_config, kv_cache_config, settings)
        else:
            self._worker = WorkerHalf(vllm_config, kv_cache_config, settings)

    @property
    def scheduler(self) -> SchedulerHalf:
        assert self._scheduler is not None, "called in a worker"
        return self._scheduler

    @property
    def worker(self) -> WorkerHalf:
        assert self._worker is not None, "called in the scheduler"
        return self._worker

    @property
    def step(self) -> Step:
        step = self._get_connector_metadata()
        assert isinstance(step, Step)
        return step

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: a block that is not saved is a miss."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """In a graph of the whole forward nobody would be asked about layers."""
        return extra_config.get("layerwise", "off") != "off"

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        return asked_layout(vllm_config)

    def shutdown(self) -> None:
        for half in (self._scheduler, self._worker):
            if half is not None:
                half.close()

    # Worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.worker.register(kv_caches)

    def get_handshake_metadata(self) -> Handshake | None:
        return self.worker.handshake()

    def handle_preemptions(self, kv_connector_metadata: Step) -> None:
        self.worker.keep_preempted(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: Step) -> None:
        super().bind_connector_metadata(connector_metadata)
        self.worker.begin_step(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self.worker.start_loads(self.step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        if self._by_layers:
            self.worker.begin_layer(self.step, layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        if self._by_layers:
            self.worker.end_layer(layer_name)

    def wait_for_save(self) -> None:
        self.worker.start_saves(self.step)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        return self.worker.finished(self.step)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        sent, received = self.get_finished(finished_req_ids)
        return KVConnectorTransferResults(sent, received, self.worker.take_failed_requests())

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.worker.take_failed_blocks()

    def build_connector_worker_meta(self) -> Report | None:
        return self.worker.take_report()

    # Scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self.scheduler.bind(kv_cache_manager)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], Handshake]
    ) -> None:
        for told in metadata.values():
            if not isinstance(told, Handshake):
                raise SettingsError(
                    f"vLLM gives every connector what the first one says of its blocks, here {type(told).__name__}: "
                    "name Rackline before other connectors, and leave out those that need a handshake themselves"
                )
        self.scheduler.sessions_of({rank: told.identities for rank, told in metadata.items()})

    def on_new_request(self, request: Request) -> None:
        self.scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self.scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        self.scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Step:
        return self.scheduler.build_step(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self.scheduler.reported(connector_output.kv_connector_worker_meta)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.scheduler.request_finished(request)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.scheduler.request_finished(request)

    def reset_cache(self, weights: str | None = None) -> bool:
        """``weights`` names the new weights, in place of the file (``weights_name_file``)."""
        return self.scheduler.reset(weights)

    def take_events(self) -> Iterable[Any]:
        return self.scheduler.take_events()

    # Both

    def get_kv_connector_stats(self) -> RacklineStats | None:
        half = self._scheduler if self._scheduler is not None else self._worker
        return half.stats.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> RacklineStats:
        return RacklineStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config, metric_types, labelnames, per_engine_labelvalues
    ) -> RacklinePromMetrics:
        return RacklinePromMetrics(
            vllm_config, metric_types, labelnames, per_engine_labelvalues
        )


def register_by_name(connector: type[RacklineConnector]) -> None:
    """Makes vLLM find the class by its name, also in its own process of statistics: there its
    ``MultiConnector`` has the name alone."""
    name = connector.__name__
    # Another import of the module may have done it.
    if name not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(name, connector.__module__, name)


register_by_name(RacklineConnector)
