"""An engine in processes of its own, as a program (`starter.py`): it is told what to do, and writes what
it did as one line of JSON, after a line `serving` when it begins."""

from __future__ import annotations

import json
from typing import Any

from engine import engine, prompts


def main(told: dict[str, Any]) -> None:
    options = told.get("options", {})
    if "tier" in told:
        from cpu_tiers import tiers

        options["transfer"] = tiers(told["tier"])
    with engine(told["model"], told.get("settings"), **options) as own:
        print("serving", flush=True)
        given = [prompt for part in told["prompts"] for prompt in prompts(*part)]
        tokens, cached = [], 0
        for start in range(0, len(given), told.get("batch", len(given))):
            batch = given[start : start + told.get("batch", len(given))]
            answers = own.answers(batch, tokens=told.get("tokens", 24))
            tokens += [answer.tokens for answer in answers]
            cached += sum(answer.cached_tokens for answer in answers)
            print("batch", flush=True)
        names = ["lookup_hit_blocks", "loaded_blocks", "saved_blocks", "failed_load_blocks"]
        names += ["loaded_layers", "saved_layers"]
        counters = {name: own.counter(name) for name in names}
    print(json.dumps({"tokens": tokens, "cached_tokens": cached, **counters}), flush=True)
