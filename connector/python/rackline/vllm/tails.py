"""The last partial block of a prompt, which a prefill hands over to its decode: the tail.

A decode engine that has the tail computes one token of the prompt, and not all tokens behind the last whole
block. The tail is stored as one more block of the same length. Behind its tokens it has whatever the
engine's block had: the attention of every reader masks that, and no reader saves it.

- **VLLM-H3** A tail is found by its own tokens only: its key is the chain hash of fewer tokens than a block has,
  which is the hash of no whole block. It is saved only where no later step writes its block.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rackline.vllm.chains import Hashed, hash_of_tokens
from rackline.vllm.groups import Groups
from rackline.vllm.identity import draft_in_blocks
from rackline.vllm.settings import Settings

# A request has one token computed in any case: a tail of one token saves nothing.
TOKENS_MIN = 2


@dataclasses.dataclass(frozen=True)
class Tail:
    """Of one prompt."""

    block: int
    """How many whole blocks are before it."""
    tokens: int
    hash: bytes
    hashed: Hashed
    """The request with the hashes of the prompt's whole blocks, and that of the tail behind them."""


class Tails:
    """Those that an engine saves and loads: of models with one group that keeps all tokens, without a draft
    model in the blocks. A draft's own KV of the last token is not computed with that token."""

    def __init__(self, vllm_config: Any, groups: Groups, settings: Settings) -> None:
        self._cache_config = vllm_config.cache_config
        self._block_tokens = groups.unit_tokens
        self._saves = groups.keep_all and draft_in_blocks(vllm_config) is None
        # By layers the forward writes the last token's slot before the layer's fetch does.
        self._loads = self._saves and not settings.loads_by_layers

    def loads_prompt(self, request: Any) -> bool:
        """Whether a handed-over prompt may be loaded to its end, but the last token."""
        return self._loads and not request.resumable and request.num_output_tokens == 0

    def saves_tail(self, request: Any, computed_tokens: int, tokens: int) -> bool:
        """Whether a step that computes ``tokens`` more of a handed-over request completes a tail, which no
        other step writes: the request ends with it."""
        prompt_tokens = request.num_prompt_tokens
        return (
            self._saves
            and request.max_tokens == 1
            and not request.resumable
            and computed_tokens < prompt_tokens <= computed_tokens + tokens
        )

    def of(self, hashed: Any) -> Tail | None:
        """The tail of a request's prompt; ``None`` where the prompt has none that is worth a block."""
        block, tokens = divmod(hashed.num_prompt_tokens, self._block_tokens)
        if tokens < TOKENS_MIN:
            return None
        whole = list(hashed.block_hashes[:block])
        if len(whole) < block:
            return None  # vLLM could not make the hashes before it.
        first, parent = block * self._block_tokens, whole[-1] if whole else None
        algorithm = self._cache_config.prefix_caching_hash_algo
        tail = hash_of_tokens(algorithm, hashed, parent, first, first + tokens)
        return Tail(block, tokens, tail, Hashed(hashed, [*whole, tail]))
