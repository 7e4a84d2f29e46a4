"""What the scheduler's half asks the pool, and what it makes of what was missed, with a stand-in for the pool."""

from __future__ import annotations

import hashlib
import time
import types
import unittest
from typing import Any
from unittest import mock

import rackline
from rackline.engines.settings import SettingsError
from rackline.vllm.groups import Group, Groups, Keeps
from rackline.vllm.identity import Place
from rackline.vllm.lookup import hashes_in_one
from rackline.vllm.misses import MISSED_FOR_S, MISSED_HANDLES_MAX, Misses
from rackline.vllm.search import Index
from rackline.vllm.settings import Settings

RANKS = 2
FULL = Group(0, Keeps.ALL, 4, 1)


def handle(rank: int, place: int) -> bytes:
    return b"%d %d" % (rank, place) + bytes(rackline.KEYLESS_HANDLE_BYTES - len(b"%d %d" % (rank, place)))


class Found:
    """A lookup of so many blocks behind ``first``, all of which are there."""

    reason = message = None
    restored = 0

    def __init__(self, rank: int, first: int, count: int) -> None:
        self._handles = b"".join(handle(rank, first + number) for number in range(count))

    def wait(self, timeout_ms: int | None = None) -> Any:
        return self

    def __len__(self) -> int:
        return len(self._handles) // rackline.KEYLESS_HANDLE_BYTES

    def keyless_handles(self) -> bytes:
        return self._handles


