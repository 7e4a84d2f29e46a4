//! Small objects: each node has a heap inside chunks that it owns, shared by the processes of its
//! host.
//!
//! Objects of up to a page are slots of one of fifteen size classes, whole lines each; larger ones
//! are whole pages in a row, up to a chunk without its header. What a page is used for is
//! published; which slots are allocated is known to the owning host alone.
//!
//! - **OBJECT-O1 What is kept.** While a host lives, an object lives until it is freed, whichever
//!   process of the host allocated it: another process may be using it. When a host dies, or the
//!   last of its processes goes, what is reachable from a named root is kept and the rest is free:
//!   its next incarnation, or the host that adopts its chunks, marks and sweeps before it uses
//!   them.
//! - **OBJECT-O2 Reachable** is the object that a root names. If the root is of kind `Linked`, so
//!   is each object whose offset stands in an aligned word of a reachable object, also across
//!   hosts. This errs on the side of keeping, and needs no program that knows the objects.
//! - **OBJECT-O3 One writing host an object** (MEM-M1): the allocating one, until it hands the
//!   object over.
//! - **OBJECT-O4 Freeing needs the last word**: a process that frees an object, or destroys the
//!   root that names it, has made sure that no process uses it. A free by another host, and the
//!   destruction of its root by another host, publish that host's lines of it first, so that none
//!   of them lands in the next object.
//! - **OBJECT-O5 An object without a root** that other hosts merely know by its offset is gone with
//!   the incarnation that allocated it. A program that still knows its offset must not use or free
//!   it. A program that cannot know whether that incarnation lives frees the object that it looked
//!   up ([`Objects::free_object`](crate::Objects::free_object)): each chunk says which life its
//!   objects are in, a free carries that to the owner, and one of another life frees nothing. A
//!   free by offset is of the life that the chunk says it is in when it is sent.
//! - **OBJECT-O6 Contents** of a new object are whatever was there; [`Object::zero`] clears them. A
//!   program that lets a `Linked` root reach an object zeroes the unused bytes of the object: to
//!   OBJECT-O2 they are words like all others.

mod access;
mod core;
mod error;
mod idle;
mod object;
mod page;
mod return_error;
mod ring;
mod size;
mod sweep;
mod unlocked;
mod usage;
mod words;

#[cfg(test)]
mod moved_tests;
#[cfg(test)]
mod tests;

pub(crate) use access::{Access, HeapOwnership, Retired};
use cxl_shm::layout::HEAP_PURPOSE;
pub use error::{FreeError, HeapBusy, ObjectError, SweepError, TakeOverError};
pub(crate) use idle::IDLE_CHUNKS_MAX;
pub use object::{Object, PeerObject, SharedOffset};
pub use return_error::ReturnError;
pub(crate) use ring::retired;
pub use sweep::SweepReport;
pub(crate) use sweep::{build_new, sweep};
pub(crate) use unlocked::{Deadline, Unlocked};
pub use usage::HeapUsage;
pub(crate) use words::HeapWords;

use size::Room;

use cxl_shm::chunk;
use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::Layout;
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::{Extent, Incarnation, LINE_BYTES, NodeId, PAGE_BYTES};

/// The most bytes that one object can have.
pub(crate) fn object_bytes_max(layout: &Layout) -> u64 {
    page::data_pages(layout.geometry().chunk_bytes) * PAGE_BYTES
}

