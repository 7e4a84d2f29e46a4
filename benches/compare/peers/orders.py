"""What the workers of all peers have in common: the driver's orders, one JSON object a line."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pathlib
import random
import signal
import socket
import sys
import time
from typing import Callable


def arguments(description: str | None, servers: list[str]) -> argparse.Namespace:
    """What the driver tells a server, or a worker."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--serve", choices=servers)
    parser.add_argument("--side", choices=["writer", "reader"])
    parser.add_argument("--place", type=pathlib.Path, required=True)
    parser.add_argument("--round-bytes", type=int, required=True)
    parser.add_argument("--run-bytes", type=int)
    return parser.parse_args()


def carry_out(make_desk: Callable[[], object]) -> None:
    """Makes a worker's desk, and has it carry out orders until there are no more: each is a method
    of the desk, given the order and returning the reply."""
    # The peer's own messages go to standard output, which is for replies.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    desk = make_desk()
    print(json.dumps({}), file=replies)
    for line in sys.stdin:
        try:
            order = json.loads(line)
            reply = getattr(desk, order["op"])(order)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies)


def since(wall_ns: int, cpu_ns: int) -> dict:
    """What has passed since then."""
    return {
        "wall_ns": time.perf_counter_ns() - wall_ns,
        "cpu_ns": time.process_time_ns() - cpu_ns,
    }


def content(number: int, size: int) -> bytes:
    """The bytes of a block: random ones that its number decides."""
    return random.Random(number).randbytes(size)


def end_with_parent() -> None:
    """For a child: this process is killed when the comparison ends, and its program has to go with
    it."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
