"""An engine with stages of pipeline parallelism, as a program (`starter.py`)."""

from __future__ import annotations

from typing import Any
from unittest import mock

import rounds_process


def main(told: dict[str, Any]) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    gather = GPUModelRunner.sync_and_gather_intermediate_tensors

    def gathered(runner: Any, *arguments: Any) -> Any:
        # vLLM's worker for CPUs makes no room for what the stage before sends: that is left to a
        # profile of the memory, which it does not need.
        if runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
        return gather(runner, *arguments)

    with mock.patch.object(GPUModelRunner, "sync_and_gather_intermediate_tensors", gathered):
        rounds_process.main(told)
