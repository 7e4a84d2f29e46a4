"""Cases on a device that holds nothing yet."""

from rack import DEVICE, CaseFailed, Rack, figures

# Enough for the two hosts to meet on a busy machine.
LITMUS_ROUNDS = 20_000
LITMUS_TRIES = 5


def one_host_conforms(rack: Rack) -> dict[str, object]:
    """the mapped fabric conforms, on one host."""
    found = figures(rack.a.run(f"dax-suite conform --region {DEVICE}", 120).expect())
    return {"flush": found["flush"], "ms": int(found["us"]) // 1000}


def two_hosts_conform(rack: Rack) -> dict[str, object]:
    """the mapped fabric conforms, between two hosts."""
    wipe(rack)
    command = f"dax-suite conform --region {DEVICE} --half"
    sent, received = rack.both(f"{command} send", f"{command} receive")
    received.expect()
    found = figures(sent.expect())
    return {
        "hand_overs": 2 * int(found["rounds"]),
        "us_each": int(found["us"]) // (2 * int(found["rounds"])),
    }


def atomic_operations(rack: Rack) -> dict[str, object]:
    """atomic operations between hosts lose updates."""
    lost = 0
    for tried in range(1, LITMUS_TRIES + 1):
        wipe(rack)
        command = f"dax-suite litmus --region {DEVICE} --rounds {LITMUS_ROUNDS} --role"
        of_a, of_b = rack.both(f"{command} a", f"{command} b")
        of_b.expect()
        found = figures(of_a.expect())
        lost = int(found["lost"])
        if rack.mode == "hmem" or lost > 0:
            break
    # In mode hmem the hosts are processes with one coherent memory.
    if (rack.mode == "hmem") != (lost == 0):
        raise CaseFailed(f"{lost} updates of {found['added']} were lost in mode {rack.mode}")
    return {"lost": lost, "of": int(found["added"]), "tries": tried}


def misuse(rack: Rack) -> dict[str, object]:
    """misuse of the device is refused."""
    wipe(rack)
    said = rack.a.run(f"dax-suite misuse --region {DEVICE}", 120).expect()
    found = figures(said)
    fits = "--nodes 2 --chunk 2MiB"
    commands = [
        # The half-size region that the suite left.
        (f"--region {DEVICE} {fits}", "--force overwrites whatever is in it"),
        (f"--region {DEVICE} {fits} --create 64MiB", "exists already"),
        (f"--region {DEVICE} {fits} --create 64MiB --kind devdax", "a device cannot be created"),
        (f"--region {DEVICE} {fits} --kind file", "is a devdax device, but a regular file"),
        (f"--region /dev/zero {fits}", "is a character device that sysfs does not list as dax"),
        (f"--region /dev/dax9.9 {fits}", "does not exist"),
        (f"--region {DEVICE} --nodes 2 --chunk 3MiB --force", "chunk"),
        (f"--region {DEVICE} --nodes 2 --chunk 1TiB --force", "chunk"),
    ]
    for options, says in commands:
        rack.a.run(f"rackline format {options}").refused(says)
    no_region = f"rackline status --region {DEVICE}"
    rack.b.run(no_region).refused("format the region again")
    return {
        "by_library": int(found["refused"]),
        "by_command": len(commands) + 1,
        "bytes": int(found["bytes"]),
        "align_bytes": int(found["align_bytes"]),
    }


def without_a_driver(rack: Rack) -> dict[str, object]:
    """a device that lost its driver is named."""
    drivers = "/sys/bus/dax/drivers/device_dax"
    rack.b.run(f"echo dax0.0 >{drivers}/unbind").expect()
    said = rack.b.run(f"rackline status --region {DEVICE}").refused("rackline")
    rack.b.run(f"echo dax0.0 >{drivers}/bind").expect()
    if DEVICE not in said:
        raise CaseFailed(f"the device is not named: {said}")
    return {}


def wipe(rack: Rack) -> None:
    """Makes the device blank again."""
    rack.a.run(f"dax-suite wipe --region {DEVICE}").expect()


CASES = [one_host_conforms, two_hosts_conform, atomic_operations, misuse, without_a_driver]
