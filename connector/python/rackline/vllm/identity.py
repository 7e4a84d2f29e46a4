"""What decides what the bytes of a block mean."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import rackline
from rackline.engines.weights import folder_of, update_with_files
from rackline.engines.words import Words, tenant_word
from rackline.vllm.groups import Group, Keeps
from rackline.vllm.settings import Settings

if TYPE_CHECKING:
    from rackline.vllm.heads import Heads

# The order of the bytes in a block: parts of a layer one after another, layers in the order of their
# names. Counted up when that changes.
LAYOUT_VERSION = 1

# Positions of these kinds are the same whatever the longest prompt is that the engine takes. Others
# may not be: longrope has two sets of factors, and chooses by that.
_ROPES_OF_ANY_LENGTH = ("default", "linear", "llama3", "yarn", "mrope")
# Options that change what becomes of an image, whose hash is of the image alone.
_OF_IMAGES = ("mm_processor_kwargs", "video_pruning_rate", "video_pruning_method")


class Place(NamedTuple):
    """Where an engine has blocks: which part of its KV they are."""

    group: int
    """Of the groups of KV caches."""
    stage: int
    """Of pipeline parallelism."""
    heads: int
    """Which head group; where blocks are not divided by heads, which of the ranks' parts."""


@dataclasses.dataclass(frozen=True)
class Identity:
    """The blocks of one head group of one part. Told to the scheduler by each worker, and equal in all
    engines that share them."""

    model: str
    engine: str
    block_tokens: int
    head_groups: int
    """Head groups of the model; 0 where each rank stores what it has as its own."""
    kv_heads: int
    """Of the model; where each rank stores what it has, of a rank."""
    dtype: str
    block_bytes: int
    layers: int
    head_dim: int
    heads: int
    """Which head group it is, or which rank."""
    ranks: int = 0
    """Where each rank stores what it has: how many there are."""
    group: int = 0
    stage: int = 0
    share: str = ""
    """In words, what the part has of the model: its layers, and what they keep. Nothing where a rank has
    one part of all layers, which keep all tokens."""

    @property
    def place(self) -> Place:
        return Place(self.group, self.stage, self.heads)

    @property
    def places(self) -> int:
        """How many places its group has in its stage: a prefix needs all of them."""
        return self.head_groups or self.ranks

    def words(self, tenant: str) -> Words:
        """What another engine's blocks need to be the same, but the place."""
        words: Words = {"tenant": tenant_word(tenant), "layout_version": LAYOUT_VERSION}
        told = dataclasses.asdict(self)
        if self.head_groups:
            del told["ranks"]
        else:
            # As the setting says it.
            told["head_groups"] = "ranks"
        places = ("group", "stage", "heads")
        return words | {name: told[name] for name in told if name not in places}

    def model_of_session(self) -> rackline.Model:
        return rackline.Model(
            name=self.model,
            revision=self.engine,
            dtype=f"{self.dtype} {self.share}".rstrip(),
            layout_version=LAYOUT_VERSION,
            block_tokens=self.block_tokens,
            tensor_parallel_rank=self.heads,
            tensor_parallel_size=self.places,
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
        )


def identity_of(
    vllm_config: Any,
    kv_cache_config: Any,
    settings: Settings,
    layout: str,
    block_bytes: int,
    group: Group,
    heads: Heads,
) -> Identity:
    """The identity of this rank's blocks of a group, of its first head group. Their layout in memory is
    ``layout``."""
    import vllm

    model, cache = vllm_config.model_config, vllm_config.cache_config
    of_group = kv_cache_config.kv_cache_groups[group.number]
    spec = group.policy.layer
    dtypes = spec.dtypes if group.keeps is Keeps.STATE else [spec.dtype]
    dtype = ",".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    configuration = configuration_digest(vllm_config)
    return Identity(
        model=settings.model_id or weights_digest(vllm_config),
        engine=f"vllm {vllm.__version__} {cache.prefix_caching_hash_algo} {configuration}",
        dtype=f"{dtype} {model.dtype} {cache.cache_dtype} {layout}",
        block_tokens=group.block_tokens,
        block_bytes=block_bytes,
        layers=len(of_group.layer_names),
        head_groups=0 if heads.why_undivided else heads.groups,
        kv_heads=spec.num_heads if group.keeps is Keeps.STATE else heads.of_model,
        head_dim=1 if group.keeps is Keeps.STATE else spec.head_size,
        heads=heads.numbers.start,
        ranks=heads.groups if heads.why_undivided else 0,
        group=group.number,
        stage=stage_of(vllm_config),
        share=_share(vllm_config, kv_cache_config, group),
    )


