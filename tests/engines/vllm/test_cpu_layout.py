"""Which bytes of a block some of its tokens have, as vLLM's CPU kernels write them."""

from __future__ import annotations

import dataclasses
import unittest

import torch

from rackline.engines.settings import SettingsError
from rackline.vllm.cpu_layout import Piece, check_pieces, token_pieces

BLOCK_TOKENS, HEAD_DIM = 128, 64


def cache(dtype: torch.dtype) -> torch.Tensor:
    """As the engine has it: only its shape and type are asked for."""
    return torch.empty(3, 2, BLOCK_TOKENS, 2 * HEAD_DIM, dtype=dtype)


class CpuLayout(unittest.TestCase):
    def pieces(self, isa: str, dtype: torch.dtype, stored_tokens: int) -> list[Piece]:
        return token_pieces(isa, HEAD_DIM, BLOCK_TOKENS, stored_tokens, dtype.itemsize)

    def test_pieces_are_where_the_kernels_write_tokens(self) -> None:
        model = torch.bfloat16
        for isa, dtype, kv_cache_dtype, stored in [
            ("vec", torch.float32, "auto", torch.float32),
            ("vec", model, "auto", model),
            ("amx", model, "auto", model),
            ("vec", model, "fp8", torch.uint8),
            ("amx", model, "fp8", torch.uint8),
        ]:
            for tokens in (32, 64, BLOCK_TOKENS):
                with self.subTest(isa=isa, stored=stored, tokens=tokens):
                    pieces = self.pieces(isa, stored, tokens)
                    of_head = sum(piece.bytes for piece in pieces)
                    self.assertEqual(of_head, tokens * 2 * HEAD_DIM * stored.itemsize)
                    check_pieces(pieces, isa, dtype, kv_cache_dtype, cache(stored), tokens)

    def test_pieces_elsewhere_are_refused(self) -> None:
        for isa, dtype in [("vec", torch.float32), ("amx", torch.bfloat16)]:
            good = self.pieces(isa, dtype, 32)
            shorter = dataclasses.replace(good[-1], step=good[-1].step // 2)
            other = "amx" if isa == "vec" else "vec"
            for wrong in (
                [*good[:-2], good[-1], good[-2]],
                [*good[:-1], shorter],
                good[:-1],
                self.pieces(other, dtype, 32),
            ):
                with self.subTest(isa=isa), self.assertRaisesRegex(SettingsError, "another way"):
                    check_pieces(wrong, isa, dtype, "auto", cache(dtype), 32)

    def test_orders_and_lengths_that_are_not_known_are_refused(self) -> None:
        for isa in ("vec16", "neon", "rvv"):
            with self.assertRaisesRegex(SettingsError, f'"stored_block_tokens" is 32, .* {isa}'):
                self.pieces(isa, torch.bfloat16, 32)
        for stored_tokens in (16, 48, 96, 256):
            with self.assertRaisesRegex(SettingsError, "multiple of 32 that divides .* 128"):
                self.pieces("vec", torch.bfloat16, stored_tokens)

    def test_the_check_leaves_the_engines_random_numbers(self) -> None:
        pieces = self.pieces("vec", torch.float32, 64)
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        check_pieces(pieces, "vec", torch.float32, "auto", cache(torch.float32), 64)
        self.assertTrue(torch.equal(torch.rand(3), expected))


if __name__ == "__main__":
    unittest.main()
