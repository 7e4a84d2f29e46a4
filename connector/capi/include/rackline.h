/* Rackline: a KV cache in memory that several hosts share over CXL.
 *
 * Generated from connector/capi/src/session by cbindgen: edit the Rust sources, not this file.
 *
 * A process attaches to a pool, opens a session for the blocks of one model, and asks it for prefixes
 * by the block hashes of its engine. Only these calls wait for the pool: rackline_pool_attach,
 * rackline_pool_close, rackline_gpu_open, rackline_clear, rackline_clear_all, rackline_pin,
 * rackline_unpin, and calls with "wait" or "free" in their names. Lookups, publishes and fetches are
 * transfers, which threads of the library carry out. A block that a fetch
 * calls valid has been checked; every failure is a miss with a reason.
 *
 * Threads. Every function may be called from any thread, with any handle, also while other threads
 * use or free that. Calls of one thread are not carried out in order: wait for a publish before you
 * look up what it published. rackline_error_message is of the calling thread.
 *
 * Handles. They are numbers: 0 is none, and freeing 0 does nothing. A handle that is freed twice, used
 * after it was freed, or of another kind returns RACKLINE_ERROR_BAD_HANDLE. Free every handle once, also
 * the handle of a transfer whose result was taken.
 *
 * Memory. The memory of a publish or a fetch is lent to it until it is over: a wait or poll returned
 * RACKLINE_ERROR_OK or RACKLINE_ERROR_NO_RESULT, a cancel said that it was revoked, or a free
 * returned. Texts and arrays of other calls are not needed after the call.
 *
 * Layers. An engine that computes layer by layer also publishes and fetches by layers: see
 * rackline_publish_by_layers and rackline_fetch_by_layers. The memory of such a transfer is lent to it
 * for as long, with one difference. The program may write a layer that is published until it says that
 * the layer is ready, and use a layer that is fetched from when rackline_layered_fetch_wait_layer
 * returned RACKLINE_ERROR_OK for it. A wait for a layer does not end the transfer.
 *
 * Membership. RACKLINE_ERROR_MEMBERSHIP_LOST means that this attachment is over: close the pool and
 * attach again. No other code means that. The node of this process was declared dead, or the memory
 * was formatted again. No call of these sessions succeeds after that.
 *
 * GPUs. Blocks are also published from the memory of an NVIDIA GPU, and fetched into it, in the order of
 * the engine's stream: see rackline_gpu_open, and the calls with "gpu" in their names. Such a publish or
 * fetch is waited for, polled, cancelled and freed like any other.
 *
 * Processes. A child made by fork is not attached. A handle of its parent returns RACKLINE_ERROR_FORKED
 * in the child, or RACKLINE_ERROR_BAD_HANDLE once the child has attached by itself. Call
 * rackline_pool_close before the process ends. A process that ends without counts as dead, and other
 * processes of its host clean up after it.
 */

#ifndef RACKLINE_H
#define RACKLINE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// A wait without a limit, in milliseconds.
#define RACKLINE_FOREVER_MS UINT64_MAX

// What a call returned. Zero is success; `rackline_error_message` says what was wrong and what to
// do.
typedef enum {
  // Done.
  RACKLINE_ERROR_OK = 0,
  // An argument is null, not a text, out of range, or does not fit the others.
  RACKLINE_ERROR_BAD_ARGUMENT = -1,
  // A handle is not open in this process (it was freed, or never made), or is one of another
  // kind.
  RACKLINE_ERROR_BAD_HANDLE = -2,
  // The pool cannot be opened or joined, or the memory is not a pool. Or the pool was attached
  // without the option that the call needs (`publishes_by_layers`).
  RACKLINE_ERROR_POOL = -3,
  // The queue is full. Nothing is changed. Continue without the transfer, or try again later.
  RACKLINE_ERROR_BUSY = -4,
  // The pool was closed in this process.
  RACKLINE_ERROR_CLOSED = -5,
  // This process is a child made by `fork`, and only its parent is attached. It may attach by
  // itself.
  RACKLINE_ERROR_FORKED = -6,
  // The transfer is still under way: wait again, or poll later.
  RACKLINE_ERROR_UNDER_WAY = -7,
  // The transfer has no result: the result was already taken, the transfer was cancelled, or its
  // thread panicked and said so on standard error. Of a wait for a layer: the layer does not
  // arrive any more.
  RACKLINE_ERROR_NO_RESULT = -8,
  // A mistake in this library, reported on standard error. The work of the call may be half done
  // in this process. The pool is as consistent as after the death of a process.
  RACKLINE_ERROR_PANICKED = -9,
  // Memory of this transfer is lent to another transfer, and one of the two writes it. Nothing
  // is changed. Wait for the other transfer, or free it.
  RACKLINE_ERROR_LENT = -10,
  // The GPU cannot be used, or is not open in the pool of the session. Or the copy cannot be
  // ordered after the stream, for example because the stream is being captured into a graph.
  // Nothing is changed.
  RACKLINE_ERROR_GPU = -11,
  // This attachment is over: close the pool and attach again. This process has lost its
  // membership, for example because its node was declared dead, and every call of its sessions
  // fails. Attaching works when all processes of the host have closed their pools.
  RACKLINE_ERROR_MEMBERSHIP_LOST = -12,
} RacklineError;

