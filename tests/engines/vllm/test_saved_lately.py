"""Which blocks of the engine's own cache are saved again (VLLM-V14): with vLLM's own manager of blocks, and a
stand-in for the pool and the worker."""

from __future__ import annotations

import hashlib
import types
import unittest
from typing import Any
from unittest import mock

from rackline.vllm import saved_lately
from rackline.vllm.messages import GroupLoaded, Loaded, Report, Saved
from rackline.vllm.saved_lately import SPAN, SPANS_MAX, SavedLately
from test_groups import FULL, KINDS, Engine

# Blocks of four tokens: four whole spans, and 6 blocks more.
LENGTH = 4 * (4 * SPAN + 6) + 1
BLOCKS = LENGTH // 4
HINT = {"action_type": "hold", "action_version": "1", "payload": {"ms": 1000}}


def hashes(count: int) -> list[bytes]:
    return [hashlib.sha256(b"%d" % number).digest() for number in range(count)]


class InTheEnginesCache(unittest.TestCase):
    def setUp(self) -> None:
        clock = self.enterContext(mock.patch.object(saved_lately, "time"))
        self.clock = clock.monotonic
        self.clock.return_value = 100.0
        self.own = Engine([FULL])

    def request(self, name: str, length: int = LENGTH, **params: Any) -> list[range]:
        """A request comes and goes whose cached blocks the engine uses. Returns the blocks that are saved."""
        own = self.own
        one = own.request(name, length)
        one.kv_transfer_params = {"rackline": params} if params else None
        own.half.on_new_request(one)
        blocks, cached, _ = own.manager.get_computed_blocks(one)
        found, _ = own.half.matched_tokens(one, cached)
        self.assertIsNotNone(
            own.manager.allocate_slots(
                one,
                length - cached - found,
                num_new_computed_tokens=cached,
                new_computed_blocks=blocks,
                num_external_computed_tokens=found,
            )
        )
        own.half.allocated(one, own.manager.get_blocks(name), found)
        one.num_computed_tokens = cached + found
        step = own.half.build_step(self.output(name, length - cached - found))
        one.num_computed_tokens = length
        for load in step.loads:
            groups = {group.group: GroupLoaded(len(group.block_ids), False) for group in load.groups}
            own.half.reported(Report(loaded={name: Loaded(2, groups)}))
        own.save(step.saves)
        own.half.request_finished(one)
        own.manager.free(one)
        return [range(job.first_depth, job.first_depth + len(job.block_ids)) for job in step.saves]

    def output(self, name: str, tokens: int) -> Any:
        get_block_ids = self.own.manager.get_block_ids
        state = types.SimpleNamespace(get_block_ids=get_block_ids, boundary_state_offloads={})
        return types.SimpleNamespace(
            preempted_req_ids=None,
            num_scheduled_tokens={name: tokens},
            kv_connector_block_state=state,
        )

    def test_what_was_saved_a_moment_ago_is_left_out(self) -> None:
        self.assertEqual(self.request("one"), [range(BLOCKS)])
        self.clock.return_value += 59
        self.assertEqual(self.request("two"), [range(4 * SPAN, BLOCKS)])
        self.assertEqual(self.own.half.stats.data["saved_lately_blocks"], 4 * SPAN)
        # A longer prompt with the same beginning.
        self.assertEqual(self.request("three", LENGTH + 80), [range(4 * SPAN, BLOCKS + 20)])

    def test_it_is_saved_again_when_the_time_is_over(self) -> None:
        self.request("one")
        for seconds, saved in [(119, range(4 * SPAN, BLOCKS)), (120, range(BLOCKS))]:
            self.clock.return_value = 100.0 + seconds
            self.assertEqual(self.request(f"after {seconds}"), [saved])

    def test_what_a_request_computes_is_saved(self) -> None:
        """The engine and the pool have lost it meanwhile."""
        self.request("one")
        self.own.manager.reset_prefix_cache()
        for session in self.own.sessions.values():
            session.blocks.clear()
        self.assertEqual(self.request("two"), [range(BLOCKS)])

    def test_what_other_engines_wait_for_is_saved(self) -> None:
        self.request("one")
        words = self.enterContext(mock.patch.object(self.own.half._index, "words"))
        words.return_value = {"model": "m"}
        self.assertEqual(self.request("two", handover=True), [range(BLOCKS)])
        with mock.patch.object(self.own.half._index, "size", return_value=(1, 1)):
            self.own.half._index.share_bytes = lambda: 0
            self.assertEqual(self.request("three", hints=[HINT]), [range(BLOCKS)])

    def test_what_was_loaded_is_left_out(self) -> None:
        other = self.own
        other.fill(LENGTH)
        self.own = Engine([FULL])
        for place, session in self.own.sessions.items():
            session.blocks = other.sessions[place].blocks
        self.assertEqual(self.request("one"), [])
        self.assertEqual(self.request("two"), [range(4 * SPAN, BLOCKS)])

    def test_what_was_not_saved_is_not_left_out(self) -> None:
        with mock.patch("test_groups.Saved", lambda ranks, complete: Saved(ranks, False)):
            self.request("one")
        self.assertEqual(self.request("two"), [range(BLOCKS)])

    def test_a_pool_that_may_have_lost_all_of_it(self) -> None:
        def attaches_again() -> None:
            self.own.half._attachment.life += 1

        def gets_new_weights() -> None:
            self.own.half.reset()
            self.own.half._stopped = False

        for happens in (attaches_again, gets_new_weights):
            with self.subTest(happens.__name__):
                self.own = Engine([FULL])
                self.request("one")
                happens()
                self.assertEqual(self.request("two"), [range(BLOCKS)])

    def test_every_request_saves_all_where_that_is_wished(self) -> None:
        self.own = Engine([FULL], save_again_s=0)
        for name in ("one", "two", "three"):
            self.assertEqual(self.request(name), [range(BLOCKS)])

    def test_blocks_of_windows_are_left_out(self) -> None:
        self.own = Engine(KINDS["window"], 4)
        whole = self.request("one")
        self.assertGreater(sum(map(len, whole)), 4 * SPAN)
        again = self.request("two")
        self.assertTrue(again)
        self.assertGreaterEqual(again[0].start, 4 * SPAN)

    def test_a_block_that_the_pool_did_not_give_is_forgotten(self) -> None:
        self.request("one")
        one = self.own.request("missed", LENGTH)
        search = mock.Mock(request=one)
        search.handles_at.return_value = [b"a handle"]
        self.own.half._missed(search, self.own.groups.groups[0], SPAN + 3)
        expected = [range(SPAN, 2 * SPAN), range(4 * SPAN, BLOCKS)]
        self.assertEqual(self.request("two"), expected)


