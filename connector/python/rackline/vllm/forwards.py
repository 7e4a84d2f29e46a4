"""When an engine asks for nothing, told to the agent of its host, which writes to drives meanwhile.

The scheduler asks for blocks while it makes a step, and makes the next one when it has the output of an earlier one.
From the one to the other nothing is asked for: that is told as a forward. Its tokens are those of the oldest step
without an output, which is the one that ends it, also where steps are made ahead (async scheduling). What runs on a
GPU need not be known. Only prefetches, of requests that arrive, come at any time.
"""

from __future__ import annotations

import collections
import logging
import threading

import rackline
from rackline.vllm.messages import Step

logger = logging.getLogger(__name__)


class Forwards:
    """The forwards of an engine."""

    def __init__(self) -> None:
        self._session: rackline.Session | None = None
        self._told: rackline.Forwards | None = None
        self._opening: threading.Thread | None = None
        self._steps: collections.deque[Step] = collections.deque()
        """Those without an output, the oldest first."""
        self._runs = False
        """Whether a forward is told of that has not ended."""

    def follow(self, session: rackline.Session | None) -> None:
        """Reports by this session from now on, when a thread of the pool has had time for that."""
        if session is self._session:
            return
        self.close()
        self._session = session
        if session is None:
            return
        self._opening = threading.Thread(target=self._open, args=(session,), daemon=True)
        try:
            self._opening.start()
        except RuntimeError as error:
            self._are_not_reported(error)

    def _open(self, session: rackline.Session) -> None:
        try:
            told = session.report_forwards()
        except rackline.Error as error:
            # The engine leaves no window then.
            if session is self._session:
                self._are_not_reported(error)
            return
        if told is None:
            self._are_not_reported("64 processes of this host report theirs")
        elif session is self._session:
            self._told = told

    def made(self, step: Step) -> None:
        """All is asked for that this step needs."""
        self._steps.append(step)
        oldest = self._steps[0]
        if self._told is not None and not self._runs and oldest.computed_tokens > 0:
            self._runs = True
            self._told.begin(oldest.computed_tokens, oldest.prefix_tokens)

    def output_came(self) -> None:
        """That of the oldest step. The engine may ask for blocks now."""
        if self._steps:
            self._steps.popleft()
        if self._told is not None and self._runs:
            self._told.end()
        self._runs = False

    def close(self) -> None:
        self._session = self._told = None
        self._runs = False

    def _are_not_reported(self, why: object) -> None:
        logger.warning("Rackline: forwards are not reported to the agent: %s", why)
