"""``rackline events`` as its subscribers see it, without an engine."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import unittest
from typing import Any

import msgspec
import zmq
from region import Region, command
from test_indexer import REGION, WAIT_S, free_port, running

END = (-1).to_bytes(8, "big", signed=True)


class Publisher(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region(**REGION))
        self.events, self.replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        self.context = self.enterContext(zmq.Context())

    def start(self, *options: str) -> None:
        arguments = [command(), "events", "--region", self.region.path, "--zmq", self.events]
        self.enterContext(running([*arguments, *options]))

    def socket(self, kind: int, address: str) -> Any:
        socket = self.enterContext(self.context.socket(kind))
        socket.setsockopt(zmq.RCVTIMEO, WAIT_S * 1000)
        socket.connect(address)
        return socket

    def test_a_region_that_is_formatted_again_is_cleared(self) -> None:
        self.start()
        subscriber = self.socket(zmq.SUB, self.events)
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        # An empty batch, each second.
        _, first, _ = subscriber.recv_multipart()
        again = ["format", "--force", "--region", self.region.path, "--block", "128KiB"]
        again += ["--nodes", "2", "--chunk", "1MiB", "--lock", "bakery"]
        subprocess.run([command(), *again], check=True, stdout=subprocess.DEVNULL)
        numbers, batches = [int.from_bytes(first, "big")], []
        while {"type": "AllBlocksCleared"} not in sum(batches, []):
            topic, number, payload = subscriber.recv_multipart()
            self.assertEqual(topic, b"kv-events")
            numbers.append(int.from_bytes(number, "big"))
            batches.append(msgspec.msgpack.decode(payload)[1])
        self.assertEqual(numbers, list(range(numbers[0], numbers[-1] + 1)))

    def test_a_replay_from_before_what_is_kept_is_the_present_state(self) -> None:
        self.start("--replay", self.replay)
        asking = self.socket(zmq.DEALER, self.replay)
        asking.send_multipart([b"no number"])
        asking.send_multipart([b"", bytes(8)])
        delimiter, topic, _, payload = asking.recv_multipart()
        self.assertEqual((delimiter, topic), (b"", b"kv-events"))
        self.assertEqual(msgspec.msgpack.decode(payload)[1], [{"type": "AllBlocksCleared"}])
        self.assertEqual(asking.recv_multipart(), [b"", b"", END, b""])

    def test_a_peer_that_sends_nonsense_costs_itself_alone(self) -> None:
        self.start("--replay", self.replay)
        subscriber = self.socket(zmq.SUB, self.events)
        subscriber.setsockopt(zmq.SUBSCRIBE, b"kv-")
        subscriber.recv_multipart()
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
        # The length of the second frame is 2^50 bytes.
        for nonsense in [b"GET / HTTP/1.1\r\n\r\n".ljust(64), greeting + b"\x02\x00\x04" + bytes(6)]:
            for address in (self.events, self.replay):
                host, port = address.removeprefix("tcp://").split(":")
                with socket.create_connection((host, int(port)), timeout=WAIT_S) as peer:
                    peer.sendall(nonsense)
                    with contextlib.suppress(ConnectionResetError):
                        while peer.recv(4096):
                            pass
        for _ in range(2):
            subscriber.recv_multipart()

    def test_what_cannot_be_bound_is_refused_in_words(self) -> None:
        for address, message in [
            ("ipc:///tmp/events", "give an address such as tcp://127.0.0.1:5557"),
            ("tcp://192.0.2.1:5557", "give an address of this host and a free port"),
        ]:
            arguments = ["events", "--region", self.region.path, "--zmq", address]
            ended = subprocess.run([command(), *arguments], capture_output=True, timeout=WAIT_S)
            self.assertEqual(ended.returncode, 1)
            self.assertIn(message, ended.stderr.decode())


if __name__ == "__main__":
    unittest.main()
