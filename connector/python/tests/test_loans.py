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


class Loans(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("16MiB", "4KiB"))
        self.pool = self.attach(0)
        self.sessions = self.of(self.pool)

    def attach(self, node: int) -> rackline.Pool:
        return self.enterContext(rackline.Pool(self.region.path, node, publishes_by_layers=True))

    @staticmethod
    def of(pool: rackline.Pool) -> list[rackline.Session]:
        return [pool.session(head(number), BLOCK_BYTES) for number in range(HEADS)]

    def publish(self, source: Cache, numbers: list[int]) -> None:
        with source.memory().lend(numbers) as loan:
            begun = [
                session.publish(hashes(len(numbers)), 0, loan, cut)
                for cut, session in enumerate(self.sessions)
            ]
        for publish in begun:
            self.assertEqual(publish.wait().published, len(numbers))

    def handles(self, count: int) -> list[bytes]:
        return [session.lookup(hashes(count)).wait().handles() for session in self.sessions]

    def test_each_cut_is_published_and_fetched_under_one_loan(self) -> None:
        source, target = Cache(fill=True), Cache()
        memory = source.memory()
        self.assertEqual((memory.cuts, memory.steps, memory.layers), (HEADS, STEPS, LAYERS))
        self.assertEqual((memory.blocks, memory.block_bytes), (ROWS * STEPS, BLOCK_BYTES))
        sources, targets = [7, 2, 3, 10, 4], [1, 0, 11, 6, 8]
        self.publish(source, sources)
        loan = target.memory().lend(targets, write=True)
        self.assertEqual(len(loan), 5)
        fetches = [
            session.fetch(handles, loan, cut)
            for cut, (session, handles) in enumerate(zip(self.sessions, self.handles(5)))
        ]
        for fetch in fetches:
            self.assertEqual(fetch.wait().valid_blocks, 5)
        for of_head in range(HEADS):
            for from_block, to_block in zip(sources, targets):
                self.assertEqual(
                    target.block(to_block, of_head), source.block(from_block, of_head)
                )
            for untouched in {*range(ROWS * STEPS)} - {*targets}:
                self.assertEqual(target.block(untouched, of_head), bytes(BLOCK_BYTES))

    def test_layers_of_a_cut_are_published_and_fetched(self) -> None:
        source, target = Cache(fill=True), Cache()
        with source.memory().lend([1, 4]) as loan:
            publish = self.sessions[2].publish_by_layers(hashes(2), [0, 1], loan, 2)
        for layer in range(LAYERS):
            publish.layer_ready(layer)
        publish.finish()
        self.assertEqual(publish.wait().outcomes, ["published"] * 2)
        prefix = self.sessions[2].lookup(hashes(2)).wait()
        with target.memory().lend([9, 0], write=True) as loan:
            fetch = self.sessions[2].fetch_by_layers(prefix, loan, 2)
        self.assertTrue(fetch.wait_layer(LAYERS - 1))
        self.assertEqual(fetch.wait().valid_blocks, 2)
        self.assertEqual(target.block(9, 2), source.block(1, 2))
        self.assertEqual(target.block(0, 2), source.block(4, 2))
        self.assertEqual(target.block(9, 1), bytes(BLOCK_BYTES))

    def test_blocks_are_lent_until_the_loan_and_its_transfers_are_gone(self) -> None:
        cache = Cache(fill=True)
        memory = cache.memory()
        loan = memory.lend([2, 7])
        # Readers share, and a row is lent whole: block 3 lies between the halves of block 2.
        reads = self.sessions[0].publish_by_layers(hashes(2), [0, 1], loan, 0)
        memory.lend([2, 3]).release()
        for taken in ([2], [3], [0, 6]):
            with self.assertRaisesRegex(rackline.Error, f"block {taken[-1]} is in another transfer"):
                memory.lend(taken, write=True)
        memory.lend([0, 5], write=True).release()
        loan.release()
        with self.assertRaisesRegex(rackline.Error, "in another transfer"):
            memory.lend([2], write=True)
        with self.assertRaisesRegex(rackline.Error, "released: lend the blocks again"):
            self.sessions[1].publish(hashes(2), 0, loan, 1)
        reads.abort()
        reads.wait()
        memory.lend([2], write=True).release()
        # A loan that nobody released is given back with its object.
        loan = memory.lend([2], write=True)
        with self.assertRaisesRegex(rackline.Error, "in another transfer"):
            memory.lend([3])
        del loan
        gc.collect()
        memory.lend([3]).release()

    def test_a_cut_is_written_by_one_transfer_at_a_time(self) -> None:
        source, target = Cache(fill=True), Cache()
        self.publish(source, [0, 1])
        handles = self.handles(2)
        loan = target.memory().lend([4, 5], write=True)
        with self.assertRaisesRegex(rackline.Error, "there is no cut 4: the memory has 4"):
            self.sessions[0].fetch(handles[0], loan, 4)
        first = self.sessions[0].fetch(handles[0], loan, 0)
        with self.assertRaisesRegex(rackline.Error, "^cut 0 of this loan is in another transfer"):
            self.sessions[0].fetch(handles[0], loan, 0)
        self.assertEqual(self.sessions[1].fetch(handles[1], loan, 1).wait().valid_blocks, 2)
        # Until its result was asked for, the first fetch has the blocks.
        self.assertEqual(first.wait().valid_blocks, 2)
        self.assertEqual(self.sessions[0].fetch(handles[0], loan, 0).wait().valid_blocks, 2)
        # A fetch that is refused leaves the cut as it was.
        with self.assertRaisesRegex(rackline.Error, "1 blocks, and 2 places"):
            self.sessions[2].fetch(handles[2][: rackline.HANDLE_BYTES], loan, 2)
        self.assertEqual(self.sessions[2].fetch(handles[2], loan, 2).wait().valid_blocks, 2)

    def test_a_loan_is_for_reading_or_for_writing(self) -> None:
        memory = Cache(fill=True).memory()
        with memory.lend([1], write=True) as loan:
            with self.assertRaisesRegex(rackline.Error, "lend them with write=False"):
                self.sessions[0].publish(hashes(1), 0, loan, 0)
        with memory.lend([1]) as loan:
            with self.assertRaisesRegex(rackline.Error, "lend them with write=True"):
                self.sessions[0].fetch(bytes(rackline.HANDLE_BYTES), loan, 0)
        for call in (
            lambda: self.sessions[0].publish(hashes(1), 0, memory, [1]),
            lambda: self.sessions[0].fetch(bytes(rackline.HANDLE_BYTES), memory, [1]),
        ):
            with self.assertRaisesRegex(rackline.Error, "has 4 cuts: lend its blocks"):
                call()
        for numbers, message in [
            ([ROWS * STEPS], "there is no block 12: the memory has 12"),
            ([3, 1, 3], "cannot write block 3 twice"),
        ]:
            with self.assertRaisesRegex(rackline.Error, message):
                memory.lend(numbers, write=True)
        self.assertEqual(len(memory.lend([3, 1, 3])), 3)

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

    def test_memory_outlives_its_loans_and_transfers(self) -> None:
        cache = Cache(fill=True)
        gone = weakref.ref(cache)
        loan = cache.memory().lend([0])
        del cache
        gc.collect()
        self.assertIsNotNone(gone())
        publish = self.sessions[3].publish(hashes(1), 0, loan, 3)
        loan.release()
        self.assertEqual(publish.wait().published, 1)
        del publish
        gc.collect()
        self.assertIsNone(gone(), "nothing keeps it any more")

    def test_a_forked_child_is_refused(self) -> None:
        memory = Cache().memory()
        loan = memory.lend([0], write=True)
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (lambda: memory.lend([1]), lambda: len(loan), loan.release):
                try:
                    call()
                except rackline.Forked:
                    refused += 1
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 3)
        self.assertEqual(len(loan), 1)


if __name__ == "__main__":
    unittest.main()
