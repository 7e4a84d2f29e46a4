"""Synchronous loads that fail, and which requests might get at what they left (VLLM-V5)."""

from __future__ import annotations

import unittest

from cases import TinyCase, computed
from engine import engine, greedy, prompts
from gate import Gate
from pool import damage

# Lookups are answered in the step that asks, however busy the machine is.
SYNC = {"load": "sync", "lookup_wait_ms": 5000}
# The third begins with the second, the fifth with the fourth.
GIVEN = prompts(11, 200, 210, 240, 230, 320, 140)
GIVEN[2][:210], GIVEN[4][:230] = GIVEN[1], GIVEN[3]


class SyncLoads(TinyCase):
    def test_blocks_that_were_not_loaded_reach_nobody(self) -> None:
        """The engine finds blocks by their hashes from before they are loaded until they are computed:
        also where the request that was to compute them is gone."""
        alone, first, longer, again, longest, second = GIVEN
        given, expected = GIVEN, computed(GIVEN)
        with engine(self.model, self.settings(**SYNC)) as own:
            self.assertEqual([answer.tokens for answer in own.answers(given)], expected)
            own.forget()
            with self.subTest("loaded for one, found by the other"):
                both = own.serve({"one": first, "other": longer})
                self.assertEqual(list(both["other"].outputs[0].token_ids), expected[2])
                self.assertEqual(own.counter("loaded_blocks"), 6 + 1)
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
            self.assertEqual(own.counter("loaded_blocks"), 6 + 1, "no more than before the damage")
            # Nothing is left behind.
            own.drain()
            self.assertEqual(own.scheduler.connector.scheduler._requests, {})

    def test_an_abort_in_the_step_that_loads(self) -> None:
        """What it saves of that step stays until it is saved (VLLM-V4)."""
        first, longer, expected = GIVEN[1], GIVEN[2], computed(GIVEN)[2]
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
            own.drain()
            self.assertEqual(own.free_blocks(), all_blocks)
            self.assertEqual(gate.held_prefixes(), 0)
            own.forget()
            answer = own.answers([longer])[0]
            self.assertEqual((answer.tokens, answer.cached_tokens), (expected, 7 * 32))


if __name__ == "__main__":
    unittest.main()
