"""Where the tokens of a block are in the caches of vLLM's CPU backend.

Its kernels have an order of their own inside a head of a block: K of all tokens, and V behind it, each in
the order that an instruction set wants. So some of the tokens of a head lie in several pieces. The pieces
together are what a block of only these tokens would have.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rackline.engines.settings import SettingsError

# Dimensions of a column of V.
COLUMN = 16
# The tokens of a block of the CPU backend are a multiple of this.
TOKENS_MULTIPLE = 32


@dataclasses.dataclass(frozen=True)
class Piece:
    """What each stored block has in one place of a head, in bytes: stored block ``j`` at
    ``offset + j * step``."""

    offset: int
    bytes: int
    step: int


def token_pieces(
    isa: str, head_dim: int, block_tokens: int, stored_tokens: int, item_bytes: int
) -> list[Piece]:
    """The pieces of ``stored_tokens`` of the ``block_tokens`` of a head, in the order in which a block of
    only ``stored_tokens`` has them. ``isa`` is what vLLM calls the order of its kernels."""
    if isa not in ("amx", "vec"):
        raise SettingsError(
            f'the setting "stored_block_tokens" is {stored_tokens}, and the KV cache of this processor has '
            f"the order {isa}, in which parts of a block are not known: remove the setting, or set it to "
            f"{block_tokens}"
        )
    if block_tokens % stored_tokens or stored_tokens % TOKENS_MULTIPLE:
        raise SettingsError(
            f'the setting "stored_block_tokens" is {stored_tokens}: on CPUs set a multiple of '
            f"{TOKENS_MULTIPLE} that divides the block size of {block_tokens} tokens"
        )

    def pieces(of_k_or_v: int, count: int) -> list[Piece]:
        """``count`` stretches of all tokens, each of which has the tokens in their order."""
        stretch = block_tokens * head_dim * item_bytes // count
        length = stretch * stored_tokens // block_tokens
        start = of_k_or_v * block_tokens * head_dim * item_bytes
        return [Piece(start + number * stretch, length, length) for number in range(count)]

    if isa == "amx":
        # K in tiles of 16 tokens; V in columns of 16 dimensions.
        return [*pieces(0, 1), *pieces(1, head_dim // COLUMN)]
    # K dimension by dimension; V token by token.
    return [*pieces(0, head_dim), *pieces(1, 1)]


def check_pieces(
    pieces: list[Piece], isa: str, dtype: Any, kv_cache_dtype: str, cache: Any, stored_tokens: int
) -> None:
    """Refuses pieces that are not where vLLM's kernels write the tokens of a cache like ``cache``. Has the
    kernels write a block, and the same tokens as blocks of ``stored_tokens``. ``dtype`` is the model's."""
    import torch
    from vllm import _custom_ops as ops

    _, _, tokens, content = cache.shape
    heads, count = 2, tokens // stored_tokens
    # The engine's own random numbers stay as they are.
    random = torch.Generator().manual_seed(0)
    keys, values = (
        torch.randn(tokens, heads, content // 2, generator=random).to(dtype) for _ in range(2)
    )

    def written(blocks: int, block_tokens: int) -> Any:
        """The bytes of each head of each block."""
        scratch = torch.zeros(blocks, heads, block_tokens, content, dtype=cache.dtype)
        k_cache, v_cache = scratch.view(blocks, heads, 2 * block_tokens, -1).chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(
            keys, values, k_cache, v_cache, torch.arange(tokens), isa, kv_cache_dtype=kv_cache_dtype
        )
        return scratch.view(torch.uint8).flatten(2)

    whole, apart = written(1, tokens)[0], written(count, stored_tokens)
    for number in range(count):
        starts = [(piece.offset + number * piece.step, piece.bytes) for piece in pieces]
        gathered = [whole[:, start : start + length] for start, length in starts]
        if not torch.equal(torch.cat(gathered, dim=1), apart[number]):
            raise SettingsError(
                f'the setting "stored_block_tokens" is {stored_tokens}, and this vLLM orders the KV cache '
                f"({isa}, {kv_cache_dtype}) in another way than is known: remove the setting, or set it to "
                f"{tokens}"
            )
