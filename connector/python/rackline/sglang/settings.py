"""What the user set: ``--hicache-storage-backend-extra-config``, checked."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.engines.settings import PoolSettings, SettingsError

if TYPE_CHECKING:
    from typing_extensions import Self

# What SGLang itself reads there.
_OF_SGLANG = ("backend_name", "module_path", "class_name", "interface_v1")


@dataclasses.dataclass(frozen=True)
class Settings(PoolSettings):
    """How the backend works in this engine."""

    PLACE: ClassVar[str] = "--hicache-storage-backend-extra-config"

    lora_same_everywhere: bool = False
    """The user guarantees that a LoRA adapter of one name and path is the same on every host."""
    lookup_timeout_ms: int = 1000
    """After which nothing was found."""

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        return super().of({name: given[name] for name in given if name not in _OF_SGLANG})


def check_engine(config: Any, arguments: Any | None, settings: Settings) -> None:
    """Refuses an engine if its pages cannot be shared. ``config`` is their ``HiCacheStorageConfig``,
    ``arguments`` their ``ServerArgs``."""
    if config.dcp_size > 1:
        raise SettingsError("decode context parallelism is not supported: set its size to 1")
    if config.should_split_heads:
        raise SettingsError(
            'pages are stored whole: leave "tp_lcm_size" out of '
            "--hicache-storage-backend-extra-config"
        )
    lora = getattr(arguments, "enable_lora", None) or getattr(arguments, "lora_paths", None)
    if lora and not settings.lora_same_everywhere:
        raise SettingsError(
            "pages of LoRA adapters are told apart by the adapter's name and path only: set "
            '"lora_same_everywhere": true when these name the same adapter on every host'
        )
