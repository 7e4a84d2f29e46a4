"""Hashes of a request's tokens that vLLM has not made itself, by vLLM's own functions.

An engine that stores shorter blocks than its own (`stored_block_tokens`) needs their hashes, and vLLM makes
those of its own blocks only. A *chain* has the hashes that an engine with such short blocks has: they are
equal, so both find the blocks of each other.

The hashes of a long prompt take tens of milliseconds. A thread makes them, while the scheduler turns to
other requests. It makes a slice of each prompt in turns, so no prompt waits for the whole of a longer one.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rackline.vllm.groups import Groups

logger = logging.getLogger(__name__)

# Hashes that are made at once, with the GIL held: half a millisecond. The thread makes those of more.
SLICE = 64


class Hashed:
    """A request, as its own attributes say it, with other hashes of its tokens."""

    def __init__(self, request: Any, block_hashes: Sequence[bytes]) -> None:
        self._request = request
        self.block_hashes = block_hashes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class Chain(Hashed):
    """A request, with the hashes of its tokens in blocks of another length. For any thread."""

    def __init__(self, request: Any, tokens: int, hasher: Callable[[Any], list[bytes]]) -> None:
        super().__init__(request, [])
        self._tokens, self._hasher = tokens, hasher
        self._changed = threading.Lock()
        self._is_broken = False
        """Whether the hashes end where they are."""
        self.waits = False
        """Whether the thread is to make hashes of it."""

    def missing(self, tokens: int) -> int:
        """Hashes that are not made of the first ``tokens``."""
        if self._is_broken:
            return 0
        return min(tokens, self._request.num_tokens) // self._tokens - len(self.block_hashes)

    def grow(self, tokens: int) -> None:
        """Makes the next hashes of the first ``tokens``: a slice."""
        with self._changed:
            count = min(SLICE, self.missing(tokens))
            if count <= 0:
                return
            # vLLM's hasher goes on behind the hashes that are there, to the end of the tokens.
            part = Hashed(self._request, self.block_hashes)
            part.num_tokens = (len(self.block_hashes) + count) * self._tokens
            try:
                self.block_hashes.extend(self._hasher(part))
            except Exception:
                self._is_broken = True
                logger.exception("Rackline: the rest of a request has no hashes, and is not shared")


class Chains:
    """Those of an engine's requests."""

    def __init__(self, vllm_config: Any, groups: Groups) -> None:
        self._cache_config, self._groups = vllm_config.cache_config, groups
        self._hasher: Callable[[Any], list[bytes]] | None = None
        self._waiting: collections.deque[tuple[Chain, int]] = collections.deque()
        self._changed = threading.Lock()
        self._thread: threading.Thread | None = None
        """Lives while a chain waits."""

    def of(self, request: Any) -> Any:
        """What has the hashes of a request's stored blocks: the request itself, where these are the
        engine's own blocks."""
        if self._groups.groups[0].steps == 1:
            return request
        if self._hasher is None:
            from vllm.utils.hashing import get_hash_fn_by_name
            from vllm.v1.core.kv_cache_utils import get_request_block_hasher

            function = get_hash_fn_by_name(self._cache_config.prefix_caching_hash_algo)
            self._hasher = get_request_block_hasher(self._groups.unit_tokens, function)
        chain = Chain(request, self._groups.unit_tokens, self._hasher)
        self.are_made(chain, request.num_prompt_tokens)
        return chain

    def are_made(self, hashed: Any, tokens: int) -> bool:
        """Whether the hashes of a request's first ``tokens`` are there. If they are many the thread makes
        them from now on."""
        if not isinstance(hashed, Chain):
            return True
        if hashed.missing(tokens) > SLICE:
            self._make_in_thread(hashed, tokens)
            return False
        self.make(hashed, tokens)
        return True

    def make(self, hashed: Any, tokens: int) -> None:
        """Makes the hashes of a request's first ``tokens``."""
        while isinstance(hashed, Chain) and hashed.missing(tokens) > 0:
            hashed.grow(tokens)

    def _make_in_thread(self, chain: Chain, tokens: int) -> None:
        with self._changed:
            if chain.waits:
                return
            chain.waits = True
            self._waiting.append((chain, tokens))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._make_all, name="rackline-hashes", daemon=True
                )
                self._thread.start()

    def _make_all(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    return
                chain, tokens = self._waiting.popleft()
            if not chain.is_finished():
                chain.grow(tokens)
            # The scheduler gets the GIL here, and not milliseconds later.
            time.sleep(0)
            with self._changed:
                chain.waits = chain.missing(tokens) > 0 and not chain.is_finished()
                if chain.waits:
                    self._waiting.append((chain, tokens))


def hash_of_tokens(
    algorithm: str, request: Any, parent: bytes | None, first: int, end: int
) -> bytes:
    """vLLM's hash of the tokens ``first`` to ``end`` of a request, behind those whose hash is ``parent``: as
    of a block that ends there."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, hash_block_tokens

    # What else is in the hash: adapter, images, salt.
    extra_keys, _ = generate_block_hash_extra_keys(request, first, end, 0)
    return hash_block_tokens(
        get_hash_fn_by_name(algorithm), parent, request.all_token_ids[first:end], extra_keys
    )
