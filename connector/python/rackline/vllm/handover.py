"""From prefill to decode: blocks that a finished request leaves to another engine."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from rackline.engines.words import Words, difference, remedy
from rackline.vllm.lookup import Search
from rackline.vllm.search import Index
from rackline.vllm.tails import Tail

logger = logging.getLogger(__name__)

# How long a decode rests between two looks for what its prefill is saving.
LOOK_MS = 20


# Keys of NIXL's and Mooncake's connectors in ``kv_transfer_params``, which routers send.
REMOTE_DECODE, REMOTE_PREFILL = "do_remote_decode", "do_remote_prefill"
# More blocks than a prompt has: a decode waits for all whole blocks of its prompt.
WHOLE_PROMPT = 1 << 30


@dataclasses.dataclass(frozen=True)
class RouterParams:
    """What a router says about a request, in its ``kv_transfer_params``: under the key ``rackline``, or
    in the words of NIXL's connector."""

    handover: bool = False
    """Its blocks are for a decode engine."""
    blocks: int = 0
    """The number of blocks that a prefill engine saves for it."""
    last_hash: str = ""
    """The hash of the last of them, in hexadecimal digits."""
    tail_tokens: int = 0
    """The number of tokens in the partial block that it saves behind them."""
    identity: dict[str, Any] | None = None
    """What the blocks of the prefill engine are, in words."""

    @classmethod
    def of(cls, request: Any) -> RouterParams:
        """A value of another type is logged, and left out."""
        params = request.kv_transfer_params or {}
        given = params.get("rackline", {})
        fields = {
            "handover": bool, "blocks": int, "last_hash": str, "tail_tokens": int, "identity": dict
        }  # fmt: skip
        if not isinstance(given, dict):
            given = {"rackline": given}
        # `rackline.vllm.hints` reads these.
        given = {name: value for name, value in given.items() if name != "hints"}
        good = {name: value for name, value in given.items() if type(value) is fields.get(name)}
        if len(good) < len(given):
            logger.warning(
                'Rackline: kv_transfer_params of %s has {"rackline": %r}: only %r is supported',
                request.request_id,
                given,
                good,
            )
        return cls(**{**_in_words_of_nixl(params), **good})

    @staticmethod
    def answer(
        hashed: Any, blocks: int, tail_tokens: int, identity: Words, hashes_each: int
    ) -> dict[str, Any]:
        """The ``kv_transfer_params`` of a prefill's answer, which the router sends to the decode.
        ``blocks`` are units of prefixes, of ``hashes_each`` of the hashes."""
        told: dict[str, Any] = {"blocks": blocks, "identity": identity}
        if blocks:
            told["last_hash"] = _hash_of(hashed, blocks * hashes_each)
        if tail_tokens:
            told["tail_tokens"] = tail_tokens
        answer: dict[str, Any] = {"rackline": told}
        if (hashed.kv_transfer_params or {}).get(REMOTE_DECODE):
            answer.update({REMOTE_PREFILL: True, REMOTE_DECODE: False})
        return answer

    @property
    def of_a_prefill(self) -> bool:
        """Whether a prefill engine has computed the prompt."""
        return self.blocks > 0 or self.tail_tokens > 0

    def awaited(self, whole: int, tail: Tail | None) -> int:
        """How many blocks are waited for, of a prompt with so many ``whole`` ones. A prefill that is known
        by the words of another connector says nothing of a tail: it is not waited for."""
        blocks = min(self.blocks, whole)
        told = tail is not None and tail.tokens == self.tail_tokens
        return blocks + 1 if told and blocks == whole == tail.block else blocks

    def why_unusable(
        self, hashed: Any, own: Words, hashes_each: int
    ) -> tuple[str, str] | None:
        """Why this engine, whose identity is ``own``, can use none of these blocks: the name of the
        reason, and a sentence. ``None`` when that is not known."""
        if self.identity is not None and (word := difference(own, self.identity)) is not None:
            return f"identity_{word}", (
                f"the blocks of the prefill engine have {word} {self.identity[word]!r}, those of this "
                f"engine {own[word]!r}; {remedy(word)}"
            )
        hashes = self.blocks * hashes_each
        known = 0 < hashes <= len(hashed.block_hashes)
        if self.last_hash and known and self.last_hash != _hash_of(hashed, hashes):
            return "identity_block_hash", (
                "the prefill engine has other hashes for the blocks of the same prompt: give both engines "
                "the same prompt, LoRA adapter, cache_salt and --prefix-caching-hash-algo, and the same "
                "PYTHONHASHSEED where that is set"
            )
        return None


def _hash_of(hashed: Any, hashes: int) -> str:
    return bytes(hashed.block_hashes[hashes - 1]).hex()


def _in_words_of_nixl(params: dict[str, Any]) -> dict[str, Any]:
    """The fields of :class:`RouterParams` that the keys of NIXL's connector set."""
    if params.get(REMOTE_DECODE):
        return {"handover": True}
    # The router drops the key of this connector, or sends the prefill and the decode at once.
    return {"blocks": WHOLE_PROMPT} if params.get(REMOTE_PREFILL) else {}


@dataclasses.dataclass
class Awaited:
    """Blocks that a prefill is still saving, in the decode that waits for them."""

    blocks: int
    since_s: float
    looks_at_s: float = 0.0
    """Before which there is no use in looking again."""
    search: Search | None = None

    def has_come(self, index: Index, hashed: Any, now_s: float) -> bool:
        """Whether the last of them is there: they are saved in their order. Also when that cannot be
        asked."""
        if now_s < self.looks_at_s:
            return False
        if self.search is None:
            last = self.blocks
            self.search = index.look(hashed, last - 1, last, now_s, hold=False)
        found = None if self.search is None else index.found(self.search, now_s)
        if found is None:
            return False
        failed, self.search = self.search.failed, None
        self.looks_at_s = now_s + LOOK_MS / 1000
        return found > 0 or failed
