"""Blocks on drives, restored by real agents for lookups that wait."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
import time
import unittest

import rackline
from region import Region, command

BLOCK_BYTES, BLOCKS = 4096, 64
LIMIT_S = 120
"""Far longer than on a slow machine: to end a hang, not to measure."""


def hashes(prompt: str, blocks: int = BLOCKS) -> bytes:
    each = (f"{prompt} {number}".encode() for number in range(blocks))
    return b"".join(hashlib.sha256(text).digest() for text in each)


class ForwardsTest(unittest.TestCase):
    def test_an_engine_reports_where_there_is_room_for_drives(self) -> None:
        numbers = dict(block_tokens=16, layers=2, kv_heads=1, head_dim=64)
        model = rackline.Model(name="tiny", revision="1", dtype="f16", **numbers)
        region = self.enterContext(Region("16MiB", "4KiB"))
        with rackline.Pool(region.path, 0) as pool:
            session = pool.session(model, BLOCK_BYTES)
            told = [session.report_forwards() for _ in range(65)]
            self.assertEqual([it is not None for it in told], [True] * 64 + [False])
            told[0].begin(100, 0)
            told[0].end()
            told[0].end()
            del told[:]
            self.assertIsNotNone(session.report_forwards())
        with self.assertRaises(rackline.Closed):
            session.report_forwards()


class Host:
    """An engine and an agent of one node."""

    def __init__(self, test: unittest.TestCase, region: Region, node: int) -> None:
        self._region, self.node = region, node
        folder = test.enterContext(tempfile.TemporaryDirectory())
        place = ["--region", region.path, "--node", str(node), "--drive", f"{folder}:64MiB"]
        soon = ["--admission", "all", "--backup-age-ms", "0", "--commit-ms", "5"]
        self.agent = subprocess.Popen([command(), "agent", *place, *soon], stderr=subprocess.DEVNULL)
        test.addCleanup(self._end)
        self.pool = test.enterContext(rackline.Pool(region.path, node))
        numbers = dict(block_tokens=16, layers=2, kv_heads=1, head_dim=64)
        model = rackline.Model(name="tiny", revision="1", dtype="f16", **numbers)
        self.session = self.pool.session(model, BLOCK_BYTES)
        self.rows = bytearray(BLOCKS * BLOCK_BYTES)
        self.memory = rackline.block_memory(
            memoryview(self.rows).cast("B", (BLOCKS, BLOCK_BYTES))
        )

    def _end(self) -> None:
        self.agent.kill()
        self.agent.wait()

    def put(self, prompt: str) -> bytes:
        """Publishes a prompt. Returns its bytes."""
        self.rows[:] = hashlib.shake_128(prompt.encode()).digest(len(self.rows))
        publish = self.session.publish(hashes(prompt), 0, self.memory, list(range(BLOCKS)))
        assert publish.wait().published == BLOCKS
        return bytes(self.rows)

    def drive_blocks(self) -> int:
        said = subprocess.run(
            [command(), "status", "--json", "--region", self._region.path],
            check=True,
            stdout=subprocess.PIPE,
        )
        agents = {agent["node"]: agent for agent in json.loads(said.stdout)["agents"]}
        return agents.get(self.node, {}).get("announced_blocks", 0)

    def restored(self, prompt: str, wait_ms: int = 60_000, **options) -> rackline.Prefix:
        return self.session.lookup(
            hashes(prompt), hold=True, restore_wait_ms=wait_ms, **options
        ).wait()


class Drives(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("16MiB", "4KiB"))
        self.hosts = [Host(self, self.region, node) for node in (0, 1)]

    def clear(self) -> str:
        """Empties the pool. Returns what the command says."""
        place = ["--region", self.region.path, "--node", "0", "--all"]
        cleared = subprocess.run(
            [command(), "clear", "--pool-only", *place], check=True, stdout=subprocess.PIPE, text=True
        )
        return cleared.stdout

    def wait_until(self, reached) -> None:
        ends_s = time.monotonic() + LIMIT_S
        while not reached():
            self.assertLess(time.monotonic(), ends_s, "it never got there")
            time.sleep(0.05)

    def test_blocks_that_left_the_pool_come_back_from_a_drive_of_any_host(self) -> None:
        owner, other = self.hosts
        self.assertTrue(owner.pool.has_drives)
        written = owner.put("prompt")
        self.wait_until(lambda: owner.drive_blocks() == BLOCKS)
        for host in (other, owner):
            self.clear()
            self.assertEqual(len(host.session.lookup(hashes("prompt")).wait()), 0)
            # The agent of this host learns of the other's blocks within a second or so.
            self.wait_until(lambda host=host: host.restored("prompt").on_drives == BLOCKS)
            self.clear()
            self.assertEqual(sum(host.session.present(hashes("prompt")).wait()), 0)
            asked = hashes("prompt", 2) + hashes("other", 1)
            self.assertEqual(host.session.present(asked, drives=True).wait(), bytes([1, 1, 0]))
            with host.restored("prompt") as prefix:
                self.assertEqual((len(prefix), prefix.reason), (BLOCKS, None))
                host.rows[:] = bytes(len(host.rows))
                fetched = host.session.fetch(prefix, host.memory, list(range(BLOCKS))).wait()
                self.assertEqual(fetched.valid_blocks, BLOCKS)
            self.assertEqual(bytes(host.rows), written)
            self.assertGreaterEqual(host.pool.metrics()["restored_blocks"], BLOCKS)
        self.assertEqual(rackline.clear(self.region.path, 1, tenant=None), [])
        self.wait_until(lambda: owner.drive_blocks() == 0)
        self.assertEqual(len(other.restored("prompt")), 0)

    def test_blocks_are_there_before_they_are_looked_up(self) -> None:
        owner, other = self.hosts
        owner.put("prompt")
        self.wait_until(lambda: owner.drive_blocks() == BLOCKS)
        self.clear()
        self.wait_until(
            lambda: sum(other.session.present(hashes("prompt"), drives=True).wait()) == BLOCKS
        )
        given = hashes("prompt") + hashes("absent", 3)
        prefetch = other.session.prefetch(given, wait_ms=60_000)
        told = prefetch.wait()
        self.assertEqual((told.asked, told.in_pool, told.not_asked), (BLOCKS, 0, 3))
        self.assertEqual(told.reason, "prefetch_absent")
        self.assertIn("neither in the pool", told.message)
        counted = other.pool.metrics
        self.wait_until(lambda: counted()["prefetch_restored_blocks"] == BLOCKS)
        prefix = other.session.lookup(hashes("prompt"), hold=True).wait()
        self.assertEqual(len(prefix), BLOCKS)
        self.assertEqual(counted()["prefetch_used_blocks"], BLOCKS)
        prefix.release()
        # One that is taken back leaves nothing under way, whatever has come by then.
        self.clear()
        other.session.prefetch(hashes("prompt"), wait_ms=60_000).cancel()
        ended = [f"prefetch_{how}_blocks" for how in ("restored", "late", "refused", "cancelled")]
        self.wait_until(
            lambda: counted()["prefetch_asked_blocks"] == sum(counted()[how] for how in ended)
        )
        self.assertEqual(len(other.restored("prompt")), BLOCKS)
        told = other.session.prefetch(hashes("absent"), wait_ms=0).wait(60_000)
        self.assertEqual((told.asked, told.not_asked), (0, BLOCKS))
        other.pool.close()
        with self.assertRaises(rackline.Closed):
            other.session.prefetch(hashes("prompt"), wait_ms=1)

    def test_a_dead_agent_is_a_miss_and_not_a_wait_without_end(self) -> None:
        owner, other = self.hosts
        owner.put("prompt")
        self.wait_until(lambda: owner.drive_blocks() == BLOCKS)
        owner.agent.kill()
        owner.agent.wait()
        self.clear()
        prefix = other.restored("prompt")
        self.assertEqual(len(prefix), 0)
        self.assertIn(prefix.reason, (None, "restore_no_agent"))

    def test_a_lookup_says_why_it_does_not_wait(self) -> None:
        session = self.hosts[0].session
        with self.assertRaisesRegex(rackline.Error, "set hold"):
            session.lookup(hashes("prompt"), restore_wait_ms=1)
