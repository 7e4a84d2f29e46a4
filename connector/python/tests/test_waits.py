"""Ctrl-C ends a wait, for whatever it waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable
from typing import Any

import rackline
from region import Region

BLOCK_BYTES = 1 << 18
NUMBERS = dict(block_tokens=16, layers=2, kv_heads=1, head_dim=64)
# A wait that Ctrl-C does not end takes days.
PATIENT_MS = 10**9
HUNG_S = 60


def name(number: int) -> list[bytes]:
    return [bytes([number]) * 32]


def one_block() -> rackline.BlockMemory:
    return rackline.block_memory(memoryview(bytearray(BLOCK_BYTES)).cast("B", (1, BLOCK_BYTES)))


def interrupted(wait: Callable[[], Any]) -> None:
    """Waits for what does not end. The process ends with it."""
    # A shell starts what runs in the background with this signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    os._exit(0)


def in_a_full_pool(path: str) -> tuple[rackline.Session, Any]:
    """A session whose publishes wait for memory, and what is kept meanwhile."""
    pool = rackline.Pool(path, 0)
    model = rackline.Model(name="tiny", revision="1", dtype="f16", **NUMBERS)
    session = pool.session(model, BLOCK_BYTES, chunk_timeout_ms=0, hold_ms=2_000_000)
    memory, held = one_block(), []
    while session.publish(name(len(held)), 0, memory, [0]).wait().published:
        held.append(session.lookup(name(len(held)), hold=True).wait())
    assert 0 < len(held) < 200
    return pool.session(model, BLOCK_BYTES, chunk_timeout_ms=PATIENT_MS), (pool, held)


def waits_for_memory(path: str) -> None:
    (patient, _kept), memory = in_a_full_pool(path), one_block()
    # The thread that copies has this one.
    first = patient.publish(name(200), 0, memory, [0])
    second = patient.publish(name(201), 0, memory, [0])
    assert first.wait(100) is None
    interrupted(second.wait)


def begins_what_waits_for_memory(path: str) -> None:
    (patient, _kept), memory = in_a_full_pool(path), one_block()
    interrupted(lambda: patient.by_caller().publish(name(200), 0, memory, [0]).wait())


def waits_for_a_publish_before(path: str) -> None:
    pool = rackline.Pool(path, 0, publishes_by_layers=True)
    model = rackline.Model(name="tiny", revision="1", dtype="f16", **NUMBERS)
    session, memory = pool.session(model, BLOCK_BYTES), one_block()
    first = session.publish_by_layers(name(0), [0], memory, [0])
    second = session.publish_by_layers(name(1), [0], memory, [0])
    second.layer_ready(0)
    second.finish()
    assert second.wait(100) is None and first is not None
    interrupted(second.wait)


class Waits(unittest.TestCase):
    def ends(self, of: str) -> None:
        with Region("16MiB", "256KiB") as region:
            code = f"import sys; from test_waits import {of}; {of}(sys.argv[1])"
            command = [sys.executable, "-c", code, region.path]
            done = subprocess.run(command, capture_output=True, text=True, timeout=HUNG_S, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "interrupted\n"), done.stderr)

    def test_for_memory(self) -> None:
        self.ends("waits_for_memory")

    def test_for_memory_where_the_calling_thread_works(self) -> None:
        self.ends("begins_what_waits_for_memory")

    def test_for_a_publish_by_layers_that_is_not_ended(self) -> None:
        self.ends("waits_for_a_publish_before")


if __name__ == "__main__":
    unittest.main()
