"""The groups of KV caches of a model, and what of each the engine needs to continue behind a prefix.

vLLM keeps the layers of a model in groups, each with a block table of its own. What a rank stores of a
group is a *part*: a key space of its own, with a session of its own. A rank stores one part for each
group that it has layers of.

- **VLLM-V9** A prefix counts where every part has all that the engine needs to continue behind it: all
  blocks in a group that keeps all tokens, the blocks of the last window in a group with windows, the last
  state in a group with states. Nothing else is loaded, and the null block is neither loaded nor saved.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from rackline.engines.settings import SettingsError


class Keeps(enum.Enum):
    """What the layers of a group keep of a prompt."""

    ALL = "all tokens"
    WINDOW = "a window"
    CHUNK = "a chunk"
    STATE = "a state"


class Policy(NamedTuple):
    """What vLLM has for a group."""

    manager: Any
    """The class that manages its blocks."""
    layer: Any
    """The specification of its first layer."""
    saved: Any
    """The same for what is saved. A window in it is as long as what a prefix needs: with the tokens
    that vLLM keeps before the window, as it computes them again for a draft of several layers (MTP)."""


@dataclasses.dataclass(frozen=True)
class Group:
    """One group of KV caches."""

    number: int
    """Its place among the groups of the engine, and of its block table."""
    keeps: Keeps
    block_tokens: int
    """Tokens of a stored block."""
    hashes_per_block: int
    span_tokens: int = 0
    """Length of the window or of the chunk; for other groups nothing."""
    exact_blocks: bool = False
    """Whether only the engine says which of its blocks is good: it puts others in their places."""
    policy: Policy | None = None
    steps: int = 1
    """How many stored blocks a block of the engine has."""

    def numbers(self, block_ids: Sequence[int], blocks: range) -> list[int]:
        """Where blocks of a request are in the engine's memory, counted in stored blocks. ``block_ids`` is
        the request's block table."""
        if self.steps == 1:
            return list(block_ids[blocks.start : blocks.stop])
        return [block_ids[each // self.steps] * self.steps + each % self.steps for each in blocks]

    def needed(self, first_tokens: int, tokens: int) -> range:
        """The blocks that are loaded for a prefix of ``tokens``, of which the engine has ``first_tokens``.
        Both are whole blocks."""
        first = max(first_tokens, self._unneeded_tokens(tokens))
        return range(first // self.block_tokens, tokens // self.block_tokens)

    def _unneeded_tokens(self, tokens: int) -> int:
        """Tokens before the window of the next one. vLLM gives them no blocks."""
        if self.keeps is Keeps.WINDOW:
            return max(0, tokens - self.span_tokens + 1)
        if self.keeps is Keeps.CHUNK:
            return tokens // self.span_tokens * self.span_tokens
        return tokens - 1 if self.keeps is Keeps.STATE else 0

    def hashes(self, request: Any, blocks: range) -> Sequence[bytes]:
        """The engine's hashes of blocks of a request, each of all tokens up to its last."""
        each = self.hashes_per_block
        hashes = request.block_hashes[blocks.start * each : blocks.stop * each]
        return hashes if each == 1 else hashes[each - 1 :: each]

    def hashed_blocks(self, request: Any) -> int:
        return len(request.block_hashes) // self.hashes_per_block

    def is_like(self, other: Group) -> bool:
        """Whether both keep the same tokens, in blocks of one length."""
        mine = (self.keeps, self.block_tokens, self.span_tokens)
        return mine == (other.keeps, other.block_tokens, other.span_tokens)

    def in_words(self) -> str:
        """What the group keeps, for the log and for the identity of its blocks."""
        if self.keeps in (Keeps.WINDOW, Keeps.CHUNK):
            return f"{self.keeps.value} of {self.span_tokens} tokens"
        return self.keeps.value


@dataclasses.dataclass(frozen=True)
class Groups:
    """All groups of an engine."""

    groups: tuple[Group, ...]
    unit_tokens: int
    """A prefix is so many tokens, or a multiple: a whole number of blocks in every group."""
    retention: int | None = None
    """How often the engine keeps a window: see :meth:`worth_saving`."""

    @classmethod
    def of(cls, vllm_config: Any, kv_cache_config: Any, stored_tokens: int) -> Groups:
        """Those of an engine that stores blocks of so many tokens; with 0 the engine's own blocks.
        :class:`SettingsError` for groups of which no blocks can be shared."""
        from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

        unit_tokens, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
        groups = tuple(
            _group(number, group.kv_cache_spec, hash_tokens)
            for number, group in enumerate(kv_cache_config.kv_cache_groups)
        )
        own = cls(groups, unit_tokens, kv_cache_config.prefix_cache_retention_interval)
        return own if stored_tokens in (0, unit_tokens) else own._in_blocks_of(stored_tokens)

    def _in_blocks_of(self, tokens: int) -> Groups:
        """The same, stored in shorter blocks."""
        if not self.keep_all:
            kept = ", ".join(group.in_words() for group in self.groups)
            raise SettingsError(
                f'the setting "stored_block_tokens" is {tokens}, and the model\'s groups of KV caches keep: '
                f"{kept}. Only blocks of one group that keeps all tokens are stored in parts: leave the "
                'setting out, and give all engines the same --block-size'
            )
        if self.unit_tokens % tokens:
            raise SettingsError(
                f'the setting "stored_block_tokens" is {tokens}, and a block of this engine has '
                f"{self.unit_tokens} tokens: set a number that divides {self.unit_tokens}, or another "
                "--block-size"
            )
        [group] = self.groups
        steps = group.block_tokens // tokens
        short = dataclasses.replace(group, block_tokens=tokens, hashes_per_block=1, steps=steps)
        return dataclasses.replace(self, groups=(short,), unit_tokens=tokens)

    @property
    def keep_all(self) -> bool:
        """Whether there is one group, and it keeps all tokens: then a load may be good in part. In other
        models vLLM knows no such load, and computes a request anew."""
        return len(self.groups) == 1 and self.groups[0].keeps is Keeps.ALL

    @property
    def hashes_per_unit(self) -> int:
        """How many of the engine's hashes a unit of prefixes has."""
        first = self.groups[0]
        return first.hashes_per_block * self.unit_tokens // first.block_tokens

    @property
    def told(self) -> Group:
        """The group of which routers are told: the first that keeps all tokens, if there is one."""
        whole = (group for group in self.groups if group.keeps is Keeps.ALL)
        return next(whole, self.groups[0])

    def worth_saving(self, group: Group, request: Any, blocks: range) -> Sequence[bool] | None:
        """Which of the blocks some prefix needs; ``None`` for all of them. With vLLM's
        ``--prefix-cache-retention-interval`` vLLM keeps windows only at the end of the prompt and every so
        many tokens, and so does the pool."""
        if self.retention is None or group.keeps is not Keeps.WINDOW:
            return None
        from vllm.v1.core.kv_cache_coordinator import replay_boundaries

        ends = list(replay_boundaries(request.num_prompt_tokens, self.unit_tokens, False))
        if request.shared_prefix_boundary:
            ends.append(request.shared_prefix_boundary)
        return group.policy.manager.reachable_block_mask(
            start_block=blocks.start,
            end_block=blocks.stop,
            alignment_tokens=self.unit_tokens,
            kv_cache_spec=group.policy.saved,
            use_eagle=False,
            retention_interval=self.retention,
            reachable_boundaries=ends,
        )


def is_replicated(spec: Any) -> bool:
    """Whether all ranks of tensor parallelism have the same KV in a group: it is stored once."""
    from vllm.v1.kv_cache_interface import (
        MambaSpec,
        MLAAttentionSpec,
        SlidingWindowMLASpec,
        iter_layer_specs,
    )

    return all(
        layer.tp_replicated
        if isinstance(layer, MambaSpec)
        else isinstance(layer, (MLAAttentionSpec, SlidingWindowMLASpec))
        for layer in iter_layer_specs(spec)
    )


def _group(number: int, spec: Any, hash_tokens: int) -> Group:
    from vllm.v1.kv_cache_interface import MambaSpec, iter_layer_specs
    from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

    kinds = {_kept(layer) for layer in iter_layer_specs(spec)}
    if len(kinds) != 1:
        raise SettingsError(
            f"the layers of one KV cache group keep different tokens ({_names(spec)}): such a model is not "
            "supported"
        )
    keeps, span_tokens = kinds.pop()
    first = next(iter(iter_layer_specs(spec)))
    return Group(
        number=number,
        keeps=keeps,
        block_tokens=spec.block_size,
        hashes_per_block=spec.block_size // hash_tokens,
        span_tokens=span_tokens,
        exact_blocks=isinstance(first, MambaSpec) and first.mamba_cache_mode == "align",
        policy=Policy(
            KVCacheSpecRegistry.get_manager_class(first), first, _saved(first, keeps, span_tokens)
        ),
    )


def _saved(spec: Any, keeps: Keeps, span_tokens: int) -> Any:
    """See :class:`Policy`. vLLM's own mask leaves the tokens before the window out."""
    if keeps is not Keeps.WINDOW:
        return spec
    return dataclasses.replace(spec, sliding_window=span_tokens, extra_retained_tokens=0)


def _kept(spec: Any) -> tuple[Keeps, int]:
    """What a layer keeps, and the length of its window or chunk; :class:`SettingsError` for what cannot be
    shared. Of these classes alone: what is derived from them is kept otherwise."""
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        MambaSpec,
        MLAAttentionSpec,
        SlidingWindowMLASpec,
        SlidingWindowSpec,
    )

    kind = type(spec)
    if kind in (FullAttentionSpec, MLAAttentionSpec):
        if spec.non_causal:
            raise SettingsError(
                "the model's attention is not causal: the KV of a prefix depends on the text after it, so "
                "blocks cannot be shared"
            )
        return Keeps.ALL, 0
    if kind in (SlidingWindowSpec, SlidingWindowMLASpec) and spec.prefix_cacheable:
        return Keeps.WINDOW, spec.sliding_window + spec.extra_retained_tokens
    if kind is ChunkedLocalAttentionSpec:
        return Keeps.CHUNK, spec.attention_chunk_size
    if kind is MambaSpec:
        if spec.mamba_cache_mode == "none":
            raise SettingsError(
                "the model has layers with a state (Mamba, linear attention), and vLLM keeps their states "
                "only where prefix caching is on: start with --enable-prefix-caching"
            )
        if spec.num_speculative_blocks:
            raise SettingsError(
                "speculative decoding puts states of drafts among those of a model with Mamba or linear "
                "attention: start without speculative decoding"
            )
        return Keeps.STATE, 0
    raise SettingsError(
        f"the KV cache of a layer is a {kind.__name__}: supported are layers that keep all tokens, a sliding "
        "window, the local chunk, or a state, and whose blocks vLLM itself can find again by their hashes"
    )


def _names(spec: Any) -> str:
    from vllm.v1.kv_cache_interface import iter_layer_specs

    return ", ".join(sorted({type(layer).__name__ for layer in iter_layer_specs(spec)}))
