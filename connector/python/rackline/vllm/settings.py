"""What the user set: ``kv_connector_extra_config``, checked."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.engines.settings import PoolSettings, SettingsError
from rackline.vllm.groups import Groups

# Head groups of a model where the number is not set, at most.
GROUPS_MAX = 8
# As many as `rackline.vllm.event_records` has room for.
GROUPS_DESCRIBED_MAX = 128
# The library's.
HOLD_MS_MAX = 64 * ((1 << 15) - 1)
QUEUE_DEPTH_MAX = 1 << 20

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclasses.dataclass(frozen=True)
class Settings(PoolSettings):
    """How the connector works in this engine."""

    PLACE: ClassVar[str] = "kv_connector_extra_config"

    load: str = "async"
    """``async``: a request waits for its blocks while others compute; ``sync``: the step waits."""
    head_groups: str = "auto"
    """Into how many groups the KV heads of a block are divided, which engines of any tensor_parallel_size
    share: ``auto``, a number that divides the heads, or ``ranks``: engines of equal size only."""
    layerwise: str = "off"
    """``load``: the layers of a synchronous load are waited for one by one, by the layers of the
    forward; ``save``: a layer is saved while the forward continues with the next; ``both``; ``off``."""
    blocks_together: bool = False
    """Whether vLLM is asked, on a GPU, for a layout in which all layers of a block lie together (`asked_layout`)."""
    stored_block_tokens: int = 0
    """Tokens of a stored block, where engines with other block sizes share: a number that divides this
    engine's block size. 0 stands for that itself."""
    save_generated: bool = True
    """Whether blocks of generated tokens are saved, or those of the prompt only."""
    save_again_s: int = 60
    """For how long blocks of the engine's own cache are not saved again, at least; 0 saves them with each request."""
    save_backlog_percent: int = 25
    """How much of the engine's KV memory may stay with requests that ended and wait to be saved."""
    lora_same_everywhere: bool = False
    """The user guarantees that a LoRA adapter of one name and path is the same on every host."""
    weights_name_file: str = ""
    """A file whose content names new weights, which is read when the engine's caches are reset."""
    event_records: bool = False
    """Whether saved blocks are described in the pool, for the command ``rackline events``."""
    hint_hold_ms_max: int = 600000
    """How long the hold of a hint lasts at most; 0 ignores hints to hold and to prefetch."""
    prefetch_wait_ms: int = 10000
    """How long the blocks on drives of a request that waits in the engine's queue may take to come; 0: they are
    asked for when the engine has room for the request."""
    hint_hold_percent: int = 25
    """How many percent of a host's share of the pool the hints of this engine hold at most."""
    lookup_wait_ms: int = 2
    """How long the scheduler waits for a lookup before it turns to other requests."""
    lookup_timeout_ms: int = 1000
    """After which a request is computed without looking any further."""
    handover_wait_ms: int = 5000
    """How long a decode waits at most for the blocks that its prefill is still saving."""

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        groups = given.get("head_groups", cls.head_groups)
        if type(groups) is int:
            given = {**given, "head_groups": str(groups)}
        if groups not in ("auto", "ranks") and not (str(groups).isdecimal() and int(groups) > 0):
            raise SettingsError(
                f'the setting "head_groups" is {groups!r}: "auto", "ranks" or a number from 1'
            )
        settings = super().of(given)
        divided = settings.head_groups.isdecimal()
        if settings.event_records and divided and int(settings.head_groups) > GROUPS_DESCRIBED_MAX:
            raise SettingsError(
                f'the setting "head_groups" is {settings.head_groups}: with "event_records" '
                f"{GROUPS_DESCRIBED_MAX} at most, so that a record has room for the key of each"
            )
        if settings.load not in ("async", "sync"):
            raise SettingsError(f'the setting "load" is {settings.load!r}: "async" or "sync"')
        if settings.save_backlog_percent > 100:
            raise SettingsError(
                f'the setting "save_backlog_percent" is {settings.save_backlog_percent}: 100 at most'
            )
        if settings.hint_hold_percent > 100:
            raise SettingsError(
                f'the setting "hint_hold_percent" is {settings.hint_hold_percent}: 100 at most'
            )
        if settings.hint_hold_ms_max > HOLD_MS_MAX:
            raise SettingsError(
                f'the setting "hint_hold_ms_max" is {settings.hint_hold_ms_max}: {HOLD_MS_MAX} at most, as '
                "long as the pool holds a block"
            )
        if settings.layerwise not in ("off", "load", "save", "both"):
            raise SettingsError(
                f'the setting "layerwise" is {settings.layerwise!r}: "off", "load", "save" or "both"'
            )
        if settings.loads_by_layers and settings.load != "sync":
            raise SettingsError(
                f'the setting "layerwise" is {settings.layerwise!r}, and "load" is '
                f'{settings.load!r}: an asynchronous load is done before the forward, so set "load" to '
                '"sync", or "layerwise" to "save" or "off"'
            )
        return settings

    def pool_options(self) -> dict[str, Any]:
        """As for all engines. A prefix is looked up for each head group, and waits in the queue with all of
        these lookups."""
        options = super().pool_options()
        if self.head_groups != "ranks":
            groups = GROUPS_MAX if self.head_groups == "auto" else int(self.head_groups)
            options["queue_depth"] = min(groups * self.queue_depth, QUEUE_DEPTH_MAX)
        return options

    @property
    def loads_by_layers(self) -> bool:
        return self.layerwise in ("load", "both")

    @property
    def publishes_by_layers(self) -> bool:
        return self.layerwise in ("save", "both")


