"""Rackline: a KV cache for racks of LLM servers that share CXL memory.

A process attaches to a pool, opens a session for the blocks of one model, and asks it for prefixes
by the block hashes of its engine. No call waits: each returns a transfer that is polled or waited
for. What a fetch calls valid has been checked; anything that failed is a miss with a reason.

    >>> import rackline
    >>> pool = rackline.Pool("/dev/dax0.0", node=1)
    >>> model = rackline.Model(name="Llama-3.1-8B", revision="1", dtype="bf16", block_tokens=16,
    ...                        layers=32, kv_heads=8, head_dim=128)
    >>> session = pool.session(model, block_bytes=2 << 20)
    >>> memory = rackline.block_memory(blocks_as_a_tensor)
    >>> session.publish(hashes, 0, memory, [3, 4, 5]).wait().published
    3
    >>> prefix = session.lookup(hashes, hold=True).wait()
    >>> session.fetch(prefix, memory, [7, 8, 9]).wait().valid_blocks
    3
    >>> prefix.release()

What plugs into engines is in modules of their own: ``rackline.vllm``, ``rackline.sglang`` and
``rackline.lmcache``.
"""

from rackline._native import (
    HANDLE_BYTES,
    HASH_BYTES,
    KEYLESS_HANDLE_BYTES,
    BlockMemory,
    Busy,
    Closed,
    Error,
    Fetch,
    FetchResult,
    Forked,
    Forwards,
    Gpu,
    Index,
    IndexModel,
    IndexPrefix,
    LayeredFetch,
    LayeredPublish,
    Lookup,
    MembershipLost,
    Model,
    Pool,
    Prefetch,
    PrefetchResult,
    Prefix,
    Presence,
    Publish,
    PublishResult,
    Session,
    Shares,
    clear,
    identities,
    pin,
    unpin,
)
from rackline._native import VERSION as __version__
from rackline.memory import block_memory

__all__ = [
    "HANDLE_BYTES",
    "HASH_BYTES",
    "KEYLESS_HANDLE_BYTES",
    "BlockMemory",
    "Busy",
    "Closed",
    "Error",
    "Fetch",
    "FetchResult",
    "Forked",
    "Forwards",
    "Gpu",
    "Index",
    "IndexModel",
    "IndexPrefix",
    "LayeredFetch",
    "LayeredPublish",
    "Lookup",
    "MembershipLost",
    "Model",
    "Pool",
    "Prefetch",
    "PrefetchResult",
    "Prefix",
    "Presence",
    "Publish",
    "PublishResult",
    "Session",
    "Shares",
    "block_memory",
    "clear",
    "identities",
    "pin",
    "unpin",
]
