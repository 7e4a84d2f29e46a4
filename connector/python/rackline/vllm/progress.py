"""What the scheduler's half knows of a request."""

from __future__ import annotations

import dataclasses
from typing import Any

from rackline.vllm.groups import Groups
from rackline.vllm.handover import Awaited, RouterParams
from rackline.vllm.hints import Hints
from rackline.vllm.holds import Hold
from rackline.vllm.lookup import Search
from rackline.vllm.tails import Tail


@dataclasses.dataclass
class Progress:
    """A request that the engine works on. Dictionaries are by number of the group; what they lack is
    nothing yet."""

    request: Any
    hashed: Any
    """The request, or what stands for it, with the hashes of its stored blocks."""
    params: RouterParams
    hints: Hints = dataclasses.field(default_factory=Hints)
    prefetch: Hold | None = None
    """What is held for it while it waits in the engine's queue."""
    awaited: Awaited | None = None
    """What its prefill is still saving."""
    waited: bool = False
    """It does not wait for that any more."""
    hashing_since_s: float | None = None
    """Since when its lookup waits for hashes."""
    put_off_s: float | None = None
    """Since when there is no room for its lookup."""
    search: Search | None = None
    looks: bool = True
    """Whether it is looked for; not after a load that failed for no reason of the pool's (VLLM-V6)."""
    put_off_blocks: int = 0
    """Blocks of all ranks that a failed load kept from the pool, and that no later step has saved (VLLM-W8)."""
    is_scheduled: bool = False
    """Whether the engine has given it blocks."""
    cached_tokens: int = 0
    """How many of its first tokens the engine's own cache had."""
    loaded: dict[int, range] = dataclasses.field(default_factory=dict)
    """Blocks that came from the pool: they need not be saved."""
    next_save: dict[int, int] = dataclasses.field(default_factory=dict)
    """The first block that was not given to be saved, or was not full."""
    saving: set[int] = dataclasses.field(default_factory=set)
    computed: list[int] = dataclasses.field(default_factory=list)
    """Its computed tokens at the begin of its last steps (VLLM-V10)."""
    lags: bool = False
    """Whether its last step was kept from saving for another connector's load (VLLM-V10)."""
    tail: Tail | None = None
    """The last partial block of the prompt, where that is handed over and is known."""
    saves_tail: bool = False
    """Whether it was given to be saved."""

    def saves_again(self, group: int, block: int) -> None:
        """Blocks from this one on are to be saved once more."""
        self.next_save[group] = min(self.next_save.get(group, 0), block)

    def saved(self, groups: Groups) -> int:
        """Units of the prefix that was given to be saved, in every group."""
        ends = [
            self.next_save.get(group.number, 0) * group.block_tokens for group in groups.groups
        ]
        return min(ends) // groups.unit_tokens

    def handed_over(self, groups: Groups) -> tuple[Any, int, int]:
        """What a decode engine may find of the request: what has the hashes, how many units of these, and
        how many tokens the tail among them has."""
        units = self.saved(groups)
        if self.saves_tail and units == self.tail.block:
            return self.tail.hashed, units + 1, self.tail.tokens
        return self.hashed, units, 0
