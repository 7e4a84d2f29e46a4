//! What a member does with objects.

use super::heap::{self, Access, Unlocked};
use super::{
    AllocateError, FreeError, HeapUsage, Object, ObjectError, PeerObject, ReturnError,
    SharedOffset, SweepError, SweepReport, TakeOverError, demand,
};
use crate::clock::Clock;
use crate::fabric::{Fabric, HostMemory};
use crate::member::{Liveness, Member};
use crate::units::ChunkId;

/// Beats of the heart between two times that a host's agent attends to other hosts: 80 ms.
pub const ATTEND_BEATS: u64 = 8;

impl<F: Fabric, H: HostMemory, L: Liveness> Member<F, H, L> {
    /// Allocates an object of at least `bytes` bytes in this node's heap. Its contents are what
    /// was there before ([`Object::zero`]); see O1 to O6 in [`crate::alloc::heap`].
    ///
    /// Takes a lock between hosts only when the heap needs another chunk, or has to be rebuilt
    /// after this host's death. Then it waits up to `timeout_ms` for the lock and for other nodes
    /// to give a chunk back.
    ///
    /// # Errors
    /// [`ObjectError`]; nothing is changed then.
    ///
    /// # Example
    /// ```
    /// # use cxl_shm::clock::Clock;
    /// # use cxl_shm::fabric::{Fabric, HostMemory};
    /// # use cxl_shm::member::{Liveness, Member};
    /// # use cxl_shm::root::RootKind;
    /// fn publish_greeting<F: Fabric, H: HostMemory, L: Liveness>(
    ///     member: &Member<F, H, L>,
    ///     clock: &impl Clock,
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     let object = member.allocate(clock, 1000, 100)?;
    ///     assert!(object.write(member.fabric(), 0, b"hello"));
    ///     member.put_root(clock, 1000, "greeting", object.offset(), RootKind::Leaf)?;
    ///     Ok(())
    /// }
    /// ```
    pub fn allocate(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        bytes: u64,
    ) -> Result<Object, ObjectError> {
        heap::allocate(self, clock, timeout_ms, bytes)
    }

    /// Frees the object that starts at `offset`, of any node's heap. The caller has made sure that
    /// nobody uses it (O4), and that it is allocated: its owner has not died since the caller heard of
    /// it (O5), or a root reaches it. Else [`Self::free_object`] is the call.
    ///
    /// An object of another node's heap is free when that node next looks ([`Self::attend`], or an
    /// allocation that finds no room); what that node
    /// refuses then, a double free say, it counts ([`HeapUsage::refused_frees`]). Waits for a lock
    /// between hosts only when this node's heap has to be rebuilt.
    ///
    /// # Errors
    /// [`FreeError`]; nothing is changed then.
    pub fn free(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        offset: SharedOffset,
    ) -> Result<(), FreeError> {
        heap::free(self, clock, timeout_ms, offset, None)
    }

    /// As [`Self::free`], of an object as it was looked up: when its owner has died since, and its
    /// place may be that of another object, nothing is freed. For whoever cannot know whether the
    /// owner still lives (O5 in [`crate::alloc::heap`]).
    ///
    /// # Errors
    /// [`FreeError`]; nothing is changed then.
    pub fn free_object(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        object: &PeerObject,
    ) -> Result<(), FreeError> {
        let life = object.life().ok_or(FreeError::OtherLife { offset: object.offset() })?;
        heap::free(self, clock, timeout_ms, object.offset(), Some(life))
    }

    /// The object that starts at `offset`, in whatever node's heap, to be read; `None` when none
    /// can start there. Only the heap's owner knows whether it is allocated.
    #[must_use]
    pub fn object(&self, offset: SharedOffset) -> Option<PeerObject> {
        heap::find(self, offset)
    }

    /// Makes an object this host's to write. The caller has been told by the host that wrote it
    /// before, after that host published what it wrote, and that host writes it no more (M1).
    ///
    /// # Errors
    /// [`TakeOverError`].
    pub fn take_over(&self, offset: SharedOffset) -> Result<Object, TakeOverError> {
        heap::take_over(self, offset)
    }

    /// The most bytes that one object can have: a chunk but for its header.
    #[must_use]
    pub fn object_bytes_max(&self) -> u64 {
        heap::object_bytes_max(self.layout())
    }

    /// Counts this node's heap, as far as this incarnation has used it. Reads all of its headers:
    /// for reports.
    ///
    /// # Errors
    /// [`SweepError::Damaged`].
    pub fn heap_usage(&self, clock: &impl Clock) -> Result<HeapUsage, SweepError> {
        Ok(Access::enter(&Unlocked::begin(self), clock)?.usage())
    }

    /// Frees every object of this node's heap that no root reaches. The caller has made sure that
    /// no process of the host, and no other host, uses such an object, or is about to free one:
    /// what dead processes had allocated and not yet made reachable is found in no other way.
    ///
    /// # Errors
    /// [`SweepError`]; nothing is freed then.
    pub fn sweep_heap(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
    ) -> Result<SweepReport, SweepError> {
        heap::sweep(self, clock, timeout_ms)
    }

    /// As [`Self::allocate_chunk`], and asks the other nodes for a chunk when the region has none
    /// left: waits up to `timeout_ms` for one of them to give one back.
    ///
    /// # Errors
    /// [`AllocateError`]; nothing is changed then.
    pub fn request_chunk(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        purpose: u64,
    ) -> Result<ChunkId, AllocateError> {
        demand::request(self, clock, timeout_ms, purpose)
    }

    /// How many chunks other nodes ask for at this moment, for layers that have some to give.
    #[must_use]
    pub fn chunks_requested(&self) -> u64 {
        demand::of_others(self)
    }

    /// What the host's agent does for other hosts now and then, every [`ATTEND_BEATS`] beats: as
    /// [`Self::answer_chunk_requests`], but one chunk at most, and what is not to be had at once is
    /// left for the next time, so that the heart goes on beating: it waits no longer than
    /// [`TRY_MS`](crate::lock::TRY_MS) for each of two locks. Returns whether a chunk was given back.
    ///
    /// # Errors
    /// [`ReturnError::Damaged`].
    pub fn attend(&self, clock: &impl Clock) -> Result<bool, ReturnError> {
        if self.check_member().is_err() {
            // Others write this node's lines by now.
            return Ok(false);
        }
        heap::attend(self, clock, || {
            self.beat();
        })
    }

    /// Carries out what other hosts have freed, and gives chunks of the heap in which there is no
    /// object back to the region: those above a high-water mark of one, and as many as other nodes
    /// ask for; takes locks between hosts only when there is something to do. The agent of each host
    /// does so by itself ([`Self::attend`]); this is for whoever knows that now is the time. Returns
    /// the number of chunks given back.
    ///
    /// # Errors
    /// [`ReturnError`].
    pub fn answer_chunk_requests(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
    ) -> Result<u64, ReturnError> {
        heap::answer_chunk_requests(self, clock, timeout_ms)
    }
}
