"""The worker's half: copies, and says what came of it.

- **VLLM-W1** Whole blocks only, and only what the pool's checks let pass: what failed is told to the
  engine as not loaded.
- **VLLM-W2** Nothing that was computed on blocks that failed to load is saved. Only synchronous loads can
  fail under a forward; the ranks agree on what failed, since a forward of one runs on the blocks of
  all, and from then on nothing is saved until a step that the scheduler made knowing of it. They agree
  before the forward, or behind it where it waits layer by layer: before anything of the step becomes
  visible in either case.
- **VLLM-W3** Blocks of a preempted request are not given up while they are copied: a save that was not
  begun is revoked, the others are waited for. Requests that ended are reported when theirs are saved.
- **VLLM-W4** A step whose forward did not come to its end saves nothing. The engine calls on its way out of
  an error, too, signals among them.
- **VLLM-W5** A block that was not loaded is zeroed: what a failed fetch left may be no number at all, and an
  engine that uses the block next multiplies what it masks by zero. So is what a forward that waited
  layer by layer computed on such blocks, behind them.
- **VLLM-W6** What fails here is a block not loaded, or not saved; never the engine.
- **VLLM-W7** A forward that waits layer by layer is one of which every layer asked. The blocks that it ran
  on are bad if one did not, whatever their checksums say; later loads are whole then.
- **VLLM-W8** Blocks that a step left out for a failed load (VLLM-W2) are saved with a later step of their request.
  By then the engine has computed again what the failure spoilt.
- **VLLM-W9** The blocks that wait to be saved for requests that ended are bounded in bytes: the oldest saves that
  were not begun are revoked. The engine needs the memory, and a copy that lags behind never catches up.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from typing import Any

import rackline
from rackline.engines.attachment import Attachment, Renewal
from rackline.engines.identities import Registration
from rackline.engines.reasons import Reasons, of_error
from rackline.vllm.device import Device, device_of
from rackline.vllm.groups import Groups
from rackline.vllm.layerwise import EngineLayers, LayeredSave, Outcomes, Share
from rackline.vllm.messages import (
    GroupLoad,
    GroupLoaded,
    Handshake,
    Loaded,
    LoadJob,
    Report,
    Saved,
    SaveJob,
    Step,
)
from rackline.vllm.parts import Part, parts_of
from rackline.vllm.settings import Settings
from rackline.vllm.statistics import RacklineStats

logger = logging.getLogger(__name__)

# A fetch that was refused, or broke off: nothing is known about which blocks are missing in the
# pool.
NOT_TRIED = GroupLoaded(0, missed=False)
# The reason of a fetch whose copy failed, and not the block.
NOT_COPIED = "copy"


@dataclasses.dataclass
class _Saving:
    job: SaveJob
    publish: rackline.Publish | Share
    again: bool = False
    """Whether a later step saves what this one leaves out (VLLM-W8)."""


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


class WorkerHalf:
    """One in each rank."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
        self._vllm_config, self._kv_cache_config = vllm_config, kv_cache_config
        self._settings = settings
        self._attachment = Attachment(settings)
        self._parts: dict[int, Part] = {}
        """By number of the group."""
        self._keep_all = Groups.of(vllm_config, kv_cache_config).keep_all
        self._device: Device | None = None
        self._renewal = Renewal(self._attachment)
        self._registrations: list[Registration] = []
        self._loading: dict[str, _Loading] = {}
        self._forward_waits: list[rackline.LayeredFetch] = []
        """What the forward waits for layer by layer."""
        self._asked: set[str] = set()
        """Layers of the forward that asked."""
        self._all_ask = True
        self._loads_open = False
        """Whether it is not agreed yet what came of the step's loads."""
        self._received: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._failed_requests: set[str] = set()
        self._failures = 0
        self._saving: dict[int, _Saving] = {}
        self._layers = EngineLayers({})
        self._layered_save: LayeredSave | None = None
        self._forward: Step | None = None
        """The step whose forward is under way, as far as its layers said so."""
        self._error_before: BaseException | None = None
        """What the caller of the step is handling already."""
        self._ended: set[str] = set()
        self._report = Report()
        self.stats = RacklineStats()
        # Its statistics are others' after a report.
        self._reasons = Reasons(logger, lambda name, amount: self.stats.count(name, amount))

    def register(self, kv_caches: dict[str, Any]) -> None:
        """The engine's caches are there."""
        self._device = device_of(kv_caches)
        self._parts = parts_of(
            self._vllm_config, self._kv_cache_config, self._settings, self._device, kv_caches
        )
        if self._keep_all:
            self._layers = self._parts[0].layers
        self._renewal.open(self._open_sessions)
        self._registrations = [
            Registration(
                self._attachment,
                part.identity.words(self._settings.tenant),
                part.identity.block_bytes,
            )
            for part in self._parts.values()
            if part.identity.rank == 0 and part.stores
        ]
        self._register_again()
        if (gpu := self._device.gpu) is not None:
            # Seconds, in which the engine does not wait.
            self._attachment.prepare(lambda pool: pool.gpu(gpu))
        for part in self._parts.values():
            logger.info(
                "Rackline: blocks of %d bytes, rank %d of %d, %s, %s %s",
                part.identity.block_bytes,
                part.identity.rank,
                part.identity.ranks,
                part.identity.model,
                part.identity.dtype,
                part.identity.share,
            )

    def _register_again(self) -> None:
        for registration in self._registrations:
            registration.renew()

    def _open_sessions(self) -> None:
        pool = self._attachment.pool
        self._device.open(pool)
        for part in self._parts.values():
            part.open(pool, self._settings)

    def _renew(self) -> None:
        """Opens the session anew where this process attached to the pool again (ENGINE-E2). What an earlier
        session was asked for has come to its end with that: a block that it did not load is told to the
        engine like any other (VLLM-W1)."""
        if self._parts and self._renewal.renew(self._open_sessions):
            self.stats.count("attached_again", 1)

    def _why(self, error: rackline.Error, blocks: int) -> tuple[str, str | None]:
        """The reason that an error gives for ``blocks``, and its sentence: it is raised to nobody (VLLM-W6)."""
        if self._attachment.is_out(error, self._renewal.life):
            self.stats.count("not_attached_blocks", blocks)
            return "not_attached", None
        return of_error(error), str(error)

    def handshake(self) -> Handshake | None:
        identities = [part.identity for part in self._parts.values()]
        return Handshake(identities) if identities else None

    def begin_step(self) -> None:
        """The engine begins a step. It may ask for the step's loads when that has been broken off."""
        self._error_before = sys.exc_info()[1]
        self._renew()
        self._register_again()

    # Loading

    def start_loads(self, step: Step) -> None:
        """Begins what the step says; with synchronous loads, to the end, unless the forward waits."""
        by_layers = self._settings.loads_by_layers
        self._forward_waits, self._asked = [], set()
        for job in step.loads:
            loading = self._loading[job.request_id] = _Loading(job, {}, {})
            for load in job.groups:
                if (part := self._parts.get(load.group)) is not None:
                    self._start_load(loading, load, part)
        if self._settings.load == "sync":
            self._loads_open = True
            if not by_layers:
                self._end_loads(step)
            elif not self._all_ask:
                self._wait_for_layer(self._layers.last())

    def _start_load(self, loading: _Loading, load: GroupLoad, part: Part) -> None:
        handles = load.handles[part.identity.place]
        try:
            if len(handles) != len(load.block_ids) * rackline.HANDLE_BYTES:
                raise rackline.Error("vLLM has places for other blocks than were found")
            # The engine still uses the blocks until its stream comes to here.
            stream, into = self._device.stream(), (part.memory, load.block_ids)
            if self._settings.loads_by_layers:
                fetch = part.session.fetch_by_layers(handles, *into, stream=stream)
                self._forward_waits.append(fetch)
            else:
                fetch = part.session.fetch(handles, *into, stream=stream)
        except rackline.Error as error:
            loading.why[load.group] = self._why(error, len(load.block_ids))
            loading.loaded[load.group] = NOT_TRIED
            return
        loading.fetches[load.group] = fetch

    def begin_layer(self, step: Step, name: str) -> None:
        """A layer of the forward waits for that layer of what is loaded. Whether it is good is known
        at the end; if it is not, the engine throws away what the forward makes of it (VLLM-W2)."""
        self._begin_layered_save(step)
        if self._forward_waits and (layer := self._layers.layer(name)) is not None:
            self._asked.add(name)
            self._wait_for_layer(layer)
            self.stats.count("loaded_layers", 1)

    def _wait_for_layer(self, layer: int) -> None:
        for fetch in self._forward_waits:
            try:
                fetch.wait_layer(layer)
            except rackline.Error:
                pass  # It ended without: so says its result, which is asked for at the end.

    def _end_loads(self, step: Step, broken_off: bool = False) -> None:
        """To the end of the synchronous loads, and to what all ranks have (VLLM-W2)."""
        if not self._loads_open:
            return
        unasked = self._layers.missing(self._asked) if self._forward_waits else []
        self._loads_open, self._forward_waits = False, []
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
            self._load_ended(job)
        if any(valid_blocks < job.blocks for job, valid_blocks in zip(step.loads, valid)):
            self._failures += 1
            self._report.failures = self._failures

    def _poll_loads(self) -> None:
        for loading in list(self._loading.values()):
            if self._came_of(loading) is not None:
                self._load_ended(loading.job)

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
            loading.why[load.group] = self._why(error, len(load.block_ids))
            return NOT_TRIED
        if result is None:
            return None
        if result.reason is not None:
            loading.why[load.group] = (result.reason, result.message)
        return GroupLoaded(result.valid_blocks, result.reason not in (None, NOT_COPIED))

    def _load_ended(self, job: LoadJob) -> None:
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
        self._report.add(Report(loaded={job.request_id: Loaded(1, loading.loaded)}))

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
        computed_on_them = job.behind_ids if failed and self._settings.loads_by_layers else []
        # VLLM-W5.
        part.clear([*failed, *computed_on_them])
        if self._keep_all:
            self._failed_blocks.update(failed)
        self.stats.count("loaded_blocks", valid_blocks)
        self.stats.count("loaded_bytes", valid_blocks * part.identity.block_bytes)
        self.stats.count("failed_load_blocks", len(failed))
        self._reasons.not_loaded(reason, len(failed), message)

    # Saving

    def _begin_layered_save(self, step: Step) -> None:
        """Once a forward, with its first layer."""
        if self._forward is step or not self._settings.publishes_by_layers:
            return
        # Of a forward that never ended (VLLM-W4).
        self._end_layered_save(worth_saving=False)
        self._forward = step
        part = self._parts[0]
        if not step.saves or not part.stores or step.failures_known < self._failures:
            return
        try:
            self._layered_save = LayeredSave(
                part.session, part.memory, part.layers, self._device, step.saves
            )
        except rackline.Error as error:
            # They are saved whole behind the forward, if there is room then.
            _, said = self._why(error, 0)
            if said is not None:
                logger.warning("Rackline: a step is not saved layer by layer: %s", said)

    def _end_layered_save(self, worth_saving: bool, again: bool = False) -> bool:
        """Whether there was one. ``again``: see :class:`_Saving`."""
        layered, self._layered_save, self._forward = self._layered_save, None, None
        if layered is None:
            return False
        for share in layered.end(worth_saving):
            self._saving[share.job.job] = _Saving(share.job, share, again)
        return True

    def end_layer(self, name: str) -> None:
        """A layer of the forward is computed, or launched on a GPU."""
        if self._layered_save is not None and self._layered_save.layer_ends(name):
            self.stats.count("saved_layers", 1)

    def _is_broken_off(self) -> bool:
        """Whether an error ends the step, that of its caller aside."""
        error = sys.exc_info()[1]
        return error is not None and error is not self._error_before

    def start_saves(self, step: Step) -> None:
        """The step's forward is done, or launched on a GPU: its full blocks are saved while the engine
        continues."""
        broken_off = self._is_broken_off()
        self._end_loads(step, broken_off)
        worth_saving = not broken_off and step.failures_known >= self._failures
        own = self._forward is step
        again = not worth_saving and not broken_off
        if self._end_layered_save(worth_saving and own, again and own) and own:
            return
        for job in step.saves:
            part = self._parts.get(job.group)
            if part is None or not part.stores:
                self._save_ended(job, None)
            elif not worth_saving:
                why = "aborted" if broken_off else "load_failed"
                self._save_ended(job, Outcomes.none(job, why), again)
            else:
                self._save(job, part)

    def _save(self, job: SaveJob, part: Part) -> None:
        try:
            publish = part.session.publish(
                job.hashes,
                job.first_depth,
                part.memory,
                job.block_ids,
                stream=self._device.stream(),
            )
        except rackline.Error as error:
            self._save_ended(job, self._refused(job, error))
            return
        self._saving[job.job] = _Saving(job, publish)

    def _poll_saves(self) -> None:
        for saving in list(self._saving.values()):
            if (result := self._outcomes(saving)) is not None:
                self._save_ended(saving.job, result, saving.again)

    def _refused(self, job: SaveJob, error: rackline.Error) -> Outcomes:
        """What became of blocks whose publish was refused, or broke off (VLLM-W6)."""
        blocks = len(job.block_ids)
        reason, said = self._why(error, blocks)
        return Outcomes([reason] * blocks, {} if said is None else {reason: said})

    def _outcomes(
        self, saving: _Saving, wait: bool = False
    ) -> Outcomes | rackline.PublishResult | None:
        """What became of the blocks; ``None`` while that is not known."""
        try:
            return saving.publish.wait() if wait else saving.publish.poll()
        except rackline.Error as error:
            return self._refused(saving.job, error)

    def _save_ended(
        self, job: SaveJob, result: Outcomes | rackline.PublishResult | None, again: bool = False
    ) -> None:
        """With what became of the blocks; ``None`` when another rank stores them."""
        self._saving.pop(job.job, None)
        complete, put_off, already_there = True, 0, 0
        if result is not None:
            outcomes = result.outcomes
            published = outcomes.count("published")
            already_there = outcomes.count("already_there")
            unsaved = len(job.block_ids) - published - already_there
            complete = unsaved == 0
            if not again:
                self._reasons.outcomes(outcomes, result.messages)
            self.stats.count("saved_blocks", published)
            self.stats.count("saved_bytes", published * self._parts[job.group].identity.block_bytes)
            self.stats.count("already_there_blocks", already_there)
            put_off = unsaved if again else 0
            self.stats.count("put_off_blocks", put_off)
            self.stats.count("unsaved_blocks", unsaved - put_off)
        saved = Saved(1, complete, put_off, already_there > 0)
        self._report.add(Report(saved={job.job: saved}))

    def keep_preempted(self, step: Step) -> None:
        """Waits until nothing reads blocks that may be overwritten from now on (VLLM-W3)."""
        preempted = set(step.preempted)
        for saving in list(self._saving.values()):
            if saving.job.request_id in preempted:
                cancelled = saving.publish.cancel()
                result = Outcomes.none(saving.job, "preempted")
                result = result if cancelled else self._outcomes(saving, wait=True)
                self._save_ended(saving.job, result)

    # What was done

    def finished(self, step: Step) -> tuple[set[str], set[str]]:
        """Requests of which every block is saved, and requests that were loaded."""
        # The engine may ask before it says that all is computed.
        self._end_loads(step, self._is_broken_off())
        self._poll_loads()
        self._poll_saves()
        self._device.count(self.stats)
        self._ended.update(step.finished)
        self._bound_backlog()
        saving = {saving.job.request_id for saving in self._saving.values()}
        sent = self._ended - saving
        self._ended -= sent
        received, self._received = self._received, set()
        return sent, received

    def _bound_backlog(self) -> None:
        """VLLM-W9."""

        def length(saving: _Saving) -> int:
            job = saving.job
            return len(job.block_ids) * self._parts[job.group].identity.block_bytes

        memory = sum(part.blocks * part.identity.block_bytes for part in self._parts.values())
        limit = memory * self._settings.save_backlog_percent // 100
        backlog = [it for it in self._saving.values() if it.job.request_id in self._ended]
        waiting = sum(length(saving) for saving in backlog)
        for saving in backlog:
            if waiting <= limit:
                break
            if saving.publish.cancel():
                waiting -= length(saving)
                self._save_ended(saving.job, Outcomes.none(saving.job, "backlog"))

    def take_failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_failed_requests(self) -> set[str]:
        """Requests whose load failed, of those that were loaded, where vLLM computes all of them again."""
        failed, self._failed_requests = self._failed_requests, set()
        return failed

    def take_report(self) -> Report | None:
        report, self._report = self._report, Report(failures=self._failures)
        return report if report.loaded or report.saved else None

    def close(self) -> None:
        """Waits for what was begun, and leaves the pool."""
        self._end_layered_save(worth_saving=False)
        for saving in list(self._saving.values()):
            self._save_ended(saving.job, self._outcomes(saving, wait=True))
        for loading in list(self._loading.values()):
            self._came_of(loading, wait=True)
            self._load_ended(loading.job)
        self._attachment.close()


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
