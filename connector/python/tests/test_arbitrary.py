"""Whatever arguments a call is given, and in whatever order calls come: no process ends, hangs or takes
more and more memory, and what was good before is good afterwards.

A failing run names its seed: ``arbitrary_process.py`` runs it alone. ``RACKLINE_SEEDS`` says how many there
are."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import os
import pathlib
import random
import re
import resource
import subprocess
import sys
import unittest
import unittest.mock
from collections.abc import Callable
from typing import Any

import rackline
from hostile_values import EDGES, NUMBERS, TEXTS, Claims, clears
from rackline._native import check_pool_options
from rackline.engines.settings import PoolSettings, SettingsError
from region import Region

PROCESS = pathlib.Path(__file__).with_name("arbitrary_process.py")
SEEDS = int(os.environ.get("RACKLINE_SEEDS", "4"))
CALLS = 3000
PEAK_KIB = 1 << 20
LIMIT_S = 150
# Without a GPU. A driver's stand-in is in test_gpu.py.
NEVER = {"Pool.gpu"}
SPECIAL = ("__len__", "__enter__", "__exit__")
HANDLES = bytes(34)


def public() -> set[str]:
    """Everything that a user of the package may call or read."""
    names = {"check_pool_options", "identity_hash"}
    for name in set(rackline.__all__) - {"Gpu"}:
        thing = getattr(rackline, name)
        if not isinstance(thing, type):
            names |= {name} if callable(thing) else set()
        elif not issubclass(thing, Exception):
            names |= {f"{name}.{of}" for of in vars(thing) if not of.startswith("_") or of in SPECIAL}
    return names - NEVER


class Arbitrary(unittest.TestCase):
    def child(self, *command: str) -> str:
        """What a process says that ends well, and in which nothing panicked."""
        # A real GPU would use the streams that there are none of.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=environment,
            check=False,
        )
        self.assertEqual(done.returncode, 0, f"{command}: {done.stderr[-5000:]}")
        self.assertNotIn("panicked", done.stderr)
        return done.stdout

    def test_arbitrary_calls_are_exceptions_at_worst(self) -> None:
        called: set[str] = set()
        for seed in range(SEEDS):
            with self.subTest(seed=seed), Region("16MiB", "4KiB") as region:
                told = json.loads(self.child(str(PROCESS), region.path, str(seed), str(CALLS)))
                self.assertGreater(min(told["succeeded"], told["refused"]), CALLS // 10, told)
                self.assertLess(told["peak_kib"], PEAK_KIB)
                called |= set(told["called"])
        self.assertEqual(public() - called, set(), "these succeeded never")

    def test_what_a_sequence_claims_reserves_no_memory(self) -> None:
        with Region("16MiB", "4KiB") as region:
            code = "import sys; from test_arbitrary import refuses_claims; refuses_claims(sys.argv[1])"
            self.assertEqual(self.child("-c", code, region.path), "refused\n")

    def test_settings_of_engines_are_good_or_one_clear_error(self) -> None:
        fields = {field.name for field in dataclasses.fields(PoolSettings)}
        outcomes = collections.Counter[bool]()
        with unittest.mock.patch.dict(os.environ, {"RACKLINE_HOST": "here"}):
            for seed in range(2000):
                dice = random.Random(seed)
                given = {"region": "/dev/dax0.0", "node": dice.choice([3, {"here": 3, "there": 4}])}
                for name in dice.sample(sorted(fields), dice.randrange(3)):
                    given[name] = json_value(dice)
                if dice.random() < 0.1:
                    given[dice.choice(["", "Region", "nodes"])] = json_value(dice)
                with self.subTest(seed=seed):
                    outcomes[self.is_good(given)] += 1
        self.assertGreater(min(outcomes[True], outcomes[False]), 100)

    def is_good(self, given: dict[str, Any]) -> bool:
        try:
            settings = PoolSettings.of(given)
        except SettingsError as error:
            self.assertRegex(str(error), "setting|region|node")
            return False
        check_pool_options(**settings.pool_options())
        options = settings.restore_options(1 << 20)
        self.assertLess(max(options.values()), 1 << 32)
        self.assertIn(settings.node, range(1 << 16))
        return True


def json_value(dice: random.Random, depth: int = 0) -> Any:
    """What a file of JSON may have."""
    if depth < 3 and dice.random() < 0.3:
        several = [json_value(dice, depth + 1) for _ in range(dice.randrange(4))]
        names = ["tenant", "salt", "bytes", "percent", "here", ""]
        return dice.choice([several, dict(zip(names, several, strict=False))])
    plain = [None, True, False, 1.5, float("nan"), float("inf"), 10**30, -(10**30), *NUMBERS, *EDGES]
    return dice.choice([*plain, *(-number for number in EDGES), *TEXTS])


def refuses_claims(path: str) -> None:
    """In a process of its own: claims that were believed ended it."""
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    pool = rackline.Pool(path, 0, publishes_by_layers=True)
    numbers = dict(block_tokens=16, layers=2, kv_heads=1, head_dim=64)
    model = rackline.Model(name="tiny", revision="1", dtype="f16", **numbers)
    session = pool.session(model, 4096)
    memory = rackline.block_memory(bytearray(4096))
    shares = rackline.Shares([session])
    names, many = [bytes(32)], "1000000000000 items"
    claims: list[tuple[Callable[[Any], Any], str]] = [
        (lambda claim: session.publish(names, 0, memory, claim), many),
        (lambda claim: session.publish_by_layers(names, [0], memory, claim), many),
        (lambda claim: session.publish_by_layers(names, claim, memory, [0]), many),
        (lambda claim: session.fetch(HANDLES, memory, claim), many),
        (lambda claim: session.fetch_by_layers(HANDLES, memory, claim), many),
        (lambda claim: shares.publish(names, 0, memory, claim), many),
        (lambda claim: shares.publish_by_layers(names, claim, memory, [0]), many),
        (lambda claim: shares.fetch(claim, memory, [0]), many),
        (lambda claim: shares.fetch_by_layers([HANDLES], memory, claim), many),
        (lambda claim: rackline.Shares(claim), many),
        (lambda claim: rackline.BlockMemory(claim, 1, None), many),
        (lambda claim: rackline.BlockMemory([(4096, 1, 1)], 1, None, layers=claim), many),
        (lambda claim: rackline.BlockMemory([(4096, 1, 1)], 1, None, within=claim), many),
        (lambda claim: rackline.block_memory(bytearray(16), layers=claim), many),
        (lambda claim: check_pool_options(quotas=claim), many),
        (lambda claim: rackline.Pool(path, 1, quotas=claim), many),
        (lambda claim: check_pool_options(quotas=[{"salt": claim, "percent": 1}]), "the salt of a quota"),
    ]
    # The last two are beyond what any memory has.
    for call, message in claims:
        refused(lambda call=call: call(range(10**12)), message)
        refused(lambda call=call: call(Claims(10**12)), message)
        refused(lambda call=call: call(Claims(1 << 62)), "items|the salt")
    endless = Claims(1, lambda: itertools.repeat(0))
    refused(lambda: session.publish(names, 0, memory, endless), "a sequence of 1 items has more")
    refused(lambda: rackline.BlockMemory([], 1, None, cuts=1 << 36), "memory without parts")
    refused(lambda: rackline.BlockMemory([], 1, None, cuts=1 << 63), "memory without parts")
    row = [(4096, 1 << 31, 1, 1)]
    refused(lambda: rackline.BlockMemory(row, 1 << 31, None, steps=1 << 31), "pieces of memory")
    # A dict that changes while it is read.
    refused(lambda: check_pool_options(quotas=[clears({"tenant": "a"})]), "bytes, or percent")
    print("refused")


def refused(call: Callable[[], Any], message: str) -> None:
    try:
        call()
    except rackline.Error as error:
        assert re.search(message, str(error)), error
    else:
        raise AssertionError(f"not refused: {message}")


if __name__ == "__main__":
    unittest.main()
