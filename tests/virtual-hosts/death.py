"""A host dies in the middle of its critical sections: its power is cut."""

import dataclasses
import time

import blocks
import members
import objects
from host import Job
from rack import DEVICE, CaseFailed, Rack, figures

# The workers have no end of their own: those of one host die, those of the other are told to stop.
ENDLESS = 1_000_000_000
WORKERS = 4
OF_A, OF_B = slice(0, WORKERS // 2), slice(WORKERS // 2, WORKERS)
# What each worker has done when the host dies, and then again after that.
ROUNDS = 20
ROOT, ROOT_BYTES = "last-words", 10_000
BLOCKS = 8
STOP = "/run/stop"
LINGER = "/run/linger"
LIMIT_S = 90


@dataclasses.dataclass
class Bereaved:
    """What there was when host b died between the two stores of an addition."""

    rack: Rack
    free_before: int
    # The chunk of the counter, and what each worker had acknowledged.
    chunk: int
    acknowledged: list[int]
    # Chunks that the dead host had taken.
    taken: int
    # The workers of host a.
    job: Job
    died: float

    def seconds(self) -> int:
        """Since the death."""
        return round(time.monotonic() - self.died)

    def reads_on(self) -> None:
        """Host a reads what host b had in the region: chunks, blocks, a named object."""
        a = self.rack.a
        a.run(f"dax-suite chunks check --region {DEVICE} --of 1 --chunks {self.taken}").expect()
        objects.run(a, 0, f"get {ROOT} {ROOT_BYTES}")
        blocks.run(a, 0, f"read {BLOCKS} --of 1")

    def still_half_done(self) -> None:
        """Nobody has what the dead host holds."""
        said, acknowledged = members.read_counter(self.rack, self.chunk)
        half_done = int(said["first"]) == int(said["second"]) + 1
        if acknowledged != self.acknowledged or not half_done:
            raise CaseFailed(f"the dead host holds the lock, yet the counter is {said}")

    def goes_on(self) -> dict[str, object]:
        """The workers of host a have the lock, complete what was half done, and end."""
        until_added(self.rack, self.chunk, self.acknowledged[OF_A], [self.job])
        whole_s = self.seconds()
        self.rack.a.run(f"touch {STOP}").expect()
        lines = self.job.wait().expect().splitlines()
        self.rack.a.run(f"rm {STOP}").expect()
        ended = [figures(line) for line in lines if line.startswith("figures")]
        repaired = sum(int(process["repaired"]) for process in ended)
        said, acknowledged = members.read_counter(self.rack, self.chunk)
        if acknowledged[OF_B] != self.acknowledged[OF_B]:
            raise CaseFailed(f"acknowledged were {acknowledged}, at the death {self.acknowledged}")
        # The addition that was under way was made, half of it by us, and never acknowledged.
        expected = sum(acknowledged) + 1
        if (int(said["first"]), int(said["second"]), repaired) != (expected, expected, 1):
            raise CaseFailed(f"acknowledged were {acknowledged}, {repaired} repaired, it is {said}")
        members.remove_counter(self.rack, self.chunk)
        return {
            "by_dead": sum(acknowledged[OF_B]),
            "by_survivor": sum(acknowledged[OF_A]),
            "half_done": repaired,
            "whole_after_s": whole_s,
        }

    def tidy_up(self) -> None:
        """Host b, in its next life, gives back what it had in the last. Nothing is lost."""
        rack = self.rack
        rack.b.run(f"dax-suite chunks give-back --region {DEVICE} --node 1").expect()
        # What a root names outlives the host that put it (OBJECT-N5).
        for host, node in [(rack.a, 0), (rack.b, 1)]:
            objects.run(host, node, f"get {ROOT} {ROOT_BYTES}")
        objects.run(rack.b, 1, f"destroy {ROOT}")
        blocks.run(rack.b, 1, f"retire {BLOCKS}")
        # Twice: the first carries out what the other host freed.
        counts = [objects.count(host, node) for host, node in 2 * [(rack.a, 0), (rack.b, 1)]][2:]
        if any(int(found["objects"]) or int(found["damaged_bytes"]) for found in counts):
            raise CaseFailed(f"objects are left: {counts}")
        left = rack.status(rack.a)
        owned = sum(node["chunks"] for node in left["nodes"])
        if left["chunks_free"] + owned != left["chunks"] or left["chunks_free"] < self.free_before:
            raise CaseFailed(f"{self.free_before} chunks were free before, now {left}")


def half_done(rack: Rack) -> Bereaved:
    """Cuts the power of host b while it is between the two stores of an addition."""
    objects.run(rack.b, 1, f"put {ROOT} {ROOT_BYTES}")
    blocks.run(rack.b, 1, f"publish {BLOCKS}")
    free_before = rack.status(rack.a)["chunks_free"]
    chunk = members.new_counter(rack)
    # Chunks of the host that dies, to be read afterwards.
    taken = rack.b.run(f"dax-suite chunks take --region {DEVICE} --node 1", 120).expect()
    options = f"--may-repair --timeout-ms 180000 --until {STOP} --linger-when {LINGER}"
    jobs = [
        host.spawn(members.torture(chunk, node, ENDLESS, WORKERS, options))
        for node, host in enumerate([rack.a, rack.b])
    ]
    until_added(rack, chunk, [0] * WORKERS, jobs)
    rack.b.run(f"touch {LINGER}").expect()
    until_half_done(rack, chunk)
    rack.b.kill()
    died = time.monotonic()
    _, acknowledged = members.read_counter(rack, chunk)
    of_b = int(figures(taken)["taken"])
    return Bereaved(rack, free_before, chunk, acknowledged, of_b, jobs[0], died)


def and_comes_back(rack: Rack) -> dict[str, object]:
    """a host dies in a critical section and comes back, the other continues."""
    bereaved = half_done(rack)
    bereaved.reads_on()
    seen = rack.status(rack.a)
    alive = {node["node"]: node["alive"] for node in seen["nodes"]}
    if alive != {0: True, 1: False} or not seen["lock_manager"]["alive"]:
        raise CaseFailed(f"after the death of host b, status says {seen}")
    bereaved.still_half_done()

    # The same machine boots again and takes its node slot: what it held is free from then on.
    rack.b.start()
    rack.b.until_ready()
    rack.start_manager(rack.b, 1)
    members.until_served(rack, {0, 1})
    found = bereaved.goes_on()
    bereaved.tidy_up()
    return found


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
