/* Rackline: memory that several hosts share over CXL, without cache coherence.
 *
 * Generated from connector/capi/src by cbindgen: edit the Rust sources, not this file.
 *
 * A process attaches to a region as one of its nodes, takes locks that exclude the threads of all
 * hosts, allocates objects, and finds the objects of others by name. Objects have the same offset
 * everywhere, and another address in every process: hand out offsets (cxl_shm_get_offset), never
 * pointers.
 *
 * The hosts' caches are not coherent. What one host writes, another sees after the writer called
 * cxl_shm_publish on it and the reader, later, cxl_shm_refresh. A line of 64 bytes has one writing
 * host at a time: objects start on lines of their own, and pass from one writing host to another
 * only under a lock, published by the one before it releases and refreshed by the next after it
 * acquires.
 */

#ifndef RACKLINE_CXL_SHM_H
#define RACKLINE_CXL_SHM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// What a call returned. Zero is success, and a larger value is success with a notice. After an
// error `cxl_shm_last_error` says what was wrong and what to do.
typedef enum {
  // Done.
  CXL_SHM_ERROR_OK = 0,
  // The lock is acquired, as with `CXL_SHM_ERROR_OK`. A thread that held it died, and what it
  // protects may be half done: see `cxl_shm_acquire_lock`.
  CXL_SHM_ERROR_HOLDER_DIED = 1,
  // This process is not attached to a region, or the calling one is a child of `fork`.
  CXL_SHM_ERROR_NOT_ATTACHED = -1,
  // An argument is null, not a text, out of range, or no pointer into the region.
  CXL_SHM_ERROR_BAD_ARGUMENT = -2,
  // The region cannot be opened, made or joined.
  CXL_SHM_ERROR_REGION = -3,
  // A lock was not acquired in time, or no lock manager grants it.
  CXL_SHM_ERROR_LOCK = -4,
  // The calling thread does not hold the lock, or holds it already.
  CXL_SHM_ERROR_NOT_HELD = -5,
  // There is not enough free memory, or no free lock.
  CXL_SHM_ERROR_EXHAUSTED = -6,
  // There is no object, root or lock of that name.
  CXL_SHM_ERROR_NOT_FOUND = -7,
  // That name is already in use.
  CXL_SHM_ERROR_EXISTS = -8,
  // What was read from the region is damaged.
  CXL_SHM_ERROR_DAMAGED = -9,
} CxlShmError;

// How locks between hosts work.
typedef enum {
  // A lock manager grants them: start `rackline lock-manager` on one host.
  CXL_SHM_LOCKS_ARBITRATED = 0,
  // The hosts agree among themselves.
  CXL_SHM_LOCKS_BAKERY = 1,
} CxlShmLocks;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Attaches this process to the region at `region` (a devdax device or a file) as a process of
// node `node`. Every host of the rack has a node number of its own, and its processes share it.
//
// # Safety
// `region` is null or points to a text that ends with a NUL.
CxlShmError cxl_shm_attach(const char *region, uint16_t node);

// Detaches this process. Locks of the calling thread are released. Other threads that have called
// stay members until they end or call again; the region stays mapped until then. Pointers into it
// are not valid afterwards.
CxlShmError cxl_shm_detach(void);

// What went wrong in the last call of this thread that failed: a text, empty when none did. It
// stays valid until the next failing call of the same thread.
const char *cxl_shm_last_error(void);

// Allocates `bytes` bytes in the region, on lines of their own, and returns their address; null
// when there is no room. Their contents are whatever was there before.
//
// The object lives until it is freed, as long as a process of this host is attached. After that it
// lives only when a named root leads to it, directly or through offsets in other objects.
void *shmalloc(size_t bytes);

// Frees an object of this or another host's heap, by the address from `shmalloc` or `cxl_shm_get`,
// or from `cxl_shm_get_ptr` of its offset. No program may use the object any more.
// `cxl_shm_destroy` frees an object that a root names. A null pointer is ignored.
CxlShmError shfree(void *object);

// Makes a region of `bytes` bytes for `nodes` hosts in a new file at `region`, for a single host.
// Use `rackline format` for a device. A file that exists already is an error, and stays unchanged.
//
// # Safety
// `region` is null or points to a text that ends with a NUL.
CxlShmError cxl_shm_init(const char *region, uint64_t bytes, uint16_t nodes, uint32_t locks);

