"""Pinning the blocks of a tenant on a real region."""

from __future__ import annotations

import hashlib
import time
import unittest

import rackline
from region import Region

BLOCK_BYTES, BATCH = 4096, 64
# More than twice the blocks that the pool has room for: all that may leave leave.
FLOOD_BLOCKS = 8192
PINNED_BLOCKS = 512


class Tenant:
    """A session of a tenant, and the numbers of the blocks that it put."""

    def __init__(self, pool: rackline.Pool, name: str) -> None:
        numbers = dict(block_tokens=16, layers=2, kv_heads=1, head_dim=64)
        model = rackline.Model(name="tiny", revision="1", dtype="f16", **numbers)
        self._session = pool.session(model, BLOCK_BYTES, tenant=name)
        rows = memoryview(bytearray(BATCH * BLOCK_BYTES)).cast("B", (BATCH, BLOCK_BYTES))
        self._memory = rackline.block_memory(rows)
        self._name, self._put = name, 0

    def _hashes(self, first: int, end: int) -> bytes:
        each = (f"{self._name} {number}".encode() for number in range(first, end))
        return b"".join(hashlib.sha256(text).digest() for text in each)

    def put(self, blocks: int) -> None:
        for _ in range(0, blocks, BATCH):
            hashes = self._hashes(self._put, self._put + BATCH)
            result = self._session.publish(hashes, 0, self._memory, list(range(BATCH))).wait()
            assert result.published == BATCH, result.outcomes
            self._put += BATCH

    def left(self, blocks: int) -> int:
        """How many of its first blocks are in the pool."""
        return sum(self._session.present(self._hashes(0, blocks)).wait())


class Pins(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("16MiB", "4KiB"))
        pool = self.enterContext(rackline.Pool(self.region.path, 0))
        self.share_bytes = pool.share_bytes
        self.pinned, self.other = Tenant(pool, "pinned"), Tenant(pool, "other")
        self.pinned.put(PINNED_BLOCKS)

    def pin(self, node: int = 1, **options) -> list[int]:
        given = {"tenant": "pinned", "percent": 50, "length_s": 600, **options}
        return rackline.pin(self.region.path, node, **given)

    def left_after_a_flood(self) -> int:
        self.other.put(FLOOD_BLOCKS)
        return self.pinned.left(PINNED_BLOCKS)

    def test_pinned_blocks_stay_and_others_leave(self) -> None:
        """Whichever node asks for it."""
        for node in (1, 0):
            self.assertEqual(self.pin(node), [])
            self.assertEqual(self.left_after_a_flood(), PINNED_BLOCKS)

    def test_blocks_that_are_not_pinned_leave(self) -> None:
        self.assertEqual(self.pin(tenant="a third"), [])
        self.assertEqual(self.left_after_a_flood(), 0)

    def test_a_salt_is_another_namespace(self) -> None:
        self.assertEqual(self.pin(salt=b"salt"), [])
        self.assertEqual(self.left_after_a_flood(), 0)

    def test_what_is_beyond_the_pin_leaves(self) -> None:
        self.pinned.put(FLOOD_BLOCKS)
        before = self.pinned.left(FLOOD_BLOCKS + PINNED_BLOCKS)
        self.assertEqual(self.pin(percent=25), [])
        self.other.put(FLOOD_BLOCKS)
        left = self.pinned.left(FLOOD_BLOCKS + PINNED_BLOCKS)
        pinned = self.share_bytes // 4 // BLOCK_BYTES
        self.assertGreaterEqual(left, pinned)
        self.assertLess(left, before * 2 // 3)

    def test_a_pin_ends(self) -> None:
        self.pin()
        self.assertEqual(self.left_after_a_flood(), PINNED_BLOCKS)
        with self.subTest("with unpin, on any node"):
            self.assertEqual(rackline.unpin(self.region.path, 0, tenant="pinned"), [])
            self.assertEqual(self.left_after_a_flood(), 0)

    def test_a_pin_ends_with_its_time(self) -> None:
        self.pin(length_s=1)
        time.sleep(1.1)
        self.assertEqual(self.left_after_a_flood(), 0)

    def test_unpin_of_another_tenant_ends_nothing(self) -> None:
        self.pin()
        self.assertEqual(rackline.unpin(self.region.path, 1, tenant="other"), [])
        self.assertEqual(self.left_after_a_flood(), PINNED_BLOCKS)

    def test_bad_arguments_say_what_is_wrong(self) -> None:
        path = self.region.path
        for wrong, message in [
            (lambda: self.pin(percent=0), "0 percent: must be from 1 to 50"),
            (lambda: self.pin(percent=51), "51 percent: must be from 1 to 50"),
            (lambda: self.pin(percent=-1), "percent is -1: out of range"),
            (lambda: self.pin(length_s=0), "from 1 ms to 365 days"),
            (lambda: self.pin(length_s=-1), "length_s is -1: out of range"),
            (lambda: self.pin(node=-1), "node is -1: out of range"),
            (lambda: self.pin(node=7), "node 7 does not exist"),
            (lambda: rackline.unpin(path, 7, tenant="pinned"), "node 7 does not exist"),
            (lambda: rackline.unpin(path + "x", 0, tenant="pinned"), "regionx does not exist"),
        ]:
            with self.assertRaisesRegex(rackline.Error, message):
                wrong()
        for wrong in [lambda: rackline.pin(path, 1, tenant="a"), lambda: rackline.unpin(path, 1)]:
            with self.assertRaises(TypeError):
                wrong()
        self.assertEqual(self.left_after_a_flood(), 0)


if __name__ == "__main__":
    unittest.main()
