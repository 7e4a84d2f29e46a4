"""Which KV heads of the model a rank has, and by which of them its blocks are divided.

A rank stores each block in *head groups*: so many heads of each layer together. Which head group it is does
not depend on the number of ranks. So a rank of any size of tensor parallelism fetches the head groups that it
needs, whichever rank of whichever size stored them.

- **VLLM-H1** Equal heads of equal tokens have equal bytes, whatever the number of ranks. A block has its layers
  in their order, a layer its heads, and a head the bytes that the engine's kernels give it.
- **VLLM-H2** A head of one rank is taken for that of another only where its number in the model is certain.
  Otherwise each rank stores what it has as its own.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

from rackline.engines.settings import SettingsError
from rackline.vllm.groups import is_replicated
from rackline.vllm.identity import draft_in_blocks
from rackline.vllm.layout import heads_lie_apart
from rackline.vllm.settings import GROUPS_MAX, Settings
from rackline.vllm.token_order import is_planar

# The shortest block of a head group where their number is not set: each block has a descriptor, and a key in
# every lookup.
SHORTEST_BYTES = 64 << 10
# Keys of a model's configuration that tell how many KV heads some of its layers have: those that vLLM
# reads, and keys like them.
_COUNTS_HEADS = re.compile(
    r"kv.*head|head.*kv|key_value|query_group|attention_groups|heads_in_group"
)


@dataclasses.dataclass(frozen=True)
class Heads:
    """What a rank has of the KV heads of a group of KV caches."""

    of_model: int
    """KV heads of the model. Where a block is not divided: those of this rank."""
    each: int
    """Of them, how many a head group has."""
    groups: int
    """Head groups of the model. Where a block is not divided: parts that the ranks have."""
    numbers: range
    """The head groups of this rank. Where a block is not divided: one part."""
    stores: bool
    """Whether this rank stores them: of several ranks with the same heads the first does."""
    divided: bool = True
    why_undivided: str = ""
    """Why each rank stores what it has as its own. Nothing where all have the same."""
    wanted: int = 0
    """How many head groups there are where the heads of a rank are a whole number of them."""

    @classmethod
    def of_rank(cls, vllm_config: Any, spec: Any, heads: int, why: str) -> Heads:
        """The heads of a rank whose blocks are not divided. With MLA every rank has all of the KV."""
        rank, ranks = _rank(vllm_config)
        if is_replicated(spec):
            return cls(heads, heads, 1, range(1), rank == 0, divided=False)
        return cls(heads, heads, ranks, range(rank, rank + 1), True, False, why)


def heads_of(
    vllm_config: Any,
    spec: Any,
    settings: Settings,
    caches: dict[str, Any],
    blocks: int,
    steps: int = 1,
) -> Heads:
    """The heads of this rank in a group of KV caches, whose layers are ``spec`` and lie in ``caches`` in so many
    ``blocks``, each of which is stored as ``steps`` blocks."""
    layers = _layers(spec)
    if is_replicated(spec) or not hasattr(layers[0], "num_kv_heads"):
        heads = getattr(layers[0], "num_kv_heads", 1)
        return Heads.of_rank(vllm_config, spec, heads, "the layers keep states")
    local = layers[0].num_kv_heads
    if why := _why_undivided(layers, settings, caches, blocks):
        return Heads.of_rank(vllm_config, spec, local, why)
    of_model = heads_of_model(vllm_config, layers)
    if of_model is None:
        why = "the number of a rank's heads in the model is not certain"
        return Heads.of_rank(vllm_config, spec, local, why)
    head_bytes = _bytes_of_head(caches, blocks * steps, local)
    wanted = head_groups_of(of_model, settings.head_groups, head_bytes)
    each = heads_each(of_model, local, wanted)
    rank, ranks = _rank(vllm_config)
    replicas = local * ranks // of_model
    first = rank // replicas * local // each
    return Heads(
        of_model,
        each,
        of_model // each,
        range(first, first + local // each),
        rank % replicas == 0,
        wanted=wanted,
    )


def head_groups_of(of_model: int, setting: str, head_bytes: int) -> int:
    """By how many head groups blocks of a model with so many KV heads are stored, if one head of a block has
    ``head_bytes``. It does not depend on the ranks."""
    if setting != "auto":
        groups = int(setting)
        if of_model % groups:
            raise SettingsError(
                f'the setting "head_groups" is {groups}, and the model has {of_model} KV heads in a layer: '
                f'set a number that divides {of_model}, "auto" or "ranks"'
            )
        return groups
    groups = of_model if of_model <= GROUPS_MAX else math.gcd(of_model, GROUPS_MAX)
    while groups % 2 == 0 and of_model // groups * head_bytes < SHORTEST_BYTES:
        groups //= 2
    return groups


def heads_each(of_model: int, local: int, groups: int) -> int:
    """How many heads a head group has in an engine whose ranks have ``local`` heads. All of a rank's where
    its heads are no whole number of head groups."""
    each = of_model // groups
    return each if local % each == 0 else local


def heads_of_model(vllm_config: Any, layers: list[Any]) -> int | None:
    """The KV heads that each of these layers has in the model; ``None`` where that is not certain
    (VLLM-H2). vLLM tells how many a rank has: where it is one, it may be on several ranks."""
    _, ranks = _rank(vllm_config)
    local = layers[0].num_kv_heads
    if local > 1 or ranks == 1:
        return local * ranks if _draft_is_divided_alike(vllm_config, ranks) else None
    told = {layer.max_tp_shards for layer in layers}
    total = told.pop() if len(told) == 1 else None
    if total is None:
        total = vllm_config.model_config.get_total_num_kv_heads()
        # With as many ranks as heads no other number of ranks has one of them each.
        if total != ranks and not has_one_number_of_heads(vllm_config, total):
            return None
    if total > ranks or ranks % total or not _draft_is_divided_alike(vllm_config, ranks):
        return None
    return total


def _layers(spec: Any) -> list[Any]:
    from vllm.v1.kv_cache_interface import iter_layer_specs

    return list(iter_layer_specs(spec))


def _rank(vllm_config: Any) -> tuple[int, int]:
    """This rank of tensor parallelism, and how many there are."""
    parallel = vllm_config.parallel_config
    return parallel.rank % parallel.tensor_parallel_size, parallel.tensor_parallel_size


def _why_undivided(
    layers: list[Any], settings: Settings, caches: dict[str, Any], blocks: int
) -> str:
    """Nothing where the layers' heads can be told apart in memory."""
    if settings.head_groups == "ranks":
        return 'the setting "head_groups" is "ranks"'
    if any(layer.num_head_slots is not None for layer in layers):
        return "the attention backend packs heads together"
    if any(is_planar(layer) for layer in layers):
        return "the attention backend does not keep the bytes of each token together"
    heads = {layer.num_kv_heads for layer in layers}
    if len(heads) > 1:
        return f"the layers of a group have different numbers of KV heads ({sorted(heads)})"
    apart = all(heads_lie_apart(cache, blocks, *heads) for cache in caches.values())
    return "" if apart else "the attention backend has no layout in which each head lies by itself"


