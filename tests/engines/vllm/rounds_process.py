"""An engine in a process of its own that serves the same prompts again and again, as a program
(`starter.py`): it is told what to do, and writes what it did in each round as one line of JSON."""

from __future__ import annotations

import json
from typing import Any

from engine import engine, prompts

COUNTED = ("lookup_hit_blocks", "loaded_blocks", "saved_blocks", "failed_load_blocks")
DRAFTED = ("num_draft_tokens", "num_accepted_tokens")


def main(told: dict[str, Any]) -> None:
    given = told.get("given") or prompts(*told["prompts"])
    rounds = []
    with engine(told["model"], told["settings"], **told.get("options", {})) as own:
        for forgets in told["rounds"]:
            if forgets:
                own.forget()
            answers = []
            at_once = told.get("at_once", len(given))
            for start in range(0, len(given), at_once):
                answers += own.answers(given[start : start + at_once], told.get("tokens", 24))
            done = {name: own.counter(name) for name in COUNTED}
            done |= {name: own.counter(name, "vllm:spec_decode_") for name in DRAFTED}
            done["tokens"] = [answer.tokens for answer in answers]
            done["cached_tokens"] = sum(answer.cached_tokens for answer in answers)
            done["finish_reasons"] = sorted({str(answer.finish_reason) for answer in answers})
            rounds.append(done)
    print(json.dumps(rounds), flush=True)