// Why a prefix was not fetched, held, restored from drives, or prefetched, to its end. Always harmless: the engine computes the rest
// itself.
typedef enum {
  // Nothing is missing.
  RACKLINE_REASON_NONE = 0,
  // The block was removed.
  RACKLINE_REASON_ABSENT = 1,
  // The block made room for others.
  RACKLINE_REASON_EVICTED = 2,
  // The block is still being written, or just being removed.
  RACKLINE_REASON_NOT_READY = 3,
  // The block's owner is dead, and the block is not in the pool.
  RACKLINE_REASON_OWNER_DEAD = 4,
  // The block is on a drive of its owner.
  RACKLINE_REASON_SPILLED = 5,
  // This process has failed to read the block before.
  RACKLINE_REASON_QUARANTINED = 6,
  // The block was replaced by a later one.
  RACKLINE_REASON_STALE_GENERATION = 7,
  // The descriptor is that of another block.
  RACKLINE_REASON_WRONG_KEY = 8,
  // The block is of another model, or of other tokens with a key that collides.
  RACKLINE_REASON_KEY_COLLISION = 9,
  // The block has another length.
  RACKLINE_REASON_WRONG_LENGTH = 10,
  // The descriptor is torn or damaged.
  RACKLINE_REASON_TORN = 11,
  // The descriptor, or the handle, names something outside the region.
  RACKLINE_REASON_MALFORMED = 12,
  // The block was removed or replaced while it was read.
  RACKLINE_REASON_CHANGED = 13,
  // The payload is damaged: its checksum differs.
  RACKLINE_REASON_CHECKSUM = 14,
  // The bytes could not be copied. The block itself may be good.
  RACKLINE_REASON_COPY = 15,
  // The processes of this host hold as many blocks as there is room for.
  RACKLINE_REASON_TOO_MANY_HELD = 16,
  // This node was declared dead: nothing of it may be written any more.
  RACKLINE_REASON_DECLARED_DEAD = 17,
  // The block has left its drive meanwhile.
  RACKLINE_REASON_RESTORE_UNKNOWN = 18,
  // The block on the drive is damaged, and was removed.
  RACKLINE_REASON_RESTORE_DAMAGED = 19,
  // The drive cannot restore the block in time, or computing it is faster.
  RACKLINE_REASON_RESTORE_TOO_LATE = 20,
  // The queue of the drive's agent is full.
  RACKLINE_REASON_RESTORE_BUSY = 21,
  // The pool has no room for the block.
  RACKLINE_REASON_RESTORE_NO_ROOM = 22,
  // The agent of the drive stopped.
  RACKLINE_REASON_RESTORE_STOPPED = 23,
  // The wait was over before the block came.
  RACKLINE_REASON_RESTORE_LATE = 24,
  // The agent of the drive's host does not answer.
  RACKLINE_REASON_RESTORE_NO_AGENT = 25,
  // Too many requests to the drive's host were unanswered until the wait was over.
  RACKLINE_REASON_RESTORE_REQUESTS_FULL = 26,
  // The block was restored, and evicted before it was held.
  RACKLINE_REASON_RESTORE_EVICTED_AGAIN = 27,
  // The pool was closed meanwhile.
  RACKLINE_REASON_RESTORE_CLOSED = 28,
  // The memory of the payload failed: the device reported an error that it cannot correct.
  RACKLINE_REASON_MEMORY_FAILED = 29,
  // The block is neither in the pool nor on a drive.
  RACKLINE_REASON_PREFETCH_ABSENT = 30,
  // No agent of this host lives, so nothing is known of drives.
  RACKLINE_REASON_PREFETCH_NO_AGENT = 31,
  // The options say that drives are not asked.
  RACKLINE_REASON_PREFETCH_NO_WAIT = 32,
  // The prefetches of this process have as much under way as they may.
  RACKLINE_REASON_PREFETCH_FULL = 33,
} RacklineReason;

// How a GPU reaches the pool.
typedef enum {
  // Straight: the pool is registered with the driver as memory.
  RACKLINE_GPU_REACH_REGISTERED = 0,
  // Straight: it is registered as memory of a device.
  RACKLINE_GPU_REACH_REGISTERED_AS_DEVICE = 1,
  // Through a pinned buffer, with a copy more by the processor: it could not be registered.
  RACKLINE_GPU_REACH_BOUNCED = 2,
} RacklineGpuReach;

// What became of a block that was published.
typedef enum {
  // Every host can find and read it.
  RACKLINE_OUTCOME_PUBLISHED = 0,
  // It was in the pool already, or is being written by this host.
  RACKLINE_OUTCOME_ALREADY_THERE = 1,
  // Blocks of this length cannot be: they are longer than a chunk of the region.
  RACKLINE_OUTCOME_LONGER_THAN_CHUNK = 2,
  // The descriptors of this node are used up.
  RACKLINE_OUTCOME_SEGMENT_FULL = 3,
  // No memory is free, and no more was available from the region.
  RACKLINE_OUTCOME_NO_CHUNK = 4,
  // This node was declared dead: nothing of it may be written any more.
  RACKLINE_OUTCOME_DECLARED_DEAD = 5,
  // Other processes of this host took the free memory first. Publish it again.
  RACKLINE_OUTCOME_OUTRUN = 6,
  // Its bytes could not be copied. Nothing of it is visible.
  RACKLINE_OUTCOME_COPY = 7,
  // Other processes of this host believed this one dead and took the block away.
  RACKLINE_OUTCOME_TAKEN_AWAY = 8,
  // No memory is free, and the lock of the region's chunks was not acquired in time. Is a lock
  // manager running?
  RACKLINE_OUTCOME_CHUNK_LOCK = 9,
  // The memory for its bytes failed: the device reported an error that it cannot correct.
  RACKLINE_OUTCOME_MEMORY_FAILED = 10,
  // This node is drained: it publishes no new blocks (`rackline drain`).
  RACKLINE_OUTCOME_DRAINED = 11,
  // The publish by layers was aborted: none of its blocks is in the pool because of it.
  RACKLINE_OUTCOME_ABORTED = 12,
} RacklineOutcome;

// How much of this node's payload a namespace may keep when room is short. While there is room
// nobody is kept from using it. For all processes of the host, until another one says otherwise.
typedef struct {
  // The tenant; null is the one without a name.
  const char *tenant;
  // The salt of the tenant's cache: `salt_bytes` bytes.
  const uint8_t *salt;
  // Length of the salt in bytes.
  size_t salt_bytes;
  // So many bytes, from 1 to 2^63 - 1, when `percent` is 0; else 0.
  uint64_t bytes;
  // So many percent of the node's payload, from 1 to 100, when `bytes` is 0; else 0.
  uint16_t percent;
} RacklineQuota;

// How a process transfers, and keeps its node's part of the pool. What is zero has its default.
typedef struct {
  // Threads that copy, 64 at most. One fills most of what a processor can copy, and is the
  // default.
  uint32_t copy_threads;
  // Transfers that wait in each queue at most, 1048576 at most; by default 256.
  uint32_t queue_depth;
  // Above how many percent of use this process begins to evict in the background; by default
  // 95, 100 at most. Of payload only when the region has no free memory left.
  uint16_t high_watermark_percent;
  // Down to how many percent it evicts then; by default 90, below the high one.
  uint16_t low_watermark_percent;
  // Threads beside them that take fetches only, 64 at most; by default one. A publish may wait,
  // for other hosts when its node needs memory, or for the work of a GPU's stream, and fetches
  // need not wait behind it.
  uint16_t fetch_threads;
  // 1: threads that copy use all CPUs of the process. 0: they are bound to the CPUs nearest to the
  // pool's memory, as far as the process may use these, and the log says which.
  uint8_t unbound_threads;
  // 1: publishes by layers are possible (`rackline_publish_by_layers`), by a thread for them. 0:
  // they are refused.
  uint8_t publishes_by_layers;
  // Quotas of namespaces: `quota_count` of them, 64 at most, each for another namespace.
  const RacklineQuota *quotas;
  // How many there are.
  size_t quota_count;
} RacklinePoolOptions;

// This process, attached to a pool. Zero is none.
typedef struct {
  // Its number.
  uint64_t handle;
} RacklinePool;