def check_engine(vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
    """Refuses an engine if its blocks cannot be shared, before anything is started."""
    parallel = vllm_config.parallel_config
    for name, what in [
        ("decode_context_parallel_size", "decode context parallelism"),
        ("prefill_context_parallel_size", "prefill context parallelism"),
    ]:
        if getattr(parallel, name, 1) > 1:
            raise SettingsError(
                f"{what} is not supported: it spreads the tokens of a block over ranks, and no engine "
                f"without it, or with another number of ranks, could use the blocks. Set {name} to 1"
            )
    graphs = vllm_config.compilation_config.cudagraph_mode
    if settings.layerwise != "off" and graphs.has_full_cudagraphs():
        # vLLM itself leaves them for this connector, but not where another setting wants them.
        raise SettingsError(
            f"with CUDA graphs of the whole forward ({graphs}) layers cannot be loaded or saved one by "
            'one: set cudagraph_mode to PIECEWISE, or "layerwise" to "off"'
        )
    loads = vllm_config.kv_transfer_config.is_kv_consumer
    if settings.load == "sync" and loads and vllm_config.max_concurrent_batches > 1:
        raise SettingsError(
            'the setting "load" is "sync", and the engine schedules steps ahead: it would continue with '
            'a request after its load failed. Set "load" to "async", or start with --no-async-scheduling'
        )
    if settings.layerwise != "off" and vllm_config.speculative_config is not None:
        raise SettingsError(
            "layers cannot be loaded or saved one by one with speculative decoding: the draft model "
            'computes its layers several times, and after the step. Set "layerwise" to "off"'
        )
    drafts = vllm_config.speculative_config is not None
    if drafts and parallel.pipeline_parallel_size > 1 and not vllm_config.use_v2_model_runner:
        raise SettingsError(
            "with pipeline parallelism and speculative decoding this engine tells only the last stage when "
            "a step is computed, so the other stages would never save their blocks: leave speculative "
            "decoding out, or set pipeline_parallel_size to 1"
        )
    if settings.loads_by_layers and vllm_config.model_config.quantization is not None:
        # What is damaged is computed on before that is known, and may be no numbers.
        raise SettingsError(
            "layers cannot be loaded one by one with a quantized model: it may scale all tokens of a "
            "step together, and a damaged block of one request would change the others. Set "
            '"layerwise" to "save" or "off"'
        )
    if settings.publishes_by_layers and getattr(parallel, "use_ubatching", False):
        raise SettingsError(
            "layers cannot be saved one by one with micro-batches: each micro-batch computes only a part "
            'of a layer. Set "layerwise" to "load" or "off"'
        )
    groups = Groups.of(vllm_config, kv_cache_config, settings.stored_block_tokens)
    _check_groups(groups, settings, loads)
    _check_reuse(vllm_config)
    cache, model = vllm_config.cache_config, vllm_config.model_config
    images = model.multimodal_config
    if images is not None and images.mm_processor_cache_gb == 0 and not cache.enable_prefix_caching:
        raise SettingsError(
            "with --mm-processor-cache-gb 0 and without prefix caching vLLM numbers images from one in "
            "every process, so blocks of other images would be found: turn one of the two on"
        )
    if vllm_config.weight_transfer_config is not None:
        raise SettingsError(
            "the engine may change its weights while it runs (--weight-transfer-config), and blocks of "
            "the old and the new weights would be mixed: start it without --weight-transfer-config"
        )
    algorithm = vllm_config.cache_config.prefix_caching_hash_algo
    if not algorithm.startswith("sha256") and not os.environ.get("PYTHONHASHSEED"):
        raise SettingsError(
            f"the block hash {algorithm!r} has a random seed in every process, so nothing would ever "
            "be found: use --prefix-caching-hash-algo sha256_cbor, or set PYTHONHASHSEED to the same "
            "number everywhere"
        )
    if vllm_config.lora_config is not None and not settings.lora_same_everywhere:
        raise SettingsError(
            "blocks of LoRA adapters are told apart by the adapter's name and path only: set "
            '"lora_same_everywhere": true when these name the same adapter on every host'
        )


def _check_groups(groups: Groups, settings: Settings, loads: bool) -> None:
    """Refuses what vLLM, or this connector, does for models with one group that keeps all tokens alone."""
    if groups.keep_all:
        return
    kept = ", ".join(group.in_words() for group in groups.groups)
    otherwise = "or start with --disable-hybrid-kv-cache-manager, if the model has no layers with a state"
    if settings.load == "sync" and loads:
        raise SettingsError(
            f'the setting "load" is "sync", and the model\'s groups of KV caches keep: {kept}. vLLM cannot '
            f'compute a request again whose synchronous load failed in such a model. Set "load" to "async", '
            f"{otherwise}"
        )
    if settings.layerwise != "off":
        raise SettingsError(
            f"the model's groups of KV caches keep: {kept}. Layers are loaded and saved one by one only "
            f'with one group that keeps all tokens. Set "layerwise" to "off", {otherwise}'
        )


def _check_reuse(vllm_config: Any) -> None:
    """Refuses engines that cannot go on behind KV that is there."""
    import vllm.envs

    cache, model = vllm_config.cache_config, vllm_config.model_config
    if not model.is_prefix_caching_supported:
        raise SettingsError(
            "this model needs all tokens in one step and cannot continue after cached blocks (vLLM has "
            "no prefix caching for it either)"
        )
    if cache.enable_prefix_caching:
        return
    if model.use_mla and _on_cpu():
        raise SettingsError(
            "this engine's MLA attention cannot continue after cached blocks (vLLM has turned prefix "
            "caching off): on a CPU use AMX and --dtype bfloat16, and leave --attention-backend out"
        )
    if vllm.envs.VLLM_BATCH_INVARIANT:
        raise SettingsError(
            "with VLLM_BATCH_INVARIANT and this attention backend answers would depend on cached blocks "
            "(vLLM turns prefix caching off there): choose another --attention-backend, and leave "
            "prefix caching on"
        )


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return current_platform.is_cpu()
