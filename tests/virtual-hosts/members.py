"""Cases on a formatted region that both hosts take part in."""

import json
import time

from rack import DEVICE, CaseFailed, Rack, figures

FORMAT_ANEW = (
    f"rackline format --region {DEVICE} --kind devdax --nodes 4 --chunk 2MiB --force"
    " --drive-bytes 128MiB --drive-block 16KiB"
)
ARBITRATED, BAKERY = "arbitrated", "bakery"
MANAGER_LIMIT_S = 60

TAKE_TRIES = 5

# Two processes of two threads on each host.
PROCESSES = 2
THREADS = 2
WORKERS = 2 * PROCESSES * THREADS
ROUNDS = 250


def format_region(rack: Rack) -> dict[str, object]:
    """format, and status of the new region."""
    command = f"{FORMAT_ANEW} --lock {rack.locks} --json"
    made = json.loads(rack.a.run(command, 120).expect().splitlines()[-1])
    seen = rack.status(rack.b)
    if (made["uuid"], made["chunks"], []) != (seen["uuid"], seen["chunks_free"], seen["nodes"]):
        raise CaseFailed(f"formatted {made}, the other host sees {seen}")
    if seen["lock_protocol"] != rack.locks:
        raise CaseFailed(f"formatted with locks {rack.locks}, the other host sees {seen}")
    return {"chunks": made["chunks"], "region_bytes": made["region_bytes"]}


def attached_from_both(rack: Rack) -> dict[str, object]:
    """attached from both, one lock manager serves."""
    rack.start_manager(rack.a, 0)
    seen = until_served(rack, {0})
    # The mark on the device node, and on the other host the advancing heartbeat.
    rack.a.run(FORMAT_ANEW).refused("is in use on this host")
    rack.b.run(FORMAT_ANEW).refused('is in use by node 0 on host "host-a"')
    rack.start_manager(rack.b, 1)
    seen = until_served(rack, {0, 1})
    rack.b.run(f"rackline lock-manager --region {DEVICE} --node 0").refused('host "host-a"')
    return {"manager": f"node {seen['lock_manager']['node']}", "term": seen["lock_manager"]["term"]}


def until_alive(rack: Rack, nodes: set[int], served: bool = False) -> dict:
    """Waits until host b sees exactly these nodes alive, and a lock manager if it is to serve."""
    deadline = time.monotonic() + MANAGER_LIMIT_S
    while True:
        seen = rack.status(rack.b)
        alive = {node["node"] for node in seen["nodes"] if node["alive"]}
        manager = seen["lock_manager"]
        serves = manager and manager["alive"] and manager["waiting_for"] is None
        if alive == nodes and (serves or not served):
            return seen
        if time.monotonic() > deadline:
            raise CaseFailed(f"not served, or not nodes {nodes}: {seen}")


def until_served(rack: Rack, nodes: set[int]) -> dict:
    """As [`until_alive`], and a lock manager serves."""
    return until_alive(rack, nodes, served=True)


def all_leave(rack: Rack) -> dict[str, object]:
    """both lock managers stop in order, and no host is left in the region."""
    for host in (rack.a, rack.b):
        rack.stop_manager(host)
    seen = rack.status(rack.b)
    if any(node["state"] != "left" for node in seen["nodes"]) or seen["lock_manager"]["serving"]:
        raise CaseFailed(f"after all have left, status says {seen}")
    return {}


def new_counter(rack: Rack) -> int:
    """A counter for `torture`; its chunk."""
    made = rack.a.run(f"dax-suite counter new --region {DEVICE} --node 0").expect()
    return int(figures(made)["chunk"])


def torture(chunk: int, node: int, rounds: int, workers: int, options: str = "") -> str:
    """The command for the workers of a host."""
    per_host = workers // 2
    processes = [
        f"dax-suite torture --region {DEVICE} --node {node} --chunk {chunk} --rounds {rounds}"
        f" --threads {THREADS} --first-worker {node * per_host + first} --workers {workers}"
        f" {options}"
        for first in range(0, per_host, THREADS)
    ]
    # Each in the background, with a status of its own.
    started = " ".join(f"{command} & p{number}=$!;" for number, command in enumerate(processes))
    awaited = " && ".join(f"wait $p{number}" for number in range(len(processes)))
    return f"{started} {awaited}"


def read_counter(rack: Rack, chunk: int) -> tuple[dict[str, str], list[int]]:
    """The counter, and what each worker has acknowledged."""
    said = figures(rack.a.run(f"dax-suite counter read --region {DEVICE} --chunk {chunk}").expect())
    return said, [int(count) for count in said["acknowledged"].split(",")]