// Whose blocks: a tenant, and the salt of its cache.
typedef struct {
  // The tenant; null is the one without a name.
  const char *tenant;
  // The salt of the tenant's cache: `salt_bytes` bytes.
  const uint8_t *salt;
  // Length of the salt in bytes.
  size_t salt_bytes;
} RacklineNamespace;

// Everything that decides what the bytes of a block mean. Two engines share blocks when all of it
// is equal.
typedef struct {
  // Name of the model.
  const char *name;
  // Revision of its weights.
  const char *revision;
  // Type of the elements, as the engine calls it.
  const char *dtype;
  // Version of the order of the bytes in a block, which the engine defines. 0 stands for 1.
  uint32_t layout_version;
  // Tokens in a block.
  uint32_t block_tokens;
  // Which part of the heads this engine holds, from 0.
  uint32_t tensor_parallel_rank;
  // In how many parts the heads are divided. 0 stands for 1.
  uint32_t tensor_parallel_size;
  // Layers with KV.
  uint32_t layers;
  // KV heads of a layer, over all parts.
  uint32_t kv_heads;
  // Elements of a head.
  uint32_t head_dim;
} RacklineModel;

// The tenant whose blocks a session shares, and how long the session waits. A zero stands for the
// default.
typedef struct {
  // The tenant; null is the one without a name.
  const char *tenant;
  // The salt of the tenant's cache: `salt_bytes` bytes.
  const uint8_t *salt;
  // Length of the salt in bytes.
  size_t salt_bytes;
  // How long a publish waits for other hosts when this node needs more memory, in milliseconds;
  // by default 2000.
  uint64_t chunk_timeout_ms;
  // The longest time that a block is held, in milliseconds: by default 30000, at most 2097088
  // (35 minutes).
  uint64_t hold_ms;
} RacklineSessionOptions;

// A way to the blocks of one model and namespace. Zero is none.
typedef struct {
  // Its number.
  uint64_t handle;
} RacklineSession;

// The engine's hash of a block and of all blocks before it: same prefix, same hash. Engines
// without hashes of their own make them with `rackline_chain_hashes`.
typedef struct {
  // Its bytes.
  uint8_t bytes[32];
} RacklineBlockHash;

// A lookup under way, or a hold. Zero is none.
typedef struct {
  // Its number.
  uint64_t handle;
} RacklineLookup;

// How long a lookup waits for blocks on drives, or how long a prefetch asks for them.
typedef struct {
  // Milliseconds that agents have, in all. 0: drives are not asked.
  uint32_t wait_ms;
  // Microseconds that the engine takes to compute one block: what takes longer to restore is
  // refused at once. 0: not known.
  uint32_t recompute_us;
} RacklineRestoreOptions;

// Names a block that was found. Any process of the rack may fetch or hold the block by it. Wrong
// bytes do no harm: the named block is checked, and a block that is gone is a miss.
typedef struct {
  // Its bytes.
  uint8_t bytes[34];
} RacklineBlockHandle;

// The blocks that a lookup found, from the first of the prompt on. Zero is none.
typedef struct {
  // Its number.
  uint64_t handle;
} RacklinePrefix;

// What a lookup found.
typedef struct {
  // The blocks that were found, from the first on; also when there are none. To be freed.
  RacklinePrefix prefix;
  // How many they are.
  size_t blocks;
  // Why the block after those is not held, or was not restored from its drive; none when all that
  // were found are, or the lookup did not hold.
  RacklineReason reason;
  // Blocks of the prefix that were on drives when the lookup began; 0 where it asked no drives.
  size_t on_drives;
  // How many of those were restored, and are held.
  size_t restored;
} RacklineLookupResult;

// A prefetch. Zero is none.
typedef struct {
  // Its number.
  uint64_t handle;
} RacklinePrefetch;

// What a prefetch took up. The numbers add up to the blocks that were given.
typedef struct {
  // Blocks on drives that are asked for: at once, or as soon as earlier ones are answered.
  size_t asked;
  // Blocks on drives that another prefetch of this process has asked for.
  size_t under_way;
  // Blocks that are in the pool.
  size_t in_pool;
  // All others: they are behind the end of what can be restored in order.
  size_t not_asked;
  // Why; none when there are none.
  RacklineReason reason;
} RacklinePrefetchResult;

// A GPU that is open in a pool. Zero is none.
typedef struct {
  // Its number, which is not that of the GPU.
  uint64_t handle;
} RacklineGpu;

// What a GPU copied so far, in all sessions of the pool.
typedef struct {
  // Bytes that came into the pool.
  uint64_t stored_bytes;
  // Bytes that came out of it.
  uint64_t loaded_bytes;
  // How many of both went through the buffer.
  uint64_t bounced_bytes;
  // How many of both have a checksum that the GPU computed, of its own memory. Of the others a byte
  // that changes between the GPU and the pool is not noticed.
  uint64_t gpu_summed_bytes;
  // Blocks that the driver failed to copy.
  uint64_t failed_payloads;
  // Bytes of the pool that are registered with the driver now. This and what follows is of all GPUs
  // that the process has open in the pool.
  uint64_t registered_bytes;
  // Pieces of the pool that were registered.
  uint64_t registrations;
  // Those of them that were unregistered again.
  uint64_t unregistrations;
  // Pieces that the driver refused to register: blocks there go through the buffer.
  uint64_t refused_registrations;
  // Registrations above the limit: transfers under way needed more than that.
  uint64_t registrations_over_limit;
  // Nanoseconds that threads spent to register and to unregister, with the first touch of pages.
  uint64_t registering_ns;
} RacklineGpuFigures;

// A part of a block that is published. It must not change until the publish is over; of a publish
// by layers, from when its layer is ready.
typedef struct {
  // Where it starts: in memory of this process, or of the GPU that it is published from.
  const void *address;
  // Its length in bytes, at least 1.
  size_t bytes;
} RacklineSource;

// A publish under way. Zero is none.
typedef struct {
  // Its number.
  uint64_t handle;
} RacklinePublish;

// How many blocks of a publish are in the pool. When some are missing `rackline_error_message`
// says why the first of them is.
typedef struct {
  // Blocks that every host can find now, because of this call.
  size_t published;
  // Blocks that were there already.
  size_t already_there;
} RacklinePublishResult;

// A part of a block that is fetched. The program neither reads nor writes it until the fetch is
// over; of a fetch by layers, until its layer has arrived.
typedef struct {
  // Where it starts: in memory of this process, or of the GPU that it is fetched into.
  void *address;
  // Its length in bytes, at least 1.
  size_t bytes;
} RacklineDestination;

// A fetch under way. Zero is none.
typedef struct {
  // Its number.
  uint64_t handle;
} RacklineFetch;

// How much of a fetch is good.
typedef struct {
  // Blocks, from the first on, that have their right bytes. The content of the others is
  // undefined.
  size_t valid_blocks;
  // Why the next one is not good; none when all are. `rackline_error_message` says it for
  // people.
  RacklineReason reason;
} RacklineFetchResult;

