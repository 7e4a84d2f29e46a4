"""Mooncake store as a contender: its servers, and workers that speak the driver's JSON lines.

The way Mooncake recommends for several processes of one host: a master that knows where objects
are, a client process that owns the memory, and workers that share it. Blocks are written from, and
read into, memory that is registered with the store already: no copy is counted that an engine could
avoid.
"""

import ctypes
import pathlib
import subprocess
import sys
import time

from orders import arguments, carry_out, content, end_with_parent, listens, since

MASTER_PORT = 51051
OWNER_PORT = 51052
# How many orders pass before a buffer is used again, as in the other workers.
SECTIONS = 4
GIB = 1 << 30


def package() -> pathlib.Path:
    import importlib.util

    return pathlib.Path(importlib.util.find_spec("mooncake").origin).parent


def serve(what: str, place: pathlib.Path, round_bytes: int) -> None:
    """Runs the master, or the client that owns the memory; says in a file when it listens."""
    programs = {
        "master": [
            "mooncake_master",
            f"--rpc_port={MASTER_PORT}",
            "--enable_http_metadata_server=false",
            "--metrics_port=51053",
        ],
        "owner": [
            "mooncake_client",
            "--host=127.0.0.1",
            f"--port={OWNER_PORT}",
            f"--master_server_address=127.0.0.1:{MASTER_PORT}",
            "--metadata_server=P2PHANDSHAKE",
            "--protocol=tcp",
            f"--global_segment_size={max(4, 16 * round_bytes // GIB)} GB",
        ],
    }
    program, *arguments = programs[what]
    path = package() / program
    path.chmod(path.stat().st_mode | 0o111)
    process = subprocess.Popen([str(path), *arguments], preexec_fn=end_with_parent)
    port = MASTER_PORT if what == "master" else OWNER_PORT
    while not listens(port):
        if process.poll() is not None:
            sys.exit(f"{program} ended with status {process.returncode}")
        time.sleep(0.05)
    (place / f"{what}.ready").touch()
    sys.exit(process.wait())


class Desk:
    """The private memory of a worker, and its orders."""

    def __init__(self, round_bytes: int) -> None:
        from mooncake.store import MooncakeDistributedStore

        self.store = MooncakeDistributedStore()
        memory_bytes = SECTIONS * round_bytes
        status = self.store.setup_dummy(memory_bytes, 0, f"127.0.0.1:{OWNER_PORT}")
        if status != 0:
            raise RuntimeError(f"setup_dummy failed with {status}")
        self.memory = self.store.alloc_from_mem_pool(memory_bytes)
        if self.memory == 0:
            raise RuntimeError("no memory from the pool of the store")
        status = self.store.register_buffer(self.memory, memory_bytes)
        if status != 0:
            raise RuntimeError(f"register_buffer failed with {status}")
        ctypes.memset(self.memory, 0x5A, memory_bytes)
        self.round_bytes = round_bytes
        self.next = 0

    def prepare(self, order: dict) -> dict:
        self.next = (self.next + 1) % SECTIONS
        for number, at in self.buffers(order):
            ctypes.memmove(at, content(number, order["bytes"]), order["bytes"])
        return {"blocks": order["count"]}

    def put(self, order: dict) -> dict:
        return self.in_batches(order, self.store.batch_put_from, 0)

    def get(self, order: dict) -> dict:
        self.next = (self.next + 1) % SECTIONS
        reply = self.in_batches(order, self.store.batch_get_into, order["bytes"])
        for number, at in self.buffers(order):
            if ctypes.string_at(at, order["bytes"]) != content(number, order["bytes"]):
                raise RuntimeError(f"block {number} has wrong bytes")
        return reply

    def lookup(self, order: dict) -> dict:
        keys = [key(number) for number, _ in self.buffers(order)]
        wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        there = self.store.batch_is_exist(keys)
        reply = since(wall_ns, cpu_ns)
        found = next((index for index, one in enumerate(there) if one != 1), len(there))
        return reply | {"blocks": found}

    def reset(self, _order: dict) -> dict:
        self.store.remove_all(True)
        return {}

    def buffers(self, order: dict) -> list[tuple[int, int]]:
        first, count, size = order["first"], order["count"], order["bytes"]
        start = self.memory + self.next * self.round_bytes
        return [(first + index, start + index * size) for index in range(count)]

    def in_batches(self, order: dict, call, good: int) -> dict:
        buffers, batch, size = self.buffers(order), order["batch"], order["bytes"]
        parts = [buffers[at : at + batch] for at in range(0, len(buffers), batch)]
        calls = [
            ([key(number) for number, _ in part], [at for _, at in part], [size] * len(part))
            for part in parts
        ]
        results = []
        wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        for arguments in calls:
            results.append(call(*arguments))
        reply = since(wall_ns, cpu_ns)
        failed = [status for part in results for status in part if status != good]
        if failed:
            raise RuntimeError(f"{len(failed)} blocks failed, the first with {failed[0]}")
        return reply | {"blocks": order["count"]}


def key(number: int) -> str:
    return f"{number:016x}"


def main() -> None:
    options = arguments(__doc__, ["master", "owner"])
    if options.serve:
        serve(options.serve, options.place, options.round_bytes)
    else:
        carry_out(lambda: Desk(options.round_bytes))


if __name__ == "__main__":
    main()
