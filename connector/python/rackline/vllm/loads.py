"""The loads of a rank: fetches blocks into the engine's, and says which of them are good.

The rules VLLM-W1, VLLM-W2, VLLM-W5 and VLLM-W7 are in `worker`, VLLM-W10 is in `positions`.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import rackline
from rackline.vllm.device import Device
from rackline.vllm.layerwise import EngineLayers
from rackline.vllm.messages import GroupLoad, GroupLoaded, Loaded, LoadJob, Report, Step
from rackline.vllm.parts import Part
from rackline.vllm.positions import Positions
from rackline.vllm.results import Results
from rackline.vllm.settings import Settings
from rackline.vllm.transfers import is_missed

logger = logging.getLogger(__name__)

# A fetch that was refused, or broke off: nothing is known about which blocks are missing in the
# pool.
NOT_TRIED = GroupLoaded(0, missed=False)


@dataclasses.dataclass
class _Loading:
    """A load under way, group by group."""

    job: LoadJob
    fetches: dict[int, rackline.Fetch | rackline.LayeredFetch]
    loaded: dict[int, GroupLoaded]
    """Groups of which it is known what came of them."""
    why: dict[int, tuple[str, str | None]] = dataclasses.field(default_factory=dict)
    """Why a group's next block is not loaded: a name of `rackline.engines.reasons`, and what the pool says."""

    def is_good(self) -> bool:
        """Whether every block is there."""
        return all(
            self.loaded[load.group].valid_blocks == len(load.block_ids)
            for load in self.job.groups
            if load.group in self.loaded
        )


