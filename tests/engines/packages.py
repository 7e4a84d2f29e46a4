"""Packages of engines that need a GPU to run, for tests of the interfaces that they publish.

    python3 packages.py NAME      fetches what is missing, and prints the folder

Each folder beside this file that has a ``requirements.txt`` of exact versions is a NAME. The packages
lie in a folder of their own, for the path of the environment of ``vllm/environment.py``: in
``$RACKLINE_CACHE``, else ``~/.cache/rackline``. Nothing that they need for a GPU is fetched.
`benches/engines` has more such folders."""

from __future__ import annotations

import hashlib
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "vllm"))

from environment import cache_folder  # noqa: E402


def packages(name: str, beside: pathlib.Path = HERE) -> pathlib.Path:
    """The folder with the packages of an engine, made when it is not there."""
    requirements = beside / name / "requirements.txt"
    made_by = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder() / f"{name}-packages-{version}-{made_by}"
    if (folder / "complete").exists():
        return folder
    # One that was not completed begins anew.
    shutil.rmtree(folder, ignore_errors=True)
    print(f"tests/engines: makes {folder}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-deps"]
    command += ["--target", str(folder), "-r", str(requirements)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    (folder / "complete").touch()
    return folder


if __name__ == "__main__":
    print(packages(sys.argv[1]))
