"""Loading and saving layer by layer, in real engines on one pool."""

from __future__ import annotations

import contextlib
from unittest import mock

from cases import FULL_BLOCKS, LONG, PROMPTS, SMALL, TinyCase, computed, tokens
from engine import BLOCK_TOKENS, engine, prompts
from pool import damage, damage_to_nan


@contextlib.contextmanager
def seen_hooks():
    """The calls of the engine's layers: `wait NAME` and `save NAME`, in order."""
    from rackline.vllm import RacklineConnector

    seen: list[str] = []
    wait, save = RacklineConnector.wait_for_layer_load, RacklineConnector.save_kv_layer

    def waiting(connector, name):
        wait(connector, name)
        seen.append(f"wait {name}")

    def saving(connector, name, *arguments, **options):
        seen.append(f"save {name}")
        save(connector, name, *arguments, **options)

    with (
        mock.patch.object(RacklineConnector, "wait_for_layer_load", waiting),
        mock.patch.object(RacklineConnector, "save_kv_layer", saving),
    ):
        yield seen


class Layerwise(TinyCase):
    def settings(self, node: int = 0, layerwise: str = "both", **more) -> dict:
        load = "async" if layerwise in ("off", "save") else "sync"
        return super().settings(node, layerwise=layerwise, **{"load": load, **more})

    def fill(self, **more) -> None:
        """An engine of node 0 serves the prompts."""
        with engine(self.model, self.settings(**more)) as first:
            self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
            self.assertGreaterEqual(first.counter("saved_blocks"), FULL_BLOCKS)

    def test_what_goes_by_layers_is_what_goes_whole(self) -> None:
        """Each way to save with each way to load, and the engine's layers do ask."""
        for saves, loads in [("both", "off"), ("save", "load"), ("off", "both")]:
            self.renew_pool()
            with self.subTest(saves=saves, loads=loads), seen_hooks() as seen:
                with engine(self.model, self.settings(layerwise=saves)) as first:
                    self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
                    self.assertGreaterEqual(first.counter("saved_blocks"), FULL_BLOCKS)
                    self.assertEqual(first.counter("unsaved_blocks"), 0)
                    saved = first.counter("saved_layers")
                names = list(dict.fromkeys(call.split()[1] for call in seen))
                order = [f"{hook} {name}" for name in names for hook in ("wait", "save")]
                self.assertEqual(seen, order * (len(seen) // len(order)))
                # Every layer of every step that saves anything.
                self.assertEqual(saved % len(names), 0)
                self.assertEqual(saved > 0, saves != "off")
                with engine(self.model, self.settings(1, layerwise=loads)) as second:
                    self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
                    self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)
                    self.assertEqual(second.counter("failed_load_blocks"), 0)
                    loaded = second.counter("loaded_layers")
                self.assertEqual(loaded % len(names), 0)
                self.assertEqual(loaded > 0, loads != "off")

    def test_a_compiled_forward_asks_too(self) -> None:
        for node in (0, 1):
            settings = self.settings(node)
            with engine(self.model, settings, enforce_eager=False) as compiled:
                self.assertEqual(tokens(compiled.answers(PROMPTS)), self.expected)
                self.assertEqual(compiled.counter("failed_load_blocks"), 0)
                if node == 0:
                    self.assertGreater(compiled.counter("saved_layers"), 0)
                else:
                    self.assertEqual(compiled.counter("loaded_blocks"), FULL_BLOCKS)
                    self.assertGreater(compiled.counter("loaded_layers"), 0)

    def test_a_forward_that_does_not_wait_would_show(self) -> None:
        """The control of the others: loads that begin behind the forward give other tokens."""
        from rackline.vllm.loads import Loads

        self.fill()
        start, end = Loads.start, Loads.end
        begun: list[object] = []

        def behind(loads, step, broken_off=False):
            if not any(step is other for other in begun):
                begun.append(step)
                start(loads, step)
                loads._asked = set(loads._layers.missing(set()))
            end(loads, step, broken_off)

        with (
            mock.patch.object(Loads, "start", lambda loads, step: None),
            mock.patch.object(Loads, "end", behind),
            engine(self.model, self.settings(1)) as second,
        ):
            self.assertNotEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)

    def test_what_is_damaged_is_known_behind_the_forward_and_computed_again(self) -> None:
        self.fill()
        self.assertGreater(damage(self.region), 0)
        with engine(self.model, self.settings(1)) as second:
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), 0)
            self.assertEqual(second.counter("failed_load_blocks"), FULL_BLOCKS)
            self.assertGreater(second.counter("loaded_layers"), 0)

    def test_what_was_computed_on_no_numbers_stays_nowhere(self) -> None:
        """An engine multiplies what it masks by zero: also in the blocks behind those that failed."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.fill()
        self.assertGreater(damage_to_nan(self.region), 0)
        with engine(self.model, self.settings(1)) as second:
            caches = get_kv_transfer_group().worker._parts[0].caches

            def look(step: int) -> None:
                left = [name for name, cache in caches.items() if cache.isnan().any()]
                self.assertEqual(left, [], f"after step {step}")

            named = {str(number): prompt for number, prompt in enumerate(PROMPTS)}
            served = second.serve(named, look)
            got = [list(served[name].outputs[0].token_ids) for name in named]
            self.assertEqual(got, self.expected)
            self.assertEqual(second.counter("failed_load_blocks"), FULL_BLOCKS)

    def test_what_is_damaged_fails_requests_when_the_engine_is_told_so(self) -> None:
        self.fill()
        damage(self.region)
        with engine(self.model, self.settings(1), policy="fail") as second:
            answers = second.answers(PROMPTS)
            self.assertEqual([answer.finish_reason for answer in answers], ["error"] * 3)
            self.assertGreater(second.counter("loaded_layers"), 0)
            # The engine continues.
            self.assertEqual(second.answers(prompts(3, 100))[0].finish_reason, "length")

    def test_nothing_computed_on_failed_blocks_is_saved(self) -> None:
        """What a layered save has taken of a step whose layered loads fail is not published."""
        self.fill(save_generated=False)
        damage(self.region)
        longer = [prompt + extra for prompt, extra in zip(PROMPTS, prompts(4, 100, 100, 100))]
        expected = computed(longer)
        with engine(self.model, self.settings(1)) as second:
            self.assertEqual(tokens(second.answers(longer)), expected)
            self.assertEqual(second.counter("failed_load_blocks"), FULL_BLOCKS)
            self.assertGreater(second.counter("put_off_blocks"), 0, "those of that step")
            self.assertEqual(second.counter("unsaved_blocks"), 0)
        with engine(self.model, self.settings(0)) as owner:
            self.assertEqual(tokens(owner.answers(PROMPTS)), self.expected)
            self.assertGreater(owner.counter("failed_load_blocks"), 0)
        with engine(self.model, self.settings(1)) as third:
            self.assertEqual(tokens(third.answers(longer)), expected)
            self.assertGreaterEqual(third.counter("lookup_hit_blocks"), FULL_BLOCKS)
            self.assertGreaterEqual(third.counter("loaded_blocks"), FULL_BLOCKS)

    def test_a_step_that_is_broken_off_saves_nothing(self) -> None:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        forward = GPUModelRunner._model_forward

        def broken(*arguments, **options):
            forward(*arguments, **options)
            raise RuntimeError("on purpose")

        with engine(self.model, self.settings()) as first, seen_hooks() as seen:
            with mock.patch.object(GPUModelRunner, "_model_forward", broken):
                with self.assertRaisesRegex(RuntimeError, "on purpose"):
                    first.answers(PROMPTS)
            self.assertIn("save", seen[-1], "its layers were ready")
        with engine(self.model, self.settings(1)) as second:
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("lookup_hit_blocks"), 0)

    def test_a_forward_that_does_not_ask_is_not_believed(self) -> None:
        """One layer, or none, asks: what was computed is thrown away, and later loads are whole."""
        from rackline.vllm import RacklineConnector

        self.fill()
        wait = RacklineConnector.wait_for_layer_load

        def some(connector, name):
            if ".1." not in name:
                wait(connector, name)

        for asks in (some, lambda connector, name: None):
            with (
                mock.patch.object(RacklineConnector, "wait_for_layer_load", asks),
                engine(self.model, self.settings(1, layerwise="load")) as second,
            ):
                first, rest = PROMPTS[:1], PROMPTS[1:]
                self.assertEqual(tokens(second.answers(first)), self.expected[:1])
                failed = second.counter("failed_load_blocks")
                self.assertEqual(failed, (len(first[0]) - 1) // BLOCK_TOKENS)
                self.assertEqual(second.counter("loaded_blocks"), 0)
                self.assertEqual(tokens(second.answers(rest)), self.expected[1:])
                self.assertEqual(second.counter("failed_load_blocks"), failed)
                self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS - failed)
                # Those of the first step are as good as the others.
                second.forget()
                self.assertEqual(tokens(second.answers(first)), self.expected[:1])
                self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)

    def test_layers_that_nobody_told_of_are_saved_at_the_end(self) -> None:
        from rackline.vllm import RacklineConnector

        with mock.patch.object(RacklineConnector, "save_kv_layer", lambda *_, **__: None):
            self.fill()
        with engine(self.model, self.settings(1)) as second:
            self.assertEqual(tokens(second.answers(PROMPTS)), self.expected)
            self.assertEqual(second.counter("loaded_blocks"), FULL_BLOCKS)

    def test_preemptions_and_chunked_prefill(self) -> None:
        expected = computed(LONG, 60)
        for node in (0, 1):
            with engine(self.model, self.settings(node), **SMALL) as tight:
                self.assertEqual(tokens(tight.answers(LONG, tokens=60)), expected)
                name = "saved_layers" if node == 0 else "loaded_layers"
                self.assertGreater(tight.counter(name), 0)
                self.assertGreater(tight.counter("num_preemptions", "vllm:"), 0)
                self.assertEqual(tight.counter("failed_load_blocks"), 0)

    def test_what_cannot_work_is_refused_in_words(self) -> None:
        for wrong, told in [
            (dict(layerwise="yes"), '"off", "load", "save" or "both"'),
            (dict(layerwise="both", load="async"), 'set "load" to "sync"'),
        ]:
            self.assert_refused(told, engine(self.model, self.settings(**wrong)))

    def test_graphs_are_cut_at_the_layers(self) -> None:
        from rackline.vllm import RacklineConnector

        for layerwise, cut in [("off", False), ("load", True), ("save", True), ("both", True)]:
            given = {"layerwise": layerwise}
            self.assertEqual(RacklineConnector.requires_piecewise_for_cudagraph(given), cut)
        self.assertFalse(RacklineConnector.requires_piecewise_for_cudagraph({}))
