"""The layout of KV caches that vLLM is asked for.

vLLM names a layout by its dimensions from the outermost in memory: L layers, B blocks, H heads, N tokens, C content.
The driver of a GPU takes as long for each piece of a block as for 20 to 30 KB of it. So a GPU's blocks should lie in
few pieces: with B outermost all layers of a block lie together.

The bytes of a stored block are the same in every layout that is asked for. vLLM answers a layout that the attention
backend does not have with the backend's own first one.
"""

from __future__ import annotations

import re
from typing import Any

from rackline.vllm.heads import (
    differs_by_layer,
    has_one_number_of_heads,
    head_groups_of,
    heads_each,
    numbers_of,
)
from rackline.vllm.identity import draft_in_blocks
from rackline.vllm.settings import Settings

# Each layer by itself, and of a layer each head of a block by itself.
HEADS_APART = "LBHNC"
# All layers of a block together: head by head, layer by layer with the heads apart, or with the tokens apart.
BLOCKS_BY_HEADS, BLOCKS_BY_LAYERS, BLOCKS_BY_TOKENS = "BHLNC", "BLHNC", "BLNHC"
# Blocks of so many tokens no attention backend divides into blocks of its kernels. vLLM cannot divide blocks
# whose layers lie together, and refuses to start.
UNDIVIDED_TOKENS = (16, 32, 64)
# Keys of a model's configuration that tell the length of heads, and that the model has an indexer.
_LENGTH_OF_HEADS = re.compile(r"head_dim|head_size|kv_channels")
_INDEXER = re.compile(r"(^|_)index(er)?_")


def asked_layout(vllm_config: Any) -> str | None:
    """The layout, or ``None`` for the backend's own."""
    settings = Settings.of(vllm_config.kv_transfer_config.kv_connector_extra_config)
    model = vllm_config.model_config
    by_ranks = settings.head_groups == "ranks"
    apart = None if by_ranks or model.use_mla else HEADS_APART
    if not settings.blocks_together or not _may_lie_together(vllm_config, settings):
        return apart
    if by_ranks:
        # The order inside a block is that of most backends' own layout.
        return BLOCKS_BY_LAYERS if model.use_mla else BLOCKS_BY_TOKENS
    local, each = (1, 1) if model.use_mla else _heads(vllm_config, settings)
    if each == local:
        return BLOCKS_BY_LAYERS
    # Heads that are stored together lie layer by layer in a stored block.
    return BLOCKS_BY_HEADS if each == 1 else apart


def _may_lie_together(vllm_config: Any, settings: Settings) -> bool:
    """Whether there is something to gain, and it is certain that vLLM starts, with the same groups of KV caches."""
    from vllm.platforms import current_platform

    if not current_platform.is_cuda() or settings.layerwise != "off" or settings.stored_block_tokens:
        return False
    cache = vllm_config.cache_config
    if cache.user_specified_block_size and cache.block_size not in UNDIVIDED_TOKENS:
        return False
    return not cache.kv_cache_dtype_skip_layers and _has_equal_layers(vllm_config)


def _has_equal_layers(vllm_config: Any) -> bool:
    """Whether all layers have caches of one shape, as far as the configuration tells. Where they differ vLLM takes
    another layout than is asked for, or groups the layers in another way."""
    model = vllm_config.model_config
    if model.is_hybrid or differs_by_layer(model.model_arch_config):
        return False
    if draft_in_blocks(vllm_config) is not None:
        return False
    told = model.hf_text_config.to_dict()
    if model.use_mla:
        return not any(True for _ in numbers_of(told, _INDEXER))
    lengths = (model.get_head_size(), None)
    return has_one_number_of_heads(vllm_config, model.get_total_num_kv_heads()) and all(
        length in lengths for length in numbers_of(told, _LENGTH_OF_HEADS)
    )


def _heads(vllm_config: Any, settings: Settings) -> tuple[int, int]:
    """The KV heads of a rank, and how many a head group has. Where the bytes of a block turn out to be others, blocks
    have more pieces, and the same content."""
    model, parallel, cache = (
        vllm_config.model_config,
        vllm_config.parallel_config,
        vllm_config.cache_config,
    )
    local, of_model = model.get_num_kv_heads(parallel), model.get_total_num_kv_heads()
    element = model.dtype.itemsize if cache.cache_dtype in ("auto", "float16", "bfloat16") else 1
    of_layer = cache.block_size * 2 * model.get_head_size() * element
    groups = head_groups_of(of_model, settings.head_groups, of_layer * model.get_num_layers(parallel))
    return local, heads_each(of_model, local, groups)
