"""A process whose node was declared dead is told so, in errors, metrics and the log, and attaches again."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import time
import unittest

from region import Region

PROCESS = pathlib.Path(__file__).with_name("member_process.py")
WAIT_S = 60


class Membership(unittest.TestCase):
    def declared_dead(self, what: str, count: int) -> list[str]:
        """What processes of a node write that is declared dead while they are stopped."""
        region = self.enterContext(Region("16MiB", "4KiB"))
        manager = region.lock_manager(0, "--fence", "none", "--declare-ms", "1500")
        self.addCleanup(manager.wait)
        self.addCleanup(manager.terminate)
        processes = [self.start(region, what) for _ in range(count)]
        said = ["".join(iter(process.stdout.readline, "ready\n")) for process in processes]
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        ends_s = time.monotonic() + WAIT_S
        while region.state(1) != "quarantined":
            self.assertLess(time.monotonic(), ends_s, "it is not declared dead")
        for process in processes:
            process.send_signal(signal.SIGCONT)
        for process in processes:
            process.stdin.write("go on\n")
            process.stdin.flush()
        for at, process in enumerate(processes):
            said[at] += process.communicate(timeout=WAIT_S)[0]
            self.assertEqual(process.returncode, 0, said[at])
        return said

    def start(self, region: Region, what: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(PROCESS), region.path, what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.kill)
        return process

    def test_processes_that_make_no_call_attach_again(self) -> None:
        for lines in self.declared_dead("idle", 2):
            self.assertIn("done\n", lines)

    def test_a_process_whose_node_was_declared_dead_says_so_and_attaches_again(self) -> None:
        (lines,) = self.declared_dead("busy", 1)
        self.assertIn("done\n", lines)
        warnings = [line for line in lines.splitlines() if " WARNING " in line]
        lost = [line for line in warnings if "lost its membership of the pool" in line]
        self.assertEqual(len(lost), 1, lines)
        self.assertIn("rackline.native.kv_cache", lost[0])
        self.assertIn("was declared dead", lost[0])
        again = [line for line in warnings if ": attached to the pool again" in line]
        self.assertEqual(len(again), 1, lines)


if __name__ == "__main__":
    unittest.main()
