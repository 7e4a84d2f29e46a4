"""The connector in engines of several processes: tensor parallelism, deaths, and servers that hand
over from prefill to decode."""

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

from engine import engine, prompts
from models import smollm2, tiny
from pool import damage
from region import Region
from routers import TO_PREFILL
from starter import LIMIT_S, Started, run

PROMPTS = [[1, 200, 300, 170]]
MANY = [[number, *[300] * 8] for number in range(10, 16)]
# The common text of two questions: more than a block of 32 tokens, several times.
TEXT = (
    "The memory between the hosts has no cache coherence and no atomic operations. A host that "
    "wants to be seen writes its lines back, and a host that wants to see drops its own copies "
    "first. Every line has one writer. A block is announced after its last byte, and read between "
    "two looks at its descriptor, so that a block which was replaced meanwhile is a miss. "
) * 4


class Processes(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("256MiB", "256KiB", chunk="4MiB"))

    def settings(self, node: int = 0, **more) -> dict:
        return {"region": self.region.path, "node": node, **more}

    def test_tensor_parallel_engines_share_with_each_other_only_when_told_so(self) -> None:
        ranks = dict(head_groups="ranks")
        told = dict(model=tiny(), prompts=PROMPTS, options=dict(tensor_parallel_size=2))
        computed = run({**told, "settings": self.settings(0, **ranks)})
        self.assertEqual(computed["loaded_blocks"], 0)
        for load in ("async", "sync"):
            with self.subTest(load):
                loaded = run({**told, "settings": self.settings(1, load=load, **ranks)})
                self.assertEqual(loaded["tokens"], computed["tokens"])
                # Over both ranks.
                self.assertEqual(loaded["loaded_blocks"], 40)
        damage(self.region)
        again = run({**told, "settings": self.settings(1, **ranks)})
        self.assertEqual(again["tokens"], computed["tokens"])
        self.assertEqual(again["loaded_blocks"], 0)
        self.assertEqual(again["failed_load_blocks"], 40, "once each, and then not found again")
        with engine(tiny(), self.settings(1, **ranks)) as alone:
            alone.answers(prompts(*PROMPTS[0]))
            self.assertEqual(alone.counter("lookup_hit_blocks"), 0, "other parts of the heads")

    def test_tensor_parallel_engines_go_layer_by_layer(self) -> None:
        """The ranks agree behind the forward."""
        told = dict(model=tiny(), prompts=PROMPTS, options=dict(tensor_parallel_size=2))
        by_layers = dict(load="sync", layerwise="both")
        computed = run({**told, "settings": self.settings(0, **by_layers)})
        self.assertGreater(computed["saved_layers"], 0)
        loaded = run({**told, "settings": self.settings(1, **by_layers)})
        self.assertEqual(loaded["tokens"], computed["tokens"])
        self.assertEqual((loaded["loaded_blocks"], loaded["failed_load_blocks"]), (40, 0))
        self.assertGreater(loaded["loaded_layers"], 0)
        damage(self.region)
        again = run({**told, "settings": self.settings(1, **by_layers)})
        self.assertEqual(again["tokens"], computed["tokens"])
        self.assertEqual((again["loaded_blocks"], again["failed_load_blocks"]), (0, 40))

    def test_an_engine_that_dies_while_it_saves(self) -> None:
        told = dict(model=tiny(), prompts=MANY, tokens=8, batch=8, settings=self.settings())
        given = [prompt for part in MANY for prompt in prompts(*part)]
        with engine(tiny()) as plain:
            expected = [answer.tokens for answer in plain.answers(given, tokens=8)]
        for batches in (1, 2):
            dying = Started(told)
            try:
                while batches > 0:
                    line = dying.stdout.readline()
                    self.assertNotEqual(line, b"", "it ended too early")
                    batches -= line == b"batch\n"
            finally:
                dying.end()
        for node in (0, 1):
            with self.subTest(node=node), engine(tiny(), self.settings(node)) as again:
                answers = again.answers(given, tokens=8)
                self.assertEqual([answer.tokens for answer in answers], expected)
                self.assertGreater(again.counter("loaded_blocks"), 0)
                self.assertEqual(again.counter("failed_load_blocks"), 0)

    def test_servers_hand_over_from_prefill_to_decode(self) -> None:
        questions = [TEXT + "\nQuestion: who writes a line?\nAnswer:", TEXT + "\nIn one word:"]
        with engine(smollm2(), skip_tokenizer_init=False) as plain:
            from vllm import SamplingParams

            greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
            outputs = plain.llm.generate(questions, greedy, use_tqdm=False)
            expected = [output.outputs[0].text for output in outputs]
        prefill = self.enterContext(self.server("kv_producer", 0))
        decode = self.enterContext(self.server("kv_consumer", 1))
        for url in (prefill, decode):
            self.wait_for(url)
        # In words of this connector, and in those of routers for NIXL's.
        words = [{"rackline": {"handover": True}}, TO_PREFILL]
        for question, text, params in zip(questions, expected, words, strict=True):
            given = dict(prompt=question, max_tokens=1, temperature=0, kv_transfer_params=params)
            computed = complete(prefill, **given)
            params = computed["kv_transfer_params"]
            self.assertGreater(params["rackline"]["blocks"], 0)
            answer = complete(
                decode,
                prompt=question,
                max_tokens=16,
                temperature=0,
                ignore_eos=True,
                kv_transfer_params=params,
            )
            self.assertEqual(answer["choices"][0]["text"], text)
        metrics = get(decode, "/metrics")
        self.assertGreater(counter(metrics, "vllm:rackline_loaded_blocks_total"), 0)
        self.assertEqual(counter(metrics, "vllm:rackline_failed_load_blocks_total"), 0)
        self.assertEqual(counter(metrics, "vllm:rackline_saved_blocks_total"), 0)
        saved = counter(get(prefill, "/metrics"), "vllm:rackline_saved_blocks_total")
        self.assertGreater(saved, 0)

    @contextlib.contextmanager
    def server(self, role: str, node: int) -> Iterator[str]:
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            port = chosen.getsockname()[1]
        transfer = dict(
            # The name by which Dynamo knows it.
            kv_connector="NeuronNixlConnector",
            kv_connector_module_path="rackline.vllm.dynamo",
            kv_role=role,
            kv_load_failure_policy="recompute",
            kv_connector_extra_config=self.settings(node),
        )
        arguments = ["--model", smollm2(), "--port", str(port), "--host", "127.0.0.1"]
        arguments += ["--dtype", "float32", "--block-size", "32", "--enforce-eager"]
        arguments += ["--max-model-len", "1024", "--kv-cache-memory-bytes", str(256 << 20)]
        arguments += ["--kv-transfer-config", json.dumps(transfer)]
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments],
            stdout=subprocess.DEVNULL,
            # Its workers are in its group.
            start_new_session=True,
            env={
                **os.environ,
                "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            },
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait_for(self, url: str) -> None:
        """Until the server answers."""
        give_up_s = time.monotonic() + LIMIT_S
        while time.monotonic() < give_up_s:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                get(url, "/health")
                return
            time.sleep(0.5)
        self.fail(f"{url} does not serve")


def get(url: str, path: str) -> str:
    with urllib.request.urlopen(url + path, timeout=LIMIT_S) as answer:
        return answer.read().decode()


def complete(url: str, **body) -> dict:
    request = urllib.request.Request(
        url + "/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return json.loads(answer.read())


def counter(metrics: str, name: str) -> float:
    lines = [line for line in metrics.splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


if __name__ == "__main__":
    unittest.main()
