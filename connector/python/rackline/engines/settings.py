"""The settings of every engine: where the pool is, and which engines share blocks."""

from __future__ import annotations

import dataclasses
import os
import socket
from typing import TYPE_CHECKING, Any, ClassVar

import rackline
from rackline._native import check_pool_options

if TYPE_CHECKING:
    from typing_extensions import Self


_OPTIONS = (
    "copy_threads",
    "queue_depth",
    "high_watermark_percent",
    "low_watermark_percent",
    "quotas",
    "bind_threads",
)

# A number that a setting may be at most: times of 24 days.
NUMBER_MAX = (1 << 31) - 1
# As the library takes it.
RECOMPUTE_US_MAX = (1 << 32) - 1


class SettingsError(ValueError):
    """A setting is wrong, or Rackline does not support the engine. The message says what to change."""


@dataclasses.dataclass(frozen=True)
class PoolSettings:
    """The settings that all engines have. Engines add their own."""

    PLACE: ClassVar[str] = "the settings"
    """Where the user writes them, in the words of the engine."""

    region: str = ""
    """The pool's memory, for example ``/dev/dax0.0``. Default: the environment's RACKLINE_REGION."""
    node: int = -1
    """This host's number in the pool, or the numbers of all hosts by their names: then the name of this
    host decides, or RACKLINE_HOST. Default: the environment's RACKLINE_NODE."""
    tenant: str = ""
    """Engines share blocks with those of the same tenant only."""
    model_id: str = ""
    """Names the weights, for engines that load them from places with different content. Default: a
    digest of the files of weights."""
    hold_ms: int = 30000
    """How long blocks that were found, or handed over, are held at most."""
    restore_wait_ms: int = 2000
    """How long a lookup waits for blocks that are on drives to be restored; 0: drives are not asked. Without an
    agent on this host nothing waits."""
    recompute_ms: int = 0
    """How long this engine takes to compute 1,000 tokens. What takes longer to restore is refused at once,
    and computed; 0: not known, so whatever comes within the wait is restored."""
    copy_threads: int = 1
    """Threads that copy, in each process; 64 at most."""
    queue_depth: int = 256
    """Transfers that wait in each queue of a process at most."""
    high_watermark_percent: int = 95
    """Above how many percent of use a process begins to evict in the background."""
    low_watermark_percent: int = 90
    """Down to how many percent it evicts then."""
    quotas: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """What tenants may keep of this host's part of the pool when room is short: for each ``tenant``
    ``bytes``, or ``percent`` of it."""
    bind_threads: bool = True
    """Whether threads that copy run on the CPUs nearest to the pool's memory, as far as the process may."""

    def pool_options(self) -> dict[str, Any]:
        """Those of :class:`rackline.Pool`."""
        return {name: getattr(self, name) for name in _OPTIONS}

    def restore_options(self, block_tokens: int, wait_ms: int | None = None) -> dict[str, int]:
        """Those of :meth:`rackline.Session.lookup` that holds blocks of so many tokens, by a caller that
        waits for ``wait_ms`` in all, or for as long as it takes."""
        if wait_ms is None:
            wait_ms = self.restore_wait_ms
        else:
            # What came by then is told in the last tenth.
            wait_ms = min(wait_ms * 9 // 10, self.restore_wait_ms)
        recompute_us = min(self.recompute_ms * block_tokens, RECOMPUTE_US_MAX)
        return {"restore_wait_ms": wait_ms, "recompute_us": recompute_us}

    @property
    def publishes_by_layers(self) -> bool:
        """Whether blocks are published layer by layer."""
        return False

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """The settings, from what the user gave and the environment."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(set(given) - set(fields)):
            raise SettingsError(
                f"{cls.PLACE} has unknown settings {unknown}; there are {sorted(fields)}"
            )
        found = dict(given)
        if "region" not in found and "RACKLINE_REGION" in os.environ:
            found["region"] = os.environ["RACKLINE_REGION"]
        if "node" not in found and "RACKLINE_NODE" in os.environ:
            try:
                found["node"] = int(os.environ["RACKLINE_NODE"])
            except ValueError:
                raise SettingsError(
                    "RACKLINE_NODE is not a number: set it to this host's node number"
                ) from None
        if isinstance(found.get("node"), dict):
            found["node"] = _number_of_host(found["node"], cls.PLACE)
        for name, value in found.items():
            field = fields[name]
            made = field.default_factory
            wanted = type(field.default if made is dataclasses.MISSING else made())
            if type(value) is not wanted:
                raise SettingsError(
                    f"the setting {name!r} is {value!r}, not of type {wanted.__name__}"
                )
            if wanted is int and value < 0:
                raise SettingsError(f"the setting {name!r} is {value}: too small")
            if wanted is int and value > NUMBER_MAX:
                raise SettingsError(f"the setting {name!r} is {value}: {NUMBER_MAX} at most")
        settings = cls(**found)
        try:
            check_pool_options(**settings.pool_options())
        except rackline.Error as error:
            raise SettingsError(f"{cls.PLACE}: {error}") from None
        if not settings.region or settings.node < 0:
            raise SettingsError(
                f'set "region" and "node" in {cls.PLACE} (or RACKLINE_REGION and RACKLINE_NODE): the '
                "memory of the pool, and this host's number in it"
            )
        if settings.node > 65535:
            raise SettingsError(f'the setting "node" is {settings.node}: 65535 at most')
        if settings.hold_ms < 1000:
            raise SettingsError(
                f'the setting "hold_ms" is {settings.hold_ms}: it must be at least 1000, so that blocks '
                "stay until they are loaded"
            )
        return settings


def _number_of_host(nodes: dict[str, Any], place: str) -> int:
    """The number of this host, of those of all hosts by their names."""
    host = os.environ.get("RACKLINE_HOST") or socket.gethostname()
    if host not in nodes:
        raise SettingsError(
            f'{place}: "node" has no number for this host, {host}; add it, or set RACKLINE_HOST to the name '
            "that it has there"
        )
    if len(set(map(str, nodes.values()))) < len(nodes):
        raise SettingsError(f'{place}: "node" gives two hosts one number; number each host: {nodes}')
    return nodes[host]
