"""Blocks of several cuts, and blocks that share rows, on a real region."""

from __future__ import annotations

import ctypes
import gc
import os
import unittest
import weakref

import rackline
from region import Region

HEADS, LAYERS, ROWS, STEPS = 4, 3, 6, 2
HEAD_BYTES = 96
BLOCK_BYTES = LAYERS * HEAD_BYTES
"""Of one head, the cut."""
ROW_BYTES = HEADS * STEPS * HEAD_BYTES


def hashes(count: int) -> list[bytes]:
    return [bytes([number]) * 32 for number in range(count)]


def head(number: int) -> rackline.Model:
    return rackline.Model(
        name="cut",
        revision="1",
        dtype="f16",
        block_tokens=16,
        layers=LAYERS,
        kv_heads=1,
        head_dim=64,
        tensor_parallel_rank=number,
        tensor_parallel_size=HEADS,
    )


class Cache:
    """Layers of rows, in each row the heads, in each head the blocks of the row."""

    def __init__(self, fill: bool = False) -> None:
        bytes_of_all = LAYERS * ROWS * ROW_BYTES
        self.bytes = bytearray(os.urandom(bytes_of_all) if fill else bytes_of_all)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))

    def part(self, layer: int, of_head: int) -> tuple[int, int, int, int]:
        inside = layer * ROWS * ROW_BYTES + of_head * STEPS * HEAD_BYTES
        return self.address + inside, ROW_BYTES, HEAD_BYTES, HEAD_BYTES

    def memory(self, **other) -> rackline.BlockMemory:
        parts = [self.part(layer, cut) for cut in range(HEADS) for layer in range(LAYERS)]
        shape = dict(layers=[1] * len(parts), cuts=HEADS, steps=STEPS)
        shape["within"] = [(self.address, len(self.bytes))]
        return rackline.BlockMemory(parts, ROWS * STEPS, self, **{**shape, **other})

    def block(self, number: int, of_head: int) -> bytes:
        found = b""
        for layer in range(LAYERS):
            row = layer * ROWS * ROW_BYTES + number // STEPS * ROW_BYTES
            start = row + (of_head * STEPS + number % STEPS) * HEAD_BYTES
            found += self.bytes[start : start + HEAD_BYTES]
        return found


