"""Runs the systems in turn, in the namespaces that `prepare` has made."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import load
import own_network
import report
from arguments import parse
from pressure import Watch
from report import Run
from servers import Failed, Processes, Server
from systems import BLOCK_TOKENS, DECODE, KV_BYTES_OF_TOKEN, MODEL_TOKENS, PREFILL, SYSTEMS, Control


@dataclasses.dataclass
class Bench:
    options: Any
    made: dict[str, Any]
    prompts: list[list[int]]
    expected: list[list[int]] = dataclasses.field(default_factory=list)

    def plain(self) -> None:
        """Has a single server without a connector answer all prompts."""
        with self._place("plain", None) as (processes, _):
            server = self._server(processes, "plain", None)
            server.wait_until_it_serves()
            self.expected = load.expected(server, self.prompts, self.options.answer)

    def repeat(self, runs: list[Run]) -> None:
        """All systems in turn, in an order that is drawn for each repetition."""
        names, repetitions = self.options.systems, self.options.repetitions
        dice = random.Random(self.options.seed)
        for repetition in range(1, repetitions + 1):
            for name in dice.sample(names, len(names)):
                say(f"{repetition} of {repetitions}: {name}")
                runs.append(self.run(name, repetition))
                say(f"    {runs[-1].in_words()}")

    def run(self, name: str, repetition: int) -> Run:
        if name in self.made["missing"]:
            return Run(name, repetition, failed=self.made["missing"][name])
        try:
            return self._run(SYSTEMS[name], repetition)
        except Failed as error:
            return Run(name, repetition, failed=str(error))

    def _run(self, kind: type[Control], repetition: int) -> Run:
        run = Run(kind.name, repetition)
        began_s = time.monotonic()
        packages = self.made["packages"].get(kind.name)
        with contextlib.ExitStack() as stack:
            place = self._place(f"{kind.name}-{repetition}", packages)
            processes, folder = stack.enter_context(place)
            room = (
                len(self.prompts) * (self.options.tokens + self.options.answer) * KV_BYTES_OF_TOKEN
            )
            system = kind(processes, folder, room)
            system.start(stack)
            prefill = self._server(processes, "prefill", system, PREFILL)
            decode = self._server(processes, "decode", system, DECODE)
            for server in (prefill, decode):
                server.wait_until_it_serves()
            run.start_s = time.monotonic() - began_s
            watch = Watch()
            for number, prompt in enumerate(self.prompts):
                if number == load.WARM_UP:
                    watch = Watch()
                got = load.measure(
                    prefill,
                    decode,
                    prompt,
                    system.to_prefill(),
                    answer=self.options.answer,
                    pause_s=self.options.pause_ms / 1000,
                )
                run.wrong_answers += got.tokens != self.expected[number]
                if number >= load.WARM_UP:
                    run.measured.append(got)
            run.pressure = watch.told()
        most = load.computed_at_most(kind.transfers, self.options.tokens)
        run.fewer = sum(got.computed_tokens > most for got in run.measured)
        run.is_busy = run.pressure.foreign_percent > self.options.foreign_limit
        run.is_thrown_away = run.is_busy and not self.options.keep_busy
        return run

    @contextlib.contextmanager
    def _place(self, name: str, packages: str | None):
        """Where a run has its files, and what ends its processes."""
        with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
            folder = pathlib.Path(made)
            logs = folder
            if self.options.logs is not None:
                logs = self.options.logs / name
                logs.mkdir(exist_ok=True)
            of_peer = None if packages is None else pathlib.Path(packages)
            with Processes(self.made["python"], of_peer, logs) as processes:
                yield processes, folder

    def _server(
        self, processes: Processes, name: str, system: Control | None, side: int = DECODE
    ) -> Server:
        # Equal for all systems. No prompt is asked twice, so the server's own cache finds nothing.
        arguments = ["--model", self.made["model"], "--served-model-name", "model"]
        arguments += ["--dtype", "float32", "--enforce-eager", "--block-size", str(BLOCK_TOKENS)]
        arguments += ["--max-model-len", str(MODEL_TOKENS), "--max-num-seqs", "8"]
        arguments += ["--kv-cache-memory-bytes", str(256 << 20)]
        arguments += ["--prefix-caching-hash-algo", "sha256_cbor"]
        arguments += ["--disable-uvicorn-access-log"]
        if system is None:
            return Server(processes, name, arguments)
        transfer, environment = system.connector(side), system.environment(side)
        return Server(processes, name, arguments, transfer, **environment)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    made, options = json.loads(sys.argv[1]), parse(sys.argv[2:])
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    own_network.enter()
    bench = Bench(options, made, load.prompts(options.seed, options.prompts, options.tokens))
    say("plain: what a single server answers")
    try:
        bench.plain()
    except Failed as error:
        sys.exit(f"benches/engines: the server without a connector: {error}")
    runs: list[Run] = []
    try:
        bench.repeat(runs)
    finally:
        # Also what there is when it is interrupted.
        print(report.table(options, runs), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(report.as_json(options, runs), indent=1) + "\n")
    if problems := report.problems(options, runs):
        sys.exit("\n".join(f"benches/engines: {problem}" for problem in problems))


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
