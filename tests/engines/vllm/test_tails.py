"""The last partial block of a prompt, from prefill to decode (VLLM-H3): with vLLM's own manager of blocks, and a
stand-in for the pool and the worker."""

from __future__ import annotations

import dataclasses
import types
import unittest
from typing import Any
from unittest import mock

from rackline.vllm.chains import Hashed
from rackline.vllm.messages import GroupLoaded, Loaded, Report
from rackline.vllm.tails import Tails
from test_groups import FULL, KINDS, Engine, handles_of

# Of blocks of four tokens: two whole blocks, and three tokens.
LENGTH, WHOLE, TOKENS = 11, 2, 3
PREFILL = {"rackline": {"handover": True}}
DECODE = {"do_remote_prefill": True}


class Handed(unittest.TestCase):
    """What a prefill saves of a prompt, and a decode loads."""

    def engine(self, specs: Any = (FULL,)) -> Engine:
        own = Engine(list(specs))
        words = mock.patch.object(own.half._index, "words", lambda: {"model": "m"})
        words.start()
        self.addCleanup(words.stop)
        return own

    def request(self, own: Engine, name: str, length: int, params: Any, **more: Any) -> Any:
        request = own.request(name, length)
        request.kv_transfer_params = params
        for name, value in more.items():
            setattr(request, name, value)
        own.half.on_new_request(request)
        return request

    def prefill(
        self, own: Engine, length: int = LENGTH, step_tokens: int = 6, **more: Any
    ) -> tuple[Any, list[Any]]:
        """What a prefill's client is told, and what was saved."""
        request = self.request(own, "fills", length, PREFILL, **{"max_tokens": 1, **more})
        jobs = []
        while request.num_computed_tokens < length:
            tokens = min(step_tokens, length - request.num_computed_tokens)
            jobs += own.compute(request, tokens)
        waits, told = own.half.request_finished(request)
        self.assertEqual(waits, bool(jobs))
        own.save(jobs)
        own.manager.free(request)
        own.manager.reset_prefix_cache()
        return told, jobs

    def load(self, own: Engine, request: Any, valid: int | None = None) -> int:
        """What is found of a request, and loaded; the first ``valid`` blocks well."""
        found = own.found(request)
        job = own.load(request, found)
        (load,) = job.groups
        valid = len(load.block_ids) if valid is None else valid
        self.assertEqual(load.block_ids, own.manager.get_block_ids("loads")[0][: len(load.block_ids)])
        loaded = Loaded(2, {0: GroupLoaded(valid, valid < len(load.block_ids))})
        own.half.reported(Report(loaded={"loads": loaded}))
        return found

    def test_a_decode_loads_all_but_one_token(self) -> None:
        for length in range(2, 14):
            for step_tokens in (3, 100):
                with self.subTest(length=length, step_tokens=step_tokens):
                    own = self.engine()
                    told, jobs = self.prefill(own, length, step_tokens)
                    whole, tail = divmod(length, 4)
                    has_tail = tail >= 2
                    self.assertEqual(told["rackline"].get("tail_tokens", 0), tail if has_tail else 0)
                    self.assertEqual(told["rackline"]["blocks"], whole)
                    self.assertEqual([job.tail for job in jobs if job.tail], [True] * has_tail)
                    self.assertEqual(own.half.stats.data.get("saved_tails", 0), has_tail)
                    request = self.request(own, "loads", length, told)
                    self.assertEqual(self.load(own, request), length - 1)
                    self.assertEqual(own.half.stats.data.get("loaded_tails", 0), has_tail)

    def test_a_block_of_one_token_is_computed(self) -> None:
        own = self.engine([dataclasses.replace(FULL, block_size=1)])
        for length, expected in [(1, (0, False)), (2, (1, True)), (5, (4, True))]:
            told, _ = self.prefill(own, length)
            request = self.request(own, f"loads {length}", length, told)
            self.assertEqual(own.half.matched_tokens(request, 0), expected)
            # Also where the engine has all tokens but the last.
            self.assertEqual(own.half.matched_tokens(request, length - 1), (0, False))

    def test_what_is_saved_is_the_block_with_the_last_tokens(self) -> None:
        own = self.engine()
        events = own.half._events = mock.Mock()
        request = self.request(own, "fills", LENGTH, PREFILL, max_tokens=1)
        jobs = own.compute(request, LENGTH)
        own.save(jobs)
        # Routers are told of whole blocks.
        self.assertEqual([call.args[1] for call in events.saved.call_args_list], jobs[:1])
        (table,) = own.manager.get_block_ids("fills")
        saved = [(job.first_depth, job.block_ids, job.tail) for job in jobs]
        self.assertEqual(saved, [(0, table[:WHOLE], False), (WHOLE, [table[WHOLE]], True)])
        # The hash of a block of three tokens behind the whole ones, which is no hash of a whole block.
        own.hash_tokens = TOKENS
        self.assertNotIn(jobs[1].hashes, own.request("other", 100).block_hashes)

    def test_a_tail_is_of_use_to_no_other_prompt(self) -> None:
        own = self.engine()
        told, _ = self.prefill(own)
        longer = self.request(own, "longer", LENGTH + 1, told)
        self.assertEqual(own.found(longer), WHOLE * 4)
        shorter = self.request(own, "shorter", LENGTH - 1, told)
        self.assertEqual(own.found(shorter), WHOLE * 4)
        # Nor to one that was not handed over.
        self.assertEqual(own.found(self.request(own, "alone", LENGTH, None)), WHOLE * 4)

    def test_a_block_that_a_later_step_writes_is_no_tail(self) -> None:
        """The engine would write it while it is copied."""
        for more in (dict(max_tokens=2), dict(resumable=True)):
            with self.subTest(**more):
                told, jobs = self.prefill(self.engine(), **more)
                self.assertEqual([job.tail for job in jobs], [False, False])
                self.assertNotIn("tail_tokens", told["rackline"])

    def test_models_whose_blocks_have_no_tails(self) -> None:
        for specs in (KINDS["full and windows"], KINDS["window"]):
            own = self.engine(specs)
            told, jobs = self.prefill(own)
            self.assertFalse(any(job.tail for job in jobs))
            self.assertNotIn("tail_tokens", told["rackline"])
            found = own.found(self.request(own, "loads", LENGTH, told))
            self.assertEqual(found, WHOLE * 4)
        drafts = types.SimpleNamespace(
            use_eagle=lambda: True, uses_draft_model=lambda: False, draft_model_config=mock.Mock()
        )
        config = mock.Mock(speculative_config=drafts)
        groups = self.engine().groups
        tails = Tails(config, groups, mock.Mock(loads_by_layers=False))
        request = mock.Mock(num_prompt_tokens=11, max_tokens=1, resumable=False, num_output_tokens=0)
        self.assertFalse(tails.saves_tail(request, 0, 11))
        self.assertFalse(tails.loads_prompt(request))
        config.speculative_config = None
        tails = Tails(config, groups, mock.Mock(loads_by_layers=False))
        self.assertTrue(tails.saves_tail(request, 0, 11))
        self.assertTrue(tails.loads_prompt(request))
        # The forward writes the last slot of a layer before the layer's fetch does.
        tails = Tails(config, groups, mock.Mock(loads_by_layers=True))
        self.assertFalse(tails.loads_prompt(request))

    def test_a_decode_waits_for_a_tail_that_it_was_told_of(self) -> None:
        own = self.engine()
        told, jobs = self.prefill(own)
        (tail,) = (job.hashes for job in jobs if job.tail)
        for session in own.sessions.values():
            session.blocks.discard(tail)
        request = self.request(own, "loads", LENGTH, told)
        self.assertIsNone(own.found(request))
        # Nobody told of a tail: it is not waited for.
        self.assertEqual(own.found(self.request(own, "nixl", LENGTH, DECODE)), WHOLE * 4)
        for session in own.sessions.values():
            session.blocks.add(tail)
        with mock.patch("rackline.vllm.handover.LOOK_MS", 0):
            own.half._requests["loads"].awaited.looks_at_s = 0.0
            self.assertEqual(own.found(request), LENGTH - 1)
        self.assertEqual(own.found(self.request(own, "also", LENGTH, DECODE)), LENGTH - 1)

    def test_a_tail_that_is_bad_is_not_found_again(self) -> None:
        own = self.engine()
        told, _ = self.prefill(own)
        request = self.request(own, "loads", LENGTH, told)
        self.assertEqual(self.load(own, request, valid=WHOLE), LENGTH - 1)
        self.assertNotIn("loaded_tails", own.half.stats.data)
        self.assertEqual(own.found(self.request(own, "again", LENGTH, DECODE)), WHOLE * 4)

    def test_a_tail_is_saved_again_when_its_block_is_full(self) -> None:
        own = self.engine()
        told, _ = self.prefill(own)
        request = self.request(own, "loads", LENGTH, told)
        request.num_computed_tokens = self.load(own, request)
        self.assertEqual(own.compute(request, 1), [])
        request.append_output_token_ids([7, 8, 9])
        (job,) = own.compute(request, 1)
        self.assertEqual((job.first_depth, job.tail), (WHOLE, False))
        self.assertEqual(handles_of([job.hashes]), handles_of([request.block_hashes[WHOLE]]))
        # A preempted request has answers: it is no prompt any more.
        self.assertFalse(own.half._tails.loads_prompt(request))

    def test_no_tail_where_hashes_before_it_are_missing(self) -> None:
        """Else its hash would be that of another prompt, which lacks the block in between."""
        own = self.engine()
        request = own.request("fills", LENGTH)
        tails = own.half._tails
        self.assertIsNotNone(tails.of(request))
        self.assertIsNone(tails.of(Hashed(request, request.block_hashes[:1])))


if __name__ == "__main__":
    unittest.main()