class Loads:
    """Those of one rank."""

    def __init__(
        self,
        vllm_config: Any,
        keep_all: bool,
        settings: Settings,
        results: Results,
        positions: Positions,
    ) -> None:
        self._vllm_config, self._keep_all = vllm_config, keep_all
        self._settings, self._results = settings, results
        self._positions = positions
        self._parts: dict[int, Part] = {}
        self._layers = EngineLayers({})
        self._device: Device | None = None
        self._loading: dict[str, _Loading] = {}
        self._forward_waits: list[rackline.LayeredFetch] = []
        """What the forward waits for layer by layer."""
        self._asked: set[str] = set()
        """Layers of the forward that asked."""
        self._all_ask = True
        self._open = False
        """Whether it is not agreed yet what came of the step's loads."""
        self._received: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._failed_requests: set[str] = set()

    def register(self, parts: dict[int, Part], layers: EngineLayers, device: Device) -> None:
        """The engine's caches are there. ``layers`` are those that wait one by one."""
        self._parts, self._layers, self._device = parts, layers, device

    def begin_step(self, step: Step) -> None:
        """The engine begins a step."""
        if self._settings.load == "async" and self._device is not None:
            self._positions.begin(step, self._device)

    def start(self, step: Step) -> None:
        """Begins what the step says; with synchronous loads, to the end, unless the forward waits."""
        by_layers = self._settings.loads_by_layers
        self._forward_waits, self._asked = [], set()
        for job in step.loads:
            loading = self._loading[job.request_id] = _Loading(job, {}, {})
            for load in job.groups:
                if (part := self._parts.get(load.group)) is not None:
                    self._start_group(step, loading, load, part)
        if self._settings.load == "sync":
            self._open = True
            if not by_layers:
                self.end(step)
            elif not self._all_ask:
                self.wait_for_layer(self._layers.last())

    def _start_group(self, step: Step, loading: _Loading, load: GroupLoad, part: Part) -> None:
        by_layers = self._settings.loads_by_layers
        try:
            fetch = part.fetch(load, self._stream(step), by_layers)
        except rackline.Error as error:
            loading.why[load.group] = self._results.why(error, len(load.block_ids))
            loading.loaded[load.group] = NOT_TRIED
            return
        loading.fetches[load.group] = fetch
        if by_layers:
            self._forward_waits.append(fetch)

    def _stream(self, step: Step) -> int | None:
        """What the loads of the step come after."""
        if self._settings.load == "async":
            return self._positions.of_load(step, self._device)
        # The engine still uses the blocks, and may zero them, until its stream comes to here.
        return self._device.stream()

    def begin_layer(self, name: str) -> None:
        """A layer of the forward waits for that layer of what is loaded. Whether it is good is known
        at the end; if it is not, the engine throws away what the forward makes of it (VLLM-W2)."""
        if self._forward_waits and (layer := self._layers.layer(name)) is not None:
            self._asked.add(name)
            self.wait_for_layer(layer)
            self._results.stats.count("loaded_layers", 1)

    def wait_for_layer(self, layer: int) -> None:
        """Waits for a layer of the blocks, in all loads of the step."""
        for fetch in self._forward_waits:
            try:
                fetch.wait_layer(layer)
            except rackline.Error:
                continue  # It ended without: so says its result, which is asked for at the end.

    def end(self, step: Step, broken_off: bool = False) -> None:
        """To the end of the synchronous loads, and to what all ranks have (VLLM-W2)."""
        if not self._open:
            return
        unasked = self._layers.missing(self._asked) if self._forward_waits else []
        self._open, self._forward_waits = False, []
        # There is one group, which keeps all tokens.
        own = [
            self._came_of(self._loading[job.request_id], wait=True)[0] for job in step.loads
        ]
        valid = [loaded.valid_blocks for loaded in own]
        why = "aborted" if broken_off else "other_rank"
        # VLLM-W7.
        if unasked and not broken_off and self._all_ask:
            self._all_ask = False
            valid, why = [0] * len(valid), "not_asked"
            logger.warning(
                "Rackline: the engine computes %d layers without asking for their blocks (%s, ...): the "
                "result of this step is thrown away, and blocks are loaded whole from now on",
                len(unasked),
                unasked[0],
            )
        if broken_off:
            valid = [0] * len(valid)  # The other ranks may never come to where they agree.
        elif valid:
            valid = _least_of_all_ranks(self._vllm_config, valid)
        for job, loaded, valid_blocks in zip(step.loads, own, valid, strict=True):
            missed = loaded.missed and loaded.valid_blocks == valid_blocks
            loading = self._loading[job.request_id]
            loading.loaded[0] = GroupLoaded(valid_blocks, missed)
            if valid_blocks < loaded.valid_blocks:
                loading.why[0] = (why, None)
            self._ended(job)
        if any(valid_blocks < job.blocks for job, valid_blocks in zip(step.loads, valid)):
            self._results.report.failures += 1

    def poll(self) -> None:
        """Takes in what has ended."""
        for loading in list(self._loading.values()):
            if self._came_of(loading) is not None:
                self._ended(loading.job)

    def wait(self) -> None:
        """To the end of all that was begun."""
        for loading in list(self._loading.values()):
            self._came_of(loading, wait=True)
            self._ended(loading.job)

    def _came_of(self, loading: _Loading, wait: bool = False) -> dict[int, GroupLoaded] | None:
        """What this rank has of each group; ``None`` while that is not known."""
        for load in loading.job.groups:
            if (fetch := loading.fetches.get(load.group)) is not None:
                loaded = self._came_of_group(loading, load, fetch, wait)
                if loaded is None:
                    return None
                loading.loaded[load.group] = loaded
                del loading.fetches[load.group]
        return loading.loaded

    def _came_of_group(
        self,
        loading: _Loading,
        load: GroupLoad,
        fetch: rackline.Fetch | rackline.LayeredFetch,
        wait: bool,
    ) -> GroupLoaded | None:
        try:
            result = fetch.wait() if wait else fetch.poll()
        except rackline.Error as error:
            loading.why[load.group] = self._results.why(error, len(load.block_ids))
            return NOT_TRIED
        if result is None:
            return None
        if result.reason is not None:
            loading.why[load.group] = (result.reason, result.message)
        return GroupLoaded(result.valid_blocks, is_missed(result.reason))

    def _ended(self, job: LoadJob) -> None:
        loading = self._loading.pop(job.request_id)
        for load in job.groups:
            if (loaded := loading.loaded.get(load.group)) is not None:
                reason, message = loading.why.get(load.group, ("other_rank", None))
                self._group_ended(job, load, loaded, reason, message)
        if not self._keep_all and not loading.is_good():
            # vLLM computes all of it again: in several groups it knows no first bad block.
            self._failed_requests.add(job.request_id)
        if self._settings.load == "async":
            self._received.add(job.request_id)
        self._results.report.add(Report(loaded={job.request_id: Loaded(1, loading.loaded)}))

    def _group_ended(
        self,
        job: LoadJob,
        load: GroupLoad,
        loaded: GroupLoaded,
        reason: str,
        message: str | None,
    ) -> None:
        part, valid_blocks = self._parts[load.group], loaded.valid_blocks
        failed = load.block_ids[valid_blocks:]
        # The engine computes its block again from the start, also what of it is good.
        failed_ids = sorted({number // part.steps for number in failed})
        computed_on_them = job.behind_ids if failed and self._settings.loads_by_layers else []
        # VLLM-W5.
        part.clear([*failed_ids, *computed_on_them])
        if self._keep_all:
            self._failed_blocks.update(failed_ids)
        stats = self._results.stats
        stats.count("loaded_blocks", valid_blocks)
        stats.count("loaded_bytes", valid_blocks * part.block_bytes)
        stats.count("failed_load_blocks", len(failed))
        self._results.reasons.not_loaded(reason, len(failed), message)

    def take_received(self) -> set[str]:
        """Requests whose asynchronous load has ended."""
        received, self._received = self._received, set()
        return received

    def take_failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_failed_requests(self) -> set[str]:
        """Requests whose load failed, of those that were loaded, where vLLM computes all of them again."""
        failed, self._failed_requests = self._failed_requests, set()
        return failed


def _least_of_all_ranks(vllm_config: Any, numbers: list[int]) -> list[int]:
    """The least that any rank says, for each number."""
    if vllm_config.parallel_config.tensor_parallel_size == 1:
        return numbers
    import torch
    from vllm.distributed.parallel_state import get_tp_group

    least = torch.tensor(numbers)
    torch.distributed.all_reduce(
        least, op=torch.distributed.ReduceOp.MIN, group=get_tp_group().cpu_group
    )
    return least.tolist()
