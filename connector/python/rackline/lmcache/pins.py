"""Chunks that LMCache has pinned: held in the pool until they are unpinned, or for so long."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time

import rackline


@dataclasses.dataclass(eq=False)
class _Held:
    prefix: rackline.Prefix
    left: int
    """Chunks that are not unpinned."""
    ends_s: float


class Pins:
    """For any thread."""

    def __init__(self, hold_ms: int) -> None:
        self._hold_s = hold_ms / 1000
        self._changed = threading.Lock()
        self._by_hash: dict[bytes, list[_Held]] = collections.defaultdict(list)
        self._in_order: collections.deque[tuple[_Held, list[bytes]]] = collections.deque()

    def add(self, hashes: list[bytes], prefix: rackline.Prefix) -> None:
        """Keeps what was found for ``hashes``, as many as it has."""
        now_s = time.monotonic()
        held = _Held(prefix, len(hashes), now_s + self._hold_s)
        with self._changed:
            for name in hashes:
                self._by_hash[name].append(held)
            self._in_order.append((held, hashes))
            while self._in_order and (
                self._in_order[0][0].ends_s < now_s or self._in_order[0][0].left == 0
            ):
                # The pool has let go of it as well.
                self._forget(*self._in_order.popleft())

    def drop(self, name: bytes) -> bool:
        """Unpins a chunk once, and says whether it was pinned."""
        with self._changed:
            pinned = self._by_hash.get(name)
            if not pinned:
                return False
            held = pinned.pop(0)
            if not pinned:
                del self._by_hash[name]
            held.left -= 1
            if held.left == 0:
                held.prefix.release()
            return True

    def clear(self) -> None:
        """Lets everything go."""
        with self._changed:
            while self._in_order:
                self._forget(*self._in_order.popleft())

    def _forget(self, held: _Held, hashes: list[bytes]) -> None:
        for name in hashes:
            pinned = self._by_hash.get(name, [])
            if held in pinned:
                pinned.remove(held)
                if not pinned:
                    del self._by_hash[name]
        held.prefix.release()
