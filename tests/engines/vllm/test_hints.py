"""Hints of requests: what is understood, and what they hold in a real region."""

from __future__ import annotations

import random
import time
import types
import unittest
from typing import Any
from unittest import mock

import rackline
from rackline.engines.attachment import Attachment
from rackline.engines.reasons import Reasons
from rackline.vllm.groups import Group, Groups, Keeps
from rackline.vllm.handover import RouterParams
from rackline.vllm.hint_holds import HOLDS_MAX, HintHolds
from rackline.vllm.hints import ACTIONS_MAX, Hints
from rackline.vllm.holds import TIDY_MIN, Holds
from rackline.vllm.identity import Place
from rackline.vllm.progress import Progress
from rackline.vllm.search import Index
from rackline.vllm.settings import HOLD_MS_MAX, Settings, SettingsError
from rackline.vllm.statistics import RacklineStats
from region import Region

BLOCK_BYTES = 64 << 10
BLOCK_TOKENS = 16
SHARE_PERCENT = 50
MODEL = rackline.Model(
    name="m", revision="1", dtype="f16", block_tokens=BLOCK_TOKENS, layers=1, kv_heads=1, head_dim=64
)


def action(name: Any, version: Any = "1", **payload: Any) -> dict[str, Any]:
    return {"action_type": name, "action_version": version, "payload": payload}


def settings(**more: Any) -> Settings:
    return Settings.of({"region": "/dev/null", "node": 0, **more})


def envelope(*actions: dict[str, Any]) -> Any:
    """As vLLM's Python API passes them."""
    from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope

    return KvHintsEnvelope("1", "message", [KvHintAction("one", **each) for each in actions])


class Words(unittest.TestCase):
    def read(self, given: Any, kv_hints: Any = None, **more: Any) -> Hints:
        params = {"rackline": {"hints": given}}
        request = mock.Mock(kv_transfer_params=params, kv_hints=kv_hints, request_id="one")
        # No key of a router, and none that is reported as unknown.
        with self.assertNoLogs("rackline.vllm.handover"):
            self.assertEqual(RouterParams.of(request), RouterParams())
        return Hints.of(request, settings(**more))

    def test_both_sources_are_read(self) -> None:
        hints = self.read([action("hold", ms=5000), action("prefetch", ms=700)])
        self.assertEqual((hints.hold_ms, hints.prefetch_ms, hints.saves), (5000, 700, True))
        hints = self.read([action("priority", save="never")], envelope(action("hold", ms=40)))
        self.assertEqual((hints.hold_ms, hints.saves, hints.followed), (40, False, 2))
        for params in (None, {}, {"rackline": {}}, {"rackline": 3}):
            request = mock.Mock(kv_transfer_params=params, kv_hints=None)
            self.assertEqual(Hints.of(request, settings()), Hints())

    def test_times_are_limited(self) -> None:
        hints = self.read([action("hold", ms=10**12), action("prefetch", ms=10**12)])
        self.assertEqual((hints.hold_ms, hints.prefetch_ms), (600_000, 600_000))
        hints = self.read([action("priority", save="hold")], hold_ms=2000)
        self.assertEqual(hints.hold_ms, 2000)
        hints = self.read([action("priority", save="hold"), action("hold", ms=9000)], hold_ms=2000)
        self.assertEqual(hints.hold_ms, 9000)
        hints = self.read([action("hold", ms=1), action("priority", save="hold")], hint_hold_ms_max=0)
        self.assertEqual(hints.hold_ms, 0)
        self.assertEqual([reason for reason, _ in hints.ignored], ["off"])
        for wrong in (dict(hint_hold_percent=101), dict(hint_hold_ms_max=HOLD_MS_MAX + 1)):
            with self.assertRaisesRegex(SettingsError, "at most"):
                settings(**wrong)

    def test_what_is_not_understood_is_ignored_by_name(self) -> None:
        for wrong, reason in [
            (action("pin", ms=1), "unknown_type"),
            (action(["hold"], ms=1), "unknown_type"),
            (action("hold", "2", ms=1), "unknown_version"),
            (action("hold", 1, ms=1), "unknown_version"),
            (action("hold"), "bad_payload"),
            (action("hold", ms=0), "bad_payload"),
            (action("hold", ms=True), "bad_payload"),
            (action("hold", ms="1"), "bad_payload"),
            (action("hold", ms=1, more=1), "bad_payload"),
            ({**action("hold"), "payload": [1]}, "bad_payload"),
            (action("priority", save="high"), "bad_payload"),
            (action("priority", save=["never"]), "bad_payload"),
            ("hold", "bad_payload"),
            (None, "bad_payload"),
        ]:
            with self.subTest(wrong):
                hints = self.read([wrong, action("hold", ms=7)])
                self.assertEqual((hints.hold_ms, hints.followed), (7, 1))
                self.assertEqual([reason for reason, _ in hints.ignored], [reason])
        for no_list, reason in [({"hold": 1}, "unknown_type"), ("hold", "bad_payload"), (7, "bad_payload")]:
            self.assertEqual([reason for reason, _ in self.read(no_list).ignored], [reason])
        hints = self.read([action("hold", ms=7)] * (ACTIONS_MAX + 3))
        self.assertEqual([reason for reason, _ in hints.ignored], ["too_many"] * 3)
        # A client cannot fill the log.
        [(_, said)] = self.read([action("x" * 10**6, ms=1)]).ignored
        self.assertLess(len(said), 200)


