"""The benchmarks run, with few blocks and rounds. What they measure is not judged here."""

from __future__ import annotations

import unittest

import benches  # noqa: F401
import blocks_bench
import scheduler_bench


class Benches(unittest.TestCase):
    def test_a_prompt_in_the_scheduler(self) -> None:
        for clock, steps, sent in scheduler_bench.measure(64, 2, "96MiB"):
            self.assertGreater(clock.cpu_ms["update_state_after_alloc"], 0)
            self.assertEqual(len(clock.steps(steps)), 4)
            self.assertGreater(sent, 64 * 10 * scheduler_bench.RANKS)
        slices = scheduler_bench.hash_short_blocks("sha256", 100)
        self.assertEqual(len(slices), 2)

    def test_blocks_through_the_package(self) -> None:
        rows = blocks_bench.figures([64 << 10], [1, 4], bytes_max=2 << 20, ring_bytes=2 << 20, filling_s=0)
        self.assertEqual([row.count("|") for row in rows], [8] * 4)


if __name__ == "__main__":
    unittest.main()
