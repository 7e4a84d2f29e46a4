"""Two ranks that must agree: on a load that fails on one of them, and on what is stored for both."""

from __future__ import annotations

import unittest

from cases import FULL_BLOCKS, PROMPTS, PoolCase
from failing_rank import GOOD_BLOCKS
from models import latent, tiny
from starter import run

# Over both ranks.
LOADED = 2 * GOOD_BLOCKS * len(PROMPTS)
FAILED = 2 * FULL_BLOCKS - LOADED


class Ranks(PoolCase):
    def rounds(self, model: str, rounds: list[bool], settings: dict, **more) -> list[dict]:
        """What an engine of two ranks does in each, whether it forgets its own cache before."""
        told = dict(model=model, given=PROMPTS, rounds=rounds, settings=self.settings(**settings))
        told["at_once"] = more.pop("at_once", len(PROMPTS))
        told["options"] = dict(tensor_parallel_size=2, **more)
        return run(told, "rounds_process")

    def test_a_load_that_fails_on_one_rank_is_computed_on_both(self) -> None:
        told = dict(module="failing_rank")
        computed, loaded = self.rounds(tiny(), [False, True], {"load": "sync"}, **told)
        self.assertEqual(loaded["tokens"], computed["tokens"])
        self.assertEqual((computed["loaded_blocks"], loaded["loaded_blocks"]), (0, LOADED))
        self.assertEqual(loaded["failed_load_blocks"], FAILED)

    def test_a_load_that_fails_on_one_rank_ends_the_request_when_told_so(self) -> None:
        told = dict(module="failing_rank", policy="fail")
        settings = {"load": "sync"}
        computed, failed, after = self.rounds(tiny(), [False, True, True], settings, **told)
        self.assertEqual(failed["finish_reasons"], ["error"])
        self.assertEqual(failed["loaded_blocks"], LOADED)
        # What failed is not found again.
        self.assertEqual(after["finish_reasons"], ["length"])
        self.assertEqual(after["tokens"], computed["tokens"])
        self.assertEqual(after["loaded_blocks"], 2 * LOADED)
        self.assertEqual(after["failed_load_blocks"], FAILED)

    def test_latent_attention_is_stored_once(self) -> None:
        """Its KV is the same on all ranks. What vLLM's CPU backend computes behind cached blocks
        differs from what it computes without: these tokens are those of its own cache."""
        import torch

        if not torch.cpu._is_amx_tile_supported():
            self.skipTest("vLLM's MLA for CPUs goes on behind cached blocks with AMX only")
        told = dict(dtype="bfloat16", at_once=1)
        _, own_cache, pool = self.rounds(latent(), [False, False, True], {}, **told)
        self.assertEqual(own_cache["cached_tokens"], FULL_BLOCKS * 32)
        self.assertEqual(own_cache["loaded_blocks"], 0)
        self.assertEqual(pool["cached_tokens"], FULL_BLOCKS * 32)
        self.assertEqual(pool["tokens"], own_cache["tokens"])
        self.assertEqual(pool["loaded_blocks"], 2 * FULL_BLOCKS)
        self.assertEqual(pool["failed_load_blocks"], 0)
        # By one rank, generated ones, too.
        self.assertLess(pool["saved_blocks"], 2 * FULL_BLOCKS)
        self.assertGreaterEqual(pool["saved_blocks"], FULL_BLOCKS)


if __name__ == "__main__":
    unittest.main()