class _Holds(unittest.TestCase):
    """Blocks in a real region with room for some 240 blocks."""

    def setUp(self) -> None:
        region = self.enterContext(Region("16MiB", "64KiB", chunk="1MiB"))
        self.settings = Settings.of(
            {"region": region.path, "node": 0, "hint_hold_percent": SHARE_PERCENT}
        )
        self.attachment = Attachment(self.settings)
        self.addCleanup(self.attachment.close)
        groups = Groups((Group(0, Keeps.ALL, BLOCK_TOKENS, 1),), BLOCK_TOKENS)
        self.index = Index(self.attachment, self.settings, groups)
        identity = types.SimpleNamespace(
            place=Place(0, 0, 0), places=1, block_bytes=BLOCK_BYTES, model_of_session=lambda: MODEL
        )
        self.index.open_all([identity])
        self.session = self.attachment.pool.session(MODEL, BLOCK_BYTES)
        self.holds = Holds(self.index, self.settings.hold_ms)
        self.stats = RacklineStats()
        reasons = Reasons(mock.Mock(), self.stats.count)
        self.own = HintHolds(self.index, groups, self.settings, self.holds, self.stats, reasons)
        share_blocks = self.attachment.pool.share_bytes // BLOCK_BYTES
        self.blocks_max = share_blocks * SHARE_PERCENT // 100
        self.assertGreater(self.blocks_max, 20)

    def save(self, hashes: list[bytes]) -> None:
        memory = memoryview(bytearray(BLOCK_BYTES)).cast("B", (1, BLOCK_BYTES))
        for depth, each in enumerate(hashes):
            published = self.session.publish([each], depth, rackline.block_memory(memory), [0])
            self.assertEqual(published.wait().outcomes, ["published"])

    def press(self) -> None:
        """More blocks than the pool has room for."""
        self.save([random.randbytes(32) for _ in range(400)])

    def assert_evicted(self, hashes: list[bytes]) -> None:
        """New blocks take the place of these. Which ones give way first is the pool's matter."""
        deadline_s = time.monotonic() + 60
        while self.in_pool(hashes):
            self.assertLess(time.monotonic(), deadline_s)
            self.press()

    def in_pool(self, hashes: list[bytes]) -> int:
        return sum(self.session.present(hashes).wait())

    def progress(self, hashes: list[bytes], **hints: Any) -> Progress:
        tokens = len(hashes) * BLOCK_TOKENS
        request = types.SimpleNamespace(
            block_hashes=hashes, num_computed_tokens=tokens, num_prompt_tokens=tokens, num_tokens=tokens + 1
        )
        return Progress(request, request, RouterParams(), Hints(**hints))

    def end(self, hashes: list[bytes], hold_ms: int) -> None:
        """A request of these blocks has ended."""
        self.own.ended(self.progress(hashes, hold_ms=hold_ms))

    def answer(self) -> None:
        """Steps until every lookup is answered."""
        deadline_s = time.monotonic() + 30
        while self.own._asked:
            self.assertLess(time.monotonic(), deadline_s)
            self.holds.look_after()
            time.sleep(0.001)

    def later(self, after_s: float) -> None:
        """A step, after so much time."""
        now_s = time.monotonic() + after_s
        with mock.patch("rackline.vllm.holds.time") as clock:
            clock.monotonic.return_value = now_s
            self.holds.look_after()


