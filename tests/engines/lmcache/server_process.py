"""LMCache's server, as its own program starts it. It opens models when the file of RACKLINE_OPENS_WHEN is there,
if that is set."""

from __future__ import annotations

import os
import pathlib
import runpy
import time

from rackline.lmcache import l2_openings


def open_when_there(file: pathlib.Path) -> None:
    """Weights are read for as long as there is no such file."""
    digest_of_folder = l2_openings.digest_of_folder

    def slowly(model: str) -> str:
        while not file.exists():
            time.sleep(0.01)
        return digest_of_folder(model)

    l2_openings.digest_of_folder = slowly


if __name__ == "__main__":
    if opens_when := os.environ.get("RACKLINE_OPENS_WHEN"):
        open_when_there(pathlib.Path(opens_when))
    runpy.run_module("lmcache.v1.multiprocess.server", run_name="__main__")
