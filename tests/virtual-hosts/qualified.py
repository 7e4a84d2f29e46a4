"""`rackline qualify` as a pair over the device."""

import json

from rack import DEVICE, CaseFailed, Rack

# 64 trials each: enough for two hosts that saw nothing late to count as evidence.
ROUNDS = 160


def pair(rack: Rack) -> dict[str, object]:
    """the two hosts qualify the platform, and both go by it."""
    for host in (rack.a, rack.b):
        if "no platform was measured yet" not in rack.status(host)["visibility"]:
            raise CaseFailed(f"measured before: {rack.status(host)}")
    command = f"rackline qualify --region {DEVICE} --rounds {ROUNDS} --json"
    # Two virtual machines are taken for two machines only where somebody says so.
    command += " --hosts-are-separate 2>/dev/null"
    outputs = rack.both(
        f"{command} --node 0 --pair-with 1", f"{command} --node 1 --pair-with 0", limit_s=180
    )
    found = [json.loads(output.expect()) for output in outputs]
    for of_host in found:
        violated = [finding for finding in of_host["findings"] if finding["violated"]]
        if of_host["hosts"] != 2 or not of_host["fit"] or violated:
            raise CaseFailed(f"two hosts, and nothing violated, was expected: {of_host}")
    if [of_host["stored_by_this_node"] for of_host in found] != [True, False]:
        raise CaseFailed(f"one of the two is to keep the profile: {found}")
    said = {rack.status(host)["visibility"] for host in (rack.a, rack.b)}
    if said != {found[0]["visibility"]} or "the platform was measured" not in said.copy().pop():
        raise CaseFailed(f"after a qualification, status says {said}")
    return {
        "programs": len(found[0]["findings"]),
        "trials": sum(finding["trials"] for finding in found[0]["findings"]),
        "publish_ns": round(found[0]["publish_ns"]),
        "refresh_ns": round(found[0]["refresh_ns"]),
    }
