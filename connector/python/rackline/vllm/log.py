"""Where Rackline's lines go in a process of vLLM."""

from __future__ import annotations

import logging


def use_log_of_vllm() -> None:
    """Rackline's lines go where vLLM's go, unless the process has configured them."""
    own, engine = logging.getLogger("rackline"), logging.getLogger("vllm")
    if not own.hasHandlers():
        own.setLevel(engine.level)
        for handler in engine.handlers:
            own.addHandler(handler)
