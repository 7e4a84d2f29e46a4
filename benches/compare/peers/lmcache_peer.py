"""LMCache as a contender: its server, and workers with its connector to it, which speak the driver's
JSON lines.

What LMCache shares between hosts goes through a server (`lm://`) or another remote store; this is its
own. Blocks are written from, and read into, the memory that its CPU backend has for them. A put is
over when the server has it, which it is asked at the end of an order: the connector itself returns
when the bytes are in the socket. The server forgets nothing: blocks of a round take the names of those
of the round before.
"""

import asyncio
import os
import pathlib
import subprocess
import sys
import time

from orders import arguments, carry_out, content, end_with_parent, listens, since

PORT = 51061
GIB = 1 << 30


def serve(place: pathlib.Path) -> None:
    """Runs the server; says in a file when it listens."""
    command = [sys.executable, "-m", "lmcache.v1.server", "127.0.0.1", str(PORT), "cpu"]
    process = subprocess.Popen(command, preexec_fn=end_with_parent)
    while not listens(PORT):
        if process.poll() is not None:
            sys.exit(f"the server of LMCache ended with status {process.returncode}")
        time.sleep(0.05)
    (place / "server.ready").touch()
    sys.exit(process.wait())


class Desk:
    """The private memory of a worker, and its orders."""

    def __init__(self, round_bytes: int) -> None:
        import torch
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.storage_backend.connector.lm_connector import LMCServerConnector
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

        config = LMCacheEngineConfig.from_defaults(
            local_cpu=False, max_local_cpu_size=2 * round_bytes / GIB
        )
        # What a connector asks of it: how many groups of layers there are.
        metadata = LMCacheMetadata("compare", 1, 1, 0, 0, torch.uint8, (1, 2, 256, 1, 256))
        self.memory = LocalCPUBackend(config, metadata, "cpu")
        self.loop = asyncio.new_event_loop()
        self.store = LMCServerConnector("127.0.0.1", PORT, self.loop, self.memory)
        self.prepared = []

    def prepare(self, order: dict) -> dict:
        for block in self.prepared:
            block.ref_count_down()
        self.prepared = [self.allocate(order["bytes"]) for _ in range(order["count"])]
        for number, block in enumerate(self.prepared, start=order["first"]):
            memoryview(block.byte_array).cast("B")[:] = content(number, order["bytes"])
        return {"blocks": order["count"]}

    def put(self, order: dict) -> dict:
        async def put() -> bool:
            for key, block in zip(keys, self.prepared, strict=True):
                await self.store.put(key, block)
            return await self.store.exists(keys[-1])

        keys = self.keys(order)
        wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        there = self.loop.run_until_complete(put())
        reply = since(wall_ns, cpu_ns)
        if not there:
            raise RuntimeError("the server does not have the last block")
        return reply | {"blocks": order["count"]}

    def get(self, order: dict) -> dict:
        async def get() -> list:
            return [await self.store.get(key) for key in keys]

        keys = self.keys(order)
        wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        blocks = self.loop.run_until_complete(get())
        reply = since(wall_ns, cpu_ns)
        for number, block in enumerate(blocks, start=order["first"]):
            if block is None:
                raise RuntimeError(f"block {number} is not there")
            if memoryview(block.byte_array).cast("B") != content(number, order["bytes"]):
                raise RuntimeError(f"block {number} has wrong bytes")
            block.ref_count_down()
        return reply | {"blocks": order["count"]}

    def lookup(self, order: dict) -> dict:
        async def lookup() -> int:
            for found, key in enumerate(keys):
                if not await self.store.exists(key):
                    return found
            return len(keys)

        keys = self.keys(order)
        wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        found = self.loop.run_until_complete(lookup())
        return since(wall_ns, cpu_ns) | {"blocks": found}

    def reset(self, _order: dict) -> dict:
        return {}

    def allocate(self, size: int):
        import torch
        from lmcache.v1.memory_management import MemoryFormat

        block = self.memory.allocate(
            torch.Size([2, 1, 1, size // 2]), torch.uint8, MemoryFormat.KV_2LTD
        )
        if block is None:
            raise RuntimeError("no memory from the CPU backend")
        return block

    def keys(self, order: dict) -> list:
        import torch
        from lmcache.utils import CacheEngineKey

        size = order["bytes"]
        return [
            CacheEngineKey(f"compare-{size}", 1, 0, index, torch.uint8)
            for index in range(order["count"])
        ]


def main() -> None:
    # It would tell its makers of each start.
    os.environ["LMCACHE_TRACK_USAGE"] = "false"
    options = arguments(__doc__, ["server"])
    if options.serve:
        serve(options.place)
    else:
        carry_out(lambda: Desk(options.round_bytes))


if __name__ == "__main__":
    main()
