"""A process whose node is declared dead while it is stopped: it is told, and attaches again. With "idle"
it makes no call meanwhile."""

from __future__ import annotations

import logging
import sys
import time

import rackline
from rackline.engines import attachment as attachments
from rackline.engines.attachment import Attachment
from rackline.engines.blocks import SharedBlocks
from rackline.engines.settings import PoolSettings

BLOCK_BYTES = 4096
HASHES = [bytes([number]) * 32 for number in range(3)]
WAIT_S = 30


def model() -> rackline.Model:
    return rackline.Model(
        name="tiny", revision="1", dtype="f16", block_tokens=16, layers=2, kv_heads=1, head_dim=64
    )


def wait_until(is_so) -> None:
    ends_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < ends_s, "it took too long"
        time.sleep(0.01)


def is_refused(call) -> bool:
    try:
        call()
    except rackline.MembershipLost as error:
        assert "was declared dead" in str(error), error
        return True
    return False


def idle(settings: PoolSettings) -> None:
    attachment = Attachment(settings)
    print("ready", flush=True)
    sys.stdin.readline()
    wait_until(lambda: attachment.life == 1)
    assert attachment.pool.metrics()["membership"] == "member"
    attachment.close()
    print("done", flush=True)


def busy(settings: PoolSettings) -> None:
    # Only its calls find out, so that what they are refused with is seen.
    attachments.WATCH_EVERY_S = 3600
    memory = bytearray(range(256)) * (3 * BLOCK_BYTES // 256)
    blocks = rackline.block_memory(memoryview(memory).cast("B", (3, BLOCK_BYTES)))
    shared = SharedBlocks(settings, model(), BLOCK_BYTES)
    # Kept, as an engine keeps it whose attachment is not watched.
    attachment = Attachment(settings)
    pool = attachment.pool
    session = pool.session(model(), BLOCK_BYTES)
    assert shared.save(HASHES, 0, blocks, [0, 1, 2]) == [True] * 3
    prefix = session.lookup(HASHES, hold=True).wait()
    assert len(prefix) == 3
    before = pool.metrics()
    assert (before["membership"], before["membership_lost"]) == ("member", 0)
    print("ready", flush=True)
    # Stopped, declared dead, and continued meanwhile.
    sys.stdin.readline()

    wait_until(lambda: is_refused(lambda: session.lookup(HASHES).wait()))
    assert is_refused(lambda: session.lookup(HASHES, hold=True).wait())
    assert is_refused(lambda: session.fetch(prefix, blocks, [0, 1, 2]).wait())
    assert is_refused(lambda: session.publish([b"x" * 32], 0, blocks, [0]).wait())
    after = pool.metrics()
    assert (after["membership"], after["membership_lost"]) == ("declared_dead", 1), after
    assert after["lookup_hits"] <= before["lookup_hits"] + 3 * (after["lookups"] - before["lookups"])

    assert shared.load(HASHES, blocks, [0, 1, 2]) == 0
    counters = shared.counters()
    assert (counters["not_attached"], counters["miss_not_attached"]) == (1, 3), counters
    wait_until(lambda: attachment.life == 1)
    assert attachment.pool.metrics()["membership"] == "member"
    memory[:] = bytes(len(memory))
    assert shared.load(HASHES, blocks, [0, 1, 2]) == 3
    assert bytes(memory) == bytes(range(256)) * (3 * BLOCK_BYTES // 256)
    assert shared.save([b"y" * 32], 0, blocks, [0]) == [True]
    assert "errors" not in shared.counters(), shared.counters()
    shared.close()
    attachment.close()
    print("done", flush=True)


def main(path: str, what: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
    settings = PoolSettings.of({"region": path, "node": 1})
    {"idle": idle, "busy": busy}[what](settings)


main(*sys.argv[1:])
