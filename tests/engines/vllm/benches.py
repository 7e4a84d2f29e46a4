"""Makes the benchmarks of `benches` modules that tests can import."""

from __future__ import annotations

import pathlib
import sys

_FOLDER = pathlib.Path(__file__).resolve().parents[3] / "benches"
sys.path += [str(_FOLDER / "vllm"), str(_FOLDER / "python"), str(_FOLDER / "engines")]
