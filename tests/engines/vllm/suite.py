"""Runs tests, each module of them in a process of its own, as many at a time as there are cores.

    python suite.py TEST...

The processes are forked from this one, which has imported vLLM. What a module writes is shown when it has
ended, with the time that each of its longer tests took."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import tempfile
import time
import unittest
from typing import IO

import engine


SHOWN_S = 3.0
"""Tests that take longer are told of."""


class Timed(unittest.TextTestResult):
    """Tells how long tests took, and how much processor time they and their processes had."""

    def startTest(self, test: unittest.TestCase) -> None:
        self._began_s, self._began = time.monotonic(), processor_s()
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        took_s, used_s = time.monotonic() - self._began_s, processor_s() - self._began
        if took_s > SHOWN_S:
            self.stream.writeln(f"    took {took_s:.1f} s, of a processor {used_s:.1f} s")


def processor_s() -> float:
    """Processor time of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


class Running:
    """A process that runs tests of a module."""

    def __init__(self, name: str, tests: list[str]) -> None:
        self.name, self._began_s = name, time.monotonic()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(tests)

    def _run(self, tests: list[str]) -> None:
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.dup2(self._log.fileno(), 1)
            os.dup2(self._log.fileno(), 2)
            runner = unittest.TextTestRunner(verbosity=2, resultclass=Timed)
            ran = unittest.main(module=None, argv=["suite", *tests], testRunner=runner, exit=False)
            # Also when there are none: they were named.
            status = 0 if ran.result.wasSuccessful() and ran.result.testsRun > 0 else 1
            atexit._run_exitfuncs()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def show(self, status: int) -> None:
        """What it wrote, and how it ended."""
        self._log.seek(0)
        sys.stdout.write(self._log.read().decode(errors="replace"))
        self._log.close()
        ended = "passed" if status == 0 else f"FAILED with status {status}"
        print(f"=== {self.name}: {ended} in {time.monotonic() - self._began_s:.0f} s", flush=True)


def run(modules: dict[str, list[str]], at_a_time: int) -> list[str]:
    """Runs tests by their modules, and returns which modules failed."""
    waiting, running, failed = list(modules.items()), dict[int, Running](), []
    try:
        while waiting or running:
            while waiting and len(running) < at_a_time:
                started = Running(*waiting.pop(0))
                running[started.pid] = started
            pid, status = os.wait()
            if (ended := running.pop(pid, None)) is not None:
                ended.show(os.waitstatus_to_exitcode(status))
                if status != 0:
                    failed.append(ended.name)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGTERM)
    return failed


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    modules: dict[str, list[str]] = {}
    for test in sys.argv[1:]:
        modules.setdefault(test.partition(".")[0], []).append(test)
    engine.load()
    # No collection in any of the processes looks at what all of them share.
    engine.freeze()
    failed = run(modules, len(os.sched_getaffinity(0)))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
