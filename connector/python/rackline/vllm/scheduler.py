"""The scheduler's half: finds prefixes, holds them, and says what is to be loaded and saved.

VLLM-V1, VLLM-V2 and VLLM-V6 are in `search`.

- **VLLM-V4** Blocks of a request that ended stay with it until every rank has saved them.

VLLM-V3, VLLM-V8 and VLLM-V14 are in `saves`, VLLM-V5 is in `sync_loads`, VLLM-V7 in `events`, VLLM-V9 in `groups`,
VLLM-V10 in `other_loads`, VLLM-V11 in `new_weights`, VLLM-V12 and VLLM-V13 in `hint_holds`, VLLM-V15 in `prefetches`, VLLM-H3 in `tails`.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable
from typing import Any

import rackline
from rackline.engines.attachment import Attachment
from rackline.engines.identities import Others
from rackline.engines.reasons import Reasons
from rackline.engines.settings import SettingsError
from rackline.vllm.chains import Chains
from rackline.vllm.event_records import EventRecords
from rackline.vllm.events import StoredEvents
from rackline.vllm.forwards import Forwards
from rackline.vllm.groups import Group, Groups
from rackline.vllm.handover import Awaited, RouterParams
from rackline.vllm.hint_holds import HintHolds
from rackline.vllm.hints import Hints
from rackline.vllm.holds import Holds
from rackline.vllm.identity import Identity
from rackline.vllm.lookup import Search
from rackline.vllm.messages import GroupLoad, GroupLoaded, LoadJob, Report, Saved, SaveJob, Step, Weights
from rackline.vllm.new_weights import WeightsNames, has_old_kv
from rackline.vllm.other_loads import OtherLoads
from rackline.vllm.prefetches import Prefetches
from rackline.vllm.progress import Progress
from rackline.vllm.saves import Saves
from rackline.vllm.search import Index
from rackline.vllm.settings import Settings
from rackline.vllm.statistics import RacklineStats
from rackline.vllm.sync_loads import SyncLoads
from rackline.vllm.tails import Tails

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class _Loading:
    """What is being loaded for a request, also for one that ended, and held until then."""

    search: Search
    spans: list[tuple[Group, range]]
    tail_block: int | None
    """The partial block among them."""


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
        self._stopped = False
        """Whether the engine's caches were reset: it shares nothing until new weights have a name (VLLM-V11)."""
        self._weights: Weights | None = None
        self._weights_names = WeightsNames(settings.weights_name_file, settings.model_id)
        self._settings = settings
        parallel = vllm_config.parallel_config
        self._ranks = parallel.tensor_parallel_size
        self._stages = parallel.pipeline_parallel_size
        self._groups = Groups.of(vllm_config, kv_cache_config, settings.stored_block_tokens)
        self._unit_tokens = self._groups.unit_tokens
        events = vllm_config.kv_events_config
        tells_events = events is not None and events.enable_kv_cache_events
        self._attachment = Attachment(settings)
        self._index = Index(self._attachment, settings, self._groups)
        self._holds = Holds(self._index, settings.hold_ms)
        self._events = StoredEvents(self._index, self._groups) if tells_events else None
        self._life = self._index.life
        """Of the attachment when the last step was built."""
        self._found_something = False
        self._others: Others | None = None
        """Where an engine looks that has never found anything."""
        self._requests: dict[str, Progress] = {}
        self._loading: dict[str, _Loading] = {}
        self._chains = Chains(vllm_config, self._groups)
        self._tails = Tails(vllm_config, self._groups, settings)
        self._saving = Saves(self._groups, settings, self._tails)
        self._other_loads = OtherLoads(self._groups, vllm_config.max_concurrent_batches)
        self._step = Step()
        self._made_steps = self._known_steps = 0
        """Steps that were made, and those of them whose output came."""
        self._forwards = Forwards(vllm_config.max_concurrent_batches)
        self._sync_loads = SyncLoads()
        self._reports = Report()
        self.stats = RacklineStats()
        # Its statistics are others' after a report.
        self._reasons = Reasons(logger, lambda name, amount: self.stats.count(name, amount))
        self._hint_holds = HintHolds(
            self._index, self._groups, settings, self._holds, self.stats, self._reasons
        )
        self._prefetches = Prefetches(
            self._index, self._groups, self._chains, self.stats, self._reasons
        )
        self._to_prefetch: list[Progress] = []
        """Requests whose hashes are being made."""
        self._records: EventRecords | None = None
        if settings.event_records and self._saves:
            self._records = EventRecords(
                self._attachment, self._index, self._groups.told, self.stats
            )

    def bind(self, manager: Any) -> None:
        """Takes the engine's manager of its blocks."""
        self._saving.engine_blocks = self._prefetches.engine_blocks = manager

    def sessions_of(self, identities: dict[tuple[int, int], list[Identity]]) -> None:
        """Opens sessions for what each rank told, by its stage and its rank in that."""
        expected = {
            (stage, rank) for stage in range(self._stages) for rank in range(self._ranks)
        }
        if set(identities) != expected:
            raise SettingsError(
                f"ranks {sorted(identities)} said what their blocks are, not {sorted(expected)}"
            )
        self._index.open_all([identity for told in identities.values() for identity in told])

    # What is cached

    def on_new_request(self, request: Any) -> None:
        """The engine has queued a request. It asks for its prefix when it has room for it."""
        progress = self._progress(request)
        if self._stopped:
            return
        loads = self._loads and not request.skip_reading_prefix_cache
        if progress.hints.prefetch_ms == 0:
            if loads:
                self._prefetches.queued(progress)
            return
        if not loads:
            self._reasons.ignored_hint("no_use", "a prefetch is for a request that loads blocks")
            return
        self._to_prefetch.append(progress)
        self._prefetch()

    def _prefetch(self) -> None:
        """Has the blocks held of requests that wait, whose hints ask for that."""
        waiting, self._to_prefetch = self._to_prefetch, []
        for progress in waiting:
            if self._ended(progress) or progress.is_scheduled:
                continue
            if self._chains.are_made(progress.hashed, progress.request.num_prompt_tokens):
                self._hint_holds.queued(progress)
            else:
                self._to_prefetch.append(progress)

    def _progress(self, request: Any) -> Progress:
        progress = self._requests.get(request.request_id)
        if progress is None:
            hashed, params = self._chains.of(request), RouterParams.of(request)
            hints = self._hints(request, params)
            progress = self._requests[request.request_id] = Progress(request, hashed, params, hints)
        return progress

    def _hints(self, request: Any, params: RouterParams) -> Hints:
        hints = Hints.of(request, self._settings)
        if params.handover and not hints.saves:
            hints.saves = True
            hints.followed -= 1
            hints.ignored.append(
                ("handed_over", "blocks that are handed over to another engine must be saved")
            )
        self.stats.count("hints", hints.followed)
        for reason, message in hints.ignored:
            self._reasons.ignored_hint(reason, message)
        return hints

    def matched_tokens(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens beyond ``computed_tokens`` whose blocks are in the pool, and whether they are
        loaded while others compute."""
        self._other_loads.asked(request, computed_tokens)
        progress = self._progress(request)
        progress.cached_tokens = computed_tokens
        first = computed_tokens // self._unit_tokens
        if self._sync_loads.fill(request, first // self._groups.groups[0].steps):
            return None, False
        # The engine loads nothing for a request that needs every prompt token computed.
        if not self._loads or request.skip_reading_prefix_cache:
            return 0, False
        if not progress.looks:
            return 0, False
        if self._stopped:
            progress.looks = False
            self._reasons.not_found("stopped")
            return 0, False
        # The last token of a session that goes on may be replaced.
        tokens = request.num_prompt_tokens if request.resumable else request.num_tokens
        now_s = time.monotonic()
        if self._waits_for_hashes(progress, first, tokens, now_s):
            return None, False
        hashed, last = self._to_be_found(progress)
        if last <= first:
            return 0, False
        if self._waits_for_prefill(progress, hashed, first, last, now_s):
            return None, False
        search = progress.search
        if search is not None and (search.first != first or self._is_stale(search, now_s)):
            search.release()
            search = progress.search = None
        if search is None:
            search = progress.search = self._look(progress, hashed, first, last, now_s)
            if search is None:
                return None, False
        found = self._index.found(search, now_s)
        if found is None:
            # An answer that waits for drives comes that much later.
            timeout_ms = self._settings.lookup_timeout_ms + self._index.restore_wait_ms
            if (now_s - search.began_s) * 1000 < timeout_ms:
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
            self.stats.count("lookup_restored_blocks", min(found, search.restored))
            self.stats.count("not_attached_lookups", int(search.out is True))
            self._found_something |= found > 0
            if found == 0 or (found < search.looked_for and search.reason != "absent"):
                self._reasons.not_found(*self._why_not_found(search))
        if found == 0:
            return 0, False
        # One token is computed in any case.
        left_tokens = request.num_tokens - 1 - first * self._unit_tokens
        tokens = min(found * self._unit_tokens, left_tokens)
        # Of a block of one token none is left, and vLLM knows no load of nothing.
        return tokens, tokens > 0 and self._settings.load == "async"

    def _waits_for_hashes(self, progress: Progress, first: int, tokens: int, now_s: float) -> bool:
        """Whether hashes of the first ``tokens`` are still being made; for ``lookup_timeout_ms`` at most."""
        if progress.search is not None or self._chains.are_made(progress.hashed, tokens):
            progress.hashing_since_s = None
            return False
        if progress.hashing_since_s is None:
            progress.hashing_since_s = now_s
        if (now_s - progress.hashing_since_s) * 1000 < self._settings.lookup_timeout_ms:
            return True
        self.stats.count("lookup_timeouts", 1)
        self._reasons.not_found("hash_timeout")
        progress.search = Search(first, 0, now_s, counted=True)
        progress.search.give_up("hash_timeout")
        return False

    def _to_be_found(self, progress: Progress) -> tuple[Any, int]:
        """What has the hashes to look for, and how many units of these a request may load."""
        request, hashed = progress.request, progress.hashed
        # The engine needs one token to compute. Of a prompt that was handed over that is no more.
        last = (request.num_tokens - 1) // self._unit_tokens
        if progress.params.of_a_prefill and self._tails.loads_prompt(request):
            if progress.tail is None:
                progress.tail = self._tails.of(hashed)
            if progress.tail is not None:
                return progress.tail.hashed, progress.tail.block + 1
            last = request.num_tokens // self._unit_tokens
        for group in self._groups.groups:
            hashed_tokens = group.hashed_blocks(hashed) * group.block_tokens
            last = min(last, hashed_tokens // self._unit_tokens)
        return hashed, last

    def _why_not_found(self, search: Search) -> tuple[str, str | None]:
        """The reason, and what is said of it."""
        if search.reason != "absent" or self._found_something:
            return search.reason, search.message
        if self._others is None:
            self._others = Others(self._settings.region, self._index.words())
        return self._others.why_absent() or ("absent", None)

    def _waits_for_prefill(
        self, progress: Progress, hashed: Any, first: int, last: int, now_s: float
    ) -> bool:
        """Whether blocks that its prefill said it would save are still to come; not for longer than
        ``handover_wait_ms``, once in the life of a request."""
        of_prompt = progress.request.num_prompt_tokens // self._unit_tokens
        tail = progress.tail if hashed is not progress.hashed else None
        blocks = min(progress.params.awaited(of_prompt, tail), last)
        if progress.waited or blocks <= first or progress.search is not None:
            return False
        if progress.awaited is None:
            why = progress.params.why_unusable(
                progress.hashed, self._index.words(), self._groups.hashes_per_unit
            )
            if why is not None:
                progress.waited = True
                self.stats.count("unusable_handovers", 1)
                self._reasons.not_found(*why)
                return False
            progress.awaited = Awaited(blocks, now_s)
        if (now_s - progress.awaited.since_s) * 1000 < self._settings.handover_wait_ms:
            return not progress.awaited.has_come(self._index, hashed, now_s)
        progress.awaited, progress.waited = None, True
        self._reasons.not_found("handover_timeout")
        return False

    def _look(
        self, progress: Progress, hashed: Any, first: int, last: int, now_s: float
    ) -> Search | None:
        """Begins to look; ``None`` when there is no room for that. After ``lookup_timeout_ms`` nothing
        was found."""
        search = self._index.look(hashed, first, last, now_s)
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
        progress.is_scheduled = True
        self._hint_holds.scheduled(progress)
        self._prefetches.over(progress)
        self._other_loads.allocated(request, external_tokens)
        if search is None:
            return
        # Of the last block all tokens but one may count.
        count = -(-external_tokens // self._unit_tokens)
        if count == 0:
            search.release()
            return
        progress.loaded = {}
        job, spans, tables = LoadJob(request.request_id, [], []), [], blocks.get_block_ids()
        tail = progress.tail
        with_tail = tail is not None and search.request is tail.hashed
        tail_block = tail.block if with_tail else None
        for group, span, hashes, handles in search.loads(count):
            ids = group.numbers(tables[group.number], span)
            job.groups.append(GroupLoad(group.number, hashes, handles, ids))
            spans.append((group, span))
            # The engine completes the tail, and saves it as a whole block then.
            whole = span if tail_block is None else range(span.start, min(span.stop, tail_block))
            progress.loaded[group.number] = whole
        self._loading[request.request_id] = _Loading(search, spans, tail_block)
        self._step.loads.append(job)
        if self._groups.keep_all:
            [(group, span)] = spans
            # The engine's blocks: the last may have other tokens, too, that are computed.
            first, end = span.start // group.steps, -(-span.stop // group.steps)
            ids = list(tables[0][first:])
            job.behind_ids = ids[end - first :]
            if self._settings.load == "sync":
                hashes = request.block_hashes[first:end]
                self._sync_loads.begin(request.request_id, hashes, count, group.steps, ids)

    # What is to be done

    def build_step(self, output: Any) -> Step:
        """What the workers are to do in this step."""
        step, self._step = self._step, Step()
        if self._life != self._index.life:
            self._life = self._index.life
            self._saving.lately.forget_all()
        step.failures_known, step.weights = self._reports.failures, self._weights
        self._made_steps += 1
        step.number, step.known = self._made_steps, self._known_steps
        self._index.next_step()
        if output.preempted_req_ids:
            step.preempted += self._saving.preempted(output.preempted_req_ids)
            self._begin_anew(output.preempted_req_ids, step)
        self._other_loads.next_step(output, self._requests)
        for request_id, computed in output.num_scheduled_tokens.items():
            step.computed_tokens += computed
            if (progress := self._requests.get(request_id)) is not None:
                step.prefix_tokens += progress.request.num_computed_tokens
        if self._saves:
            for request_id, computed in output.num_scheduled_tokens.items():
                if (progress := self._requests.get(request_id)) is not None:
                    tokens = self._other_loads.may_save(progress, computed)
                    if tokens is None:
                        continue
                    end_tokens = progress.request.num_computed_tokens + tokens
                    self._chains.make(progress.hashed, end_tokens)
                    jobs = list(self._saving.plan(progress, tokens, output))
                    if self._stopped or not progress.hints.saves:
                        self._leave_out(jobs, "stopped" if self._stopped else "hint")
                    elif jobs:
                        progress.put_off_blocks = 0
                        step.saves += jobs
            self._count_left_out()
        self._prefetch()
        self._prefetches.look_after()
        self._holds.look_after()
        if self._events is not None:
            self._events.look_after()
        self._forwards.follow(self._index.session_with_drives())
        self._forwards.made(step)
        return step

    def _count_left_out(self) -> None:
        """Counts what is not saved again (VLLM-V14)."""
        blocks, self._saving.left_out_blocks = self._saving.left_out_blocks, 0
        self.stats.count("saved_lately_blocks", blocks)

    def _leave_out(self, jobs: list[SaveJob], reason: str) -> None:
        """Counts what is not saved, over all ranks."""
        for job in jobs:
            self._saving.done(job.job)
            blocks = len(job.block_ids) * len(self._index.key_spaces(job.group))
            self.stats.count("unsaved_blocks", blocks)
            self._reasons.unsaved(reason, blocks)

    def _begin_anew(self, preempted: Iterable[str], step: Step) -> None:
        """What the pool and the engine have of preempted requests may be evicted before they go on: it is
        computed again then, and to be saved again. A request may go on, and load, in the same step."""
        loads = {job.request_id for job in step.loads}
        for request_id in preempted:
            if (progress := self._requests.get(request_id)) is not None:
                progress.next_save = {}
                if request_id not in loads:
                    progress.loaded = {}

    # What was done

    def reported(self, report: Report | None) -> None:
        """Takes in what the workers did."""
        if report is None:
            return
        self._reports.add(report)
        for request_id, loaded in list(self._reports.loaded.items()):
            if loaded.ranks == self._ranks * self._stages:
                del self._reports.loaded[request_id]
                self._loaded(request_id, loaded.groups)
        for number, saved in list(self._reports.saved.items()):
            if saved.ranks == self._ranks * self._stages:
                del self._reports.saved[number]
                self._saved(number, saved)
        if self._records is not None:
            self._records.flush()

    def _loaded(self, request_id: str, told: dict[int, GroupLoaded]) -> None:
        # Also of a request that was aborted meanwhile, or that the failure ended.
        if self._settings.load == "sync":
            if bad_blocks := self._sync_loads.end(request_id, told[0].valid_blocks):
                self._saving.engine_blocks.evict_blocks(bad_blocks)
        loading = self._loading.pop(request_id, None)
        if loading is None:
            return
        failed = [
            (group, span, told[group.number])
            for group, span in loading.spans
            if told[group.number].valid_blocks < len(span)
        ]
        tail = loading.tail_block
        if not failed and tail is not None and any(tail in span for _, span in loading.spans):
            self.stats.count("loaded_tails", 1)
        for group, span, loaded in failed:
            if loaded.missed:
                self._missed(loading.search, group, span.start + loaded.valid_blocks)
        if self._groups.keep_all or not failed:
            for group, span in loading.spans:
                whole = span[: told[group.number].valid_blocks]
                if tail is not None and tail in whole:
                    whole = whole[:-1]
                self._saving.is_in_pool(loading.search.request, group, whole)
        if failed and (progress := self._requests.get(request_id)) is not None:
            progress.looks = all(loaded.missed for _, _, loaded in failed)
            self._computes_again(progress, failed)
        loading.search.release()

    def _missed(self, search: Search, group: Group, block: int) -> None:
        """The pool did not give a block that a search had found."""
        self._index.missed(search, group, block)
        hashes = group.hashes(search.request, range(group.hashed_blocks(search.request)))
        self._saving.lately.forget(group.number, block, hashes)

    def _computes_again(
        self, progress: Progress, failed: list[tuple[Group, range, GroupLoaded]]
    ) -> None:
        """What failed is computed here, and may be worth saving: with one group that keeps all tokens from
        the first bad block on, otherwise all of the request."""
        if self._groups.keep_all:
            [(group, span, loaded)] = failed
            good = range(span.start, span.start + loaded.valid_blocks)
            progress.loaded = {group.number: good}
            progress.saves_again(group.number, good.stop)
        else:
            progress.loaded, progress.next_save = {}, {}

    def _saved(self, number: int, saved: Saved) -> None:
        job, progress = self._saving.done(number)
        if saved.put_off_blocks:
            # VLLM-W8: by the next step of the request, if it has one.
            progress.saves_again(job.group, job.first_depth)
            progress.put_off_blocks += saved.put_off_blocks
            if self._ended(progress):
                self._give_up_put_off(progress)
        if saved.complete:
            if not job.tail:
                blocks = range(job.first_depth, job.first_depth + len(job.block_ids))
                self._saving.is_in_pool(progress.hashed, self._groups.groups[job.group], blocks)
            self._tell(job, progress, certain=not saved.already_there)
        if not progress.saving and self._ended(progress):
            self._hold_ended(progress)

    def _hold_ended(self, progress: Progress) -> None:
        """All of a request that ended is saved."""
        if progress.params.handover and self._saves:
            hashed, blocks, _ = progress.handed_over(self._groups)
            self._holds.begin(hashed, blocks)
        if not self._stopped:
            self._hint_holds.ended(progress)

    def _tell(self, job: SaveJob, progress: Progress, certain: bool) -> None:
        """Tells routers of blocks that every rank has saved. A tail is of no use to other requests."""
        if job.tail:
            self.stats.count("saved_tails", 1)
            return
        if self._events is not None and job.group == self._groups.told.number:
            self._events.saved(progress.hashed, job, certain)
        if self._records is not None:
            self._records.saved(progress.hashed, job, certain)

    def _give_up_put_off(self, progress: Progress) -> None:
        """The request computes no more: what was put off is not saved."""
        self.stats.count("unsaved_blocks", progress.put_off_blocks)
        self._reasons.unsaved("load_failed", progress.put_off_blocks)
        progress.put_off_blocks = 0

    def _give_up_lagging(self, progress: Progress) -> None:
        """The request computes no more, and its last blocks may be wrong (VLLM-V10)."""
        if progress.lags and self._saves and not self._stopped:
            blocks = self._saving.unplanned(progress) * self._ranks
            self.stats.count("unsaved_blocks", blocks)
            self._reasons.unsaved("other_connector", blocks)

    def _ended(self, progress: Progress) -> bool:
        return progress.request.request_id not in self._requests

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """Whether the request's blocks must stay, and what its client is told."""
        progress = self._requests.pop(request.request_id, None)
        if progress is None:
            return False, None
        if progress.search is not None:
            progress.search.release()
        self._hint_holds.scheduled(progress)
        self._prefetches.over(progress)
        self._other_loads.forget(request)
        self._give_up_put_off(progress)
        self._give_up_lagging(progress)
        params = None
        if progress.params.handover and self._saves and not self._stopped:
            hashed, blocks, tail_tokens = progress.handed_over(self._groups)
            params = RouterParams.answer(
                hashed,
                blocks - 1 if tail_tokens else blocks,
                tail_tokens,
                self._index.words(),
                self._groups.hashes_per_unit,
            )
        if not progress.saving and not self._stopped:
            self._hold_ended(progress)
        # While others compute the blocks of one that loads stay for that, and are freed when that
        # is reported: what is being saved then is of an earlier life, from before a preemption,
        # which waited (VLLM-W3). A synchronous load is in one step with the saves of what it
        # computes.
        waits = self._settings.load == "async" and request.request_id in self._loading
        if progress.saving and not waits:
            self._step.finished.append(request.request_id)
            return True, params
        return False, params

    def reset(self, weights: str | None = None) -> bool:
        """The engine's weights may have been changed: what is in the pool is not theirs any more, nor is what
        they compute what others expect (VLLM-V11). ``weights`` names them, else the file does. Returns whether
        the engine may go on."""
        if not (self._loads or self._saves):
            return True
        stopped_before, self._stopped = self._stopped, True
        self._saving.lately.forget_all()
        self.stats.count("resets", 1)
        try:
            name = self._weights_names.next(weights)
        except SettingsError as error:
            if not stopped_before:
                logger.warning(
                    "Rackline: the engine's caches were reset, and the weights may be new. No blocks are loaded "
                    "or saved until a reset with another name of the weights: %s",
                    error,
                )
            return True
        if has_old_kv(self._saving.engine_blocks):
            logger.warning(
                "Rackline: the engine's own cache still has blocks of the weights before %r: no blocks are "
                "loaded or saved until a reset that empties it (reset_prefix_cache); call it again",
                name,
            )
            return False
        try:
            self._begin_weights(name)
        except rackline.Error as error:
            # A pause or a sleep of the engine, of which this reset may be a part, is not to fail for it.
            logger.warning(
                "Rackline: no blocks are loaded or saved under the name %r, until reset_prefix_cache is called "
                "again: %s",
                name,
                error,
            )
        return True

    def _begin_weights(self, name: str) -> None:
        """No request has KV: those that wait are looked up anew."""
        self._index.rename(name)
        self._weights_names.take(name)
        self._hint_holds.forget()
        self._prefetches.forget()
        number = 1 if self._weights is None else self._weights.number + 1
        self._weights, self._stopped = Weights(number, name), False
        for progress in self._requests.values():
            if progress.search is not None:
                progress.search.release()
            progress.search = progress.awaited = None
            progress.looks, progress.computed = True, []
            progress.loaded, progress.next_save, progress.saves_tail = {}, {}, False
        self._found_something, self._others = False, None
        logger.warning("Rackline: the engine's caches were reset: its weights are named %r now", name)

    def take_events(self) -> list[Any]:
        """The engine asks once for each step, when it has the step's output."""
        self._known_steps += 1
        self._forwards.output_came()
        return [] if self._events is None else self._events.take()

    def close(self) -> None:
        searches = [progress.search for progress in self._requests.values()]
        searches += [loading.search for loading in self._loading.values()]
        for search in searches:
            if search is not None:
                search.release()
        self._forwards.close()
        self._attachment.close()
