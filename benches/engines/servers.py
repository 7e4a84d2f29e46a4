"""The processes of a run: vLLM's servers, what runs beside them, and how they are asked."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

START_LIMIT_S = 300
ANSWER_LIMIT_S = 300
END_LIMIT_S = 15
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Failed(Exception):
    """Why a run has no figures, and what to do."""


class Processes:
    """Processes that end when this is left, however that is."""

    def __init__(self, python: str, packages: pathlib.Path | None, logs: pathlib.Path) -> None:
        self.python, self.packages, self._logs = python, packages, logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._running.values():
            process.terminate()
        give_up_s = time.monotonic() + END_LIMIT_S
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0, give_up_s - time.monotonic()))
            # What it started is in its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, name: str, command: list[str], **more: str) -> None:
        environment = dict(
            os.environ,
            PYTHONPATH=str(self.packages or ""),
            PYTHONHASHSEED="0",
            HF_HUB_OFFLINE="1",
            VLLM_NO_USAGE_STATS="1",
            DO_NOT_TRACK="1",
            VLLM_HOST_IP="127.0.0.1",
            # Two servers share few processors.
            OMP_NUM_THREADS="1",
            VLLM_CPU_OMP_THREADS_BIND="nobind",
            **more,
        )
        with open(self._logs / f"{name}.log", "wb") as log:
            self._running[name] = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._logs,
            )

    def check(self) -> None:
        for name, process in self._running.items():
            if (status := process.poll()) is not None:
                raise Failed(f"{name} ended with status {status}. {self.said(name)}")

    def wait_for_port(self, name: str, port: int) -> None:
        give_up_s = time.monotonic() + START_LIMIT_S
        while not listens(port):
            self.check()
            if time.monotonic() > give_up_s:
                raise Failed(f"{name} does not listen after {START_LIMIT_S} s. {self.said(name)}")
            time.sleep(0.1)

    def said(self, name: str) -> str:
        lines = (self._logs / f"{name}.log").read_text(errors="replace").splitlines()
        errors = [line for line in lines if " ERROR " in line or "Error: " in line]
        # The first may be the cause, and the last of a traceback names it.
        shown = [line.strip()[:300] for line in errors or lines]
        ends = dict.fromkeys([*shown[:1], *shown[-1:]] if errors else shown[-1:])
        return f"It said: {' ... '.join(ends) or 'nothing'} (--logs DIR keeps all of it)"


class Server:
    """A server of vLLM."""

    def __init__(
        self,
        processes: Processes,
        name: str,
        arguments: list[str],
        transfer: dict[str, Any] | None = None,
        **environment: str,
    ) -> None:
        self._processes, self.name, self._port = processes, name, free_port()
        command = [processes.python, "-m", "vllm.entrypoints.openai.api_server", *arguments]
        command += ["--host", "127.0.0.1", "--port", str(self._port)]
        if transfer is not None:
            command += ["--kv-transfer-config", json.dumps(transfer)]
        processes.start(name, command, **environment)

    def wait_until_it_serves(self) -> None:
        give_up_s = time.monotonic() + START_LIMIT_S
        while True:
            self._processes.check()
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._get("/health")
                return
            if time.monotonic() > give_up_s:
                said = self._processes.said(self.name)
                raise Failed(f"{self.name} does not serve after {START_LIMIT_S} s. {said}")
            time.sleep(0.5)

    def answer(self, **body: Any) -> dict[str, Any]:
        with self._post(body) as answer:
            return json.loads(answer.read())

    def stream(self, **body: Any) -> Iterator[dict[str, Any]]:
        """Each choice when it comes."""
        with self._post(dict(body, stream=True)) as answer:
            for line in answer:
                data = line.decode().strip().removeprefix("data:").strip()
                if data in ("", "[DONE]"):
                    continue
                told = json.loads(data)
                if "error" in told:
                    raise self._refused(data)
                yield from told["choices"]

    def prompt_tokens(self) -> dict[str, int]:
        """How many tokens of prompts came from where, since the start."""
        found: dict[str, int] = {}
        for line in self._get("/metrics").splitlines():
            if line.startswith("vllm:prompt_tokens_by_source_total{"):
                source = line.split('source="')[1].split('"')[0]
                found[source] = found.get(source, 0) + int(float(line.rsplit(" ", 1)[1]))
        return found

    def _get(self, path: str) -> str:
        with OPENER.open(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
            return answer.read().decode()

    def _post(self, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            return OPENER.open(request, timeout=ANSWER_LIMIT_S)
        except urllib.error.HTTPError as error:
            raise self._refused(error.read().decode(errors="replace")) from error
        except OSError as error:
            raise self._refused(str(error)) from error

    def _refused(self, why: str) -> Failed:
        said = self._processes.said(self.name)
        return Failed(f"{self.name} did not answer a request: {why[:300]}. {said}")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]