def _draft_is_divided_alike(vllm_config: Any, ranks: int) -> bool:
    """Whether a draft whose KV is in the blocks has it on all ranks, as the model has."""
    if draft_in_blocks(vllm_config) is None:
        return True
    return vllm_config.speculative_config.draft_parallel_config.tensor_parallel_size == ranks


def has_one_number_of_heads(vllm_config: Any, total: int) -> bool:
    """Whether no layer of the model, or of a draft in the blocks, may have another number of KV heads."""
    models = [vllm_config.model_config]
    if (draft := draft_in_blocks(vllm_config)) is not None:
        models.append(draft)
    return all(
        model.get_total_num_kv_heads() == total
        and not _has_other_heads(model.model_arch_config)
        and all(
            count in (total, None)
            for count in numbers_of(model.hf_text_config.to_dict(), _COUNTS_HEADS)
        )
        for model in models
    )


def _has_other_heads(architecture: Any) -> bool:
    overrides = architecture.per_layer_overrides or []
    return any("total_num_kv_heads" in layer for layer in overrides)


def differs_by_layer(architecture: Any) -> bool:
    """Whether a layer of the model has another number, or another length, of heads than the others."""
    return bool(architecture.per_layer_overrides)


def numbers_of(config: Any, keys: re.Pattern[str]) -> Iterator[Any]:
    """What a configuration says under keys like these, at any depth."""
    if isinstance(config, dict):
        for name, value in config.items():
            if isinstance(name, str) and keys.search(name) and type(value) is not bool:
                yield value
            else:
                yield from numbers_of(value, keys)
    elif isinstance(config, list):
        for each in config:
            yield from numbers_of(each, keys)


def _bytes_of_head(caches: dict[str, Any], blocks: int, heads: int) -> int:
    """Bytes of one head of a block, of all layers; those that share a cache count once."""
    distinct = {cache.data_ptr(): cache for cache in caches.values()}
    block = sum(cache.numel() * cache.element_size() for cache in distinct.values()) // blocks
    return block // heads
