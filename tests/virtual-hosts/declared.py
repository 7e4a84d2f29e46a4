"""A host dies and does not come back: the others declare it dead, and an operator confirms that it
is off."""

import time

import death
import members
import objects
from host import VirtualHost
from rack import DECLARE_MS, DEVICE, CaseFailed, Rack, figures

LIMIT_S = 90


def a_host(rack: Rack) -> dict[str, object]:
    """a host dies for good: declared dead, confirmed off, recovered."""
    bereaved = death.half_done(rack)
    refused_before(rack.a, 0, "was not declared dead")
    epoch = rack.status(rack.a)["membership_epoch"]
    seen = until_quarantined(rack, rack.a, dead=1, recoverer=0)
    declared_s = bereaved.seconds()
    if seen["membership_epoch"] != epoch + 1:
        raise CaseFailed(f"the epoch was {epoch}, and status says {seen}")
    # It may only be paused, as far as anybody knows.
    bereaved.still_half_done()
    bereaved.reads_on()

    rack.a.run(fence(1)).expect()
    until_recovered(rack, rack.a, dead=1)
    found = bereaved.goes_on()
    bereaved.reads_on()
    refused_before(rack.a, 1, "needs no confirmation")
    # What it had in its heap is host a's now: another's object it would not refuse to free.
    offset = objects.run(rack.a, 0, f"get {death.ROOT} {death.ROOT_BYTES}")["offset"]
    rack.a.run(objects.command(0, f"free {offset}")).refused("a named root holds the object")
    if int(objects.count(rack.a, 0)["objects"]) != 1:
        raise CaseFailed("the named object of the dead host is not in the heap of its recoverer")

    # Its slot is free, and the machine may as well come back after all.
    rack.b.start()
    rack.b.until_ready()
    rack.start_manager(rack.b, 1)
    members.until_alive(rack, {0, 1})
    bereaved.tidy_up()
    return {**found, "declared_after_s": declared_s}


def the_managers_host(rack: Rack) -> dict[str, object]:
    """the lock manager's host dies for good: the standby takes over, declares it dead, serves."""
    free_before = rack.status(rack.b)["chunks_free"]
    # One is left: a full pool would be refused without the lock of the chunk table.
    take = f"dax-suite chunks take --region {DEVICE} --node 0 --at-most {free_before - 1}"
    taken = rack.a.run(take, 120).expect()
    of_a = int(figures(taken)["taken"])
    term = rack.status(rack.b)["lock_manager"]["term"]
    rack.a.kill()

    died = time.monotonic()
    check = f"dax-suite chunks check --region {DEVICE} --of 0 --chunks {of_a}"
    rack.b.run(check).expect()
    # It may hold locks: the standby claims a term, and grants nothing before node 0 knows (LOCK-T4).
    seen = until_claimed(rack, term)
    alive = {node["node"]: node["alive"] for node in seen["nodes"]}
    if alive != {0: False, 1: True} or seen["lock_manager"]["waiting_for"] != 0:
        raise CaseFailed(f"after the death of host a, status says {seen}")
    new_counter = f"dax-suite counter new --region {DEVICE} --node 1 --timeout-ms"
    rack.b.run(f"{new_counter} 3000").refused("cannot allocate a chunk")
    seen = until_quarantined(rack, rack.b, dead=0, recoverer=1)
    if seen["lock_manager"]["waiting_for"] != 0:
        raise CaseFailed(f"quarantine is no fence, and yet status says {seen}")

    rack.b.run(fence(0)).expect()
    seen = until_recovered(rack, rack.b, dead=0)
    manager = seen["lock_manager"]
    if manager["node"] != 1 or manager["waiting_for"] is not None:
        raise CaseFailed(f"the standby does not serve: {seen}")
    whole_s = time.monotonic() - died
    made = rack.b.run(f"{new_counter} 30000").expect()
    chunk = figures(made)["chunk"]
    removed = f"dax-suite counter remove --region {DEVICE} --node 1 --chunk {chunk}"
    rack.b.run(removed).expect()

    rack.a.start()
    rack.a.until_ready()
    rack.start_manager(rack.a, 0)
    members.until_served(rack, {0, 1})
    rack.a.run(f"dax-suite chunks give-back --region {DEVICE} --node 0").expect()
    left = rack.status(rack.b)
    if left["chunks_free"] != free_before:
        raise CaseFailed(f"{free_before} chunks were free before, now {left}")
    return {
        "term": manager["term"],
        "chunks_read_after": of_a,
        "whole_after_s": round(whole_s),
    }


def fence(node: int) -> str:
    """The command of an operator who knows that the host of `node` is off."""
    return f"rackline fence --region {DEVICE} --node {node} --confirm-off"


def refused_before(host: VirtualHost, node: int, says: str) -> None:
    """There is nothing to confirm about `node`."""
    host.run(fence(node)).refused(says)


def until_quarantined(rack: Rack, host: VirtualHost, dead: int, recoverer: int) -> dict:
    """Waits until `dead` is declared dead, and cannot be fenced."""

    def is_it(node: dict) -> bool:
        death = node["death"]
        appointed = death is not None and death["recoverer"] == recoverer
        return node["state"] == "quarantined" and appointed and death["quarantined"]

    return until(rack, host, dead, is_it, DECLARE_MS / 1000 + LIMIT_S)


def until_recovered(rack: Rack, host: VirtualHost, dead: int) -> dict:
    """Waits until the recovery of `dead` is over."""
    return until(rack, host, dead, lambda node: node["death"]["recovered"], LIMIT_S)


def until(rack: Rack, host: VirtualHost, number: int, is_it, limit_s: float) -> dict:
    """Waits until `rackline status` says of node `number` what it should."""
    deadline = time.monotonic() + limit_s
    while True:
        seen = rack.status(host)
        if any(node["node"] == number and is_it(node) for node in seen["nodes"]):
            return seen
        if time.monotonic() > deadline:
            raise CaseFailed(f"of node {number} status says only {seen}")


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
