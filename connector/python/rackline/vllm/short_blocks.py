"""Where stored blocks lie that are shorter than the engine's own.

A stored block has the bytes that the block of an engine with blocks of this length has. In the engine's longer
blocks a head has them in pieces: on a GPU one for each block of the engine's kernels, on a CPU those of
`cpu_layout`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rackline.engines.settings import SettingsError
from rackline.vllm.cpu_layout import Piece

# Address; bytes from row to row, and from block to block in a row; bytes of a block.
Part = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True)
class ShortBlocks:
    """Those of a group of KV caches."""

    tokens: int
    """Tokens of a stored block."""
    steps: int
    """How many stored blocks a block of the engine has."""
    pieces: Callable[[str, Any], list[Piece]]
    """Where the tokens of a stored block are inside a head of a longer block of the kernels: of the layer
    with this name and cache."""
    planar: bool = False
    """Whether a token's bytes may be in several places of a block of the kernels."""

    def rows(self, caches: dict[str, Any]) -> int:
        """How many stored blocks a block of the kernels has: those that are lent together."""
        lengths = {cache.shape[-2] for cache in caches.values()}
        if len(lengths) > 1:
            raise SettingsError(
                f'the setting "stored_block_tokens" is {self.tokens}, and the attention kernels have blocks '
                f"of different lengths ({sorted(lengths)} tokens): leave the setting out"
            )
        return max(1, lengths.pop() // self.tokens)

    def in_kernel_blocks(self, kernel_tokens: int) -> tuple[int, int]:
        """How many blocks of the kernels a stored block has, whose blocks have so many tokens; and how many
        tokens of each."""
        return max(1, self.tokens // kernel_tokens), min(self.tokens, kernel_tokens)

    def parts(self, name: str, cache: Any, each: int | None) -> list[list[Part]]:
        """The parts of a layer for each cut of ``each`` heads, or of all in one."""
        cache = _by_heads(name, cache)
        heads, of_head = cache.shape[1], cache.stride(1) * cache.element_size()
        inside = self._inside_head(name, cache)
        if each is None and self.tokens >= cache.shape[2]:
            # As they lie in memory: whole blocks of the kernels.
            order = [[(head, part) for part in inside for head in range(heads)]]
        else:
            each = each or heads
            order = [
                [(head, part) for head in range(first, first + each) for part in inside]
                for first in range(0, heads, each)
            ]
        start = cache.data_ptr()
        return [
            _united((start + head * of_head + part[0], *part[1:]) for head, part in cut)
            for cut in order
        ]

    def _inside_head(self, name: str, cache: Any) -> list[Part]:
        """The parts of a stored block in a head, whose first byte has the address 0."""
        item, (_, _, tokens, content) = cache.element_size(), cache.shape
        row = cache.stride(0) * item
        if self.tokens % tokens == 0:
            length, count = tokens * content * item, self.tokens // tokens
            return [(number * row, count * row, count * row, length) for number in range(count)]
        if tokens % self.tokens:
            raise SettingsError(
                f'the setting "stored_block_tokens" is {self.tokens}, and the attention kernels have blocks '
                f"of {tokens} tokens: set a number that divides {tokens}, or a multiple of it"
            )
        if self.planar:
            raise SettingsError(
                f'the setting "stored_block_tokens" is {self.tokens}, and the KV cache of {name} does not keep '
                f"the bytes of each token together in its blocks of {tokens} tokens: set a multiple of {tokens}, "
                "or leave the setting out and give all engines the same --block-size"
            )
        return [
            (piece.offset, row, piece.step, piece.bytes) for piece in self.pieces(name, cache)
        ]


def plain_piece(cache: Any, tokens: int) -> list[Piece]:
    """That of a head that has its tokens one after another, as on a GPU."""
    length = tokens * cache.shape[-1] * cache.element_size()
    return [Piece(0, length, length)]


def _by_heads(name: str, cache: Any) -> Any:
    """The cache as blocks of the kernels, heads, tokens, and the bytes of a token; a cache in which the heads
    of a token lie together has one head."""
    if cache.dim() == 3:
        cache = cache.unsqueeze(1)
    elif cache.dim() == 4 and cache.shape[1] > 1 and cache.stride(1) == cache.shape[3]:
        blocks, heads, tokens, content = cache.shape
        strides = (cache.stride(0), content, cache.stride(2), cache.stride(3))
        cache = cache.as_strided((blocks, 1, tokens, heads * content), strides)
    if cache.dim() != 4 or cache.stride()[2:] != (cache.shape[3], 1):
        raise SettingsError(
            f'the setting "stored_block_tokens" is given, and the KV cache of {name} has no order in which '
            f"the tokens of a block can be told apart (shape {list(cache.shape)}, strides "
            f"{list(cache.stride())}): leave the setting out, and give all engines the same --block-size"
        )
    return cache


def _united(parts: Any) -> list[Part]:
    """The same bytes in as few parts as there can be."""
    united: list[Part] = []
    for address, stride, step, length in parts:
        before = united[-1] if united else None
        touches = before is not None and before[0] + before[3] == address
        if touches and before[1:3] == (stride, step) and step >= before[3] + length:
            united[-1] = (before[0], stride, step, before[3] + length)
        else:
            united.append((address, stride, step, length))
    return united
