"""Where the engine's blocks lie in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import rackline
from rackline.engines.processor import processor
from rackline.engines.settings import SettingsError
from rackline.vllm.short_blocks import ShortBlocks

# Address, stride from block to block, and bytes in a block; of short blocks as `short_blocks` has them.
_Parts = list[tuple[int, ...]]


def blocks_in_memory(
    kv_caches: dict[str, Any],
    blocks: int,
    gpu: int | None = None,
    heads_each: int | None = None,
    short: ShortBlocks | None = None,
) -> tuple[rackline.BlockMemory, str, dict[str, int]]:
    """The memory of the caches of all layers, on that GPU or on the CPU, as ``blocks`` blocks, or as the
    ``short`` ones that these have; its
    layout in words; and which layer of the memory each layer of the engine is: those that share a cache
    are one. Engines have the same bytes for the same KV when the layout is equal, and what their device
    says of its kernels.

    A block has each layer's part in the order of the layers' names. It is one piece, or with
    ``heads_each`` it has a cut for so many heads each (VLLM-H1).
    """
    cuts: list[list[_Parts]] = []
    words: list[str] = []
    layers: dict[str, int] = {}
    seen: dict[int, int] = {}
    for name in sorted(kv_caches, key=_by_number):
        cache = kv_caches[name]
        layers[name] = seen.setdefault(cache.data_ptr(), len(words))
        if layers[name] < len(words):
            continue  # shared by layers
        if short is not None:
            of_layer = short.parts(name, cache, heads_each)
        elif heads_each is None:
            of_layer = [_whole(name, cache, blocks)]
        else:
            of_layer = _of_heads(cache, blocks, heads_each)
        if heads_each is None:
            words.append(f"{_shape(cache, blocks, short)} {_order(cache)} {_dtype(cache)}")
        else:
            shape = _shape_of_head(cache, blocks, short, gpu is not None)
            words.append(f"{shape} of a head {_dtype(cache)}")
        cuts = cuts or [[] for _ in of_layer]
        for cut, parts in zip(cuts, of_layer, strict=True):
            cut.append(parts)
    memory = rackline.BlockMemory(
        [part for cut in cuts for parts in cut for part in parts],
        blocks if short is None else blocks * short.steps,
        kv_caches,
        gpu=gpu,
        layers=[len(parts) for cut in cuts for parts in cut],
        cuts=len(cuts),
        steps=1 if short is None else short.rows(kv_caches),
        within=list({_storage(cache) for cache in kv_caches.values()}),
    )
    return memory, _in_words(words), layers


def _whole(name: str, cache: Any, blocks: int) -> _Parts:
    """The parts of a layer as it lies in memory: one, or two when K and V lie apart. The heads of a block may lie
    apart, too, with those of other layers between them."""
    if _has_layers_between_heads(cache, blocks):
        (all_heads,) = _of_heads(cache, blocks, cache.shape[1])
        return all_heads
    parts = []
    for half in _halves(name, cache, blocks):
        stride, length = _block(name, half, blocks)
        parts.append((half.data_ptr(), stride, length))
    return parts


def heads_lie_apart(cache: Any, blocks: int, heads: int) -> bool:
    """Whether the cache of a layer has so many heads, and each has the bytes of its tokens together."""
    if cache.dim() != 4 or cache.shape[0] % blocks or cache.shape[1] != heads:
        return False
    _, _, tokens, content = cache.shape
    _, of_head, of_token, of_element = cache.stride()
    in_order = (of_token == content or tokens == 1) and of_element == 1
    return in_order and (of_head >= tokens * content or heads == 1)


def _has_layers_between_heads(cache: Any, blocks: int) -> bool:
    """Whether a block has the bytes of each head together, and does not have those of all heads together."""
    if cache.dim() != 4 or cache.shape[0] != blocks:
        return False
    _, heads, tokens, content = cache.shape
    apart = heads_lie_apart(cache, blocks, heads) and cache.stride(1) > tokens * content
    return apart and cache.stride(0) >= heads * cache.stride(1)


def _of_heads(cache: Any, blocks: int, each: int) -> list[_Parts]:
    """The parts of a layer for each cut of so many heads. The engine's kernels may have several blocks of
    their own for one of the engine's: a head has the tokens of all of them in their order."""
    item = cache.element_size()
    kernel_blocks, heads, tokens, content = cache.shape
    pieces = kernel_blocks // blocks
    of_kernel_block, of_head = (item * stride for stride in cache.stride()[:2])
    length = item * tokens * content
    return [
        _united(
            (cache.data_ptr() + head * of_head + piece * of_kernel_block, of_kernel_block * pieces, length)
            for head in range(first, first + each)
            for piece in range(pieces)
        )
        for first in range(0, heads, each)
    ]


