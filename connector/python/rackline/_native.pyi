"""The native half of the package."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, TypedDict

class Error(Exception):
    """A call failed: the message says why, and what to do. The base of all exceptions of Rackline."""

class Busy(Error):
    """A queue is full: continue without the transfer, or try again later."""

class Closed(Error):
    """The pool was closed in this process."""

class MembershipLost(Error):
    """This process does not take part in the pool any more: its node was declared dead, say, or the
    memory was formatted. Every call of its sessions raises it. :meth:`Pool.close` and a new
    :class:`Pool` attach it again, once all processes of the host have closed theirs."""

class Forked(Error):
    """This process is a forked child of the process that attached: attach again in the child."""

VERSION: str
"""The version of the package and of its native half."""
HASH_BYTES: int
"""Length of a block hash in bytes."""
HANDLE_BYTES: int
"""Length of the handle of a block in bytes."""
KEYLESS_HANDLE_BYTES: int
"""Length of the handle of a block without its key in bytes."""

_Bytes = bytes | bytearray | memoryview
_Hashes = _Bytes | list[bytes]
"""Block hashes of ``HASH_BYTES`` each: in one bytes-like object, one behind the other, or in a list. For
a long prompt one object is many times as fast."""
_Found = Prefix | _Bytes | tuple[_Hashes, _Bytes]
"""Blocks that a lookup found: the prefix itself, its :meth:`Prefix.handles`, or the hashes of the blocks and
their :meth:`Prefix.keyless_handles`."""

def begin_log() -> bool:
    """Gives this process a queue of log lines, unless it has one: then the answer is ``False``."""

def next_log_line() -> tuple[int, str, str] | None:
    """The next line, waited for: its level in ``logging``, which part says it, and the text; ``None`` at
    the end."""

def end_log() -> None:
    """Ends the queue: what is in it is still given out."""

class Model:
    """Everything that decides what the bytes of a block mean. Two engines share blocks when all of
    it is equal."""

    def __init__(
        self,
        *,
        name: str,
        revision: str,
        dtype: str,
        block_tokens: int,
        layers: int,
        kv_heads: int,
        head_dim: int,
        layout_version: int = 1,
        tensor_parallel_rank: int = 0,
        tensor_parallel_size: int = 1,
    ) -> None: ...
    name: str
    revision: str
    dtype: str
    layout_version: int
    block_tokens: int
    tensor_parallel_rank: int
    tensor_parallel_size: int
    layers: int
    kv_heads: int
    head_dim: int
    @property
    def fingerprint(self) -> str:
        """What stands for all of it, as text."""

class IndexModel:
    """The blocks of one rank of a model, in an :class:`Index` (:meth:`Index.model`)."""

class IndexPrefix:
    """How long a prefix the pool has, and where its blocks lie. ``len()`` is ``blocks``."""

    blocks: int
    """Blocks from the first on of which the pool has the part of every model that was asked for."""
    nodes: dict[int, int]
    """By node, how many parts of these blocks lie there. A block has one part for each model that was
    asked for. A part that two nodes have counts for both."""
    def __len__(self) -> int: ...

class Index:
    """A read-only view of a pool for routers. It is no member: it has no node number, takes no lock and
    writes nothing that another host sees.

    An answer is a hint. Every block of the answer was complete, and its removal was not announced before
    the refresh; the block may be evicted the next moment. A refresh and a lookup take microseconds: one
    line for each node, and the rest in DRAM. Any thread may call. ``region`` is a device or a file, which is
    mapped read-only: the user needs permission to read it.

    :class:`Error` when the region was formatted again or its file was replaced: open a new index."""

    def __init__(self, region: str | PathLike[str]) -> None: ...
    @staticmethod
    def model(
        model: Model, block_bytes: int, *, tenant: str = "", salt: bytes = b""
    ) -> IndexModel:
        """Blocks as sessions with the same arguments store them (:meth:`Pool.session`)."""
    def refresh(self) -> None:
        """Takes in what all nodes announced before the call."""
    def prefix(
        self, hashes: _Hashes, *models: IndexModel, refresh: bool = True
    ) -> IndexPrefix:
        """The longest prefix of ``hashes`` of which every block is there for every one of
        ``models``: the ranks of an engine, or one model. Without ``refresh`` as of the last refresh."""
    @property
    def blocks(self) -> int:
        """Blocks of all models in the pool, as of the last refresh."""

class BlockMemory:
    """Blocks in the memory of this process, or of GPU number ``gpu``, as CUDA counts in this process
    (the index of a torch device). Block ``b`` is, for each part ``(address, stride, bytes)`` in
    order, the ``bytes`` bytes at ``address + b * stride``.

    ``layers`` says how many parts each layer has; without it a block is one layer.

    ``steps`` blocks may share a row, as the blocks of the pool do that are smaller than those of the
    engine. A part is ``(address, stride, step, bytes)`` then, at
    ``address + (b // steps) * stride + (b % steps) * step``.

    A block may have several ``cuts``, each stored in a session of its own: heads, say. ``parts`` and
    ``layers`` have those of the first cut, then those of the second. A layer is equally long in every
    cut. Transfers of such blocks are those of :class:`Shares`.

    With ``within``, the ``(address, bytes)`` of what the owner has, blocks that lie elsewhere are an
    :class:`Error`.

    The caller guarantees that this memory exists for as long as ``owner`` does. While a block is
    published nothing writes it; while a block is fetched nothing reads or writes it. Two cases differ:

    - Memory of a GPU may still be used by work that the given stream got before the transfer.
    - In a transfer by layers this holds for a layer that is ready, or has not arrived yet.

    Transfers in one process exclude one another, by address: several memories may have the same bytes.
    A row is lent as a whole.
    A second transfer of a block is an :class:`Error` when one of the two writes it. The memory belongs
    to the process that made it: a child made by ``fork`` is refused (:class:`Forked`), and makes its own.
    """

    def __init__(
        self,
        parts: Sequence[tuple[int, int, int] | tuple[int, int, int, int]],
        blocks: int,
        owner: Any,
        *,
        gpu: int | None = None,
        layers: list[int] | None = None,
        cuts: int = 1,
        steps: int = 1,
        within: list[tuple[int, int]] | None = None,
    ) -> None: ...
    @property
    def layers(self) -> int:
        """How many layers a block has."""
    @property
    def block_bytes(self) -> int:
        """Length of a cut of a block in bytes; of the block, where it has one cut."""
    @property
    def blocks(self) -> int:
        """How many blocks there are."""
    @property
    def cuts(self) -> int:
        """How many cuts a block has."""
    @property
    def steps(self) -> int:
        """How many blocks share a row."""
    @property
    def gpu(self) -> int | None:
        """The number of the GPU whose memory it is; ``None`` for memory of this process."""

class Gpu:
    """A GPU that reaches the pool (:meth:`Pool.gpu`)."""

    @property
    def number(self) -> int:
        """Its number, as CUDA counts in this process."""
    @property
    def reach(self) -> str:
        """``registered``, ``registered as memory of a device``, or ``bounced``: through a buffer, with
        a copy more by the processor."""
    @property
    def bounced_because(self) -> str | None:
        """Why it does not reach the pool straight, in the driver's words; ``None`` where it does."""
    @property
    def summing(self) -> str:
        """Who computes checksums: ``by the GPU``, of its own memory, so that a byte that changes on the way
        is noticed; or ``by the CPU``, of what the pool has."""
    @property
    def summed_by_cpu_because(self) -> str | None:
        """Why the CPU computes them; ``None`` where the GPU does."""
    def figures(self) -> dict[str, int]:
        """What it copied so far for this process: ``stored_bytes``, ``loaded_bytes``,
        ``bounced_bytes`` (those of both that went through the buffer), ``gpu_summed_bytes`` (those of both
        whose checksum the GPU computed), ``failed_payloads``. And what all GPUs of the process registered
        of the pool: ``registered_bytes`` (now), ``registrations`` and ``unregistrations`` (of pieces),
        ``refused_registrations`` (by the driver), ``registrations_over_limit`` (as transfers under way
        needed more), ``registering_ns`` (spent on that, with the first touch of pages). Also after the pool
        was closed; zeros in a forked child."""

class Quota(TypedDict, total=False):
    """How much of this node's payload a namespace may keep when room is short, for all processes of the
    host, until another one says otherwise: ``{"tenant": "a", "percent": 25}``."""

    tenant: str
    """The tenant; by default the tenant without a name."""
    salt: bytes
    """The salt of the tenant's cache; by default none."""
    bytes: int
    """The quota in bytes, below 2**63."""
    percent: int
    """Or the quota in percent of the node's payload, 100 at most."""

def check_pool_options(
    *,
    copy_threads: int | None = None,
    fetch_threads: int | None = None,
    queue_depth: int | None = None,
    high_watermark_percent: int | None = None,
    low_watermark_percent: int | None = None,
    quotas: list[Quota] = ...,
    bind_threads: bool = True,
) -> None:
    """Raises :class:`Error` for options that :class:`Pool` would refuse."""

class Pool:
    """This process, attached to the pool in the memory at ``region``, as a process of ``node``.

    Attach once a process, for all its threads. A pool is a context manager and leaves at the end. A
    child made by ``fork`` is not attached: its calls raise :class:`Forked`.

    ``copy_threads`` threads copy, 64 at most. At most ``queue_depth`` transfers wait in each queue, by
    default 256. In the background this process evicts blocks when the use of the memory is above
    ``high_watermark_percent`` (95 by default), down to ``low_watermark_percent`` (90 by default). It
    evicts blocks of namespaces over their quota first.
    """

    def __init__(
        self,
        region: str | PathLike[str],
        node: int,
        *,
        copy_threads: int | None = None,
        fetch_threads: int | None = None,
        queue_depth: int | None = None,
        high_watermark_percent: int | None = None,
        low_watermark_percent: int | None = None,
        quotas: list[Quota] = ...,
        publishes_by_layers: bool = False,
        bind_threads: bool = True,
    ) -> None:
        """``copy_threads`` (1 by default) copy both ways, and share the pieces of long
        transfers. ``fetch_threads`` (1 by default) only fetch: a publish may wait, for memory that other
        hosts grant or for the stream of a GPU, and fetches should not wait behind it.
        ``publishes_by_layers`` starts the thread for :meth:`Session.publish_by_layers`. ``bind_threads``
        binds the threads that copy to the CPUs nearest to the memory, as far as this process may use these."""

    def session(
        self,
        model: Model,
        block_bytes: int,
        *,
        tenant: str = "",
        salt: bytes = b"",
        chunk_timeout_ms: int = 2000,
        hold_ms: int = 30000,
    ) -> Session:
        """A session for the blocks of one model and namespace (``tenant`` and ``salt``).

        A publish waits at most ``chunk_timeout_ms`` for other hosts when this node needs more
        memory; what is held stays for ``hold_ms`` at most.
        """
    def identity_session(self, block_bytes: int) -> Session:
        """A session for identities in words: blocks of ``block_bytes`` bytes, each a text filled up with
        zeros, under its :func:`identity_hash`."""
    def gpu(self, number: int) -> Gpu:
        """Opens a GPU for blocks in its memory, or finds it open. Once, before the first transfer. Pieces
        of the pool are registered with the driver when they are used; with
        ``RACKLINE_CUDA_REGISTER=at-start`` in the environment as many as the limit allows here, which takes
        minutes for a large pool. Where the driver refuses, transfers take the way through a buffer, and
        :attr:`Gpu.bounced_because` says why."""
    @property
    def node(self) -> int:
        """The node that this process belongs to."""
    @property
    def share_bytes(self) -> int:
        """Bytes of the pool's memory for blocks, divided by the number of nodes of the region."""
    @property
    def has_drives(self) -> bool:
        """Whether the region has room to announce blocks on drives: then a lookup can wait for them."""
    def metrics(self) -> dict[str, Any]:
        """Counters of this process, by their names; ``misses`` counts failed fetches by reason.
        ``membership`` is ``"member"``, or why the process does not take part any more, and every call
        raises :class:`MembershipLost`: ``"declared_dead"``, ``"slot_taken"``, ``"region_replaced"`` or
        ``"content_lost"``."""
    def close(self) -> None:
        """Waits for what was taken up, and leaves the pool."""
    def __enter__(self) -> Pool: ...
    def __exit__(self, *exception: object) -> None: ...

def clear(
    region: str | PathLike[str],
    node: int,
    *,
    tenant: str | None,
    salt: bytes = b"",
    timeout_ms: int = 10000,
) -> list[int]:
    """Removes the blocks of ``tenant`` with ``salt`` from the pool and from drives, on all nodes; with
    ``None`` those of all tenants. Attaches as a process of ``node`` for the time of the call: for a process that is not attached.

    Returns the nodes that have not answered within ``timeout_ms`` and may still have blocks, there or on
    their drives, as
    ``rackline clear`` tells them. When there is none, no block is found any more that was published before
    the call. Blocks that are published meanwhile may stay, and so does what engines have in their own memory."""

def pin(
    region: str | PathLike[str],
    node: int,
    *,
    tenant: str,
    percent: int,
    length_s: int,
    salt: bytes = b"",
    timeout_ms: int = 10000,
) -> list[int]:
    """Lets the blocks of ``tenant`` with ``salt`` leave last when room is short, on all nodes, as far as they
    take ``percent`` of a node's payload (1 to 50), for ``length_s`` seconds from when the node sees the pin.
    Attaches as a process of ``node`` for the time of the call: for a process that is not attached.

    Returns the nodes that have not answered within ``timeout_ms``: they pin when they continue. A pinned block
    still leaves when there is nothing else. Where the tenant has a quota on a host, the quota stays."""

def unpin(
    region: str | PathLike[str],
    node: int,
    *,
    tenant: str,
    salt: bytes = b"",
    timeout_ms: int = 10000,
) -> list[int]:
    """Ends the pin of ``tenant`` with ``salt`` on all nodes, whichever node asked for the pin. Returns the nodes
    that have not answered within ``timeout_ms``, as ``pin`` does."""

def identities(region: str) -> list[tuple[str, int]]:
    """The identities that engines have registered in a region, each with the node that has it in its
    memory. Reads all descriptors, and needs no membership."""

def identity_hash(text: str) -> bytes:
    """The hash of the block of an identity: a text of at most 4,096 bytes."""

class Forwards:
    """When an engine computes (:meth:`Session.report_forwards`). Each call is one store to the memory of the
    host. Of use until the pool is closed."""

    def begin(self, prompt_tokens: int, prefix_tokens: int) -> None:
        """A forward begins, which computes so many tokens on others that were there before."""
    def end(self) -> None:
        """The forward is over. Does nothing when none runs."""

class Session:
    """A way to the blocks of one model and namespace, for any thread. No call waits; when a queue is
    full it raises :class:`Busy`, and nothing is changed.

    A wait without a time for one of its results does the work on the calling thread, without Python's
    lock, as far as no thread of the pool has begun it: for a small transfer that is sooner. Waits with a
    time, transfers of a GPU's memory and publishes by layers leave the work to the pool's threads."""

    @property
    def block_bytes(self) -> int:
        """Length of every block in bytes."""
    @property
    def key_space(self) -> bytes:
        """What tells the keys of its blocks from those of other sessions, in 24 bytes: for records that
        describe blocks to ``rackline events``."""
    def by_caller(self) -> Session:
        """The same session for a thread that waits at once for everything that it begins. The calling
        thread does lookups, and fetches and publishes of a few megabytes, before the call returns,
        without Python's lock, where no other thread of the process does so at the time. No other thread
        is woken for them. The threads of the pool do a publish that may wait for memory for more than 2
        seconds (``chunk_timeout_ms``)."""
    def lookup(
        self,
        hashes: _Hashes,
        *,
        hold: bool = False,
        restore_wait_ms: int = 0,
        recompute_us: int = 0,
    ) -> Lookup:
        """Looks for the longest prefix of ``hashes`` of which every block is in the pool. With
        ``hold`` its blocks stay until the result is released or dropped.

        With ``hold`` and ``restore_wait_ms`` blocks behind the pool's prefix that are on drives of hosts
        are restored, and the answer comes when they are, or after so long. ``recompute_us`` says how long
        the engine takes to compute one block: what takes longer to restore is refused at once."""
    def prefetch(self, hashes: _Hashes, *, wait_ms: int, recompute_us: int = 0) -> Prefetch:
        """Has the blocks restored that are on drives of hosts, behind the end of the pool's prefix and in the
        order of the prompt, for a lookup that comes later. Nothing is held. What does not come within
        ``wait_ms`` is not restored. A lookup finds in the pool what came, and with ``restore_wait_ms`` waits
        for what is under way: a block is asked for once."""
    def report_forwards(self) -> Forwards | None:
        """Begins to report the forwards of an engine to the agent of the host, which writes to drives
        meanwhile. ``None`` where the region has no room for drives, and where 64 engines of the host report
        already. Waits for a thread of the pool."""
    def present(self, hashes: _Hashes, *, drives: bool = False) -> Presence:
        """Asks which of ``hashes`` have their block in the pool, or with ``drives`` there or on a drive of a
        host, each one for itself. Nothing is held or restored, and no lookup is counted."""
    def publish(
        self,
        hashes: _Hashes,
        first_depth: int,
        memory: BlockMemory,
        block_ids: list[int],
        *,
        stream: int | None = None,
    ) -> Publish:
        """Publishes blocks that follow one another in a prompt, the first of them behind
        ``first_depth`` others, from the blocks ``block_ids`` of ``memory``.

        Memory of a GPU needs ``stream``: the handle of the stream that writes it
        (``torch.cuda.current_stream().cuda_stream``; 0 is the default stream). What it was given before
        this call is in what is published, although the call does not wait for it. An :class:`Error`,
        and nothing is changed, while the stream is being captured into a graph. It does not wait for
        what the stream is given later; but transfers that go the same way take turns."""
    def fetch(
        self,
        blocks: _Found,
        memory: BlockMemory,
        block_ids: list[int],
        *,
        stream: int | None = None,
    ) -> Fetch:
        """Fetches blocks that follow one another, found by this process, or by another
        (:meth:`Prefix.handles`), into the blocks ``block_ids`` of ``memory``.

        Memory of a GPU needs ``stream``, as in :meth:`publish`: what it was given before this call is
        done with the blocks before they are written. What is launched after the fetch came to its end
        finds them, on any stream."""
    def fetch_by_layers(
        self,
        blocks: _Found,
        memory: BlockMemory,
        block_ids: list[int],
        *,
        stream: int | None = None,
    ) -> LayeredFetch:
        """Fetches as :meth:`fetch`, the first layer of all blocks before the second."""
    def publish_by_layers(
        self, hashes: _Hashes, depths: list[int], memory: BlockMemory, block_ids: list[int]
    ) -> LayeredPublish:
        """Publishes blocks, each behind as many others in its prompt as ``depths`` says, as their
        layers become ready. The pool was attached with ``publishes_by_layers``. A process works on one
        such publish at a time: nothing of the next is copied before this one has ended, whichever of
        its layers are ready."""

class Shares:
    """Sessions of which each stores a cut of the same blocks (:class:`BlockMemory`), in the order of the cuts.
    They differ in nothing but their models. No call waits, as with :class:`Session`.

    A transfer has all cuts of a block, and then those of the next: it waits in a queue as one, and what has
    room is whole blocks. Each session looks up its own."""

    def __init__(self, sessions: list[Session]) -> None: ...
    def __len__(self) -> int:
        """How many sessions there are."""
    def publish(
        self,
        hashes: _Hashes,
        first_depth: int,
        memory: BlockMemory,
        block_ids: list[int],
        *,
        stream: int | None = None,
    ) -> Publish:
        """As :meth:`Session.publish`. The result has the outcome of each cut of the first block, then
        those of the second."""
    def fetch(
        self,
        blocks: list[_Found],
        memory: BlockMemory,
        block_ids: list[int],
        *,
        stream: int | None = None,
    ) -> Fetch:
        """As :meth:`Session.fetch`, with what each session found: equally many blocks. A block is valid
        where all of its cuts are."""
    def fetch_by_layers(
        self,
        blocks: list[_Found],
        memory: BlockMemory,
        block_ids: list[int],
        *,
        stream: int | None = None,
    ) -> LayeredFetch:
        """As :meth:`fetch`, the first layer of all cuts of all blocks before the second."""
    def publish_by_layers(
        self, hashes: _Hashes, depths: list[int], memory: BlockMemory, block_ids: list[int]
    ) -> LayeredPublish:
        """As :meth:`Session.publish_by_layers`: a layer is ready in all cuts. The result is as that of
        :meth:`publish`."""

class Lookup:
    """A lookup under way. Its result is had once."""

    def poll(self) -> Prefix | None:
        """The prefix, or ``None`` while it is under way."""
    def wait(self, timeout_ms: int | None = None) -> Prefix | None:
        """The prefix, or ``None`` when it takes longer than that. Ctrl-C ends it."""

class Prefetch:
    """Blocks on drives that are restored ahead of a lookup. Dropping it takes nothing back."""

    def wait(self, timeout_ms: int | None = None) -> PrefetchResult | None:
        """What it took up, as often as it is asked; ``None`` when that is not known within the time. Does not
        wait for the blocks. Ctrl-C ends it. An :class:`Error` when it was taken back before it began."""
    def cancel(self) -> None:
        """Takes it back: what has not come, and nothing else waits for, is not restored."""

class PrefetchResult:
    """What a prefetch took up. The numbers add up to the blocks that were given."""

    @property
    def asked(self) -> int:
        """Blocks on drives that are asked for: at once, or as soon as earlier ones are answered."""
    @property
    def under_way(self) -> int:
        """Blocks on drives that another prefetch of this process has asked for."""
    @property
    def in_pool(self) -> int:
        """Blocks that are in the pool."""
    @property
    def not_asked(self) -> int:
        """All others: they are behind the end of what can be restored in order."""
    @property
    def reason(self) -> str | None:
        """Why: ``prefetch_absent``, ``prefetch_no_agent``, ``prefetch_no_wait`` or ``prefetch_full``."""
    @property
    def message(self) -> str | None:
        """The same for people."""

class Presence:
    """A question under way: which blocks are in the pool. Its result is had once."""

    def wait(self, timeout_ms: int | None = None) -> bytes | None:
        """One byte a block, 1 for a block that is in the pool and 0 for another; ``None`` when it takes
        longer than that. Ctrl-C ends it."""

class Prefix:
    """The blocks that a lookup found, from the first on. A context manager: they are released at its
    end."""

    def __len__(self) -> int: ...
    def handles(self) -> bytes:
        """The handles of the blocks, of ``HANDLE_BYTES`` each, one behind the other. Any process of the
        rack can fetch with them."""
    def keyless_handles(self) -> bytes:
        """The handles without their keys, of ``KEYLESS_HANDLE_BYTES`` each: a third of the bytes. A session of
        the same model, tenant and block length makes the keys of the hashes. Under another hash or session a
        block is a miss."""
    @property
    def held(self) -> bool:
        """Whether the blocks are held."""
    @property
    def on_drives(self) -> int:
        """Blocks of the prefix that were on drives when a lookup with ``restore_wait_ms`` began."""
    @property
    def restored(self) -> int:
        """How many of those were restored and are held."""
    @property
    def reason(self) -> str | None:
        """Why the block behind these was found and is not held: a label of the misses of
        :meth:`Pool.metrics`, ``too_many_held``, ``declared_dead``, or ``restore_`` and why a block on a drive
        did not come. ``None`` when all that were found are held."""
    @property
    def message(self) -> str | None:
        """The same for people."""
    def release(self) -> None:
        """Lets the blocks go: the pool may evict them soon. Does not wait for that."""
    def __enter__(self) -> Prefix: ...
    def __exit__(self, *exception: object) -> None: ...

class Publish:
    """A publish under way. Its result is had once."""

    def cancel(self) -> bool:
        """Revokes the publish if nothing of it was begun, and says so; it has no result then."""
    def poll(self) -> PublishResult | None:
        """The result, or ``None`` while it is under way."""
    def wait(self, timeout_ms: int | None = None) -> PublishResult | None:
        """The result, or ``None`` when it takes longer than that. Ctrl-C ends it, within 2 seconds."""

class PublishResult:
    """What became of the blocks of a publish."""

    published: int
    """Blocks that every host can find now, because of this call."""
    already_there: int
    """Blocks that were there already, or are being written by another publish of this host, which may
    yet fail or be aborted."""
    outcomes: list[str]
    """For each block: ``published``, ``already_there``, ``aborted`` (of a publish by layers, all of its
    blocks), or a short name of why it is not in the pool: ``longer_than_chunk``, ``segment_full`` (the
    descriptors of this node are used up), ``no_chunk`` (the pool is full), ``chunk_lock`` (the lock of
    the region's chunks was not acquired), ``declared_dead``, ``outrun``, ``copy``, ``taken_away`` or
    ``memory_failed`` (the device reported an error)."""
    messages: dict[str, str]
    """For each of these names the sentence that says so, with numbers, of the first such block."""

class Fetch:
    """A fetch under way. Its result is had once."""

    def poll(self) -> FetchResult | None:
        """The result, or ``None`` while it is under way."""
    def wait(self, timeout_ms: int | None = None) -> FetchResult | None:
        """The result, or ``None`` when it takes longer than that. Ctrl-C ends it."""

class FetchResult:
    """How much of a fetch is good."""

    valid_blocks: int
    """Blocks, from the first on, that have their right bytes. The content of the others is undefined."""
    reason: str | None
    """Why the next one is not good: a label of the misses of :meth:`Pool.metrics`, or ``copy`` when
    the bytes could not be copied. ``None`` when all are good."""
    message: str | None
    """The same for people."""

class LayeredFetch:
    """A fetch by layers under way."""

    def wait_layer(self, layer: int, timeout_ms: int | None = None) -> bool:
        """Waits until a layer is in all blocks of memory, where it may be used from then on, on a GPU by
        what is launched from then on; ``False`` when it takes longer than that. Whether it is good is
        known when the whole fetch is done.
        :class:`Error` when the fetch ended without that layer. Ctrl-C ends it."""
    def poll(self) -> FetchResult | None:
        """The result, or ``None`` while it is under way. It is had once."""
    def wait(self, timeout_ms: int | None = None) -> FetchResult | None:
        """The result, or ``None`` when it takes longer than that. Ctrl-C ends it."""

class LayeredPublish:
    """A publish by layers under way. Dropping it aborts it, and so does closing the pool."""

    def layer_ready(self, layer: int, *, stream: int | None = None) -> None:
        """Says that a layer is ready in all blocks, and stays as it is. In any order.

        Memory of a GPU needs ``stream``, as in :meth:`Session.publish`: the layer is ready when the
        stream has done what it was given before this call, which does not wait for it. While the stream
        is being captured into a graph it is an :class:`Error`, and the publish is aborted."""
    def finish(self) -> None:
        """Says that all layers are ready, and that the blocks are to be found from now on. Where a layer
        of a GPU's memory was not said to be ready, with its stream, the publish is aborted."""
    def abort(self) -> None:
        """Says that nothing is to be published. Its result says when the memory is not read any
        more."""
    def poll(self) -> PublishResult | None:
        """The result, or ``None`` while it is under way. It is had once, after :meth:`finish` or
        :meth:`abort`, or when closing the pool has aborted it."""
    def wait(self, timeout_ms: int | None = None) -> PublishResult | None:
        """The result, or ``None`` when it takes longer than that. Ctrl-C ends it.

        A process works on one publish by layers at a time: there is no result before all that it began
        earlier have ended, by :meth:`finish`, :meth:`abort`, or closing the pool."""
