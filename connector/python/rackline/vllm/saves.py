"""Which blocks are saved, and when.

- **VLLM-V3** A block is saved when it is full, its tokens are decided, and its forward is done. A tail (`tails`) is
  not full, and no later step fills it.
- **VLLM-V8** The engine gives no block to another request while it is saved. Blocks of a group that keeps all
  tokens stay with their request (VLLM-V4); a block that may leave its request before, as it is outside of
  the window, is held in the engine until every rank has saved it.
- **VLLM-V14** A block is left out only where this engine has it in its own cache and every rank had it in the pool
  lately. What a request computes is saved, and so is all of a request whose blocks another engine waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rackline.vllm.groups import Group, Groups, Keeps
from rackline.vllm.lookup import hashes_in_one
from rackline.vllm.messages import SaveJob
from rackline.vllm.progress import Progress
from rackline.vllm.saved_lately import SavedLately
from rackline.vllm.settings import Settings
from rackline.vllm.tails import Tail, Tails


class Saves:
    """What the ranks save, or have been told to."""

    def __init__(self, groups: Groups, settings: Settings, tails: Tails) -> None:
        self._groups, self._settings, self._tails = groups, settings, tails
        self._jobs: dict[int, tuple[SaveJob, Progress]] = {}
        self._held: dict[int, list[Any]] = {}
        """Blocks of the engine that a job holds (VLLM-V8)."""
        self._next_job = 0
        self.lately = SavedLately(settings.save_again_s)
        self.left_out_blocks = 0
        """Blocks that were left out (VLLM-V14), since this was last set to 0."""
        self.engine_blocks: Any = None
        """The engine's manager of its blocks, which it gives to the connector when it has made it."""

    def __len__(self) -> int:
        return len(self._jobs)

    def preempted(self, request_ids: Any) -> list[str]:
        """Those of the requests of which something is being saved: blocks of a preempted request may be
        overwritten. By their saves, as a preempted request may have been aborted since."""
        found = []
        for job, progress in self._jobs.values():
            if job.request_id in request_ids:
                found.append(job.request_id)
                # It may be revoked (VLLM-W3): to be saved when the request has computed it
                # again.
                progress.saves_again(job.group, job.first_depth)
        return found

    def plan(self, progress: Progress, tokens: int, output: Any) -> Iterator[SaveJob]:
        """What of a request is saved after a step that computes ``tokens`` of it."""
        request = progress.request
        state = output.kv_connector_block_state
        ids: Any = None
        # vLLM may have given it less of its cache than it asked this connector about.
        progress.cached_tokens = min(progress.cached_tokens, request.num_computed_tokens)
        for group in self._groups.groups:
            if group.exact_blocks:
                yield from self._plan_offered(progress, group, output)
                continue
            end = self._end(progress, group, request.num_computed_tokens + tokens)
            start = progress.next_save.get(group.number, 0)
            if end <= start:
                continue
            if ids is None:
                ids = state.get_block_ids(request.request_id)
            for run in self._runs(progress, group, range(start, end), ids[group.number]):
                yield self._job(progress, group, run, group.numbers(ids[group.number], run))
            progress.next_save[group.number] = end
        if (tail := self._tail(progress, tokens)) is not None:
            ids = state.get_block_ids(request.request_id)
            yield self._tail_job(progress, tail, ids[0])

    def unplanned(self, progress: Progress) -> int:
        """Full blocks of a request that were not given to be saved, over all groups."""
        request, blocks = progress.request, 0
        for group in self._groups.groups:
            if not group.exact_blocks:
                end = self._end(progress, group, request.num_computed_tokens)
                start = progress.next_save.get(group.number, 0)
                loaded = progress.loaded.get(group.number, range(0))
                runs = _without(range(start, max(start, end)), loaded)
                blocks += sum(len(run) for run in runs)
        return blocks

    def _tail(self, progress: Progress, tokens: int) -> Tail | None:
        """That of a prompt that a step of ``tokens`` completes, where it is handed over."""
        request = progress.request
        computed_tokens = request.num_computed_tokens
        if not progress.params.handover or not self._tails.saves_tail(
            request, computed_tokens, tokens
        ):
            return None
        progress.tail = self._tails.of(progress.hashed)
        return progress.tail

    def _tail_job(self, progress: Progress, tail: Tail, ids: list[int]) -> SaveJob:
        [group] = self._groups.groups
        blocks = range(tail.block, tail.block + 1)
        job = self._job(progress, group, blocks, group.numbers(ids, blocks), tail)
        progress.saves_tail = True
        return job

    def _end(self, progress: Progress, group: Group, tokens: int) -> int:
        """Where the blocks end that may be saved of the first ``tokens``."""
        if not self._settings.save_generated:
            tokens = min(tokens, progress.request.num_prompt_tokens)
        # VLLM-V3: there is a hash for blocks whose tokens are decided.
        return min(tokens // group.block_tokens, group.hashed_blocks(progress.hashed))

    def _runs(
        self, progress: Progress, group: Group, blocks: range, ids: list[int]
    ) -> Iterator[range]:
        """The runs of blocks that are to be saved, of those in ``blocks``: what came from the pool need not
        be, the null block stands for none, and of windows there is what a prefix may need."""
        loaded = progress.loaded.get(group.number, range(0))
        lately = self._lately(progress, group, blocks)
        if group.keeps is Keeps.ALL:
            for run in _without(blocks, loaded):
                yield from self._without_lately(run, lately)
            return
        null = self.engine_blocks.block_pool.null_block.block_id
        wanted = self._groups.worth_saving(group, progress.request, blocks)
        start = None
        for block in [*blocks, blocks.stop]:
            saves = (
                block < blocks.stop
                and block not in loaded
                and ids[block] != null
                and (wanted is None or wanted[block - blocks.start])
            )
            if saves and start is None:
                start = block
            elif not saves and start is not None:
                yield from self._without_lately(range(start, block), lately)
                start = None

    def _lately(self, progress: Progress, group: Group, blocks: range) -> list[range]:
        """The runs of ``blocks`` that need not be saved again (VLLM-V14)."""
        if progress.params.handover or progress.hints.hold_ms > 0:
            return []
        cached_blocks = progress.cached_tokens // group.block_tokens
        cached = range(blocks.start, min(blocks.stop, cached_blocks))
        if not cached:
            return []
        return self.lately.among(group.number, cached, group.hashes(progress.hashed, cached))

    def _without_lately(self, run: range, lately: list[range]) -> Iterator[range]:
        """What is left of a run that was to be saved."""
        for left_out in lately:
            both = range(max(run.start, left_out.start), min(run.stop, left_out.stop))
            if both:
                self.left_out_blocks += len(both)
                if run.start < both.start:
                    yield range(run.start, both.start)
                run = range(both.stop, run.stop)
        if run:
            yield run

    def is_in_pool(self, hashed: Any, group: Group, blocks: range) -> None:
        """Every rank has saved or loaded blocks of a request."""
        self.lately.add(group.number, blocks, group.hashes(hashed, blocks))

    def _plan_offered(self, progress: Progress, group: Group, output: Any) -> Iterator[SaveJob]:
        """The states that the engine offers: it alone knows in which block the state behind a whole block
        is, and offers it with the step that computes it."""
        request, state = progress.request, output.kv_connector_block_state
        offers = list(state.boundary_state_offloads.get(request.request_id, ()))
        if group.number not in progress.next_save:
            # The state that it continues with, which this engine had: the pool may have lost it.
            block = progress.next_save[group.number] = request.num_computed_tokens // group.block_tokens
            ids = state.get_block_ids(request.request_id)[group.number] if block else []
            null = self.engine_blocks.block_pool.null_block.block_id
            if block and ids[block - 1] != null:
                offers.insert(0, (group.number, ids[block - 1], request.num_computed_tokens))
        for number, block_id, tokens in offers:
            # It also offers states within a block, which no other engine looks for.
            if number != group.number or tokens % group.block_tokens:
                continue
            block = tokens // group.block_tokens - 1
            if block >= self._end(progress, group, tokens):
                continue
            progress.next_save[number] = max(progress.next_save.get(number, 0), block + 1)
            if block not in progress.loaded.get(number, range(0)):
                yield self._job(progress, group, range(block, block + 1), [block_id])

    def _job(
        self,
        progress: Progress,
        group: Group,
        blocks: range,
        block_ids: list[int],
        tail: Tail | None = None,
    ) -> SaveJob:
        hashed = progress.hashed if tail is None else tail.hashed
        job = SaveJob(
            self._next_job,
            progress.request.request_id,
            group.number,
            hashes_in_one(group.hashes(hashed, blocks)),
            blocks.start,
            list(block_ids),
            tail is not None,
        )
        self._next_job += 1
        self._jobs[job.job] = (job, progress)
        progress.saving.add(job.job)
        if group.keeps is not Keeps.ALL:
            pool = self.engine_blocks.block_pool
            self._held[job.job] = held = [pool.blocks[block_id] for block_id in job.block_ids]
            pool.touch(held)
        return job

    def done(self, number: int) -> tuple[SaveJob, Progress]:
        """Every rank has done what it could."""
        job, progress = self._jobs.pop(number)
        progress.saving.discard(number)
        if (held := self._held.pop(number, None)) is not None:
            self.engine_blocks.block_pool.free_blocks(held)
        return job, progress


def _without(span: range, left_out: range) -> list[range]:
    """``span`` without ``left_out``, in order."""
    before = range(span.start, min(span.stop, left_out.start))
    after = range(max(span.start, left_out.stop), span.stop)
    if not left_out or left_out.stop <= span.start or left_out.start >= span.stop:
        return [span]
    return [part for part in (before, after) if len(part) > 0]
