"""What the tests of engines whose KV is on a GPU start from, with a stand-in for its driver
(`late_gpu.py`)."""

from __future__ import annotations

from typing import Any

from cases import FULL_BLOCKS, PROMPTS, TinyCase, tokens
from engine import Engine, engine, prompts


class GpuCase(TinyCase):
    def on_gpu(
        self,
        node: int = 0,
        connector: str = "LateGpu",
        load: str = "async",
        layerwise: str = "off",
        **options: Any,
    ) -> Any:
        from vllm.config import KVTransferConfig

        transfer = KVTransferConfig(
            kv_connector=connector,
            kv_connector_module_path="late_gpu",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config=self.settings(node, load=load, layerwise=layerwise),
        )
        return engine(self.model, transfer=transfer, **options)

    def check_figures(self, own: Engine, bounced: bool = False) -> None:
        """Every byte went through the GPU."""
        for _ in range(100):
            moved = own.counter("loaded_bytes") + own.counter("saved_bytes")
            if own.counter("gpu_bytes") == moved:
                break
            # What was copied is counted a step later, where it is the last thing that was.
            own.answers(prompts(8, 10), tokens=1)
        self.assertGreater(moved, 0)
        self.assertEqual(own.counter("gpu_bytes"), moved)
        self.assertEqual(own.counter("gpu_bounced_bytes"), moved if bounced else 0)
        self.assertEqual(own.counter("gpu_registrations") > 0, not bounced)

    def fill(self, **options: Any) -> None:
        """An engine of node 0 serves the prompts."""
        with self.on_gpu(**options) as first:
            self.assertEqual(tokens(first.answers(PROMPTS)), self.expected)
            self.assertGreaterEqual(first.counter("saved_blocks"), FULL_BLOCKS)
            self.check_figures(first)