def _united(parts: Iterable[tuple[int, int, int]]) -> _Parts:
    """The same bytes in as few parts as there can be."""
    united: _Parts = []
    for address, stride, length in parts:
        if united and sum(united[-1][::2]) == address:
            address, length = united[-1][0], united[-1][2] + length
            united.pop()
        united.append((address, stride, length))
    return united


def _storage(cache: Any) -> tuple[int, int]:
    """Address and length of the memory that the cache lies in."""
    storage = cache.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _dtype(cache: Any) -> str:
    return str(cache.dtype).removeprefix("torch.")


def _shape_of_head(cache: Any, blocks: int, short: ShortBlocks | None, on_gpu: bool) -> str:
    """The shape of one head of a stored block, in words. On a GPU the tokens lie in their order, whatever
    blocks the kernels have."""
    tokens, content = cache.shape[2:]
    pieces = cache.shape[0] // blocks
    if short is not None:
        pieces, tokens = short.in_kernel_blocks(tokens)
    return f"{pieces * tokens}x{content}" if on_gpu else f"{pieces}x{tokens}x{content}"


def _in_words(of_layers: list[str]) -> str:
    """The layout of all layers. Where they differ it counts which layers have which, as when some layers
    of a model are left out of a quantized cache: blocks of one length may have other contents."""
    kinds = sorted(set(of_layers))
    if len(kinds) > 1:
        digest = hashlib.sha256("\n".join(of_layers).encode()).hexdigest()
        kinds.append(f"in order {digest[:16]}")
    return " ".join(kinds)


def clear_blocks(kv_caches: dict[str, Any], blocks: int, block_ids: list[int]) -> None:
    """Zeroes blocks of the caches, of which there are ``blocks``."""
    if not block_ids:
        return
    import torch

    ids = torch.tensor(block_ids)
    for name, cache in kv_caches.items():
        ids = ids.to(cache.device)
        for part in _halves(name, cache, blocks):
            # On a GPU it is a launch for each part, not for each block.
            part.unflatten(0, (blocks, -1))[ids] = 0


def _by_number(name: str) -> list[tuple[int, int, str]]:
    """``layers.10`` after ``layers.9``."""
    return [
        (0, int(word), "") if word.isdigit() else (1, 0, word) for word in name.split(".")
    ]


def _halves(name: str, cache: Any, blocks: int) -> list[Any]:
    """The tensors whose first dimension is that of the blocks."""
    if cache.shape[0] % blocks == 0:
        return [cache]
    if cache.dim() > 1 and cache.shape[0] == 2 and cache.shape[1] % blocks == 0:
        return [cache[0], cache[1]]
    raise SettingsError(
        f"the KV cache of {name} has the shape {list(cache.shape)}, in which {blocks} blocks are not "
        "to be found"
    )


def _block(name: str, part: Any, blocks: int) -> tuple[int, int]:
    """Distance and length of the blocks in bytes."""
    item = part.element_size()
    # An engine may divide a block into several of its kernels' own.
    pieces = part.shape[0] // blocks
    length = item * part[0].numel()
    inner = sum((size - 1) * stride for size, stride in zip(part.shape[1:], part.stride()[1:]))
    if item * (inner + 1) != length or (pieces > 1 and part.stride(0) * item != length):
        raise SettingsError(
            f"the blocks of the KV cache of {name} are not contiguous (shape {list(part.shape)}, "
            f"strides {list(part.stride())})"
        )
    return part.stride(0) * item * pieces, length * pieces


def _shape(cache: Any, blocks: int, short: ShortBlocks | None) -> str:
    """The shape of stored blocks in words. How many blocks there are does not count: that depends on the free memory
    at start. The engine's kernels may have several blocks of their own for one of the engine's."""
    of_blocks = 0 if cache.shape[0] % blocks == 0 else 1
    sizes = [str(size) for size in cache.shape]
    pieces = cache.shape[of_blocks] // blocks
    if short is not None:
        pieces, tokens = short.in_kernel_blocks(cache.shape[-2])
        sizes[-2] = str(tokens)
    sizes[of_blocks] = "blocks" if pieces == 1 else f"{pieces}*blocks"
    return "x".join(sizes)


def _order(cache: Any) -> str:
    """The dimensions from the outermost in memory."""
    order = sorted(range(cache.dim()), key=lambda dimension: -cache.stride(dimension))
    return "".join(str(dimension) for dimension in order)


def machine() -> str:
    """What the CPU backend orders the elements of a block by; on other platforms nothing."""
    from vllm.platforms import current_platform

    return processor() if current_platform.is_cpu() else ""