// How the parts of each block are divided into layers: the first parts are those of layer 0, the
// next ones those of layer 1, and so on. A layer has the same length in all blocks of a transfer.
typedef struct {
  // How many layers a block has, from 1 to 65536.
  size_t count;
  // How many parts each layer has: `count` numbers of at least 1, whose sum is the number of
  // parts of a block. Null: all layers have equally many parts.
  const size_t *parts_of_layer;
} RacklineLayers;

// A publish by layers under way. Zero is none.
typedef struct {
  // Its number.
  uint64_t handle;
} RacklineLayeredPublish;

// A fetch by layers under way. Zero is none.
typedef struct {
  // Its number.
  uint64_t handle;
} RacklineLayeredFetch;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What was wrong in the last such call of this thread: a text, empty when there was none. Such a
// call returned an error, or a result with missing blocks (a hold, `RacklinePublishResult`,
// `RacklineFetchResult`; not a lookup that finds fewer), or said that a GPU uses a buffer
// (`rackline_gpu_reach`). The text stays valid until the next such call of the same thread.
const char *rackline_error_message(void);

// The name of an error code, as in this header: `"RACKLINE_ERROR_BUSY"`, say. The text stays
// valid. For a number that is not a code it is `"RACKLINE_ERROR_UNKNOWN"`.
const char *rackline_error_name(int32_t code);

// Attaches this process to the pool in the memory at `region` (a devdax device or a file) as one
// of node `node`, and starts its threads. Every host of the rack has a node number of its own,
// from 0, and its processes share it; a single host is node 0. Without `options` (null) all have
// their defaults.
//
// Attach once a process, for all its threads.
//
// # Safety
// `region` is null or points to a text that ends with a NUL; `options` is null or points to
// options, whose quotas are null or as many as they say, each with a tenant that is null or ends
// with a NUL, and a salt that is null or has its length; `pool` is null or points to a handle that
// nothing else uses during the call.
RacklineError rackline_pool_attach(const char *region,
                                   uint16_t node,
                                   const RacklinePoolOptions *options,
                                   RacklinePool *pool);

// Accepts no more work, waits for accepted work, leaves the pool, and frees its handle. Remaining
// sessions and transfers are still to be freed; every call of such a session returns
// `RACKLINE_ERROR_CLOSED`. A pool that is zero is ignored.
RacklineError rackline_pool_close(RacklinePool pool);

// The node that this process belongs to.
//
// # Safety
// `node` is null or points to a number that nothing else uses during the call.
RacklineError rackline_pool_node(RacklinePool pool, uint16_t *node);

// The counter `name` of this process since it attached: `"lookup_hits"`, say, or
// `"misses.evicted"`. `rackline_pool_metrics` lists them all. `"membership_lost"` is 1 once this
// process has lost its membership, and every call fails (`RACKLINE_ERROR_MEMBERSHIP_LOST`).
//
// # Safety
// `name` is null or points to a text that ends with a NUL; `value` is null or points to a number
// that nothing else uses during the call.
RacklineError rackline_pool_metric(RacklinePool pool, const char *name, uint64_t *value);

// All counters of this process since it attached, as a text: a line each, with name and value
// (`lookup_hits 17`). The length of the text with its final NUL is written to `bytes`; the text to
// `text`, when the `capacity` bytes there are enough for it, else it is an error and nothing but
// the length is written. With a capacity of 0 the text may be null, and only the length is asked
// for.
//
// # Safety
// `text` is null or points to `capacity` bytes, and `bytes` is null or points to a number, that
// nothing else uses during the call.
RacklineError rackline_pool_metrics(RacklinePool pool, char *text, size_t capacity, size_t *bytes);

// Removes the blocks of a namespace from the pool in the memory at `region` and from drives, on all
// nodes. The calling process attaches as one of `node` for the time of the call, whether it has a
// pool open or not. Waits until the blocks are gone, for at most `timeout_ms` milliseconds. Bit `n`
// of `unanswered` says that node `n` has not answered: it is paused, and removes its blocks when it
// continues; or its agent is down, and removes them from its drives when it starts. When the node is
// declared dead, clear again. 0 says that all blocks are gone.
//
// Every block is removed that was published before the call, held or not; a fetch that is under
// way becomes a miss. A block that is published meanwhile may stay. Namespaces whose 16-bit tag is
// equal are cleared together. `RACKLINE_ERROR_BUSY` says that a node with blocks has not answered
// 16 earlier requests of this node; nothing is cleared then.
//
// # Safety
// `region` is null or points to a text that ends with a NUL; `name` is null or points to a
// namespace, with a tenant that is null or ends with a NUL, and a salt that is null or has its
// length; `unanswered` is null or points to a number that nothing else uses during the call.
RacklineError rackline_clear(const char *region,
                             uint16_t node,
                             const RacklineNamespace *name,
                             uint64_t timeout_ms,
                             uint64_t *unanswered);

// As `rackline_clear`, of all namespaces.
//
// # Safety
// `region` is null or points to a text that ends with a NUL; `unanswered` is null or points to a
// number that nothing else uses during the call.
RacklineError rackline_clear_all(const char *region,
                                 uint16_t node,
                                 uint64_t timeout_ms,
                                 uint64_t *unanswered);

// Lets the blocks of a namespace leave last when room is short, on all nodes, for `length_ms`
// milliseconds, at most 365 days: as far as they take `percent` of a node's payload, from 1 to 50.
// Each node measures the time from when it sees the request. Attaches, waits and answers as
// `rackline_clear` does, but a node without blocks is not waited for long.
//
// A pinned block still leaves when there is nothing else, or when another node needs its memory.
// Where the namespace has a quota on a host, the quota stays; a host has room for 64 quotas and
// pins. The log names the nodes that do not set the pin. A pin ends on a host with the host's last
// process. A later pin of the namespace replaces it.
//
// # Safety
// As `rackline_clear`.
RacklineError rackline_pin(const char *region,
                           uint16_t node,
                           const RacklineNamespace *name,
                           uint16_t percent,
                           uint64_t length_ms,
                           uint64_t timeout_ms,
                           uint64_t *unanswered);

// Ends the pin of a namespace on all nodes, whichever node asked for the pin. Attaches, waits and
// answers as `rackline_pin` does.
//
// # Safety
// As `rackline_clear`.
RacklineError rackline_unpin(const char *region,
                             uint16_t node,
                             const RacklineNamespace *name,
                             uint64_t timeout_ms,
                             uint64_t *unanswered);

// The fingerprint of a model, to be shown or logged. It is equal for the same model in every
// process of every host, and in every language.
//
// # Safety
// `model` is null or points to a model whose texts are null or end with a NUL; `fingerprint` is
// null or points to a number that nothing else uses during the call.
RacklineError rackline_model_fingerprint(const RacklineModel *model, uint64_t *fingerprint);

