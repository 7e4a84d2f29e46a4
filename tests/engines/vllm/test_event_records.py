"""What an engine describes to ``rackline events``, and what it does not describe again."""

from __future__ import annotations

import unittest
from typing import Any
from unittest import mock

import msgspec
import rackline
from rackline.vllm.event_records import RECORD_BYTES, RECORDS_MAX, EventRecords
from rackline.vllm.groups import Group, Groups, Keeps
from rackline.vllm.messages import SaveJob
from rackline.vllm.events import StoredEvents
from rackline.vllm.statistics import RacklineStats

BLOCK_TOKENS = 16
LONG = 131_072 // BLOCK_TOKENS
GROUP = Group(0, Keeps.ALL, BLOCK_TOKENS, 1)


def save(blocks: int, first: int = 0) -> SaveJob:
    """A save of blocks from number ``first`` on."""
    hashes = b"".join(number.to_bytes(32, "little") for number in range(first, first + blocks))
    return SaveJob(1, "one", 0, hashes, first, list(range(blocks)))


def event(request: Any, job: SaveJob, blocks: int, group: Group) -> Any:
    """As long as vLLM's, of a model with a large vocabulary."""
    depths = range(job.first_depth, job.first_depth + blocks)
    names = [job.hashes[at * 32 : at * 32 + 32] for at in range(blocks)]
    tokens = [131_071] * (blocks * BLOCK_TOKENS)
    return {"type": "BlockStored", "block_hashes": names, "token_ids": tokens, "depths": list(depths)}


class Session:
    """Where the records go."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.outcome: str | None = "published"
        """What becomes of them; ``None`` while that is open."""
        self.busy = False
        self.publishes = 0

    def publish(self, hashes: bytes, depth: int, memory: Any, places: list[int]) -> Any:
        if self.busy:
            raise rackline.Busy("the queue is full")
        self.publishes += 1
        assert len(hashes) == 32 * len(places)
        return mock.Mock(poll=lambda: self._result(places))

    def _result(self, places: list[int]) -> Any:
        if self.outcome is None:
            return None
        return mock.Mock(outcomes=[self.outcome] * len(places))


class Records(unittest.TestCase):
    def setUp(self) -> None:
        self.now_s = 1000.0
        clock = mock.patch("rackline.vllm.told_lately.time.monotonic", lambda: self.now_s)
        clock.start()
        self.addCleanup(clock.stop)
        self.session, self.stats = Session(), RacklineStats()
        attachment = mock.Mock(life=1)
        attachment.pool.session.return_value = self.session
        index = mock.Mock()
        index.key_spaces.return_value = [bytes(24)] * 8
        for name, what in [("stored", event), ("rackline.block_memory", mock.Mock())]:
            patched = mock.patch(f"rackline.vllm.event_records.{name}", what)
            patched.start()
            self.addCleanup(patched.stop)
        self.records = EventRecords(attachment, index, GROUP, self.stats)

    def written(self) -> list[bytes]:
        """The hashes of the blocks that the first records in the memory describe."""
        found = []
        for place in range(RECORDS_MAX):
            content = bytes(self.records._bytes[place * RECORD_BYTES : (place + 1) * RECORD_BYTES])
            if not any(content):
                continue
            length = len(content.rstrip(b"\0"))
            # Zeros may belong to the record.
            for end in range(length, length + 16):
                try:
                    *_, runs = msgspec.msgpack.decode(content[:end])
                    break
                except msgspec.DecodeError:
                    continue
            for hashes, told in runs:
                assert len(told["token_ids"]) == len(hashes) // 32 * BLOCK_TOKENS
                found += [hashes[at : at + 32] for at in range(0, len(hashes), 32)]
        return found

    def test_a_prompt_of_128k_tokens_is_described_to_its_last_block(self) -> None:
        # Not one publish ends while it is described.
        self.session.outcome = None
        self.records.saved(None, save(LONG), certain=True)
        self.records.flush()
        self.assertEqual(self.stats.data, {})
        hashes = save(LONG).hashes
        expected = [hashes[at : at + 32] for at in range(0, len(hashes), 32)]
        self.assertEqual(sorted(self.written()), sorted(expected))
        self.assertEqual(self.session.publishes, 1, "records go through the queue together")

    def test_what_finds_the_queue_full_is_published_later(self) -> None:
        self.session.busy = True
        self.records.saved(None, save(LONG), certain=True)
        for _ in range(3):
            self.records.flush()
        self.session.busy = False
        for _ in range(2):
            self.records.flush()
        self.assertEqual((self.session.publishes, self.stats.data), (1, {}))
        self.assertEqual(len(set(self.written())), LONG)
        self.assertEqual(len(self.records._free), RECORDS_MAX, "places come back")

    def test_what_is_not_published_is_counted(self) -> None:
        self.session.outcome = "no_room"
        self.records.saved(None, save(100), certain=True)
        for _ in range(2):
            self.records.flush()
        self.assertEqual(self.stats.data, {"undescribed_blocks": 100})

    def test_what_was_described_lately_is_not_described_again(self) -> None:
        described = []
        self.records._describe = lambda _, part: described.append((part.first_depth, len(part.block_ids)))
        # The engine had the prompt in its own cache, and computed a few blocks more.
        for job, certain, expected in [
            (save(LONG), True, [(0, LONG)]),
            (save(LONG + 3), False, [(LONG, 3)]),
            (save(LONG + 3), False, []),
            (save(2, first=LONG), False, []),
            # Published anew, so it was evicted.
            (save(2, first=5), True, [(5, 2)]),
        ]:
            described.clear()
            self.records.saved(None, job, certain)
            self.assertEqual(described, expected)
        described.clear()
        # The publisher may have been started since.
        for later_s, blocks in [(200, 7), (70, LONG), (70, LONG)]:
            self.now_s += later_s
            self.records.saved(None, save(blocks), certain=False)
        self.assertEqual(described, [(0, 7), (7, LONG - 7), (0, 7)])


class Events(unittest.TestCase):
    def test_the_engine_tells_no_block_twice_within_a_minute(self) -> None:
        index = mock.Mock()
        index.look.side_effect = lambda request, first, last, now_s, hold: mock.Mock(
            found=lambda wait_ms: last - first
        )
        events = StoredEvents(index, Groups((GROUP,), BLOCK_TOKENS))
        with mock.patch("rackline.vllm.events.stored", lambda _, job, blocks, __: (job.first_depth, blocks)):
            for blocks, expected in [(100, [(0, 100)]), (100, []), (120, [(100, 20)])]:
                events.saved(None, save(blocks), certain=False)
                events.look_after()
                self.assertEqual(events.take(), expected)


if __name__ == "__main__":
    unittest.main()
