"""Second turns of conversations whose pool has room for a tenth of them, with a drive behind it.

Each conversation has a first turn, which the engine computes. Its second turn begins with the first one and
its answer, so all blocks of the first can be found. The time to the first token of second turns is measured:

- from the drive: the blocks have left the pool;
- the same from a region that was formatted anew in the middle, where the pool has nothing;
- from the pool: the same prompt once more, a moment later;
- computed, by an engine without a connector.

The answers of second turns have to be equal in all of them. No time is judged.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from typing import Any

from drive_agent import DriveAgent
from engine import BLOCK_TOKENS, engine, greedy, prompts
from models import smollm2
from region import Region

ANSWER_TOKENS = 8
QUESTION_TOKENS = 40
# The engine's own prefix cache is off: what is found comes from the pool.
SIZES = dict(max_model_len=2048, cache_bytes=256 << 20, enable_prefix_caching=False)
# SmolLM2-135M in float32: 30 layers, K and V, 3 heads of 64 numbers.
BLOCK_BYTES = 30 * 2 * 3 * 64 * 4 * BLOCK_TOKENS
CHUNK_BYTES = 8 << 20
# A lookup waits for the drive for as long as it takes: the time is what is measured.
SETTINGS = {"node": 0, "restore_wait_ms": 60_000, "lookup_timeout_ms": 60_000}


@dataclasses.dataclass
class Turn:
    """A second turn: its prompt, its answer, and times to the first token in milliseconds."""

    prompt: list[int]
    answer: list[int] | None = None
    times_ms: dict[str, float] = dataclasses.field(default_factory=dict)


class Asking:
    """Asks one request after the other."""

    def __init__(self, own: Any) -> None:
        self._own, self._asked = own, 0

    def ask(self, prompt: list[int]) -> tuple[float, list[int]]:
        """The time to the first token in milliseconds, and the answer."""
        self._asked += 1
        started_s, first_ms = time.perf_counter(), None
        self._own.begin(str(self._asked), prompt, greedy(max_tokens=ANSWER_TOKENS))
        while True:
            for output in self._own.llm.llm_engine.step():
                answer = list(output.outputs[0].token_ids)
                if answer and first_ms is None:
                    first_ms = (time.perf_counter() - started_s) * 1000
                if output.finished:
                    # What it saves is in the pool before the next one is asked.
                    self._own.drain()
                    return first_ms, answer

    def second(self, turn: Turn, where: str) -> None:
        """Asks a second turn. Its answer is that of the times before."""
        turn.times_ms[where], answer = self.ask(turn.prompt)
        if turn.answer is not None and answer != turn.answer:
            raise SystemExit(f"other tokens {where}: {answer}, and {turn.answer} before")
        turn.answer = answer


def tell(own: Any, when: str) -> None:
    """Says how many blocks came from the drive, and why others were not found."""
    asked, found = own.counter("lookup_blocks"), own.counter("lookup_hit_blocks")
    restored = own.counter("lookup_restored_blocks")
    print(f"{when}: {asked} blocks asked for, {found} found, {restored} of them on the drive")
    for metric in own.llm.get_metrics():
        if metric.name == "vllm:rackline_not_found_by_reason" and metric.value:
            print(f"  requests that found less: {metric.value} {metric.labels['reason']}")


def pool_mib(conversations: int, blocks: int) -> tuple[int, float]:
    """The size of a region whose chunks have room for a tenth of all blocks, and for two prompts at least;
    and how much of the conversations it has room for."""
    each = CHUNK_BYTES // BLOCK_BYTES
    chunks = -(-max(conversations * blocks // 10, 2 * blocks) // each)
    return (chunks + 1) * CHUNK_BYTES >> 20, chunks * each / (conversations * blocks)


def measure(conversations: int, prompt_tokens: int, drive: str) -> tuple[list[Turn], float]:
    firsts = [[token % 40000 + 100 for token in it] for it in prompts(3, *[prompt_tokens] * conversations)]
    asked = prompts(4, *[QUESTION_TOKENS] * conversations)
    blocks = (prompt_tokens + ANSWER_TOKENS + QUESTION_TOKENS) // BLOCK_TOKENS
    mib, share = pool_mib(conversations, blocks)
    size = f"{4 * conversations * blocks * BLOCK_BYTES >> 20}MiB"
    model, turns = smollm2(), []

    def region() -> Region:
        # Descriptors for shorter blocks than these, so that only room for payload is short.
        block = f"{BLOCK_BYTES // 4}B"
        return Region(f"{mib}MiB", block, nodes=1, chunk=f"{CHUNK_BYTES}B", drive_bytes=size)

    half = conversations // 2
    with region() as pool:
        agent = DriveAgent(pool.path, drive, size)
        try:
            with engine(model, {**SETTINGS, "region": pool.path}, **SIZES) as own:
                asking = Asking(own)
                for first, question in zip(firsts, asked, strict=True):
                    _, answer = asking.ask(first)
                    turns.append(Turn([*first, *answer, *question]))
                agent.wait_until_announced(conversations * (prompt_tokens // BLOCK_TOKENS))
                for turn in turns[:half]:
                    asking.second(turn, "drive")
                    asking.second(turn, "pool")
                tell(own, "first half")
        finally:
            agent.stop()
    with region() as pool:
        agent = DriveAgent(pool.path, drive, size)
        try:
            agent.wait_until_announced(conversations * (prompt_tokens // BLOCK_TOKENS))
            with engine(model, {**SETTINGS, "region": pool.path}, **SIZES) as own:
                asking = Asking(own)
                for turn in turns[half:]:
                    asking.second(turn, "drive, region formatted anew")
                    asking.second(turn, "pool")
                tell(own, "region formatted anew")
        finally:
            agent.stop()
    with engine(model, **SIZES) as plain:
        asking = Asking(plain)
        for turn in turns:
            asking.second(turn, "computed")
    return turns, share


def main() -> None:
    told = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    told.add_argument("--conversations", type=int, default=24)
    told.add_argument("--prompt-tokens", type=int, default=1000, help="of a first turn")
    told.add_argument("--drive", help="a folder on a drive; one beside the temporary files otherwise")
    options = told.parse_args()
    with tempfile.TemporaryDirectory(dir=options.drive) as drive:
        turns, share = measure(options.conversations, options.prompt_tokens, drive)
    lengths = {len(turn.prompt) for turn in turns}
    print(f"second turns of {max(lengths)} tokens, {options.conversations} conversations")
    print(f"the pool has room for {share:.0%} of their blocks; the answers are equal")
    print("| time to first token | median | least | most | requests |\n|---|---|---|---|---|")
    for where in ("pool", "drive", "drive, region formatted anew", "computed"):
        times = [turn.times_ms[where] for turn in turns if where in turn.times_ms]
        middle, least, most = statistics.median(times), min(times), max(times)
        print(f"| {where} | {middle:.0f} ms | {least:.0f} ms | {most:.0f} ms | {len(times)} |")


if __name__ == "__main__":
    main()
