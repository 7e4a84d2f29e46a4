"""Values that no argument should have. None of them is the address of memory that is not there."""

from __future__ import annotations

import array
import collections
import ctypes
import itertools
import mmap
import pathlib
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

# What the process has for ever, so that addresses in it stay good.
LIVING = bytearray(1 << 16)
ADDRESS = ctypes.addressof(ctypes.c_char.from_buffer(LIVING))


class Claims:
    """A sequence that claims to have ``length`` items, and has those of ``items``."""

    def __init__(self, length: Any, items: Callable[[], Iterator[Any]] = lambda: iter(())) -> None:
        self.length, self.items = length, items

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: int) -> Any:
        return next(itertools.islice(self.items(), place, None))

    def __iter__(self) -> Iterator[Any]:
        return self.items()


def _raise(*_: Any, **__: Any) -> Any:
    raise RuntimeError("of the test")


_DUNDERS = (
    "len iter getitem index int float bool str repr bytes fspath eq lt contains enter exit call format"
)
Raises: Any = type("Raises", (), {f"__{name}__": _raise for name in _DUNDERS.split()})
Number: Any = type("Number", (int,), {"__str__": _raise, "__repr__": _raise})
Text: Any = type("Text", (str,), {"__str__": _raise, "__len__": lambda _: 1 << 62})
Octets: Any = type("Octets", (bytes,), {"__len__": lambda _: 1 << 62, "__bytes__": _raise})
Pairs: Any = type("Pairs", (dict,), {"__iter__": _raise, "items": _raise, "keys": _raise})
Items: Any = type("Items", (list,), {"__len__": lambda _: 1 << 40})
Attributes: Any = type("Attributes", (), {"__getattr__": _raise})


class Index:
    """A number by its own word, which ``first`` does something for."""

    def __init__(self, number: Any, first: Callable[[], Any] = lambda: None) -> None:
        self.number, self.first = number, first

    def __index__(self) -> Any:
        self.first()
        return self.number


class Named:
    """A path by its own word."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def __fspath__(self) -> Any:
        return self.path


def clears(container: Any) -> Any:
    """A list or dict with a number that empties it."""
    if isinstance(container, dict):
        container["bytes"] = Index(1, container.clear)
        container["percent"] = 1
    else:
        container += [Index(0, container.clear), 1, 2]
    return container


def deep(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


def released() -> memoryview:
    view = memoryview(bytearray(64))
    view.release()
    return view


def like_array(**given: Any) -> Any:
    """What numpy's arrays look like, of memory that lives."""
    interface = {"data": (ADDRESS, False)}
    usual = dict(shape=(4, 8), strides=(8, 1), itemsize=1, dtype=types.SimpleNamespace(hasobject=False))
    return types.SimpleNamespace(__array_interface__=interface, **{**usual, **given})


def like_tensor(**given: Any) -> Any:
    """What torch's tensors look like, of memory that lives."""
    usual = dict(
        data_ptr=lambda: ADDRESS,
        stride=lambda: (8, 1),
        shape=(4, 8),
        element_size=lambda: 1,
        device=types.SimpleNamespace(type="cpu"),
        get_device=lambda: 0,
    )
    return types.SimpleNamespace(**{**usual, **given})


NUMBERS = [0, 1, 2, 3, 16, 64, 65, 101, 255, 256, 4095, 4096, 65535, 65536, 10**5, 10**12]
EDGES = [(1 << bits) + by for bits in (31, 32, 40, 62, 63, 64) for by in (-1, 0, 1)]
FLOATS = [0.0, 1.0, 1.5, float("nan"), float("inf"), -1e300]
TEXTS = ["", "text", "\0", "a\0b", "\ud800", "\u0663", "x" * 100_000, "tiny", "/nonexistent", "/dev/null", "."]

