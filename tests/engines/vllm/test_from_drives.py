"""A real engine whose blocks have left the pool: they come back from a drive, and the tokens are equal."""

from __future__ import annotations

import subprocess
import tempfile

from cases import FULL_BLOCKS, PROMPTS, TinyCase, tokens
from drive_agent import DriveAgent
from engine import engine
from region import command


class FromDrives(TinyCase):
    common = {"restore_wait_ms": 60_000, "lookup_timeout_ms": 60_000}

    def setUp(self) -> None:
        super().setUp()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def start_agent(self) -> DriveAgent:
        agent = DriveAgent(self.region.path, self.folder, "256MiB")
        self.addCleanup(agent.kill)
        return agent

    def test_blocks_come_back_from_a_drive(self) -> None:
        agent = self.start_agent()
        with engine(self.model, self.settings()) as own:
            self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
            own.drain()
            saved = own.counter("saved_blocks")
            agent.wait_until_announced(saved)
            clear = ["clear", "--pool-only", "--region", self.region.path, "--node", "0", "--all"]
            subprocess.run([command(), *clear], check=True)
            own.forget()
            self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
            self.assertEqual(own.counter("loaded_blocks"), FULL_BLOCKS)
            self.assertEqual(own.counter("lookup_restored_blocks"), FULL_BLOCKS)

        with self.subTest("the pool is lost and formatted anew"):
            self.assertEqual(agent.stop(), 0)
            self.renew_pool()
            self.start_agent().wait_until_announced(saved)
            with engine(self.model, self.settings()) as new:
                self.assertEqual(tokens(new.answers(PROMPTS)), self.expected)
                self.assertEqual(new.counter("lookup_restored_blocks"), FULL_BLOCKS)

        with self.subTest("without an agent the engine computes, and says why"):
            self.renew_pool()
            with engine(self.model, self.settings()) as alone:
                self.assertEqual(tokens(alone.answers(PROMPTS)), self.expected)
                self.assertEqual(alone.counter("lookup_restored_blocks"), 0)
