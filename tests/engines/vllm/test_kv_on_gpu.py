"""Engines whose KV is on a GPU, with a stand-in for its driver (`late_gpu.py`)."""

from __future__ import annotations

import contextlib
import ctypes
import types
import unittest
from typing import Any
from unittest import mock

import torch
from cases import FULL_BLOCKS, LONG, PROMPTS, SMALL, cached, computed, tokens
from cuda_driver import driver, mode
from engine import BLOCK_TOKENS
from gpu_case import GpuCase
from late_gpu import WatchedGpu
from region import Region
from test_scheduling import steps_ahead

import rackline
from rackline.engines.settings import SettingsError
from rackline.vllm.device import Cpu, Gpu, device_of
from rackline.vllm.layout import blocks_in_memory


class KvOnGpu(GpuCase):
    def test_another_node_loads_what_one_saved(self) -> None:
        self.fill()
        for load in ("async", "sync"):
            with self.subTest(load), self.on_gpu(1, load=load) as second:
                answers = second.answers(PROMPTS)
                self.assertEqual(tokens(answers), self.expected)
                self.assertEqual(cached(answers), FULL_BLOCKS * BLOCK_TOKENS)
                self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)
                self.check_figures(second)

    def test_a_save_that_does_not_wait_for_the_stream_would_show(self) -> None:
        with self.on_gpu(connector="WrongStream") as first:
            self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
        with self.on_gpu(1) as second:
            self.assertNotEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)

    def test_a_load_that_does_not_wait_for_the_stream_would_show(self) -> None:
        self.fill()
        for load in ("async", "sync"):
            wrong = self.on_gpu(1, connector="WrongStream", load=load)
            with self.subTest(load), wrong as second:
                self.assertNotEqual(tokens(second.answers(PROMPTS)), self.expected)
                self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)

    def test_loads_wait_for_no_forward_that_is_kept_off_their_blocks(self) -> None:
        """VLLM-W10."""
        self.fill()
        for order, steps_under_way in ((contextlib.nullcontext, 1), (steps_ahead, 2)):
            for connector, waited in (("WatchedGpu", False), ("NewestPosition", True)):
                with self.subTest(connector, steps_under_way=steps_under_way):
                    self.watch(order(), connector, steps_under_way, waited)

    def watch(self, order: Any, connector: str, steps_under_way: int, waited: bool) -> None:
        with order, self.on_gpu(1, connector=connector) as second:
            WatchedGpu.waited.clear()
            WatchedGpu.under_way.clear()
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)
        self.assertEqual(set(WatchedGpu.waited), {waited})
        self.assertEqual(max(WatchedGpu.under_way), steps_under_way)

    def test_a_load_that_comes_after_a_step_less_would_show(self) -> None:
        self.fill()
        for order in (contextlib.nullcontext, steps_ahead):
            with self.subTest(order.__name__), order():
                with self.on_gpu(1, connector="EarlierPosition") as second:
                    self.assertNotEqual(tokens(second.answers(PROMPTS)), self.expected)
                    self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)

    def test_a_pool_that_cannot_be_registered_is_used_and_told_of(self) -> None:
        with mode("no-register"), self.assertLogs("rackline.vllm.device", "WARNING") as told:
            with self.on_gpu() as first:
                self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
                self.check_figures(first, bounced=True)
        self.assertIn("through a buffer", told.output[0])
        self.assertIn("the fake driver refuses", told.output[0])
        with self.on_gpu(1) as second:
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)

    def test_blocks_that_a_gpu_fails_to_copy_are_computed(self) -> None:
        self.fill()
        with self.on_gpu(1) as second:
            with mode("fail:cuMemcpyBatchAsync:1"):
                self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), 0)
            self.assertEqual(second.counter("failed_load_blocks"), FULL_BLOCKS)
            self.assertGreater(second.counter("gpu_failed_blocks"), 0)
            # The blocks are good, and found by others.
            second.forget()
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)

    def test_preemptions_and_chunked_prefill(self) -> None:
        expected = computed(LONG, 60)
        for node, load in [(0, "async"), (1, "async"), (1, "sync")]:
            with self.subTest(node=node, load=load):
                with self.on_gpu(node, load=load, **SMALL) as tight:
                    self.assertEqual(tokens(tight.answers(LONG, tokens=60)), expected)
                    if node == 1:
                        self.assertGreater(tight.counter("loaded_blocks"), 0)
                    self.check_figures(tight)


