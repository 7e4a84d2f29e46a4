"""The systems: how vLLM's servers are told of each, and what runs beside the servers."""

from __future__ import annotations

import contextlib
import json
import pathlib
from typing import Any

import region
from servers import Processes, free_port

BLOCK_TOKENS = 32
MODEL_TOKENS = 2048
KV_BYTES_OF_TOKEN = 46_080
"""SmolLM2-135M in float32: keys and values of 30 layers, 3 heads of 64."""
PREFILL, DECODE = 0, 1
HERE = pathlib.Path(__file__).resolve().parent
# LMCache is a peer of the tests, too.
PEERS = [HERE / "peers", HERE.parents[1] / "tests" / "engines"]


class Control:
    """No connector: the decode server computes the prompt."""

    name, title = "control", "none: the decode computes"
    peer: str | None = None
    """The folder with its requirements."""
    package = ""
    """Which of them it is."""
    transfers = False

    def __init__(self, processes: Processes, folder: pathlib.Path, room: int) -> None:
        self.processes, self.folder, self.room = processes, folder, room

    def start(self, stack: contextlib.ExitStack) -> None:
        """Starts what runs beside the servers. ``room`` is how many bytes all prompts take."""

    def connector(self, side: int) -> dict[str, Any] | None:
        """The ``--kv-transfer-config`` of a server."""
        return None

    def environment(self, side: int) -> dict[str, str]:
        return {}

    def to_prefill(self) -> dict[str, Any] | None:
        """The ``kv_transfer_params`` of a request to the prefill server. Its answer has those for the
        decode server."""
        return None


class Rackline(Control):
    name, title, transfers = "rackline", "Rackline", True

    def start(self, stack: contextlib.ExitStack) -> None:
        size = f"{(2 * self.room >> 20) + 64}MiB"
        # Each of the 3 heads of a block of tokens is a block of the pool.
        block = f"{BLOCK_TOKENS * KV_BYTES_OF_TOKEN // 3 >> 10}KiB"
        self.region = stack.enter_context(region.Region(size, block, chunk="8MiB"))

    def connector(self, side: int) -> dict[str, Any]:
        return dict(
            kv_connector="RacklineConnector",
            kv_connector_module_path="rackline.vllm",
            kv_role=role(side),
            kv_connector_extra_config={"region": self.region.path, "node": side},
        )

    def to_prefill(self) -> dict[str, Any]:
        return {"rackline": {"handover": True}}


class Nixl(Control):
    name, title, transfers = "nixl", "NixlConnector", True
    peer, package = "nixl", "nixl"

    def connector(self, side: int) -> dict[str, Any]:
        # Its threads spin. With vLLM's default, 4, no processor is left to the engines on a small machine.
        more = {"num_threads": 1}
        return dict(
            kv_connector="NixlConnector",
            kv_buffer_device="cpu",
            kv_role=role(side),
            kv_connector_extra_config=more,
        )

    def environment(self, side: int) -> dict[str, str]:
        return dict(
            VLLM_NIXL_SIDE_CHANNEL_HOST="127.0.0.1",
            VLLM_NIXL_SIDE_CHANNEL_PORT=str(free_port()),
            UCX_TLS="tcp,shm,self",
        )

    def to_prefill(self) -> dict[str, Any]:
        nothing_yet = ["remote_engine_id", "remote_block_ids", "remote_host", "remote_port"]
        return dict(dict.fromkeys(nothing_yet), do_remote_decode=True, do_remote_prefill=False)


