"""Synchronous loads of another connector beside this one, in vLLM's ``MultiConnector``.

- **VLLM-V10** A block is not saved before it is known that it was not computed on a failed load of another
  connector. A forward runs while another connector's synchronous load fails, and only that connector knows.
  The scheduler learns of the failure with the output of the step, and computes the blocks again. So saves lag
  by as many steps as the engine schedules ahead, while such loads happen.

Loads of this connector that fail in a step are known to the workers (VLLM-W2). An asynchronous load ends before
its request is computed.
"""

from __future__ import annotations

from typing import Any

from rackline.vllm.groups import Groups
from rackline.vllm.progress import Progress


class OtherLoads:
    """Which blocks may be saved beside loads of others."""

    def __init__(self, groups: Groups, steps_ahead: int) -> None:
        """``steps_ahead`` is how many steps the engine has under way at most."""
        self._steps_ahead = steps_ahead
        self._offers = any(group.exact_blocks for group in groups.groups)
        self._local: dict[str, int] = {}
        """Tokens that the engine's own cache had, of requests that are to be allocated."""
        self._begun: dict[str, int] = {}
        """Of requests that this step begins: the tokens that the engine had, or that this connector loads."""
        self._new: set[str] = set()
        self._unknown_steps = 0
        """Steps, this one included, until the outcome of the last load is known."""

    def asked(self, request: Any, computed_tokens: int) -> None:
        """The engine has so many tokens of a request, and asks for more."""
        self._local[request.request_id] = computed_tokens

    def allocated(self, request: Any, own_tokens: int) -> None:
        """The engine has blocks for a request, ``own_tokens`` of which this connector loads."""
        self._begun[request.request_id] = self._local.pop(request.request_id, 0) + own_tokens

    def forget(self, request: Any) -> None:
        """The request ended."""
        self._local.pop(request.request_id, None)

    def next_step(self, output: Any, requests: dict[str, Progress]) -> None:
        """Looks at what the step begins."""
        begun, self._begun = self._begun, {}
        self._new = set(begun)
        loads = getattr(output, "has_sync_kv_loads", False) and any(
            name in output.num_scheduled_tokens
            and (progress := requests.get(name)) is not None
            and progress.request.num_computed_tokens > tokens
            for name, tokens in begun.items()
        )
        self._unknown_steps = self._steps_ahead if loads else max(0, self._unknown_steps - 1)

    def may_save(self, progress: Progress, tokens: int) -> int | None:
        """How many tokens behind the computed ones may be saved in this step, which computes ``tokens`` of
        the request: fewer than none where earlier steps are not known yet. ``None`` when nothing may be."""
        request, known = progress.request, progress.computed
        if request.request_id in self._new:
            known.clear()
        else:
            known.append(request.num_computed_tokens)
        del known[: -self._steps_ahead]
        progress.lags = self._unknown_steps > 0
        if not progress.lags:
            return tokens
        # A state is offered with its step, and not again.
        if self._offers or len(known) < self._steps_ahead:
            return None
        return min(known[0] - request.num_computed_tokens, 0)
