"""What a client asks of the pool for one request: the actions of vLLM's ``kv_hints``.

An action has ``action_type``, ``action_version`` and ``payload``. It is in the request's ``kv_hints``, which only
vLLM's Python API passes, or in the list ``kv_transfer_params["rackline"]["hints"]``, which HTTP clients and
routers can send. An action that is not understood never fails a request: it is ignored and counted.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Iterable
from typing import Any

from rackline.vllm.settings import Settings

# The version of all actions here.
VERSION = "1"
# Actions of one request: what is beyond is ignored.
ACTIONS_MAX = 16

SAVES = ("never", "normal", "hold")


class _IgnoredError(Exception):
    """An action is not followed: the name of the reason, and a sentence."""


@dataclasses.dataclass
class Hints:
    """The actions that are followed. Of several actions of one type the last counts."""

    hold_ms: int = 0
    """How long the blocks of the request are held after it ends, in milliseconds."""
    prefetch_ms: int = 0
    """How long its blocks are held at most while it waits in the engine's queue, in milliseconds."""
    saves: bool = True
    """Whether its blocks are saved."""
    followed: int = 0
    """Actions that are followed."""
    ignored: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """The others: for each the name of the reason, and a sentence."""

    @classmethod
    def of(cls, request: Any, settings: Settings) -> Hints:
        hints, longest_ms = cls(), settings.hint_hold_ms_max
        kept: dict[str, Any] = {}
        for number, action in enumerate(_actions(request)):
            try:
                if number >= ACTIONS_MAX:
                    raise _IgnoredError("too_many", f"a request has more than {ACTIONS_MAX} actions")
                name, value = _read(action)
                if longest_ms == 0 and name != "priority":
                    raise _IgnoredError("off", "hint_hold_ms_max is 0")
                kept[name] = value
                hints.followed += 1
            except _IgnoredError as ignored:
                hints.ignored.append(ignored.args)
        hints.prefetch_ms = min(kept.get("prefetch", 0), longest_ms)
        hints.hold_ms = min(kept.get("hold", 0), longest_ms)
        priority = kept.get("priority", "normal")
        hints.saves = priority != "never"
        if priority == "hold":
            hints.hold_ms = max(hints.hold_ms, min(settings.hold_ms, longest_ms))
        return hints


def _actions(request: Any) -> Iterable[Any]:
    """Those of both sources, in the form of the second."""
    if request.kv_hints is not None:
        for action in request.kv_hints.actions:
            yield {
                "action_type": action.action_type,
                "action_version": action.action_version,
                "payload": action.payload,
            }
    given = (request.kv_transfer_params or {}).get("rackline")
    told = given.get("hints", []) if isinstance(given, dict) else []
    # What is no list is one action that is not understood.
    yield from told if isinstance(told, list) else [told]


def _read(action: Any) -> tuple[str, Any]:
    """The type of an action, and what it asks for."""
    if not isinstance(action, dict):
        raise _IgnoredError("bad_payload", f"an action is an object, not {reprlib.repr(action)}")
    name, version = action.get("action_type"), action.get("action_version")
    if name not in ("hold", "prefetch", "priority"):
        raise _IgnoredError(
            "unknown_type",
            f"the action_type {reprlib.repr(name)} is not known; there are hold, prefetch and priority",
        )
    if version != VERSION:
        raise _IgnoredError(
            "unknown_version",
            f'the action_version {reprlib.repr(version)} of {name} is not known; there is "{VERSION}"',
        )
    payload = action.get("payload")
    key = "save" if name == "priority" else "ms"
    value = payload.get(key) if isinstance(payload, dict) and set(payload) == {key} else None
    good = value in SAVES if name == "priority" else type(value) is int and value > 0
    if not good:
        wanted = f"one of {SAVES}" if name == "priority" else "a whole number above 0"
        raise _IgnoredError(
            "bad_payload",
            f'the payload of {name} is {reprlib.repr(payload)}, and not {{"{key}": {wanted}}}',
        )
    return name, value
