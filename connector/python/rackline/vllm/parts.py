"""What a rank stores: one part for each group of KV caches that it has layers of."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import Any

import rackline
from rackline.vllm.device import Device
from rackline.vllm.groups import Group, Groups
from rackline.vllm.heads import Heads, heads_of
from rackline.vllm.identity import Identity, identity_of
from rackline.vllm.layerwise import EngineLayers
from rackline.vllm.layout import blocks_in_memory, clear_blocks
from rackline.vllm.messages import GroupLoad, SaveJob
from rackline.vllm.settings import Settings
from rackline.vllm.short_blocks import ShortBlocks
from rackline.vllm.token_order import is_planar
from rackline.vllm.transfers import Publish

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class Share:
    """One head group of a part's blocks, or all of them: a key space, with a session of its own."""

    identity: Identity
    session: rackline.Session | None = None


class _NotOpen:
    """In place of sessions that could not be opened yet."""

    def __getattr__(self, name: str) -> Any:
        raise rackline.Error("no session for the new weights is open yet")


@dataclasses.dataclass
class Part:
    """The blocks of one group on this rank."""

    shares: list[Share]
    """In the order of the cuts of the memory."""
    memory: rackline.BlockMemory
    layers: EngineLayers
    stores: bool
    """Whether this rank has KV that no other stores."""
    caches: dict[str, Any]
    blocks: int
    """How many blocks the engine has."""
    steps: int
    """How many stored blocks one of these has."""
    together: rackline.Shares | _NotOpen | None = None
    """The sessions of all shares. A transfer has all shares of its blocks: the engine's blocks are its own
    until it ends, and layer by layer all shares of a layer go together."""

    @property
    def identity(self) -> Identity:
        """Of the first share."""
        return self.shares[0].identity

    @property
    def block_bytes(self) -> int:
        """Length of a block, of all shares."""
        return sum(share.identity.block_bytes for share in self.shares)

    def rename(self, weights: str) -> None:
        """The blocks are of weights of this name from now on; the sessions are to be opened."""
        for share in self.shares:
            share.identity = dataclasses.replace(share.identity, model=weights)
        self.together = _NotOpen()

    def open(self, pool: rackline.Pool, settings: Settings) -> None:
        for share in self.shares:
            share.session = pool.session(
                share.identity.model_of_session(),
                share.identity.block_bytes,
                tenant=settings.tenant,
                hold_ms=settings.hold_ms,
            )
        self.together = rackline.Shares([share.session for share in self.shares])

    def fetch(
        self, load: GroupLoad, stream: int | None, by_layers: bool
    ) -> rackline.Fetch | rackline.LayeredFetch:
        """Begins to fetch blocks into the engine's. :class:`rackline.Error` when nothing was begun."""
        handles = [load.handles[share.identity.place] for share in self.shares]
        length = len(load.block_ids) * rackline.KEYLESS_HANDLE_BYTES
        if any(len(each) != length for each in handles):
            raise rackline.Error("vLLM has places for other blocks than were found")
        fetch = self.together.fetch_by_layers if by_layers else self.together.fetch
        found = [(load.hashes, each) for each in handles]
        return fetch(found, self.memory, load.block_ids, stream=stream)

    def publish(self, job: SaveJob, stream: int | None) -> Publish:
        """Begins to publish blocks. :class:`rackline.Error` when nothing was begun."""
        told = (job.hashes, job.first_depth, self.memory, job.block_ids)
        return Publish(self.together.publish(*told, stream=stream), len(self.shares))

    def publish_by_layers(self, jobs: list[SaveJob]) -> Publish:
        """As :meth:`publish`, layer by layer, the blocks of all jobs."""
        hashes = b"".join(job.hashes for job in jobs)
        blocks = [block for job in jobs for block in job.block_ids]
        depths = [
            job.first_depth + number for job in jobs for number in range(len(job.block_ids))
        ]
        publish = self.together.publish_by_layers(hashes, depths, self.memory, blocks)
        return Publish(publish, len(self.shares))

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
    groups = Groups.of(vllm_config, kv_cache_config, settings.stored_block_tokens)
    parts: dict[int, Part] = {}
    for group in groups.groups:
        caches = kv_caches
        if len(groups.groups) > 1:
            # Layers that use the cache of another are in no group, and their blocks are those of the other.
            names = kv_cache_config.kv_cache_groups[group.number].layer_names
            caches = {name: kv_caches[name] for name in names}
        if not caches:
            continue  # All of its layers are in other stages.
        spec = kv_cache_config.kv_cache_groups[group.number].kv_cache_spec
        blocks = kv_cache_config.num_blocks
        heads = heads_of(vllm_config, spec, settings, caches, blocks, group.steps)
        short = None
        if group.steps > 1:
            pieces = functools.partial(device.pieces, vllm_config, tokens=group.block_tokens)
            # On a CPU the pieces were compared with what its kernels write.
            planar = device.gpu is not None and is_planar(spec)
            short = ShortBlocks(group.block_tokens, group.steps, pieces, planar)
        memory, layout, layers = blocks_in_memory(
            caches, blocks, device.gpu, heads.each if heads.divided else None, short
        )
        layout = f"{layout} {device.kernels(vllm_config, caches)}"
        identity = identity_of(
            vllm_config, kv_cache_config, settings, layout, memory.block_bytes, group, heads
        )
        others = (dataclasses.replace(identity, heads=number) for number in heads.numbers[1:])
        parts[group.number] = Part(
            [Share(each) for each in (identity, *others)],
            memory,
            EngineLayers(layers),
            heads.stores,
            caches,
            blocks,
            group.steps,
        )
        _tell(group, heads, settings, vllm_config)
    return parts


def _tell(group: Group, heads: Heads, settings: Settings, vllm_config: Any) -> None:
    """Says in the log of the first rank what other numbers of ranks find of its blocks."""
    parallel = vllm_config.parallel_config
    if parallel.rank % parallel.tensor_parallel_size:
        return
    if heads.why_undivided and settings.head_groups != "ranks":
        logger.info(
            "Rackline: blocks of %s are shared by engines of tensor_parallel_size %d only: %s",
            group.in_words(),
            parallel.tensor_parallel_size,
            heads.why_undivided,
        )
    if heads.divided and heads.groups != heads.wanted:
        logger.log(
            logging.INFO if settings.head_groups == "auto" else logging.WARNING,
            "Rackline: with tensor_parallel_size %d each rank has %d of %d KV heads, which is no whole number of "
            '%d head groups: the blocks have %d. Set "head_groups" to %d on all engines that share them',
            parallel.tensor_parallel_size,
            heads.each,
            heads.of_model,
            heads.wanted,
            heads.groups,
            heads.groups,
        )
