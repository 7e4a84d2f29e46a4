"""Rackline beside another connector, in vLLM's ``MultiConnector``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from cases import PROMPTS, TinyCase, full_blocks, tokens
from engine import engine


class Beside(TinyCase):
    def connectors(self, files: str) -> Any:
        from vllm.config import KVTransferConfig

        rackline = dict(
            kv_connector="RacklineConnector",
            kv_connector_module_path="rackline.vllm",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config=self.settings(),
        )
        example = dict(
            kv_connector="ExampleConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"shared_storage_path": files},
        )
        return KVTransferConfig(
            kv_connector="MultiConnector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"connectors": [rackline, example]},
        )

    def test_beside_a_connector_that_loads_synchronously(self) -> None:
        """One engine: Rackline is asked first, and the other where Rackline finds nothing. vLLM's example
        knows prompts by their tokens alone, Rackline by their salt, too."""
        from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector

        files = self.enterContext(tempfile.TemporaryDirectory())
        blocks = full_blocks(PROMPTS)
        own = self.enterContext(engine(self.model, transfer=self.connectors(files)))

        def counter(name: str) -> int:
            return own.counter(name)

        self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
        self.assertGreaterEqual(counter("saved_blocks"), blocks)
        self.assertTrue(any(Path(files).iterdir()), "the example has saved nothing")

        with self.subTest("what both have is loaded by Rackline"):
            own.forget()
            self.assertEqual(tokens(own.answers(PROMPTS)), self.expected)
            self.assertEqual(counter("loaded_blocks"), blocks)

        inject = ExampleConnector.start_load_kv
        bad: set[int] = set()

        def fails(connector: Any, context: Any, **more: Any) -> None:
            inject(connector, context, **more)
            for request in connector._get_connector_metadata().requests:
                if not request.is_store:
                    slots = request.slot_mapping // connector._block_size
                    for layer in context.no_compile_layers.values():
                        if (cache := getattr(layer, "kv_cache", None)) is not None:
                            cache[slots] = 7.0
                    bad.update(slots.tolist())

        def errors(_: Any) -> set[int]:
            told = set(bad)
            bad.clear()
            return told

        with self.subTest("nothing is saved that was computed on a failed load of the other"):
            own.forget()
            with (
                mock.patch.object(ExampleConnector, "start_load_kv", fails),
                mock.patch.object(ExampleConnector, "get_block_ids_with_load_errors", errors),
            ):
                self.assertEqual(tokens(own.answers(PROMPTS, salt="one")), self.expected)
            own.forget()
            loaded = counter("loaded_blocks")
            self.assertEqual(tokens(own.answers(PROMPTS, salt="one")), self.expected)
            self.assertEqual(counter("loaded_blocks") - loaded, blocks)

        with self.subTest("what the other loaded is saved for the rack, a step later"):
            own.forget()
            saved = counter("saved_blocks")
            self.assertEqual(tokens(own.answers(PROMPTS, salt="two")), self.expected)
            self.assertGreaterEqual(counter("saved_blocks") - saved, blocks)

        with self.subTest("blocks of a request that ended with such a step are counted"):
            own.forget()
            own.answers(PROMPTS, tokens=1, salt="three")
            # Counters are told with a step that comes after.
            own.answers([[7, 8, 9]], tokens=1)
            told = [
                metric.value
                for metric in own.llm.get_metrics()
                if metric.name == "vllm:rackline_unsaved_by_reason"
                and metric.labels["reason"] == "other_connector"
            ]
            self.assertEqual(told, [blocks])

    def test_the_handshake_of_another_connector_is_refused(self) -> None:
        """vLLM passes on what the first connector says, to all."""
        from rackline.engines.settings import SettingsError
        from rackline.vllm import RacklineConnector

        scheduler = mock.Mock()
        connector = mock.Mock(scheduler=scheduler)
        with self.assertRaisesRegex(SettingsError, "name Rackline before other connectors"):
            RacklineConnector.set_xfer_handshake_metadata_pp_aware(connector, {(0, 0): object()})
        scheduler.sessions_of.assert_not_called()

    def test_the_class_is_found_by_its_name(self) -> None:
        """The process that collects the statistics of a ``MultiConnector`` has no more."""
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        from rackline.vllm import RacklineConnector
        from rackline.vllm.dynamo import NeuronNixlConnector

        for connector in (RacklineConnector, NeuronNixlConnector):
            found = KVConnectorFactory.get_connector_class_by_name(connector.__name__)
            self.assertIs(found, connector)