// Opens a session for the blocks of `model`, of `block_bytes` bytes each. Blocks of other models,
// lengths, tenants or salts are misses in it. Without `options` (null) all have their defaults.
//
// # Safety
// `model` is null or points to a model whose texts are null or end with a NUL; `options` is null
// or points to options whose tenant is null or ends with a NUL, and whose salt is null or has its
// length; `session` is null or points to a handle that nothing else uses during the call.
RacklineError rackline_session_open(RacklinePool pool,
                                    const RacklineModel *model,
                                    uint64_t block_bytes,
                                    const RacklineSessionOptions *options,
                                    RacklineSession *session);

// Frees a session. What it has under way continues. A session that is zero is ignored.
RacklineError rackline_session_free(RacklineSession session);

// Hashes the full blocks of `block_tokens` tokens that the `token_count` tokens at `tokens` make,
// each with everything before it; the tokens of a block that is not full are left out. The blocks
// follow the one with the hash `parent`, or are the first of a prompt when that is null. Another
// `seed` (of `seed_bytes` bytes; null with 0) gives other hashes for the same tokens; with a
// parent the seed does not matter.
//
// The hashes are SHA-256: of `rackline chain 1` and the seed for what is before the first block,
// and of the hash before and the tokens, 4 bytes each, little-endian, for each block. They are
// written to `hashes`, of which there is room for `capacity`, and their number to `count`.
//
// # Safety
// `seed` is null or points to `seed_bytes` bytes, `parent` is null or points to a hash, `tokens`
// is null or points to `token_count` tokens; `hashes` is null or points to room for `capacity`
// hashes, and `count` is null or points to a number, that nothing else uses during the call.
RacklineError rackline_chain_hashes(const uint8_t *seed,
                                    size_t seed_bytes,
                                    const RacklineBlockHash *parent,
                                    uint32_t block_tokens,
                                    const uint32_t *tokens,
                                    size_t token_count,
                                    RacklineBlockHash *hashes,
                                    size_t capacity,
                                    size_t *count);

// Looks for the longest prefix of the `count` hashes at `hashes` of which every block is in the
// pool. Does not wait: `rackline_lookup_wait` has the result.
//
// # Safety
// `hashes` is null or points to `count` hashes; `lookup` is null or points to a handle that
// nothing else uses during the call.
RacklineError rackline_lookup(RacklineSession session,
                              const RacklineBlockHash *hashes,
                              size_t count,
                              RacklineLookup *lookup);

// As `rackline_lookup`, and holds the blocks that it finds. They stay in the pool until the prefix
// is released or freed, at most for the session's time. The prefix ends before the first block
// that could not be held.
//
// # Safety
// `hashes` is null or points to `count` hashes; `lookup` is null or points to a handle that
// nothing else uses during the call.
RacklineError rackline_lookup_and_hold(RacklineSession session,
                                       const RacklineBlockHash *hashes,
                                       size_t count,
                                       RacklineLookup *lookup);

// As `rackline_lookup_and_hold`, and goes on behind the end of the pool's prefix with blocks on
// drives of hosts. Their agents restore these blocks into the pool, and the result comes when they
// have, or when the wait is over. The prefix ends before the first block that did not come.
// Without an agent on this host, and with `wait_ms` 0, this is `rackline_lookup_and_hold`.
//
// # Safety
// `hashes` is null or points to `count` hashes; `restore` is null or points to options; `lookup`
// is null or points to a handle that nothing else uses during the call.
RacklineError rackline_lookup_and_restore(RacklineSession session,
                                          const RacklineBlockHash *hashes,
                                          size_t count,
                                          const RacklineRestoreOptions *restore,
                                          RacklineLookup *lookup);

// Holds blocks that another process of the rack found (`rackline_prefix_handles`), one after the
// other in a prompt. The result is that of `rackline_lookup_and_hold`.
//
// # Safety
// `handles` is null or points to `count` handles; `lookup` is null or points to a handle that
// nothing else uses during the call.
RacklineError rackline_hold(RacklineSession session,
                            const RacklineBlockHandle *handles,
                            size_t count,
                            RacklineLookup *lookup);

// The result of a lookup, when it comes within `timeout_ms` milliseconds: 0 only looks, and
// `RACKLINE_FOREVER_MS` waits without a limit. Without a result `RACKLINE_ERROR_UNDER_WAY`. The
// result can be taken once.
//
// # Safety
// `result` is null or points to a result that nothing else uses during the call.
RacklineError rackline_lookup_wait(RacklineLookup lookup,
                                   uint64_t timeout_ms,
                                   RacklineLookupResult *result);

// `rackline_lookup_wait` that only looks.
//
// # Safety
// `result` is null or points to a result that nothing else uses during the call.
RacklineError rackline_lookup_poll(RacklineLookup lookup, RacklineLookupResult *result);

// Revokes a lookup that has not begun, and says so in `cancelled`: then it has no result.
// Otherwise the lookup continues unchanged.
//
// # Safety
// `cancelled` is null or points to a value that nothing else uses during the call.
RacklineError rackline_lookup_cancel(RacklineLookup lookup, bool *cancelled);

// Frees a lookup. A lookup under way continues, and the blocks that it finds are released. A
// lookup that is zero is ignored.
RacklineError rackline_lookup_free(RacklineLookup lookup);

// Has the blocks of the `count` hashes at `hashes` restored that are on drives of hosts, behind the end
// of the pool's prefix and in the order of the prompt, for a lookup that comes later. Holds nothing, and
// does not wait: `rackline_prefetch_wait` says what it took up. What does not come within the wait of
// `restore` is not restored. A lookup finds in the pool what came; `rackline_lookup_and_restore` waits for
// what is under way, and a block is asked for once.
//
// # Safety
// `hashes` is null or points to `count` hashes; `restore` is null or points to options; `prefetch`
// is null or points to a handle that nothing else uses during the call.
RacklineError rackline_prefetch(RacklineSession session,
                                const RacklineBlockHash *hashes,
                                size_t count,
                                const RacklineRestoreOptions *restore,
                                RacklinePrefetch *prefetch);

// What a prefetch took up, when that is known within `timeout_ms` milliseconds: 0 only looks, and
// `RACKLINE_FOREVER_MS` waits without a limit. It takes about a millisecond. Else
// `RACKLINE_ERROR_UNDER_WAY`; and `RACKLINE_ERROR_NO_RESULT` for one that was taken back before it
// began. May be asked again. Does not wait for the blocks.
//
// # Safety
// `result` is null or points to a result that nothing else uses during the call.
RacklineError rackline_prefetch_wait(RacklinePrefetch prefetch,
                                     uint64_t timeout_ms,
                                     RacklinePrefetchResult *result);

// Takes a prefetch back: what has not come, and no other prefetch or lookup waits for, is not restored.
// A second call does nothing.
RacklineError rackline_prefetch_cancel(RacklinePrefetch prefetch);