class Searches(unittest.TestCase):
    def setUp(self) -> None:
        self.first, self.room = 0, 1 << 30
        """How many lookups there is room for."""
        attachment = mock.Mock(life=0)
        attachment.pool.has_drives = False
        attachment.pool.session.side_effect = self.session
        settings = Settings.of({"region": "/dev/null", "node": 0})
        self.index = Index(attachment, settings, Groups((FULL,), 4))
        self.asked: list[bytes] = []
        self.index.open_all(
            [mock.Mock(place=Place(0, 0, rank), places=RANKS) for rank in range(RANKS)]
        )

    def session(self, *arguments: Any, **options: Any) -> Any:
        rank = len(self.index._sessions)

        def lookup(hashes: bytes, hold: bool) -> Found:
            if self.room == 0:
                raise rackline.Busy("full")
            self.room -= 1
            self.asked.append(hashes)
            return Found(rank, self.first, len(hashes) // rackline.HASH_BYTES)

        return types.SimpleNamespace(lookup=lookup)

    def test_ranks_that_do_not_have_all_heads_together_are_refused(self) -> None:
        def told(number: int, heads: int, **more: Any) -> Any:
            told = dict(places=3, block_bytes=128, model_of_session=lambda: None, **more)
            return types.SimpleNamespace(place=Place(number, 0, heads), **told)

        with self.assertRaisesRegex(SettingsError, r"the parts \[0, 2\] of a group .* which has 3"):
            self.index.open_all([told(1, 0), told(1, 2)])
        # Of ranks with the same heads each says the same.
        with self.assertRaisesRegex(SettingsError, "start all ranks with the same options"):
            self.index.open_all([told(2, 0), told(2, 1), told(2, 1, more=1), told(2, 2)])
        before = len(self.index._sessions)
        self.index.open_all([one for heads in range(3) for one in [told(3, heads)] * 2])
        self.assertEqual(len(self.index._sessions), before + 3)

    def look(self, first: int, last: int) -> Any:
        self.first = first
        request = mock.Mock(block_hashes=[bytes([number]) * 32 for number in range(last)])
        search = self.index.look(request, first, last, 0.0)
        return search, self.index.found(search, 0.0)

    def test_each_rank_is_asked_with_one_buffer_and_told_with_one(self) -> None:
        search, found = self.look(1, 5)
        self.assertEqual(found, 4)
        whole = b"".join(bytes([number]) * 32 for number in range(1, 5))
        self.assertEqual(self.asked, [whole] * RANKS)
        expected = {Place(0, 0, rank): handle(rank, 1) + handle(rank, 2) for rank in range(RANKS)}
        self.assertEqual(search.loads(2), [(FULL, range(1, 3), whole[:64], expected)])

    def test_a_block_that_was_missed_ends_a_prefix_wherever_a_search_begins(self) -> None:
        search, _ = self.look(0, 8)
        self.index.missed(search, FULL, 6)
        self.assertEqual(self.look(0, 8)[1], 6)
        self.assertEqual(self.look(4, 8)[1], 2)
        self.assertEqual(self.look(7, 8)[1], 1, "behind it")
        self.index.missed(search, FULL, 3)
        self.assertEqual(self.index.found(search, 0.0), 3, "also of a search with an answer")

    def test_the_oldest_of_too_many_misses_is_forgotten(self) -> None:
        search, _ = self.look(0, 8)
        self.index.missed(search, FULL, 5)
        with mock.patch("rackline.vllm.misses.MISSED_HANDLES_MAX", RANKS):
            self.index.missed(search, FULL, 6)
        self.assertEqual(self.look(0, 8)[1], 6)
        self.assertGreater(MISSED_HANDLES_MAX, 8 * 1024)

    def test_a_search_goes_on_where_there_was_no_room_for_all_ranks(self) -> None:
        """No rank is asked twice: what it was asked for nothing would keep others waiting."""
        self.room = 0
        request = mock.Mock(block_hashes=[bytes([number]) * 32 for number in range(8)])
        self.assertIsNone(self.index.look(request, 0, 8, 0.0))
        self.room = 1
        search, found = self.look(0, 8)
        self.assertIsNone(found)
        self.assertIsNone(self.index.found(search, 0.0), "still no room")
        self.room = 1
        self.assertEqual(self.index.found(search, 0.0), 8)
        self.assertEqual(len(self.asked), RANKS)
        self.assertEqual([len(each) for each in search.prefixes], [8] * RANKS)

    def test_a_miss_is_forgotten_after_some_time(self) -> None:
        """Its block may be good again, and have the same handles."""
        search, _ = self.look(0, 8)
        began_s = time.monotonic()
        self.index.missed(search, FULL, 5)
        with mock.patch("rackline.vllm.misses.time") as clock:
            clock.monotonic.return_value = began_s + MISSED_FOR_S / 2
            self.assertEqual(self.look(0, 8)[1], 5)
            clock.monotonic.return_value = began_s + 2 * MISSED_FOR_S
            self.assertEqual(self.look(0, 8)[1], 8)

    def test_a_block_that_was_saved_anew_is_found(self) -> None:
        """On the rank that lacked it its handle is another one."""
        misses = Misses()
        misses.add(0, 3, [b"a", b"b"])
        self.assertEqual(misses.first(0, range(8), [lambda _: b"a", lambda _: b"b"]), 3)
        for first, second in [(b"a", b"c"), (b"c", b"b")]:
            self.assertIsNone(misses.first(0, range(8), [lambda _: first, lambda _: second]))
        self.assertIsNone(misses.first(1, range(8), [lambda _: b"a", lambda _: b"b"]))

    def test_a_search_looks_at_few_handles_of_many_misses(self) -> None:
        """After the death of a host: a handle a place of its own prompt, and not those of all ranks, prompts
        and groups."""
        misses, ranks, blocks = Misses(), 8, 1024
        for group in range(2):
            for place in range(4 * blocks):
                misses.add(group, place, [b"%d %d" % (rank, place) for rank in range(ranks)])
        asked: list[int] = []

        def handle(place: int) -> bytes:
            asked.append(place)
            return b"another"

        self.assertIsNone(misses.first(1, range(blocks), [handle] * ranks))
        self.assertLessEqual(len(asked), blocks)
        asked.clear()
        of_ranks = [lambda place, rank=rank: b"%d %d" % (rank, place) for rank in range(ranks)]
        self.assertEqual(misses.first(1, range(blocks), of_ranks), 0)

    def test_hashes_of_any_length_become_those_of_the_pool(self) -> None:
        long, short = [b"a" * 32, b"b" * 32], [b"c" * 16, b"d" * 16]
        self.assertEqual(hashes_in_one([]), b"")
        self.assertEqual(hashes_in_one(long), b"".join(long))
        self.assertEqual(hashes_in_one(short), b"c" * 16 + bytes(16) + b"d" * 16 + bytes(16))
        digest = hashlib.sha256(b"e" * 64).digest()
        self.assertEqual(hashes_in_one([b"e" * 64]), digest)
        self.assertEqual(hashes_in_one([*short, b"e" * 64])[64:], digest)


if __name__ == "__main__":
    unittest.main()
