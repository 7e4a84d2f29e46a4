"""Starts programs with engines in processes of their own.

They are forked from a process that has imported vLLM already, and is forked itself when this module is
imported, so that it has neither engines nor threads. An engine forks its workers, as vLLM does on a GPU;
on a CPU it spawns them, as it does in the servers of `test_processes`."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import multiprocessing
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import engine

LIMIT_S = 400
"""Far more than it takes on a machine that does other things, too."""
_MESSAGE_BYTES_MAX = 1 << 17


class Started:
    """The function ``main`` of a module, called with ``told`` in a process of its own."""

    def __init__(self, told: dict[str, Any], module: str = "engine_process") -> None:
        output, output_end = os.pipe()
        status, status_end = os.pipe()
        socket.send_fds(_asks, [json.dumps([module, told]).encode()], [output_end, status_end])
        os.close(output_end)
        os.close(status_end)
        self.stdout = os.fdopen(output, "rb")
        self._status = os.fdopen(status, "rb")
        (self._group,) = struct.unpack("i", self._status.read(4))

    def output(self) -> str:
        """All of its output, when it has ended well."""
        give_up_s, output = time.monotonic() + LIMIT_S, b""
        while True:
            left_s = max(0, give_up_s - time.monotonic())
            if not select.select([self.stdout], [], [], left_s)[0]:
                raise AssertionError(f"it did not end within {LIMIT_S} s: {output.decode()}")
            read = os.read(self.stdout.fileno(), 1 << 16)
            if not read:
                break
            output += read
        status = self._status.read(4)
        if status != struct.pack("i", 0):
            raise AssertionError(f"it ended with status {status.hex()}: {output.decode()}")
        return output.decode()

    def end(self) -> None:
        """Kills its processes, all at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._group, signal.SIGKILL)
        self.stdout.close()
        self._status.close()


def run(told: dict[str, Any], module: str = "engine_process") -> Any:
    """What a program with an engine did, which is in the last line of its output."""
    started = Started(told, module)
    try:
        return json.loads(started.output().splitlines()[-1])
    finally:
        started.end()


def _serve(asked: socket.socket) -> None:
    """Starts what is asked for until nobody can ask any more."""
    # What is to be done at the end of the process that asks is none of theirs.
    atexit._clear()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, ends, *_ = socket.recv_fds(asked, _MESSAGE_BYTES_MAX, 2)
        if not message:
            return
        if os.fork() == 0:
            asked.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _attend(*json.loads(message), *ends)
            return
        for end in ends:
            os.close(end)


def _attend(module: str, told: dict[str, Any], output: int, status: int) -> None:
    """Runs a program in a group of its own, and tells the group, and how it ended."""
    os.setsid()
    os.write(status, struct.pack("i", os.getpid()))
    os.set_inheritable(status, False)
    os.dup2(output, 1)
    os.close(output)
    process = multiprocessing.get_context("fork").Process(target=_run, args=(module, told, status))
    process.start()
    os.close(1)
    process.join()
    os.write(status, struct.pack("i", process.exitcode))


def _run(module: str, told: dict[str, Any], status: int) -> None:
    os.close(status)
    # Several engines at once share few cores.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    with _forked_workers():
        importlib.import_module(module).main(told)
    atexit._run_exitfuncs()


@contextlib.contextmanager
def _forked_workers() -> Iterator[None]:
    from vllm.platforms.cpu import CpuPlatform

    checked = CpuPlatform.check_and_update_config

    def forks(platform: Any, config: Any) -> None:
        checked(config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    with mock.patch.object(CpuPlatform, "check_and_update_config", classmethod(forks)):
        yield


def _begin() -> socket.socket:
    engine.load()
    sys.stdout.flush()
    asks, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        asks.close()
        try:
            _serve(asked)
        finally:
            os._exit(0)
    asked.close()
    return asks


_asks = _begin()
