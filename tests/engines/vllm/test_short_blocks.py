"""Where stored blocks lie that are shorter than the engine's: element by element, in every order of a cache."""

from __future__ import annotations

import ctypes
import dataclasses
import unittest
from typing import Any

import torch
from rackline.engines.settings import SettingsError
from rackline.vllm.layout import blocks_in_memory
from rackline.vllm.short_blocks import ShortBlocks, plain_piece
from rackline.vllm.token_order import is_planar
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVQuantMode,
    MLAAttentionSpec,
    SparseCacheRole,
)

BLOCKS, HEADS, TOKENS, CONTENT = 3, 4, 12, 5


def short(tokens: int) -> ShortBlocks:
    return ShortBlocks(tokens, TOKENS // tokens, lambda _, cache: plain_piece(cache, tokens))


def cache_of(kv: torch.Tensor, order: str, kernel_blocks: int) -> torch.Tensor:
    """A cache that has ``kv`` ([block, head, token, content]) in this order in memory, as vLLM's views of it."""
    tokens = TOKENS // kernel_blocks
    by_kernel = kv.unflatten(2, (kernel_blocks, tokens)).transpose(1, 2).flatten(0, 1)
    if order == "BHNC":
        return by_kernel.contiguous()
    if order == "BNHC":
        return by_kernel.transpose(1, 2).contiguous().transpose(1, 2)
    # Other layers' heads beside these.
    wide = torch.full((len(by_kernel), 2 * HEADS, tokens, CONTENT), -1.0)
    wide[:, :HEADS] = by_kernel
    return wide[:, :HEADS]


class Parts(unittest.TestCase):
    def setUp(self) -> None:
        count = BLOCKS * HEADS * TOKENS * CONTENT
        self.kv = torch.arange(count, dtype=torch.float32).view(BLOCKS, HEADS, TOKENS, CONTENT)

    def read(self, own: ShortBlocks, cache: torch.Tensor, each: int | None, number: int) -> list[Any]:
        """The elements of a stored block, cut by cut, where the parts say that they are."""
        rows, cuts = own.rows({"layer": cache}), []
        for parts in own.parts("layer", cache, each):
            found = b""
            for address, stride, step, length in parts:
                start = address + number // rows * stride + number % rows * step
                found += ctypes.string_at(start, length)
            cuts.append(torch.frombuffer(bytearray(found), dtype=torch.float32))
        return cuts

    def test_a_stored_block_is_what_an_engine_with_short_blocks_has(self) -> None:
        for order in ("BHNC", "BHNC, wide", "BNHC"):
            for kernel_blocks in (1, 2, 3):
                for tokens in (2, 4, 6):
                    kernel_tokens = TOKENS // kernel_blocks
                    if kernel_tokens % tokens and tokens % kernel_tokens:
                        continue
                    for each in (None, 1, 2):
                        if order == "BNHC" and each is not None:
                            continue
                        with self.subTest(order, kernel_blocks=kernel_blocks, tokens=tokens, each=each):
                            self.check(short(tokens), cache_of(self.kv, order, kernel_blocks), order, each)

    def check(self, own: ShortBlocks, cache: Any, order: str, each: int | None) -> None:
        for number in range(BLOCKS * own.steps):
            first = number % own.steps * own.tokens
            block = self.kv[number // own.steps, :, first : first + own.tokens]
            found = self.read(own, cache, each, number)
            expected = [block] if each is None else list(block.split(each))
            if order == "BNHC":
                # The heads of a token lie together, in the blocks of an engine with short ones, too.
                kernel = min(own.tokens, cache.shape[2])
                expected = [block.unflatten(1, (-1, kernel)).movedim(0, 2)]
            elif each is None:
                # As blocks of the kernels lie in memory, one after another.
                kernel = min(own.tokens, cache.shape[2])
                expected = [block.unflatten(1, (-1, kernel)).movedim(1, 0)]
            self.assertEqual(len(found), len(expected))
            for mine, theirs in zip(found, expected, strict=True):
                self.assertTrue(torch.equal(mine, theirs.flatten()))

    def test_a_latent_cache_has_no_heads(self) -> None:
        cache = self.kv[:, 0].contiguous()
        for number in range(BLOCKS * 3):
            (found,) = self.read(short(4), cache, None, number)
            first = number % 3 * 4
            self.assertTrue(torch.equal(found, cache[number // 3, first : first + 4].flatten()))

    def test_whole_heads_that_touch_are_one_part(self) -> None:
        cache = cache_of(self.kv, "BHNC", 3)
        self.assertEqual([len(parts) for parts in short(4).parts("layer", cache, 2)], [1, 1])
        self.assertEqual(len(short(4).parts("layer", cache_of(self.kv, "BHNC", 1), None)[0]), HEADS)

    def test_words_are_those_of_an_engine_with_short_blocks(self) -> None:
        def words(cache: Any, blocks: int, own: ShortBlocks | None, each: int | None) -> str:
            return blocks_in_memory({"layers.0": cache}, blocks, None, each, own)[1]

        for tokens in (4, 6):
            fine = self.kv.unflatten(2, (-1, tokens)).transpose(1, 2).flatten(0, 1).contiguous()
            for each in (None, 2):
                expected = words(fine, BLOCKS * TOKENS // tokens, None, each)
                long = cache_of(self.kv, "BHNC", 1)
                self.assertEqual(words(long, BLOCKS, short(tokens), each), expected)
                self.assertNotEqual(words(long, BLOCKS, None, each), expected)

    def test_memory_has_the_short_blocks(self) -> None:
        cache = cache_of(self.kv, "BHNC", 1)
        memory, _, _ = blocks_in_memory({"layers.0": cache}, BLOCKS, None, 1, short(4))
        told = (memory.blocks, memory.steps, memory.cuts, memory.block_bytes)
        self.assertEqual(told, (BLOCKS * 3, 3, HEADS, 4 * CONTENT * 4))

    def test_what_cannot_be_told_apart_is_refused(self) -> None:
        columns = self.kv.transpose(2, 3).contiguous().transpose(2, 3)
        for cache in (columns, torch.zeros(2, BLOCKS, HEADS, TOKENS, CONTENT)):
            with self.assertRaises(SettingsError) as refused:
                short(4).parts("layers.7", cache, None)
            self.assertIn("the KV cache of layers.7 has no order", str(refused.exception))
        with self.assertRaises(SettingsError) as refused:
            short(4).parts("layers.7", cache_of(self.kv, "BHNC", 2), None)
        self.assertIn("have blocks of 6 tokens: set a number that divides 6", str(refused.exception))
        planar = dataclasses.replace(short(4), planar=True)
        with self.assertRaises(SettingsError) as refused:
            planar.parts("layers.7", cache_of(self.kv, "BHNC", 1), None)
        self.assertIn("does not keep the bytes of each token together", str(refused.exception))
        # Whole blocks of the kernels are what other engines have, whatever is in them.
        self.assertEqual(len(planar.parts("layers.7", cache_of(self.kv, "BHNC", 3), None)), 1)
        caches = {name: cache_of(self.kv, "BHNC", number) for number, name in enumerate("ab", 1)}
        with self.assertRaises(SettingsError) as refused:
            short(2).rows(caches)
        self.assertIn("blocks of different lengths ([6, 12] tokens)", str(refused.exception))


class Orders(unittest.TestCase):
    def test_which_caches_keep_the_bytes_of_a_token_together(self) -> None:
        told = dict(block_size=64, num_kv_heads=1, head_size=128, dtype=torch.uint8)
        in_order = [
            FullAttentionSpec(**told),
            FullAttentionSpec(**told, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR),
            MLAAttentionSpec(**told),
        ]
        planar = [
            FullAttentionSpec(**told, kv_quant_mode=KVQuantMode.NVFP4),
            FullAttentionSpec(**told, kv_quant_mode=KVQuantMode.TURBOQUANT_4BIT_NC),
            FullAttentionSpec(**told, num_head_slots=2),
            MLAAttentionSpec(**told, cache_role=SparseCacheRole.INDEXER),
            MLAAttentionSpec(**told, cache_dtype_str="fp8_ds_mla"),
        ]
        self.assertEqual([is_planar(spec) for spec in in_order], [False] * len(in_order))
        self.assertEqual([is_planar(spec) for spec in planar], [True] * len(planar))


if __name__ == "__main__":
    unittest.main()
