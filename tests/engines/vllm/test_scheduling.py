"""What the engine's scheduler does with requests: steps that are scheduled ahead, aborts, priorities,
pauses."""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Iterator
from unittest import mock

from cases import FULL_BLOCKS, LONG, PROMPTS, SMALL, TinyCase, cached, computed, tokens
from engine import engine, greedy, prompts
from gate import Gate
from pool import damage



@contextlib.contextmanager
def steps_ahead() -> Iterator[None]:
    """Async scheduling, which vLLM turns off on a CPU as not required. Its scheduler and its worker
    for CPUs do it all the same."""
    from vllm.platforms.cpu import CpuPlatform

    checked = CpuPlatform.check_and_update_config

    def ahead(platform, config) -> None:
        checked(config)
        config.scheduler_config.async_scheduling = True

    with mock.patch.object(CpuPlatform, "check_and_update_config", classmethod(ahead)):
        yield


class StepsAhead(TinyCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(steps_ahead())

    def test_preemptions(self) -> None:
        expected = computed(LONG, 60)
        with engine(self.model, self.settings(), **SMALL) as own:
            self.assertEqual(type(own.scheduler).__name__, "AsyncScheduler")
            self.assertEqual(tokens(own.answers(LONG, tokens=60)), expected)
            self.assertGreater(own.counter("num_preemptions", "vllm:"), 0)
            self.assertGreater(own.counter("saved_blocks"), 0)
            own.forget()
            self.assertEqual(tokens(own.answers(LONG, tokens=60)), expected)
            self.assertGreater(own.counter("loaded_blocks"), 0)
            self.assertEqual(own.counter("failed_load_blocks"), 0)
        with engine(self.model, self.settings(1)) as other:
            self.assertEqual(tokens(other.answers(LONG, tokens=60)), expected)
            self.assertGreater(other.counter("loaded_blocks"), 20)

    def test_damaged_blocks(self) -> None:
        with engine(self.model, self.settings()) as own:
            self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
            own.forget()
            self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
            self.assertEqual(own.counter("loaded_blocks"), FULL_BLOCKS)
            own.forget()
            self.assertGreater(damage(self.region), 0)
            self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
            self.assertEqual(own.counter("loaded_blocks"), FULL_BLOCKS)
            self.assertEqual(own.counter("failed_load_blocks"), FULL_BLOCKS)

    def test_synchronous_loads_are_refused(self) -> None:
        """The engine would continue with a request whose load failed."""
        told = engine(self.model, self.settings(load="sync"))
        self.assert_refused("--no-async-scheduling", told)
        with engine(self.model, self.settings(load="sync"), role="kv_producer") as producer:
            self.assertEqual(tokens(producer.answers(PROMPTS)), self.expected)


class Aborts(TinyCase):
    """While something is copied (VLLM-V4)."""

    def test_nothing_is_left_behind(self) -> None:
        gone, others = prompts(21, 200)[0], prompts(22, 150, 90)
        expected = computed([gone, *others])
        settings = self.settings(lookup_wait_ms=5000)
        with Gate() as gate, engine(self.model, settings) as own:
            all_blocks = own.free_blocks()
            with self.subTest("while it saves"):
                gate.close()

                def abort_when_it_saves(step: int) -> None:
                    if step == 3:
                        own.abort("gone")

                self.assertEqual(own.serve({"gone": gone}, abort_when_it_saves), {})
                for _ in range(5):
                    own.llm.llm_engine.step()
                self.assertEqual(gate.waiting("publish"), 1)
                # Those that are being saved are not given to anybody (VLLM-V4).
                self.assertLess(own.free_blocks(), all_blocks - 5)
                self.assertEqual(tokens(own.answers(others)), expected[1:])
                gate.open()
                own.drain()
                self.assert_nothing_left(own, gate, all_blocks)
                self.assertEqual(own.counter("saved_blocks"), 6 + 5 + 3, "generated ones, too")
            with self.subTest("while it loads"):
                own.forget()
                gate.close()

                def abort_when_it_loads(step: int) -> None:
                    if step == 5:
                        own.abort("gone")

                self.assertEqual(own.serve({"gone": gone}, abort_when_it_loads), {})
                self.assertEqual(gate.waiting("fetch"), 1)
                self.assertLess(own.free_blocks(), all_blocks - 5)
                gate.open()
                own.drain()
                self.assert_nothing_left(own, gate, all_blocks)
            with self.subTest("afterwards"):
                answers = own.answers([gone, *others])
                self.assertEqual(tokens(answers), expected)
                self.assertEqual(cached(answers), (6 + 4 + 2) * 32)
                self.assertEqual(own.counter("failed_load_blocks"), 0)
                own.drain()
                self.assert_nothing_left(own, gate, all_blocks)

    def assert_nothing_left(self, own, gate: Gate, all_blocks: int) -> None:
        self.assertEqual(own.free_blocks(), all_blocks)
        self.assertEqual(own.connector._requests, {})
        self.assertEqual(len(own.connector._saving), 0)
        self.assertEqual(gate.held_prefixes(), 0)
        self.assertEqual((gate.waiting("publish"), gate.waiting("fetch")), (0, 0))


class Order(TinyCase):
    def test_priorities_preempt(self) -> None:
        """The one that came last is the most urgent: others give up their blocks for it."""
        expected = computed(LONG, 60)
        urgent = dict(scheduling_policy="priority", **SMALL)
        with engine(self.model, self.settings(), **urgent) as own:
            params = greedy(max_tokens=60)
            for round in range(2):
                found, steps = {}, 0
                for name in range(2):
                    own.begin(str(name), LONG[name], params, priority=5)
                while len(found) < 3:
                    for output in own.llm.llm_engine.step():
                        if output.finished:
                            found[output.request_id] = list(output.outputs[0].token_ids)
                    steps += 1
                    if steps == 12:
                        own.begin("2", LONG[2], params, priority=0)
                self.assertEqual([found[str(name)] for name in range(3)], expected)
                if round == 0:
                    self.assertGreater(own.counter("num_preemptions", "vllm:"), 0)
                own.forget()
            self.assertGreater(own.counter("loaded_blocks"), 0)
            self.assertEqual(own.counter("failed_load_blocks"), 0)

    def test_pauses_and_resets(self) -> None:
        long = prompts(23, 300)[0]
        expected = computed([long])[0]
        with engine(self.model, self.settings()) as own:
            own.answers(PROMPTS)
            own.drain()
            with self.subTest("a pause keeps the pool"):
                own.llm.sleep(level=0)
                own.llm.wake_up(tags=["scheduling"])
            with self.subTest("so does an empty cache"):
                own.forget()
                answers = own.answers(PROMPTS)
                self.assertEqual(tokens(answers), self.expected)
                self.assertEqual(own.counter("loaded_blocks"), FULL_BLOCKS)
            with self.subTest("requests that run when the cache is emptied"):
                def empty(step: int) -> None:
                    if step == 8:
                        own.llm.reset_prefix_cache(reset_running_requests=True)

                served = own.serve({"long": long}, empty)
                self.assertEqual(list(served["long"].outputs[0].token_ids), expected)
                own.drain()
            with self.subTest("new weights may come while it sleeps"):
                saved, loaded = own.counter("saved_blocks"), own.counter("loaded_blocks")
                own.llm.sleep(level=1)
                own.llm.wake_up()
                answers = own.answers([*PROMPTS, *prompts(24, 100)])
                self.assertEqual(tokens(answers)[:3], self.expected)
                self.assertEqual(own.counter("saved_blocks"), saved)
                self.assertEqual(own.counter("loaded_blocks"), loaded)


if __name__ == "__main__":
    unittest.main()
