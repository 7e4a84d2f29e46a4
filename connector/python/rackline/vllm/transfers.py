"""What became of the blocks of a part, of which each share has a key space of its own.

One transfer has all shares of its blocks. A block is good where every share of it is, and counts once.
"""

from __future__ import annotations

import dataclasses

import rackline

# The reason of a fetch whose copy failed, and not the block.
NOT_COPIED = "copy"


def is_missed(reason: str | None) -> bool:
    """Whether the pool did not give the block behind the valid ones of a fetch with this reason."""
    return reason not in (None, NOT_COPIED)


@dataclasses.dataclass
class Outcomes:
    """What became of the shares of blocks: the names of :class:`rackline.PublishResult`."""

    of_shares: list[str]
    """Of all shares of the first block, then of those of the second."""
    shares: int = 1
    """How many a block has."""
    messages: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def none(cls, blocks: int, reason: str, message: str | None = None) -> Outcomes:
        """None of the blocks is saved."""
        return cls([reason] * blocks, messages={} if message is None else {reason: message})

    def of_blocks(self) -> list[str]:
        """Why a block is not saved, of the first share that is not; else ``published`` where a share was."""
        if self.shares == 1:
            return self.of_shares
        starts = range(0, len(self.of_shares), self.shares)
        return [_of_block(self.of_shares[start : start + self.shares]) for start in starts]

    def published_shares(self) -> int:
        """How many shares of blocks were published."""
        return self.of_shares.count("published")

    def already_there(self) -> bool:
        """Whether a share of a block was there, or is being written by another publish."""
        return "already_there" in self.of_shares

    def of(self, blocks: slice) -> Outcomes:
        """The same of some of the blocks."""
        own = slice(blocks.start * self.shares, blocks.stop * self.shares)
        return Outcomes(self.of_shares[own], self.shares, self.messages)


def _of_block(of_shares: list[str]) -> str:
    for outcome in of_shares:
        if outcome not in ("published", "already_there"):
            return outcome
    return "published" if "published" in of_shares else "already_there"


@dataclasses.dataclass
class Publish:
    """A publish of blocks that have so many shares."""

    begun: rackline.Publish | rackline.LayeredPublish
    shares: int

    def poll(self) -> Outcomes | None:
        """What became of the blocks; ``None`` while it is under way. :class:`rackline.Error` when it broke
        off."""
        return self._outcomes(self.begun.poll())

    def wait(self) -> Outcomes | None:
        """As :meth:`poll`, when it has ended."""
        return self._outcomes(self.begun.wait())

    def cancel(self) -> bool:
        """Revokes it if nothing of it was begun, and says so; it has no result then."""
        return self.begun.cancel()

    def _outcomes(self, result: rackline.PublishResult | None) -> Outcomes | None:
        return None if result is None else Outcomes(result.outcomes, self.shares, result.messages)
