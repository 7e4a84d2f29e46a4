"""Engines with blocks of different lengths, which store blocks of the same length: with vLLM's own hashes and
manager of blocks, and a stand-in for the pool and the worker."""

from __future__ import annotations

import threading
import types
import unittest
from typing import Any
from unittest import mock

from rackline.engines.settings import SettingsError
from rackline.vllm import chains
from rackline.vllm.chains import Chain, Chains, hash_of_tokens
from rackline.vllm.groups import Groups
from rackline.vllm.messages import GroupLoaded, Loaded, Report
from test_groups import FULL, HEADS, KINDS, Engine, handles_of
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256, sha256_cbor
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request

# Tokens of a block of the engine, and of a stored one.
LONG, SHORT = 12, 4
COARSE = FullAttentionSpec(block_size=LONG, **HEADS)


def image(name: str, offset: int, length: int) -> Any:
    place = PlaceholderRange(offset=offset, length=length)
    return MultiModalFeatureSpec(data=None, modality="image", identifier=name, mm_position=place)


KINDS_OF_REQUESTS = {
    "tokens": {},
    "adapter": dict(lora_request=LoRARequest("one", 1, "/a")),
    "salt": dict(cache_salt="pepper"),
    "images": dict(mm_features=[image("a", 3, 7), image("b", 18, 5), image("c", 23, 30)]),
}


def request(tokens: int, length: int = 63, algorithm: Any = sha256, **more: Any) -> Request:
    """A request of an engine whose blocks have so many tokens."""
    init_none_hash(algorithm)
    ids = [(7 * number) % 101 for number in range(length)]
    hasher = get_request_block_hasher(tokens, algorithm)
    return Request("one", ids, SamplingParams(max_tokens=99), None, block_hasher=hasher, **more)


