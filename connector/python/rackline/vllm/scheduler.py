"""The scheduler's half: finds prefixes, holds them, and says what is to be loaded and saved.

VLLM-V1, VLLM-V2 and VLLM-V6 are in `search`.

- **VLLM-V3** A block is saved when it is full, its tokens are decided, and its forward is done.
- **VLLM-V4** Blocks of a request that ended stay with it until every rank has saved them.

VLLM-V5 is in `sync_loads`, VLLM-V7 in `events`.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any

from rackline.engines.attachment import Attachment
from rackline.engines.reasons import Reasons
from rackline.engines.settings import SettingsError
from rackline.vllm.events import StoredEvents
from rackline.vllm.handover import Awaited, Handovers, RouterParams
from rackline.vllm.identity import Identity
from rackline.vllm.messages import LoadJob, Report, Saved, SaveJob, Step
from rackline.vllm.search import Index, Search, hashes_in_one
from rackline.vllm.settings import Settings
from rackline.vllm.statistics import RacklineStats
from rackline.vllm.sync_loads import SyncLoads

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class Progress:
    """A request that the engine works on."""

    request: Any
    params: RouterParams
    awaited: Awaited | None = None
    """What its prefill is still saving."""
    waited: bool = False
    """It does not wait for that any more."""
    put_off_s: float | None = None
    """Since when there is no room for its lookup."""
    search: Search | None = None
    looks: bool = True
    """Whether it is looked for; not after a load that failed for no reason of the pool's (VLLM-V6)."""
    put_off_blocks: int = 0
    """Blocks of all ranks that a failed load kept from the pool, and that no later step has saved (VLLM-W8)."""
    loaded: range = range(0)
    """Blocks that came from the pool: they need not be saved."""
    next_save: int = 0
    saving: set[int] = dataclasses.field(default_factory=set)


