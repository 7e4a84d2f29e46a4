"""SGLang's own host pools, small, without a device behind them."""

from __future__ import annotations

import no_gpu  # noqa: F401  isort: skip

import torch
from sglang.srt.mem_cache.device_pool_info import (
    KVBufferLayout,
    KVBuffers,
    MHABufferInfo,
    MLABufferInfo,
)
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

PAGE_TOKENS = 16
PAGES = 12
LAYERS = 3


def mha(
    layout: str = "page_first",
    page_tokens: int = PAGE_TOKENS,
    dtype: torch.dtype = torch.float16,
    seed: int | None = None,
) -> MHATokenToKVPoolHost:
    """A pool of two heads, of zeros, or of random bytes."""
    heads, dim = 2, 32
    buffers = tuple(torch.zeros(page_tokens, heads, dim, dtype=dtype) for _ in range(LAYERS))
    pointers = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
    info = MHABufferInfo(
        buffers=KVBuffers(
            k=buffers,
            v=buffers,
            k_data_ptrs=pointers,
            v_data_ptrs=pointers,
            layout=KVBufferLayout.NHD,
        ),
        page_size=page_tokens,
        head_num=heads,
        head_dim=dim,
        v_head_dim=dim,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    with host_memory_budget_scope(1 << 30):
        pool = MHATokenToKVPoolHost(
            info, 1.0, 0, page_tokens, layout, pin_memory=False,
            **_capacity(page_tokens),
        )
    return _filled(pool, seed)


def mla(layout: str = "page_first", seed: int | None = None) -> MLATokenToKVPoolHost:
    """A pool of one latent of 48 numbers for each token."""
    dtype, rank, rope = torch.bfloat16, 32, 16
    buffers = tuple(
        torch.zeros(PAGE_TOKENS, 1, rank + rope, dtype=dtype) for _ in range(LAYERS)
    )
    info = MLABufferInfo(
        buffers=buffers,
        data_ptrs=torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
        layer_indices=tuple(range(LAYERS)),
        device_layer_num=LAYERS,
        page_size=PAGE_TOKENS,
        kv_lora_rank=rank,
        qk_rope_head_dim=rope,
        kv_cache_dim=rank + rope,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    with host_memory_budget_scope(1 << 30):
        pool = MLATokenToKVPoolHost(
            info, 1.0, 0, PAGE_TOKENS, layout, pin_memory=False, target_layer_num=LAYERS,
            **_capacity(PAGE_TOKENS),
        )
    return _filled(pool, seed)


def _capacity(page_tokens: int) -> dict[str, int]:
    return dict(
        device_capacity_tokens=page_tokens,
        start_layer=0,
        end_layer=LAYERS,
        host_token_capacity=PAGES * page_tokens,
    )


def _filled(pool, seed: int | None):
    pool.kv_buffer.zero_()
    if seed is not None:
        raw = pool.kv_buffer.view(torch.uint8)
        generator = torch.Generator().manual_seed(seed)
        raw.copy_(torch.randint(1, 256, raw.shape, generator=generator, dtype=torch.uint8))
    return pool


def indices(pool, pages: list[int]) -> torch.Tensor:
    """What SGLang's allocator gives for these pages: the numbers of their tokens."""
    starts = torch.tensor(pages, dtype=torch.int64).unsqueeze(1) * pool.page_size
    return (starts + torch.arange(pool.page_size)).flatten()


def page(pool, number: int) -> bytes:
    """The bytes of a page, as the pool itself gives them."""
    flat = pool.get_data_page(number * pool.page_size, flat=True)
    return flat.contiguous().view(torch.uint8).numpy().tobytes()