def chains_of(tokens: int = SHORT, algorithm: str = "sha256") -> Chains:
    """Those of an engine that stores shorter blocks than its own."""
    group = types.SimpleNamespace(steps=LONG // SHORT)
    groups = types.SimpleNamespace(groups=[group], unit_tokens=tokens)
    cache = types.SimpleNamespace(prefix_caching_hash_algo=algorithm)
    return Chains(types.SimpleNamespace(cache_config=cache), groups)


class Hashes(unittest.TestCase):
    def test_a_chain_has_the_hashes_of_an_engine_with_short_blocks(self) -> None:
        for kind, more in KINDS_OF_REQUESTS.items():
            for algorithm in (sha256, sha256_cbor):
                with self.subTest(kind, algorithm=algorithm.__name__):
                    expected = request(SHORT, algorithm=algorithm, **more).block_hashes
                    own = request(LONG, algorithm=algorithm, **more)
                    chain = chains_of(algorithm=algorithm.__name__).of(own)
                    self.assertEqual(chain.block_hashes, expected)
                    self.assertEqual(len(expected), 63 // SHORT)

    def test_a_chain_grows_with_what_is_generated(self) -> None:
        for slice_length in (1, 64):
            with mock.patch.object(chains, "SLICE", slice_length):
                fine, own, made = request(SHORT), request(LONG), chains_of()
                chain = made.of(own)
                for token in range(30):
                    fine.append_output_token_ids(token)
                    own.append_output_token_ids(token)
                    made.make(chain, own.num_tokens)
                    self.assertEqual(chain.block_hashes, fine.block_hashes)

    def test_tokens_that_may_be_replaced_have_no_hashes(self) -> None:
        """The last token of a session is dropped when the session goes on."""
        own, made = request(LONG, 15), chains_of()
        chain = made.of(own)
        own.append_output_token_ids(1)
        made.make(chain, 15)
        self.assertEqual(len(chain.block_hashes), 3)

    def test_a_tail_has_the_hash_of_no_whole_block(self) -> None:
        whole: set[bytes] = set()
        for kind, more in KINDS_OF_REQUESTS.items():
            fine = request(SHORT, **more)
            whole.update(fine.block_hashes)
            with self.subTest(kind):
                for first in range(0, 60, SHORT):
                    parent = fine.block_hashes[first // SHORT - 1] if first else None
                    # As of a block of that length, and so of no other.
                    whole_again = hash_of_tokens("sha256", fine, parent, first, first + SHORT)
                    self.assertEqual(whole_again, fine.block_hashes[first // SHORT])
                    for tokens in range(1, SHORT):
                        tail = hash_of_tokens("sha256", fine, parent, first, first + tokens)
                        self.assertNotIn(tail, whole)

    def test_a_long_prompt_is_hashed_beside_the_scheduler(self) -> None:
        own, made = request(LONG, 5000), chains_of()
        go_on, sleep = threading.Event(), mock.Mock()
        sleep.sleep.side_effect = lambda _: go_on.wait(60)
        with mock.patch.object(chains, "time", sleep):
            chain = made.of(own)
            self.assertFalse(made.are_made(chain, 5000))
            self.assertEqual(made._thread.name, "rackline-hashes")
            thread = made._thread
            # What is computed meanwhile is hashed with its step, and once.
            made.make(chain, 2000)
            self.assertGreaterEqual(len(chain.block_hashes), 500)
            go_on.set()
            thread.join(60)
        self.assertTrue(made.are_made(chain, 5000))
        self.assertEqual(chain.block_hashes, request(SHORT, 5000).block_hashes)
        self.assertIsNone(made._thread)

    def test_long_prompts_are_hashed_in_turns(self) -> None:
        """The short one is done after as many slices of the long one as the short one has."""
        made, done = chains_of(), []
        begin, sleep = threading.Event(), mock.Mock()
        sleep.sleep.side_effect = lambda _: begin.wait(60)
        grow = Chain.grow

        def told(chain: Chain, tokens: int) -> None:
            grow(chain, tokens)
            done.append(chain.num_tokens)

        with mock.patch.object(chains, "time", sleep), mock.patch.object(Chain, "grow", told):
            for tokens in (20_000, 1000, 20_000):
                made.of(request(LONG, tokens))
            thread = made._thread
            begin.set()
            thread.join(60)
        slices = -(-1000 // SHORT // chains.SLICE)
        self.assertEqual(done.count(1000), slices)
        last = max(place for place, tokens in enumerate(done) if tokens == 1000)
        self.assertLessEqual(last, 3 * slices + 1)
        self.assertEqual(done.count(20_000), 2 * -(-20_000 // SHORT // chains.SLICE))

    def test_a_request_without_hashes_is_not_waited_for(self) -> None:
        def fails(_: Any) -> list[bytes]:
            raise ValueError("on purpose")

        chain = Chain(request(LONG), SHORT, fails)
        with self.assertLogs("rackline.vllm.chains", "ERROR"):
            self.assertTrue(chains_of().are_made(chain, 63))
        self.assertEqual((chain.block_hashes, chain.missing(63)), ([], 0))


class UnequalEngines(unittest.TestCase):
    """One with long blocks, and one with short ones."""

    def setUp(self) -> None:
        self.long = Engine([COARSE], stored_block_tokens=SHORT)
        self.short = Engine([FULL])
        self.assertEqual((self.long.unit, self.short.unit), (LONG, SHORT))
        self.assertEqual(self.long.groups.unit_tokens, SHORT)

    def share(self, stores: Engine, loads: Engine) -> None:
        for place, session in loads.sessions.items():
            session.blocks = stores.sessions[place].blocks

    def test_each_finds_what_the_other_stored(self) -> None:
        for length in (3, 4, 5, 12, 13, 23, 24, 25, 50, 100):
            for stores, loads in [(self.long, self.short), (self.short, self.long)]:
                with self.subTest(length=length, stores=stores.unit):
                    self.setUp()
                    stores.fill(length, step_tokens=7)
                    self.share(stores, loads)
                    one = loads.request("loads", length)
                    found = loads.found(one)
                    self.assertEqual(found, (length - 1) // SHORT * SHORT)
                    if found:
                        self.check_load(loads, one, found)

    def check_load(self, own: Engine, one: Request, found: int) -> None:
        (load,) = own.load(one, found).groups
        (table,) = own.manager.get_block_ids("loads")
        steps = own.unit // SHORT
        expected = [
            table[first // own.unit] * steps + first % own.unit // SHORT
            for first in range(0, found, SHORT)
        ]
        self.assertEqual(load.block_ids, expected)
        hashes = request_of_short(own, one).block_hashes[: found // SHORT]
        self.assertEqual(set(load.handles.values()), {handles_of(hashes)})

    def test_a_request_whose_hashes_take_too_long_is_computed(self) -> None:
        self.long = Engine([COARSE], stored_block_tokens=SHORT, lookup_timeout_ms=500)
        self.short.fill(700)
        self.share(self.short, self.long)
        go_on, sleep = threading.Event(), mock.Mock()
        sleep.sleep.side_effect = lambda _: go_on.wait(60)
        with (
            mock.patch.object(chains, "time", sleep),
            mock.patch("rackline.vllm.scheduler.time") as clock,
            self.assertLogs("rackline.vllm.scheduler", "WARNING") as logged,
        ):
            clock.monotonic.return_value = 100.0
            one = self.long.request("one", 700)
            self.assertIsNone(self.long.found(one))
            clock.monotonic.return_value = 100.4
            self.assertIsNone(self.long.found(one))
            clock.monotonic.return_value = 100.5
            # Also when there is no room for it, and it is asked about again.
            self.assertEqual([self.long.found(one) for _ in range(3)], [0, 0, 0])
            thread = self.long.half._chains._thread
            go_on.set()
            thread.join(60)
        counted = self.long.half.stats.data
        self.assertEqual((counted["not_found_hash_timeout"], counted["lookup_timeouts"]), (1, 1))
        self.assertIn("(hash_timeout)", logged.output[0])
        # Another request of the same prompt finds it when there is time.
        two = self.long.request("two", 700)
        self.long.half.on_new_request(two)
        self.long.half._chains.make(self.long.half._requests["two"].hashed, 700)
        self.assertEqual(self.long.found(two), 696)

    def test_what_is_saved_lies_in_the_engines_blocks(self) -> None:
        own = self.long
        one = own.request("fills", 40)
        own.half.on_new_request(one)
        first, second = [own.compute(one, tokens) for tokens in (18, 22)]
        (table,) = own.manager.get_block_ids("fills")
        numbers = [block * 3 + step for block in table for step in range(3)]
        self.assertEqual([(job.first_depth, job.block_ids) for job in first], [(0, numbers[:4])])
        self.assertEqual([(job.first_depth, job.block_ids) for job in second], [(4, numbers[4:10])])
        hashes = request_of_short(own, one).block_hashes
        self.assertEqual(first[0].hashes + second[0].hashes, b"".join(hashes))

    def test_blocks_that_the_engine_has_are_not_loaded(self) -> None:
        self.short.fill(50)
        self.share(self.short, self.long)
        self.assertEqual(self.long.found(self.long.request("loads", 50), 24), 24)

    def test_a_load_that_fails_within_a_block_of_the_engine(self) -> None:
        """The good part need not be saved again, and what is computed is saved."""
        own = self.long
        self.short.fill(50)
        self.share(self.short, own)
        one = own.request("loads", 50)
        own.load(one, own.found(one))
        told = Loaded(2, {0: GroupLoaded(4, True)})
        own.half.reported(Report(loaded={"loads": told}))
        self.assertEqual(own.half._requests["loads"].loaded, {0: range(4)})
        one.num_computed_tokens = LONG
        self.assertEqual([job.first_depth for job in own.compute(one, 38)], [4])
        self.assertEqual(own.found(own.request("again", 50)), 16)

    def test_a_tail_of_a_short_block_is_handed_over(self) -> None:
        self.addCleanup(mock.patch.stopall)
        for stores, loads in [(self.long, self.short), (self.short, self.long)]:
            for own in (stores, loads):
                mock.patch.object(own.half._index, "words", lambda: {"model": "m"}).start()
            one = stores.request("fills", 22)
            one.kv_transfer_params, one.max_tokens = {"rackline": {"handover": True}}, 1
            stores.half.on_new_request(one)
            jobs = stores.compute(one, 22)
            _, params = stores.half.request_finished(one)
            self.assertEqual((params["rackline"]["blocks"], params["rackline"]["tail_tokens"]), (5, 2))
            stores.save(jobs)
            self.share(stores, loads)
            two = loads.request("loads", 22)
            two.kv_transfer_params = params
            found = loads.found(two)
            self.assertEqual(found, 21)
            (load,) = loads.load(two, found).groups
            self.assertEqual(len(load.block_ids), 6)
            self.setUp()

    def test_a_synchronous_load_hides_the_engines_blocks_until_it_is_over(self) -> None:
        """VLLM-V5: also the block that it does not fill."""
        own = Engine([COARSE], stored_block_tokens=SHORT, load="sync")
        self.short.fill(50)
        for valid, evicted in [(12, []), (11, [3, 4]), (4, [1, 2, 3, 4]), (0, [0, 1, 2, 3, 4])]:
            with self.subTest(valid=valid):
                own = Engine([COARSE], stored_block_tokens=SHORT, load="sync")
                self.share(self.short, own)
                one = own.request("loads", 50)
                self.assertEqual(own.found(one), 48)
                own.manager.allocate_slots(one, 2, num_external_computed_tokens=48)
                own.half.allocated(one, own.manager.get_blocks("loads"), 48)
                (table,) = own.manager.get_block_ids("loads")
                other = own.request("other", 50)
                self.assertEqual(own.half.matched_tokens(other, LONG), (None, False))
                with mock.patch.object(own.manager, "evict_blocks") as evict:
                    told = Loaded(2, {0: GroupLoaded(valid, valid < 12)})
                    own.half.reported(Report(loaded={"loads": told}))
                found = [call.args[0] for call in evict.call_args_list]
                self.assertEqual(found, [{table[each] for each in evicted}] if evicted else [])
                self.assertNotEqual(own.half.matched_tokens(other, LONG), (None, False))


def request_of_short(own: Engine, one: Request) -> Request:
    """The same request in an engine with short blocks."""
    hasher = get_request_block_hasher(SHORT, sha256)
    tokens = list(one.prompt_token_ids)
    return Request("short", tokens, SamplingParams(max_tokens=8), None, block_hasher=hasher)


class Refused(unittest.TestCase):
    def refusal(self, specs: list[Any], tokens: int) -> str:
        with self.assertRaises(SettingsError) as refused:
            Engine(specs, stored_block_tokens=tokens)
        return str(refused.exception)

    def test_lengths_that_cannot_be_stored(self) -> None:
        self.assertIn("a number that divides 12", self.refusal([COARSE], 5))
        self.assertIn("a number that divides 12", self.refusal([COARSE], 24))
        for kind in ("full and windows", "window", "full and state"):
            self.assertIn("of one group that keeps all tokens", self.refusal(KINDS[kind], 2))

    def test_the_engines_own_length_is_no_other(self) -> None:
        for tokens in (0, LONG):
            groups = Engine([COARSE], stored_block_tokens=tokens).groups
            self.assertEqual((groups.groups[0].steps, groups.unit_tokens), (1, LONG))
            self.assertIsInstance(groups, Groups)


if __name__ == "__main__":
    unittest.main()
