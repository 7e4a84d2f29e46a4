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
from rackline.vllm.handover import WHOLE_PROMPT, Awaited, RouterParams
from rackline.vllm.saves import Saves
from pool import damage, written
from routers import TO_PREFILL
from starter import run
from test_hints import action, envelope

PROMPT = PROMPTS[1]
BLOCKS = full_blocks([PROMPT])
FOR_EVER_MS = 3_600_000


def told(**params: Any) -> dict[str, Any]:
    """What a router tells."""
    return transfer_params({"rackline": params})


def transfer_params(params: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters of a request with these ``kv_transfer_params``."""
    return dict(extra_args={"kv_transfer_params": params})


class FullQueue:
    """Between an engine and its first session: refuses so many lookups."""

    def __init__(
        self, own: Any, to_be_refused: int, error: Exception | None = None
    ) -> None:
        self._error = error or rackline.Busy("full")
        self._sessions = own.connector._index._sessions
        place = next(iter(self._sessions))
        self._session, self._sessions[place] = self._sessions[place], self
        self.to_be_refused, self.refused = to_be_refused, 0

    def lookup(self, *arguments: Any, **options: Any) -> Any:
        if self.refused < self.to_be_refused:
            self.refused += 1
            raise self._error
        return self._session.lookup(*arguments, **options)

    def prefetch(self, *arguments: Any, **options: Any) -> Any:
        return self._session.prefetch(*arguments, **options)


class Words(unittest.TestCase):
    """What the keys of other connectors say to this one."""

    def params(self, given: Any) -> RouterParams:
        return RouterParams.of(mock.Mock(kv_transfer_params=given, request_id="one"))

    def test_keys_of_nixl(self) -> None:
        self.assertEqual(self.params(TO_PREFILL), RouterParams(handover=True))
        self.assertEqual(self.params({"do_remote_decode": True}), RouterParams(handover=True))
        # NIXL's decode, and Mooncake's, which is sent beside its prefill.
        to_decode = {"do_remote_prefill": True, "do_remote_decode": False, "transfer_id": "one"}
        self.assertEqual(self.params(to_decode), RouterParams(blocks=WHOLE_PROMPT))
        # A prefill waits for no other.
        both = {"do_remote_prefill": True, "do_remote_decode": True}
        self.assertEqual(self.params(both), RouterParams(handover=True))
        for nothing in (None, {}, {"do_remote_prefill": False, "do_remote_decode": None}):
            self.assertEqual(self.params(nothing), RouterParams())

    def test_a_count_of_blocks_counts_more(self) -> None:
        given = {"do_remote_prefill": True, "rackline": {"blocks": 0}}
        self.assertEqual(self.params(given), RouterParams(blocks=0))


class Unusable(unittest.TestCase):
    """A prefill whose blocks this engine cannot use."""

    OWN = {"tenant": "t", "model": "m", "dtype": "float16", "block_tokens": 16, "head_groups": 1}
    each = 1
    """Hashes of a block."""

    def why(self, hashes: list[bytes], **given: Any) -> str | None:
        request = mock.Mock(kv_transfer_params={"rackline": given}, request_id="one", block_hashes=hashes)
        found = RouterParams.of(request).why_unusable(request, self.OWN, self.each)
        return None if found is None else found[0]

    def test_the_word_that_differs_is_named(self) -> None:
        hashes = [bytes([number]) * 32 for number in range(3)]
        request = mock.Mock(kv_transfer_params=None, block_hashes=hashes)
        answer = RouterParams.answer(request, 2, 0, self.OWN, 1)["rackline"]
        self.assertIsNone(self.why(hashes, **answer))
        for word, value in [("dtype", "bfloat16"), ("block_tokens", 32), ("head_groups", 2), ("tenant", "u")]:
            identity = {**self.OWN, word: value}
            self.assertEqual(self.why(hashes, **{**answer, "identity": identity}), f"identity_{word}")
        self.assertEqual(self.why(hashes[1:], **answer), "identity_block_hash")
        # What another version says, or does not say, is no difference.
        self.assertIsNone(self.why(hashes, **{**answer, "identity": {"more": 1}}))
        self.assertIsNone(self.why(hashes[:1], **answer))

    def test_the_last_hash_is_that_of_the_last_block_of_several_hashes(self) -> None:
        """A count of blocks is none of hashes where vLLM has several hashes for a block."""
        hashes = [bytes([number]) * 32 for number in range(6)]
        request = mock.Mock(kv_transfer_params=None, block_hashes=hashes)
        self.each = 2
        answer = RouterParams.answer(request, 2, 0, self.OWN, 2)["rackline"]
        self.assertEqual(answer["last_hash"], hashes[3].hex())
        self.assertIsNone(self.why(hashes, **answer))
        self.assertEqual(self.why([*hashes[:3], bytes(32)], **answer), "identity_block_hash")
        self.assertIsNone(self.why(hashes[:3], **answer))


class Handover(TinyCase):
    def answer(self, own: Any) -> list[int]:
        return self.answers(own)["one"]

    def answers(self, own: Any) -> dict[str, list[int]]:
        """What the requests that the engine has got are answered, by their names."""
        answers = {}
        while own.llm.llm_engine.has_unfinished_requests():
            for output in own.llm.llm_engine.step():
                if output.finished:
                    answers[output.request_id] = list(output.outputs[0].token_ids)
        return answers

    def test_a_decode_waits_for_what_its_prefill_still_saves(self) -> None:
        settings = self.settings(1, handover_wait_ms=FOR_EVER_MS)
        with engine(self.model, settings, role="kv_consumer") as decode:
            decode.begin("one", PROMPT, greedy(**told(blocks=BLOCKS)))
            # The router knows no number of blocks.
            words_of_nixl = transfer_params({"do_remote_prefill": True})
            decode.begin("two", PROMPTS[0], greedy(**words_of_nixl))
            for _ in range(20):
                self.assertEqual(decode.llm.llm_engine.step(), [])
                time.sleep(0.01)
            self.assertEqual(len(decode.scheduler.running), 0)
            prefill = dict(model=self.model, prompts=[[1, 200, 300, 170]], tokens=1)
            run({**prefill, "settings": self.settings(0)})
            expected = {"one": self.expected[1], "two": self.expected[0]}
            self.assertEqual(self.answers(decode), expected)
            # One lookup of the whole for each, and no waiting that counts as one.
            blocks = full_blocks(PROMPTS[:2])
            for name, count in [("lookups", 2), ("lookup_hit_blocks", blocks), ("loaded_blocks", blocks)]:
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

    def test_a_handover_that_cannot_be_used_is_not_waited_for(self) -> None:
        settings = self.settings(1, handover_wait_ms=FOR_EVER_MS)
        with engine(self.model, settings, role="kv_consumer") as decode:
            other = {**decode.connector._index.words(), "block_tokens": 2 * BLOCK_TOKENS}
            with self.assertLogs("rackline.vllm.scheduler", "WARNING") as logged:
                decode.begin("one", PROMPT, greedy(**told(blocks=BLOCKS, identity=other)))
                self.assertEqual(self.answer(decode), self.expected[1])
                decode.begin("two", PROMPTS[0], greedy(**told(blocks=1, last_hash="00" * 32)))
                self.assertEqual(self.answers(decode)["two"], self.expected[0])
            self.assertIn("(identity_block_tokens): the blocks of the prefill engine", logged.output[0])
            self.assertEqual(decode.counter("unusable_handovers"), 2)
            reasons = {
                metric.labels["reason"]: metric.value
                for metric in decode.llm.get_metrics()
                if metric.name == "vllm:rackline_not_found_by_reason"
            }
            expected = {"identity_block_tokens": 1, "identity_block_hash": 1, "absent": 2}
            self.assertEqual(reasons, expected)

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
        under_name = dict(connector="NeuronNixlConnector", module="rackline.vllm.dynamo")
        settings = self.settings(hold_ms=1000)
        with Gate() as gate, engine(self.model, settings, **under_name) as prefill:
            words = prefill.connector._index.words()
            self.assertEqual((words["block_tokens"], words["head_groups"]), (BLOCK_TOKENS, 2))
            tail_tokens = len(PROMPT) % BLOCK_TOKENS
            own = {"rackline": {"blocks": BLOCKS, "tail_tokens": tail_tokens, "identity": words}}
            in_words_of_nixl = {"do_remote_prefill": True, "do_remote_decode": False, **own}
            for given, expected in [
                (told(handover=True), own),
                # The engine adds how many tokens it had.
                (
                    transfer_params(TO_PREFILL),
                    {**in_words_of_nixl, "remote_prefill_cached_tokens": BLOCKS * BLOCK_TOKENS},
                ),
            ]:
                outputs = prefill.serve({"one": PROMPT}, max_tokens=1, **given)
                answer = outputs["one"].kv_transfer_params
                self.assertEqual(len(answer["rackline"].pop("last_hash")), 64)
                self.assertEqual(answer, expected)
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
            self.hints_are_followed(own)

    def hints_are_followed(self, own: Any) -> None:
        """Those of a router, and those of vLLM's Python API."""
        blocks, saved = full_blocks(PROMPTS[:1]), own.counter("saved_blocks")
        never = action("priority", save="never")
        output = own.serve({"one": PROMPTS[0]}, **told(hints=[never, action("pin"), 7]))["one"]
        self.assertEqual(list(output.outputs[0].token_ids), self.expected[0])
        own.forget()
        self.assertEqual(own.counter("saved_blocks"), saved)
        self.assertEqual(own.counter("ignored_hints_by_reason"), 2)
        self.assertEqual(own.counter("unsaved_by_reason"), own.counter("unsaved_blocks"))
        self.assertGreaterEqual(own.counter("unsaved_blocks"), blocks)
        own.begin("one", PROMPTS[0], greedy(), kv_hints=envelope(action("hold", ms=60_000)))
        self.assertEqual(self.answer(own), self.expected[0])
        own.drain()
        # It is queued, and no step has asked for its blocks.
        own.begin("one", PROMPT, greedy(**told(hints=[action("prefetch", ms=60_000)])))
        holds = own.connector._hint_holds
        self.assertEqual(len(holds), 2)
        self.assertEqual(self.answer(own), self.expected[1])
        own.drain()
        self.assertEqual(len(holds), 1)
        self.assertEqual(own.counter("hints"), 3)
        self.assertGreaterEqual(own.counter("hint_held_blocks"), 2 * blocks)
        held = holds.bytes
        self.assertGreater(held, 0)
        self.assertEqual(held, own.connector._index.size(blocks)[1])


class Tails(TinyCase):
    """The last partial block of a prompt (VLLM-H3). Each prompt has one."""

    def prefill(self) -> list[set[int]]:
        """Has a prefill engine answer the prompts. Which pages have the tail of each."""
        pages = []
        self.answers = []
        with engine(self.model, self.settings(), role="kv_producer") as own:
            # With a second token a step writes the block while it would be saved.
            given = {str(number): prompt for number, prompt in enumerate(PROMPTS)}
            own.serve(given, **told(handover=True), max_tokens=2)
            own.drain()
            self.assertEqual(own.counter("saved_blocks"), FULL_BLOCKS)
            for number, prompt in enumerate(PROMPTS):
                own.forget()
                before = written(self.region)
                output = own.serve({"one": prompt}, **told(handover=True), max_tokens=1)["one"]
                own.drain()
                pages.append(written(self.region) - before)
                self.answers.append(output.kv_transfer_params)
                answer = self.answers[number]["rackline"]
                self.assertEqual(answer["tail_tokens"], len(prompt) % BLOCK_TOKENS)
            self.assertEqual(own.counter("saved_tails"), len(PROMPTS))
            self.assertEqual(own.counter("saved_blocks"), FULL_BLOCKS + len(PROMPTS))
        return pages

    def decode(self, own: Any, numbers: list[int]) -> None:
        """The decode answers these prompts as if it had computed them."""
        for number in numbers:
            params = greedy(**transfer_params(self.answers[number]))
            own.begin(str(number), PROMPTS[number], params)
        outputs = {}
        while own.llm.llm_engine.has_unfinished_requests():
            for output in own.llm.llm_engine.step():
                outputs[int(output.request_id)] = output
        for number in numbers:
            found = outputs[number]
            self.assertEqual(list(found.outputs[0].token_ids), self.expected[number])
            self.assertEqual(found.num_cached_tokens, len(PROMPTS[number]) - 1)

    def test_wrong_bytes_of_a_tail_would_show_in_the_tokens(self) -> None:
        """The control of the next test: the first block of the prompt, saved as its tail, passes every check
        of the pool."""
        tail_job = Saves._tail_job

        def first_block(saves: Saves, progress: Any, tail: Any, ids: list[int]) -> Any:
            return tail_job(saves, progress, tail, ids[:1] * len(ids))

        with (
            mock.patch.object(Saves, "_tail_job", first_block),
            engine(self.model, self.settings(), role="kv_producer") as prefill,
        ):
            output = prefill.serve({"one": PROMPT}, **told(handover=True), max_tokens=1)["one"]
            prefill.drain()
        with engine(self.model, self.settings(1), role="kv_consumer") as decode:
            params = transfer_params(output.kv_transfer_params)
            found = decode.serve({"one": PROMPT}, **params)["one"]
            self.assertEqual(decode.counter("loaded_tails"), 1)
            self.assertNotEqual(list(found.outputs[0].token_ids), self.expected[1])

    def test_a_decode_computes_one_token_of_a_prompt(self) -> None:
        tails = self.prefill()
        for load, numbers in [("sync", [0, 2]), ("async", [1, 2])]:
            settings = self.settings(1, load=load, lookup_wait_ms=5000)
            with self.subTest(load), engine(self.model, settings) as own:
                self.decode(own, numbers)
                self.assertEqual(own.counter("loaded_tails"), 2)
                self.assertEqual(own.counter("failed_load_blocks"), 0)
                own.forget()
                # A damaged one is computed anew.
                self.assertGreater(damage(self.region, tails[numbers[0]]), 0)
                self.decode(own, numbers)
                self.assertEqual(own.counter("loaded_tails"), 3)
                self.assertEqual(own.counter("failed_load_blocks"), 1)


class Unanswered:
    """A lookup to which there is no answer yet."""

    def wait(self, timeout_ms: int) -> None:
        return None


class Queue(TinyCase):
    def test_a_lookup_is_given_up_however_short_blocks_are_held(self) -> None:
        with engine(self.model, self.settings(1, hold_ms=1000)) as own:
            sessions = own.connector._index._sessions
            unanswered = mock.Mock(lookup=lambda *_, **__: Unanswered())
            with mock.patch.dict(sessions, dict.fromkeys(sessions, unanswered)):
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
