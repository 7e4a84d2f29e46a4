"""What asynchronous loads come after on a GPU.

A block that the scheduler gives to a load may still be in use on the GPU: by the forward of a request that gave it
up, by a draft behind that forward, by zeroes that were written to a block whose load failed.

- **VLLM-W10** A load comes after all that the engine's stream was given in steps whose output the scheduler had when
  it gave the blocks; and not after later forwards. In an engine that zeroes new blocks it comes after all that the
  stream was given before the forward of its own step.

vLLM gives no block to a load while a step that used the block is under way: with several steps under way it keeps
such blocks until their output is there (``defer_block_free``). The output is there before all work of the step is done:
a draft comes behind it. Zeroes are not kept off in that way: they may be on their way to a block that was given up.
"""

from __future__ import annotations

import collections
from typing import Any

from rackline.vllm.device import Device
from rackline.vllm.messages import Step


class Positions:
    """Of the engine's stream, when its last steps began."""

    def __init__(self, steps_ahead: int, zeroes: bool) -> None:
        """``steps_ahead`` is how many steps the engine has under way at most; ``zeroes`` whether it zeroes new
        blocks."""
        self._zeroes = zeroes
        self._of_steps: collections.deque[tuple[int, Any]] = collections.deque(maxlen=steps_ahead)

    def begin(self, step: Step, device: Device) -> None:
        """The engine begins a step: it has launched all of the steps before, and zeroes for this one."""
        self._of_steps.append((step.number, device.position()))

    def of_load(self, step: Step, device: Device) -> int | None:
        """The stream that the loads of a step come after."""
        wanted = step.number if self._zeroes else step.known + 1
        for number, position in self._of_steps:
            if number == wanted:
                return device.stream_at(position)
        # More steps are under way than the engine says: after all of them.
        return device.stream()
