"""What the user set: ``kv_connector_extra_config``, checked."""

from __future__ import annotations

import dataclasses
import os
from typing import Any


class SettingsError(ValueError):
    """A setting that cannot be, or an engine that cannot be served."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How the connector works in this engine."""

    region: str = ""
    """The pool's memory, for example ``/dev/dax0.0``. Default: the environment's RACKLINE_REGION."""
    node: int = -1
    """This host's number in the pool. Default: the environment's RACKLINE_NODE."""
    tenant: str = ""
    """Engines share blocks with those of the same tenant only."""
    model_id: str = ""
    """Names the weights, for engines that load them from places with different content. Default: a
    digest of the files of weights."""
    load: str = "async"
    """``async``: a request waits for its blocks while others compute; ``sync``: the step waits."""
    save_generated: bool = True
    """Whether blocks of generated tokens are saved, or those of the prompt only."""
    lora_same_everywhere: bool = False
    """The user's word that a LoRA adapter of one name and path is the same on every host."""
    lookup_wait_ms: int = 2
    """How long the scheduler waits for a lookup before it turns to other requests."""
    lookup_timeout_ms: int = 1000
    """After which a request is computed without looking any further."""
    handover_wait_ms: int = 5000
    """How long a decode waits at most for the blocks that its prefill is still saving."""
    hold_ms: int = 30000
    """How long blocks that were found, or handed over, are held at most."""
    copy_threads: int = 1
    """Threads that copy, in each process."""

    @classmethod
    def of(cls, given: dict[str, Any]) -> Settings:
        """The settings, from ``kv_connector_extra_config`` and the environment."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(set(given) - set(fields)):
            raise SettingsError(
                f"kv_connector_extra_config has unknown settings {unknown}; there are "
                f"{sorted(fields)}"
            )
        found = dict(given)
        if "region" not in found and "RACKLINE_REGION" in os.environ:
            found["region"] = os.environ["RACKLINE_REGION"]
        if "node" not in found and "RACKLINE_NODE" in os.environ:
            try:
                found["node"] = int(os.environ["RACKLINE_NODE"])
            except ValueError:
                raise SettingsError("RACKLINE_NODE is not a number") from None
        for name, value in found.items():
            wanted = type(fields[name].default)
            if type(value) is not wanted:
                raise SettingsError(
                    f"the setting {name!r} is {value!r}, not of type {wanted.__name__}"
                )
            if wanted is int and (value < 0 or (name == "copy_threads" and value == 0)):
                raise SettingsError(f"the setting {name!r} is {value}: too small")
        settings = cls(**found)
        if not settings.region or settings.node < 0:
            raise SettingsError(
                'set "region" and "node" in kv_connector_extra_config (or RACKLINE_REGION and '
                "RACKLINE_NODE): the memory of the pool, and this host's number in it"
            )
        if settings.hold_ms < 1000:
            raise SettingsError(
                f'the setting "hold_ms" is {settings.hold_ms}: at least 1000, so that what was found '
                "is there when it is loaded"
            )
        if settings.load not in ("async", "sync"):
            raise SettingsError(f'the setting "load" is {settings.load!r}: "async" or "sync"')
        return settings


def check_engine(vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
    """Refuses engines whose blocks cannot be shared, before anything is started."""
    parallel = vllm_config.parallel_config
    for name, what in [
        ("pipeline_parallel_size", "pipeline parallelism"),
        ("decode_context_parallel_size", "decode context parallelism"),
        ("prefill_context_parallel_size", "prefill context parallelism"),
    ]:
        if getattr(parallel, name, 1) > 1:
            raise SettingsError(f"{what} is not supported: set {name} to 1")
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise SettingsError(
            f"the model has {len(groups)} groups of KV caches (hybrid attention): only models whose "
            "layers all have full attention are supported"
        )
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    spec = groups[0].kv_cache_spec
    if not isinstance(spec, FullAttentionSpec) or getattr(spec, "sliding_window", None):
        raise SettingsError(
            f"{type(spec).__name__}: only models whose layers all have full attention are supported"
        )
    algorithm = vllm_config.cache_config.prefix_caching_hash_algo
    if not algorithm.startswith("sha256") and not os.environ.get("PYTHONHASHSEED"):
        raise SettingsError(
            f"the block hash {algorithm!r} has a random seed in every process, so nothing would ever "
            "be found: use --prefix-caching-hash-algo sha256_cbor, or set PYTHONHASHSEED to the same "
            "number everywhere"
        )
    if getattr(vllm_config.model_config, "calculate_kv_scales", False) or getattr(
        vllm_config.cache_config, "calculate_kv_scales", False
    ):
        raise SettingsError(
            "calculate_kv_scales gives every engine scales of its own: blocks cannot be shared"
        )
    if vllm_config.lora_config is not None and not settings.lora_same_everywhere:
        raise SettingsError(
            "blocks of LoRA adapters are told apart by the adapter's name and path only: set "
            '"lora_same_everywhere": true when these name the same adapter on every host'
        )