// Gives out a lock that no program uses, until `cxl_shm_free_lock`. Its number, which is the same
// on all hosts, is written to `lock`.
//
// # Safety
// `lock` is null or points to a number that nothing else uses during the call.
CxlShmError cxl_shm_allocate_lock(uint32_t *lock);

// Takes a lock back. No thread may hold it, wait for it, or use it any more.
CxlShmError cxl_shm_free_lock(uint32_t lock);

// Acquires a lock, and waits for it as long as it takes. Fails only when no lock manager runs that
// can grant it, or this node was declared dead. A host that has noticed the missing lock manager
// refuses at once, until one runs again.
//
// Call `cxl_shm_refresh` before reading what the lock protects.
//
// `CXL_SHM_ERROR_HOLDER_DIED` means that the calling thread holds the lock, and that an earlier
// holder panicked, or died with its process or its host. When a host died it is unknown whether it
// held the lock or waited for it: the code is returned in both cases. Each holder gets this code
// until one calls `cxl_shm_lock_is_consistent`. The library promises:
//
// - Any part of what the dead thread stored under the lock may be visible, line by line of 64
//   bytes, whether it had published it or not. The program has to check and repair the data.
// - None of its stores appears later: before the lock was released, the host of the dead thread
//   moved everything that its programs may have written to the device. This covers objects whose
//   address `shmalloc`, `cxl_shm_get` or `cxl_shm_get_ptr` returned, and bytes that were published
//   or refreshed. It takes about 3 ms for each chunk of 64 MiB with such objects, and no thread
//   has the lock in that time.
// - After the death of a host its stores have arrived, or are lost, before the lock is free: a
//   host is fenced before its locks are released.
CxlShmError cxl_shm_acquire_lock(uint32_t lock);

// Acquires a lock as `cxl_shm_acquire_lock` does, and waits for it at most `timeout_ms`
// milliseconds. After a time-out nothing is held or left behind.
CxlShmError cxl_shm_acquire_lock_within(uint32_t lock, uint64_t timeout_ms);

// Says that the data of a lock is consistent again after `CXL_SHM_ERROR_HOLDER_DIED`, and has been
// published. Later holders no longer get that code. The calling thread must hold the lock. Does
// nothing when no holder had died.
CxlShmError cxl_shm_lock_is_consistent(uint32_t lock);

// Releases a lock that this thread holds. Publish the protected data first.
CxlShmError cxl_shm_release_lock(uint32_t lock);

// The offset of `address` in the region, the same in every process; 0 when it is not in the
// region.
uint64_t cxl_shm_get_offset(const void *address);

// The address of `offset` in this process; null when it is not in the region.
void *cxl_shm_get_ptr(uint64_t offset);

// Makes what this host wrote to `bytes` bytes at `address` visible: after return every host that
// refreshes them sees at least that.
CxlShmError cxl_shm_publish(const void *address, size_t bytes);

// Drops `bytes` bytes at `address` from this host's caches: the next reads see at least what was
// published before the call.
CxlShmError cxl_shm_refresh(const void *address, size_t bytes);

// Writes `bytes` bytes at `address` back and drops them from this host's caches: publish and
// refresh in one, for programs written against `clflush`.
CxlShmError cxl_shm_clflush(const void *address, size_t bytes);

// Names an object that a process of this host allocated, so that every host finds it by
// `cxl_shm_get`. Publish its contents first. A name has 1 to 128 bytes and is given once. An
// object has one name.
//
// Objects that a named object refers to by offset (`cxl_shm_get_offset`), in words aligned to 8
// bytes, are kept with it when its host dies.
//
// # Safety
// `name` is null or points to a text that ends with a NUL.
CxlShmError cxl_shm_put(const char *name, const void *object);

// The address in this process of the object of that name; null when there is none. Takes no lock.
// Call `cxl_shm_refresh` before reading the object.
//
// # Safety
// `name` is null or points to a text that ends with a NUL.
void *cxl_shm_get(const char *name);

// Takes a name back and frees the named object, on any host. No program may use the object any
// more.
//
// # Safety
// `name` is null or points to a text that ends with a NUL.
CxlShmError cxl_shm_destroy(const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RACKLINE_CXL_SHM_H */
