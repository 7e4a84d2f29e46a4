"""LMCache's server with the plugin behind its memory, and a real vLLM that is served by it.

Two servers are two hosts: what the engine of one has stored, that of the other is served, from the pool."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any

os.environ.update(LMCACHE_TRACK_USAGE="false", LMCACHE_LOG_LEVEL="ERROR")

import models  # noqa: E402
import rackline  # noqa: E402
from engine import BLOCK_TOKENS, Answer, engine, prompts  # noqa: E402
from llvmlite.binding import ffi  # noqa: E402
from pool import damage  # noqa: E402
from region import Region  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
PROMPTS = prompts(1, 200, 300)
# Whole chunks, of which the engine computes the last token's anew.
CHUNKS = 200 // BLOCK_TOKENS + 300 // BLOCK_TOKENS
LIMIT_S = 120


def make_llvm_findable() -> None:
    """vLLM looks at all values of all modules when it starts on a CPU, and takes what has a ``__dict__`` for
    an object; llvmlite's library, which LMCache loads, claims to have anything."""
    library = type(ffi.lib)
    anything = library.__getattr__

    def function(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(self, name)

    library.__getattr__ = function


class Server:
    """A running server of LMCache on a host of its own."""

    def __init__(
        self, region: Region, node: int, log: pathlib.Path, opens_when: pathlib.Path | None = None
    ) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self._log = log
        plugin = {
            "type": "plugin",
            "module_path": "rackline.lmcache.l2_adapter",
            "class_name": "RacklineL2Adapter",
            "adapter_params": {"region": region.path, "node": node},
        }
        command = [sys.executable, str(HERE / "server_process.py")]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--disable-metrics"]
        command += ["--chunk-size", str(BLOCK_TOKENS), "--supported-transfer-mode", "engine_driven"]
        command += ["--l1-size-gb", "0.05", "--no-l1-use-lazy", "--eviction-policy", "LRU"]
        command += ["--l2-adapter", json.dumps(plugin)]
        with log.open("w") as out:
            self._process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "LMCACHE_LOG_LEVEL": "INFO",
                    "RACKLINE_OPENS_WHEN": str(opens_when or ""),
                },
            )
        while not self._listens():
            if self._process.poll() is not None:
                raise AssertionError(f"the server has ended: {self.said()}")
            time.sleep(0.05)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> dict[str, int]:
        """Ends it, and returns its counters, which it tells at its end."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(LIMIT_S)
        finally:
            self._process.kill()
            self._process.wait()
        told = re.findall(r"LMCache INFO:.* Rackline: .*: (\w+=\d+.*) ", self._log.read_text())
        counters: dict[str, int] = {}
        for line in told:
            for name, count in re.findall(r"(\w+)=(\d+)", line):
                counters[name] = counters.get(name, 0) + int(count)
        return counters

    def said(self) -> str:
        return self._log.read_text()[-4000:]


class ServedEngine(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        make_llvm_findable()
        cls.model = models.tiny()

    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.region = self.enterContext(Region("64MiB", "64KiB"))

    def served(
        self, node: int, name: str, opens_when: pathlib.Path | None = None
    ) -> tuple[list[Answer], dict[str, int]]:
        """What an engine answers that a server of ``node`` serves, and what the server did. With
        ``opens_when`` it opens the model when the engine has its answers."""
        from vllm.config import KVTransferConfig

        server = Server(self.region, node, self.folder / name, opens_when)
        counters: dict[str, int] = {}
        try:
            transfer = KVTransferConfig(
                kv_connector="LMCacheMPConnector",
                kv_connector_module_path="lmcache.integration.vllm.lmcache_mp_connector",
                kv_role="kv_both",
                kv_connector_extra_config={
                    "lmcache.mp.host": "tcp://127.0.0.1",
                    "lmcache.mp.port": server.port,
                },
            )
            with engine(self.model, transfer=transfer) as own:
                answers = own.answers(PROMPTS, tokens=8)
                if opens_when is not None:
                    opens_when.touch()
                # The server stores when the engine has its answers already.
                self.wait_until_stored()
        finally:
            counters = server.stop()
            if os.environ.get("RACKLINE_SHOW_SERVER"):
                print(server.said(), file=sys.stderr)
        return answers, counters

    def wait_until_stored(self) -> None:
        """Until all chunks are known to another host, whichever host stored them."""
        model = rackline.Model(
            name="any", revision="1", dtype="any", block_tokens=1, layers=1, kv_heads=1, head_dim=1
        )
        deadline_s = time.monotonic() + LIMIT_S
        with rackline.Pool(self.region.path, 1) as pool:
            session = pool.session(model, 1)
            while pool.metrics()["replica_blocks"] < CHUNKS:
                self.assertLess(time.monotonic(), deadline_s, pool.metrics())
                session.lookup([bytes(32)]).wait()
                time.sleep(0.01)

    def test_another_host_is_served_what_one_has_stored(self) -> None:
        with engine(self.model) as own:
            alone = [answer.tokens for answer in own.answers(PROMPTS, tokens=8)]

        # What is to be stored while the model is opened is stored then.
        answers, counters = self.served(0, "first", self.folder / "opens")
        self.assertEqual([answer.tokens for answer in answers], alone)
        self.assertEqual([answer.cached_tokens for answer in answers], [0, 0])
        self.assertGreaterEqual(counters.get("saved_blocks", 0), CHUNKS, counters)

        answers, counters = self.served(1, "second")
        self.assertEqual([answer.tokens for answer in answers], alone)
        cached = [length // BLOCK_TOKENS * BLOCK_TOKENS for length in (200, 300)]
        self.assertEqual([answer.cached_tokens for answer in answers], cached)
        self.assertEqual(counters["loaded_blocks"], CHUNKS, counters)

        # Damaged objects are misses, and the engine computes.
        self.assertGreater(damage(self.region), 0)
        answers, counters = self.served(1, "third")
        self.assertEqual([answer.tokens for answer in answers], alone)
        self.assertEqual([answer.cached_tokens for answer in answers], [0, 0])
        self.assertGreater(counters["miss_checksum"], 0, counters)


if __name__ == "__main__":
    unittest.main()
