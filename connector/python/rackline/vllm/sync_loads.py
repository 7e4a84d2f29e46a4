"""Synchronous loads whose outcome nobody knows yet.

The engine takes blocks for cached as soon as it has places for them, a step before they are loaded:
under their hashes others find them, and they stay findable when the load failed, until they are
computed.

- **VLLM-V5** Nobody shares a block before its load is over, and a block that was not loaded is found by
  nobody, nor is what was computed on it: the engine drops their hashes before it looks for anything
  again.
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class _Load:
    hashes: set[bytes]
    blocks: int
    """How many are loaded."""
    steps: int
    """How many of them a block of the engine has."""
    block_ids: list[int]
    """The engine's blocks into which they go, and behind them what the same step computes on them."""


class SyncLoads:
    """Those of the step that is under way."""

    def __init__(self) -> None:
        self._loads: dict[str, _Load] = {}

    def begin(
        self, request_id: str, hashes: list[bytes], blocks: int, steps: int, block_ids: list[int]
    ) -> None:
        """A request's blocks are to be loaded, ``steps`` into each of the first of the engine's ``block_ids``.
        Those that the engine may find have these hashes of its own: a partial block has none."""
        self._loads[request_id] = _Load(set(hashes), blocks, steps, block_ids)

    def fill(self, request: Any, blocks: int) -> bool:
        """Whether one of the engine's first blocks of a request is being loaded for another."""
        if not self._loads:
            return False
        first = set(request.block_hashes[:blocks])
        return any(not first.isdisjoint(load.hashes) for load in self._loads.values())

    def end(self, request_id: str, valid_blocks: int) -> set[int]:
        """The engine's blocks of a load that is over, or behind it, in which is not what their hash says."""
        load = self._loads.pop(request_id, None)
        if load is None or valid_blocks == load.blocks:
            return set()
        return set(load.block_ids[valid_blocks // load.steps :])
