"""Cases on named roots and on the heaps of small objects."""

from host import VirtualHost
from rack import DEVICE, CaseFailed, Rack, figures

# Lines, a page, several pages, and what host b puts.
ROOTS_OF_A = {"lines": 100, "page": 4096, "pages": 100_000}
ROOTS_OF_B = {"of-b": 3000}
CHURN_ROUNDS = 10


def command(node: int, action: str) -> str:
    """What `dax-suite` does with objects as a process of `node`."""
    return f"dax-suite objects --region {DEVICE} --node {node} {action}"


def run(host: VirtualHost, node: int, action: str) -> dict[str, str]:
    """Does it, and returns the figures."""
    return figures(host.run(command(node, action)).expect())


def names(host: VirtualHost, node: int) -> list[str]:
    """The names of all roots that a host sees."""
    return [name for name in run(host, node, "list")["names"].split(",") if name]


def named_roots(rack: Rack) -> dict[str, object]:
    """named roots of both hosts, found and destroyed by the other."""
    for name, size in ROOTS_OF_A.items():
        run(rack.a, 0, f"put {name} {size}")
    for name, size in ROOTS_OF_B.items():
        run(rack.b, 1, f"put {name} {size}")
    for name, size in ROOTS_OF_A.items():
        run(rack.b, 1, f"get {name} {size}")
    for name, size in ROOTS_OF_B.items():
        run(rack.a, 0, f"get {name} {size}")
    expected = sorted([*ROOTS_OF_A, *ROOTS_OF_B])
    if (names(rack.a, 0), names(rack.b, 1)) != (expected, expected):
        raise CaseFailed(f"the hosts see roots {names(rack.a, 0)} and {names(rack.b, 1)}")
    rack.b.run(command(1, "put lines 64")).refused('there is a root "lines" already')

    for name in ROOTS_OF_A:
        run(rack.b, 1, f"destroy {name}")
    for name, size in ROOTS_OF_A.items():
        rack.a.run(command(0, f"get {name} {size}")).refused(f'there is no root "{name}"')
    run(rack.a, 0, "destroy of-b")
    left = names(rack.a, 0) + names(rack.b, 1)
    counts = [count(rack.a, 0), count(rack.b, 1)]
    if left or any(int(found["objects"]) for found in counts):
        raise CaseFailed(f"roots {left} and objects {counts} are left")
    return {"roots": len(expected)}


def count(host: VirtualHost, node: int) -> dict[str, str]:
    """The objects of a node, after what the other freed."""
    return run(host, node, "count")


def small_objects(rack: Rack) -> dict[str, object]:
    """small objects of both hosts, freed by the other."""
    offset = run(rack.a, 0, "allocate 100")["offset"]
    run(rack.b, 1, f"free {offset}")
    after = count(rack.a, 0)
    if int(after["objects"]) != 0:
        raise CaseFailed(f"host b freed the only object of host a, which has {after}")
    # Only the owner knows that it is free already: it refuses, and counts.
    refused = int(after["refused_frees"])
    run(rack.b, 1, f"free {offset}")
    after = count(rack.a, 0)
    if (int(after["objects"]), int(after["refused_frees"])) != (0, refused + 1):
        raise CaseFailed(f"host b freed an object of host a twice, which has {after}")
    rack.b.run(command(1, "free 0")).refused("is in no heap")
    rack.a.run(command(0, "free 65536")).refused("is in no heap")
    rack.a.run(command(0, "allocate 1000000000")).refused("is larger than any chunk can hold")

    churned = rack.both(command(0, f"churn {CHURN_ROUNDS}"), command(1, f"churn {CHURN_ROUNDS}"))
    slowest_us = max(int(figures(output.expect())["us"]) for output in churned)
    counts = [count(rack.a, 0), count(rack.b, 1)]
    if any(int(found["objects"]) or int(found["damaged_bytes"]) for found in counts):
        raise CaseFailed(f"objects are left: {counts}")
    return {"churned": 2 * CHURN_ROUNDS, "us_each": slowest_us // CHURN_ROUNDS}


CASES = [named_roots, small_objects]
