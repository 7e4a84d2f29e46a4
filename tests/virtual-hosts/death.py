"""A host dies in the middle of its critical sections: its power is cut."""

import time

import members
import objects
from host import Job
from rack import DECLARE_MS, DEVICE, CaseFailed, Rack, figures

# The workers have no end of their own: those of one host die, those of the other are told to stop.
ENDLESS = 1_000_000_000
WORKERS = 4
OF_A, OF_B = slice(0, WORKERS // 2), slice(WORKERS // 2, WORKERS)
# What each worker has done when the host dies, and then again after that.
ROUNDS = 20
ROOT, ROOT_BYTES = "last-words", 10_000
STOP = "/run/stop"
LINGER = "/run/linger"
LIMIT_S = 90


def of_a_host(rack: Rack) -> dict[str, object]:
    """a host dies in a critical section, the other goes on."""
    free_before = rack.status(rack.a)["chunks_free"]
    chunk = members.new_counter(rack)
    objects.run(rack.b, 1, f"put {ROOT} {ROOT_BYTES}")
    # Blocks of the host that dies, to be read afterwards.
    taken = rack.b.run(f"dax-suite chunks take --region {DEVICE} --node 1", 120).expect()
    of_b = int(figures(taken)["taken"])
    patient = f"--may-repair --timeout-ms 180000 --until {STOP} --linger-when {LINGER}"
    jobs = [
        host.spawn(members.torture(chunk, node, ENDLESS, WORKERS, patient))
        for node, host in enumerate([rack.a, rack.b])
    ]
    until_added(rack, chunk, [0] * WORKERS, jobs)
    rack.b.run(f"touch {LINGER}").expect()
    until_half_done(rack, chunk)
    rack.b.kill()

    died = time.monotonic()
    check = f"dax-suite chunks check --region {DEVICE} --of 1 --chunks {of_b}"
    rack.a.run(check).expect()
    objects.run(rack.a, 0, f"get {ROOT} {ROOT_BYTES}")
    _, at_death = members.read_counter(rack, chunk)
    seen = rack.status(rack.a)
    alive = {node["node"]: node["heart_beats"] for node in seen["nodes"]}
    if alive != {0: True, 1: False} or not seen["lock_manager"]["alive"]:
        raise CaseFailed(f"after the death of host b, status says {seen}")
    said, acknowledged = members.read_counter(rack, chunk)
    if acknowledged != at_death or int(said["first"]) != int(said["second"]) + 1:
        raise CaseFailed(f"the dead host holds the lock, yet the counter is {said}")

    # The same machine boots again and takes its node slot: what it held is free from then on.
    rack.b.start()
    rack.b.until_ready()
    rack.b.spawn(f"rackline lock-manager --region {DEVICE} --declare-ms {DECLARE_MS} --node 1")
    members.until_served(rack, {0, 1})
    until_added(rack, chunk, at_death[OF_A], jobs[:1])
    whole_s = time.monotonic() - died
    rack.a.run(f"touch {STOP}").expect()
    found = jobs[0].wait().expect().splitlines()
    ended = [figures(line) for line in found if line.startswith("figures")]
    repaired = sum(int(process["repaired"]) for process in ended)

    said, acknowledged = members.read_counter(rack, chunk)
    if acknowledged[OF_B] != at_death[OF_B]:
        raise CaseFailed(f"acknowledged were {acknowledged}, at the death {at_death}")
    # The addition that was under way was made, half of it by us, and never acknowledged.
    expected = sum(acknowledged) + 1
    if (int(said["first"]), int(said["second"]), repaired) != (expected, expected, 1):
        raise CaseFailed(f"acknowledged were {acknowledged}, {repaired} repaired, it is {said}")
    rack.b.run(f"dax-suite chunks give-back --region {DEVICE} --node 1").expect()
    members.remove_counter(rack, chunk)
    # What a root names outlives the host that put it (N5).
    for host, node in [(rack.a, 0), (rack.b, 1)]:
        objects.run(host, node, f"get {ROOT} {ROOT_BYTES}")
    objects.run(rack.b, 1, f"destroy {ROOT}")
    objects.count(rack.b, 1)
    left = rack.status(rack.a)
    if left["chunks_free"] != free_before:
        raise CaseFailed(f"{free_before} chunks were free before, now {left}")
    return {
        "by_dead": sum(acknowledged[OF_B]),
        "by_survivor": sum(acknowledged[OF_A]),
        "half_done": repaired,
        "chunks_read_after": of_b,
        "whole_after_s": round(whole_s),
    }


def of_the_managers_host(rack: Rack) -> dict[str, object]:
    """the lock manager's host dies, the standby takes over."""
    free_before = rack.status(rack.b)["chunks_free"]
    taken = rack.a.run(f"dax-suite chunks take --region {DEVICE} --node 0", 120).expect()
    of_a = int(figures(taken)["taken"])
    term = rack.status(rack.b)["lock_manager"]["term"]
    rack.a.kill()

    died = time.monotonic()
    check = f"dax-suite chunks check --region {DEVICE} --of 0 --chunks {of_a}"
    rack.b.run(check).expect()
    # It may hold locks: the standby claims a term, and grants nothing before node 0 knows (T4).
    seen = until_claimed(rack, term)
    alive = {node["node"]: node["heart_beats"] for node in seen["nodes"]}
    if alive != {0: False, 1: True} or seen["lock_manager"]["waiting_for"] != 0:
        raise CaseFailed(f"after the death of host a, status says {seen}")
    rack.b.run(f"dax-suite counter new --region {DEVICE} --node 1 --timeout-ms 3000").refused(
        "cannot allocate a chunk"
    )

    rack.a.start()
    rack.a.until_ready()
    rack.a.spawn(f"rackline lock-manager --region {DEVICE} --declare-ms {DECLARE_MS} --node 0")
    seen = members.until_served(rack, {0, 1})
    whole_s = time.monotonic() - died
    if seen["lock_manager"]["node"] != 1:
        raise CaseFailed(f"the standby does not serve: {seen}")
    rack.a.run(f"dax-suite chunks give-back --region {DEVICE} --node 0").expect()
    left = rack.status(rack.b)
    if left["chunks_free"] != free_before:
        raise CaseFailed(f"{free_before} chunks were free before, now {left}")
    return {
        "term": seen["lock_manager"]["term"],
        "chunks_read_after": of_a,
        "whole_after_s": round(whole_s),
    }


def until_claimed(rack: Rack, term: int) -> dict:
    """Waits until host b's lock manager has claimed a term newer than `term`."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        seen = rack.status(rack.b)
        manager = seen["lock_manager"]
        if manager["node"] == 1 and manager["term"] > term and manager["alive"]:
            return seen
        if time.monotonic() > deadline:
            raise CaseFailed(f"host b claims nothing: {seen}")


def until_added(rack: Rack, chunk: int, since: list[int], jobs: list[Job]) -> None:
    """Waits until each of the first workers, at work in `jobs`, has added `ROUNDS` times more than
    `since`."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        _, acknowledged = members.read_counter(rack, chunk)
        if all(count >= before + ROUNDS for count, before in zip(acknowledged, since)):
            return
        said = [job.wait().text.strip() for job in jobs if job.has_ended()]
        if said:
            raise CaseFailed(f"workers ended: {said}")
        if time.monotonic() > deadline:
            raise CaseFailed(f"from {since} the workers got only to {acknowledged}")


def until_half_done(rack: Rack, chunk: int) -> None:
    """Waits until a worker of host b lingers between the two stores of an addition."""
    deadline = time.monotonic() + LIMIT_S
    before = None
    while True:
        said, _ = members.read_counter(rack, chunk)
        # Twice the same: a worker of host a is never seen there for long.
        if int(said["first"]) == int(said["second"]) + 1 and said == before:
            return
        before = said
        if time.monotonic() > deadline:
            raise CaseFailed(f"nobody lingers: {said}")
