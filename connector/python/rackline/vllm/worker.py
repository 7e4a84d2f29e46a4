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
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from typing import Any

import rackline
from rackline.engines.attachment import Attachment, Renewal
from rackline.engines.reasons import Reasons, of_error
from rackline.vllm.device import Device, device_of
from rackline.vllm.identity import Identity, identity_of
from rackline.vllm.layerwise import EngineLayers, LayeredSave, Outcomes, Share
from rackline.vllm.layout import blocks_in_memory, clear_blocks
from rackline.vllm.messages import Handshake, Loaded, LoadJob, Report, Saved, SaveJob, Step
from rackline.vllm.settings import Settings
from rackline.vllm.statistics import RacklineStats

logger = logging.getLogger(__name__)

# A fetch that was refused, or broke off: nothing is known about which blocks are missing in the
# pool.
NOT_TRIED = Loaded(1, 0, missed=False)
# The reason of a fetch whose copy failed, and not the block.
NOT_COPIED = "copy"


@dataclasses.dataclass
class _Saving:
    job: SaveJob
    publish: rackline.Publish | Share
    again: bool = False
    """Whether a later step saves what this one leaves out (VLLM-W8)."""


class WorkerHalf:
    """One in each rank."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
        self._vllm_config, self._kv_cache_config = vllm_config, kv_cache_config
        self._settings = settings
        self._attachment = Attachment(settings)
        self._caches: dict[str, Any] = {}
        self._memory: rackline.BlockMemory | None = None
        self._device: Device | None = None
        self._identity: Identity | None = None
        self._session: rackline.Session | None = None
        self._renewal = Renewal(self._attachment)
        self._loading: dict[str, tuple[LoadJob, rackline.Fetch | rackline.LayeredFetch]] = {}
        self._forward_waits: list[rackline.LayeredFetch] = []
        """What the forward waits for layer by layer."""
        self._asked: set[str] = set()
        """Layers of the forward that asked."""
        self._all_ask = True
        self._loads_open = False
        """Whether it is not agreed yet what came of the step's loads."""
        self._received: set[str] = set()
        self._failed_blocks: set[int] = set()
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
        blocks = self._kv_cache_config.num_blocks
        self._caches, self._device = kv_caches, device_of(kv_caches)
        self._memory, layout, layers = blocks_in_memory(kv_caches, blocks, self._device.gpu)
        self._layers = EngineLayers(layers)
        self._identity = identity_of(
            self._vllm_config,
            self._kv_cache_config,
            self._settings,
            f"{layout} {self._device.kernels(self._vllm_config, kv_caches)}",
            self._memory.block_bytes,
        )
        self._renewal.open(self._open_session)
        if (gpu := self._device.gpu) is not None:
            # Seconds, in which the engine does not wait.
            self._attachment.prepare(lambda pool: pool.gpu(gpu))
        logger.info(
            "Rackline: blocks of %d bytes, rank %d of %d, %s, %s",
            self._identity.block_bytes,
            self._identity.rank,
            self._identity.ranks,
            self._identity.model,
            self._identity.dtype,
        )

    def _open_session(self) -> None:
        pool = self._attachment.pool
        self._device.open(pool)
        self._session = pool.session(
            self._identity.model_of_session(),
            self._identity.block_bytes,
            tenant=self._settings.tenant,
            hold_ms=self._settings.hold_ms,
        )

    def _renew(self) -> None:
        """Opens the session anew where this process attached to the pool again (ENGINE-E2). What an earlier
        session was asked for has come to its end with that: a block that it did not load is told to the
        engine like any other (VLLM-W1)."""
        if self._session is not None and self._renewal.renew(self._open_session):
            self.stats.count("attached_again", 1)

    def _failed(self, what: str, error: rackline.Error, blocks: int) -> None:
        """Tells of an error, and raises none (VLLM-W6); while this process is not attached to the pool, which the pool has said,
        ``blocks`` are counted instead."""
        if self._attachment.is_out(error, self._renewal.life):
            self.stats.count("not_attached_blocks", blocks)
        else:
            logger.warning("Rackline: %s: %s", what, error)

    def handshake(self) -> Handshake | None:
        return None if self._identity is None else Handshake(self._identity)

    def _stores(self) -> bool:
        """Whether this rank has KV that no other stores."""
        parallel, identity = self._vllm_config.parallel_config, self._identity
        return identity.ranks > 1 or parallel.rank % parallel.tensor_parallel_size == 0

    def begin_step(self) -> None:
        """The engine begins a step. It may ask for the step's loads when that has been broken off."""
        self._error_before = sys.exc_info()[1]
        self._renew()

    # Loading

    def start_loads(self, step: Step) -> None:
        """Begins what the step says; with synchronous loads, to the end, unless the forward waits."""
        by_layers = self._settings.loads_by_layers
        self._forward_waits, self._asked = [], set()
        for job in step.loads:
            handles = job.handles[self._identity.rank]
            try:
                # The engine still uses the blocks until its stream comes to here.
                stream, into = self._device.stream(), (self._memory, job.block_ids)
                if by_layers:
                    fetch = self._session.fetch_by_layers(handles, *into, stream=stream)
                    self._forward_waits.append(fetch)
                else:
                    fetch = self._session.fetch(handles, *into, stream=stream)
            except rackline.Error as error:
                self._failed(f"{job.request_id} is not loaded", error, len(job.block_ids))
                if self._settings.load == "async":
                    self._load_ended(job, NOT_TRIED)
                continue
            self._loading[job.request_id] = (job, fetch)
        if self._settings.load == "sync":
            self._loads_open = True
            if not by_layers:
                self._end_loads(step)
            elif not self._all_ask:
                self._wait_for_layer(self._layers.last())

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
        own = []
        for job in step.loads:
            fetch = self._loading.pop(job.request_id, None)
            own.append(NOT_TRIED if fetch is None else self._came_of(job, fetch[1], wait=True))
        valid = [loaded.valid_blocks for loaded in own]
        # VLLM-W7.
        if unasked and not broken_off and self._all_ask:
            self._all_ask = False
            valid = [0] * len(valid)
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
            self._load_ended(job, Loaded(1, valid_blocks, missed))
        if any(valid_blocks < len(job.block_ids) for job, valid_blocks in zip(step.loads, valid)):
            self._failures += 1
            self._report.failures = self._failures

    def _poll_loads(self) -> None:
        for job, fetch in list(self._loading.values()):
            if (loaded := self._came_of(job, fetch)) is not None:
                self._load_ended(job, loaded)

    def _came_of(
        self,
        job: LoadJob,
        fetch: rackline.Fetch | rackline.LayeredFetch,
        wait: bool = False,
    ) -> Loaded | None:
        """What this rank has; ``None`` while that is not known."""
        try:
            result = fetch.wait() if wait else fetch.poll()
        except rackline.Error as error:
            self._failed(f"{job.request_id} is not loaded", error, len(job.block_ids))
            return NOT_TRIED
        if result is None:
            return None
        if result.message is not None:
            logger.warning(
                "Rackline: block %d of %d of %s could not be loaded: %s",
                result.valid_blocks,
                len(job.block_ids),
                job.request_id,
                result.message,
            )
        return Loaded(1, result.valid_blocks, result.reason not in (None, NOT_COPIED))

    def _load_ended(self, job: LoadJob, loaded: Loaded) -> None:
        self._loading.pop(job.request_id, None)
        valid_blocks = loaded.valid_blocks
        failed = job.block_ids[valid_blocks:]
        computed_on_them = job.behind_ids if failed and self._settings.loads_by_layers else []
        # VLLM-W5.
        clear_blocks(
            self._caches, self._kv_cache_config.num_blocks, [*failed, *computed_on_them]
        )
        self._failed_blocks.update(failed)
        if self._settings.load == "async":
            self._received.add(job.request_id)
        self._report.add(Report(loaded={job.request_id: loaded}))
        self.stats.count("loaded_blocks", valid_blocks)
        self.stats.count("loaded_bytes", valid_blocks * self._identity.block_bytes)
        self.stats.count("failed_load_blocks", len(failed))

    # Saving

    def _begin_layered_save(self, step: Step) -> None:
        """Once a forward, with its first layer."""
        if self._forward is step or not self._settings.publishes_by_layers:
            return
        # Of a forward that never ended (VLLM-W4).
        self._end_layered_save(worth_saving=False)
        self._forward = step
        if not step.saves or not self._stores() or step.failures_known < self._failures:
            return
        try:
            self._layered_save = LayeredSave(
                self._session, self._memory, self._layers, self._device, step.saves
            )
        except rackline.Error as error:
            # They are saved whole behind the forward, if there is room then.
            self._failed("a step is not saved layer by layer", error, 0)

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
            if not self._stores():
                self._save_ended(job, None)
            elif not worth_saving:
                why = "aborted" if broken_off else "load_failed"
                self._save_ended(job, Outcomes.none(job, why), again)
            else:
                self._save(job)

    def _save(self, job: SaveJob) -> None:
        try:
            publish = self._session.publish(
                job.hashes,
                job.first_depth,
                self._memory,
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
        if self._attachment.is_out(error, self._renewal.life):
            self.stats.count("not_attached_blocks", blocks)
            return Outcomes.none(job, "not_attached")
        reason = of_error(error)
        return Outcomes([reason] * blocks, {reason: str(error)})

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
            self.stats.count("saved_bytes", published * self._identity.block_bytes)
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
        saving = {saving.job.request_id for saving in self._saving.values()}
        sent = self._ended - saving
        self._ended -= sent
        received, self._received = self._received, set()
        return sent, received

    def take_failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_report(self) -> Report | None:
        report, self._report = self._report, Report(failures=self._failures)
        return report if report.loaded or report.saved else None

    def close(self) -> None:
        """Waits for what was begun, and leaves the pool."""
        self._end_layered_save(worth_saving=False)
        for saving in list(self._saving.values()):
            self._save_ended(saving.job, self._outcomes(saving, wait=True))
        for job, fetch in list(self._loading.values()):
            self._load_ended(job, self._came_of(job, fetch, wait=True))
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