class Devices(unittest.TestCase):
    """Where an engine's KV may be, and how it may lie there."""

    @staticmethod
    def caches(*devices: str) -> dict:
        return {
            f"layers.{number}": types.SimpleNamespace(device=torch.device(device))
            for number, device in enumerate(devices)
        }

    def test_caches_are_on_one_device_that_copies(self) -> None:
        self.assertIsInstance(device_of(self.caches("cpu", "cpu")), Cpu)
        device = device_of(self.caches("cuda:3", "cuda:3"))
        self.assertIsInstance(device, Gpu)
        self.assertEqual(device.gpu, 3)
        for devices, message in [
            (("cuda:0", "cuda:1"), "not on one device, but on cuda:0, cuda:1"),
            (("cpu", "cuda:1"), "not on one device"),
            (("xpu:0",), "on xpu:0: this connector copies"),
            (("meta",), "NVIDIA GPUs only"),
            ((), "not on one device"),
        ]:
            with self.subTest(devices), self.assertRaisesRegex(SettingsError, message):
                device_of(self.caches(*devices))

    def test_a_position_of_the_stream_is_waited_for_and_nothing_behind_it(self) -> None:
        """As torch does it on a GPU, with stand-ins for its streams and events."""
        main = driver().new_stream()

        class Event:
            def record(self, stream: Any) -> None:
                self.stream = driver().new_stream()
                driver().come_after(self.stream, stream.cuda_stream)

        class Stream:
            def __init__(self, gpu: int) -> None:
                self.cuda_stream = driver().new_stream()

            def wait_event(self, event: Event) -> None:
                driver().come_after(self.cuda_stream, event.stream)

        memory = ctypes.create_string_buffer(b"....", 4)
        driver().has(ctypes.addressof(memory), 4)

        def write(place: int, content: bytes) -> None:
            driver().write_later(main, ctypes.addressof(memory) + place, content)

        current = types.SimpleNamespace(cuda_stream=main)
        with (
            mock.patch("torch.cuda.Event", Event),
            mock.patch("torch.cuda.Stream", Stream),
            mock.patch("torch.cuda.current_stream", lambda gpu: current),
        ):
            device, positions = Gpu(0), []
            for place, content in enumerate((b"a", b"b", b"c")):
                positions.append(device.position())
                write(place, content)
            for position, expected in zip(positions, (b"....", b"a...", b"ab.."), strict=True):
                driver().wait_for(device.stream_at(position))
                self.assertEqual(memory.raw, expected)
            driver().wait_for(device.stream())
            self.assertEqual(memory.raw, b"abc.")

    def test_every_layout_of_blocks_comes_back(self) -> None:
        """All layers, blocks, heads, tokens in a block and elements; by the order in memory that
        vLLM knows, and with K and V apart."""
        layers, blocks, heads, slots, width = 2, 4, 2, 8, 64
        sizes = dict(L=layers, B=blocks, H=heads, N=slots, C=width)
        dice = torch.Generator().manual_seed(1)

        def cache(order: str, random: bool) -> dict[str, torch.Tensor]:
            shape = [sizes[dimension] for dimension in order]
            memory = torch.rand(shape, generator=dice) if random else torch.zeros(shape)
            driver().has(memory.data_ptr(), memory.numel() * 4)
            seen = memory.permute([order.index(dimension) for dimension in "LBHNC"])
            return {f"layers.{layer}.attn": seen[layer] for layer in range(layers)}

        def apart(random: bool) -> dict[str, torch.Tensor]:
            shape = [layers, 2, blocks, slots, heads, width // 2]
            memory = torch.rand(shape, generator=dice) if random else torch.zeros(shape)
            driver().has(memory.data_ptr(), memory.numel() * 4)
            return {f"layers.{layer}.attn": memory[layer] for layer in range(layers)}

        orders = ["LBHNC", "LBNHC", "BLHNC", "BLNHC", "BHLNC"]
        kinds = {order: (lambda random, order=order: cache(order, random)) for order in orders}
        words = set()
        for name, make in {**kinds, "K and V apart": apart}.items():
            with self.subTest(name), Region("16MiB", "32KiB") as region:
                source, target = make(True), make(False)
                memory, said, _ = blocks_in_memory(source, blocks, 0)
                words.add(said)
                into, _, _ = blocks_in_memory(target, blocks, 0)
                self.assertEqual((memory.gpu, memory.blocks), (0, blocks))
                hashes = [bytes([number]) * 32 for number in range(blocks)]
                with rackline.Pool(region.path, 0) as pool:
                    pool.gpu(0)
                    session = pool.session(tiny_blocks(), memory.block_bytes)
                    session.publish(hashes, 0, memory, [0, 1, 2, 3], stream=0).wait()
                    with session.lookup(hashes, hold=True).wait() as prefix:
                        fetch = session.fetch(prefix, into, [3, 2, 1, 0], stream=0)
                        self.assertEqual(fetch.wait().valid_blocks, blocks)
                dimension = 1 if name == "K and V apart" else 0
                for layer, cache_of_layer in source.items():
                    self.assertTrue(torch.equal(target[layer].flip(dimension), cache_of_layer))
        # Whether blocks or layers are outermost makes no difference inside a block.
        self.assertEqual(len(words), 3, words)

    def test_blocks_whose_heads_lie_apart_are_refused(self) -> None:
        memory = torch.zeros(2, 4, 8, 64).permute(1, 0, 2, 3)
        with self.assertRaisesRegex(SettingsError, "not contiguous"):
            blocks_in_memory({"layers.0": memory}, 4, 0)


def tiny_blocks() -> rackline.Model:
    return rackline.Model(
        name="tiny", revision="1", dtype="f32", block_tokens=8, layers=2, kv_heads=2, head_dim=32
    )


if __name__ == "__main__":
    unittest.main()