class SharesOfBlocks(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("16MiB", "4KiB"))
        self.pool = self.enterContext(
            rackline.Pool(self.region.path, 0, publishes_by_layers=True)
        )
        self.sessions = [self.pool.session(head(number), BLOCK_BYTES) for number in range(HEADS)]
        self.shares = rackline.Shares(self.sessions)

    def handles(self, count: int) -> list[bytes]:
        return [session.lookup(hashes(count)).wait().handles() for session in self.sessions]

    def publish(self, source: Cache, numbers: list[int]) -> None:
        published = self.shares.publish(hashes(len(numbers)), 0, source.memory(), numbers).wait()
        self.assertEqual(published.published, HEADS * len(numbers))

    def check(self, source: Cache, sources: list[int], target: Cache, targets: list[int]) -> None:
        for of_head in range(HEADS):
            for from_block, to_block in zip(sources, targets, strict=True):
                self.assertEqual(
                    target.block(to_block, of_head), source.block(from_block, of_head)
                )
            for untouched in {*range(ROWS * STEPS)} - {*targets}:
                self.assertEqual(target.block(untouched, of_head), bytes(BLOCK_BYTES))

    def test_each_session_has_its_cut_of_the_blocks(self) -> None:
        source, target = Cache(fill=True), Cache()
        memory = source.memory()
        self.assertEqual((memory.cuts, memory.steps, memory.layers), (HEADS, STEPS, LAYERS))
        self.assertEqual((memory.blocks, memory.block_bytes), (ROWS * STEPS, BLOCK_BYTES))
        self.assertEqual(len(self.shares), HEADS)
        sources, targets = [7, 2, 3, 10, 4], [1, 0, 11, 6, 8]
        self.publish(source, sources)
        fetch = self.shares.fetch(self.handles(5), target.memory(), targets)
        result = fetch.wait()
        self.assertEqual((result.valid_blocks, result.reason), (5, None))
        self.check(source, sources, target, targets)
        # One session alone has as many bytes of a block as the cut.
        array = memoryview(bytearray(2 * BLOCK_BYTES)).cast("B", (2, BLOCK_BYTES))
        alone = rackline.block_memory(array)
        self.assertEqual(
            self.sessions[2].fetch(self.handles(2)[2], alone, [0, 1]).wait().valid_blocks, 2
        )
        self.assertEqual(bytes(array.obj[BLOCK_BYTES:]), source.block(2, 2))

    def test_layers_of_all_cuts_go_together(self) -> None:
        source, target = Cache(), Cache()
        filled = Cache(fill=True)
        publish = self.shares.publish_by_layers(hashes(2), [0, 1], source.memory(), [1, 4])
        of_layer = ROWS * ROW_BYTES
        # What is written before a layer is ready is what is published.
        for layer in range(LAYERS):
            place = slice(layer * of_layer, (layer + 1) * of_layer)
            source.bytes[place] = filled.bytes[place]
            publish.layer_ready(layer)
        publish.finish()
        self.assertEqual(publish.wait().outcomes, ["published"] * 2 * HEADS)
        fetch = self.shares.fetch_by_layers(self.handles(2), target.memory(), [9, 0])
        for layer in range(LAYERS):
            self.assertTrue(fetch.wait_layer(layer))
        self.assertEqual(fetch.wait().valid_blocks, 2)
        self.check(filled, [1, 4], target, [9, 0])

    def test_a_block_is_valid_with_all_of_its_cuts(self) -> None:
        self.publish(Cache(fill=True), [0, 1, 2, 3])
        for wrong_block, wrong_head in [(0, 0), (2, 0), (2, 3), (3, 1)]:
            handles = [bytearray(each) for each in self.handles(4)]
            place = wrong_block * rackline.HANDLE_BYTES
            handles[wrong_head][place : place + rackline.HANDLE_BYTES] = bytes(
                rackline.HANDLE_BYTES
            )
            for begin in (self.shares.fetch, self.shares.fetch_by_layers):
                result = begin(handles, Cache().memory(), [4, 5, 6, 7]).wait()
                self.assertEqual(result.valid_blocks, wrong_block)
                self.assertIsNotNone(result.reason)

    def test_outcomes_are_those_of_each_cut_of_each_block(self) -> None:
        source = Cache(fill=True)
        array = memoryview(bytearray(BLOCK_BYTES)).cast("B", (1, BLOCK_BYTES))
        self.sessions[1].publish(hashes(2)[1:], 1, rackline.block_memory(array), [0]).wait()
        published = self.shares.publish(hashes(2), 0, source.memory(), [3, 4]).wait()
        expected = ["published"] * 2 * HEADS
        expected[HEADS + 1] = "already_there"
        self.assertEqual(published.outcomes, expected)
        self.assertEqual((published.published, published.already_there), (2 * HEADS - 1, 1))

    def test_rows_are_lent_whole_and_for_the_time_of_a_transfer(self) -> None:
        cache = Cache(fill=True)
        self.publish(cache, [8, 9])
        memory, handles = cache.memory(), self.handles(1)
        reads = self.shares.publish_by_layers([b"x" * 32, b"y" * 32], [0, 1], memory, [2, 7])
        # Readers share. Block 3 lies between the heads of block 2.
        self.shares.publish([b"v" * 32, b"w" * 32], 0, memory, [2, 3]).wait()
        for taken in (2, 3, 6):
            with self.assertRaisesRegex(rackline.Error, f"block {taken} is in another transfer"):
                self.shares.fetch(handles, cache.memory(), [taken])
        self.assertEqual(self.shares.fetch(handles, memory, [5]).wait().valid_blocks, 1)
        reads.abort()
        reads.wait()
        self.assertEqual(self.shares.fetch(handles, memory, [3]).wait().valid_blocks, 1)
        with self.assertRaisesRegex(rackline.Error, "cannot write block 3 twice"):
            self.shares.fetch(self.handles(2), memory, [3, 3])
        # Until its result was asked for, a fetch has the blocks.
        fetch = self.shares.fetch(handles, memory, [4])
        with self.assertRaisesRegex(rackline.Error, "block 5 is in another transfer"):
            self.shares.publish([b"z" * 32], 0, memory, [5])
        fetch.wait()
        self.shares.publish([b"z" * 32], 0, memory, [5]).wait()

    def test_what_does_not_fit_is_refused(self) -> None:
        memory, handles = Cache(fill=True).memory(), bytes(rackline.HANDLE_BYTES)
        whole = rackline.block_memory(bytearray(100))
        fewer = rackline.Shares(self.sessions[:2])
        salted = self.pool.session(head(1), BLOCK_BYTES, salt=b"other")
        shorter = self.pool.session(head(1), BLOCK_BYTES - 1)
        for wrong, message in [
            (lambda: rackline.Shares([]), "shares of no session"),
            (lambda: rackline.Shares([self.sessions[0], salted]), "differ in more than their model"),
            (lambda: rackline.Shares([self.sessions[0], shorter]), "differ in more than their model"),
            (lambda: fewer.publish(hashes(1), 0, memory, [1]), "4 cuts in memory, and 2 sessions"),
            (lambda: fewer.fetch([handles] * 2, whole, [1]), "1 cuts in memory, and 2 sessions"),
            (lambda: self.shares.fetch([handles] * 3, memory, [1]), "3 sessions found, and 4"),
            (
                lambda: self.shares.fetch([handles] * 3 + [handles * 2], memory, [1]),
                "1 blocks of one session, and 2 of another",
            ),
            (lambda: self.shares.fetch([handles] * 4, memory, [1, 2]), "1 blocks, and 2 places"),
            (lambda: self.shares.publish(hashes(2), 0, memory, [1]), "2 blocks, and 1 places"),
            (lambda: self.shares.publish(hashes(1), 2**32 - 1, memory, [1]), "4 billion"),
            (lambda: self.shares.publish(hashes(1), 0, memory, [12]), "no block 12: the memory has 12"),
            (
                lambda: self.shares.publish_by_layers(hashes(1), [1, 2], memory, [1]),
                "1 blocks, and 2 depths",
            ),
            (lambda: self.shares.fetch([handles] * 4, memory, [1], stream=1), "a stream is for"),
            (lambda: self.sessions[0].publish(hashes(1), 0, memory, [1]), "has 4 cuts"),
            (lambda: self.sessions[0].fetch(handles, memory, [1]), "has 4 cuts: .* by Shares"),
        ]:
            with self.subTest(message), self.assertRaisesRegex(rackline.Error, message):
                wrong()

    def test_a_full_queue_refuses_all_cuts_or_none(self) -> None:
        with rackline.Pool(self.region.path, 1, queue_depth=1, publishes_by_layers=True) as pool:
            sessions = [pool.session(head(number), BLOCK_BYTES) for number in range(HEADS)]
            shares, memory = rackline.Shares(sessions), Cache(fill=True).memory()
            begun = []
            with self.assertRaises(rackline.Busy):
                for number in range(0, ROWS * STEPS, STEPS):
                    begun.append(
                        shares.publish_by_layers([bytes([number]) * 32], [0], memory, [number])
                    )
            self.assertGreaterEqual(len(begun), 1)
            for publish in begun:
                publish.finish()
            for publish in begun:
                self.assertEqual(publish.wait().outcomes, ["published"] * HEADS)

    def test_shapes_that_cannot_be_are_refused(self) -> None:
        cache = Cache()
        part = cache.part(0, 0)
        address, stride, step, length = part
        for shape, message in [
            (dict(cuts=0), "0 cuts"),
            (dict(steps=0), "rows of 0 blocks"),
            (dict(steps=5), "12 blocks in rows of 5: pass a multiple of 5"),
            (dict(cuts=5), "12 layers for 5 cuts"),
            (dict(layers=[1] * 11 + [2]), "12 in all"),
            (dict(within=[(address, len(cache.bytes) - 1)]), "not in the memory of their owner"),
            (dict(within=[]), "not in the memory of their owner"),
        ]:
            with self.subTest(message), self.assertRaisesRegex(rackline.Error, message):
                cache.memory(**shape)
        for parts, blocks, shape, message in [
            ([(address, stride, length)], 4, dict(steps=2), "96 bytes every 0 bytes"),
            ([(address, length, step, length)], 4, dict(steps=2), "192 bytes every 96 bytes"),
            ([(address, stride, 2**63, length)], 2, dict(steps=2), "addressed"),
            ([part, (address, stride, step, 95)], 4, dict(steps=2, cuts=2), "95 bytes in cut 1 and 96"),
        ]:
            with self.subTest(message), self.assertRaisesRegex(rackline.Error, message):
                rackline.BlockMemory(parts, blocks, cache, **shape)

    def test_memory_outlives_its_transfers(self) -> None:
        cache = Cache(fill=True)
        gone = weakref.ref(cache)
        publish = self.shares.publish(hashes(1), 0, cache.memory(), [0])
        del cache
        gc.collect()
        self.assertEqual(publish.wait().published, HEADS)
        del publish
        gc.collect()
        self.assertIsNone(gone(), "nothing keeps it any more")

    def test_a_forked_child_is_refused(self) -> None:
        memory = Cache().memory()
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (
                lambda: self.shares.publish(hashes(1), 0, memory, [1]),
                lambda: self.shares.publish(hashes(1), 0, Cache().memory(), [1]),
                lambda: self.shares.publish_by_layers(hashes(1), [0], memory, [1]),
                lambda: self.shares.fetch_by_layers([b""] * HEADS, memory, []),
            ):
                try:
                    call()
                except rackline.Forked:
                    refused += 1
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 4)


if __name__ == "__main__":
    unittest.main()
