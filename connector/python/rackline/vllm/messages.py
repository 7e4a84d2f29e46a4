"""What the halves tell each other, step by step."""

from __future__ import annotations

import dataclasses

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from rackline.vllm.identity import Identity, Place


@dataclasses.dataclass
class Handshake(KVConnectorHandshakeMetadata):
    """From each worker, once: what its blocks are, part by part."""

    identities: list[Identity]


@dataclasses.dataclass
class GroupLoad:
    """The blocks of one group of KV caches that a load fetches."""

    group: int
    hashes: bytes
    """Those of its blocks, one behind the other."""
    handles: dict[Place, bytes]
    """By place of storage: those of its blocks without their keys, one behind the other. vLLM pickles one
    message a step for all workers, and has none for a single rank. So each rank gets the handles of all, and
    makes the keys of its own from the hashes."""
    block_ids: list[int]
    """Where they go in the engine's memory, counted in stored blocks."""


@dataclasses.dataclass
class LoadJob:
    """Fetch blocks into the engine's."""

    request_id: str
    groups: list[GroupLoad]
    behind_ids: list[int]
    """The engine's blocks behind these, into which it computes; with one group that keeps all tokens."""

    @property
    def blocks(self) -> int:
        return sum(len(load.block_ids) for load in self.groups)


@dataclasses.dataclass
class SaveJob:
    """Publish blocks of the engine, once this step's forward is done."""

    job: int
    request_id: str
    group: int
    hashes: bytes
    """One behind the other."""
    first_depth: int
    block_ids: list[int]
    """Where they are in the engine's memory, counted in stored blocks."""
    tail: bool = False
    """Whether it is the last partial block of a prompt, which only a hand-over looks for."""


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights that came while the engine ran (VLLM-V11)."""

    number: int
    """How often new ones came."""
    name: str


@dataclasses.dataclass
class Step(KVConnectorMetadata):
    """From the scheduler to the workers, with each step."""

    loads: list[LoadJob] = dataclasses.field(default_factory=list)
    saves: list[SaveJob] = dataclasses.field(default_factory=list)
    preempted: list[str] = dataclasses.field(default_factory=list)
    """Requests whose blocks may be overwritten from this step on."""
    finished: list[str] = dataclasses.field(default_factory=list)
    """Requests that ended, whose blocks stay until every rank has saved them."""
    computed_tokens: int = 0
    """Tokens that the step computes, of all requests."""
    prefix_tokens: int = 0
    """Tokens before these, which it uses."""
    failures_known: int = 0
    """How many steps with failed synchronous loads the scheduler knew of when it made this one."""
    number: int = 0
    """Of the engine's steps, from 1."""
    known: int = 0
    """The last step whose output the scheduler had when it made this one (VLLM-W10)."""

    def saves_beside_loads(self, steps: int) -> bool:
        """Whether it saves a part of a block of the engine into which it loads another part. ``steps`` is how
        many stored blocks that has."""
        if steps == 1:
            return False
        loaded = {
            number // steps for job in self.loads for load in job.groups for number in load.block_ids
        }
        saved = (number // steps for job in self.saves for number in job.block_ids)
        return not loaded.isdisjoint(saved)
    weights: Weights | None = None
    """The weights of this step; ``None``: those that the engine started with."""


@dataclasses.dataclass
class GroupLoaded:
    """What came of a load in one group of KV caches."""

    valid_blocks: int
    missed: bool
    """Whether the pool did not give the block behind the valid ones to a rank. If not, and it is not
    there, it was not asked for, or could not be copied: it may be good."""

    def least(self, other: GroupLoaded) -> GroupLoaded:
        """What two ranks have of it."""
        valid = min(self.valid_blocks, other.valid_blocks)
        # What one missed behind the first that another has not is not known to be missing.
        missed = any(told.missed and told.valid_blocks == valid for told in (self, other))
        return GroupLoaded(valid, missed)


@dataclasses.dataclass
class Loaded:
    """What came of a load, over the ranks that reported so far."""

    ranks: int
    groups: dict[int, GroupLoaded]
    """By number of the group; a rank reports those that it has layers of."""

    def merged(self, other: Loaded) -> Loaded:
        """What these and other ranks have."""
        groups = dict(self.groups)
        for group, told in other.groups.items():
            groups[group] = told.least(groups.get(group, told))
        return Loaded(self.ranks + other.ranks, groups)


@dataclasses.dataclass
class Saved:
    """What came of a save, over the ranks that reported so far."""

    ranks: int
    complete: bool
    """Whether every block is in the pool."""
    put_off_blocks: int = 0
    """Blocks that the ranks left out for a failed load of the step: a later step saves them (VLLM-W8)."""
    already_there: bool = False
    """Whether a rank found a block there, or another publish writing it (VLLM-V7)."""


@dataclasses.dataclass
class Report(KVConnectorWorkerMetadata):
    """From the workers to the scheduler, with each step."""

    loaded: dict[str, Loaded] = dataclasses.field(default_factory=dict)
    saved: dict[int, Saved] = dataclasses.field(default_factory=dict)
    failures: int = 0
    """Steps so far with synchronous loads that failed; the same on all ranks."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Report:
        assert isinstance(other, Report)
        merged = Report(dict(self.loaded), dict(self.saved), self.failures)
        merged.add(other)
        return merged

    def add(self, other: Report) -> None:
        """Takes in what others, or later steps, report."""
        for request_id, new in other.loaded.items():
            self.loaded[request_id] = self.loaded.get(request_id, Loaded(0, {})).merged(new)
        for job, done in other.saved.items():
            before = self.saved.get(job, Saved(0, True))
            complete = before.complete and done.complete
            put_off = before.put_off_blocks + done.put_off_blocks
            there = before.already_there or done.already_there
            self.saved[job] = Saved(before.ranks + done.ranks, complete, put_off, there)
        self.failures = max(self.failures, other.failures)
