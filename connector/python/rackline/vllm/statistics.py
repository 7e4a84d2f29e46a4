"""Counters of the connector, in vLLM's log and on its metrics page."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

COUNTERS = {
    "lookups": "Lookups of the prefix of a request.",
    "lookup_blocks": "Blocks that were looked up.",
    "lookup_hit_blocks": "Blocks of those that were found, on every rank.",
    "lookup_restored_blocks": "Blocks of those that were restored from drives.",
    "lookup_timeouts": "Lookups that were given up because they took too long.",
    "lookups_put_off": "Requests that waited for room for their lookup.",
    "prefetched_blocks": "Blocks on drives that were asked for while their request waited, each head group by itself.",
    "hints": "Actions of hints that were followed.",
    "hint_held_blocks": "Blocks that hints held, each head group by itself.",
    "unusable_handovers": "Requests whose prefill has blocks of another identity.",
    "loaded_blocks": "Blocks that were fetched and valid, over all ranks.",
    "loaded_bytes": "Their bytes.",
    "failed_load_blocks": "Blocks that were found and could not be loaded, over all ranks.",
    "loaded_tails": "Last partial blocks of prompts that were loaded for hand-overs, on every rank.",
    "saved_tails": "Last partial blocks of prompts that are in the pool for hand-overs, of every rank.",
    "loaded_layers": "Layers that forwards waited for one by one while blocks were loaded.",
    "saved_layers": "Layers that were saved while the forward went on.",
    "saved_blocks": "Blocks that were published, over all ranks.",
    "saved_bytes": "Their bytes.",
    "saved_lately_blocks": "Blocks of the engine's own cache that were in the pool lately, and were not saved again.",
    "already_there_blocks": "Blocks that were to be saved and were in the pool, over all ranks.",
    "unsaved_blocks": "Blocks that could not be published, over all ranks.",
    "undescribed_blocks": "Saved blocks that no record describes to `rackline events`.",
    "put_off_blocks": "Blocks left to a later step, as a load of their step failed, over all ranks.",
    "not_attached_lookups": "Lookups that found nothing as the process is not attached to the pool.",
    "not_attached_blocks": "Blocks not loaded or saved for that reason, over all ranks.",
    "attached_again": "Times that a rank's process attached to the pool again.",
    "resets": "Resets of the caches, after which blocks are shared under a new name of the weights only.",
    "gpu_bytes": "Bytes that GPUs copied, both ways, over all ranks.",
    "gpu_bounced_bytes": "Those of them that went through a buffer, as the pool was not reached.",
    "gpu_summed_bytes": "Those of them whose checksum the GPU computed, of its own memory.",
    "gpu_failed_blocks": "Blocks that a GPU failed to copy, over all ranks.",
    "gpu_registrations": "Pieces of the pool that were registered with GPUs' drivers, over all ranks.",
    "gpu_unregistrations": "Those of them that were unregistered again, to make room for others.",
    "gpu_refused_registrations": "Pieces that a driver refused to register: blocks there go through a buffer.",
    "gpu_registrations_over_limit": "Registrations above a process's limit, as transfers needed more.",
    "gpu_registering_us": "Microseconds of threads to register and to unregister, with the first touch of pages.",
}

# By reason: the name of each in `rackline.engines.reasons` follows.
BY_REASON = {
    "not_found": "Requests that found nothing in the pool, or less than there was, by reason.",
    "not_loaded": "Blocks that were found and could not be loaded, over all ranks, by reason.",
    "unsaved": "Blocks that could not be published, over all ranks, by reason.",
    "unheld": "Blocks that hints asked to hold and that are not held, each head group by itself, by reason.",
    "not_prefetched": "Blocks of waiting requests that were not asked for ahead, by reason.",
    "ignored_hints": "Actions of hints that were ignored, by reason.",
}


def _family(name: str) -> tuple[str, str] | None:
    """The counter by reason that ``name`` belongs to, and the reason."""
    for family in BY_REASON:
        if name.startswith(f"{family}_") and name not in COUNTERS:
            return family, name.removeprefix(f"{family}_")
    return None


class RacklineStats(KVConnectorStats):
    """Sums since the last report."""

    def count(self, name: str, amount: int) -> None:
        if amount:
            assert name in COUNTERS or _family(name) is not None, name
            self.data[name] = self.data.get(name, 0) + amount

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> RacklineStats:
        for name, amount in other.data.items():
            self.data[name] = self.data.get(name, 0) + amount
        return self

    def reduce(self) -> dict[str, int | float]:
        known = {name: self.data[name] for name in COUNTERS if name in self.data}
        return known | {name: self.data[name] for name in self.data if _family(name) is not None}

    def is_empty(self) -> bool:
        return not self.data

    def take(self) -> RacklineStats | None:
        """What was counted, from now on no more; ``None`` when that is nothing."""
        if self.is_empty():
            return None
        taken = RacklineStats(data=self.data)
        self.reset()
        return taken


class RacklinePromMetrics(KVConnectorPromMetrics):
    """``vllm:rackline_*`` on the metrics page."""

    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters: dict[tuple[int, str], Any] = {}
        for name, documentation in COUNTERS.items():
            counter = self._counter_cls(
                name=f"vllm:rackline_{name}",
                documentation=f"Rackline: {documentation}",
                labelnames=labelnames,
            )
            for engine, values in per_engine_labelvalues.items():
                self._counters[engine, name] = counter.labels(*values)

        self._by_reason: dict[tuple[int, str], Callable[[str], Any]] = {}
        for family, documentation in BY_REASON.items():
            counter = self._counter_cls(
                name=f"vllm:rackline_{family}_by_reason",
                documentation=f"Rackline: {documentation}",
                labelnames=[*labelnames, "reason"],
            )
            for engine, values in per_engine_labelvalues.items():
                self._by_reason[engine, family] = functools.partial(counter.labels, *values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, amount in transfer_stats_data.items():
            if name in COUNTERS:
                self._counters[engine_idx, name].inc(amount)
            elif (found := _family(name)) is not None:
                family, reason = found
                self._by_reason[engine_idx, family](reason).inc(amount)
