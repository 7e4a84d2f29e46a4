"""What the engine around LMCache says of the KV that it computes."""

from __future__ import annotations

import sys
from typing import Any

from rackline.engines.settings import SettingsError
from rackline.lmcache.settings import Settings


def weights_and_engine(settings: Settings) -> tuple[str, str]:
    """What stands for the weights, and for what the engine makes of them. In a worker of vLLM that is
    vLLM's own configuration, as for Rackline's connector; elsewhere it is the user's ``model_id``.

    Raises :class:`SettingsError` when that is not known, or chunks cannot be shared.
    """
    config = _vllm_config()
    if config is None:
        if not settings.model_id:
            raise SettingsError(
                "LMCache does not run in a worker of vLLM, and does not say what KV the engine computes: "
                'set "rackline.model_id" to a name that stands for the weights, and for quantization, '
                "changed RoPE factors and the type of the KV, the same on every host where these are "
                "the same"
            )
        return settings.model_id, ""
    if config.lora_config is not None and not settings.lora_same_everywhere:
        raise SettingsError(
            "LMCache's key names no LoRA adapter: start the engine without LoRA. If a tag of each request "
            "(lmcache.tag.*) names its adapter, and the same adapter on every host, set "
            '"rackline.lora_same_everywhere" to true'
        )
    # vLLM is there: it has been imported.
    import vllm
    from rackline.vllm.identity import configuration_digest, weights_digest

    engine = [
        f"vllm {vllm.__version__}",
        str(config.model_config.dtype),
        str(config.cache_config.cache_dtype),
        configuration_digest(config),
    ]
    return settings.model_id or weights_digest(config), " ".join(engine)


def _vllm_config() -> Any | None:
    """The configuration of the vLLM in whose worker this is; ``None`` elsewhere."""
    if "vllm" not in sys.modules:
        return None
    from vllm.config import get_current_vllm_config_or_none
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    # Workers make their connector, and LMCache with it, while the configuration is current.
    config = get_current_vllm_config_or_none()
    if config is None and has_kv_transfer_group():
        config = getattr(get_kv_transfer_group(), "_vllm_config", None)
    return config
