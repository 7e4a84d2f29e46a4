"""Blocks that a decode engine waits for, and that a prefill engine holds for it."""

from __future__ import annotations

import time
import unittest
from typing import Any
from unittest import mock

import rackline
from cases import FULL_BLOCKS, PROMPTS, TinyCase, full_blocks, tokens
from engine import BLOCK_TOKENS, engine, greedy
from gate import Gate
from rackline.vllm.handover import Awaited
from starter import run

PROMPT = PROMPTS[1]
BLOCKS = full_blocks([PROMPT])
FOR_EVER_MS = 3_600_000


def told(**params: Any) -> dict[str, Any]:
    """What a router tells."""
    return dict(extra_args={"kv_transfer_params": {"rackline": params}})


class FullQueue:
    """Between an engine and its session: refuses so many lookups."""

    def __init__(
        self, own: Any, to_be_refused: int, error: Exception | None = None
    ) -> None:
        self._error = error or rackline.Busy("full")
        self._sessions = own.connector._index._sessions
        self._session, self._sessions[0] = self._sessions[0], self
        self.to_be_refused, self.refused = to_be_refused, 0

    def lookup(self, *arguments: Any, **options: Any) -> Any:
        if self.refused < self.to_be_refused:
            self.refused += 1
            raise self._error
        return self._session.lookup(*arguments, **options)


