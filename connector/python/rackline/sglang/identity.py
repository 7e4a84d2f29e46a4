"""What decides what the bytes of a page mean."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import rackline
from rackline.engines.digests import digests
from rackline.engines.settings import SettingsError
from rackline.engines.weights import digest_of_model, folder_of

# The order of the bytes in a page is the host pool's. Counted up when what is taken of it changes.
LAYOUT_VERSION = 1

# Arguments of the engine that change what it computes from the same weights.
_OF_COMPUTING = (
    "load_format",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "json_model_override_args",
    "context_length",
    # Layers of a draft may lie in the same pool.
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "speculative_draft_model_quantization",
    # What the files of weights are loaded as.
    "model_impl",
    "model_loader_extra_config",
    "custom_weight_loader",
    "modelopt_quant",
    "quantize_and_serve",
)
# Arguments that name a file whose content does: scales of the KV, profiles of quantization.
_OF_COMPUTING_IN_FILES = (
    "quantization_param_path",
    "rl_quant_profile",
    "modelopt_checkpoint_restore_path",
)
# With these the weights are not those of the files.
_NOT_OF_FILES = ("dummy", "remote_instance")


def server_arguments() -> Any | None:
    """The engine's ``ServerArgs``; ``None`` outside of an engine."""
    from sglang.srt.runtime_context import get_server_args

    try:
        return get_server_args()
    except ValueError:
        return None


def page_model(
    config: Any, arguments: Any | None, model_id: str, pool: Any, lengths: list[int], form: str
) -> rackline.Model:
    """The identity of the pages of this rank's ``pool``, whose parts have these ``lengths``, in the
    order of ``form``: as they lie there (``pages``), or as the pool makes them flat (``flat``)."""
    import sglang

    rank, ranks = storage_rank(config)
    told = {
        "computing": _computing(arguments),
        "configuration": _configuration(arguments),
        "pool": type(pool).__name__,
        "layout": pool.layout,
        "format": pool.storage_format_tag,
        "form": form,
        "parts": lengths if form == "pages" else sum(lengths),
        "layers": [pool.start_layer, pool.end_layer],
        "pipeline": [config.pp_rank, config.pp_size],
        "context": [config.attn_cp_rank, config.attn_cp_size],
        "mla": config.is_mla_model,
    }
    return rackline.Model(
        name=_name(model_id, arguments),
        revision=f"sglang {sglang.__version__} {json.dumps(told, sort_keys=True)}",
        dtype=str(pool.dtype).removeprefix("torch."),
        layout_version=LAYOUT_VERSION,
        block_tokens=pool.page_size,
        tensor_parallel_rank=rank,
        tensor_parallel_size=ranks,
        layers=pool.layer_num,
        kv_heads=getattr(pool, "head_num", 1),
        head_dim=getattr(pool, "head_dim", None) or getattr(pool, "kv_cache_dim", 0),
    )


def _computing(arguments: Any | None) -> dict[str, str]:
    told = {name: str(getattr(arguments, name, None)) for name in _OF_COMPUTING}
    for name in _OF_COMPUTING_IN_FILES:
        path = getattr(arguments, name, None)
        # What is no file is taken by its name: SGLang decides whether that will do.
        there = path is not None and pathlib.Path(path).is_file()
        told[name] = digests([pathlib.Path(path)])[0] if there else str(path)
    return told


def _configuration(arguments: Any | None) -> str | None:
    """A digest of the model's configuration, whatever its weights are called; ``None`` when it is not on
    this host."""
    try:
        folder = folder_of(
            getattr(arguments, "model_path", ""), getattr(arguments, "revision", None)
        )
    except SettingsError:
        return None
    file = folder / "config.json"
    return digests([file])[0] if file.is_file() else None


def storage_rank(config: Any) -> tuple[int, int]:
    """Which part of the KV this rank stores, of how many. With MLA every rank has all of it, and it
    is stored once."""
    return (0, 1) if config.is_mla_model else (config.tp_rank, config.tp_size)


def _name(model_id: str, arguments: Any | None) -> str:
    if model_id:
        return model_id
    if arguments is None:
        raise SettingsError(
            'outside of an engine the weights are not known: set "model_id" to a name of the weights'
        )
    load_format = str(getattr(arguments, "load_format", None))
    if load_format in _NOT_OF_FILES:
        raise SettingsError(
            f"weights of --load-format {load_format} are not those of the model's files: set "
            '"model_id" to a name that stands for them'
        )
    return digest_of_model(arguments.model_path, getattr(arguments, "revision", None))
