"""Why requests found nothing and blocks were not saved: counted by name, and in the log."""

from __future__ import annotations

import logging
import unittest
from unittest import mock

import rackline
from rackline.engines import reasons
from rackline.engines.blocks import SharedBlocks
from rackline.engines.settings import PoolSettings
from region import Region

BLOCK_BYTES = 64 << 10


def model(**given: object) -> rackline.Model:
    told = dict(name="m", revision="1", dtype="f32", block_tokens=8, layers=1, kv_heads=1, head_dim=64)
    return rackline.Model(**{**told, **given})


def hashes(count: int, seed: int = 0) -> list[bytes]:
    return [bytes([seed, number]) * 16 for number in range(count)]


def memory(blocks: int = 1) -> rackline.BlockMemory:
    content = bytearray(blocks * BLOCK_BYTES)
    return rackline.block_memory(memoryview(content).cast("B", (blocks, BLOCK_BYTES)))


class Reasons(unittest.TestCase):
    def test_each_is_logged_once_a_minute_with_what_was_counted_since(self) -> None:
        counted: dict[str, int] = {}

        def count(name: str, amount: int) -> None:
            counted[name] = counted.get(name, 0) + amount

        logger = logging.getLogger("rackline.test_reasons")
        with (
            mock.patch.object(reasons.time, "monotonic") as now_s,
            self.assertLogs(logger, "WARNING") as log,
        ):
            now_s.return_value = 100.0
            own = reasons.Reasons(logger, count)
            for _ in range(5):
                self.assertEqual(own.outcomes(["published", "no_chunk", "copy"], {"copy": "why"}), 2)
            own.not_found("absent")
            own.not_found("lookup_timeout")
            now_s.return_value = 161.0
            own.unsaved("no_chunk", 1)
        self.assertEqual(
            counted,
            {"unsaved_no_chunk": 6, "unsaved_copy": 5, "not_found_absent": 1, "not_found_lookup_timeout": 1},
        )
        said = [record.getMessage() for record in log.records]
        self.assertEqual(len(said), 4, said)
        self.assertIn("1 blocks are not saved (copy): why", said[1])
        self.assertIn("5 blocks are not saved (no_chunk)", said[3])


