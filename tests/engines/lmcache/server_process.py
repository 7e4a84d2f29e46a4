"""LMCache's server, as its own program starts it, whose log has the lines of the package under test."""

from __future__ import annotations

import logging
import runpy

if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("rackline").setLevel(logging.INFO)
    runpy.run_module("lmcache.v1.multiprocess.server", run_name="__main__")