def remove_counter(rack: Rack, chunk: int) -> None:
    """Gives the chunk of a counter back."""
    rack.a.run(f"dax-suite counter remove --region {DEVICE} --node 0 --chunk {chunk}").expect()


def lock_torture(rack: Rack) -> dict[str, object]:
    """lock torture from both hosts, the count is exact."""
    chunk = new_counter(rack)
    commands = [torture(chunk, node, ROUNDS, WORKERS) for node in (0, 1)]
    outputs = rack.both(*commands, limit_s=240)
    found = []
    for output in outputs:
        lines = output.expect().splitlines()
        found += [figures(line) for line in lines if line.startswith("figures")]
    if len(found) != 2 * PROCESSES:
        raise CaseFailed(f"{len(found)} processes ended, not {2 * PROCESSES}")
    said, acknowledged = read_counter(rack, chunk)
    expected = WORKERS * ROUNDS
    if (int(said["first"]), int(said["second"]), sum(acknowledged)) != (expected,) * 3:
        raise CaseFailed(f"{expected} additions, and the counter is {said}")
    remove_counter(rack, chunk)
    seconds = max(int(process["us"]) for process in found) / 1e6
    between_hosts = int(said["handed_over"])
    if between_hosts == 0:
        raise CaseFailed("the lock never passed from one host to the other")
    return {
        "count": expected,
        "workers": WORKERS,
        "per_s": round(expected / seconds),
        "between_hosts": between_hosts,
        "between_hosts_per_s": round(between_hosts / seconds),
        "wait_ms_max": max(int(process["wait_us_max"]) for process in found) // 1000,
    }


def chunk_allocation(rack: Rack) -> dict[str, object]:
    """chunks from both hosts, none is given twice."""
    before = rack.status(rack.a)
    if before["chunks_free"] != before["chunks"]:
        raise CaseFailed(f"not all chunks are free: {before}")
    for tried in range(1, TAKE_TRIES + 1):
        taken = take_all(rack, before["chunks"])
        give_back(rack, [found["chunks"] for found in taken])
        free = rack.status(rack.b)["chunks_free"]
        if free != before["chunks"]:
            raise CaseFailed(f"{free} of {before['chunks']} are free after all were given back")
        of_a, of_b = (len(found["chunks"]) for found in taken)
        # On a busy machine one host may be done before the other has begun.
        if of_a and of_b:
            us_each = max(found["us"] / len(found["chunks"]) for found in taken)
            return {
                "chunks": before["chunks"],
                "by_a": of_a,
                "by_b": of_b,
                "us_each": round(us_each),
                "tries": tried,
            }
    raise CaseFailed(f"in {TAKE_TRIES} tries never both hosts took chunks")


def take_all(rack: Rack, total: int) -> list[dict]:
    """Lets both hosts take all they can get, and checks what each has."""
    command = f"dax-suite chunks take --region {DEVICE} --node"
    taken = []
    for output in rack.both(f"{command} 0", f"{command} 1"):
        found = figures(output.expect())
        chunks = [int(chunk) for chunk in found["chunks"].split(",") if chunk]
        taken.append({"chunks": chunks, "us": int(found["us"])})
    both = sorted(taken[0]["chunks"] + taken[1]["chunks"])
    if both != list(range(total)):
        raise CaseFailed(f"of {total} chunks the hosts took {taken}")
    full = rack.status(rack.a)
    of_nodes = {node["node"]: node["chunks"] for node in full["nodes"]}
    if full["chunks_free"] != 0 or of_nodes != {
        node: len(found["chunks"]) for node, found in enumerate(taken)
    }:
        raise CaseFailed(f"taken were {taken}, but status says {full}")
    # Each host looks at both: nobody wrote into what is another's.
    for host in (rack.a, rack.b):
        for node, count in of_nodes.items():
            check = f"dax-suite chunks check --region {DEVICE} --of {node} --chunks {count}"
            host.run(check).expect()
    return taken


def give_back(rack: Rack, chunks: list[list[int]]) -> None:
    """Lets each host give back what it has, after it tried to give back what the other has."""
    command = f"dax-suite chunks give-back --region {DEVICE} --node"
    jobs = []
    for node, host in enumerate([rack.a, rack.b]):
        own, foreign = chunks[node], chunks[1 - node]
        if own:
            also = f"--foreign {foreign[0]}" if foreign else ""
            jobs.append((host.spawn(f"{command} {node} {also}"), len(own)))
    for job, count in jobs:
        given = int(figures(job.wait(120).expect())["given_back"])
        if given != count:
            raise CaseFailed(f"{given} chunks were given back, not {count}")


CASES = [lock_torture, chunk_allocation]
