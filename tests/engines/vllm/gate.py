"""Transfers of the connector that begin when a test says so."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock


class LateMemory:
    """Memory of a part whose blocks stay lent until their transfers have begun, however late."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def lend(self, numbers: list[int], **options: Any) -> LateLoan:
        return LateLoan(self._memory.lend(numbers, **options))


class LateLoan:
    """A loan that is given up when the last transfer that waits for it has begun."""

    _numbers = itertools.count()

    def __init__(self, loan: Any) -> None:
        self._loan = loan
        self.number = next(self._numbers)

    def __enter__(self) -> LateLoan:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    @staticmethod
    def begins(call: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], Any]:
        """Does the call later, with the loan among its arguments."""
        told = [each._loan if isinstance(each, LateLoan) else each for each in arguments]
        return functools.partial(call, *told, **options)


class _Waiting:
    """A transfer that is not begun before the gate is open."""

    def __init__(self, gate: Gate, loan: int, begin: Callable[[], Any]) -> None:
        self._gate, self._begin, self.begun = gate, begin, None
        self.loan = loan

    def poll(self) -> Any:
        return self._pass().poll() if self.begun or self._gate.is_open else None

    def wait(self) -> Any:
        """Who waits opens it for this one."""
        return self._pass().wait()

    def _pass(self) -> Any:
        if self.begun is None:
            self.begun, self._begin = self._begin(), None
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
        """Transfers that were asked for, a ``publish`` or a ``fetch``, and not begun. Those of the head
        groups of the same blocks are one."""
        waits = [each for name, each in self._transfers if name == kind and each.begun is None]
        return len({each.loan for each in waits})

    def held_prefixes(self) -> int:
        """What lookups found and is held."""
        return sum(prefix.held for search in self._searches for prefix in search.prefixes)

    def __enter__(self) -> Gate:
        from rackline.vllm.search import Index
        from rackline.vllm.worker import WorkerHalf

        gate, register, look = self, WorkerHalf.register, Index.look

        class Session:
            def __init__(self, session: Any) -> None:
                self._session = session

            def publish(self, *arguments: Any, **options: Any) -> _Waiting:
                begin = LateLoan.begins(self._session.publish, *arguments, **options)
                return gate._ask("publish", begin, arguments)

            def fetch(self, *arguments: Any, **options: Any) -> _Waiting:
                begin = LateLoan.begins(self._session.fetch, *arguments, **options)
                return gate._ask("fetch", begin, arguments)

        def registered(half: WorkerHalf, caches: Any) -> None:
            register(half, caches)
            for part in half._parts.values():
                part.memory = LateMemory(part.memory)
                for share in part.shares:
                    share.session = Session(share.session)

        def looked(index: Index, *arguments: Any, hold: bool = True) -> Any:
            search = look(index, *arguments, hold=hold)
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

    def _ask(self, kind: str, begin: Callable[[], Any], arguments: tuple[Any, ...]) -> _Waiting:
        (loan,) = (each.number for each in arguments if isinstance(each, LateLoan))
        waiting = _Waiting(self, loan, begin)
        self._transfers.append((kind, waiting))
        return waiting

    def __exit__(self, *exception: object) -> None:
        self.open()
        for patch in self._patches:
            patch.stop()
