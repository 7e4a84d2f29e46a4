"""Transfers of the connector that begin when a test says so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock


class _Waiting:
    """A transfer that is not begun before the gate is open."""

    def __init__(self, gate: Gate, begin: Callable[[], Any]) -> None:
        self._gate, self._begin, self.begun = gate, begin, None

    def poll(self) -> Any:
        return self._pass().poll() if self.begun or self._gate.is_open else None

    def wait(self) -> Any:
        """Who waits opens it for this one."""
        return self._pass().wait()

    def _pass(self) -> Any:
        if self.begun is None:
            self.begun = self._begin()
        return self.begun

    def cancel(self) -> bool:
        return False


class Gate:
    """Between every connector that is made while it is entered and its pool. Open at first."""

    def __init__(self) -> None:
        self.is_open = True
        self._transfers: list[tuple[str, _Waiting]] = []
        self._searches: list[Any] = []

    def open(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def waiting(self, kind: str) -> int:
        """Transfers that were asked for, a ``publish`` or a ``fetch``, and not begun."""
        return sum(name == kind and each.begun is None for name, each in self._transfers)

    def held_prefixes(self) -> int:
        """What lookups found and is held."""
        return sum(prefix.held for search in self._searches for prefix in search.prefixes)

    def __enter__(self) -> Gate:
        from rackline.vllm.search import Index
        from rackline.vllm.worker import WorkerHalf

        gate, register, look = self, WorkerHalf.register, Index.look

        class Shares:
            def __init__(self, shares: Any) -> None:
                self._shares = shares

            def publish(self, *arguments: Any, **options: Any) -> _Waiting:
                begin = functools.partial(self._shares.publish, *arguments, **options)
                return gate._ask("publish", begin)

            def fetch(self, *arguments: Any, **options: Any) -> _Waiting:
                begin = functools.partial(self._shares.fetch, *arguments, **options)
                return gate._ask("fetch", begin)

        def registered(half: WorkerHalf, caches: Any) -> None:
            register(half, caches)
            for part in half._parts.values():
                part.together = Shares(part.together)

        def looked(index: Index, *arguments: Any, **options: Any) -> Any:
            search = look(index, *arguments, **options)
            if search is not None:
                gate._searches.append(search)
            return search

        self._patches = [
            mock.patch.object(WorkerHalf, "register", registered),
            mock.patch.object(Index, "look", looked),
        ]
        for patch in self._patches:
            patch.start()
        return self

    def _ask(self, kind: str, begin: Callable[[], Any]) -> _Waiting:
        waiting = _Waiting(self, begin)
        self._transfers.append((kind, waiting))
        return waiting

    def __exit__(self, *exception: object) -> None:
        self.open()
        for patch in self._patches:
            patch.stop()