class MooncakeStore(Control):
    name, title, transfers = "mooncake", "MooncakeStoreConnector", True
    peer, package = "mooncake", "mooncake-transfer-engine-non-cuda"

    def start(self, stack: contextlib.ExitStack) -> None:
        packages = self.processes.packages
        assert packages is not None
        rpc, http, metrics = free_port(), free_port(), free_port()
        command = [str(packages / "mooncake" / "mooncake_master"), "--rpc_address=127.0.0.1"]
        command += [f"--port={rpc}", f"--metrics_port={metrics}"]
        command += ["--enable_http_metadata_server=true", f"--http_metadata_server_port={http}"]
        # Blocks that take longer than the default, 10 s, are refused: so it is on a busy machine.
        command += ["--http_metadata_server_host=127.0.0.1", "--default_kv_lease_ttl=60000"]
        libraries = str(packages / "mooncake_transfer_engine_non_cuda.libs")
        self.processes.start("mooncake-master", command, LD_LIBRARY_PATH=libraries)
        self.processes.wait_for_port("mooncake-master", rpc)
        self.processes.wait_for_port("mooncake-master", http)
        # Each of the two servers offers a segment, and either could get all prompts.
        told = dict(
            local_hostname="127.0.0.1",
            metadata_server=f"http://127.0.0.1:{http}/metadata",
            global_segment_size=2 * self.room,
            local_buffer_size=64 << 20,
            protocol="tcp",
            device_name="",
            master_server_address=f"127.0.0.1:{rpc}",
        )
        self.settings = self.folder / "mooncake.json"
        self.settings.write_text(json.dumps(told))

    def connector(self, side: int) -> dict[str, Any]:
        more = {"load_async": True}
        return dict(
            kv_connector="MooncakeStoreConnector", kv_role="kv_both", kv_connector_extra_config=more
        )

    def environment(self, side: int) -> dict[str, str]:
        return dict(
            MOONCAKE_CONFIG_PATH=str(self.settings),
            MC_STORE_CLIENT_ID=str(side + 1),
            MC_TCP_BIND_ADDRESS="127.0.0.1",
        )


class LmcacheServer(Control):
    name, title, transfers = "lmcache", "LMCacheMPConnector", True
    peer, package = "lmcache", "lmcache"

    def start(self, stack: contextlib.ExitStack) -> None:
        self.port = free_port()
        command = [self.processes.python, "-m", "lmcache.v1.multiprocess.server"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--disable-metrics"]
        command += ["--chunk-size", str(BLOCK_TOKENS), "--supported-transfer-mode", "auto"]
        command += ["--l1-size-gb", f"{2 * self.room / (1 << 30):.2f}", "--eviction-policy", "LRU"]
        self.processes.start("lmcache-server", command, LMCACHE_TRACK_USAGE="false")
        self.processes.wait_for_port("lmcache-server", self.port)

    def connector(self, side: int) -> dict[str, Any]:
        more = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": self.port}
        return dict(
            kv_connector="LMCacheMPConnector", kv_role="kv_both", kv_connector_extra_config=more
        )

    def environment(self, side: int) -> dict[str, str]:
        return dict(LMCACHE_TRACK_USAGE="false")


class Example(Control):
    name, title, transfers = "example", "ExampleConnector", True

    def connector(self, side: int) -> dict[str, Any]:
        more = {"shared_storage_path": str(self.folder / "example")}
        return dict(
            kv_connector="ExampleConnector", kv_role="kv_both", kv_connector_extra_config=more
        )


def place_of(peer: str) -> pathlib.Path:
    """The folder in which the folder of a peer is."""
    return next(place for place in PEERS if (place / peer).is_dir())


def version(system: type[Control]) -> str | None:
    """The package that a system needs, and its pinned version."""
    if system.peer is None:
        return None
    pins = (place_of(system.peer) / system.peer / "requirements.txt").read_text().splitlines()
    (pin,) = [line for line in pins if line.startswith(f"{system.package}==")]
    return pin.replace("==", " ")


def role(side: int) -> str:
    return "kv_consumer" if side == DECODE else "kv_producer"


SYSTEMS: dict[str, type[Control]] = {
    system.name: system
    for system in (Control, Rackline, Nixl, MooncakeStore, LmcacheServer, Example)
}