class Held(_Holds):
    """What one group holds that keeps all tokens."""

    def test_a_hold_survives_eviction_and_ends_by_time(self) -> None:
        held, others = hashes(1, 10), hashes(2, 10)
        self.save([*held, *others])
        self.end(held, 60_000)
        self.end(others, 0)
        self.answer()
        self.assert_evicted(others)
        self.assertEqual(self.in_pool(held), 10)
        self.assertEqual(self.stats.data, {"hint_held_blocks": 10})
        self.later(59)
        self.assertEqual(len(self.own), 1)
        self.later(61)
        self.assertEqual((len(self.own), self.own.bytes, len(self.holds)), (0, 0, 0))
        self.assert_evicted(held)

    def test_the_pool_ends_a_hold_of_an_engine_that_makes_no_steps(self) -> None:
        held = hashes(1, 4)
        self.save(held)
        self.end(held, 1000)
        self.answer()
        self.press()
        self.assertEqual(self.in_pool(held), 4)
        self.assert_evicted(held)

    def test_what_goes_beyond_the_share_is_counted(self) -> None:
        held = hashes(1, self.blocks_max + 5)
        self.save(held)
        self.end(held, 60_000)
        self.end(hashes(2, 3), 60_000)
        self.answer()
        self.assertEqual(
            self.stats.data, {"hint_held_blocks": self.blocks_max, "unheld_hint_share": 5 + 3}
        )
        self.assert_evicted(held[self.blocks_max :])
        self.assertEqual(self.in_pool(held), self.blocks_max)

    def test_what_is_not_there_takes_no_share(self) -> None:
        self.save(hashes(1, 4))
        self.end(hashes(1, 9), 60_000)
        self.end(hashes(2, 9), 60_000)
        self.assertEqual(self.own.bytes, 18 * BLOCK_BYTES)
        self.answer()
        self.assertEqual(self.own.bytes, 4 * BLOCK_BYTES)
        self.assertEqual(self.stats.data, {"hint_held_blocks": 4, "unheld_absent": 5 + 9})

    def test_turns_of_a_conversation_count_once(self) -> None:
        turns = hashes(1, 20)
        self.save(turns)
        for blocks in (5, 10, 15, 20, 20):
            self.end(turns[:blocks], 60_000)
            self.answer()
        self.assertEqual((len(self.own), self.own.bytes), (1, 20 * BLOCK_BYTES))
        # One that ends sooner takes nothing from it, and one of another conversation neither.
        self.end(turns, 1000)
        self.end([*turns[:10], *hashes(2, 2)], 60_000)
        self.answer()
        self.assertEqual((len(self.own), self.own.bytes), (2, 30 * BLOCK_BYTES))
        self.press()
        self.assertEqual(self.in_pool(turns), 20)

    def test_what_is_replaced_frees_room_once(self) -> None:
        """Two conversations continue one prompt before the pool has answered for either."""
        shared = self.blocks_max // 2
        prompt, one, other = hashes(1, shared), hashes(2, shared - 4), hashes(3, shared - 4)
        self.save([*prompt, *one, *other])
        self.end(prompt, 50_000)
        self.answer()
        self.end([*prompt, *one], 60_000)
        self.end([*prompt, *other], 60_000)
        self.assertLessEqual(self.own.bytes, (self.blocks_max + shared) * BLOCK_BYTES)
        self.answer()
        self.assertLessEqual(self.own.bytes, self.blocks_max * BLOCK_BYTES)
        self.assertGreater(self.stats.data["unheld_hint_share"], 0)

    def test_a_prefetch_holds_until_the_request_is_scheduled(self) -> None:
        held = hashes(1, 6)
        self.save(held)
        progress = self.progress(held, prefetch_ms=60_000)
        self.own.queued(progress)
        self.answer()
        self.press()
        self.assertEqual(self.in_pool(held), 6)
        for _ in range(2):
            self.own.scheduled(progress)
        self.assertEqual(self.own.bytes, 0)
        self.assert_evicted(held)

    def test_thousands_of_hints_leave_nothing(self) -> None:
        self.save(hashes(0, 3))
        waiting = [self.progress(hashes(number % 2, 3), prefetch_ms=1000) for number in range(3000)]
        for number, progress in enumerate(waiting):
            self.own.queued(progress)
            self.end(hashes(number % 7, 3), 1000 + number)
            # Some are aborted before an answer.
            if number % 3:
                self.holds.look_after()
            self.own.scheduled(progress)
        self.answer()
        self.later(60)
        self.holds.look_after()
        self.assertEqual((len(self.own), self.own.bytes, len(self.holds)), (0, 0, 0))
        for kept in (self.own._asked, self.own._replaced, self.own._last_hashes):
            self.assertEqual(len(kept), 0)
        self.assert_evicted(hashes(0, 3))

    def test_holds_that_ended_early_are_not_kept(self) -> None:
        self.save(hashes(1, 1))
        for _ in range(4 * TIDY_MIN):
            progress = self.progress(hashes(1, 1), prefetch_ms=600_000)
            self.own.queued(progress)
            self.answer()
            self.own.scheduled(progress)
        self.holds.look_after()
        self.assertLess(len(self.holds), 2 * TIDY_MIN)

    def test_there_are_not_more_holds_than_can_be_compared(self) -> None:
        with mock.patch("rackline.vllm.hint_holds.HOLDS_MAX", 3):
            for number in range(5):
                self.end(hashes(number, 2), 60_000)
        self.assertEqual(self.stats.data, {"unheld_too_many_hints": 4})
        self.assertGreater(HOLDS_MAX, 32)

    def test_a_full_queue_is_tried_again_for_as_long_as_the_hold(self) -> None:
        self.save(hashes(1, 2))
        with mock.patch.object(self.index, "look", return_value=None):
            self.end(hashes(1, 2), 60_000)
            self.end(hashes(2, 2), 1000)
            self.holds.look_after()
            self.later(2)
            self.assertEqual(len(self.own), 1)
        self.answer()
        self.assertEqual(self.stats.data, {"hint_held_blocks": 2})

    def test_what_was_held_before_the_process_attached_again_is_not_held(self) -> None:
        self.save(hashes(1, 2))
        self.end(hashes(1, 2), 60_000)
        self.answer()
        self.attachment._attached.life += 1
        self.holds.look_after()
        self.assertEqual(self.own.bytes, 0)

    def test_new_weights_end_all(self) -> None:
        self.save(hashes(1, 2))
        self.end(hashes(1, 2), 60_000)
        self.answer()
        self.end(hashes(3, 2), 60_000)
        self.own.forget()
        self.assertEqual((len(self.own), self.own.bytes), (0, 0))


