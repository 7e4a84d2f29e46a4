"""What the user set for the adapter of LMCache's server, checked."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.engines.settings import PoolSettings, SettingsError

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclasses.dataclass(frozen=True)
class L2Settings(PoolSettings):
    """How the adapter works in this server."""

    PLACE: ClassVar[str] = "adapter_params of --l2-adapter"

    lookup_timeout_ms: int = 1000
    """After which nothing was found."""
    task_timeout_ms: int = 200000
    """After which a task is given up that could not be carried out, with room to do it in the 300 s for
    which LMCache keeps its memory (``--l1-read-ttl-seconds``). Stores are put off for half of it at most."""
    engines_on_gpu: bool = False
    """The engines compute on GPUs: the order of their bytes does not depend on the host's CPU."""

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        settings = super().of(given)
        if settings.task_timeout_ms < 100:
            raise SettingsError(
                f'the setting "task_timeout_ms" is {settings.task_timeout_ms}: at least 100, or nothing '
                "would ever be stored or loaded"
            )
        return settings
