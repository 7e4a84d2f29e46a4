"""What asynchronous loads come after (VLLM-W10): the rule, and that vLLM's scheduler keeps off their blocks every step
whose output is not known."""

from __future__ import annotations

import unittest

from cases import LONG, SMALL, TinyCase, computed
from engine import engine, greedy
from rackline.vllm.messages import Step
from rackline.vllm.positions import Positions
from test_scheduling import steps_ahead
from watched_blocks import WatchedBlocks


class Device:
    """Whose stream is filled by steps."""

    def __init__(self) -> None:
        self.launched = 0

    def position(self) -> int:
        return self.launched

    def stream_at(self, position: int) -> str:
        return f"after step {position}"

    def stream(self) -> str:
        return "after all"


class Rule(unittest.TestCase):
    def after(self, steps_ahead: int, zeroes: bool, known: list[int]) -> list[str]:
        """What the loads of each step come after, with the last step that was known when it was made."""
        positions, device, told = Positions(steps_ahead, zeroes), Device(), []
        for number, last in enumerate(known, 1):
            step = Step(number=number, known=last)
            positions.begin(step, device)
            device.launched = number
            told.append(positions.of_load(step, device))
        return told

    def test_loads_come_after_known_steps(self) -> None:
        for steps_ahead, known in [
            (1, [0, 1, 2, 3]),
            (2, [0, 0, 1, 2]),
            (2, [0, 1, 1, 3]),
            (3, [0, 0, 0, 1]),
        ]:
            expected = [f"after step {last}" for last in known]
            self.assertEqual(self.after(steps_ahead, False, known), expected)

    def test_loads_come_after_zeroes_of_their_step(self) -> None:
        """These are launched before the step begins."""
        expected = [f"after step {last}" for last in (0, 1, 2, 3)]
        for steps_ahead, known in [(1, [0, 1, 2, 3]), (2, [0, 0, 1, 2]), (3, [0, 0, 0, 1])]:
            self.assertEqual(self.after(steps_ahead, True, known), expected)

    def test_loads_come_after_all_when_more_steps_are_under_way_than_the_engine_says(self) -> None:
        told = self.after(2, False, [0, 0, 0, 1])
        self.assertEqual(told, ["after step 0", "after step 0", "after all", "after all"])


class Scheduled(TinyCase):
    """A request is aborted while a step uses its blocks, and another waits for blocks to load into."""

    def blocks_in_use(self, keeps_blocks: bool) -> list[set[int]]:
        """Of each step with loads, which of the blocks that it loads into a step uses that is under way."""
        expected = computed(LONG[2:], 8)[0]
        with engine(self.model, self.settings()) as saves:
            saves.answers(LONG[2:], tokens=1)
            saves.drain()
        WatchedBlocks.in_use.clear()
        # It saves nothing: so blocks of a request that is aborted wait for no save.
        watched = dict(connector="WatchedBlocks", module="watched_blocks", role="kv_consumer")
        settings = self.settings(1, lookup_wait_ms=5000)
        with steps_ahead(), engine(self.model, settings, **watched, **SMALL) as own:
            own.scheduler.defer_block_free &= keeps_blocks

            def abort(step: int) -> None:
                if step == 4:
                    own.begin("loads", LONG[2], greedy(max_tokens=8))
                if step == 10:
                    self.assertEqual(WatchedBlocks.in_use, [], "it loads before there is room")
                    own.abort("gone")

            served = own.serve({"gone": LONG[0], "stays": LONG[1]}, abort, max_tokens=24)
            tokens = {name: list(output.outputs[0].token_ids) for name, output in served.items()}
            self.assertEqual(tokens["loads"], expected)
            self.assertEqual(own.counter("loaded_blocks"), (len(LONG[2]) - 1) // 32)
        return WatchedBlocks.in_use

    def test_blocks_of_a_step_that_is_under_way_are_not_loaded_into(self) -> None:
        self.assertEqual(self.blocks_in_use(keeps_blocks=True), [set()])

    def test_a_scheduler_that_gives_them_away_would_show(self) -> None:
        (in_use,) = self.blocks_in_use(keeps_blocks=False)
        self.assertNotEqual(in_use, set())


if __name__ == "__main__":
    unittest.main()