MAKERS: list[Callable[[random.Random], Any]] = [
    lambda dice: None,
    lambda dice: dice.random() < 0.5,
    lambda dice: dice.choice(NUMBERS),
    lambda dice: dice.choice(EDGES),
    lambda dice: -dice.choice([*NUMBERS, *EDGES]),
    lambda dice: dice.choice([10**30, 10**5000, -(10**5000)]),
    lambda dice: Number(dice.choice(NUMBERS)),
    lambda dice: dice.choice([*FLOATS, 1j]),
    lambda dice: dice.choice(TEXTS),
    lambda dice: Text("text"),
    lambda dice: bytes(dice.choice([0, 1, 10, 31, 32, 33, 34, 64, 320, 340, 4096])),
    lambda dice: dice.randbytes(dice.choice([10, 20, 32, 34, 64, 68, 100])),
    lambda dice: Octets(bytes(dice.choice([32, 33]))),
    lambda dice: bytearray(dice.choice([0, 1, 32, 64])),
    lambda dice: memoryview(bytearray(128))[:: dice.choice([1, 2, 3, -1])],
    lambda dice: memoryview(bytearray(128)).cast("d").cast("B").cast("B", (4, 32)),
    lambda dice: memoryview(bytes(64)),
    lambda dice: released(),
    lambda dice: array.array(dice.choice("bIdq"), range(16)),
    lambda dice: mmap.mmap(-1, 4096, access=dice.choice([mmap.ACCESS_READ, mmap.ACCESS_WRITE])),
    lambda dice: [dice.choice([*NUMBERS, *EDGES]) for _ in range(dice.randrange(5))],
    lambda dice: list(range(dice.randrange(20))),
    lambda dice: [dice.randbytes(dice.choice([0, 31, 32])) for _ in range(dice.randrange(4))],
    lambda dice: [None, "a", 1.5][: dice.randrange(4)],
    lambda dice: deep(dice.choice([1, 2, 5000])),
    lambda dice: tuple(arbitrary(dice) for _ in range(dice.randrange(4))),
    lambda dice: [arbitrary(dice) for _ in range(dice.randrange(4))],
    lambda dice: (bytes(32 * dice.randrange(3)), bytes(10 * dice.randrange(3))),
    lambda dice: {arbitrary_key(dice): arbitrary(dice) for _ in range(dice.randrange(4))},
    lambda dice: Pairs(tenant="a", percent=1),
    lambda dice: {1, 2},
    lambda dice: collections.deque([1, 2]),
    lambda dice: range(dice.choice([0, 1, 3, 10**12, 1 << 62])),
    lambda dice: range(3, -5, -1),
    lambda dice: iter([1, 2]),
    lambda dice: (number for number in range(2)),
    lambda dice: Items([1, 2]),
    lambda dice: Claims(dice.choice([0, 1, 1 << 23, 1 << 40, 1 << 62, -1, 1 << 70, "x", None])),
    lambda dice: Claims(dice.choice([1, 3]), lambda: itertools.count()),
    lambda dice: Claims(3, lambda: iter([bytes(32)])),
    lambda dice: clears([]),
    lambda dice: [clears({"tenant": "a"})],
    lambda dice: Index(dice.choice([0, 1, -1, 1 << 40, 1 << 64, "x", None])),
    lambda dice: Index(1, _raise),
    lambda dice: Raises(),
    lambda dice: Attributes(),
    lambda dice: Named(dice.choice(["/nonexistent", b"/nonexistent", None, 1, "\0"])),
    lambda dice: pathlib.Path(dice.choice(["/nonexistent", "/dev/zero", "/", "."])),
    lambda dice: dice.choice([object(), object, len, types, lambda: None, ..., NotImplemented]),
    lambda dice: like_array(**dice.choice(LIKE_ARRAYS)),
    lambda dice: like_tensor(**dice.choice(LIKE_TENSORS)),
]

LIKE_ARRAYS: list[dict[str, Any]] = [
    {},
    {"shape": ()},
    {"shape": (0, 8)},
    {"shape": (-1, 8)},
    {"shape": (1 << 40, 8)},
    {"shape": ("a", None)},
    {"strides": (-8, 1)},
    {"strides": (0, 1)},
    {"strides": (8,)},
    {"itemsize": -1},
    {"dtype": None},
]
LIKE_TENSORS: list[dict[str, Any]] = [
    {},
    {"data_ptr": lambda: None},
    {"data_ptr": _raise},
    {"stride": lambda: ()},
    {"shape": None},
    {"device": types.SimpleNamespace(type="meta")},
    {"element_size": lambda: 0},
]


def arbitrary_key(dice: random.Random) -> Any:
    return dice.choice(["tenant", "salt", "bytes", "percent", "share", "", "\ud800", 1, None, b"bytes"])


def arbitrary(dice: random.Random) -> Any:
    """Any value."""
    return dice.choice(MAKERS)(dice)