// Frees a prefetch, which goes on. One that is zero is ignored.
RacklineError rackline_prefetch_free(RacklinePrefetch prefetch);

// How many blocks a prefix has.
//
// # Safety
// `blocks` is null or points to a number that nothing else uses during the call.
RacklineError rackline_prefix_blocks(RacklinePrefix prefix, size_t *blocks);

// Handles of `count` blocks of a prefix, from number `first` on, by which any process of the rack
// can fetch them.
//
// # Safety
// `handles` is null or points to room for `count` handles that nothing else uses during the call.
RacklineError rackline_prefix_handles(RacklinePrefix prefix,
                                      size_t first,
                                      size_t count,
                                      RacklineBlockHandle *handles);

// Whether the blocks of a prefix are held by it.
//
// # Safety
// `held` is null or points to a value that nothing else uses during the call.
RacklineError rackline_prefix_held(RacklinePrefix prefix, bool *held);

// Releases the blocks of a prefix: the pool may evict them again. They can still be fetched as
// long as they are there.
RacklineError rackline_prefix_release(RacklinePrefix prefix);

// Frees a prefix, and releases its blocks. A prefix that is zero is ignored.
RacklineError rackline_prefix_free(RacklinePrefix prefix);

// Opens GPU number `number`, as CUDA counts in this process, for blocks in its memory, or finds it
// open. Open it once, for all sessions of the pool. Pieces of the pool are registered with the driver
// when they are used. With `RACKLINE_CUDA_REGISTER=at-start` in the environment as many as the limit
// allows are registered here, which takes minutes for a large pool. The GPU stays open until the pool
// is closed.
//
// The CUDA driver (libcuda.so) is loaded by the first call. Without a driver, or without that GPU,
// the error is `RACKLINE_ERROR_GPU`.
//
// # Safety
// `gpu` is null or points to a handle that nothing else uses during the call.
RacklineError rackline_gpu_open(RacklinePool pool,
                                uint32_t number,
                                RacklineGpu *gpu);

// How the GPU reaches the pool. When it uses a buffer, `rackline_error_message` says why.
//
// # Safety
// `reach` is null or points to a value that nothing else uses during the call.
RacklineError rackline_gpu_reach(RacklineGpu gpu, RacklineGpuReach *reach);

// What the GPU copied so far; also after the pool was closed.
//
// # Safety
// `figures` is null or points to figures that nothing else uses during the call.
RacklineError rackline_gpu_figures(RacklineGpu gpu, RacklineGpuFigures *figures);

// Frees the handle of a GPU. Its transfers under way continue, and the GPU stays open. A handle
// that is zero is ignored.
RacklineError rackline_gpu_free(RacklineGpu gpu);

// Publishes `count` blocks that follow one another in a prompt, the first of them behind
// `first_depth` others. Block `b` has the hash `hashes[b]`, and its bytes are those of the
// `parts_a_block` parts from `parts[b * parts_a_block]` on, gathered in this order; together they
// are as long as a block of the session. Blocks that are in the pool are not copied; blocks that
// cannot be published do not stop the others.
//
// Does not wait: `rackline_publish_wait` has the result. The arrays are not needed after return;
// the memory of the parts is lent until the publish is over.
//
// # Safety
// `hashes` is null or points to `count` hashes, `parts` is null or points to
// `count * parts_a_block` parts. The memory of the parts exists, and nothing writes it, until the
// publish is over. `publish` is null or points to a handle that nothing else uses during the call.
RacklineError rackline_publish(RacklineSession session,
                               const RacklineBlockHash *hashes,
                               size_t count,
                               uint32_t first_depth,
                               const RacklineSource *parts,
                               size_t parts_a_block,
                               RacklinePublish *publish);

// As `rackline_publish`, of blocks in the memory of `gpu`, whose copy engines copy them. The copy
// is ordered after the work that `stream` had before this call: a `CUstream` or `cudaStream_t` of
// the GPU's primary context, or one of CUDA's own (0 or 1 the default stream, 2 that of the
// calling thread). The call records the position of the stream, and does not wait for it.
//
// # Safety
// As `rackline_publish`, with parts in the memory of the GPU, which earlier work of the stream may
// still write. The stream exists during the call.
RacklineError rackline_publish_from_gpu(RacklineSession session,
                                        RacklineGpu gpu,
                                        void *stream,
                                        const RacklineBlockHash *hashes,
                                        size_t count,
                                        uint32_t first_depth,
                                        const RacklineSource *parts,
                                        size_t parts_a_block,
                                        RacklinePublish *publish);

// The result of a publish, when it comes within `timeout_ms` milliseconds: 0 only looks, and
// `RACKLINE_FOREVER_MS` waits without a limit. Without a result `RACKLINE_ERROR_UNDER_WAY`; after
// `RACKLINE_ERROR_OK` and `RACKLINE_ERROR_NO_RESULT` the publish is over. The result can be taken
// once.
//
// The outcome of each block is written to `outcomes`, which has room for `capacity` of them, at
// least as many as blocks. It may be null, with a capacity of 0.
//
// # Safety
// `result` is null or points to a result, and `outcomes` is null or points to room for `capacity`
// outcomes, that nothing else uses during the call.
RacklineError rackline_publish_wait(RacklinePublish publish,
                                    uint64_t timeout_ms,
                                    RacklinePublishResult *result,
                                    RacklineOutcome *outcomes,
                                    size_t capacity);

// `rackline_publish_wait` that only looks, without the outcomes of blocks.
//
// # Safety
// `result` is null or points to a result that nothing else uses during the call.
RacklineError rackline_publish_poll(RacklinePublish publish, RacklinePublishResult *result);

// Revokes a publish that has not begun, and says so in `cancelled`: then it is over, and has no
// result. Otherwise the publish continues unchanged.
//
// # Safety
// `cancelled` is null or points to a value that nothing else uses during the call.
RacklineError rackline_publish_cancel(RacklinePublish publish, bool *cancelled);

// Frees a publish. After return it is over: it was cancelled, or this call waited for it. A
// publish that is zero is ignored.
RacklineError rackline_publish_free(RacklinePublish publish);

// Fetches `count` blocks of a prefix, from number `first` on. The bytes of the first of them go
// into the parts `parts[0]` to `parts[parts_a_block - 1]`, filled in this order, those of the next
// block into the following parts, and so on. The parts of a block together are as long as a block
// of the session, and no two parts share bytes.
//
// Does not wait: `rackline_fetch_wait` has the result. The array is not needed after return; the
// memory of the parts is lent until the fetch is over. Keep a held prefix for as long.
//
// # Safety
// `parts` is null or points to `count * parts_a_block` parts. The memory of the parts exists, and
// nothing reads or writes it, until the fetch is over. `fetch` is null or points to a handle that
// nothing else uses during the call.
RacklineError rackline_fetch(RacklineSession session,
                             RacklinePrefix prefix,
                             size_t first,
                             size_t count,
                             const RacklineDestination *parts,
                             size_t parts_a_block,
                             RacklineFetch *fetch);

