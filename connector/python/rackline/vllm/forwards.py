"""When a rank computes, told to the agent of its host, which writes to drives meanwhile.

On a GPU the end of a forward is not known when the engine says that its save begins: the kernels are
launched then, and not done. Such a rank reports nothing.
"""

from __future__ import annotations

import logging

import rackline
from rackline.vllm.messages import Step

logger = logging.getLogger(__name__)


class Forwards:
    """The forwards of a rank."""

    def __init__(self) -> None:
        self._told: rackline.Forwards | None = None

    def open(self, session: rackline.Session | None) -> None:
        """The process attached to the pool; ``session`` is one of the rank, unless it reports nothing."""
        self._told = None
        if session is None:
            return
        try:
            self._told = session.report_forwards()
        except rackline.Error as error:
            # The engine leaves no window then (VLLM-W6).
            logger.warning("Rackline: forwards are not reported to the agent: %s", error)

    def begin(self, step: Step) -> None:
        if self._told is not None and step.computed_tokens > 0:
            self._told.begin(step.computed_tokens, step.prefix_tokens)

    def end(self) -> None:
        if self._told is not None:
            self._told.end()

    def close(self) -> None:
        self._told = None
