"""Times to the first token of Dynamo's mocker pair, beside those of the system `direct`.

    benches/rack/mocker-pair

The mocker computes nothing either: it waits as long as measurements say, and for the transfer of KV. So two
models that know nothing of each other are asked the same. The page of benches/rack has the figures."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy
import own_network
from models import smollm2

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
FRONTEND, BOOTSTRAP = 8078, 8279
LENGTHS = [1500, 3000, 6000]
# Of the network, in 10^9 bytes a second.
BANDWIDTHS = [12.5, 1.25]
# Of Llama-3.1-8B in bfloat16.
KV_BYTES = 131072
REPEATS = 3
START_S = 60
PROFILE = "dynamo/planner/tests/data/profiling_results/H200_TP1P_TP1D"
PLACES = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]


@contextlib.contextmanager
def running(folder: pathlib.Path, name: str, module: str, arguments: list[str]) -> Iterator[None]:
    """A process of Dynamo. Its log is shown when something fails."""
    log = folder / f"{name}.log"
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join([*sys.path, os.environ["RACKLINE_DYNAMO"]]),
        DYN_FILE_KV=str(folder / "discovery"),
        DYN_TCP_RPC_HOST="127.0.0.1",
        DYN_TCP_RESPONSE_STREAM_HOST="127.0.0.1",
        DYN_EVENT_PLANE_HOST="127.0.0.1",
    )
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, *PLACES],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    except BaseException:
        print(f"--- {name}", *log.read_text(errors="replace").splitlines()[-30:], sep="\n", file=sys.stderr)
        raise
    finally:
        process.kill()
        process.wait()


def measured(path: pathlib.Path) -> None:
    """NVIDIA's measurements as the mocker reads them: of prompts, and of the tokens of one request. Lines go
    from point to point."""
    folder = pathlib.Path(os.environ["RACKLINE_DYNAMO"]) / PROFILE
    prefill = numpy.load(folder / "selected_prefill_interpolation/raw_data.npz")
    lengths = numpy.arange(100, 16_000, 20.0)
    decode = numpy.load(folder / "selected_decode_interpolation/raw_data.npz")
    tokens = decode["x_kv_usage"] * decode["max_kv_tokens"][0]
    alone = tokens / decode["y_context_length"] < 1.5
    contexts = numpy.arange(100, 14_000, 100.0)
    itl = numpy.interp(contexts, decode["y_context_length"][alone], decode["z_itl"][alone])
    numpy.savez(
        path,
        prefill_isl=lengths,
        prefill_ttft_ms=numpy.interp(lengths, prefill["prefill_isl"], prefill["prefill_ttft"]),
        decode_active_kv_tokens=contexts,
        decode_context_length=contexts,
        decode_itl=numpy.tile(itl, (len(contexts), 1)),
    )


def mocker(mode: str, gb_per_s: float | None, profile: pathlib.Path) -> list[str]:
    return [
        *["--model-path", smollm2(), "--model-name", "model", "--disaggregation-mode", mode],
        *["--planner-profile-data", str(profile), "--kv-bytes-per-token", str(KV_BYTES)],
        # Without a bandwidth it computes and sends in next to no time.
        *["--kv-transfer-bandwidth", str(gb_per_s or 100_000), "--speedup-ratio"],
        "1" if gb_per_s else "1000",
        "--no-enable-prefix-caching",
        *["--max-num-batched-tokens", "16384"],
        *(["--bootstrap-ports", str(BOOTSTRAP)] if mode == "prefill" else []),
    ]


def wait_until_served() -> None:
    started_s = time.monotonic()
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            health = get("/health")
            if "prefill" in health and '"model"' in get("/v1/models"):
                return
        if time.monotonic() - started_s > START_S:
            raise TimeoutError(f"Dynamo's frontend did not know both mockers in {START_S} s")
        time.sleep(0.5)


def get(path: str) -> str:
    with OPENER.open(f"http://127.0.0.1:{FRONTEND}{path}", timeout=30) as answer:
        return answer.read().decode()


def first_token_ms(tokens: int, seed: int) -> float:
    """Until the first token of a prompt of so many token numbers."""
    prompt = [1000 + (seed * 7919 + place * 31) % 40_000 for place in range(tokens)]
    body = dict(model="model", prompt=prompt, max_tokens=2, stream=True, ignore_eos=True)
    request = urllib.request.Request(
        f"http://127.0.0.1:{FRONTEND}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    began_s = time.perf_counter()
    with OPENER.open(request, timeout=120) as answer:
        for line in answer:
            if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
                return (time.perf_counter() - began_s) * 1000
    raise ValueError("the answer had no token")


def mocked(gb_per_s: float | None) -> list[float]:
    """The shortest of some times to the first token, by length. What else runs can only add to them."""
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        arguments = ["--http-host", "127.0.0.1", "--http-port", str(FRONTEND)]
        profile = folder / "h200.npz"
        measured(profile)
        stack.enter_context(running(folder, "frontend", "dynamo.frontend", arguments))
        for mode in ["prefill", "decode"]:
            stack.enter_context(running(folder, mode, "dynamo.mocker", mocker(mode, gb_per_s, profile)))
        wait_until_served()
        first_token_ms(100, 0)
        times = []
        for tokens in LENGTHS:
            of_length = [first_token_ms(tokens, 1 + repeat) for repeat in range(REPEATS)]
            print(f"mocker, {gb_per_s or 'no'} GB/s, {tokens} tokens: median "
                  f"{statistics.median(of_length):.0f} ms", file=sys.stderr)
            times.append(min(of_length))
        return times


def ours(gb_per_s: float, tokens: int, folder: pathlib.Path) -> float:
    """The same by `rackline bench systems`, one request alone."""
    trace, links = folder / "one.jsonl", folder / "links.toml"
    hashes = list(range(tokens // 64))
    trace.write_text(json.dumps(
        dict(timestamp=0, input_length=tokens, output_length=2, hash_ids=hashes)) + "\n")
    root = pathlib.Path(__file__).resolve().parents[2]
    text = (root / "deploy/serving/profiles/links-tract.toml").read_text()
    links.write_text(text.replace("network_gb_per_s = 12.5", f"network_gb_per_s = {gb_per_s}"))
    command = [os.environ["RACKLINE_COMMAND"], "bench", "systems", str(trace), "--systems", "direct"]
    command += ["--profile", "h200-llama-8b-fp8", "--links", str(links), "--rates", "1", "--json"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return report["points"][0]["ttft"]["mean_ms"]


def main() -> None:
    argparse.ArgumentParser(
        prog="benches/rack/mocker-pair",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    own_network.enter()
    # What Dynamo's processes take themselves on this machine.
    software = mocked(None)
    head = ["network, GB/s", "prompt, tokens", "mocker pair, ms", "of it Dynamo's processes, ms"]
    print("| " + " | ".join([*head, "the rest, ms", "`direct`, ms", "ratio"]) + " |\n" + "|---" * 7 + "|")
    by_bandwidth = []
    with tempfile.TemporaryDirectory() as folder:
        for gb_per_s in BANDWIDTHS:
            times = mocked(gb_per_s)
            by_bandwidth.append(times)
            for tokens, all_ms, software_ms in zip(LENGTHS, times, software, strict=True):
                our_ms = ours(gb_per_s, tokens, pathlib.Path(folder))
                rest_ms = all_ms - software_ms
                cells = [gb_per_s, tokens, *(f"{it:.0f}" for it in [all_ms, software_ms, rest_ms, our_ms])]
                print("| " + " | ".join(map(str, [*cells, f"{our_ms / rest_ms:.2f}"])) + " |", flush=True)
    print("\nWhat the slower network adds:\n\n| prompt, tokens | mocker pair, ms | bytes / bandwidth, ms |")
    print("|---|---|---|")
    for tokens, fast_ms, slow_ms in zip(LENGTHS, *by_bandwidth, strict=True):
        moved_ms = tokens * KV_BYTES * (1 / BANDWIDTHS[1] - 1 / BANDWIDTHS[0]) / 1e6
        print(f"| {tokens} | {slow_ms - fast_ms:.0f} | {moved_ms:.0f} |")


if __name__ == "__main__":
    main()
