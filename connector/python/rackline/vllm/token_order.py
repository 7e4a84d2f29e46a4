"""Which KV caches keep the bytes of each token together, one token after another.

Some of vLLM's layouts are planar inside a block of the kernels: all values first, then all scales. Shapes and
strides do not show it, so such a layout is recognised by what vLLM says of the layer. An unknown one counts as
planar: a part of its block is never taken for that of an engine with shorter blocks.
"""

from __future__ import annotations

from typing import Any


def is_planar(spec: Any) -> bool:
    """Whether a block of the kernels may have the bytes of a token in several places, in a layer of ``spec``."""
    from vllm.v1.kv_cache_interface import iter_layer_specs

    return any(_is_planar(layer) for layer in iter_layer_specs(spec))


def _is_planar(layer: Any) -> bool:
    from vllm.v1.kv_cache_interface import (
        AttentionSpec,
        KVQuantMode,
        SparseCacheRole,
        get_kv_quant_mode,
    )

    if not isinstance(layer, AttentionSpec):
        return True
    if layer.num_head_slots is not None or layer.tokens_per_state != 1:
        return True
    if hasattr(layer, "cache_dtype_str"):
        # Multi-head latent attention. Its quantized forms, and its indexers, have orders of their own.
        modes = {layer.kv_quant_mode, get_kv_quant_mode(layer.cache_dtype_str or "auto")}
        indexes = getattr(layer, "cache_role", None) == SparseCacheRole.INDEXER
        return indexes or layer.model_version is not None or modes != {KVQuantMode.NONE}
    # The scale of these is that of a layer, or is beside the values of its token and head.
    return layer.kv_quant_mode not in {
        KVQuantMode.NONE,
        KVQuantMode.FP8_PER_TENSOR,
        KVQuantMode.INT8_PER_TOKEN_HEAD,
        KVQuantMode.FP8_PER_TOKEN_HEAD,
    }