pub(crate) fn allocate<B: Backend>(
    member: &Member<B>,
    clock: &impl Clock,
    timeout_ms: u64,
    bytes: u64,
) -> Result<Object, ObjectError> {
    let bytes_max = object_bytes_max(member.layout());
    if bytes > bytes_max {
        return Err(ObjectError::TooLarge { bytes, bytes_max });
    }
    let room = Room::for_bytes(bytes);
    let mut unlocked = Unlocked::begin(member);
    {
        let access = Access::enter(&unlocked, clock)?;
        if let Some(object) = access.take(room)? {
            return Ok(object);
        }
        // Other hosts may have freed what we need.
        access.drain()?;
        if let Some(object) = access.take(room)? {
            return Ok(object);
        }
    }
    // Chunks of our former incarnation, or of a host whose chunks we adopted.
    if sweep::build_new(&mut unlocked, clock, Deadline::after(clock, timeout_ms))?
        && let Some(object) = Access::enter(&unlocked, clock)?.take(room)?
    {
        return Ok(object);
    }
    let deadline = Deadline::after(clock, timeout_ms);
    loop {
        let chunk = match chunk::request(member, clock, deadline.left_ms(clock), HEAP_PURPOSE) {
            Ok(chunk) => chunk,
            Err(source) => {
                let HeapUsage { free_bytes, chunks: heap_chunks, .. } =
                    Access::enter(&unlocked, clock)?.usage();
                return Err(ObjectError::Exhausted { bytes, free_bytes, heap_chunks, source });
            }
        };
        if !Access::enter(&unlocked, clock)?.build_empty(chunk)? {
            sweep::build_new(&mut unlocked, clock, deadline)?;
        }
        // None only when another process took what was in the new chunk, or gave it back.
        if let Some(object) = Access::enter(&unlocked, clock)?.take(room)? {
            return Ok(object);
        }
    }
}

/// Frees the object at `offset`; only if it is still in `life`, when that is given.
pub(crate) fn free<B: Backend>(
    member: &Member<B>,
    clock: &impl Clock,
    timeout_ms: u64,
    offset: SharedOffset,
    life: Option<(NodeId, Incarnation)>,
) -> Result<(), FreeError> {
    let now = (member.node(), member.incarnation());
    let layout = member.layout();
    let line = Extent::new(offset.bytes(), LINE_BYTES);
    let chunk = line.and_then(|line| layout.chunk_of(line)).ok_or(FreeError::Foreign { offset })?;
    let mut unlocked = Unlocked::begin(member);
    // Twice: the first may find that the chunk is ours and not built yet.
    for _ in 0..2 {
        let access = Access::enter(&unlocked, clock)?;
        match access.ownership(chunk) {
            HeapOwnership::Ours | HeapOwnership::Unbuilt
                if life.is_some_and(|life| life != now) =>
            {
                return Err(FreeError::OtherLife { offset });
            }
            HeapOwnership::Ours => return access.free(offset),
            HeapOwnership::Unbuilt => {
                drop(access);
                sweep::build_new(&mut unlocked, clock, Deadline::after(clock, timeout_ms))?;
            }
            HeapOwnership::Other(owner) => return access.send_free(owner, offset, life),
            HeapOwnership::NoHeap => return Err(FreeError::Foreign { offset }),
        }
    }
    Err(FreeError::Foreign { offset })
}

/// The object that starts at `offset`, in whatever heap; `None` when none does. Whether it is
/// allocated only the heap's owner knows.
pub(crate) fn find<B: Backend>(member: &Member<B>, offset: SharedOffset) -> Option<PeerObject> {
    let (layout, fabric) = (member.layout(), member.fabric());
    let chunk = layout.chunk_of(Extent::new(offset.bytes(), LINE_BYTES)?)?;
    let owner = access::heap_owner(layout, fabric, chunk)?;
    let (place, builder) = access::look_at(layout, fabric, offset.bytes())?;
    Some(PeerObject::new(place.extent, builder.filter(|(node, _)| *node == owner)))
}

pub(crate) fn take_over<B: Backend>(
    member: &Member<B>,
    offset: SharedOffset,
) -> Result<Object, TakeOverError> {
    let object = find(member, offset).ok_or(TakeOverError::NotAnObject { offset })?;
    // MEM-M4: told of the object, we drop what our caches held of it before.
    member.fabric().refresh(object.area().range());
    member.may_write(object.extent());
    // MEM-M1: by calling this the caller says that the object was handed over to this host.
    Ok(Object::new(object.extent(), object.life()))
}
