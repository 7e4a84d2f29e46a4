"""Loading and saving layer by layer where the KV is on a GPU, with a stand-in for its driver
(`late_gpu.py`)."""

from __future__ import annotations

import unittest
from unittest import mock

from cases import FULL_BLOCKS, LONG, PROMPTS, SMALL, computed, tokens
from cuda_driver import mode
from gpu_case import GpuCase
from pool import damage, damage_to_nan

LAYERS = 2
"""Of the tiny model."""


class LayersOnGpu(GpuCase):
    def by_layers(self, layerwise: str, node: int = 0, **options):
        load = "sync" if layerwise in ("load", "both") else "async"
        return self.on_gpu(node, layerwise=layerwise, load=load, **options)

    def test_what_goes_by_layers_is_what_goes_whole(self) -> None:
        """Each way to save with each way to load."""
        for saves, loads in [("both", "off"), ("save", "load"), ("off", "both")]:
            self.renew_pool()
            with self.subTest(saves=saves, loads=loads):
                with self.by_layers(saves) as first:
                    self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
                    self.assertGreaterEqual(first.counter("saved_blocks"), FULL_BLOCKS)
                    self.assertEqual(first.counter("unsaved_blocks"), 0)
                    self.check_layers(first.counter("saved_layers"), saves != "off")
                    self.check_figures(first)
                with self.by_layers(loads, 1) as second:
                    self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
                    self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)
                    self.assertEqual(second.counter("failed_load_blocks"), 0)
                    self.check_layers(second.counter("loaded_layers"), loads != "off")
                    self.check_figures(second)

    def check_layers(self, counted: float, any_of_them: bool) -> None:
        """Every layer of each step, or none."""
        self.assertEqual(counted % LAYERS, 0)
        self.assertEqual(counted > 0, any_of_them)

    def test_a_layer_that_is_saved_without_its_stream_would_show(self) -> None:
        with self.by_layers("save", connector="WrongStream") as first:
            self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
            self.assertGreater(first.counter("saved_layers"), 0)
        with self.by_layers("off", 1) as second:
            self.assertNotEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)

    def test_a_layer_that_is_loaded_without_its_stream_would_show(self) -> None:
        self.fill()
        with self.by_layers("load", 1, connector="WrongStream") as second:
            self.assertNotEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)

    def test_a_pool_that_cannot_be_registered_is_used(self) -> None:
        with mode("no-register"), self.by_layers("both") as first:
            self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
            self.check_figures(first, bounced=True)
        with mode("no-register"), self.by_layers("both", 1) as second:
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)
            self.check_figures(second, bounced=True)

    def test_what_is_damaged_is_known_behind_the_forward_and_computed_again(self) -> None:
        for harm in (damage, damage_to_nan):
            self.renew_pool()
            self.fill()
            self.assertGreater(harm(self.region), 0)
            with self.subTest(harm.__name__), self.by_layers("both", 1) as second:
                self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
                self.assertEqual(second.counter("loaded_blocks"), 0)
                self.assertEqual(second.counter("failed_load_blocks"), FULL_BLOCKS)
                self.assertGreater(second.counter("loaded_layers"), 0)

    def test_layers_that_a_gpu_fails_to_copy_are_computed(self) -> None:
        self.fill()
        with self.by_layers("load", 1) as second:
            with mode("fail:cuMemcpyBatchAsync:2"):
                self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), 0)
            self.assertGreater(second.counter("gpu_failed_blocks"), 0)
            # The blocks are good, and found by others.
            second.forget()
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)

    def test_a_step_of_which_a_layer_cannot_be_ordered_is_not_saved(self) -> None:
        with self.assertLogs("rackline.vllm.layerwise", "WARNING") as told:
            with self.by_layers("save", connector="CapturedStream") as first:
                self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
                self.assertEqual(first.counter("saved_blocks"), 0)
                self.assertGreaterEqual(first.counter("unsaved_blocks"), FULL_BLOCKS)
        self.assertIn("captured into a CUDA graph", told.output[0])
        with self.by_layers("off", 1) as second:
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("lookup_hit_blocks"), 0)

    def test_layers_that_nobody_told_of_are_saved_at_the_end(self) -> None:
        from rackline.vllm.worker import WorkerHalf

        with mock.patch.object(WorkerHalf, "end_layer", lambda *_: None):
            self.fill(layerwise="save")
        with self.by_layers("both", 1) as second:
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)

    def test_preemptions_and_chunked_prefill(self) -> None:
        expected = computed(LONG, 60)
        for node in (0, 1):
            with self.by_layers("both", node, **SMALL) as tight:
                self.assertEqual(tokens(tight.answers(LONG, tokens=60)), expected)
                name = "saved_layers" if node == 0 else "loaded_layers"
                self.assertGreater(tight.counter(name), 0)
                self.assertGreater(tight.counter("num_preemptions", "vllm:"), 0)
                self.check_figures(tight)


if __name__ == "__main__":
    unittest.main()
