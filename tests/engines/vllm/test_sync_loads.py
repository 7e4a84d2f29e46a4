"""Synchronous loads that fail, and who might get at what they left (V5)."""

from __future__ import annotations

import unittest

from cases import TinyCase, computed
from engine import engine, greedy, prompts
from gate import Gate
from pool import damage


# Lookups are answered in the step that asks, however busy the machine is.
SYNC = {"load": "sync", "lookup_wait_ms": 5000}


class SyncLoads(TinyCase):
    def test_blocks_that_were_not_loaded_reach_nobody(self) -> None:
        """The engine finds blocks by their hashes from before they are loaded until they are computed:
        also where the request that was to compute them is gone."""
        alone, first, again, second = prompts(11, 200, 170, 230, 140)
        # The first parts of these are loaded for others in the same step.
        longer, longest = first + prompts(12, 60)[0], again + prompts(13, 90)[0]
        given = [alone, first, longer, again, longest, second]
        expected = computed(given)
        with engine(self.model, self.settings(**SYNC)) as own:
            self.assertEqual([answer.tokens for answer in own.answers(given)], expected)
            own.forget()
            self.assertGreater(damage(self.region), 0)

            def abort_after_first(step: int) -> None:
                if step == 1:
                    own.abort("gone")

            with self.subTest("aborted"):
                self.assertEqual(own.serve({"gone": alone}, abort_after_first), {})
                after = own.serve({"after": alone})
                self.assertEqual(list(after["after"].outputs[0].token_ids), expected[0])
            with self.subTest("aborted beside one with the same blocks"):
                beside = own.serve({"gone": first, "beside": longer}, abort_after_first)
                self.assertEqual(list(beside["beside"].outputs[0].token_ids), expected[2])
            with self.subTest("both served"):
                both = own.serve({"one": again, "other": longest})
                self.assertEqual(list(both["one"].outputs[0].token_ids), expected[3])
                self.assertEqual(list(both["other"].outputs[0].token_ids), expected[4])
            with self.subTest("reset while it is to be computed"):

                def reset_after_first(step: int) -> None:
                    if step == 1:
                        own.llm.reset_prefix_cache(reset_running_requests=True)

                served = own.serve({"one": second}, reset_after_first)
                self.assertEqual(list(served["one"].outputs[0].token_ids), expected[5])
            self.assertGreater(own.counter("failed_load_blocks"), 0)
            self.assertEqual(own.counter("loaded_blocks"), 0)
            # Nothing is left behind.
            own.settle()
            self.assertEqual(own.scheduler.connector.scheduler._requests, {})

    def test_a_request_waits_for_what_another_loads(self) -> None:
        """And gets it from the engine's own cache when it is there."""
        first = prompts(14, 200)[0]
        longer = first + prompts(15, 60)[0]
        expected = computed([longer])[0]
        with engine(self.model, self.settings(**SYNC)) as own:
            own.answers([first])
            own.forget()
            served = own.serve({"one": first, "other": longer})
            self.assertEqual(list(served["other"].outputs[0].token_ids), expected)
            self.assertEqual(own.counter("loaded_blocks"), 6)
            self.assertEqual(own.counter("failed_load_blocks"), 0)

    def test_an_abort_in_the_step_that_loads(self) -> None:
        """What it saves of that step stays until it is saved (V4)."""
        first = prompts(16, 130)[0]
        longer = first + prompts(17, 90)[0]
        expected = computed([longer])[0]
        with Gate() as gate, engine(self.model, self.settings(**SYNC)) as own:
            own.answers([first])
            own.forget()
            all_blocks = own.free_blocks()
            gate.close()
            own.begin("gone", longer, greedy())
            # As a server takes them, between the forward and its outcome.
            own.core.aborts_queue.put(list(own.scheduler.requests))
            own.llm.llm_engine.step()
            own.abort("gone")
            self.assertEqual(gate.waiting("publish"), 1)
            self.assertLess(own.free_blocks(), all_blocks)
            gate.open()
            own.settle()
            self.assertEqual(own.free_blocks(), all_blocks)
            self.assertEqual(gate.held_prefixes(), 0)
            own.forget()
            answer = own.answers([longer])[0]
            self.assertEqual((answer.tokens, answer.cached_tokens), (expected, 6 * 32))


if __name__ == "__main__":
    unittest.main()
