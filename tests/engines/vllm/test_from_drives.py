"""A real engine whose blocks have left the pool: they come back from a drive, and the tokens are equal."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile

from cases import FULL_BLOCKS, PROMPTS, TinyCase, computed, tokens
from drive_agent import DriveAgent
from engine import BLOCK_TOKENS, Engine, engine, prompts
from region import Region, command

CONVERSATIONS, FIRST_TOKENS, ANSWER_TOKENS = 20, 200, 24
FIRST_BLOCKS = FIRST_TOKENS // BLOCK_TOKENS
# Of the tiny model in float32: 4 layers, K and V, 2 heads of 64 numbers.
BLOCK_BYTES = 4 * 2 * 2 * 64 * 4 * BLOCK_TOKENS


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

    def test_second_turns_with_a_pool_of_a_tenth(self) -> None:
        firsts = prompts(11, *[FIRST_TOKENS] * CONVERSATIONS)
        self.renew_small_pool()
        agent = self.start_agent()
        agent.wait_until_announced(0)
        with self.small_engine() as own:
            answers = []
            for number, first in enumerate(firsts, 1):
                answers += own.answers([first], tokens=ANSWER_TOKENS)
                own.drain()
                # The pool has room for two first turns.
                if number % 2 == 0:
                    agent.wait_until_backed_up(number * FIRST_BLOCKS)
        questions = prompts(12, *[30] * CONVERSATIONS)
        turns = zip(firsts, tokens(answers), questions, strict=True)
        seconds = [[*first, *answer, *question] for first, answer, question in turns]
        expected, half = computed(seconds), CONVERSATIONS // 2
        with self.small_engine() as own:
            self.assert_from_drives(own, seconds[:half], expected[:half])
        with self.subTest("the region is formatted anew in the middle"):
            self.assertEqual(agent.stop(), 0)
            self.renew_small_pool()
            self.start_agent().wait_until_announced(CONVERSATIONS * FIRST_BLOCKS)
            with self.small_engine() as new:
                self.assert_from_drives(new, seconds[half:], expected[half:])

    def renew_small_pool(self) -> None:
        """Room for a tenth of the blocks of all first turns, and not for more."""
        working_set = CONVERSATIONS * FIRST_BLOCKS * BLOCK_BYTES
        size, block = f"{(working_set // 10) + (512 << 10)}B", f"{BLOCK_BYTES}B"
        drives = f"{4 * working_set}B"
        self.region = self.enterContext(
            Region(size, block, nodes=1, chunk="512KiB", drive_bytes=drives)
        )
        pool = self.region.bytes - self.region.payload_offset
        self.assertLessEqual(pool, working_set // 10)

    def small_engine(self) -> contextlib.AbstractContextManager[Engine]:
        """Without a prefix cache of its own: what is found comes from the pool or the drive."""
        return engine(self.model, self.settings(), enable_prefix_caching=False)

    def assert_from_drives(
        self, own: Engine, asked: list[list[int]], expected: list[list[int]]
    ) -> None:
        """Every answer is right, and most blocks of the first turns come from the drive. Not all must: the
        pool has room for two conversations, and a restored block may leave it before it is held."""
        for prompt, answer in zip(asked, expected, strict=True):
            self.assertEqual(tokens(own.answers([prompt])), [answer])
            own.drain()
        first_turns = len(asked) * FIRST_BLOCKS
        self.assertGreaterEqual(own.counter("loaded_blocks"), first_turns // 2)
        self.assertGreaterEqual(own.counter("lookup_restored_blocks"), first_turns // 2)
