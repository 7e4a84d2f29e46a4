"""Cases on a formatted region that both hosts take part in."""

import json
import time

from rack import DEVICE, CaseFailed, Rack, figures

FORMAT_ANEW = f"rackline format --region {DEVICE} --kind devdax --nodes 4 --chunk 2MiB --force"
MANAGER_LIMIT_S = 60

# Two processes of two threads on each host.
PROCESSES = 2
THREADS = 2
WORKERS = 2 * PROCESSES * THREADS
ROUNDS = 250


def format_region(rack: Rack) -> dict[str, object]:
    """format, and status of the new region."""
    made = json.loads(rack.a.run(f"{FORMAT_ANEW} --json", 120).expect().splitlines()[-1])
    seen = rack.status(rack.b)
    if (made["uuid"], made["chunks"], []) != (seen["uuid"], seen["chunks_free"], seen["nodes"]):
        raise CaseFailed(f"formatted {made}, the other host sees {seen}")
    return {"chunks": made["chunks"], "region_bytes": made["region_bytes"]}


def attached_from_both(rack: Rack) -> dict[str, object]:
    """attached from both, one lock manager serves."""
    manager = f"rackline lock-manager --region {DEVICE} --node"
    rack.a.spawn(f"{manager} 0")
    seen = until_served(rack, {0})
    # The mark on the device node, and on the other host the beating heart.
    rack.a.run(FORMAT_ANEW).refused("is in use on this host")
    rack.b.run(FORMAT_ANEW).refused('is in use by node 0 on host "host-a"')
    rack.b.spawn(f"{manager} 1")
    seen = until_served(rack, {0, 1})
    rack.b.run(f"rackline lock-manager --region {DEVICE} --node 0").refused('host "host-a"')
    return {"manager": f"node {seen['lock_manager']['node']}", "term": seen["lock_manager"]["term"]}


def until_served(rack: Rack, nodes: set[int]) -> dict:
    """Waits until host b sees a lock manager that serves, and exactly these nodes alive."""
    deadline = time.monotonic() + MANAGER_LIMIT_S
    while True:
        seen = rack.status(rack.b)
        alive = {node["node"] for node in seen["nodes"] if node["heart_beats"]}
        manager = seen["lock_manager"]
        served = manager and manager["alive"] and manager["waiting_for"] is None
        if alive == nodes and served:
            return seen
        if time.monotonic() > deadline:
            raise CaseFailed(f"not served, or not nodes {nodes}: {seen}")


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
    total = rack.status(rack.a)["chunks"]
    command = f"dax-suite chunks take --region {DEVICE} --node"
    outputs = rack.both(f"{command} 0", f"{command} 1")
    taken = [figures(output.expect()) for output in outputs]
    chunks = [[int(chunk) for chunk in found["chunks"].split(",")] for found in taken]
    if sorted(chunks[0] + chunks[1]) != list(range(total)):
        raise CaseFailed(f"of {total} chunks the hosts took {chunks}")
    full = rack.status(rack.a)
    of_nodes = {node["node"]: node["chunks"] for node in full["nodes"]}
    if full["chunks_free"] != 0 or of_nodes != {0: len(chunks[0]), 1: len(chunks[1])}:
        raise CaseFailed(f"taken were {chunks}, but status says {full}")
    # Each host looks at both: nobody wrote into what is another's.
    for host in (rack.a, rack.b):
        for node, count in of_nodes.items():
            check = f"dax-suite chunks check --region {DEVICE} --of {node} --chunks {count}"
            host.run(check).expect()
    back = f"dax-suite chunks give-back --region {DEVICE} --node"
    foreign = [f"{back} 0 --foreign {chunks[1][0]}", f"{back} 1 --foreign {chunks[0][0]}"]
    given = [int(figures(output.expect())["given_back"]) for output in rack.both(*foreign)]
    free = rack.status(rack.b)["chunks_free"]
    if (sum(given), free) != (total, total):
        raise CaseFailed(f"{given} were given back, {free} of {total} are free")
    slowest = max(int(found["us"]) / max(int(found["taken"]), 1) for found in taken)
    return {"chunks": total, "by_a": len(chunks[0]), "by_b": len(chunks[1]), "us_each": round(slowest)}


FORMAT = [format_region]
CASES = [lock_torture, chunk_allocation]
