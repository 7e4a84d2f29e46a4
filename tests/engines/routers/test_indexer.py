"""What Dynamo's indexer knows of the pool, by the events of ``rackline events``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from engine import BLOCK_TOKENS, Engine, engine, prompts
from models import tiny
from region import Region, command

# A block of the tiny model has 128 KiB: some eighty of them fit the pool.
REGION = dict(size="16MiB", block="128KiB", chunk="1MiB")
PROMPTS = prompts(1, 200, 300)
WAIT_S = 60
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


@contextlib.contextmanager
def running(arguments: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(arguments, env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def answer(own: Engine, given: list[list[int]]) -> None:
    """Until the blocks are saved: a server makes steps for that, too."""
    own.answers(given, tokens=1)
    own.drain()


class DynamoIndexer:
    """Dynamo's index as a server, which subscribes to the events."""

    def __init__(self, events: str, replay: str) -> None:
        self.port, self._events, self._replay = free_port(), events, replay

    @contextlib.contextmanager
    def serve(self) -> Iterator[None]:
        """Knows nothing when it starts."""
        arguments = [sys.executable, "-m", "dynamo.indexer", "--port", str(self.port), "--threads", "1"]
        path = os.pathsep.join([*sys.path, os.environ["RACKLINE_DYNAMO"]])
        with running(arguments, PYTHONPATH=path, DYN_LOG="warn"):
            self._wait_until_it_serves()
            self._ask(
                "/register",
                instance_id=1,
                endpoint=self._events,
                replay_endpoint=self._replay,
                model_name="default",
                block_size=BLOCK_TOKENS,
            )
            yield

    def blocks(self, prompt: list[int]) -> int:
        """How many blocks of a prompt the pool has, as the index sees it: in memory of the host."""
        answer = self._ask("/query", token_ids=prompt, model_name="default")
        return answer["instances"].get("1", {}).get("cpu", 0) // BLOCK_TOKENS

    def _ask(self, path: str, **body: Any) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with OPENER.open(request, timeout=WAIT_S) as answer:
            return json.loads(answer.read())

    def _wait_until_it_serves(self) -> None:
        ends_s = time.monotonic() + WAIT_S
        while True:
            try:
                with OPENER.open(f"http://127.0.0.1:{self.port}/health", timeout=WAIT_S):
                    return
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > ends_s:
                    raise
                time.sleep(0.1)


class Indexer(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region(**REGION))
        self.events, self.replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        self.indexer = DynamoIndexer(self.events, self.replay)

    def publisher(self) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        place = ["--region", self.region.path, "--zmq", self.events, "--replay", self.replay]
        return running([command(), "events", *place])

    def wait_for(self, blocks: int, prompt: list[int]) -> None:
        ends_s = time.monotonic() + WAIT_S
        while (found := self.indexer.blocks(prompt)) != blocks:
            self.assertLess(time.monotonic(), ends_s, f"{found} blocks are found, and not {blocks}")
            time.sleep(0.1)

    def test_it_knows_what_is_stored_and_what_is_gone(self) -> None:
        settings = {"region": self.region.path, "node": 0, "event_records": True}
        whole = [len(prompt) // BLOCK_TOKENS for prompt in PROMPTS]
        with self.publisher(), engine(tiny(), settings) as own:
            with self.indexer.serve():
                answer(own, PROMPTS)
                for blocks, prompt in zip(whole, PROMPTS, strict=True):
                    self.wait_for(blocks, prompt)
                # Others take the room.
                answer(own, prompts(2, *[320] * 12))
                for prompt in PROMPTS:
                    self.wait_for(0, prompt)
                own.forget()
                answer(own, PROMPTS[:1])
                self.wait_for(whole[0], PROMPTS[0])
            # An indexer that was started again gets what it lacks, though nothing changes.
            with self.indexer.serve():
                self.wait_for(whole[0], PROMPTS[0])
                self.wait_for(0, PROMPTS[1])
        # A publisher that was started again reads what the pool has; the engine is gone.
        with self.publisher(), self.indexer.serve():
            self.wait_for(whole[0], PROMPTS[0])
            self.wait_for(0, PROMPTS[1])


if __name__ == "__main__":
    unittest.main()
