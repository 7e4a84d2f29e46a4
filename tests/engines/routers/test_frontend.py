"""Dynamo's own frontend before two real vLLM workers, which hand prompts over through the pool."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import own_network
from engine import BLOCK_TOKENS, engine, greedy
from models import smollm2
from region import Region

LIMIT_S = 240
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
FRONTEND, PREFILL_METRICS, DECODE_METRICS = 8077, 8181, 8182
# Nothing of the machine's network is in there.
PLACES = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
# A block of the model has 1.4 MiB.
REGION = dict(size="256MiB", block="1MiB", chunk="4MiB")
QUESTIONS = [
    "The memory between the hosts has no cache coherence and no atomic operations. " * 6
    + "Question: what has the memory?\nAnswer:",
    "Every line has one writer. A block is announced after its last byte. " * 9
    + "Question: who writes a line?\nAnswer:",
]
TOKENS = 16


def setUpModule() -> None:
    own_network.enter()


class Frontend(unittest.TestCase):
    """One prefill worker, one decode worker, and what a user asks the frontend."""

    def setUp(self) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.region = self.enterContext(Region(**REGION))

    def test_a_prefill_worker_hands_over_to_a_decode_worker(self) -> None:
        self.enterContext(self.running("frontend", "dynamo.frontend", self.frontend()))
        self.enterContext(self.worker("prefill", 0, PREFILL_METRICS))
        self.enterContext(self.worker("decode", 1, DECODE_METRICS))
        expected = computed(QUESTIONS)
        self.wait_until_both_serve()
        blocks = 0
        for question, text in zip(QUESTIONS, expected, strict=True):
            answer = ask(question)
            self.assertEqual(answer["choices"][0]["text"], text)
            # All of it, and the last block is not full.
            blocks += math.ceil(answer["usage"]["prompt_tokens"] / BLOCK_TOKENS)
        self.assertEqual(counter(DECODE_METRICS, "vllm:rackline_loaded_blocks_total"), blocks)
        self.assertEqual(counter(DECODE_METRICS, "vllm:rackline_failed_load_blocks_total"), 0)
        self.assertGreaterEqual(counter(PREFILL_METRICS, "vllm:rackline_saved_blocks_total"), blocks)

    def frontend(self) -> list[str]:
        return ["--http-host", "127.0.0.1", "--http-port", str(FRONTEND)]

    def worker(self, mode: str, node: int, metrics: int) -> contextlib.AbstractContextManager[None]:
        transfer = dict(
            kv_connector="NeuronNixlConnector",
            kv_connector_module_path="rackline.vllm.dynamo",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"region": self.region.path, "node": node},
        )
        arguments = ["--model", smollm2(), "--served-model-name", "model", "--dtype", "float32"]
        arguments += ["--block-size", str(BLOCK_TOKENS), "--enforce-eager", "--max-model-len", "1024"]
        arguments += ["--kv-cache-memory-bytes", str(256 << 20), "--disaggregation-mode", mode]
        arguments += ["--kv-transfer-config", json.dumps(transfer)]
        program = pathlib.Path(__file__).with_name("dynamo_worker.py")
        return self.running(mode, str(program), arguments, DYN_SYSTEM_PORT=str(metrics))

    @contextlib.contextmanager
    def running(
        self, name: str, program: str, arguments: list[str], **more: str
    ) -> Iterator[None]:
        """A process of Dynamo, with its log in a file that is shown when the test fails."""
        log = self.folder / f"{name}.log"
        path = os.pathsep.join([*sys.path, os.environ["RACKLINE_DYNAMO"]])
        environment = dict(
            os.environ,
            PYTHONPATH=path,
            VLLM_ENABLE_V1_MULTIPROCESSING="1",
            VLLM_CPU_OMP_THREADS_BIND="nobind",
            VLLM_HOST_IP="127.0.0.1",
            VLLM_NIXL_SIDE_CHANNEL_HOST="127.0.0.1",
            DYN_FILE_KV=str(self.folder),
            DYN_TCP_RPC_HOST="127.0.0.1",
            DYN_TCP_RESPONSE_STREAM_HOST="127.0.0.1",
            DYN_EVENT_PLANE_HOST="127.0.0.1",
            DYN_SYSTEM_HOST="127.0.0.1",
            **more,
        )
        module = [program] if program.endswith(".py") else ["-m", program]
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, *module, *arguments, *PLACES],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The worker's engine is in its group.
                start_new_session=True,
            )
        self.processes[name] = process
        try:
            yield
        except BaseException:
            print(f"--- {name}", *log.read_text(errors="replace").splitlines()[-40:], sep="\n")
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait_until_both_serve(self) -> None:
        """Until the frontend knows a prefill worker and a decode worker."""
        ends_s = time.monotonic() + LIMIT_S
        while True:
            for name, process in self.processes.items():
                self.assertIsNone(process.poll(), f"{name} ended")
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if "prefill" in get(FRONTEND, "/health") and '"model"' in get(FRONTEND, "/v1/models"):
                    return
            self.assertLess(time.monotonic(), ends_s, "the frontend does not know both workers")
            time.sleep(0.5)


def get(port: int, path: str) -> str:
    with OPENER.open(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as answer:
        return answer.read().decode()


def computed(questions: list[str]) -> list[str]:
    """What an engine without the pool answers."""
    with engine(smollm2(), skip_tokenizer_init=False) as plain:
        params = greedy(max_tokens=TOKENS, detokenize=True)
        outputs = plain.llm.generate(questions, params, use_tqdm=False)
        return [output.outputs[0].text for output in outputs]


def ask(question: str) -> Any:
    """What the frontend answers to a user."""
    body = dict(model="model", prompt=question, temperature=0, max_tokens=TOKENS, ignore_eos=True)
    request = urllib.request.Request(
        f"http://127.0.0.1:{FRONTEND}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with OPENER.open(request, timeout=LIMIT_S) as answer:
        return json.loads(answer.read())


def counter(port: int, name: str) -> int:
    lines = [line for line in get(port, "/metrics").splitlines() if line.startswith(name)]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


if __name__ == "__main__":
    unittest.main()
