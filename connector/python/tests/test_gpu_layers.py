"""Transfers by layers of a GPU's memory, with a stand-in for its driver: no GPU is needed, nor used."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import unittest

import rackline
from cuda_driver import driver, mode
from region import Region
from test_session import BLOCK_BYTES, BLOCKS, hashes, model

GPU = 0
LENGTHS = [1000, 1500, 96, 1600]
"""Of the parts of a block."""
LAYERS = [1, 2, 1]
"""How many of the parts each of three layers has."""
PARTS_OF_LAYER = [[0], [1, 2], [3]]
OLD = 200
"""What the memory is full of before a stream does anything."""


class Blocks:
    """Memory of blocks of three layers, an array for each part."""

    def __init__(self, on_gpu: bool = True) -> None:
        self.arrays = [bytearray([OLD]) * (BLOCKS * length) for length in LENGTHS]
        self._places = [(ctypes.c_char * len(array)).from_buffer(array) for array in self.arrays]
        if on_gpu:
            for place in self._places:
                driver().has(ctypes.addressof(place), len(place))
        parts = [
            (ctypes.addressof(place), length, length)
            for place, length in zip(self._places, LENGTHS, strict=True)
        ]
        gpu = GPU if on_gpu else None
        self.memory = rackline.BlockMemory(
            parts, BLOCKS, self._places, gpu=gpu, layers=LAYERS
        )

    def write_later(self, stream: int, layer: int, number: int, blocks: range) -> None:
        """Gives the stream a layer of those blocks to fill."""
        for part in PARTS_OF_LAYER[layer]:
            start = ctypes.addressof(self._places[part]) + blocks.start * LENGTHS[part]
            content = bytes([number]) * (len(blocks) * LENGTHS[part])
            driver().write_later(stream, start, content)

    def layer(self, layer: int, blocks: range) -> bytes:
        parts = PARTS_OF_LAYER[layer]
        return b"".join(
            bytes(self.arrays[part][blocks.start * LENGTHS[part] : blocks.stop * LENGTHS[part]])
            for part in parts
        )

    def holds(self, numbers: list[int], blocks: range) -> bool:
        """Whether each layer of those blocks is full of its number."""
        return all(
            set(self.layer(layer, blocks)) == {number} for layer, number in enumerate(numbers)
        )


class LayersOnGpu(unittest.TestCase):
    def setUp(self) -> None:
        self.stream = driver().new_stream()
        self.kept: list[Blocks] = []
        """What the stream may still write to."""
        self.addCleanup(driver().wait_for, self.stream)
        self.region = self.enterContext(Region("16MiB", "4KiB"))

    def session(self, node: int = 0, **options) -> rackline.Session:
        pool = rackline.Pool(self.region.path, node, publishes_by_layers=True, **options)
        self.pool = self.enterContext(pool)
        self.gpu = pool.gpu(GPU)
        return pool.session(model(), BLOCK_BYTES)

    def blocks(self) -> Blocks:
        self.kept.append(blocks := Blocks())
        return blocks

    def publish(self, session: rackline.Session, count: int = 3) -> rackline.LayeredPublish:
        """Of the blocks from 1 on."""
        self.source = self.blocks()
        ids = list(range(1, count + 1))
        return session.publish_by_layers(hashes(count), ids, self.source.memory, ids)

    def compute(
        self, publish: rackline.LayeredPublish, layers: list[int], told: int | None = None
    ) -> None:
        """A forward that launches those layers, and says so as it continues; layer n is full of n + 1."""
        for layer in layers:
            self.source.write_later(self.stream, layer, layer + 1, range(1, 4))
            publish.layer_ready(layer, stream=self.stream if told is None else told)

    def found_by_cpu(self, session: rackline.Session, count: int = 3) -> Blocks:
        target = Blocks(on_gpu=False)
        with session.lookup(hashes(count), hold=True).wait() as prefix:
            ids = list(range(1, count + 1))
            fetched = session.fetch(prefix, target.memory, ids).wait()
            self.assertEqual((fetched.valid_blocks, fetched.message), (count, None))
        return target

    def test_a_layer_is_published_as_its_stream_leaves_it(self) -> None:
        for way, order in [("", [0, 1, 2]), ("no-register", [2, 0, 1])]:
            with self.subTest(way), Region("16MiB", "4KiB") as self.region:
                with mode(way):
                    session = self.session()
                publish = self.publish(session)
                self.compute(publish, order[:1])
                self.compute(publish, order[1:])
                publish.finish()
                self.assertEqual(publish.wait().outcomes, ["published"] * 3)
                self.assertTrue(self.found_by_cpu(session).holds([1, 2, 3], range(1, 4)))
                bounced = 3 * BLOCK_BYTES if way else 0
                self.assertEqual(self.gpu.figures()["bounced_bytes"], bounced)
                self.pool.close()

    def test_parts_of_a_layer_that_lie_side_by_side_are_one_copy(self) -> None:
        session = self.session()
        array = bytearray(range(256)) * (BLOCKS * BLOCK_BYTES // 256)
        place = (ctypes.c_char * len(array)).from_buffer(array)
        driver().has(ctypes.addressof(place), len(place))
        starts = itertools.accumulate(LENGTHS, initial=0)
        parts = [
            (ctypes.addressof(place) + start, BLOCK_BYTES, length)
            for start, length in zip(starts, LENGTHS, strict=False)
        ]
        memory = rackline.BlockMemory(parts, BLOCKS, place, gpu=GPU, layers=LAYERS)
        publish = session.publish_by_layers(hashes(1), [2], memory, [2])
        # A call for several copies fails.
        with mode("fail:cuMemcpyBatchAsync:1"):
            for layer in range(3):
                publish.layer_ready(layer, stream=self.stream)
            publish.finish()
            published = publish.wait()
        self.assertEqual((published.outcomes, published.messages), (["published"], {}))

    def test_a_layer_that_does_not_come_after_its_stream_would_show(self) -> None:
        session = self.session()
        publish = self.publish(session)
        self.compute(publish, [0, 1, 2], told=driver().new_stream())
        publish.finish()
        self.assertEqual(publish.wait().outcomes, ["published"] * 3)
        self.assertTrue(self.found_by_cpu(session).holds([OLD, OLD, OLD], range(1, 4)))

    def test_a_layer_that_has_arrived_is_what_is_used_from_then_on(self) -> None:
        for way in ("", "no-register"):
            with self.subTest(way), Region("16MiB", "4KiB") as self.region:
                with mode(way):
                    session = self.session()
                publish = self.publish(session)
                self.compute(publish, [0, 1, 2])
                publish.finish()
                publish.wait()
                target, blocks = self.blocks(), range(4, 7)
                for layer in range(3):
                    # Still to be done when the fetch is asked for: it is written before, not after.
                    target.write_later(self.stream, layer, 99, blocks)
                prefix = session.lookup(hashes(3), hold=True).wait()
                fetch = session.fetch_by_layers(
                    prefix, target.memory, list(blocks), stream=self.stream
                )
                for layer in range(3):
                    self.assertTrue(fetch.wait_layer(layer))
                    self.assertEqual(set(target.layer(layer, blocks)), {layer + 1})
                self.assertEqual(fetch.wait().valid_blocks, 3)
                driver().wait_for(self.stream)
                self.assertTrue(target.holds([1, 2, 3], blocks))
                self.pool.close()

    def test_what_nobody_said_is_ready_is_not_published(self) -> None:
        session = self.session()
        publish = self.publish(session)
        self.compute(publish, [0, 2])
        publish.finish()
        self.assertEqual(publish.wait().outcomes, ["aborted"] * 3)
        publish = self.publish(session)
        self.compute(publish, [0])
        with driver().capturing(self.stream):
            with self.assertRaisesRegex(rackline.Error, "captured into a CUDA graph"):
                publish.layer_ready(1, stream=self.stream)
        # Whatever comes after it.
        self.compute(publish, [1, 2])
        publish.finish()
        self.assertEqual(publish.wait().outcomes, ["aborted"] * 3)
        publish = self.publish(session)
        self.compute(publish, [0, 1, 2])
        publish.abort()
        self.assertEqual(publish.wait().outcomes, ["aborted"] * 3)
        publish = self.publish(session)
        self.compute(publish, [0, 1, 2])
        del publish
        self.assertEqual(len(session.lookup(hashes(3)).wait()), 0)
        publish = self.publish(session)
        self.compute(publish, [0])
        self.pool.close()
        self.compute(publish, [1, 2])
        publish.finish()
        self.assertEqual(publish.wait().outcomes, ["aborted"] * 3)

    def test_layers_that_the_driver_does_not_copy_are_no_blocks(self) -> None:
        session = self.session()
        publish = self.publish(session)
        with mode("fail:cuMemcpyBatchAsync:2"):
            self.compute(publish, [0, 1, 2])
            publish.finish()
            result = publish.wait()
        self.assertEqual(result.outcomes, ["copy"] * 3)
        self.assertIn("the fake driver refuses", result.messages["copy"])
        self.assertEqual(len(session.lookup(hashes(3)).wait()), 0)
        publish = self.publish(session)
        self.compute(publish, [0, 1, 2])
        publish.finish()
        self.assertEqual(publish.wait().published, 3)
        prefix = session.lookup(hashes(3)).wait()
        with mode("fail:cuMemcpyBatchAsync:2"):
            target = self.blocks()
            fetch = session.fetch_by_layers(
                prefix, target.memory, [1, 2, 3], stream=self.stream
            )
            fetched = fetch.wait()
        self.assertEqual((fetched.valid_blocks, fetched.reason), (0, "copy"))

    def test_bad_calls_say_what_is_wrong_and_keep_nothing(self) -> None:
        pool = self.enterContext(rackline.Pool(self.region.path, 0))
        session = pool.session(model(), BLOCK_BYTES)
        blocks, cpu = self.blocks(), Blocks(on_gpu=False)

        def refused(message: str, call) -> None:
            with self.subTest(message), self.assertRaisesRegex(rackline.Error, message):
                call()

        def publish(of: Blocks) -> rackline.LayeredPublish:
            return session.publish_by_layers(hashes(1), [0], of.memory, [0])

        def fetch(of: Blocks, **stream) -> rackline.LayeredFetch:
            return session.fetch_by_layers(bytes(rackline.HANDLE_BYTES), of.memory, [0], **stream)

        refused("call Pool.gpu", lambda: publish(blocks))
        refused("call Pool.gpu", lambda: fetch(blocks, stream=0))
        pool.gpu(GPU)
        refused("publishes_by_layers=True", lambda: publish(blocks))
        refused("give its handle", lambda: fetch(blocks))
        refused("a stream is for", lambda: fetch(cpu, stream=0))
        with driver().capturing(self.stream):
            refused("captured into a CUDA graph", lambda: fetch(blocks, stream=self.stream))
            refused("is the default stream during such a capture", lambda: fetch(blocks, stream=0))
        pool.close()
        session = self.session()
        layered = publish(blocks)
        refused("give its handle", lambda: layered.layer_ready(0))
        refused("no layer 3: a block has 3", lambda: layered.layer_ready(3, stream=0))
        by_cpu = publish(cpu)
        refused("a stream is for", lambda: by_cpu.layer_ready(0, stream=0))
        # A call that was refused said nothing.
        for layer in range(3):
            layered.layer_ready(layer, stream=0)
        layered.finish()
        self.assertEqual(layered.wait().published, 1)
        by_cpu.abort()
        by_cpu.wait()
        self.pool.close()
        with self.assertRaises(rackline.Closed):
            publish(blocks)
        with self.assertRaises(rackline.Closed):
            fetch(blocks, stream=0)

    def test_a_forked_child_leaves_the_gpu_alone(self) -> None:
        session = self.session()
        # One that nobody works on any more, and one that waits for its layers.
        aborted = self.publish(session)
        self.compute(aborted, [0])
        with driver().capturing(self.stream), self.assertRaises(rackline.Error):
            aborted.layer_ready(1, stream=self.stream)
        behind = self.publish(session)
        behind.abort()
        behind.wait()
        publish = self.publish(session)
        self.compute(publish, [0])
        child = os.fork()
        if child == 0:
            # Any use of the GPU ends the child.
            refused = 0
            for call in (
                lambda: publish.layer_ready(1, stream=self.stream),
                lambda: self.publish(session),
                lambda: session.fetch_by_layers(
                    bytes(rackline.HANDLE_BYTES), self.source.memory, [1], stream=self.stream
                ),
            ):
                try:
                    call()
                except rackline.Forked:
                    refused += 1
            call = aborted = publish = None
            gc.collect()
            os._exit(0 if refused == 3 else 1)
        _, status = os.waitpid(child, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        self.compute(publish, [1, 2])
        publish.finish()
        self.assertEqual(publish.wait().published, 3, "the parent goes on")


if __name__ == "__main__":
    unittest.main()
