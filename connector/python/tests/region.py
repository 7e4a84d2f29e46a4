"""A fresh region in /dev/shm for a test, made by the `rackline` command."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import tempfile


def command() -> str:
    """The `rackline` command: that of RACKLINE_COMMAND, else the one in the PATH."""
    found = os.environ.get("RACKLINE_COMMAND") or shutil.which("rackline")
    if found is None:
        raise SystemExit(
            "no rackline command: build it with `cargo build --release` and set RACKLINE_COMMAND to "
            "target/release/rackline"
        )
    return found


class Region:
    """A region whose locks need no lock manager. Gone when it is left."""

    def __init__(
        self,
        size: str,
        block: str,
        nodes: int = 2,
        chunk: str = "1MiB",
        drive_bytes: str | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.path = str(pathlib.Path(self._folder.name) / "region")
        arguments = ["format", "--region", self.path, "--create", size, "--block", block]
        arguments += ["--nodes", str(nodes), "--chunk", chunk, "--lock", "bakery", "--json"]
        if drive_bytes is not None:
            arguments += ["--drive-bytes", drive_bytes]
        made = subprocess.run([command(), *arguments], check=True, stdout=subprocess.PIPE)
        about = json.loads(made.stdout)
        self._uuid: str = about["uuid"]
        self.bytes: int = about["region_bytes"]
        # Blocks and objects lie behind.
        self.payload_offset: int = about["payload_offset"]

    def lock_manager(self, node: int, *arguments: str) -> subprocess.Popen[bytes]:
        """A lock manager, which watches for dead hosts. To be terminated."""
        place = ["--region", self.path, "--node", str(node)]
        return subprocess.Popen([command(), "lock-manager", *place, *arguments])

    def state(self, node: int) -> str | None:
        """What `status` says of a node; ``None`` when it has not joined. Takes up to 1.5 s."""
        said = subprocess.run(
            [command(), "status", "--json", "--region", self.path],
            check=False,
            stdout=subprocess.PIPE,
        )
        states = {found["node"]: found["state"] for found in json.loads(said.stdout)["nodes"]}
        return states.get(node)

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *exception: object) -> None:
        self._folder.cleanup()
        # What processes that were killed leave: nobody of their hosts comes again.
        for tier in pathlib.Path("/dev/shm").glob(f"rackline-{self._uuid}-*"):
            tier.unlink()
