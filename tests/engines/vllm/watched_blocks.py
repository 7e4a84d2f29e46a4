"""The connector in an engine whose scheduler is watched: which blocks its steps use, and which they load into.

No option of the connector leads here: the class is loaded by its name from this file."""

from __future__ import annotations

from typing import Any, ClassVar

from rackline.vllm import RacklineConnector
from rackline.vllm.messages import Step


class WatchedBlocks(RacklineConnector):
    _used: ClassVar[dict[int, set[int]]] = {}
    """The blocks of the requests that a step computes, by the number of the step."""
    in_use: ClassVar[list[set[int]]] = []
    """Of each step with loads, which of the blocks that it loads into a step uses that is under way."""

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        step = super().build_connector_meta(scheduler_output)
        blocks = self.scheduler._saving.engine_blocks.get_block_ids
        requests = scheduler_output.num_scheduled_tokens
        self._used[step.number] = {
            block for request in requests for group in blocks(request) for block in group
        }
        loaded = {block for job in step.loads for load in job.groups for block in load.block_ids}
        if loaded:
            under_way = range(step.known + 1, step.number + 1)
            used = set().union(*(self._used[number] for number in under_way))
            self.in_use.append(loaded & used)
        return step
