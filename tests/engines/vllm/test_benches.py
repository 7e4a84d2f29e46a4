"""The benchmarks run, with few blocks and rounds. What they measure is not judged here. That of the engines
takes minutes: here is what it refuses, and what it says of runs."""

from __future__ import annotations

import contextlib
import io
import time
import unittest
from typing import Any

import benches  # noqa: F401
import arguments
import blocks_bench
import load
import pressure
import report
import scheduler_bench
import systems


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


class Engines(unittest.TestCase):
    """`benches/engines`."""

    options = arguments.parse(["--systems", "control,rackline", "--repetitions", "2"])

    def run_of(self, system: str, repetition: int, first_ms: float, **more: Any) -> report.Run:
        """A run of one prompt."""
        got = load.Measured(2000, first_ms, 2000 + first_ms, 3000, 1, [7])
        told = pressure.Pressure(3, 2, 1, 17, None, None)
        return report.Run(system, repetition, measured=[got], pressure=told, **more)

    def test_arguments_that_are_refused(self) -> None:
        for wrong, why in [
            ("--systems nothing", "there is no 'nothing': choose from control,"),
            ("--systems nixl,nixl", "name each system once"),
            ("--tokens 2040", "for both together"),
            ("--prompts 1", "no number from 2 on"),
            ("--foreign-limit 101", "no percentage"),
            ("--json /nowhere/file", "a folder that is there"),
            ("--logs /nowhere", "make it first"),
        ]:
            said = io.StringIO()
            with self.subTest(wrong), contextlib.redirect_stderr(said):
                with self.assertRaises(SystemExit) as ended:
                    arguments.parse(wrong.split())
                self.assertEqual(ended.exception.code, 2)
                self.assertIn(why, said.getvalue())

    def test_a_run_is_compared_with_the_control_of_its_repetition(self) -> None:
        runs = [self.run_of("control", 1, 1000), self.run_of("rackline", 1, 50)]
        runs += [self.run_of("control", 2, 3000), self.run_of("rackline", 2, 60)]
        self.assertEqual(report.ratios(runs, "rackline"), [0.05, 0.02])
        self.assertEqual(report.problems(self.options, runs), [])
        runs[2].is_thrown_away = True
        self.assertEqual(report.ratios(runs, "rackline"), [0.05])
        self.assertIn("0.050 | 2055 |", report.table(self.options, runs))

    def test_what_makes_figures_useless(self) -> None:
        for told, why in [
            (dict(failed="the decode ended"), "rackline, repetition 1: the decode ended"),
            (dict(wrong_answers=1), "are not those of a single server"),
            (dict(fewer=1), "computed whole blocks of 1 of 1 prompts"),
            (dict(is_busy=True, is_thrown_away=True), "1 of 1 runs were thrown away"),
        ]:
            runs = [self.run_of("rackline", 1, 50, **told), self.run_of("control", 1, 1000)]
            with self.subTest(why):
                (problem,) = report.problems(self.options, runs)
                self.assertIn(why, problem)

    def test_a_decode_that_gets_all_whole_blocks_computes_the_rest(self) -> None:
        block = systems.BLOCK_TOKENS
        lengths = [1, block, block + 1, 28 * block + 4]
        left = [load.computed_at_most(True, length) for length in lengths]
        self.assertEqual(left, [1, block, 1, 4])
        self.assertEqual(load.computed_at_most(False, 900), 900)

    def test_the_time_of_others_is_what_all_took_without_the_own(self) -> None:
        watch = pressure.Watch()
        ends_s = time.process_time() + 0.2
        while time.process_time() < ends_s:
            pass
        told = watch.told()
        # The kernel counts in hundredths of a second.
        self.assertGreaterEqual(told.own_s, 0.15)
        self.assertGreaterEqual(told.wall_s, 0.15)
        self.assertGreaterEqual(told.foreign_s, 0)


if __name__ == "__main__":
    unittest.main()
