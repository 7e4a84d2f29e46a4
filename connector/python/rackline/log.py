"""What the native half has to say, in Python's ``logging``: under ``rackline.native``.

Lines of INFO and above are passed on; ``RACKLINE_LOG`` (``off``, ``error``, ``warn``, ``info``, ``debug``,
``trace``), read when the process first attaches to a pool, says otherwise. What is shown of them is up to
the loggers of the process, as always."""

from __future__ import annotations

import atexit
import logging
import threading

from rackline._native import begin_log, end_log, next_log_line

# How long the end of a program waits for its last lines.
END_S = 1.0

_ends: list[threading.Thread] = []


def start() -> None:
    """Has the lines of this process passed on, if they are not yet. Called when it attaches to a pool."""
    if not begin_log():
        return
    thread = threading.Thread(target=_pass_on, name="rackline-log", daemon=True)
    # In a child made by ``fork`` what is there is its parent's.
    if not _ends:
        atexit.register(_end)
    _ends[:] = [thread]
    thread.start()


def _pass_on() -> None:
    while (line := next_log_line()) is not None:
        level, target, text = line
        name = "rackline.native." + target.replace("::", ".")
        logging.getLogger(name).log(level, "Rackline: %s", text)


def _end() -> None:
    end_log()
    for thread in _ends:
        thread.join(END_S)