// As `rackline_fetch`, of blocks that another process of the rack found
// (`rackline_prefix_handles`), one after the other in a prompt.
//
// # Safety
// As `rackline_fetch`, and `handles` is null or points to `count` handles.
RacklineError rackline_fetch_handles(RacklineSession session,
                                     const RacklineBlockHandle *handles,
                                     size_t count,
                                     const RacklineDestination *parts,
                                     size_t parts_a_block,
                                     RacklineFetch *fetch);

// As `rackline_fetch`, into the memory of `gpu`, whose copy engines copy the blocks after the work
// that `stream` (as in `rackline_publish_from_gpu`) had before this call. Work that is launched
// after the fetch is over finds the bytes.
//
// # Safety
// As `rackline_fetch`, with parts in the memory of the GPU, which earlier work of the stream may
// still read and write. The stream exists during the call.
RacklineError rackline_fetch_into_gpu(RacklineSession session,
                                      RacklineGpu gpu,
                                      void *stream,
                                      RacklinePrefix prefix,
                                      size_t first,
                                      size_t count,
                                      const RacklineDestination *parts,
                                      size_t parts_a_block,
                                      RacklineFetch *fetch);

// As `rackline_fetch_into_gpu`, of blocks that another process of the rack found
// (`rackline_prefix_handles`), one after the other in a prompt.
//
// # Safety
// As `rackline_fetch_into_gpu`, and `handles` is null or points to `count` handles.
RacklineError rackline_fetch_handles_into_gpu(RacklineSession session,
                                              RacklineGpu gpu,
                                              void *stream,
                                              const RacklineBlockHandle *handles,
                                              size_t count,
                                              const RacklineDestination *parts,
                                              size_t parts_a_block,
                                              RacklineFetch *fetch);

// The result of a fetch, when it comes within `timeout_ms` milliseconds: 0 only looks, and
// `RACKLINE_FOREVER_MS` waits without a limit. Without a result `RACKLINE_ERROR_UNDER_WAY`; after
// `RACKLINE_ERROR_OK` and `RACKLINE_ERROR_NO_RESULT` the fetch is over. The result can be taken
// once.
//
// # Safety
// `result` is null or points to a result that nothing else uses during the call.
RacklineError rackline_fetch_wait(RacklineFetch fetch,
                                  uint64_t timeout_ms,
                                  RacklineFetchResult *result);

// `rackline_fetch_wait` that only looks.
//
// # Safety
// `result` is null or points to a result that nothing else uses during the call.
RacklineError rackline_fetch_poll(RacklineFetch fetch, RacklineFetchResult *result);

// Revokes a fetch that has not begun, and says so in `cancelled`: then it is over, and has no
// result. Otherwise the fetch continues unchanged.
//
// # Safety
// `cancelled` is null or points to a value that nothing else uses during the call.
RacklineError rackline_fetch_cancel(RacklineFetch fetch, bool *cancelled);

// Frees a fetch. After return it is over: it was cancelled, or this call waited for it. A fetch
// that is zero is ignored.
RacklineError rackline_fetch_free(RacklineFetch fetch);

// As `rackline_publish`, layer by layer: each layer is copied when the program says that it is
// ready in all blocks (`rackline_layered_publish_layer_ready`). `layers` says which parts of a
// block each layer has. No host finds a block before `rackline_layered_publish_finish` was called
// and all layers are copied.
//
// The pool was attached with `publishes_by_layers`, else it is `RACKLINE_ERROR_POOL`. A process
// works on one such publish at a time, in the order in which they were started: nothing of the next
// one is copied before this one has ended, whichever layers are ready. Closing the pool aborts
// those that are not finished.
//
// Does not wait. The arrays are not needed after return. The memory of the parts is lent until the
// publish is over, but the program may write a layer that it has not said to be ready.
//
// # Safety
// `hashes` is null or points to `count` hashes, `parts` is null or points to
// `count * parts_a_block` parts, `layers` is null or points to layers whose numbers are null or as
// many as they say. The memory of the parts exists until the publish is over, and nothing writes
// that of a layer from when the layer is said to be ready, or the publish is finished. `publish` is
// null or points to a handle that nothing else uses during the call.
RacklineError rackline_publish_by_layers(RacklineSession session,
                                         const RacklineBlockHash *hashes,
                                         size_t count,
                                         uint32_t first_depth,
                                         const RacklineSource *parts,
                                         size_t parts_a_block,
                                         const RacklineLayers *layers,
                                         RacklineLayeredPublish *publish);

// As `rackline_publish_by_layers`, of blocks in the memory of `gpu`, whose copy engines copy them.
// Each layer is said to be ready with the stream that computes it
// (`rackline_layered_publish_layer_ready_on_gpu`).
//
// # Safety
// As `rackline_publish_by_layers`, with parts in the memory of the GPU. Work that a stream had
// before a layer was said to be ready with it may still write that layer.
RacklineError rackline_publish_by_layers_from_gpu(RacklineSession session,
                                                  RacklineGpu gpu,
                                                  const RacklineBlockHash *hashes,
                                                  size_t count,
                                                  uint32_t first_depth,
                                                  const RacklineSource *parts,
                                                  size_t parts_a_block,
                                                  const RacklineLayers *layers,
                                                  RacklineLayeredPublish *publish);

// Says that layer number `layer`, counted from 0, is ready in all blocks, and stays as it is until
// the publish is over. Layers may become ready in any order. Without effect on a publish that was
// finished or aborted. For memory of a GPU there is
// `rackline_layered_publish_layer_ready_on_gpu`, and this is `RACKLINE_ERROR_BAD_ARGUMENT`.
RacklineError rackline_layered_publish_layer_ready(RacklineLayeredPublish publish, size_t layer);

// Says that layer number `layer`, counted from 0, is ready in all blocks once `stream` (as in
// `rackline_publish_from_gpu`) has done the work that it had before this call, and stays as that
// work leaves it until the publish is over. Layers may become ready in any order, with any streams
// of the GPU. The call records the position of the stream, and does not wait for it. Without effect
// on a publish that was finished or aborted.
//
// `RACKLINE_ERROR_GPU`: the copy cannot be ordered after the stream, for example because the stream
// is being captured into a graph. The publish is aborted then.
//
// # Safety
// The stream exists during the call.
RacklineError rackline_layered_publish_layer_ready_on_gpu(RacklineLayeredPublish publish,
                                                          size_t layer,
                                                          void *stream);

