"""Makes what the bench needs while there is a network, and starts it in namespaces of its own.

In there are no processes but the bench's, and all of them end with it, however it ends. Its /dev/shm is
empty, and gone afterwards. Its network is the loopback device: peers listen on all addresses."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import environment
import packages
from arguments import parse
from systems import SYSTEMS, place_of

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def main() -> None:
    options = parse(sys.argv[1:])
    unshare = namespaces()
    python = os.environ.get("RACKLINE_ENGINES_PYTHON") or made("environment.py")
    os.environ["RACKLINE_COMMAND"] = os.environ.get("RACKLINE_COMMAND") or command()
    model = printed([python, "-c", "import models; print(models.smollm2())"])
    folders, missing = {}, {}
    for name in options.systems:
        if (peer := SYSTEMS[name].peer) is not None:
            try:
                folders[name] = str(packages.packages(peer, place_of(peer)))
            except (OSError, subprocess.CalledProcessError) as error:
                missing[name] = f"could not be installed ({error}): run it again with a network"
    made_here = dict(python=python, model=model, packages=folders, missing=missing)
    bench = [sys.executable, str(HERE / "bench.py"), json.dumps(made_here), *sys.argv[1:]]
    sys.exit(run_to_its_end([*unshare, *bench]))


def run_to_its_end(command: list[str]) -> int:
    """`unshare` takes no notice of signals: what is in its group is told to end."""
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=killed_with_parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os.killpg(process.pid, signal.SIGTERM))
    return process.wait()


def killed_with_parent() -> None:
    """Also when this is killed. `unshare` then kills the bench, and the kernel what that has started."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def namespaces() -> list[str]:
    """The command that starts another one in namespaces of its own."""
    found = shutil.which("unshare")
    if found is None:
        sys.exit("benches/engines: there is no command `unshare`: install util-linux")
    told = [found, "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        told += ["--user", "--map-root-user"]
    if subprocess.run([*told, "true"], check=False).returncode != 0:
        sys.exit(
            "benches/engines: it may make no namespaces, which keep what peers open and leave to "
            "itself: run it as root, or where users may make namespaces"
        )
    return told


def command() -> str:
    """The `rackline` command, built as users build it."""
    build = ["cargo", "build", "--release", "--locked", "-p", "rackline-cli"]
    subprocess.run(build, cwd=ROOT, check=True, stdout=sys.stderr)
    target = os.environ.get("CARGO_TARGET_DIR") or str(ROOT / "target")
    return str(pathlib.Path(target) / "release" / "rackline")


def made(script: str) -> str:
    return printed([sys.executable, str(pathlib.Path(environment.__file__).with_name(script))])


def printed(command: list[str]) -> str:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    main()
