"""Calls of everything that the package has, with arbitrary arguments and in any order: exceptions at worst,
and afterwards all works as ever.

    arbitrary_process.py REGION SEED CALLS

What callers promise is kept: addresses are those of memory that lives, and memory that is lent is left alone.
Says as JSON what was called, and how much memory the process took."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import faulthandler
import gc
import json
import logging
import os
import pickle
import random
import resource
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import rackline
from hostile_values import arbitrary
from rackline._native import check_pool_options, identity_hash

# A call that never returns is no exception.
HANGS_S = 120
ADDRESS_SPACE_BYTES = 8 << 30
BLOCK_BYTES, BLOCKS, LAYERS = 4096, 16, 2
CUTS = 2
SMALL_MS = (0, 1, 5, 20)

MEMORY = [bytearray(BLOCKS * BLOCK_BYTES) for _ in range(4)]
"""Lent to transfers, and read by nobody before the end."""
ADDRESSES = [ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in MEMORY]
KINDS: list[type | None] = [
    None,
    rackline.Pool,
    rackline.Index,
    rackline.Session,
    rackline.Shares,
    rackline.Forwards,
    rackline.Lookup,
    rackline.Presence,
    rackline.Prefetch,
    rackline.Publish,
    rackline.Fetch,
    rackline.LayeredFetch,
    rackline.LayeredPublish,
    rackline.Prefix,
    rackline.IndexPrefix,
]
"""Whose methods are called; ``None`` stands for functions."""
Call = tuple[Callable[..., Any], list[Any], dict[str, Any]]


def hashes(dice: random.Random, count: int) -> Any:
    each = [bytes([dice.randrange(40) if dice.random() < 0.3 else number]) * 32 for number in range(count)]
    return dice.choice([each, b"".join(each), bytearray(b"".join(each)), memoryview(b"".join(each))])


def model(**other: Any) -> dict[str, Any]:
    numbers = dict(block_tokens=16, layers=2, kv_heads=1, head_dim=64)
    return {**dict(name="tiny", revision="1", dtype="f16"), **numbers, **other}


def is_same(given: list[Any], other: list[Any]) -> bool:
    """Whether these are the same objects: to compare them may do anything."""
    return list(map(id, given)) == list(map(id, other))


class Storm:
    def __init__(self, region: str, seed: int) -> None:
        self.region, self.dice = region, random.Random(seed)
        self.kept: dict[type, list[Any]] = {}
        self.called: set[str] = set()
        self.doing = ""
        """The call that was begun last."""
        self.succeeded = self.refused = 0
        self.good: dict[type, list[Any]] = {}
        self.renew()

    def renew(self) -> None:
        """Good things to call, and to give: what there was may be closed."""
        for pool in self.good.get(rackline.Pool, []):
            pool.close()
        pool = rackline.Pool(self.region, 0, publishes_by_layers=True)
        of_model = rackline.Model(**model())
        session = pool.session(of_model, BLOCK_BYTES, chunk_timeout_ms=5)
        shares = rackline.Shares([session] * CUTS)
        memories = [rackline.block_memory(self.array(0)), self.cut_in(CUTS)]
        things = [pool, of_model, session, shares, *memories]
        self.good = {type(thing): [it for it in things if type(it) is type(thing)] for thing in things}
        for thing in things:
            self.keep(thing)

    def cut_in(self, cuts: int) -> rackline.BlockMemory:
        function, given, named = self.parts(cuts)
        return function(*given, **named)

    def array(self, number: int) -> memoryview:
        return memoryview(MEMORY[number]).cast("B", (BLOCKS, BLOCK_BYTES))

    def keep(self, thing: Any) -> None:
        if type(thing).__module__ != "rackline":
            return
        things = self.kept.setdefault(type(thing), [])
        if len(things) < 4:
            things.append(thing)
        else:
            things[self.dice.randrange(4)] = thing

    def a(self, kind: type) -> Any:
        """One that is kept of this type, often a good one, or ``None``."""
        from_good = kind in self.good and self.dice.random() < 0.5
        return self.dice.choice((self.good if from_good else self.kept).get(kind) or [None])

    def memory(self, cuts: int) -> Any:
        """Memory, mostly of so many cuts."""
        fits = [it for it in self.kept[rackline.BlockMemory] + self.good[rackline.BlockMemory] if it.cuts == cuts]
        return self.dice.choice(fits) if self.dice.random() < 0.9 else self.a(rackline.BlockMemory)

    def kept_or_any(self) -> Any:
        if self.dice.random() < 0.3:
            return self.a(self.dice.choice(list(self.kept)))
        return arbitrary(self.dice)

    def several(self, cuts: int) -> tuple[Any, Any, list[int]]:
        """Hashes, memory and places of as many blocks."""
        count, memory = self.dice.randrange(5), self.memory(cuts)
        places = self.dice.sample(range(max(memory.blocks, count)), count)
        return hashes(self.dice, count), memory, places

    def found(self, cuts: int) -> tuple[Any, Any, list[int]]:
        """Blocks to fetch, memory and places."""
        prefix = self.a(rackline.Prefix)
        names, memory, places = self.several(cuts)
        if prefix is None:
            return bytes(rackline.HANDLE_BYTES * len(places)), memory, places
        places = self.dice.sample(range(max(memory.blocks, len(prefix))), len(prefix))
        form = self.dice.choice([prefix, prefix.handles(), (names, prefix.keyless_handles())])
        return form, memory, places

    def parts(self, cuts: int) -> Call:
        """Memory, in the array whose address the call vouches for: elsewhere it is refused."""
        number = self.dice.randrange(len(ADDRESSES))
        steps = self.dice.choice([1, 1, 2, 4])
        # Two: both of one cut, or each a cut.
        part = BLOCK_BYTES * cuts // 2
        row, address = 2 * steps * part, ADDRESSES[number]
        parts = [(address + at * steps * part, row, part, part) for at in range(2)]
        within = [(ADDRESSES[number], len(MEMORY[number]))]
        shape = dict(gpu=None, layers=self.dice.choice([None, [1, 1]]), cuts=cuts, steps=steps, within=within)
        return rackline.BlockMemory, [parts, BLOCKS // cuts, MEMORY[number]], shape

    def arrays(self) -> Call:
        arrays = [self.array(number) for number in range(1 + self.dice.randrange(2))]
        return rackline.block_memory, arrays, dict(layers=self.dice.choice([None, [1] * len(arrays)]))

    def options(self) -> dict[str, Any]:
        numbers = dict(copy_threads=1, fetch_threads=0, queue_depth=self.dice.choice([1, 64]))
        percents = dict(high_watermark_percent=95, low_watermark_percent=50)
        quotas = [{"tenant": "a", "salt": b"", "percent": 50}, {"tenant": "b", "bytes": 1 << 20}]
        return {**numbers, **percents, "quotas": quotas, "bind_threads": True}

    def place(self) -> dict[str, Any]:
        return dict(tenant=self.dice.choice(["", "a"]), salt=self.dice.choice([b"", b"s"]))

    def asking(self) -> dict[str, Any]:
        return {**self.place(), "timeout_ms": self.dice.choice(SMALL_MS)}

    def functions(self) -> dict[str, Call]:
        region = self.region
        pin = dict(percent=20, length_s=60)
        return {
            "Model": (rackline.Model, [], model(tensor_parallel_rank=self.dice.randrange(2))),
            "Pool": (rackline.Pool, [region, 0], dict(self.options(), publishes_by_layers=True)),
            "Index": (rackline.Index, [region], {}),
            "Index.model": (rackline.Index.model, [self.a(rackline.Model), BLOCK_BYTES], self.place()),
            "BlockMemory": self.parts(self.dice.choice([1, CUTS])),
            "block_memory": self.arrays(),
            "Shares": (rackline.Shares, [[self.a(rackline.Session) for _ in range(CUTS)]], {}),
            "check_pool_options": (check_pool_options, [], self.options()),
            "identity_hash": (identity_hash, ["an identity"], {}),
            "identities": (rackline.identities, [region], {}),
            "clear": (rackline.clear, [region, 1], self.asking()),
            "pin": (rackline.pin, [region, 1], {**self.asking(), **pin}),
            "unpin": (rackline.unpin, [region, 1], self.asking()),
        }

    def methods(self, kind: type | None) -> dict[type, dict[str, tuple[list[Any], dict[str, Any]]]]:
        cuts = CUTS if kind is rackline.Shares else 1
        names, memory, places = self.several(cuts)
        found, to, into = self.found(cuts)
        depth, wait = self.dice.randrange(5), ([self.dice.choice([None, *SMALL_MS])], {})
        short = ([self.dice.choice(SMALL_MS)], {})
        depths = [depth + at for at in range(len(places))]
        none: tuple[list[Any], dict[str, Any]] = ([], {})
        shared = dict(
            publish=([names, depth, memory, places], {"stream": None}),
            publish_by_layers=([names, depths, memory, places], {}),
        )
        times = dict(chunk_timeout_ms=5, hold_ms=1000)
        return {
            rackline.Pool: dict(
                session=([self.a(rackline.Model), BLOCK_BYTES], {**self.place(), **times}),
                identity_session=([BLOCK_BYTES], {}),
                gpu=([0], {}),
                metrics=none,
                close=none,
                __enter__=none,
                __exit__=([None, None, None], {}),
            ),
            rackline.Index: dict(
                refresh=none, prefix=([names, self.a(rackline.IndexModel)], dict(refresh=True))
            ),
            rackline.Session: dict(
                shared,
                by_caller=none,
                lookup=([names], dict(hold=True, restore_wait_ms=self.dice.choice([0, 1]), recompute_us=1)),
                prefetch=([names], dict(wait_ms=1, recompute_us=1)),
                report_forwards=none,
                present=([names], dict(drives=True)),
                fetch=([found, to, into], {"stream": None}),
                fetch_by_layers=([found, to, into], {"stream": None}),
            ),
            rackline.Shares: dict(
                shared,
                fetch=([[found] * CUTS, to, into], {"stream": None}),
                fetch_by_layers=([[found] * CUTS, to, into], {"stream": None}),
                __len__=none,
            ),
            rackline.Forwards: dict(begin=([1000, 10], {}), end=none),
            rackline.Lookup: dict(poll=none, wait=wait),
            rackline.Presence: dict(wait=wait),
            rackline.Prefetch: dict(wait=wait, cancel=none),
            rackline.Publish: dict(poll=none, wait=wait, cancel=none),
            rackline.Fetch: dict(poll=none, wait=wait),
            rackline.LayeredFetch: dict(
                poll=none, wait=wait, wait_layer=([self.dice.randrange(3), *wait[0]], {})
            ),
            rackline.LayeredPublish: dict(
                poll=none,
                # It waits for those before it, which may never be ended.
                wait=short,
                layer_ready=([self.dice.randrange(3)], {"stream": None}),
                finish=none,
                abort=none,
            ),
            rackline.Prefix: dict(
                handles=none,
                keyless_handles=none,
                release=none,
                __len__=none,
                __enter__=none,
                __exit__=([None, None, None], {}),
            ),
            rackline.IndexPrefix: dict(__len__=none),
        }

    def changed(self, name: str, given: list[Any], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, some of them arbitrary, missing or too many."""
        given, named = list(given), dict(named)
        # These wait for so long.
        keeps_time = name == "LayeredPublish.wait"
        for at in range(len(given)):
            if not keeps_time and self.dice.random() < 0.15:
                given[at] = self.kept_or_any()
        for key in list(named):
            odds = self.dice.random()
            # A publish waits for memory as long as it is told to.
            if key in ("timeout_ms", "chunk_timeout_ms"):
                named[key] = named[key] if odds < 0.9 else self.dice.choice([None, -1, "x", 1.5, 1 << 64])
            elif odds < 0.1:
                named[key] = self.kept_or_any()
            elif odds < 0.2 and key != "within":
                del named[key]
        if self.dice.random() < 0.02:
            given.append(self.kept_or_any())
        if self.dice.random() < 0.02 and given and not keeps_time:
            given.pop()
        if self.dice.random() < 0.02:
            named["unknown"] = 1
        return given, named

    def one(self) -> None:
        kind = self.dice.choice(KINDS)
        functions, methods = self.functions(), self.methods(kind)
        if kind is None:
            name = self.dice.choice(list(functions))
            function, given, named = functions[name]
        else:
            method = self.dice.choice(list(methods[kind]))
            name, thing = f"{kind.__name__}.{method}", self.a(kind)
            ends_all = kind is rackline.Pool and method in ("close", "__exit__")
            if thing is None or (ends_all and self.dice.random() < 0.7):
                return
            function, (given, named) = getattr(thing, method), methods[kind][method]
        was_given, was_named = given, named
        given, named = self.changed(name, given, named)
        result = self.call(name, function, given, named)
        # Of memory those alone that the call vouches for, or that is refused where it is elsewhere.
        if name == "block_memory" and not is_same([*given, *named.values()], [*was_given, *was_named.values()]):
            return
        if name == "BlockMemory" and named.get("within") is not was_named["within"]:
            return
        self.keep(result)

    def call(self, name: str, function: Any, given: list[Any], named: dict[str, Any]) -> Any:
        self.doing = name
        try:
            result = function(*given, **named)
        except Exception:
            self.refused += 1
            return None
        self.succeeded += 1
        self.called.add(name)
        return result

    def look(self) -> None:
        """Everything that any object does."""
        thing = self.a(self.dice.choice(list(self.kept)))
        kind = type(thing)
        for name in [name for name in vars(kind) if not name.startswith("_")]:
            if not callable(vars(kind)[name]) and not isinstance(vars(kind)[name], staticmethod):
                with contextlib.suppress(Exception):
                    getattr(thing, name)
                    self.called.add(f"{kind.__name__}.{name}")
        for each in (repr, str, hash, bool, copy.copy, copy.deepcopy, pickle.dumps, kind):
            with contextlib.suppress(Exception):
                each(thing)
        for name in ("node", "unknown"):
            with contextlib.suppress(Exception):
                setattr(thing, name, 1)
        with contextlib.suppress(Exception):
            thing == self.kept_or_any()  # noqa: B015

    def end(self) -> None:
        for pool in self.kept[rackline.Pool] + self.good[rackline.Pool]:
            pool.close()
        self.kept.clear()
        self.good.clear()
        gc.collect()