class Windows(_Holds):
    """The same of a model with a group that keeps all tokens, in two head groups, and one with a window of
    two blocks and a little more: parts in the same pool."""

    WINDOW_BLOCKS = 3
    PARTS = (Place(0, 0, 0), Place(0, 0, 1), Place(1, 0, 0))

    def setUp(self) -> None:
        super().setUp()
        window = Group(1, Keeps.WINDOW, BLOCK_TOKENS, 1, 2 * BLOCK_TOKENS + 5)
        self.mixed = Groups((Group(0, Keeps.ALL, BLOCK_TOKENS, 1), window), BLOCK_TOKENS)
        self.models = {
            place: rackline.Model(
                name=f"{place}", revision="1", dtype="f16", block_tokens=16, layers=1, kv_heads=1, head_dim=64
            )
            for place in self.PARTS
        }
        index = Index(self.attachment, self.settings, self.mixed)
        index.open_all(
            [
                types.SimpleNamespace(
                    place=place,
                    places=2 if place.group == 0 else 1,
                    block_bytes=BLOCK_BYTES,
                    model_of_session=lambda place=place: self.models[place],
                )
                for place in self.PARTS
            ]
        )
        self.mixed_holds = Holds(index, self.settings.hold_ms)
        reasons = Reasons(mock.Mock(), self.stats.count)
        self.hints = HintHolds(
            index, self.mixed, self.settings, self.mixed_holds, self.stats, reasons
        )
        sessions = self.attachment.pool.session
        self.parts = {place: sessions(model, BLOCK_BYTES) for place, model in self.models.items()}

    def save_parts(self, prompt: list[bytes]) -> None:
        memory = memoryview(bytearray(BLOCK_BYTES)).cast("B", (1, BLOCK_BYTES))
        for session in self.parts.values():
            for depth, each in enumerate(prompt):
                session.publish([each], depth, rackline.block_memory(memory), [0]).wait()

    def hold(self, prompt: list[bytes], hold_ms: int) -> None:
        self.hints.ended(self.progress(prompt, hold_ms=hold_ms))
        deadline_s = time.monotonic() + 30
        while self.hints._asked:
            self.assertLess(time.monotonic(), deadline_s)
            self.mixed_holds.look_after()
            time.sleep(0.001)

    def there(self, prompt: list[bytes]) -> list[int]:
        return [sum(session.present(prompt).wait()) for session in self.parts.values()]

    def later_mixed(self, after_s: float) -> None:
        now_s = time.monotonic() + after_s
        with mock.patch("rackline.vllm.holds.time") as clock:
            clock.monotonic.return_value = now_s
            self.mixed_holds.look_after()

    def test_a_longer_hold_keeps_the_windows_of_a_shorter_one(self) -> None:
        """A prompt of the system, held, and a conversation that continues it, held as well: other
        conversations need the window at the end of the first."""
        turns, of_system = hashes(1, 14), hashes(1, 6)
        self.save_parts(turns)
        self.hold(of_system, 50_000)
        self.hold(turns, 60_000)
        for _ in range(3):
            self.press()
        self.assertEqual(self.there(of_system)[:2], [6, 6])
        window = of_system[-self.WINDOW_BLOCKS :]
        self.assertEqual(self.there(window), [3, 3, 3])
        self.assertEqual(self.there(turns[-self.WINDOW_BLOCKS :]), [3, 3, 3])
        # The blocks that keep all tokens count once.
        self.assertEqual(self.hints.bytes, (2 * 14 + 2 * self.WINDOW_BLOCKS) * BLOCK_BYTES)
        self.later_mixed(55)
        self.assertEqual(self.hints.bytes, (2 * 14 + self.WINDOW_BLOCKS) * BLOCK_BYTES)
        self.later_mixed(65)
        self.assertEqual((len(self.hints), self.hints.bytes, len(self.mixed_holds)), (0, 0, 0))

    def test_windows_of_earlier_turns_leave_room_for_later_ones(self) -> None:
        """They count in the share, and are the first to go."""
        turns = hashes(1, self.blocks_max // 2 - 2)
        self.save_parts(turns)
        for blocks in range(4, len(turns) + 1):
            self.hold(turns[:blocks], 60_000)
            self.assertLessEqual(self.hints.bytes, self.blocks_max * BLOCK_BYTES)
        self.assertNotIn("unheld_hint_share", self.stats.data)
        self.press()
        self.assertEqual(self.there(turns)[:2], [len(turns)] * 2)
        self.assertEqual(self.there(turns[-self.WINDOW_BLOCKS :]), [3, 3, 3])

    def test_the_same_prompt_again_counts_once(self) -> None:
        turns = hashes(1, 14)
        self.save_parts(turns)
        for prompt in (turns[:6], turns, turns, turns):
            self.hold(prompt, 60_000)
        self.assertEqual(self.hints.bytes, (2 * 14 + 2 * self.WINDOW_BLOCKS) * BLOCK_BYTES)
        self.assertEqual(len(self.hints), 2)
        self.hints.forget()
        self.mixed_holds.look_after()
        self.assertEqual((len(self.hints), self.hints.bytes), (0, 0))
        for kept in (self.hints._asked, self.hints._replaced, self.hints._last_hashes, self.hints._windows):
            self.assertEqual(len(kept), 0)

    def test_thousands_of_requests_of_parts_leave_nothing(self) -> None:
        turns = hashes(1, 12)
        self.save_parts(turns)
        random.seed(7)
        for number in range(1500):
            blocks = random.randrange(1, 13)
            prompt = turns[:blocks] if number % 3 else [*turns[: blocks // 2], *hashes(number % 5 + 2, 3)]
            self.hints.ended(self.progress(prompt, hold_ms=random.randrange(1000, 60_000)))
            if number % 4 == 0:
                self.mixed_holds.look_after()
        while self.hints._asked:
            self.mixed_holds.look_after()
        self.assertLessEqual(self.hints.bytes, self.blocks_max * BLOCK_BYTES)
        self.later_mixed(100)
        self.assertEqual((len(self.hints), self.hints.bytes, len(self.mixed_holds)), (0, 0, 0))
        for kept in (self.hints._asked, self.hints._replaced, self.hints._last_hashes, self.hints._windows):
            self.assertEqual(len(kept), 0)
        self.assert_evicted(turns)


def hashes(seed: int, count: int) -> list[bytes]:
    """Those of a prompt."""
    return [bytes([seed, number]) * 16 for number in range(count)]


if __name__ == "__main__":
    unittest.main()
