"""What the connector's halves make of a pool that they do not take part in any more, and of one that they
attached to again, with stand-ins for the pool and the engine."""

from __future__ import annotations

import types
import unittest
from typing import Any
from unittest import mock

import rackline
import torch
from rackline.vllm.identity import Place
from rackline.vllm.messages import GroupLoad, LoadJob, SaveJob, Step
from rackline.vllm.scheduler import SchedulerHalf
from rackline.vllm.settings import Settings
from rackline.vllm.worker import WorkerHalf
from test_failed_loads import BLOCKS, CACHES, ENGINE, GIVEN, HANDLES, HASHES, LAYERS, Fetch, loaded


def lost(*arguments: Any, **options: Any) -> Any:
    raise rackline.MembershipLost("node 0 was declared dead")


class Lookup:
    """One that finds this prefix."""

    def __init__(self, prefix: Any) -> None:
        self._prefix = prefix

    def wait(self, timeout_ms: int | None = None) -> Any:
        return self._prefix


def prefix(name: bytes, count: int) -> Any:
    handles = b"".join(
        (name + bytes([number])).ljust(rackline.KEYLESS_HANDLE_BYTES) for number in range(count)
    )
    found = mock.MagicMock()
    found.__len__.return_value = count
    found.restored = 0
    found.keyless_handles.return_value = handles
    return found


class Attached:
    """An attachment whose pool has this session."""

    def __init__(self, **calls: Any) -> None:
        self.life = 0
        self.use(**calls)

    def use(self, **calls: Any) -> None:
        session = types.SimpleNamespace(**calls)
        self.pool = types.SimpleNamespace(
            session=lambda *arguments, **options: session, has_drives=False
        )

    def attach_again(self, **calls: Any) -> None:
        self.life += 1
        self.use(**calls)

    def is_out(self, error: rackline.Error, life: int) -> bool:
        return isinstance(error, rackline.MembershipLost)


class OneShare:
    """As :class:`rackline.Shares` of one session."""

    def __init__(self, sessions: list[Any]) -> None:
        (self._session,) = sessions

    def publish(self, *arguments: Any, **options: Any) -> Any:
        return self._session.publish(*arguments, **options)

    def fetch(self, handles: list[bytes], *arguments: Any, **options: Any) -> Any:
        (own,) = handles
        return self._session.fetch(own, *arguments, **options)


class Workers(unittest.TestCase):
    def test_nothing_is_loaded_or_saved_until_the_process_attached_again(self) -> None:
        attachment = Attached(fetch=lost, publish=lost)
        identity = mock.Mock(place=Place(0, 0, 0), places=1, block_bytes=2 * 64)
        caches = {name: torch.ones(BLOCKS, 4, 4) for name in LAYERS}
        with (
            mock.patch("rackline.vllm.worker.Attachment", return_value=attachment),
            mock.patch("rackline.vllm.parts.identity_of", return_value=identity),
        ):
            half = WorkerHalf(ENGINE, CACHES, Settings.of(GIVEN))
            # There is one share of each block.
            self.enterContext(mock.patch("rackline.Shares", OneShare))
            half.register(caches)
        step = Step(
            loads=[LoadJob("one", [GroupLoad(0, HASHES, {Place(0, 0, 0): HANDLES}, [1, 2])], [3])],
            saves=[SaveJob(7, "two", 0, b"c" * 32, 0, [4])],
        )
        with self.assertNoLogs("rackline", "WARNING"):
            half.begin_step(Step())
            half.start_loads(step)
            half.start_saves(step)
            half.finished(step)
        report = half.take_report()
        self.assertEqual(report.loaded, {"one": loaded(1, 0, False)})
        self.assertFalse(report.saved[7].complete)
        self.assertEqual(half.take_failed_blocks(), {1, 2})
        for cache in caches.values():
            self.assertEqual(cache[1:3].abs().sum(), 0, "what was not loaded is cleared")
        self.assertEqual(half.stats.take().data["not_attached_blocks"], 3)

        attachment.attach_again(fetch=lambda *arguments, **options: Fetch(2, None))
        half.begin_step(Step())
        half.start_loads(Step(loads=step.loads))
        half.finished(Step())
        self.assertEqual(half.take_report().loaded, {"one": loaded(1, 2, False)})
        self.assertEqual(half.stats.take().data["attached_again"], 1)


class Schedulers(unittest.TestCase):
    def setUp(self) -> None:
        self.attachment = Attached(lookup=lost)
        with mock.patch("rackline.vllm.scheduler.Attachment", return_value=self.attachment):
            self.half = SchedulerHalf(ENGINE, CACHES, Settings.of(GIVEN))
        self.half.sessions_of({(0, 0): [mock.Mock(place=Place(0, 0, 0), places=1, block_bytes=128)]})

    def request(self, name: str) -> Any:
        return mock.Mock(
            request_id=name,
            num_tokens=12,
            num_prompt_tokens=12,
            block_hashes=[bytes([number]) * 32 for number in range(3)],
            skip_reading_prefix_cache=False,
            kv_transfer_params=None,
            kv_hints=None,
        )

    def test_lookups_find_nothing_until_the_process_attached_again(self) -> None:
        with self.assertNoLogs("rackline", "WARNING"):
            self.assertEqual(self.half.matched_tokens(self.request("one"), 0), (0, False))
        self.assertEqual(self.half.stats.take().data["not_attached_lookups"], 1)
        found = prefix(b"new", 2)
        self.attachment.attach_again(lookup=lambda *arguments, **options: Lookup(found))
        self.assertEqual(self.half.matched_tokens(self.request("two"), 0), (8, True))

    def test_what_was_found_before_is_looked_up_again(self) -> None:
        old, new = prefix(b"old", 2), prefix(b"new", 1)
        self.attachment.attach_again(lookup=lambda *arguments, **options: Lookup(old))
        request = self.request("one")
        self.assertEqual(self.half.matched_tokens(request, 0), (8, True))
        # It got no room, and is asked about again.
        self.assertEqual(self.half.matched_tokens(request, 0), (8, True))
        self.attachment.attach_again(lookup=lambda *arguments, **options: Lookup(new))
        self.assertEqual(self.half.matched_tokens(request, 0), (4, True))
        blocks = types.SimpleNamespace(get_block_ids=lambda: [[5, 6, 7]])
        self.half.allocated(request, blocks, 4)
        (job,) = self.half._step.loads
        (load,) = job.groups
        self.assertEqual(load.handles, {Place(0, 0, 0): b"new\0".ljust(rackline.KEYLESS_HANDLE_BYTES)})
        old.release.assert_called()


if __name__ == "__main__":
    unittest.main()