def all_works(region: str) -> None:
    """All memory can be lent again, and what is published is fetched."""
    content = bytes(range(256)) * (BLOCK_BYTES // 256)
    with rackline.Pool(region, 0) as pool:
        session = pool.session(rackline.Model(**model(name="after")), BLOCK_BYTES, tenant="after")
        MEMORY[0][:] = content * BLOCKS
        names = [bytes([number]) * 32 for number in range(BLOCKS)]
        memory = [rackline.block_memory(memoryview(it).cast("B", (BLOCKS, BLOCK_BYTES))) for it in MEMORY]
        everywhere = list(range(BLOCKS))
        assert session.publish(names, 0, memory[0], everywhere).wait().published == BLOCKS
        prefix = session.lookup(names, hold=True).wait()
        assert len(prefix) == BLOCKS
        for number in (1, 2, 3, 0):
            MEMORY[number][:] = bytes(len(MEMORY[number]))
            assert session.fetch(prefix, memory[number], everywhere).wait().valid_blocks == BLOCKS
            assert MEMORY[number] == content * BLOCKS
        prefix.release()


def hangs(call: str) -> None:
    print(f"hangs in {call}", file=sys.stderr, flush=True)
    faulthandler.dump_traceback()
    os._exit(3)


def main(region: str, seed: str, calls: str) -> None:
    # Also of one that keeps Python's lock.
    faulthandler.dump_traceback_later(HANGS_S + 5, exit=True)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    logging.basicConfig(level=logging.ERROR)
    # What a value of the test raises where nobody can be told of it.
    sys.unraisablehook = lambda _: None
    storm = Storm(region, int(seed))
    ends_hang = threading.Timer(HANGS_S, lambda: hangs(storm.doing))
    ends_hang.daemon = True
    ends_hang.start()
    for number in range(int(calls)):
        try:
            if number % 100 == 99:
                storm.renew()
            storm.one()
            if number % 10 == 0:
                storm.look()
        # A panic is no Exception.
        except BaseException:
            traceback.print_exc()
            print(f"call {number}", file=sys.stderr)
            sys.stderr.flush()
            raise
    storm.end()
    all_works(region)
    figures = dict(succeeded=storm.succeeded, refused=storm.refused, called=sorted(storm.called))
    print(json.dumps({**figures, "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))


if __name__ == "__main__":
    main(*sys.argv[1:])
