"""What a rank stores: one part for each group of KV caches that it has layers of."""

from __future__ import annotations

import dataclasses
from typing import Any

import rackline
from rackline.vllm.device import Device
from rackline.vllm.groups import Groups
from rackline.vllm.identity import Identity, identity_of
from rackline.vllm.layerwise import EngineLayers
from rackline.vllm.layout import blocks_in_memory, clear_blocks
from rackline.vllm.settings import Settings


@dataclasses.dataclass
class Part:
    """The blocks of one group on this rank."""

    identity: Identity
    memory: rackline.BlockMemory
    layers: EngineLayers
    stores: bool
    """Whether this rank has KV that no other stores."""
    caches: dict[str, Any]
    blocks: int
    """How many blocks the engine has."""
    session: rackline.Session | None = None

    def open(self, pool: rackline.Pool, settings: Settings) -> None:
        self.session = pool.session(
            self.identity.model_of_session(),
            self.identity.block_bytes,
            tenant=settings.tenant,
            hold_ms=settings.hold_ms,
        )

    def clear(self, block_ids: list[int]) -> None:
        """Zeroes blocks of the engine."""
        clear_blocks(self.caches, self.blocks, block_ids)


def parts_of(
    vllm_config: Any,
    kv_cache_config: Any,
    settings: Settings,
    device: Device,
    kv_caches: dict[str, Any],
) -> dict[int, Part]:
    """The parts of this rank by number of their group, from the engine's caches."""
    parallel = vllm_config.parallel_config
    groups, parts = Groups.of(vllm_config, kv_cache_config), {}
    for group in groups.groups:
        caches = kv_caches
        if len(groups.groups) > 1:
            # Layers that use the cache of another are in no group, and their blocks are those of the other.
            names = kv_cache_config.kv_cache_groups[group.number].layer_names
            caches = {name: kv_caches[name] for name in names}
        if not caches:
            continue  # All of its layers are in other stages.
        memory, layout, layers = blocks_in_memory(caches, kv_cache_config.num_blocks, device.gpu)
        layout = f"{layout} {device.kernels(vllm_config, caches)}"
        identity = identity_of(
            vllm_config, kv_cache_config, settings, layout, memory.block_bytes, group
        )
        first = parallel.rank % parallel.tensor_parallel_size == 0
        parts[group.number] = Part(
            identity,
            memory,
            EngineLayers(layers),
            identity.ranks > 1 or first,
            caches,
            kv_cache_config.num_blocks,
        )
    return parts