class Handover(TinyCase):
    def answer(self, own: Any) -> list[int]:
        while own.llm.llm_engine.has_unfinished_requests():
            for output in own.llm.llm_engine.step():
                if output.finished:
                    return list(output.outputs[0].token_ids)
        raise AssertionError("no answer")

    def test_a_decode_waits_for_what_its_prefill_still_saves(self) -> None:
        settings = self.settings(1, handover_wait_ms=FOR_EVER_MS)
        with engine(self.model, settings, role="kv_consumer") as decode:
            decode.begin("one", PROMPT, greedy(**told(blocks=BLOCKS)))
            for _ in range(20):
                self.assertEqual(decode.llm.llm_engine.step(), [])
                time.sleep(0.01)
            self.assertEqual(len(decode.scheduler.running), 0)
            prefill = dict(model=self.model, prompts=[[1, 200, 300, 170]], tokens=1)
            run({**prefill, "settings": self.settings(0)})
            self.assertEqual(self.answer(decode), self.expected[1])
            # One lookup of the whole, and no waiting that counts as one.
            for name, count in [("lookups", 1), ("lookup_hit_blocks", BLOCKS), ("loaded_blocks", BLOCKS)]:
                self.assertEqual(decode.counter(name), count, name)

    def test_it_waits_no_longer_than_it_may(self) -> None:
        for wait_ms in (0, 300):
            settings = self.settings(1, handover_wait_ms=wait_ms)
            with self.subTest(wait_ms=wait_ms), engine(self.model, settings, role="kv_consumer") as decode:
                began_s = time.monotonic()
                asked_s: list[float] = []
                has_come = Awaited.has_come

                def asks(own: Awaited, index: Any, request: Any, now_s: float) -> bool:
                    asked_s.append(now_s)
                    return has_come(own, index, request, now_s)

                decode.begin("one", PROMPT, greedy(**told(blocks=BLOCKS)))
                with mock.patch.object(Awaited, "has_come", asks):
                    self.assertEqual(self.answer(decode), self.expected[1])
                self.assertGreaterEqual(time.monotonic() - began_s, wait_ms / 1000)
                # By the scheduler's own clock: not by how busy the machine is.
                waited_s = max(asked_s, default=0.0) - min(asked_s, default=0.0)
                self.assertLessEqual(waited_s, wait_ms / 1000)
                self.assertEqual(len(asked_s) > 0, wait_ms > 0)
                self.assertEqual(decode.counter("lookups"), 1)
                self.assertEqual(decode.counter("lookup_hit_blocks"), 0)

    def test_a_lookup_that_cannot_be_answered_is_not_waited_for(self) -> None:
        settings = self.settings(1, handover_wait_ms=FOR_EVER_MS)
        with engine(self.model, settings, role="kv_consumer") as decode:
            refused = FullQueue(decode, 1 << 30, rackline.Closed("closed"))
            decode.begin("one", PROMPT, greedy(**told(blocks=BLOCKS)))
            self.assertEqual(self.answer(decode), self.expected[1])
            # Whether it is there, and then what is.
            self.assertEqual(refused.refused, 2)

    def test_it_waits_once(self) -> None:
        """Not anew when there is no room for its lookup then."""
        with engine(self.model, self.settings(1, handover_wait_ms=300)) as own:
            full = FullQueue(own, 1 << 30)
            own.begin("one", PROMPT, greedy(**told(blocks=BLOCKS)))
            with mock.patch("rackline.vllm.scheduler.Awaited", wraps=Awaited) as awaited:
                self.assertEqual(self.answer(own), self.expected[1])
            self.assertEqual(awaited.call_count, 1)
            self.assertGreater(full.refused, 1)

    def test_a_prefill_holds_what_it_hands_over(self) -> None:
        with Gate() as gate, engine(self.model, self.settings(hold_ms=1000)) as prefill:
            outputs = prefill.serve({"one": PROMPT}, max_tokens=1, **told(handover=True))
            params = outputs["one"].kv_transfer_params
            self.assertEqual(params, {"rackline": {"blocks": len(PROMPT) // BLOCK_TOKENS}})
            prefill.drain()
            # Others make it look after those that ended.
            deadline_s = time.monotonic() + 60
            while gate.held_prefixes() == 0:
                self.assertLess(time.monotonic(), deadline_s)
                prefill.answers([PROMPTS[0][:20]], tokens=1)
            while gate.held_prefixes() > 0:
                self.assertLess(time.monotonic(), deadline_s)
                prefill.answers([PROMPTS[0][:20]], tokens=1)

    def test_what_is_not_understood_is_told_and_left_out(self) -> None:
        with engine(self.model, self.settings()) as own:
            for wrong in [dict(handover="false"), dict(blocks="many"), dict(blocks=True), dict(more=1)]:
                with self.assertLogs("rackline.vllm.handover", "WARNING") as logged:
                    answers = own.serve({"one": PROMPT}, **told(**wrong))
                self.assertIn("is supported", logged.output[0])
                self.assertEqual(list(answers["one"].outputs[0].token_ids), self.expected[1])
                self.assertIsNone(answers["one"].kv_transfer_params)


class Unanswered:
    """A lookup to which there is no answer yet."""

    def wait(self, timeout_ms: int) -> None:
        return None


class Queue(TinyCase):
    def test_a_lookup_is_given_up_however_short_blocks_are_held(self) -> None:
        with engine(self.model, self.settings(1, hold_ms=1000)) as own:
            sessions = own.connector._index._sessions
            with mock.patch.dict(sessions, {0: mock.Mock(lookup=lambda *_, **__: Unanswered())}):
                self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
            self.assertEqual(own.counter("lookup_timeouts"), len(PROMPTS))

    def test_a_lookup_that_finds_no_room_is_asked_for_again(self) -> None:
        """What is there is loaded, and not computed, because the queue was full for a while."""
        with engine(self.model, self.settings()) as first:
            self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
        with engine(self.model, self.settings(1)) as second:
            full = FullQueue(second, 5)
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)
            self.assertGreater(second.counter("lookups_put_off"), 0)
            self.assertEqual(second.counter("lookup_timeouts"), 0)
            second.forget()
            # For as long as a lookup may take.
            full.to_be_refused = 1 << 30
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)
            self.assertEqual(second.counter("lookup_timeouts"), len(PROMPTS))


if __name__ == "__main__":
    unittest.main()
