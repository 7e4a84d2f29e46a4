"""What the native half has to say is in Python's logging, and nothing ever waits for that."""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import unittest

import rackline
from region import Region

WAIT_S = 30

AT_THE_END = """
import logging, sys
import rackline
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
pool = rackline.Pool(sys.argv[1], 0)
"""


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.put(record)


class Log(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("16MiB", "4KiB"))
        logger, self.lines = logging.getLogger("rackline"), Lines()
        logger.addHandler(self.lines)
        self.addCleanup(logger.removeHandler, self.lines)
        self.addCleanup(logger.setLevel, logger.level)
        logger.setLevel(logging.INFO)

    def wait_for(self, text: str) -> logging.LogRecord:
        while True:
            record = self.lines.records.get(timeout=WAIT_S)
            if text in record.getMessage():
                return record

    def test_lines_of_the_libraries_are_in_logging(self) -> None:
        # A heap that is used for the first time is built.
        with rackline.Pool(self.region.path, 0):
            record = self.wait_for("rebuilt the heap's directory")
        self.assertEqual(record.levelno, logging.INFO)
        self.assertTrue(record.name.startswith("rackline.native.kv_cache"), record.name)
        self.assertIn("node=0", record.getMessage())

    def test_a_forked_child_has_a_log_of_its_own_when_it_attaches(self) -> None:
        with rackline.Pool(self.region.path, 0):
            self.wait_for("rebuilt the heap's directory")
            child = os.fork()
            if child == 0:
                try:
                    with rackline.Pool(self.region.path, 1):
                        self.wait_for("node=1")
                    os._exit(0)
                finally:
                    os._exit(1)
            _, status = os.waitpid(child, 0)
            self.assertEqual(os.waitstatus_to_exitcode(status), 0)

    def test_a_program_that_ends_neither_hangs_nor_loses_its_last_lines(self) -> None:
        ended = subprocess.run(
            [sys.executable, "-c", AT_THE_END, self.region.path],
            stdout=subprocess.PIPE,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
        self.assertIn("rebuilt the heap's directory", ended.stdout)


if __name__ == "__main__":
    unittest.main()