class SchedulerHalf:
    """One in each engine."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
        transfer = vllm_config.kv_transfer_config
        self._loads, self._saves = transfer.is_kv_consumer, transfer.is_kv_producer
        if self._loads and transfer.kv_load_failure_policy == "fail":
            logger.warning(
                "Rackline: by vLLM's default a request ends with an error when a block was found and cannot "
                'be loaded: set "kv_load_failure_policy" to "recompute" in the KV transfer configuration, '
                "and the engine computes the block"
            )
        self._settings = settings
        self._ranks = vllm_config.parallel_config.tensor_parallel_size
        self._block_tokens = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        events = vllm_config.kv_events_config
        tells_events = events is not None and events.enable_kv_cache_events
        self._attachment = Attachment(settings)
        self._index = Index(self._attachment, settings)
        self._handovers = Handovers(self._index, settings.hold_ms)
        self._events = StoredEvents(self._index, self._block_tokens) if tells_events else None
        self._requests: dict[str, Progress] = {}
        self._loading: dict[str, tuple[Search, range]] = {}
        """What is being loaded for requests, also for those that ended, and held until then."""
        self._jobs: dict[int, tuple[SaveJob, Progress]] = {}
        self._next_job = 0
        self._step = Step()
        self._sync_loads = SyncLoads()
        self._reports = Report()
        self.engine_blocks: Any = None
        """The engine's manager of its blocks, which it gives to the connector when it has made it."""
        self.stats = RacklineStats()
        # Its statistics are others' after a report.
        self._reasons = Reasons(logger, lambda name, amount: self.stats.count(name, amount))

    def sessions_of(self, identities: dict[int, Identity]) -> None:
        """Opens a session for the blocks of each rank of storage."""
        expected = set(range(self._ranks))
        if set(identities) != expected:
            raise SettingsError(
                f"ranks {sorted(identities)} said what their blocks are, not {sorted(expected)}"
            )
        for identity in identities.values():
            self._index.open(identity)

    # What is cached

    def on_new_request(self, request: Any) -> None:
        self._progress(request)

    def _progress(self, request: Any) -> Progress:
        progress = self._requests.get(request.request_id)
        if progress is None:
            progress = self._requests[request.request_id] = Progress(request, RouterParams.of(request))
        return progress

    def matched_tokens(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens beyond ``computed_tokens`` whose blocks are in the pool, and whether they are
        loaded while others compute."""
        first = computed_tokens // self._block_tokens
        if self._sync_loads.fill(request, first):
            return None, False
        # The engine loads nothing for a request that needs every prompt token computed.
        if not self._loads or request.skip_reading_prefix_cache:
            return 0, False
        progress = self._progress(request)
        if not progress.looks:
            return 0, False
        # The engine needs one token to compute.
        last = min((request.num_tokens - 1) // self._block_tokens, len(request.block_hashes))
        if last <= first:
            return 0, False
        now_s = time.monotonic()
        if self._waits_for_prefill(progress, first, last, now_s):
            return None, False
        search = progress.search
        if search is not None and (search.first != first or self._is_stale(search, now_s)):
            search.release()
            search = progress.search = None
        if search is None:
            search = progress.search = self._look(progress, first, last, now_s)
            if search is None:
                return None, False
        found = self._index.found(search, now_s)
        if found is None:
            if (now_s - search.began_s) * 1000 < self._settings.lookup_timeout_ms:
                return None, False
            self.stats.count("lookup_timeouts", 1)
            search.give_up("lookup_timeout")
            found = 0
        short = progress.awaited is not None and first + found < progress.awaited.blocks
        if short and not search.failed:
            # The last is there, and one before it is not.
            search.release()
            progress.search = None
            return None, False
        progress.awaited, progress.waited = None, True
        if not search.counted:
            # A request that gets no room is asked about again, with the same answer.
            search.counted = True
            self.stats.count("lookups", 1)
            self.stats.count("lookup_blocks", search.looked_for)
            self.stats.count("lookup_hit_blocks", found)
            self.stats.count("not_attached_lookups", int(search.out is True))
            if found == 0 or (found < search.looked_for and search.reason != "absent"):
                self._reasons.not_found(search.reason, search.message)
        if found == 0:
            return 0, False
        return found * self._block_tokens, self._settings.load == "async"

    def _waits_for_prefill(self, progress: Progress, first: int, last: int, now_s: float) -> bool:
        """Whether blocks that its prefill said it would save are still to come; not for longer than
        ``handover_wait_ms``, once in the life of a request."""
        of_prompt = progress.request.num_prompt_tokens // self._block_tokens
        blocks = min(progress.params.blocks, of_prompt, last)
        if progress.waited or blocks <= first or progress.search is not None:
            return False
        if progress.awaited is None:
            why = progress.params.why_unusable(progress.request, self._index.words())
            if why is not None:
                progress.waited = True
                self.stats.count("unusable_handovers", 1)
                self._reasons.not_found(*why)
                return False
            progress.awaited = Awaited(blocks, now_s)
        if (now_s - progress.awaited.since_s) * 1000 < self._settings.handover_wait_ms:
            return not progress.awaited.has_come(self._index, progress.request, now_s)
        progress.awaited, progress.waited = None, True
        self._reasons.not_found("handover_timeout")
        return False

    def _look(self, progress: Progress, first: int, last: int, now_s: float) -> Search | None:
        """Begins to look; ``None`` when there is no room for that. After ``lookup_timeout_ms`` nothing
        was found."""
        search = self._index.look(progress.request, first, last, now_s)
        if search is not None:
            progress.put_off_s = None
            return search
        if progress.put_off_s is None:
            progress.put_off_s = now_s
            self.stats.count("lookups_put_off", 1)
        if (now_s - progress.put_off_s) * 1000 < self._settings.lookup_timeout_ms:
            return None
        self.stats.count("lookup_timeouts", 1)
        progress.put_off_s = None
        search = Search(first, last - first, now_s)
        search.give_up("queue_full")
        return search

    def _is_stale(self, search: Search, now_s: float) -> bool:
        """Whether what was found may not be held any more by the time it is loaded."""
        held_ms = (now_s - search.began_s) * 1000
        is_old = held_ms > self._settings.hold_ms / 2 or not self._index.is_current(search)
        return search.answer is not None and is_old

    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        """The engine has blocks for what was found: they are to be loaded."""
        progress = self._progress(request)
        search, progress.search = progress.search, None
        if search is None:
            return
        count = external_tokens // self._block_tokens
        if count == 0:
            search.release()
            return
        span = range(search.first, search.first + count)
        ids = list(blocks.get_block_ids()[0][span.start :])
        handles = self._index.handles(search, count)
        self._loading[request.request_id] = (search, span)
        progress.loaded = span
        self._step.loads.append(
            LoadJob(request.request_id, handles, ids[:count], ids[count:])
        )
        if self._settings.load == "sync":
            hashes = request.block_hashes[span.start : span.stop]
            self._sync_loads.begin(request.request_id, hashes, ids)

    # What is to be done

    def build_step(self, output: Any) -> Step:
        """What the workers are to do in this step."""
        step, self._step = self._step, Step()
        step.failures_known = self._reports.failures
        self._index.next_step()
        if output.preempted_req_ids:
            # By their saves: a preempted request may have been aborted since.
            for job, progress in self._jobs.values():
                if job.request_id in output.preempted_req_ids:
                    step.preempted.append(job.request_id)
                    # It may be revoked (VLLM-W3): to be saved when the request has computed it
                    # again.
                    progress.next_save = min(progress.next_save, job.first_depth)
        if self._saves:
            for request_id, tokens in output.num_scheduled_tokens.items():
                if (progress := self._requests.get(request_id)) is not None:
                    self._save(progress, tokens, output, step)
        self._handovers.look_after()
        if self._events is not None:
            self._events.look_after()
        return step

    def _save(self, progress: Progress, tokens: int, output: Any, step: Step) -> None:
        request = progress.request
        end = (request.num_computed_tokens + tokens) // self._block_tokens
        # VLLM-V3: there is a hash for blocks whose tokens are decided.
        end = min(end, len(request.block_hashes))
        if not self._settings.save_generated:
            end = min(end, request.num_prompt_tokens // self._block_tokens)
        if end <= progress.next_save:
            return
        ids = output.kv_connector_block_state.get_block_ids(request.request_id)
        for span in _without(range(progress.next_save, end), progress.loaded):
            job = SaveJob(
                self._next_job,
                request.request_id,
                hashes_in_one(request.block_hashes[span.start : span.stop]),
                span.start,
                list(ids[0][span.start : span.stop]),
            )
            self._next_job += 1
            self._jobs[job.job] = (job, progress)
            progress.saving.add(job.job)
            step.saves.append(job)
        progress.next_save, progress.put_off_blocks = end, 0

    # What was done

    def reported(self, report: Report | None) -> None:
        """Takes in what the workers did."""
        if report is None:
            return
        self._reports.add(report)
        for request_id, loaded in list(self._reports.loaded.items()):
            if loaded.ranks == self._ranks:
                del self._reports.loaded[request_id]
                self._loaded(request_id, loaded.valid_blocks, loaded.missed)
        for number, saved in list(self._reports.saved.items()):
            if saved.ranks == self._ranks:
                del self._reports.saved[number]
                self._saved(number, saved)

    def _loaded(self, request_id: str, valid_blocks: int, missed: bool) -> None:
        # Also of a request that was aborted meanwhile, or that the failure ended.
        if bad_blocks := self._sync_loads.end(request_id, valid_blocks):
            self.engine_blocks.evict_blocks(bad_blocks)
        search, span = self._loading.pop(request_id, (None, None))
        if search is None:
            return
        if valid_blocks < len(span):
            if missed:
                self._index.missed(search, valid_blocks)
            if (progress := self._requests.get(request_id)) is not None:
                progress.looks = missed
                # What failed is computed here, and may be worth saving.
                progress.loaded = range(span.start, span.start + valid_blocks)
                progress.next_save = min(progress.next_save, progress.loaded.stop)
        search.release()

    def _saved(self, number: int, saved: Saved) -> None:
        job, progress = self._jobs.pop(number)
        progress.saving.discard(number)
        if saved.put_off_blocks:
            # VLLM-W8: by the next step of the request, if it has one.
            progress.next_save = min(progress.next_save, job.first_depth)
            progress.put_off_blocks += saved.put_off_blocks
            if self._ended(progress):
                self._give_up_put_off(progress)
        if saved.complete and self._events is not None:
            self._events.saved(progress.request, job, certain=not saved.already_there)
        if progress.params.handover and not progress.saving and self._ended(progress):
            self._handovers.begin(progress.request, progress.next_save)

    def _give_up_put_off(self, progress: Progress) -> None:
        """The request computes no more: what was put off is not saved."""
        self.stats.count("unsaved_blocks", progress.put_off_blocks)
        self._reasons.unsaved("load_failed", progress.put_off_blocks)
        progress.put_off_blocks = 0

    def _ended(self, progress: Progress) -> bool:
        return progress.request.request_id not in self._requests

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """Whether the request's blocks must stay, and what its client is told."""
        progress = self._requests.pop(request.request_id, None)
        if progress is None:
            return False, None
        if progress.search is not None:
            progress.search.release()
        self._give_up_put_off(progress)
        params = None
        if progress.params.handover and self._saves:
            params = RouterParams.answer(request, progress.next_save, self._index.words())
            if not progress.saving:
                self._handovers.begin(request, progress.next_save)
        # While others compute the blocks of one that loads stay for that, and are freed when that
        # is reported: what is being saved then is of an earlier life, from before a preemption,
        # which waited (VLLM-W3). A synchronous load is in one step with the saves of what it
        # computes.
        waits = self._settings.load == "async" and request.request_id in self._loading
        if progress.saving and not waits:
            self._step.finished.append(request.request_id)
            return True, params
        return False, params

    def reset(self) -> None:
        """The engine's weights may have been changed: what is in the pool is not theirs any more, nor
        is what they compute what others expect."""
        if self._loads or self._saves:
            logger.warning(
                "Rackline: the engine's caches were reset, and the weights may be new: no blocks are loaded "
                "or saved from now on; restart the engine to share blocks again"
            )
            self.stats.count("resets", 1)
        self._loads = self._saves = False

    def take_events(self) -> list[Any]:
        return [] if self._events is None else self._events.take()

    def close(self) -> None:
        searches = [progress.search for progress in self._requests.values()]
        searches += [search for search, _ in self._loading.values()]
        for search in searches:
            if search is not None:
                search.release()
        self._attachment.close()


def _without(span: range, left_out: range) -> list[range]:
    """``span`` without ``left_out``, in order."""
    before = range(span.start, min(span.stop, left_out.start))
    after = range(max(span.start, left_out.stop), span.stop)
    if not left_out or left_out.stop <= span.start or left_out.start >= span.stop:
        return [span]
    return [part for part in (before, after) if len(part) > 0]
