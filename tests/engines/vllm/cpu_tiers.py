"""vLLM's tiers for a machine without a GPU. Its own worker copies between a GPU and its CPU tier, and
refuses other platforms; this one copies between the KV cache of the CPU backend and that tier, so that
the rest, scheduler, CPU tier and what is behind it, is vLLM's own."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CpuWorker(OffloadingWorker):
    """Copies at once."""

    def __init__(
        self, caches: CanonicalKVCaches, region: SharedOffloadRegion, blocks_per_chunk: int
    ) -> None:
        self._region, self._blocks_per_chunk = region, blocks_per_chunk
        self._pairs = [
            (
                cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes),
                region.create_next_worker_view(cache.page_size_bytes * blocks_per_chunk),
            )
            for cache in caches.tensors
        ]
        self._finished: list[TransferResult] = []

    def _copy(
        self, job: int, blocks: GPULoadStoreSpec, chunks: LoadStoreSpec, store: bool
    ) -> bool:
        # The first chunk may be entered in its middle.
        first = blocks.block_indices[0] % self._blocks_per_chunk
        for number, block in enumerate(blocks.block_ids):
            chunk, inner = divmod(first + number, self._blocks_per_chunk)
            for cache, tier in self._pairs:
                page = cache.shape[1]
                there = tier[chunks.chunk_ids[chunk]][inner * page : (inner + 1) * page]
                here = cache[block]
                if store:
                    there.copy_(here)
                else:
                    here.copy_(there)
        self._finished.append(TransferResult(job, True))
        return True

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        return self._copy(job_id, src_spec, dst_spec, store=True)

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec
    ) -> bool:
        return self._copy(job_id, dst_spec, src_spec, store=False)

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """There is nothing to wait for."""

    def shutdown(self) -> None:
        self._pairs.clear()
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    """Tiers behind the KV cache of vLLM's CPU backend."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = CpuWorker(kv_caches, region, self.blocks_per_chunk)
        return self._worker


def tiers(settings: dict[str, Any], primary_bytes: int = 64 << 20, **more: Any) -> Any:
    """The offloading connector with Rackline behind its CPU tier."""
    from vllm.config import KVTransferConfig

    tier = {"type": "RacklineTier", "module_path": "rackline.vllm.secondary_tier", **settings}
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "cpu_tiers",
            "cpu_bytes_to_use": primary_bytes,
            "secondary_tiers": [tier],
            **more,
        },
    )
