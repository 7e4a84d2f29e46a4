"""The prompts, and what a run does with them."""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any

from servers import Failed, Server
from systems import BLOCK_TOKENS

WARM_UP = 2
"""Prompts of each run that are not measured."""


@dataclasses.dataclass
class Measured:
    """A prompt, in milliseconds."""

    prefill_ms: float
    """Until the prefill server answered."""
    first_ms: float
    """From the request to the decode server to its first token."""
    both_first_ms: float
    """From the request to the prefill server to the first token of the decode server, without the pause
    between the two requests."""
    whole_ms: float
    """The same to the last token of the decode server."""
    computed_tokens: int
    """Of the prompt, by the decode server."""
    tokens: list[int]


def prompts(seed: int, count: int, tokens: int) -> list[list[int]]:
    """No two have a block in common. The first ``WARM_UP`` are not measured."""
    dice = random.Random(seed)
    return [[dice.randrange(100, 40_000) for _ in range(tokens)] for _ in range(count + WARM_UP)]


def expected(server: Server, given: list[list[int]], answer: int) -> list[list[int]]:
    """What a single server answers. Answers that are equal for two prompts would show no wrong KV."""
    told = [server.answer(**request(prompt, answer))["choices"][0]["token_ids"] for prompt in given]
    if len({tuple(tokens) for tokens in told}) < len(told):
        raise Failed(
            "two prompts have the same answer, so wrong KV would not be seen: give another --seed, or "
            "a longer --answer"
        )
    return told


def measure(
    prefill: Server,
    decode: Server,
    prompt: list[int],
    params: dict[str, Any] | None,
    *,
    answer: int,
    pause_s: float,
) -> Measured:
    before = decode.prompt_tokens()
    began = time.perf_counter()
    told = prefill.answer(**request(prompt, 1), **kv_transfer(params))
    prefilled = time.perf_counter()
    time.sleep(pause_s)
    asked = time.perf_counter()
    tokens: list[int] = []
    first = None
    body = dict(request(prompt, answer), **kv_transfer(told.get("kv_transfer_params")))
    for choice in decode.stream(**body):
        tokens += choice.get("token_ids") or []
        if tokens and first is None:
            first = time.perf_counter()
        if choice.get("finish_reason") not in (None, "length"):
            raise Failed(f"the decode server ended an answer by {choice['finish_reason']!r}")
    ended = time.perf_counter()
    if first is None:
        raise Failed("the decode server answered without a token")
    prefill_s = prefilled - began
    return Measured(
        prefill_ms=1000 * prefill_s,
        first_ms=1000 * (first - asked),
        both_first_ms=1000 * (prefill_s + first - asked),
        whole_ms=1000 * (prefill_s + ended - asked),
        computed_tokens=computed_since(decode, before, len(prompt)),
        tokens=tokens,
    )


def computed_since(decode: Server, before: dict[str, int], whole: int) -> int:
    """How many tokens of the prompt the decode computed. Its metrics may be told after its answer."""
    give_up_s = time.monotonic() + 5
    while True:
        now = decode.prompt_tokens()
        since = {source: count - before.get(source, 0) for source, count in now.items()}
        if sum(since.values()) >= whole:
            return since.get("local_compute", 0)
        if time.monotonic() > give_up_s:
            raise Failed(f"the decode server counts {since} of the {whole} tokens of a prompt")
        time.sleep(0.02)


def computed_at_most(transfers: bool, tokens: int) -> int:
    """What is left to a decode that gets all whole blocks: the last token is always computed."""
    return tokens - (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS if transfers else tokens


def request(prompt: list[int], answer: int) -> dict[str, Any]:
    return dict(
        model="model",
        prompt=prompt,
        max_tokens=answer,
        temperature=0,
        ignore_eos=True,
        return_token_ids=True,
    )


def kv_transfer(params: dict[str, Any] | None) -> dict[str, Any]:
    return {} if params is None else {"kv_transfer_params": params}
