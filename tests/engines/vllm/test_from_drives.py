"""A real engine whose blocks have left the pool: they come back from a drive, and the tokens are equal."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time

from cases import FULL_BLOCKS, PROMPTS, TinyCase, tokens
from engine import engine
from region import command

LIMIT_S = 300
"""Far longer than on a slow machine: to end a hang, not to measure."""


class FromDrives(TinyCase):
    common = {"restore_wait_ms": 60_000, "lookup_timeout_ms": 60_000}

    def setUp(self) -> None:
        super().setUp()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def start_agent(self) -> subprocess.Popen[bytes]:
        place = ["--region", self.region.path, "--node", "0", "--drive", f"{self.folder}:256MiB"]
        soon = ["--admission", "all", "--backup-age-ms", "0", "--commit-ms", "5"]
        agent = subprocess.Popen([command(), "agent", *place, *soon])
        self.addCleanup(lambda: (agent.kill(), agent.wait()))
        return agent

    def wait_until_announced(self, blocks: int) -> None:
        ends_s = time.monotonic() + LIMIT_S
        while self._announced() < blocks:
            self.assertLess(time.monotonic(), ends_s, "the agent has not announced them")
            time.sleep(0.1)
        # The host knows its agent when it has seen two beats of it, of which there are four a second.
        time.sleep(1)

    def _announced(self) -> int:
        said = subprocess.run(
            [command(), "status", "--json", "--region", self.region.path],
            check=True,
            stdout=subprocess.PIPE,
        )
        return sum(agent["announced_blocks"] for agent in json.loads(said.stdout)["agents"])

    def test_blocks_come_back_from_a_drive(self) -> None:
        agent = self.start_agent()
        with engine(self.model, self.settings()) as own:
            self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
            own.drain()
            saved = own.counter("saved_blocks")
            self.wait_until_announced(saved)
            clear = ["clear", "--pool-only", "--region", self.region.path, "--node", "0", "--all"]
            subprocess.run([command(), *clear], check=True)
            own.forget()
            self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
            self.assertEqual(own.counter("loaded_blocks"), FULL_BLOCKS)
            self.assertEqual(own.counter("lookup_restored_blocks"), FULL_BLOCKS)

        with self.subTest("the pool is lost and formatted anew"):
            agent.terminate()
            self.assertEqual(agent.wait(), 0)
            self.renew_pool()
            self.start_agent()
            self.wait_until_announced(saved)
            with engine(self.model, self.settings()) as new:
                self.assertEqual(tokens(new.answers(PROMPTS)), self.expected)
                self.assertEqual(new.counter("lookup_restored_blocks"), FULL_BLOCKS)

        with self.subTest("without an agent the engine computes, and says why"):
            self.renew_pool()
            with engine(self.model, self.settings()) as alone:
                self.assertEqual(tokens(alone.answers(PROMPTS)), self.expected)
                self.assertEqual(alone.counter("lookup_restored_blocks"), 0)