// Says that the blocks are to be published. Of memory of this process all layers are ready with it.
// Of memory of a GPU each layer was said to be ready before, with its stream: when one was not, the
// publish is aborted. Does not wait: `rackline_layered_publish_wait` has the result. Without effect
// on a publish that was finished or aborted.
RacklineError rackline_layered_publish_finish(RacklineLayeredPublish publish);

// Says that nothing is to be published. Layers that are not ready are not read any more; when the
// publish is over nothing is. Does not wait: `rackline_layered_publish_wait` has the result.
// Without effect on a publish that was finished or aborted.
RacklineError rackline_layered_publish_abort(RacklineLayeredPublish publish);

// The result of a publish by layers that was finished or aborted: as `rackline_publish_wait`.
// Before that it is `RACKLINE_ERROR_BAD_ARGUMENT`, and the publish continues. Of a publish that was
// aborted, also by closing the pool, nothing is published, and the outcome of each block is
// `RACKLINE_OUTCOME_ABORTED`.
//
// # Safety
// `result` is null or points to a result, and `outcomes` is null or points to room for `capacity`
// outcomes, that nothing else uses during the call.
RacklineError rackline_layered_publish_wait(RacklineLayeredPublish publish,
                                            uint64_t timeout_ms,
                                            RacklinePublishResult *result,
                                            RacklineOutcome *outcomes,
                                            size_t capacity);

// Frees a publish by layers. One that was not finished is aborted. After return it is over: it had
// not begun, or this call waited for it. A publish that is zero is ignored.
RacklineError rackline_layered_publish_free(RacklineLayeredPublish publish);

// As `rackline_fetch`, layer by layer: layer 0 of all blocks comes first, then layer 1, and so on.
// `layers` says which parts of a block each layer has.
//
// Does not wait: `rackline_layered_fetch_wait_layer` waits for a layer, and
// `rackline_layered_fetch_wait` has the result. The arrays are not needed after return; the memory
// of the parts is lent until the fetch is over, but the program may use a layer that has arrived.
//
// # Safety
// `parts` is null or points to `count * parts_a_block` parts; `layers` is null or points to layers
// whose numbers are null or as many as they say. The memory of the parts exists until the fetch is
// over, and nothing reads or writes that of a layer until the layer has arrived or the fetch is
// over. `fetch` is null or points to a handle that nothing else uses during the call.
RacklineError rackline_fetch_by_layers(RacklineSession session,
                                       RacklinePrefix prefix,
                                       size_t first,
                                       size_t count,
                                       const RacklineDestination *parts,
                                       size_t parts_a_block,
                                       const RacklineLayers *layers,
                                       RacklineLayeredFetch *fetch);

// As `rackline_fetch_by_layers`, of blocks that another process of the rack found
// (`rackline_prefix_handles`), one after the other in a prompt.
//
// # Safety
// As `rackline_fetch_by_layers`, and `handles` is null or points to `count` handles.
RacklineError rackline_fetch_handles_by_layers(RacklineSession session,
                                               const RacklineBlockHandle *handles,
                                               size_t count,
                                               const RacklineDestination *parts,
                                               size_t parts_a_block,
                                               const RacklineLayers *layers,
                                               RacklineLayeredFetch *fetch);

// As `rackline_fetch_by_layers`, into the memory of `gpu`, whose copy engines copy the blocks after
// the work that `stream` (as in `rackline_publish_from_gpu`) had before this call. Work that is
// launched after a layer has arrived finds its bytes, on any stream.
//
// # Safety
// As `rackline_fetch_by_layers`, with parts in the memory of the GPU, which earlier work of the
// stream may still read and write. The stream exists during the call.
RacklineError rackline_fetch_by_layers_into_gpu(RacklineSession session,
                                                RacklineGpu gpu,
                                                void *stream,
                                                RacklinePrefix prefix,
                                                size_t first,
                                                size_t count,
                                                const RacklineDestination *parts,
                                                size_t parts_a_block,
                                                const RacklineLayers *layers,
                                                RacklineLayeredFetch *fetch);

// As `rackline_fetch_by_layers_into_gpu`, of blocks that another process of the rack found
// (`rackline_prefix_handles`), one after the other in a prompt.
//
// # Safety
// As `rackline_fetch_by_layers_into_gpu`, and `handles` is null or points to `count` handles.
RacklineError rackline_fetch_handles_by_layers_into_gpu(RacklineSession session,
                                                        RacklineGpu gpu,
                                                        void *stream,
                                                        const RacklineBlockHandle *handles,
                                                        size_t count,
                                                        const RacklineDestination *parts,
                                                        size_t parts_a_block,
                                                        const RacklineLayers *layers,
                                                        RacklineLayeredFetch *fetch);

// Waits at most `timeout_ms` milliseconds until layer number `layer`, counted from 0, has arrived:
// 0 only looks, and `RACKLINE_FOREVER_MS` waits without a limit. Layers arrive in order. May be
// called any number of times for a layer.
//
// After `RACKLINE_ERROR_OK` the parts of this layer and of all before it have their bytes, in each
// block that was there, and the program may use them. The bytes are not checked yet: the result of
// the fetch says how many blocks are good. The memory stays lent: other transfers are refused it
// until the fetch is over.
//
// `RACKLINE_ERROR_UNDER_WAY`: the layer has not arrived in that time. `RACKLINE_ERROR_NO_RESULT`:
// it does not arrive, because the fetch ended before; `rackline_layered_fetch_wait` says why, and
// the fetch is not over before that call says so.
RacklineError rackline_layered_fetch_wait_layer(RacklineLayeredFetch fetch,
                                                size_t layer,
                                                uint64_t timeout_ms);

// The result of a fetch by layers: as `rackline_fetch_wait`.
//
// # Safety
// `result` is null or points to a result that nothing else uses during the call.
RacklineError rackline_layered_fetch_wait(RacklineLayeredFetch fetch,
                                          uint64_t timeout_ms,
                                          RacklineFetchResult *result);

// Revokes a fetch by layers that has not begun, and says so in `cancelled`: then it is over, has no
// result, and none of its layers arrives. Otherwise the fetch continues unchanged.
//
// # Safety
// `cancelled` is null or points to a value that nothing else uses during the call.
RacklineError rackline_layered_fetch_cancel(RacklineLayeredFetch fetch, bool *cancelled);

// Frees a fetch by layers. After return it is over: it was cancelled, or this call waited for it.
// A fetch that is zero is ignored.
RacklineError rackline_layered_fetch_free(RacklineLayeredFetch fetch);

// A short name of a reason, as the counters of `rackline_pool_metrics` have it: `"evicted"`, say.
// The text stays valid. For a number that is not a reason it is `"unknown"`.
const char *rackline_reason_label(int32_t reason);

// A short name of an outcome of a block: `"already_there"`, for example. The text stays valid. For
// a number that is not an outcome it is `"unknown"`.
const char *rackline_outcome_label(int32_t outcome);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RACKLINE_H */
