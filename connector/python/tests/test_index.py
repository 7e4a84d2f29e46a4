"""The read-only view of a pool for routers."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import rackline
from region import Region, command

BLOCK_BYTES = 4096
WAIT_S = 60
# Publishes blocks of the ranks in its arguments, and waits to be killed.
MEMBER = """
import sys, rackline, test_index
path, node, first, last, *ranks = sys.argv[1:]
pool = rackline.Pool(path, int(node))
for rank in ranks:
    test_index.publish(pool, int(rank), range(int(first), int(last)))
print("published", flush=True)
sys.stdin.readline()
"""


def model(rank: int = 0) -> rackline.Model:
    numbers = dict(block_tokens=16, layers=2, kv_heads=2, head_dim=64)
    parallel = dict(tensor_parallel_rank=rank, tensor_parallel_size=2)
    return rackline.Model(name="tiny", revision="1", dtype="f16", **numbers, **parallel)


def hashes(numbers: range) -> list[bytes]:
    return [bytes([number]) * 32 for number in numbers]


def publish(pool: rackline.Pool, rank: int, numbers: range, tenant: str = "") -> None:
    memory = memoryview(bytearray(len(numbers) * BLOCK_BYTES)).cast("B", (len(numbers), BLOCK_BYTES))
    session = pool.session(model(rank), BLOCK_BYTES, tenant=tenant)
    ids = list(range(len(numbers)))
    done = session.publish(hashes(numbers), numbers.start, rackline.block_memory(memory), ids).wait()
    assert done.published == len(numbers), done.outcomes


def indexed(rank: int = 0, **options: str) -> rackline.IndexModel:
    return rackline.Index.model(model(rank), BLOCK_BYTES, **options)


class Routers(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("16MiB", "4KiB"))

    def member(self, *arguments: str) -> subprocess.Popen[str]:
        """Another process, which has published when this returns."""
        process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, self.region.path, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "published\n")
        return process

    def test_a_prefix_counts_where_every_rank_has_it(self) -> None:
        index = rackline.Index(self.region.path)
        wanted = hashes(range(10))
        self.assertEqual(len(index.prefix(wanted, indexed())), 0)
        with rackline.Pool(self.region.path, 0) as pool:
            publish(pool, 0, range(6))
            publish(pool, 0, range(3), tenant="a")
            found = index.prefix(wanted, indexed())
            self.assertEqual((found.blocks, found.nodes), (6, {0: 6}))
            self.member("1", "0", "4", "1")
            both = [indexed(0), indexed(1)]
            found = index.prefix(wanted, *both, refresh=False)
            self.assertEqual((found.blocks, found.nodes), (0, {}))
            index.refresh()
            found = index.prefix(wanted, *both, refresh=False)
            self.assertEqual((found.blocks, found.nodes), (4, {0: 4, 1: 4}))
            self.assertEqual(len(index.prefix(wanted, indexed(tenant="a"))), 3)
            self.assertEqual(len(index.prefix(wanted, indexed(tenant="b"))), 0)
            self.assertEqual(index.blocks, 6 + 3 + 4)
        # The blocks of a process outlive it.
        self.assertEqual(len(rackline.Index(self.region.path).prefix(wanted, indexed())), 6)

    def test_blocks_of_a_dead_node_are_found_while_they_are_there(self) -> None:
        index = rackline.Index(self.region.path)
        manager = self.region.lock_manager(0, "--fence", "none", "--declare-ms", "1500")
        self.addCleanup(manager.wait)
        self.addCleanup(manager.terminate)
        self.member("1", "0", "5", "0").send_signal(signal.SIGKILL)
        ends_s = time.monotonic() + WAIT_S
        while self.region.state(1) != "quarantined":
            self.assertEqual(len(index.prefix(hashes(range(5)), indexed())), 5)
            self.assertLess(time.monotonic(), ends_s, "it is not declared dead")
        found = index.prefix(hashes(range(5)), indexed())
        self.assertEqual((found.blocks, found.nodes), (5, {1: 5}))

    def test_an_index_is_no_member(self) -> None:
        index = rackline.Index(self.region.path)
        self.assertIsNone(self.region.state(0))
        self.assertEqual(index.blocks, 0)

    def test_a_region_that_was_formatted_again_is_an_error(self) -> None:
        with rackline.Pool(self.region.path, 0) as pool:
            publish(pool, 0, range(3))
        index = rackline.Index(self.region.path)
        self.assertEqual(len(index.prefix(hashes(range(3)), indexed())), 3)
        again = ["format", "--force", "--region", self.region.path, "--block", "4KiB"]
        again += ["--nodes", "2", "--chunk", "1MiB", "--lock", "bakery"]
        subprocess.run([command(), *again], check=True, stdout=subprocess.DEVNULL)
        for _ in range(2):
            with self.assertRaisesRegex(rackline.Error, "formatted again or replaced"):
                index.prefix(hashes(range(3)), indexed())
        self.assertEqual(len(rackline.Index(self.region.path).prefix(hashes(range(3)), indexed())), 0)

    def test_a_file_that_was_replaced_is_an_error(self) -> None:
        index = rackline.Index(self.region.path)
        index.refresh()
        pathlib.Path(self.region.path).rename(self.region.path + ".old")
        time.sleep(1.1)
        with self.assertRaisesRegex(rackline.Error, "formatted again or replaced"):
            index.refresh()

    def test_what_cannot_be_asked_is_refused_in_words(self) -> None:
        with self.assertRaisesRegex(rackline.Error, "/nonexistent"):
            rackline.Index("/nonexistent")
        index = rackline.Index(self.region.path)
        with self.assertRaisesRegex(rackline.Error, "no model was given"):
            index.prefix(hashes(range(3)))
        with self.assertRaisesRegex(rackline.Error, "a hash has 32"):
            index.prefix([b"short"], indexed())

    def test_a_forked_child_opens_its_own(self) -> None:
        index = rackline.Index(self.region.path)
        child = os.fork()
        if child == 0:
            try:
                index.refresh()
            except rackline.Forked:
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


if __name__ == "__main__":
    unittest.main()
