"""Saving a step layer by layer, while its forward continues."""

from __future__ import annotations

import dataclasses
import logging

import rackline
from rackline.vllm.device import Device
from rackline.vllm.messages import SaveJob
from rackline.vllm.transfers import Outcomes, Publish

logger = logging.getLogger(__name__)


class EngineLayers:
    """Which layer of the blocks each layer of the engine is; some share one."""

    def __init__(self, layers: dict[str, int]) -> None:
        self._layers = layers
        self._sharers: dict[int, set[str]] = {}
        for name, layer in layers.items():
            self._sharers.setdefault(layer, set()).add(name)

    def layer(self, name: str) -> int | None:
        """``None`` for one that has no cache."""
        return self._layers.get(name)

    def last(self) -> int:
        """The last layer of the blocks."""
        return max(self._sharers)

    def of_blocks(self) -> set[int]:
        """The layers of the blocks."""
        return set(self._sharers)

    def missing(self, names: set[str]) -> list[str]:
        """Layers of the engine that are not among these."""
        return sorted(set(self._layers) - names)

    def complete(self, done: set[str], name: str) -> int | None:
        """The layer of the blocks that is complete with ``name``, after those that are done."""
        layer = self._layers.get(name)
        if layer is None or name in done:
            return None
        done.add(name)
        return layer if self._sharers[layer] <= done else None


class LayeredSave:
    """The blocks that a step saves, of all its requests."""

    def __init__(
        self, publish: Publish, layers: EngineLayers, device: Device, jobs: list[SaveJob]
    ) -> None:
        """``publish`` is by layers, and just begun."""
        self.jobs = jobs
        self._layers, self._device = layers, device
        self._done: set[str] = set()
        self._untold = layers.of_blocks()
        """Layers of the blocks that were not said to be ready."""
        self._broken_off = False
        self._result: Outcomes | rackline.Error | None = None
        self._publish = publish

    def layer_ends(self, name: str) -> bool:
        """The engine's layer was computed, or launched on a GPU. Whether a layer of the blocks is ready
        by that."""
        layer = self._layers.complete(self._done, name)
        return layer is not None and self._tell(layer)

    def _tell(self, layer: int) -> bool:
        """Has the layer copied behind what the engine's stream was given so far."""
        if self._broken_off:
            return False
        try:
            self._publish.begun.layer_ready(layer, stream=self._device.stream())
        except rackline.Error as error:
            # Of a stream whose work is done who knows when: nothing of the step is saved.
            self._broken_off = True
            logger.warning("Rackline: a step is not saved: %s", error)
            return False
        self._untold.discard(layer)
        return True

    def end(self, worth_saving: bool) -> list[OfJob]:
        """The forward is done, or launched; layers that nobody told of are ready by that, too."""
        if worth_saving and all(self._tell(layer) for layer in sorted(self._untold)):
            self._publish.begun.finish()
        else:
            self._publish.begun.abort()
        jobs, start = [], 0
        for job in self.jobs:
            jobs.append(OfJob(self, job, slice(start, start + len(job.block_ids))))
            start += len(job.block_ids)
        return jobs

    def result(self, wait: bool) -> Outcomes | None:
        if self._result is None:
            try:
                self._result = self._publish.wait() if wait else self._publish.poll()
            except rackline.Error as error:
                self._result = error
        if isinstance(self._result, rackline.Error):
            raise self._result
        return self._result


@dataclasses.dataclass
class OfJob:
    """What one request has of a step's blocks: it is asked like a publish of its own."""

    save: LayeredSave
    job: SaveJob
    blocks: slice

    def cancel(self) -> bool:
        return False

    def poll(self) -> Outcomes | None:
        return self._of(self.save.result(wait=False))

    def wait(self) -> Outcomes | None:
        return self._of(self.save.result(wait=True))

    def _of(self, result: Outcomes | None) -> Outcomes | None:
        return None if result is None else result.of(self.blocks)
