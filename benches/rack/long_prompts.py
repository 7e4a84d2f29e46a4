"""Long prompts whose KV is on drives: restored, or computed again, at what load, and at what cost.

Tutti (arXiv:2605.03375) asks these questions of a cache on drives alone. Here drives stand behind a pool.
"""

import itertools
import json
import pathlib
import random
import tomllib

BLOCK_TOKENS = 64
H200 = ["--profile", "h200-llama-8b-fp8"]
LENGTHS = [2048, 8192, 16384, 32768, 65536, 131072]
DOCUMENTS = 6
# Requests for documents of so many tokens, each with a question behind it.
SHELF = {"documents": 300, "tokens": 16384, "question": 128, "answer": 128}
SHELF_ROOM = "10%"
SHELF_RATES = "0.5,1,1.25,1.5,1.75,2,2.25,2.5,2.75,3,3.25,3.5"
# The longest time to the first token of 99 in 100 requests that a service may promise.
PROMISE_MS = 2000
PRICES = pathlib.Path(__file__).parent / "prices.toml"
HOURS_OF_YEAR = 8766


def ask(path, prompts, answer, times_ms):
    """A trace of prompts, each with its blocks."""
    with open(path, "w", encoding="ascii") as file:
        for at_ms, ids in zip(times_ms, prompts):
            length = len(ids) * BLOCK_TOKENS
            line = {"timestamp": at_ms, "input_length": length, "output_length": answer}
            file.write(json.dumps({**line, "hash_ids": ids}) + "\n")


def by_length(figures):
    """Each document is asked for twice, the second time when the pool has it no more."""
    figures.say("## Long prompts: computed, from a drive, from the pool", "")
    figures.say("`rackline bench systems long-TOKENS.jsonl --rates 0.01 --links LINKS --systems SYSTEM`, and", "")
    figures.say(f"`{' '.join(H200)} --capacity-blocks ROOM`, with traces that `long_prompts.py` makes", "")
    rows = []
    for links in ["tract", "pcie5"]:
        for tokens in LENGTHS:
            count = tokens // BLOCK_TOKENS
            once = [list(range(it * count, (it + 1) * count)) for it in range(DOCUMENTS)]
            trace = figures.out / f"long-{tokens}.jsonl"
            ask(trace, once + once, 1, range(0, 2 * DOCUMENTS * 1000, 1000))
            means, shares = {}, {}
            for system, room in [
                ("direct", "unlimited"), ("rackline-drives", "34%"), ("rackline", "unlimited")
            ]:
                report = figures.bench(
                    f"long-{links}-{tokens}-{system}", "systems", str(trace), "--rates", "0.01",
                    *H200, "--links", links, "--capacity-blocks", room, "--systems", system,
                    told=False,
                )
                second = report["points"][0]["served"][DOCUMENTS:]
                means[system] = sum(it["ttft_ns"] for it in second) / len(second) / 1e6
                asked = sum(it["blocks"] for it in second)
                shares[system] = sum(it["from_drives"] for it in second) / asked
            trace.unlink()
            computed = means["direct"]
            rows.append(
                [links, tokens, f"{computed:.0f}", f"{means['rackline-drives']:.0f}"]
                + [f"{100 * shares['rackline-drives']:.0f}", f"{means['rackline']:.0f}"]
                + [f"{computed / means['rackline-drives']:.2f}"]
                + [f"{computed / means['rackline']:.2f}"]
            )
    figures.table(
        ["links", "prompt, tokens", "computed: TTFT mean, ms", "from drives, ms"]
        + ["blocks from drives, %", "from the pool, ms", "computed, of drives'"]
        + ["computed, of the pool's"],
        rows,
    )


def shelf(figures, requests):
    """Which document is asked for follows Zipf's law, with an exponent of 0.9. Arrivals are random."""
    drawn = random.Random(1)
    numbers = range(SHELF["documents"])
    weights = [1 / (number + 1) ** 0.9 for number in numbers]
    count, question = SHELF["tokens"] // BLOCK_TOKENS, SHELF["question"] // BLOCK_TOKENS
    free = SHELF["documents"] * count
    prompts = []
    for document in drawn.choices(numbers, weights, k=requests):
        of_document = range(document * count, (document + 1) * count)
        prompts.append([*of_document, *range(free, free + question)])
        free += question
    gaps_ms = (drawn.expovariate(1 / 1000) for _ in prompts)
    path = figures.out / "shelf.jsonl"
    ask(path, prompts, SHELF["answer"], map(int, itertools.accumulate(gaps_ms)))
    return path


def by_load(figures, requests):
    """Time to the first token by load, the load that a promise allows, and what it costs."""
    figures.say("## Documents of 16,384 tokens, by load", "")
    trace, peaks = shelf(figures, requests), []
    rows, asked_tokens = [], SHELF["tokens"] + SHELF["question"]
    prices = tomllib.loads(PRICES.read_text(encoding="utf-8"))
    for what, system, room in [
        ("no cache", "direct", "unlimited"),
        ("memory for 10 %", "rackline", SHELF_ROOM),
        ("memory for 10 %, drives", "rackline-drives", SHELF_ROOM),
        ("memory for all", "rackline", "unlimited"),
    ]:
        name = f"shelf-{system}-{room.strip('%')}"
        report = figures.bench(
            name, "systems", str(trace), "--rates", SHELF_RATES, *H200, "--links", "pcie5",
            "--capacity-blocks", room, "--systems", system, "--requests", str(requests),
        )
        kept = []
        for point in report["points"]:
            ttft, hits = point["ttft"], 100 * point["hits"] / point["blocks"]
            times = [f"{ttft[it]:.0f}" for it in ["mean_ms", "p99_ms"]]
            rows.append([what, point["rate"], *times, f"{hits:.1f}", point["from_drives"]])
            if ttft["p99_ms"] > PROMISE_MS:
                break
            kept.append(point["rate"])
        block_gb, blocks = report["block_bytes"] / 1e9, report["unique_blocks"]
        memory_gb = block_gb * (report["capacity_blocks"] or blocks) * (system != "direct")
        drive_gb = block_gb * blocks * (system == "rackline-drives")
        bought = memory_gb * prices["memory_per_gb"] + drive_gb * prices["drive_per_gb"]
        per_hour = 2 * prices["gpu_per_hour"] + bought / prices["years"] / HOURS_OF_YEAR
        most = max(kept, default=0)
        # Where even the highest load keeps the promise, this says too little.
        said = f"{most} or more" if len(kept) == len(report["points"]) else most or "none"
        cost = per_hour / (most * 3600 * asked_tokens) * 1e6 if most else None
        peaks.append((what, said, memory_gb, drive_gb, per_hour, cost))
    trace.unlink()
    figures.table(
        ["", "requests/s", "TTFT mean, ms", "99 %", "blocks hit, %", "blocks from drives"], rows
    )
    figures.say(f"### The load at which 99 in 100 wait for at most {PROMISE_MS} ms, and its cost", "")
    first = peaks[0][5]
    costs = [
        [what, said, f"{memory:.0f}", f"{drive:.0f}", f"{hour:.2f}"]
        + [f"{cost / first:.2f}" if cost and first else "-"]
        for what, said, memory, drive, hour, cost in peaks
    ]
    figures.table(
        ["", "requests/s", "memory, GB", "drives, GB", "cost of an hour (prices.toml)"]
        + ["cost of a prompt, of that without a cache"],
        costs,
    )
