"""What the pool is worth to vLLM, and what it costs, on this machine in one run.

- Time to the first token of a prompt of 1,009 tokens, of which 992 are cached: computed anew, through
  the pool (both ways to load, and layer by layer), and through vLLM's own ExampleConnector, which keeps files. Its
  OffloadingConnector does not run on CPUs. The engine's own prefix cache is off.
- The share of the connector in the time of a step when nothing is found and nothing saved.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from typing import Any

from engine import engine, prompts
from models import smollm2
from region import Region

ROUNDS = 9
# Nothing is found in the engine's own prefix cache.
SIZES = dict(max_model_len=2048, cache_bytes=512 << 20, enable_prefix_caching=False)
PROMPT = [[token % 40000 + 100 for token in prompt] for prompt in prompts(77, 1009)]


def time_to_first_token(own: Any, rounds: int = ROUNDS, prompt: Any = PROMPT) -> dict[str, float]:
    """Median, fastest and slowest of the rounds, in milliseconds, after two that warm up."""
    times = []
    for number in range(rounds + 2):
        start = time.perf_counter()
        own.answers(prompt, tokens=1)
        if number >= 2:
            times.append((time.perf_counter() - start) * 1000)
    return dict(median=statistics.median(times), least=min(times), most=max(times))


def share_of_a_step(own: Any, tokens: int = 64) -> float:
    """Time in the connector's calls over the time of the steps, while eight requests decode whose
    prompts nobody has seen."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    halves = [own.llm.llm_engine.engine_core.engine_core.scheduler.connector]
    halves.append(get_kv_transfer_group())
    spent = 0.0
    depth = 0

    def timed(call):
        def wrapper(*arguments, **options):
            nonlocal spent, depth
            depth += 1
            start = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                depth -= 1
                if depth == 0:
                    spent += time.perf_counter() - start

        return wrapper

    for half in halves:
        for name in dir(type(half)):
            if not name.startswith("_") and callable(getattr(type(half), name)):
                with contextlib.suppress(AttributeError):
                    setattr(half, name, timed(getattr(half, name)))
    fresh = [[token + 5 for token in prompt] for prompt in prompts(78, *[100] * 8)]
    start = time.perf_counter()
    own.answers(fresh, tokens=tokens)
    return spent / (time.perf_counter() - start)


@contextlib.contextmanager
def with_example_connector(model: str, folder: str):
    from unittest import mock

    import vllm.config

    made = vllm.config.KVTransferConfig

    def example(**_: Any) -> Any:
        return made(
            kv_connector="ExampleConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"shared_storage_path": folder},
        )

    with mock.patch.object(vllm.config, "KVTransferConfig", example):
        with engine(model, {}, **SIZES) as own:
            yield own


def main() -> None:
    model = smollm2()
    results: dict[str, Any] = {}
    with engine(model, **SIZES) as own:
        results["computed anew"] = time_to_first_token(own)
    with Region("512MiB", "1536KiB", chunk="8MiB") as region:
        for load, layerwise in [("async", "off"), ("sync", "off"), ("sync", "both")] * 2:
            settings = {"region": region.path, "node": 0, "load": load, "layerwise": layerwise}
            with engine(model, settings, **SIZES) as own:
                name = f"pool, {load}, layerwise {layerwise}"
                results.setdefault(name, []).append(time_to_first_token(own))
                assert (own.counter("loaded_layers") > 0) == (layerwise == "both")
                assert own.counter("loaded_blocks") >= 31 * ROUNDS
                assert own.counter("failed_load_blocks") == 0
        settings = {"region": region.path, "node": 0}
        with engine(model, settings, role="kv_consumer", **SIZES) as own:
            results["connector's share of a step"] = share_of_a_step(own)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        with with_example_connector(model, folder) as own:
            results["ExampleConnector"] = time_to_first_token(own)
    with engine(model, **SIZES) as own:
        results["computed anew, again"] = time_to_first_token(own)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