class Memory(unittest.TestCase):
    def test_only_whole_spans_are_remembered(self) -> None:
        known, of_prompt = SavedLately(60), hashes(100)
        known.add(0, range(3, 50), of_prompt[3:50])
        self.assertEqual(known.among(0, range(100), of_prompt), [range(16, 48)])
        self.assertEqual(known.among(0, range(17, 60), of_prompt[17:60]), [range(32, 48)])
        self.assertEqual(known.among(0, range(17, 47), of_prompt[17:47]), [])
        self.assertEqual(known.among(1, range(100), of_prompt), [], "another group")
        known.add(0, range(64, 96), of_prompt[64:96])
        self.assertEqual(known.among(0, range(100), of_prompt), [range(16, 48), range(64, 96)])
        other = [hashlib.sha256(each).digest() for each in of_prompt]
        self.assertEqual(known.among(0, range(100), other), [])

    def test_it_is_bounded(self) -> None:
        known = SavedLately(10**6)
        for number in range(3 * SPANS_MAX):
            known.add(0, range(SPAN), [bytes(32)] * (SPAN - 1) + [b"%d" % number])
        remembered = [*known._young.values(), *known._old.values()]
        self.assertEqual(sum(map(len, remembered)), 2 * SPANS_MAX)
        # Blocks of eight prompts of 128K tokens.
        self.assertGreaterEqual(SPANS_MAX * SPAN, 8 * 8192)


if __name__ == "__main__":
    unittest.main()
