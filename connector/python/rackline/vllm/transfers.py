"""Transfers of the blocks of a part: one transfer for each share of the part, asked like one.

A block is good where every share of it is, and counts once. The transfers have ended when the last of
them has: until then a share reads or writes the engine's blocks, whatever became of the others.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import rackline

# The reason of a fetch whose copy failed, and not the block.
NOT_COPIED = "copy"


def is_missed(reason: str | None) -> bool:
    """Whether the pool did not give the block behind the valid ones of a fetch with this reason."""
    return reason not in (None, NOT_COPIED)


class Fetches:
    """Fetches of the same blocks, one for each share."""

    def __init__(
        self, begin: Iterable[Callable[[], rackline.Fetch | rackline.LayeredFetch]]
    ) -> None:
        """Begins them. :class:`rackline.Error` when the first is refused. When a later one is, the
        others still write into the engine's blocks: the error is raised when they have ended."""
        self._each, self._error = _begun(begin)
        self._results: list[rackline.FetchResult] = []

    def wait_layer(self, layer: int) -> None:
        """Waits until the layer is there, of every share that does not end without it: its result says so."""
        for fetch in self._each:
            try:
                fetch.wait_layer(layer)
            except rackline.Error:
                continue

    def poll(self) -> rackline.FetchResult | None:
        """The result of the share with the fewest valid blocks; ``None`` while a share is under way.
        :class:`rackline.Error` when a share was refused or broke off."""
        return self._result(lambda fetch: fetch.poll())

    def wait(self) -> rackline.FetchResult | None:
        """As :meth:`poll`, when all shares have ended."""
        return self._result(lambda fetch: fetch.wait())

    def _result(self, ask: Callable[[Any], Any]) -> rackline.FetchResult | None:
        while self._each:
            try:
                result = ask(self._each[0])
            except rackline.Error as error:
                self._error = self._error or error
            else:
                if result is None:
                    return None
                self._results.append(result)
            self._each.popleft()
        if self._error is not None:
            raise self._error
        return min(
            self._results, key=lambda each: (each.valid_blocks, not is_missed(each.reason))
        )


@dataclasses.dataclass
class Outcomes:
    """What became of blocks, in each share of them: the names of :class:`rackline.PublishResult`."""

    of_shares: list[list[str]]
    messages: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def none(cls, blocks: int, reason: str, message: str | None = None) -> Outcomes:
        """None of the blocks is saved."""
        return cls([[reason] * blocks], {} if message is None else {reason: message})

    def of_blocks(self) -> list[str]:
        """Why a block is not saved, of the first share that is not; else ``published`` where a share was."""
        if len(self.of_shares) == 1:
            return self.of_shares[0]
        return [_of_block(each) for each in zip(*self.of_shares, strict=True)]

    def published_shares(self) -> int:
        """How many shares of blocks were published."""
        return sum(each.count("published") for each in self.of_shares)

    def already_there(self) -> bool:
        """Whether a share of a block was there, or is being written by another publish."""
        return any("already_there" in each for each in self.of_shares)

    def of(self, blocks: slice) -> Outcomes:
        """The same of some of the blocks."""
        return Outcomes([each[blocks] for each in self.of_shares], self.messages)


def _of_block(of_shares: tuple[str, ...]) -> str:
    for outcome in of_shares:
        if outcome not in ("published", "already_there"):
            return outcome
    return "published" if "published" in of_shares else "already_there"


class Publishes:
    """Publishes of the same blocks, one for each share."""

    def __init__(
        self, blocks: int, begin: Iterable[Callable[[], rackline.Publish | rackline.LayeredPublish]]
    ) -> None:
        """Begins them. :class:`rackline.Error` when the first is refused. When a later one is, the
        others still read the engine's blocks: the error is raised when they have ended."""
        self._blocks = blocks
        self._each, self._error = _begun(begin)
        self._unrevoked = len(self._each)
        self._outcomes: list[list[str]] = []
        self._messages: dict[str, str] = {}

    def poll(self) -> Outcomes | None:
        """What became of the blocks; ``None`` while a share is under way. :class:`rackline.Error` when a
        share was refused or broke off."""
        return self._result(lambda publish: publish.poll())

    def wait(self) -> Outcomes | None:
        """As :meth:`poll`, when all shares have ended."""
        return self._result(lambda publish: publish.wait())

    def _result(self, ask: Callable[[Any], Any]) -> Outcomes | None:
        while self._each:
            try:
                result = ask(self._each[0])
            except rackline.Error as error:
                self._error = self._error or error
            else:
                if result is None:
                    return None
                self._outcomes.append(result.outcomes)
                self._messages = {**result.messages, **self._messages}
            self._each.popleft()
        if self._error is not None:
            raise self._error
        return Outcomes(self._outcomes, self._messages)

    def cancel(self, reason: str) -> bool:
        """Revokes the shares of which nothing was begun, and says whether that is all of them. Where it
        is not, the result has ``reason`` for the blocks of those that were revoked."""
        left = collections.deque(publish for publish in self._each if not publish.cancel())
        revoked = len(self._each) - len(left)
        self._each = left
        self._unrevoked -= revoked
        self._outcomes += [[reason] * self._blocks] * revoked
        return self._unrevoked == 0

    def layer_ready(self, layer: int, stream: int | None) -> None:
        """As :meth:`rackline.LayeredPublish.layer_ready`, of every share."""
        for publish in self._each:
            publish.layer_ready(layer, stream=stream)

    def finish(self) -> None:
        """All layers are ready."""
        if self._error is not None:
            return self.abort()
        for publish in self._each:
            publish.finish()

    def abort(self) -> None:
        """Nothing is to be published."""
        for publish in self._each:
            publish.abort()


def _begun(
    begin: Iterable[Callable[[], Any]],
) -> tuple[collections.deque[Any], rackline.Error | None]:
    """The transfers that were not refused, up to the first that was, and its error."""
    begun: collections.deque[Any] = collections.deque()
    for each in begin:
        try:
            begun.append(each())
        except rackline.Error as error:
            if not begun:
                raise
            return begun, error
    return begun, None
