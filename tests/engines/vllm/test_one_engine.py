"""The connector in real engines, one after another, on one pool."""

from __future__ import annotations

import logging
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import benches  # noqa: F401
import engine_bench
from cases import FULL_BLOCKS, LONG, PROMPTS, SMALL, TinyCase, computed, tokens
from engine import BLOCK_TOKENS, engine, prompts
from models import tiny
from pool import damage
from region import Region


class OneEngine(TinyCase):
    def fill(self, **more) -> None:
        """An engine of node 0 serves the prompts."""
        with engine(self.model, self.settings(**more)) as first:
            self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
            self.assertEqual(first.counter("lookup_hit_blocks"), 0)
            self.assertGreaterEqual(first.counter("saved_blocks"), FULL_BLOCKS)

    def test_another_node_loads_what_one_saved(self) -> None:
        self.fill()
        for load in ("async", "sync"):
            with self.subTest(load), engine(self.model, self.settings(1, load=load)) as second:
                answers = second.answers(PROMPTS)
                self.assertEqual(tokens(answers), self.expected)
                cached = [(len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS for prompt in PROMPTS]
                self.assertEqual([answer.cached_tokens for answer in answers], cached)
                self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)
                self.assertEqual(second.counter("failed_load_blocks"), 0)

    def test_roles(self) -> None:
        """A producer saves and does not load, a consumer loads and does not save."""
        with engine(self.model, self.settings(), role="kv_producer") as producer:
            producer.answers(PROMPTS)
            self.assertGreaterEqual(producer.counter("saved_blocks"), FULL_BLOCKS)
        with engine(self.model, self.settings(), role="kv_producer") as producer:
            producer.answers(PROMPTS)
            self.assertEqual(producer.counter("loaded_blocks"), 0)
        with engine(self.model, self.settings(1), role="kv_consumer") as consumer:
            answers = consumer.answers(PROMPTS + prompts(2, 150))
            self.assertEqual(tokens(answers)[:3], self.expected)
            self.assertEqual(consumer.counter("loaded_blocks"), FULL_BLOCKS)
            self.assertEqual(consumer.counter("saved_blocks"), 0)
            with self.subTest("the benchmark of an engine runs"):
                took = engine_bench.time_to_first_token(consumer, 1, PROMPTS[:1])
                self.assertGreater(took["median"], 0)
                self.assertGreater(engine_bench.share_of_a_step(consumer, tokens=2), 0)

    def test_wrong_bytes_would_show_in_the_tokens(self) -> None:
        """The control of all the others: a block saved in the place of others passes every check of
        the pool, and gives other tokens. (Blocks that only changed places would not: a key has its
        position in it.)"""
        from rackline.vllm.worker import WorkerHalf

        save = WorkerHalf._save

        def repeated(half, job, part):
            job.block_ids = job.block_ids[:1] * len(job.block_ids)
            save(half, job, part)

        with mock.patch.object(WorkerHalf, "_save", repeated):
            self.fill()
        with engine(self.model, self.settings(1)) as second:
            self.assertNotEqual(tokens(second.answers(PROMPTS)), self.expected)

    def test_damaged_blocks_are_computed_again(self) -> None:
        for load in ("async", "sync"):
            self.renew_pool()
            self.fill()
            self.assertGreater(damage(self.region), 0)
            with self.subTest(load), engine(self.model, self.settings(1, load=load)) as second:
                self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
                self.assertEqual(second.counter("loaded_blocks"), 0)
                self.assertEqual(second.counter("failed_load_blocks"), FULL_BLOCKS)

    def test_damaged_blocks_fail_requests_when_the_engine_is_told_so(self) -> None:
        for load in ("async", "sync"):
            self.renew_pool()
            self.fill()
            damage(self.region)
            told = engine(self.model, self.settings(1, load=load), policy="fail")
            with self.subTest(load), told as second:
                answers = second.answers(PROMPTS)
                self.assertEqual([answer.finish_reason for answer in answers], ["error"] * 3)
                # The engine continues.
                other = prompts(3, 100)
                self.assertEqual(second.answers(other)[0].finish_reason, "length")
                # What failed is not found again.
                self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)

    def test_nothing_computed_on_failed_blocks_is_saved(self) -> None:
        """Synchronous loads fail under the forward of their step: a third engine must not find what
        that computed."""
        self.fill(save_generated=False)
        damage(self.region)
        longer = [prompt + extra for prompt, extra in zip(PROMPTS, prompts(4, 100, 100, 100))]
        expected = computed(longer)
        with engine(self.model, self.settings(1, load="sync")) as second:
            self.assertEqual(tokens(second.answers(longer)), expected)
            self.assertEqual(second.counter("failed_load_blocks"), FULL_BLOCKS)
        # What is behind the damaged blocks is found when those are there again: their owner's engine
        # removes them, and saves what the second has not.
        with engine(self.model, self.settings(0)) as owner:
            self.assertEqual(tokens(owner.answers(PROMPTS)), self.expected)
            self.assertGreater(owner.counter("failed_load_blocks"), 0)
        with engine(self.model, self.settings(1)) as third:
            self.assertEqual(tokens(third.answers(longer)), expected)
            self.assertGreaterEqual(third.counter("loaded_blocks"), FULL_BLOCKS)

    def test_a_step_that_is_broken_off_saves_nothing(self) -> None:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        forward = GPUModelRunner._model_forward

        def broken(*arguments, **options):
            forward(*arguments, **options)
            raise RuntimeError("on purpose")

        with engine(self.model, self.settings()) as first:
            with mock.patch.object(GPUModelRunner, "_model_forward", broken):
                with self.assertRaisesRegex(RuntimeError, "on purpose"):
                    first.answers(PROMPTS)
        with engine(self.model, self.settings(1)) as second:
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("lookup_hit_blocks"), 0)

    def test_lines_go_to_the_log_of_the_engine(self) -> None:
        """To which nobody else has pointed them."""
        own, its = logging.getLogger("rackline"), logging.getLogger("vllm")
        own.handlers.clear()
        with engine(self.model, self.settings()):
            self.assertEqual((own.handlers, own.level), (its.handlers, its.level))
            self.assertNotEqual(its.handlers, [])

    def test_an_error_that_the_caller_handles_is_none_of_the_step(self) -> None:
        for load in ("async", "sync"):
            self.renew_pool()
            with self.subTest(load=load):
                try:
                    raise ValueError("of the caller")
                except ValueError:
                    with engine(self.model, self.settings(0, load=load)) as own:
                        self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
                        own.forget()
                        self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
                        self.assertEqual(own.counter("loaded_blocks"), FULL_BLOCKS)
                        self.assertEqual(own.counter("failed_load_blocks"), 0)

    def test_salts_and_tenants_are_isolated(self) -> None:
        with engine(self.model, self.settings(tenant="a")) as first:
            self.assertEqual(tokens(first.answers(PROMPTS, salt="mine")), self.expected)
        with engine(self.model, self.settings(1, tenant="a")) as second:
            for salt, hits in [("other", 0), (None, 0), ("mine", FULL_BLOCKS)]:
                before = second.counter("lookup_hit_blocks")
                self.assertEqual(tokens(second.answers(PROMPTS, salt=salt)), self.expected)
                self.assertEqual(second.counter("lookup_hit_blocks") - before, hits, salt)
        with engine(self.model, self.settings(1, tenant="b")) as third:
            third.answers(PROMPTS, salt="mine")
            self.assertEqual(third.counter("lookup_hit_blocks"), 0)

    def test_other_weights_find_nothing(self) -> None:
        self.fill()
        with engine(tiny(seed=1), self.settings(1)) as other:
            self.assertNotEqual(tokens(other.answers(PROMPTS)), self.expected)
            self.assertEqual(other.counter("lookup_hit_blocks"), 0)

    def test_preemptions_and_chunked_prefill(self) -> None:
        expected = computed(LONG, 60)
        for node, load in [(0, "async"), (1, "async"), (1, "sync")]:
            with self.subTest(node=node, load=load):
                told = engine(self.model, self.settings(node, load=load), **SMALL)
                with told as tight:
                    self.assertEqual(tokens(tight.answers(LONG, tokens=60)), expected)
                    preempted = [
                        metric.value
                        for metric in tight.llm.get_metrics()
                        if metric.name == "vllm:num_preemptions"
                    ]
                    if node == 0:
                        self.assertGreater(sum(preempted), 0)
                    else:
                        self.assertGreater(tight.counter("loaded_blocks"), 0)

    def test_a_preemption_waits_for_what_is_copied(self) -> None:
        """Saves that begin late only, some of them when a preemption asks for them."""
        from rackline.vllm.worker import WorkerHalf

        begun_by = {"poll": 0, "wait": 0}

        class Late:
            """A publish that begins at its sixtieth poll, or when it is waited for."""

            def __init__(self, begin) -> None:
                self._begin, self._publish, self._polls = begin, None, 0

            def _begun(self, by: str):
                if self._publish is None:
                    self._publish = self._begin()
                    begun_by[by] += 1
                return self._publish

            def poll(self):
                self._polls += 1
                return self._begun("poll").poll() if self._polls > 60 else None

            def wait(self):
                return self._begun("wait").wait()

            def cancel(self) -> bool:
                return False

        class LateShares:
            def __init__(self, shares) -> None:
                self._shares = shares

            def publish(self, *arguments, **options):
                return Late(lambda: self._shares.publish(*arguments, **options))

            def fetch(self, *arguments, **options):
                return self._shares.fetch(*arguments, **options)

        register = WorkerHalf.register

        def registered(half, caches) -> None:
            register(half, caches)
            part = half._parts[0]
            part.together = LateShares(part.together)

        expected = computed(LONG, 150)
        with mock.patch.object(WorkerHalf, "register", registered):
            with engine(self.model, self.settings(), **SMALL) as tight:
                self.assertEqual(tokens(tight.answers(LONG, tokens=150)), expected)
        self.assertGreater(begun_by["wait"], 0, begun_by)
        with engine(self.model, self.settings(1)) as second:
            self.assertEqual(tokens(second.answers(LONG, tokens=150)), expected)
            self.assertGreater(second.counter("loaded_blocks"), 0)

    def test_a_pool_smaller_than_the_working_set(self) -> None:
        with Region("16MiB", "128KiB", chunk="1MiB") as small:
            many = prompts(6, *[200] * 24)
            expected = computed(many)
            with engine(self.model, {"region": small.path, "node": 0}) as full:
                for _ in range(2):
                    self.assertEqual(tokens(full.answers(many)), expected)
                    full.llm.reset_prefix_cache()
                # More than there is room for: the difference made room.
                self.assertGreater(full.counter("saved_blocks"), 15 << 20 >> 17)

    def test_after_new_weights_nothing_is_shared(self) -> None:
        with engine(self.model, self.settings()) as first:
            first.answers(PROMPTS)
            first.drain()
            first.scheduler.reset_connector_cache()
            first.llm.reset_prefix_cache()
            saved = first.counter("saved_blocks")
            first.answers(PROMPTS + prompts(7, 100))
            self.assertEqual(first.counter("loaded_blocks"), 0)
            self.assertEqual(first.counter("saved_blocks"), saved)

    def test_new_weights_with_a_name_are_shared_under_it(self) -> None:
        """VLLM-V11. The weights stay, so that tokens show which blocks are taken: wrong ones are saved under
        the first name."""
        name = Path(self.enterContext(tempfile.TemporaryDirectory())) / "name"
        name.write_text("first")
        settings = self.settings(weights_name_file=str(name), model_id="first")
        with engine(self.model, settings) as first:
            first.answers(PROMPTS)
            first.drain()
            self.assertGreater(damage(self.region), 0)
            with self.subTest("the same name is none"), self.assertLogs("rackline", "WARNING") as log:
                self.assertTrue(first.llm.reset_prefix_cache(reset_connector=True))
                self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
                # The first time as absent.
                self.assertEqual(first.counter("not_found_by_reason"), 2 * len(PROMPTS))
            self.assertIn("still named 'first'", log.output[0])

            name.write_text("second\n")
            with self.subTest("not while the engine has KV of the old weights"):
                self.assertFalse(first.scheduler.reset_connector_cache())
                first.drain()
            with self.subTest("shared again"):
                self.assertTrue(first.llm.reset_prefix_cache(reset_connector=True))
                saved = first.counter("saved_blocks")
                self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
                self.assertEqual(first.counter("loaded_blocks"), 0)
                self.assertGreaterEqual(first.counter("saved_blocks") - saved, FULL_BLOCKS)
                first.forget()
                self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
                self.assertEqual(first.counter("loaded_blocks"), FULL_BLOCKS)
                self.assertEqual(first.counter("failed_load_blocks"), 0)
        with self.subTest("as with a model_id"):
            with engine(self.model, self.settings(1, model_id="second")) as second:
                self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
                self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)

    def test_events_tell_routers_what_is_in_the_pool(self) -> None:
        import msgspec
        import zmq
        from vllm.config import KVEventsConfig

        with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
            subscriber.setsockopt(zmq.SUBSCRIBE, b"")
            address = f"ipc://{self.region.path}.events"
            events = KVEventsConfig(
                enable_kv_cache_events=True, publisher="zmq", endpoint=address, topic="kv"
            )
            with engine(self.model, self.settings(), kv_events_config=events) as first:
                subscriber.connect(address)
                while not subscriber.poll(100):
                    # Until the subscription has reached the publisher.
                    first.answers(prompts(8, 40))
                first.answers(PROMPTS)
                first.answers(prompts(9, 40), salt="mine")
                # Saved again, and found there: looked up before it is told again.
                first.forget()
                first.answers(PROMPTS[1:2])
                first.answers(prompts(10, 40))
                stored, of_engine = [], {}
                while subscriber.poll(1000):
                    batch = msgspec.msgpack.decode(subscriber.recv_multipart()[-1])
                    stored += [event for event in batch[1] if event.get("medium") == "CPU"]
                    told = [event for event in batch[1] if event.get("medium") == "GPU"]
                    of_engine |= {event["block_hashes"][0]: event for event in told}
        hashes = {block for event in stored for block in event["block_hashes"]}
        self.assertGreaterEqual(len(hashes), FULL_BLOCKS)
        firsts = [event["token_ids"][:BLOCK_TOKENS] for event in stored]
        self.assertIn(PROMPTS[1][:BLOCK_TOKENS], firsts)
        # Told as the engine itself tells of the same blocks.
        for event in stored:
            self.assertEqual(event["locality"], "LOCAL")
            self.assertNotIn("ownership", event)
            told = of_engine[event["block_hashes"][0]]
            for name in ("parent_block_hash", "block_size", "lora_name", "group_idx", "session_id"):
                self.assertEqual(event.get(name), told.get(name), name)
            self.assertEqual(event["extra_keys"], told["extra_keys"][: len(event["extra_keys"])])
        self.assertIn([["mine"]], [event["extra_keys"] for event in stored])

    def test_what_cannot_work_is_refused_in_words(self) -> None:
        for settings, options, message in [
            ({"node": 0}, {}, 'set "region" and "node"'),
            (self.settings(nod=1), {}, "unknown settings"),
            (self.settings(load="later"), {}, '"async" or "sync"'),
            (self.settings(copy_threads="2"), {}, "not of type int"),
            ({"region": "/nonexistent", "node": 0}, {}, "/nonexistent"),
            (self.settings(), {"prefix_caching_hash_algo": "xxhash"}, "random seed"),
            (self.settings(), {"enable_lora": True}, "lora_same_everywhere"),
        ]:
            with self.subTest(message):
                self.assert_refused(message, engine(self.model, settings, **options))


if __name__ == "__main__":
    unittest.main()
