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

VLLM-W10 is in `positions`.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from typing import Any

import rackline
from rackline.engines.attachment import Attachment
from rackline.engines.identities import Registration
from rackline.vllm.device import Device, device_of
from rackline.vllm.groups import Groups
from rackline.vllm.layerwise import EngineLayers, LayeredSave, OfJob
from rackline.vllm.loads import Loads
from rackline.vllm.messages import Handshake, Report, Saved, SaveJob, Step, Weights
from rackline.vllm.parts import Part, parts_of
from rackline.vllm.positions import Positions
from rackline.vllm.results import Results
from rackline.vllm.settings import Settings
from rackline.vllm.statistics import RacklineStats
from rackline.vllm.transfers import Outcomes, Publish

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class _Saving:
    job: SaveJob
    publish: Publish | OfJob
    again: bool = False
    """Whether a later step saves what this one leaves out (VLLM-W8)."""


class WorkerHalf:
    """One in each rank."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
        self._vllm_config, self._kv_cache_config = vllm_config, kv_cache_config
        self._settings = settings
        self._attachment = Attachment(settings)
        self._parts: dict[int, Part] = {}
        """By number of the group."""
        self._keep_all = Groups.of(
            vllm_config, kv_cache_config, settings.stored_block_tokens
        ).keep_all
        self._device: Device | None = None
        self._results = Results(self._attachment, logger)
        self._renewal = self._results.renewal
        self._registrations: list[Registration] = []
        self._weights: Weights | None = None
        """The last that came while the engine ran."""
        positions = Positions(
            vllm_config.max_concurrent_batches, kv_cache_config.needs_kv_cache_zeroing
        )
        self._loads = Loads(vllm_config, self._keep_all, settings, self._results, positions)
        self._saving: dict[int, _Saving] = {}
        self._layers = EngineLayers({})
        self._layered_save: LayeredSave | None = None
        self._forward: Step | None = None
        """The step whose forward is under way, as far as its layers said so."""
        self._error_before: BaseException | None = None
        """What the caller of the step is handling already."""
        self._ended: set[str] = set()

    @property
    def stats(self) -> RacklineStats:
        return self._results.stats

    def register(self, kv_caches: dict[str, Any]) -> None:
        """The engine's caches are there."""
        self._device = device_of(kv_caches)
        self._parts = parts_of(
            self._vllm_config, self._kv_cache_config, self._settings, self._device, kv_caches
        )
        if self._keep_all:
            self._layers = self._parts[0].layers
        self._loads.register(self._parts, self._layers, self._device)
        self._renewal.open(self._open_sessions)
        self._register()
        if (gpu := self._device.gpu) is not None:
            # Seconds, in which the engine does not wait.
            self._attachment.prepare(lambda pool: pool.gpu(gpu))
        for part in self._parts.values():
            logger.info(
                "Rackline: blocks of %d bytes, heads %s of %d, %s, %s %s",
                part.block_bytes,
                [share.identity.heads for share in part.shares],
                part.identity.places,
                part.identity.model,
                part.identity.dtype,
                part.identity.share,
            )

    def _register(self) -> None:
        """Registers what the blocks are (`rackline.engines.identities`)."""
        self._registrations = [
            Registration(
                self._attachment,
                part.identity.words(self._settings.tenant),
                part.identity.block_bytes,
            )
            for part in self._parts.values()
            if part.identity.heads == 0 and part.stores
        ]
        self._register_again()

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

    def _take_weights(self, weights: Weights) -> None:
        """New weights came: the engine has no KV of the old ones, and nothing is loading (VLLM-V11)."""
        self._weights = weights
        for part in self._parts.values():
            part.rename(weights.name)
        try:
            self._renewal.open(self._open_sessions)
        except rackline.Error as error:
            self._renewal.again()
            logger.warning("Rackline: no session for the new weights opens yet: %s", error)
        self._register()

    def handshake(self) -> Handshake | None:
        shares = [share for part in self._parts.values() for share in part.shares]
        identities = [share.identity for share in shares]
        return Handshake(identities) if identities else None

    def begin_step(self, step: Step) -> None:
        """The engine begins a step. It may ask for the step's loads when that has been broken off."""
        self._error_before = sys.exc_info()[1]
        if step.weights is not None and step.weights != self._weights:
            self._take_weights(step.weights)
        self._renew()
        self._register_again()
        self._loads.begin_step(step)

    # Loading

    def start_loads(self, step: Step) -> None:
        """Begins what the step says; with synchronous loads, to the end, unless the forward waits."""
        self._loads.start(step)

    def begin_layer(self, step: Step, name: str) -> None:
        """A layer of the forward begins, which may wait for that layer of what is loaded."""
        self._begin_layered_save(step)
        self._loads.begin_layer(name)

    def take_failed_blocks(self) -> set[int]:
        return self._loads.take_failed_blocks()

    def take_failed_requests(self) -> set[str]:
        """Requests whose load failed, of those that were loaded, where vLLM computes all of them again."""
        return self._loads.take_failed_requests()

    # Saving

    def _begin_layered_save(self, step: Step) -> None:
        """Once a forward, with its first layer."""
        if self._forward is step or not self._settings.publishes_by_layers:
            return
        # Of a forward that never ended (VLLM-W4).
        self._end_layered_save(worth_saving=False)
        self._forward = step
        part = self._parts[0]
        if not step.saves or not part.stores or step.failures_known < self._results.report.failures:
            return
        if step.saves_beside_loads(part.steps):
            return  # They are saved whole behind the forward: a block of the engine is lent once.
        try:
            publish = part.publish_by_layers(step.saves)
        except rackline.Error as error:
            # They are saved whole behind the forward, if there is room then.
            _, said = self._results.why(error, 0)
            if said is not None:
                logger.warning("Rackline: a step is not saved layer by layer: %s", said)
            return
        self._layered_save = LayeredSave(publish, part.layers, self._device, step.saves)

    def _end_layered_save(self, worth_saving: bool, again: bool = False) -> bool:
        """Whether there was one. ``again``: see :class:`_Saving`."""
        layered, self._layered_save, self._forward = self._layered_save, None, None
        if layered is None:
            return False
        for each in layered.end(worth_saving):
            self._saving[each.job.job] = _Saving(each.job, each, again)
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
        self._loads.end(step, broken_off)
        worth_saving = not broken_off and step.failures_known >= self._results.report.failures
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
                self._save_ended(job, Outcomes.none(len(job.block_ids), why), again)
            else:
                self._save(job, part)

    def _save(self, job: SaveJob, part: Part) -> None:
        try:
            publish = part.publish(job, self._device.stream())
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
        return Outcomes.none(blocks, *self._results.why(error, blocks))

    def _outcomes(self, saving: _Saving, wait: bool = False) -> Outcomes | None:
        """What became of the blocks; ``None`` while that is not known."""
        try:
            return saving.publish.wait() if wait else saving.publish.poll()
        except rackline.Error as error:
            return self._refused(saving.job, error)

    def _save_ended(self, job: SaveJob, result: Outcomes | None, again: bool = False) -> None:
        """With what became of the blocks; ``None`` when another rank stores them."""
        self._saving.pop(job.job, None)
        if result is None:
            saved = Saved(1, complete=True)
        else:
            saved = self._count_saved(job, result, again)
        self._results.report.add(Report(saved={job.job: saved}))

    def _count_saved(self, job: SaveJob, result: Outcomes, again: bool) -> Saved:
        """Counts what became of the blocks of a save."""
        outcomes = result.of_blocks()
        published, already_there = outcomes.count("published"), outcomes.count("already_there")
        unsaved = len(job.block_ids) - published - already_there
        if not again:
            self._results.reasons.outcomes(outcomes, result.messages)
        share_bytes = self._parts[job.group].identity.block_bytes
        self.stats.count("saved_blocks", published)
        self.stats.count("saved_bytes", result.published_shares() * share_bytes)
        self.stats.count("already_there_blocks", already_there)
        put_off = unsaved if again else 0
        self.stats.count("put_off_blocks", put_off)
        self.stats.count("unsaved_blocks", unsaved - put_off)
        return Saved(1, unsaved == 0, put_off, result.already_there())

    def keep_preempted(self, step: Step) -> None:
        """Waits until nothing reads blocks that may be overwritten from now on (VLLM-W3)."""
        preempted = set(step.preempted)
        for saving in list(self._saving.values()):
            if saving.job.request_id in preempted:
                if saving.publish.cancel():
                    result = Outcomes.none(len(saving.job.block_ids), "preempted")
                else:
                    result = self._outcomes(saving, wait=True)
                self._save_ended(saving.job, result)

    # What was done

    def finished(self, step: Step) -> tuple[set[str], set[str]]:
        """Requests of which every block is saved, and requests that were loaded."""
        # The engine may ask before it says that all is computed.
        self._loads.end(step, self._is_broken_off())
        self._loads.poll()
        self._poll_saves()
        self._device.count(self.stats)
        self._ended.update(step.finished)
        self._bound_backlog()
        saving = {saving.job.request_id for saving in self._saving.values()}
        sent = self._ended - saving
        self._ended -= sent
        return sent, self._loads.take_received()

    def _bound_backlog(self) -> None:
        """VLLM-W9."""

        def length(saving: _Saving) -> int:
            job = saving.job
            return len(job.block_ids) * self._parts[job.group].block_bytes

        backlog = [it for it in self._saving.values() if it.job.request_id in self._ended]
        if not backlog:
            return
        parts = self._parts.values()
        memory = sum(part.blocks * part.steps * part.block_bytes for part in parts)
        limit = memory * self._settings.save_backlog_percent // 100
        waiting = sum(length(saving) for saving in backlog)
        for saving in backlog:
            if waiting <= limit:
                break
            if saving.publish.cancel():
                waiting -= length(saving)
                none = Outcomes.none(len(saving.job.block_ids), "backlog")
                self._save_ended(saving.job, none)

    def take_report(self) -> Report | None:
        return self._results.take_report()

    def close(self) -> None:
        """Waits for what was begun, and leaves the pool."""
        self._end_layered_save(worth_saving=False)
        for saving in list(self._saving.values()):
            self._save_ended(saving.job, self._outcomes(saving, wait=True))
        self._loads.wait()
        self._attachment.close()

