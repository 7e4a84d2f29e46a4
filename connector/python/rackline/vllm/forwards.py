"""When an engine asks for nothing, told to the agent of its host, which writes to drives meanwhile.

The scheduler asks for blocks while it makes a step. When as many steps are under way as the engine has at once (two with
async scheduling), it waits for the output of the oldest, and makes the next step then. Meanwhile nothing is asked for:
that is told as a forward, with the tokens of the oldest step. What runs on a GPU need not be known. Only
prefetches, of requests that arrive, come at any time.
"""

from __future__ import annotations

import collections
import logging
import threading

import rackline
from rackline.vllm.messages import Step

logger = logging.getLogger(__name__)

RETRY_S = 10.0
"""How long after a pool that has no room for a report it is asked again."""


class Forwards:
    """The forwards of an engine that has ``steps_max`` steps under way at once."""

    def __init__(self, steps_max: int) -> None:
        self._session: rackline.Session | None = None
        self._told: rackline.Forwards | None = None
        self._opening: threading.Thread | None = None
        self._is_over = threading.Event()
        """Nobody waits for what the thread opens any more."""
        # An output that never comes, of a step that failed, is not waited for: later ones push it out.
        self._steps: collections.deque[Step] = collections.deque(maxlen=steps_max)
        """Those without an output, the oldest first."""

    def follow(self, session: rackline.Session | None) -> None:
        """Reports by this session from now on, when a thread of the pool has had time for that."""
        if session is self._session:
            return
        self.close()
        self._session = session
        if session is None:
            return
        self._is_over = is_over = threading.Event()
        self._opening = threading.Thread(target=self._open, args=(session, is_over), daemon=True)
        try:
            self._opening.start()
        except RuntimeError as error:
            self._are_not_reported(error)

    def _open(self, session: rackline.Session, is_over: threading.Event) -> None:
        """The engine leaves no window until it reports."""
        is_said = False
        while not is_over.is_set():
            try:
                told, why = session.report_forwards(), "64 processes of this host report theirs"
            except rackline.Busy as error:
                told, why = None, str(error)
            except rackline.Error as error:
                if not is_over.is_set():
                    self._are_not_reported(error)
                return
            if told is not None:
                if not is_over.is_set():
                    self._told = told
                return
            if not is_said:
                self._are_not_reported(f"{why}; this is tried again every {RETRY_S:.0f} s")
            is_said = True
            is_over.wait(RETRY_S)

    def made(self, step: Step) -> None:
        """All is asked for that this step needs."""
        self._steps.append(step)
        oldest = self._steps[0]
        waits = len(self._steps) == self._steps.maxlen
        if self._told is not None and waits and oldest.computed_tokens > 0:
            self._told.begin(oldest.computed_tokens, oldest.prefix_tokens)

    def output_came(self) -> None:
        """That of the oldest step. The engine may ask for blocks now."""
        if self._steps:
            self._steps.popleft()
        if self._told is not None:
            # Does nothing where no forward was told of.
            self._told.end()

    def close(self) -> None:
        self._is_over.set()
        self._session = self._told = None

    def _are_not_reported(self, why: object) -> None:
        logger.warning("Rackline: forwards are not reported to the agent: %s", why)
