"""Where Rackline's lines go in a process of LMCache."""

from __future__ import annotations

import logging

from lmcache.logging import init_logger


def use_log_of_lmcache() -> None:
    """Rackline's lines go where LMCache's go, unless the process has configured them."""
    if not logging.getLogger("rackline").hasHandlers():
        init_logger("rackline")
