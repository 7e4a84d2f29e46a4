"""What builds the wheel: maturin, with the builder's home directory kept out of it.

A panic names the source file that it is in. For our own files that is a path within the repository; for
those of dependencies it begins with Cargo's home, so that every user's wheel would have other bytes. The
compiler is told to call that place ``/cargo``: by Cargo's configuration, whose lists are joined and whose
items may have spaces in them, as homes may. A user's own ``RUSTFLAGS``, or build arguments in pip's
``--config-settings``, go before this.
"""

import json
import os
import pathlib
import shlex

from maturin import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

home = os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo"
flags = json.dumps([f"--remap-path-prefix={home}=/cargo"], ensure_ascii=False)
arguments = shlex.split(os.environ.get("MATURIN_PEP517_ARGS", ""))
os.environ["MATURIN_PEP517_ARGS"] = shlex.join([*arguments, "--config", f"build.rustflags={flags}"])
