"""An agent with one folder, behind a region of a test."""

from __future__ import annotations

import json
import subprocess
import time

from region import command

LIMIT_S = 300
"""Far longer than on a slow machine: to end a hang, not to measure."""


class DriveAgent:
    """An agent of node 0, which backs up every block as soon as it can."""

    def __init__(self, region: str, folder: str, size: str) -> None:
        self._region = region
        place = ["--region", region, "--node", "0", "--drive", f"{folder}:{size}"]
        soon = ["--admission", "all", "--backup-age-ms", "0", "--commit-ms", "5"]
        self._process = subprocess.Popen([command(), "agent", *place, *soon])

    def wait_until_announced(self, blocks: int) -> None:
        self.wait_until_backed_up(blocks)
        # The host knows its agent when it has seen two beats of it, of which there are four a second.
        time.sleep(1)

    def wait_until_backed_up(self, blocks: int) -> None:
        ends_s = time.monotonic() + LIMIT_S
        while (announced := self._announced()) < blocks:
            if time.monotonic() > ends_s:
                raise AssertionError(f"the agent has announced {announced} of {blocks} blocks")
            time.sleep(0.1)

    def _announced(self) -> int:
        said = subprocess.run(
            [command(), "status", "--json", "--region", self._region],
            check=True,
            stdout=subprocess.PIPE,
        )
        return sum(agent["announced_blocks"] for agent in json.loads(said.stdout)["agents"])

    def stop(self) -> int:
        """Stops it in order, and returns its exit status."""
        self._process.terminate()
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
