"""What a demonstration leaves on the machine: its processes and its files in /dev/shm."""

import os
import pathlib
import subprocess

SHARED_MEMORY = pathlib.Path("/dev/shm")

# Far more than a run takes on a slow machine: it is there to end a hang, not to measure.
LIMIT_S = 900


def build() -> pathlib.Path:
    """Builds the release command, and returns its path."""
    subprocess.run(["cargo", "build", "--release", "--locked"], check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    return (target / "release" / "rackline").resolve(strict=True)


def processes(binary: pathlib.Path) -> dict[int, list[str]]:
    """Arguments of every live process that runs `binary`, by process id."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if os.readlink(folder / "exe") != str(binary):
                continue
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # It ended meanwhile, or belongs to somebody else.
            continue
        found[int(folder.name)] = [argument.decode() for argument in arguments if argument]
    return found


def parent(pid: int) -> int | None:
    """The parent of process `pid`; None when it has ended."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name before it is in parentheses and may contain anything.
    return int(stat.rpartition(")")[2].split()[1])


def files() -> set[str]:
    """Names in shared memory that are ours."""
    return {entry.name for entry in SHARED_MEMORY.iterdir() if "rackline" in entry.name}


class Traces:
    """What is there before a run, to compare with what is there after it."""

    def __init__(self, binary: pathlib.Path):
        self.binary = binary
        self.processes = processes(binary)
        self.files = files()

    def left(self) -> list[str]:
        """What came since and is still there, for people to read."""
        lines = [
            f"process {pid}: {' '.join(arguments)}"
            for pid, arguments in sorted(processes(self.binary).items())
            if pid not in self.processes
        ]
        return lines + [f"file {SHARED_MEMORY / name}" for name in sorted(files() - self.files)]
