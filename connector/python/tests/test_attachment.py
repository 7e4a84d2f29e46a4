"""The attachment of a process that loses the pool, with stand-ins for the pool."""

from __future__ import annotations

import os
import threading
import time
import unittest
from unittest import mock

import rackline
from rackline.engines import attachment as attachments
from rackline.engines.attachment import Attachment, Renewal
from rackline.engines.settings import PoolSettings

WAIT_S = 20


class Pool:
    """One that is left when it is told, and whose close may wait."""

    def __init__(self) -> None:
        self.membership, self.closed = "member", False
        self.may_close = threading.Event()
        self.may_close.set()

    def metrics(self) -> dict[str, str]:
        if self.closed:
            raise rackline.Closed("closed")
        return {"membership": self.membership}

    def close(self) -> None:
        self.may_close.wait(WAIT_S)
        self.closed = True


def settings(region: str = "/one") -> PoolSettings:
    return PoolSettings.of({"region": region, "node": 1})


class Attachments(unittest.TestCase):
    def setUp(self) -> None:
        self.pools: list[Pool] = []
        self.errors: list[Exception] = []
        self.enterContext(mock.patch.object(rackline, "Pool", self.attach))
        for name in ("WATCH_EVERY_S", "TRY_EVERY_S"):
            self.enterContext(mock.patch.object(attachments, name, 0.01, create=True))

    def attach(self, *arguments: object, **options: object) -> Pool:
        if self.pools and self.errors:
            raise self.errors.pop()
        self.pools.append(Pool())
        return self.pools[-1]

    def attachment(self, region: str = "/one") -> Attachment:
        attachment = Attachment(settings(region))
        self.addCleanup(attachment.close)
        return attachment

    def wait_until(self, is_so) -> None:
        ends_s = time.monotonic() + WAIT_S / 4
        while not is_so():
            self.assertLess(time.monotonic(), ends_s, "it took too long")
            time.sleep(0.005)

    def test_it_attaches_again_where_nobody_calls(self) -> None:
        attachment = self.attachment()
        self.pools[0].membership = "declared_dead"
        self.wait_until(lambda: attachment.life == 1)
        self.assertTrue(self.pools[0].closed)
        self.assertIs(attachment.pool, self.pools[1])

    def test_no_error_ends_the_tries(self) -> None:
        attachment = self.attachment()
        self.errors = [OSError("no more files"), rackline.Error("not yet"), ValueError("what")]
        self.pools[0].membership = "declared_dead"
        with self.assertLogs("rackline", "WARNING") as logs:
            attachment.is_out(rackline.MembershipLost("dead"), 0)
            self.wait_until(lambda: attachment.life == 1)
        self.assertIn("not attached to the pool again yet: what", logs.output[0])

    def test_a_closed_session_is_out_only_where_it_is_older(self) -> None:
        attachment = self.attachment()
        closed = rackline.Closed("closed")
        self.assertFalse(attachment.is_out(closed, 0))
        self.pools[0].membership = "declared_dead"
        self.pools[0].may_close.clear()
        self.wait_until(lambda: attachment.is_out(closed, 0))
        self.pools[0].may_close.set()
        self.wait_until(lambda: attachment.life == 1)
        self.assertTrue(attachment.is_out(closed, 0))
        self.assertFalse(attachment.is_out(closed, 1))

    def test_the_end_of_one_pool_stalls_no_call_of_another(self) -> None:
        one, other = self.attachment("/one"), self.attachment("/other")
        self.pools[0].may_close.clear()
        end = threading.Thread(target=one.close)
        end.start()
        asked = threading.Thread(target=other.is_out, args=(rackline.MembershipLost("dead"), 0))
        asked.start()
        asked.join(WAIT_S / 4)
        stalled = asked.is_alive()
        child = os.fork()
        if child == 0:
            # A hang is killed below.
            one.is_out(rackline.Closed("closed"), 0)
            one.close()
            Attachment(settings("/other"))
            os._exit(0)
        ends_s, status = time.monotonic() + WAIT_S / 4, (0, 0)
        while status == (0, 0) and time.monotonic() < ends_s:
            status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.005)
        if status == (0, 0):
            os.kill(child, 9)
            os.waitpid(child, 0)
        self.pools[0].may_close.set()
        end.join()
        self.assertFalse(stalled)
        self.assertEqual(status, (child, 0), "the forked child hangs")

    def test_the_end_waits_for_the_thread_that_attaches(self) -> None:
        attachment = self.attachment()
        goes_on, begun = threading.Event(), threading.Event()

        def prepare(pool: object) -> None:
            begun.set()
            goes_on.wait(WAIT_S)

        attachment.prepare(prepare)
        self.pools[0].membership = "declared_dead"
        # It finds out by a call or by itself.
        attachment.is_out(rackline.MembershipLost("dead"), 0)
        self.assertTrue(begun.wait(WAIT_S))
        end = threading.Thread(target=attachment.close)
        end.start()
        end.join(0.2)
        early = not end.is_alive()
        goes_on.set()
        end.join(WAIT_S)
        self.assertFalse(early)
        self.assertTrue(all(pool.closed for pool in self.pools))

    def test_a_session_that_cannot_be_opened_anew_is_tried_again(self) -> None:
        attachment = mock.Mock(life=0)
        renewal = Renewal(attachment)
        tries: list[int] = []

        def open_sessions() -> None:
            tries.append(1)
            if len(tries) < 3:
                raise RuntimeError("no memory")

        self.assertFalse(renewal.renew(open_sessions))
        self.assertEqual(tries, [])
        attachment.life = 1
        with self.assertLogs("rackline", "WARNING") as logs:
            self.wait_until(lambda: renewal.renew(open_sessions))
        self.assertEqual((len(tries), len(logs.output), renewal.life), (3, 1, 1))
        self.assertFalse(renewal.renew(open_sessions))


if __name__ == "__main__":
    unittest.main()