class OfThePool(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("16MiB", "64KiB"))

    def blocks(self, node: int = 0, **given: object) -> SharedBlocks:
        own = SharedBlocks(PoolSettings.of({"region": self.region.path, "node": node}), model(**given), BLOCK_BYTES)
        self.addCleanup(own.close)
        return own

    def test_a_full_pool_says_so_by_name(self) -> None:
        with rackline.Pool(self.region.path, 1) as pool:
            session = pool.session(model(), BLOCK_BYTES)
            held = []
            for seed in range(4):
                names = hashes(64, seed)
                session.publish(b"".join(names), 0, memory(64), list(range(64))).wait()
                held.append(session.lookup(b"".join(names), hold=True).wait())
            # Of a node that has no memory yet, and gets none.
            own = self.blocks()
            with self.assertLogs("rackline.engines.blocks", "WARNING") as log:
                saved = own.save(hashes(4, 99), 0, memory(4), [0, 1, 2, 3])
            self.assertEqual(saved, [False] * 4)
            counters = own.counters()
            self.assertEqual((counters["unsaved_blocks"], counters["unsaved_no_chunk"]), (4, 4))
            self.assertIn("4 blocks are not saved (no_chunk): no room for the payload", log.output[0])
            result = session.publish(hashes(1, 98)[0], 0, memory(), [0]).wait()
            self.assertIn(result.outcomes[0], reasons.OF_PUBLISHES)
            self.assertIn("room", result.messages[result.outcomes[0]])
            del held

    def test_a_block_that_is_found_and_not_held_says_why(self) -> None:
        with open(self.region.path, "rb") as file:
            before = file.read(self.region.payload_offset)
        own = self.blocks()
        self.assertEqual(own.save(hashes(2), 0, memory(2), [0, 1]), [True, True])
        self.assertEqual(own.find(hashes(2)), 2)
        with open(self.region.path, "r+b") as file:
            after = file.read(self.region.payload_offset)
            for line in range(0, len(after), 64):
                # The descriptor of the second block: READY, and behind another one.
                new = after[line : line + 64] != before[line : line + 64]
                if new and after[line + 4] == 3 and after[line + 52] == 1:
                    file.seek(line + 30)
                    file.write(bytes([after[line + 30] ^ 1]))
        with self.assertLogs("rackline.engines.blocks", "WARNING") as log:
            prefix = own.hold(hashes(2))
        self.assertEqual((len(prefix), prefix.reason), (1, "torn"))
        self.assertIn("damaged", prefix.message)
        self.assertIn(prefix.reason, reasons.OF_HOLDS)
        self.assertEqual(own.counters()["not_found_torn"], 1)
        self.assertIn("(torn)", log.output[0])
        prefix.release()

    def test_what_is_not_there_is_counted_and_told_quietly(self) -> None:
        own = self.blocks()
        with self.assertNoLogs("rackline.engines.blocks", "INFO"):
            self.assertEqual(own.find(hashes(3)), 0)
            own.left_out(0, "not_whole")
        self.assertEqual(own.counters(), {"lookup_blocks": 3, "not_found_absent": 1})
        own.stop()
        self.assertEqual(own.save(hashes(2), 0, memory(2), [0, 1]), [False, False])
        self.assertEqual(own.counters()["unsaved_stopped"], 2)

    def test_ctrl_c_ends_a_load_or_a_save_when_its_memory_is_not_used_any_more(self) -> None:
        """Else a publish would copy what the engine writes there next, and call it the old block."""
        own, over = self.blocks(), []
        self.assertEqual(own.save(hashes(2), 0, memory(2), [0, 1]), [True, True])
        session, interrupts = own._session.by_caller(), iter([KeyboardInterrupt, None] * 2)

        def interrupted(begin: str, *given: object) -> mock.Mock:
            transfer = getattr(session, begin)(*given)

            def wait() -> object:
                if interrupt := next(interrupts):
                    raise interrupt
                over.append(begin)
                return transfer.wait()

            return mock.Mock(wait=wait)

        caller = mock.Mock(lookup=session.lookup)
        caller.fetch = lambda *given: interrupted("fetch", *given)
        caller.publish = lambda *given: interrupted("publish", *given)
        with mock.patch.object(own, "_session", mock.Mock(by_caller=lambda: caller)):
            with self.assertRaises(KeyboardInterrupt):
                own.load(hashes(2), memory(2), [0, 1])
            self.assertEqual(over, ["fetch"])
            with self.assertRaises(KeyboardInterrupt):
                own.save(hashes(1, 7), 0, memory(), [0])
            self.assertEqual(over, ["fetch", "publish"])

    def test_a_block_longer_than_a_chunk_is_refused_at_opening(self) -> None:
        settings = PoolSettings.of({"region": self.region.path, "node": 0})
        with self.assertRaisesRegex(rackline.Error, "do not fit this region.*--chunk"):
            SharedBlocks(settings, model(), 2 << 20)


class Metrics(unittest.TestCase):
    def test_reasons_are_a_label(self) -> None:
        import prometheus_client
        from rackline.vllm.statistics import RacklinePromMetrics, RacklineStats

        registry = prometheus_client.CollectorRegistry()

        class Counter(prometheus_client.Counter):
            def __init__(self, *given: object, **named: object) -> None:
                super().__init__(*given, **{**named, "registry": registry})

        types = {prometheus_client.Gauge: prometheus_client.Gauge, prometheus_client.Histogram: None}
        metrics = RacklinePromMetrics(
            mock.Mock(), {**types, prometheus_client.Counter: Counter}, ["engine"], {0: ["0"]}
        )
        stats = RacklineStats()
        stats.count("unsaved_blocks", 3)
        stats.count("unsaved_no_chunk", 3)
        stats.count("not_found_lookup_timeout", 1)
        stats.count("not_loaded_checksum", 2)
        self.assertEqual(stats.reduce()["unsaved_no_chunk"], 3)
        with self.assertRaises(AssertionError):
            stats.count("unknown", 1)
        metrics.observe(stats.data)
        for name, reason, value in [
            ("unsaved", "no_chunk", 3.0),
            ("not_found", "lookup_timeout", 1.0),
            ("not_loaded", "checksum", 2.0),
        ]:
            label = {"engine": "0", "reason": reason}
            found = registry.get_sample_value(f"vllm:rackline_{name}_by_reason_total", label)
            self.assertEqual(found, value)


if __name__ == "__main__":
    unittest.main()
