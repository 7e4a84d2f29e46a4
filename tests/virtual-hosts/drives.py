"""Drives behind the pool: the power of the host that owns one is cut while it is used."""

import json
import time

import blocks
import members
from host import Job, Output, VirtualHost
from rack import DEVICE, CaseFailed, Rack, figures

FOLDER = "/mnt/kv"
AGENT_PID = "/run/agent.pid"
# Far more than are written before the power is cut.
BLOCKS = 2000
# Before the power is cut in the middle of backups.
WRITTEN = 64
RESTORED = 200
WAIT_MS = 5_000
# Restores go on for a while, so that the power is cut in the middle of them.
PAUSE_MS = 300
# A miss comes in the time that was said, on hosts that may stand still for seconds.
LATE_MS = 30_000
LIMIT_S = 90


def mount(host: VirtualHost) -> None:
    """Mounts the drive of a host. The kernel has the drivers built in."""
    host.run(f"mkdir -p /mnt && mount -t ext4 /dev/nvme0n1 /mnt && mkdir -p {FOLDER}").expect()


def start_agent(host: VirtualHost, node: int, drive: bool) -> Job:
    """Starts the agent of a host, with its drive or without any."""
    settings = f"--drive {FOLDER}:128MiB --admission all --backup-age-ms 0" if drive else ""
    command = f"rackline agent --region {DEVICE} --node {node} {settings}"
    return host.spawn(f"{command} & echo $! >{AGENT_PID}; wait $!")


def stop_agent(host: VirtualHost, job: Job) -> str:
    """Stops it in order. Returns its log."""
    host.run(f"kill -TERM $(cat {AGENT_PID})").expect()
    return job.wait().expect()


def agent_of(rack: Rack, host: VirtualHost, node: int) -> dict:
    """What `rackline status` on a host says of the agent of a node."""
    agents = [agent for agent in rack.status(host)["agents"] if agent["node"] == node]
    return agents[0] if agents else {"state": "none", "announced_blocks": 0}


def until_announced(rack: Rack, least: int, job: Job) -> int:
    """Waits until the agent of host b has announced so many blocks; how many it has."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        agent = agent_of(rack, rack.a, 1)
        if agent["state"] == "serves" and agent["announced_blocks"] >= least:
            return agent["announced_blocks"]
        if job.has_ended():
            raise CaseFailed(f"the agent has ended: {job.wait().text[-2000:]}")
        if time.monotonic() > deadline:
            raise CaseFailed(f"{least} blocks are to be announced: {agent}")
        time.sleep(0.1)


def comes_back(rack: Rack) -> Job:
    """Host b boots again and joins, and its agent begins with what its drive has."""
    rack.b.start()
    rack.b.until_ready()
    mount(rack.b)
    rack.start_manager(rack.b, 1)
    members.until_served(rack, {0, 1})
    return start_agent(rack.b, 1, drive=True)


def restore(count: int) -> str:
    """The command with which host a asks for blocks on the drive of host b."""
    suite = f"dax-suite blocks --region {DEVICE} --node 0"
    return f"{suite} restore {count} --of 1 --wait-ms {WAIT_MS} --pause-ms {PAUSE_MS}"


def in_time(output: Output) -> dict[str, int]:
    """What came of asking; a miss came in the time that was said."""
    said = {name: int(value) for name, value in figures(output.expect()).items()}
    if said["longest_ms"] > LATE_MS:
        raise CaseFailed(f"a miss took longer than {LATE_MS} ms: {said}")
    return said


def power_is_cut(rack: Rack) -> dict[str, object]:
    """a host's power is cut during backups, and during restores: its drive keeps what it had."""
    for host in (rack.a, rack.b):
        mount(host)
    of_a = start_agent(rack.a, 0, drive=False)
    of_b = start_agent(rack.b, 1, drive=True)
    publishing = rack.b.spawn(
        f"dax-suite blocks --region {DEVICE} --node 1 publish {BLOCKS}"
    )
    announced = until_announced(rack, WRITTEN, of_b)
    rack.b.kill()
    del publishing

    # What was acknowledged before is there, and whole.
    of_b = comes_back(rack)
    again = until_announced(rack, announced, of_b)
    log = stop_agent(rack.b, of_b)
    if "engine=io_uring" not in log or "page cache" in log:
        raise CaseFailed(f"payload does not go by io_uring and O_DIRECT: {log[-2000:]}")
    checked = json.loads(rack.b.run(f"rackline spill fsck {FOLDER} --json 2>/dev/null").expect())
    if checked["verified_blocks"] < announced or checked["damaged"] or checked["losses"]:
        raise CaseFailed(f"{announced} blocks were announced, the drive has {checked}")

    # Blocks leave the pool; host a asks for them, and the power is cut in the middle.
    of_b = start_agent(rack.b, 1, drive=True)
    until_announced(rack, announced, of_b)
    clear = f"rackline clear --pool-only --region {DEVICE} --node 1 --all"
    rack.b.run(clear).expect()
    count = min(again, RESTORED)
    restoring = rack.a.spawn(restore(count))
    until_restoring(rack, restoring)
    rack.b.kill()
    cut = in_time(restoring.wait(LIMIT_S))
    if cut["found"] == 0 or cut["present"] == count:
        raise CaseFailed(f"the power was cut before or behind the restores: {cut}")
    of_b = comes_back(rack)
    until_announced(rack, announced, of_b)
    rack.b.run(clear).expect()
    # All of them, with the right bytes.
    asked = in_time(rack.a.run(restore(8)))
    if asked["present"] != 8:
        raise CaseFailed(f"blocks of the drive do not come back: {asked}")
    blocks.run(rack.a, 0, "read 8 --of 1")
    # Nothing is left for the cases behind this one.
    rack.b.run(f"rackline clear --region {DEVICE} --node 1 --all").expect()
    for host, job in ((rack.b, of_b), (rack.a, of_a)):
        stop_agent(host, job)
    return {
        "announced": announced,
        "after": again,
        "restored_at_cut": cut["present"],
        "miss_ms": cut["longest_ms"],
    }


def until_restoring(rack: Rack, restoring: Job) -> None:
    """Waits until the agent of host b has restored a block, or all were."""
    deadline = time.monotonic() + LIMIT_S
    while agent_of(rack, rack.a, 1).get("restored_bytes", 0) == 0:
        if restoring.has_ended():
            return
        if time.monotonic() > deadline:
            raise CaseFailed(f"nothing is restored: {agent_of(rack, rack.a, 1)}")
        time.sleep(0.05)
