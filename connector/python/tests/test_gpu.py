"""Transfers of a GPU's memory, with a stand-in for its driver: no GPU is needed, nor used."""

from __future__ import annotations

import ctypes
import gc
import os
import types
import unittest
from unittest import mock

import rackline
from cuda_driver import driver, mode
from region import Region
from test_session import BLOCK_BYTES, BLOCKS, buffer, hashes, model

GPU = 0


def address_of(array: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(array))


def content(number: int) -> bytes:
    return bytes([number]) * BLOCK_BYTES


class OnGpu(unittest.TestCase):
    def setUp(self) -> None:
        self.driver = driver()
        self.stream = self.driver.new_stream()
        self.region = self.enterContext(Region("16MiB", "4KiB"))

    def attach(self, node: int = 0, **options) -> rackline.Pool:
        return self.enterContext(rackline.Pool(self.region.path, node, **options))

    def memory(self, fill: int | None = None) -> tuple[memoryview, rackline.BlockMemory]:
        """Blocks of the GPU, and a way for the test to look into them."""
        array = buffer(fill)
        self.driver.has(address_of(array), BLOCKS * BLOCK_BYTES)
        half = BLOCK_BYTES // 2
        parts = [
            (address_of(array), BLOCK_BYTES, half),
            (address_of(array) + half, BLOCK_BYTES, BLOCK_BYTES - half),
        ]
        return array, rackline.BlockMemory(parts, BLOCKS, array, gpu=GPU)

    def write_later(self, array: memoryview, block: int, number: int) -> None:
        self.driver.write_later(
            self.stream, address_of(array) + block * BLOCK_BYTES, content(number)
        )

    def test_transfers_come_after_the_work_of_the_stream(self) -> None:
        pool = self.attach(fetch_threads=1)
        gpu = pool.gpu(GPU)
        self.assertEqual((gpu.number, gpu.reach, gpu.bounced_because), (0, "registered", None))
        self.assertEqual((gpu.summing, gpu.summed_by_cpu_because), ("by the GPU", None))
        session = pool.session(model(), BLOCK_BYTES)
        source, memory = self.memory(fill=200)
        self.assertEqual(memory.gpu, GPU)
        for block in range(4):
            self.write_later(source, block, block + 1)
        self.assertEqual(source[0, 0], 200, "the stand-in has done it at once")
        published = session.publish(
            hashes(4), 0, memory, [0, 1, 2, 3], stream=self.stream
        ).wait()
        self.assertEqual(published.outcomes, ["published"] * 4)

        # Another process's, as it were: the CPU reads what the GPU has stored.
        target = buffer()
        prefix = session.lookup(hashes(4), hold=True).wait()
        fetched = session.fetch(prefix, rackline.block_memory(target), [0, 1, 2, 3]).wait()
        self.assertEqual((fetched.valid_blocks, fetched.message), (4, None))
        expected = b"".join(content(number) for number in (1, 2, 3, 4))
        self.assertEqual(target.tobytes()[: len(expected)], expected)

        # What is still to be written there is written before, not after.
        destination, memory = self.memory()
        for block in range(4, 8):
            self.write_later(destination, block, 99)
        fetched = session.fetch(prefix, memory, [4, 5, 6, 7], stream=self.stream).wait()
        self.assertEqual((fetched.valid_blocks, fetched.message), (4, None))
        self.driver.wait_for(self.stream)
        found = destination.tobytes()[4 * BLOCK_BYTES : 8 * BLOCK_BYTES]
        self.assertEqual(found, expected)
        figures = gpu.figures()
        self.assertGreater(figures.pop("registering_ns"), 0)
        self.assertEqual(
            figures,
            {
                "stored_bytes": 4 * BLOCK_BYTES,
                "loaded_bytes": 4 * BLOCK_BYTES,
                "bounced_bytes": 0,
                "gpu_summed_bytes": 8 * BLOCK_BYTES,
                "failed_payloads": 0,
                # All of the region is one piece.
                "registered_bytes": 16 << 20,
                "registrations": 1,
                "unregistrations": 0,
                "refused_registrations": 0,
                "registrations_over_limit": 0,
            },
        )

    def test_a_pool_that_cannot_be_registered_is_reached_through_a_buffer(self) -> None:
        with mode("no-register"):
            pool = self.attach()
            gpu = pool.gpu(GPU)
        self.assertEqual(gpu.reach, "bounced")
        self.assertIn("the fake driver refuses", gpu.bounced_because)
        session = pool.session(model(), BLOCK_BYTES)
        source, memory = self.memory(fill=200)
        self.write_later(source, 3, 7)
        session.publish(hashes(1), 0, memory, [3], stream=self.stream).wait()
        prefix = session.lookup(hashes(1)).wait()
        session.fetch(prefix, memory, [5], stream=self.stream).wait()
        self.assertEqual(bytes(source.tobytes()[5 * BLOCK_BYTES :][:BLOCK_BYTES]), content(7))
        self.assertEqual(gpu.figures()["bounced_bytes"], 2 * BLOCK_BYTES)

    def test_what_the_driver_does_not_copy_is_no_block(self) -> None:
        pool = self.attach()
        gpu = pool.gpu(GPU)
        session = pool.session(model(), BLOCK_BYTES)
        _, memory = self.memory(fill=1)
        with mode("fail:cuMemcpyAsync:1"):
            published = session.publish(hashes(1), 0, memory, [0], stream=self.stream).wait()
        self.assertEqual(published.outcomes, ["copy"])
        self.assertIn("the fake driver refuses", published.messages["copy"])
        self.assertEqual(len(session.lookup(hashes(1)).wait()), 0)
        session.publish(hashes(1), 0, memory, [0], stream=self.stream).wait()
        prefix = session.lookup(hashes(1)).wait()
        with mode("fail:cuMemcpyAsync:1"):
            fetched = session.fetch(prefix, memory, [1], stream=self.stream).wait()
        self.assertEqual((fetched.valid_blocks, fetched.reason), (0, "copy"))
        self.assertEqual(gpu.figures()["failed_payloads"], 2)

    def test_a_driver_without_the_kernel_has_the_cpu_sum(self) -> None:
        with mode("no-kernel"):
            pool = self.attach()
            gpu = pool.gpu(GPU)
        self.assertEqual(gpu.summing, "by the CPU")
        self.assertIn("the fake driver refuses", gpu.summed_by_cpu_because)
        session = pool.session(model(), BLOCK_BYTES)
        _, memory = self.memory(fill=5)
        session.publish(hashes(1), 0, memory, [0], stream=self.stream).wait()
        prefix = session.lookup(hashes(1)).wait()
        fetched = session.fetch(prefix, memory, [1], stream=self.stream).wait()
        self.assertEqual((fetched.valid_blocks, gpu.figures()["gpu_summed_bytes"]), (1, 0))

    def test_a_block_whose_checksum_is_another_in_gpu_memory_is_a_miss(self) -> None:
        pool = self.attach()
        pool.gpu(GPU)
        session = pool.session(model(), BLOCK_BYTES)
        _, memory = self.memory(fill=5)
        session.publish(hashes(1), 0, memory, [0], stream=self.stream).wait()
        prefix = session.lookup(hashes(1)).wait()
        with mode("wrong-sums"):
            fetched = session.fetch(prefix, memory, [1], stream=self.stream).wait()
        self.assertEqual((fetched.valid_blocks, fetched.reason), (0, "checksum"))

    def test_a_gpu_that_cannot_be_waited_for_costs_the_process_its_blocks_alone(self) -> None:
        pool = self.attach()
        pool.gpu(GPU)
        session = pool.session(model(), BLOCK_BYTES)
        array, memory = self.memory(fill=5)
        with mode("fail:cuStreamSynchronize:1"):
            published = session.publish(hashes(1), 0, memory, [0], stream=self.stream).wait()
        self.assertEqual(published.outcomes, ["copy"])
        self.assertIn("may still write", published.messages["copy"])
        # Its space is no other block's while this process lives; the CPU copies on.
        by_cpu = rackline.block_memory(buffer(7))
        again = session.publish(hashes(2), 0, by_cpu, [0, 1]).wait()
        self.assertEqual([outcome == "published" for outcome in again.outcomes], [False, True])
        self.assertEqual(len(session.lookup(hashes(2)).wait()), 0)
        refused = session.publish(hashes(3), 0, memory, [0, 1, 2], stream=self.stream).wait()
        self.assertEqual(refused.outcomes[2], "copy")

    def test_bad_calls_say_what_is_wrong_and_keep_nothing(self) -> None:
        pool = self.attach()
        session = pool.session(model(), BLOCK_BYTES)
        _, memory = self.memory(fill=1)
        cpu = rackline.block_memory(buffer(fill=1))
        publish = session.publish

        def refused(message: str, call) -> None:
            with self.subTest(message), self.assertRaisesRegex(rackline.Error, message):
                call()

        refused("call Pool.gpu", lambda: publish(hashes(1), 0, memory, [0], stream=0))
        refused("there is no GPU number 7", lambda: pool.gpu(7))
        pool.gpu(GPU)
        refused("give its handle", lambda: publish(hashes(1), 0, memory, [0]))
        refused("a stream is for", lambda: publish(hashes(1), 0, cpu, [0], stream=0))
        with self.driver.capturing(self.stream):
            refused(
                "captured into a CUDA graph",
                lambda: publish(hashes(1), 0, memory, [0], stream=self.stream),
            )
            refused(
                "captured into a CUDA graph",
                lambda: session.fetch(bytes(rackline.HANDLE_BYTES), memory, [0], stream=self.stream),
            )
        # None of them has the block still: it can be written to.
        fetched = session.fetch(bytes(rackline.HANDLE_BYTES), memory, [0], stream=self.stream).wait()
        self.assertEqual(fetched.valid_blocks, 0)
        self.assertEqual(publish(hashes(1), 0, memory, [0], stream=0).wait().published, 1)
        pool.close()
        with self.assertRaises(rackline.Closed):
            publish(hashes(2), 0, memory, [0, 1], stream=self.stream)
        with self.assertRaises(rackline.Closed):
            pool.gpu(GPU)

    def test_a_forked_child_leaves_the_gpu_alone(self) -> None:
        pool = rackline.Pool(self.region.path, 0)
        gpu = pool.gpu(GPU)
        session = pool.session(model(), BLOCK_BYTES)
        _, memory = self.memory(fill=1)
        session.publish(hashes(1), 0, memory, [0], stream=self.stream).wait()
        child = os.fork()
        if child == 0:
            # Any use of the GPU ends the child.
            refused = 0
            for call in (
                lambda: session.publish(hashes(1), 0, memory, [1], stream=self.stream),
                lambda: session.fetch(bytes(rackline.HANDLE_BYTES), memory, [1], stream=self.stream),
                lambda: pool.gpu(GPU),
            ):
                try:
                    call()
                except rackline.Forked:
                    refused += 1
            pool.close()
            call = session = pool = None
            gc.collect()
            counted = gpu.figures()["stored_bytes"]
            os._exit(0 if (refused, counted) == (3, 0) else 1)
        _, status = os.waitpid(child, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        published = session.publish(hashes(2), 0, memory, [0, 1], stream=self.stream).wait()
        self.assertEqual(published.published, 1, "the parent goes on")
        pool.close()

    def test_tensors_on_a_gpu_are_known_as_such(self) -> None:
        class Tensor:
            """What is asked of a torch tensor."""

            device = types.SimpleNamespace(type="cuda")
            shape = (BLOCKS, BLOCK_BYTES)

            def data_ptr(self) -> int:
                return 4096

            def stride(self) -> tuple[int, int]:
                return (BLOCK_BYTES, 1)

            def element_size(self) -> int:
                return 1

            def get_device(self) -> int:
                return 3

        torch = types.SimpleNamespace(version=types.SimpleNamespace(hip=None))
        with mock.patch.dict("sys.modules", torch=torch):
            memory = rackline.block_memory(Tensor(), Tensor())
            self.assertEqual((memory.gpu, memory.block_bytes), (3, 2 * BLOCK_BYTES))
            with self.assertRaisesRegex(rackline.Error, "arrays are on different devices"):
                rackline.block_memory(Tensor(), buffer())
            Tensor.device = types.SimpleNamespace(type="xpu")
            with self.assertRaisesRegex(rackline.Error, "NVIDIA GPU"):
                rackline.block_memory(Tensor())


if __name__ == "__main__":
    unittest.main()
