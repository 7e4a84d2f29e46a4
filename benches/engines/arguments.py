"""What a user asks the bench for. Refused here is what cannot be done, before anything starts."""

from __future__ import annotations

import argparse
import pathlib

import systems

EPILOG = """\
what is measured, for each prompt, one after the other:
  1. The prefill server gets the prompt, and computes one token.
  2. The decode server gets the same prompt after --pause-ms. Its first and its last token are timed.
A run is one system, with servers of its own. Each repetition runs all systems, in an order drawn anew.

what is checked:
  tokens     The answers are those of a single server without a connector. Others fail the bench.
  transfer   The decode computes no whole block of a prompt that the system was to transfer. A run in
             which it does is marked "fewer", and the bench fails.
  pressure   A run while other programs take more than --foreign-limit of the processors is thrown
             away. The bench fails when more than half of a system's runs are.

examples:
  benches/engines/run --repetitions 5 --json figures.json
  benches/engines/run --systems control,rackline,nixl --prompts 4
  benches/engines/run --keep-busy      on a machine that does other things, too
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benches/engines/run",
        description="Rackline beside other ways to hand KV over from a prefill server to a decode server.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--systems", metavar="A,B", help=f"some of {','.join(systems.SYSTEMS)} (all of them)")
    add("--short", action="store_true", help="control, rackline and example, once, with 3 prompts")
    add("--repetitions", type=at_least(1), metavar="N", help="runs of each system (3)")
    add("--prompts", type=at_least(2), metavar="N", help="measured prompts of a run (8)")
    add("--tokens", type=at_least(64), default=900, help="tokens of a prompt (%(default)s)")
    add("--answer", type=at_least(2), default=16, help="tokens of an answer (%(default)s)")
    add(
        "--pause-ms", type=at_least(0), default=1000, metavar="MS",
        help="between the two requests, in no figure: stores save after the first (%(default)s)",
    )  # fmt: skip
    add("--seed", type=int, default=1, help="of the prompts and of the order (%(default)s)")
    add(
        "--foreign-limit", type=percent, default=10.0, metavar="PERCENT",
        help="of the processors' time that other programs may take in a run (%(default)s)",
    )  # fmt: skip
    add("--keep-busy", action="store_true", help="keep the runs above the limit, and mark them")
    add("--json", type=new_file, metavar="FILE", help="write every figure of every run")
    add("--logs", type=folder, metavar="DIR", help="keep what the servers print")
    options = parser.parse_args(arguments)
    names = list(systems.SYSTEMS)
    if options.short:
        names = ["control", "rackline", "example"]
    if options.systems is not None:
        names = [name for name in options.systems.split(",") if name]
    if unknown := [name for name in names if name not in systems.SYSTEMS]:
        parser.error(
            f"--systems: there is no {unknown[0]!r}: choose from {','.join(systems.SYSTEMS)}"
        )
    if not names or len(set(names)) < len(names):
        parser.error("--systems: name each system once, and at least one")
    if options.tokens + options.answer > systems.MODEL_TOKENS:
        parser.error(
            f"--tokens and --answer: the servers take {systems.MODEL_TOKENS} tokens for both together"
        )
    options.systems = names
    options.repetitions = options.repetitions or (1 if options.short else 3)
    options.prompts = options.prompts or (3 if options.short else 8)
    return options


def at_least(least: int):
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} on")
        return int(text)

    return number


def percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage from 0 to 100")
    return value


def new_file(text: str) -> pathlib.Path:
    path = pathlib.Path(text).resolve()
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: name a file in a folder that is there")
    return path


def folder(text: str) -> pathlib.Path:
    path = pathlib.Path(text).resolve()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder: make it first")
    return path