def _share(vllm_config: Any, kv_cache_config: Any, group: Group) -> str:
    stages = vllm_config.parallel_config.pipeline_parallel_size
    groups = kv_cache_config.kv_cache_groups
    if len(groups) == 1 and stages == 1 and group.keeps is Keeps.ALL:
        return ""
    names = sorted(groups[group.number].layer_names)
    layers = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    states = f" {group.policy.layer.shapes}" if group.keeps is Keeps.STATE else ""
    return f"{group.in_words()}{states} in layers {layers}"


def stage_of(vllm_config: Any) -> int:
    """The stage of pipeline parallelism that this rank is in."""
    parallel = vllm_config.parallel_config
    return parallel.rank // parallel.tensor_parallel_size % parallel.pipeline_parallel_size


def configuration_digest(vllm_config: Any) -> str:
    """Stands for what the engine makes of its weights, whatever they are called: the model's
    configuration with the user's overrides, how its files are read, and what becomes of images."""
    model, load = vllm_config.model_config, vllm_config.load_config
    told: list[Any] = [
        _kept(model.hf_config.to_dict()),
        model.model_impl,
        model.quantization,
        getattr(model, "quantization_config", None),
        _load_format(vllm_config),
        load.model_loader_extra_config,
        model.seed if _load_format(vllm_config) == "dummy" else None,
        *(getattr(model.multimodal_config, name, None) for name in _OF_IMAGES),
    ]
    rope = getattr(model.hf_text_config, "rope_parameters", None) or {}
    rope = rope or getattr(model.hf_text_config, "rope_scaling", None) or {}
    # One for all layers, or one for each kind of them.
    ropes = [rope for rope in rope.values() if isinstance(rope, dict)] or [rope]
    kinds = {rope.get("rope_type", rope.get("type", "default")) for rope in ropes}
    if not kinds.issubset(_ROPES_OF_ANY_LENGTH):
        told.append(model.max_model_len)
    if (draft := draft_in_blocks(vllm_config)) is not None:
        loaded = getattr(vllm_config.speculative_config, "draft_load_config", None)
        told += [_kept(draft.hf_config.to_dict()), draft.quantization, loaded]
    text = json.dumps(told, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def weights_digest(vllm_config: Any) -> str:
    """Stands for the weights: a digest of the content of their files."""
    model = vllm_config.model_config
    digest = hashlib.sha256()
    if _load_format(vllm_config) == "dummy":
        digest.update(b"of no files")
    else:
        update_with_files(digest, folder_of(model.model, model.revision))
    if (draft := draft_in_blocks(vllm_config)) is not None:
        update_with_files(digest, folder_of(draft.model, draft.revision))
    return f"weights {digest.hexdigest()[:32]}"


def _load_format(vllm_config: Any) -> str:
    load_format = vllm_config.load_config.load_format
    return str(getattr(load_format, "value", load_format))


def draft_in_blocks(vllm_config: Any) -> Any | None:
    """A draft model whose KV lies in the same blocks."""
    drafts = vllm_config.speculative_config
    if drafts is not None and (drafts.use_eagle() or drafts.uses_draft_model()):
        return drafts.draft_model_config
    return None


def _kept(config: dict[str, Any]) -> dict[str, Any]:
    # Where it was loaded from, and by what, is not what it is.
    left_out = ("_name_or_path", "transformers_version", "_commit_hash")
    return {name: value for name, value in config.items() if name not in left_out}
