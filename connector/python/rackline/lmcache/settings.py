"""What the user set: entries ``rackline.*`` of LMCache's ``extra_config``, checked."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.engines.settings import PoolSettings, SettingsError

if TYPE_CHECKING:
    from typing_extensions import Self

PREFIX = "rackline."


@dataclasses.dataclass(frozen=True)
class Settings(PoolSettings):
    """How the backend works in this engine."""

    PLACE: ClassVar[str] = 'the entries "rackline.*" of extra_config'

    restore_wait_ms: int = 0
    """As for all engines. LMCache's lookups hold up the engine's scheduler, so drives are not asked by default."""
    lookup_timeout_ms: int = 1000
    """After which nothing was found."""
    saves_max: int = 256
    """Chunks that wait to be saved at most; what comes then is not saved."""
    lora_same_everywhere: bool = False
    """The user guarantees that a tag of LMCache's key names the LoRA adapter of each request, and the
    same adapter on every host."""

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        own = {name: given[name] for name in given if name.startswith(PREFIX)}
        return super().of({name.removeprefix(PREFIX): value for name, value in own.items()})


def check_engine(config: Any, metadata: Any) -> None:
    """Refuses an engine if its chunks cannot be shared. ``config`` is LMCache's configuration,
    ``metadata`` what it knows of the engine."""
    if config is None or metadata is None:
        raise SettingsError(
            "LMCache passed no configuration or no metadata: use a version of LMCache that Rackline supports"
        )
    if metadata.role == "scheduler":
        raise SettingsError(
            "lookups are answered by the workers: leave enable_scheduler_bypass_lookup out"
        )
    if config.enable_pd:
        raise SettingsError(
            "with enable_pd LMCache sends its chunks to one other engine only: leave enable_pd out"
        )
    if config.use_layerwise:
        raise SettingsError("chunks are stored whole: leave use_layerwise out")
    if config.enable_blending:
        raise SettingsError(
            "blended chunks are not those of a prefix, and cannot be shared: leave enable_blending out"
        )
    if config.pre_caching_hash_algorithm == "builtin" and not os.environ.get("PYTHONHASHSEED"):
        raise SettingsError(
            'the hash "builtin" has a random seed in every process, so nothing would ever be found: '
            "set pre_caching_hash_algorithm to sha256_cbor, or PYTHONHASHSEED to the same number "
            "everywhere"
        )
