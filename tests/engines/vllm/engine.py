"""Engines for tests: one after another, in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

# Scheduler and worker in this process; nothing is fetched or reported. With more threads than cores
# the engine crawls on a busy machine.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    OMP_NUM_THREADS="1",
    VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
)

BLOCK_TOKENS = 32


@dataclasses.dataclass
class Answer:
    """What a request got."""

    tokens: list[int]
    cached_tokens: int
    finish_reason: str | None


class Engine:
    """An engine, and what it did with the pool."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def answers(
        self,
        prompts: list[list[int]],
        tokens: int = 24,
        salt: str | None = None,
        lora: Any = None,
    ) -> list[Answer]:
        params = greedy(max_tokens=tokens)
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        if salt is not None:
            given = [{**prompt, "cache_salt": salt} for prompt in given]
        outputs = self.llm.generate(given, params, use_tqdm=False, lora_request=lora)
        return [
            Answer(
                list(output.outputs[0].token_ids),
                output.num_cached_tokens or 0,
                output.outputs[0].finish_reason,
            )
            for output in outputs
        ]

    def serve(
        self,
        given: dict[str, list[int]],
        after_step: Callable[[int], None] = lambda step: None,
        **params: Any,
    ) -> dict[str, Any]:
        """The outputs of requests by their names, those aside that are aborted. ``after_step`` is
        called with the number of steps so far."""
        for name, prompt in given.items():
            self.begin(name, prompt, greedy(**params))
        outputs, steps = {}, 0
        while self.llm.llm_engine.has_unfinished_requests():
            for output in self.llm.llm_engine.step():
                if output.finished:
                    outputs[output.request_id] = output
            steps += 1
            after_step(steps)
        return outputs

    def begin(self, name: str, prompt: list[int], params: Any, **more: Any) -> None:
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, params, **more)

    def abort(self, name: str) -> None:
        self.llm.llm_engine.abort_request([name])

    @property
    def core(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    @property
    def connector(self) -> Any:
        """Its half in the scheduler."""
        return self.scheduler.connector.scheduler

    def drain(self, steps: int = 2000) -> None:
        """Steps until nothing of a request that ended is kept any more."""
        while self.scheduler.has_requests():
            self.llm.llm_engine.step()
            steps -= 1
            assert steps > 0, f"still kept: {list(self.scheduler.requests)}"

    def forget(self) -> None:
        """Empties the engine's own cache."""
        self.drain()
        assert self.llm.reset_prefix_cache()

    def free_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def counter(self, name: str, prefix: str = "vllm:rackline_") -> int:
        """One of the connector's counters; the engine tells them after a step."""
        found = [
            metric.value for metric in self.llm.get_metrics() if metric.name == prefix + name
        ]
        return int(sum(found))


def greedy(**params: Any) -> Any:
    """Parameters under which equal KV gives equal tokens."""
    from vllm import SamplingParams

    told = dict(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
    return SamplingParams(**{**told, **params})


# Python's own, in whose place `load` puts a function that does nothing.
freeze = gc.freeze


@functools.cache
def load() -> None:
    """Imports vLLM, and takes out of the start and the end of its engines what is nine tenths of their
    time, and none of their work.

    An engine collects garbage nine times, each time among the 700,000 objects of all modules. Here,
    objects that are there before it starts take no part (`freeze`), and its own always do. In all modules
    it looks for kernels to replace, which the first engine did. And to see what a model can do, it
    imports vLLM in another process when it sees the model for the first time."""
    gc.disable()
    import vllm.v1.worker.cpu_worker  # noqa: F401
    from vllm import LLM  # noqa: F401
    from vllm.model_executor.models import registry
    from vllm.platforms.cpu import CpuPlatform

    gc.freeze = gc.unfreeze = lambda: None
    replace_kernels = functools.cache(CpuPlatform.register_triton_kernel_overrides)
    CpuPlatform.register_triton_kernel_overrides = staticmethod(replace_kernels)
    registry._run_in_subprocess = lambda function: function()
    gc.enable()


@contextlib.contextmanager
def engine(
    model: str,
    settings: dict[str, Any] | None = None,
    *,
    role: str = "kv_both",
    policy: str = "recompute",
    cache_bytes: int = 64 << 20,
    transfer: Any = None,
    module: str = "rackline.vllm",
    connector: str = "RacklineConnector",
    **options: Any,
) -> Iterator[Engine]:
    """An engine with the connector, or without one when there are no settings, or with what
    ``transfer`` says. ``connector`` is the class of the connector, in ``module``."""
    from vllm import LLM
    from vllm.config import KVTransferConfig
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

    if settings is not None:
        transfer = KVTransferConfig(
            kv_connector=connector,
            kv_connector_module_path=module,
            kv_role=role,
            kv_load_failure_policy=policy,
            kv_connector_extra_config=settings,
        )
    defaults = dict(
        skip_tokenizer_init=True,
        dtype="float32",
        block_size=BLOCK_TOKENS,
        enforce_eager=True,
        max_model_len=1024,
        seed=0,
        disable_log_stats=False,
    )
    load()
    gc.collect()
    freeze()
    try:
        llm = LLM(
            model,
            kv_transfer_config=transfer,
            kv_cache_memory_bytes=cache_bytes,
            **{**defaults, **options},
        )
    except BaseException:
        # A worker may have its connector already, and the next engine would find it.
        ensure_kv_transfer_shutdown()
        cleanup_dist_env_and_memory()
        raise
    try:
        yield Engine(llm)
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def prompts(seed: int, *lengths: int) -> list[list[int]]:
    """Prompts of the tiny model's tokens."""
    dice = random.Random(seed)
    return [[dice.randrange(3, 500) for _ in range(length)] for length in lengths]
