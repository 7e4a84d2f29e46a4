//! What a member does with objects.

use super::heap::{
    Access, FreeError, HeapUsage, Object, ObjectError, PeerObject, ReturnError, SharedOffset,
    SweepError, SweepReport, TakeOverError, Unlocked,
};
use crate::give_back;
use crate::heap;
use cxl_shm::clock::Clock;
use cxl_shm::node::{Backend, Member};

/// What a member does with objects.
pub trait Objects {
    /// Allocates an object of at least `bytes` bytes in this node's heap. Its contents are what
    /// was there before ([`Object::zero`]); see OBJECT-O1 to OBJECT-O6 in [`crate::heap`].
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
    /// # use cxl_shm::node::{Backend, Member};
    /// # use cxl_shm_objects::{NamedRoots, Objects, RootKind};
    /// fn publish_greeting<B: Backend>(
    ///     member: &Member<B>,
    ///     clock: &impl Clock,
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     let object = member.allocate(clock, 1000, 100)?;
    ///     assert!(object.write(member.fabric(), 0, b"hello"));
    ///     member.put_root(clock, 1000, "greeting", object.offset(), RootKind::Leaf)?;
    ///     Ok(())
    /// }
    /// ```
    fn allocate(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        bytes: u64,
    ) -> Result<Object, ObjectError>;

    /// Frees the object that starts at `offset`, of any node's heap. The caller has made sure that
    /// nobody uses it (OBJECT-O4), and that it is allocated: its owner has not died since the
    /// caller heard of it (OBJECT-O5), or a root reaches it. Else [`Self::free_object`] is the
    /// call.
    ///
    /// An object of another node's heap is free when that node next looks ([`Self::attend`], or an
    /// allocation that finds no room); what that node
    /// refuses then, a double free say, it counts ([`HeapUsage::refused_frees`]). Waits for a lock
    /// between hosts only when this node's heap has to be rebuilt.
    ///
    /// # Errors
    /// [`FreeError`]; nothing is changed then.
    fn free(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        offset: SharedOffset,
    ) -> Result<(), FreeError>;

    /// As [`Self::free`], of an object as it was looked up: when its owner has died since, and its
    /// place may be that of another object, nothing is freed. For a program that cannot know
    /// whether the owner still lives (OBJECT-O5 in [`crate::heap`]).
    ///
    /// # Errors
    /// [`FreeError`]; nothing is changed then.
    fn free_object(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        object: &PeerObject,
    ) -> Result<(), FreeError>;

    /// The object that starts at `offset`, in whatever node's heap, to be read; `None` when none
    /// can start there. Only the heap's owner knows whether it is allocated.
    #[must_use]
    fn object(&self, offset: SharedOffset) -> Option<PeerObject>;

    /// Makes an object this host's to write. The caller has been told by the host that wrote it
    /// before, after that host published what it wrote, and that host writes it no more (MEM-M1).
    ///
    /// # Errors
    /// [`TakeOverError`].
    fn take_over(&self, offset: SharedOffset) -> Result<Object, TakeOverError>;

    /// The most bytes that one object can have: a chunk except for its header.
    #[must_use]
    fn object_bytes_max(&self) -> u64;

    /// Counts this node's heap, as far as this incarnation has used it. Reads all of its headers:
    /// for reports.
    ///
    /// # Errors
    /// [`SweepError::Damaged`].
    fn heap_usage(&self, clock: &impl Clock) -> Result<HeapUsage, SweepError>;

    /// Frees every object of this node's heap that no root reaches. The caller has made sure that
    /// no process of the host, and no other host, uses such an object, or is about to free one:
    /// what dead processes had allocated and not yet made reachable is found in no other way.
    ///
    /// # Errors
    /// [`SweepError`]; nothing is freed then.
    fn sweep_heap(&self, clock: &impl Clock, timeout_ms: u64) -> Result<SweepReport, SweepError>;

    /// What a process that uses objects does for other hosts now and then, every
    /// [`ATTEND_BEATS`](cxl_shm::lifecycle::ATTEND_BEATS) beats: as
    /// [`Self::answer_chunk_requests`], but one chunk at most, and what is not available at once is
    /// left for the next time, so that the heartbeat continues: it waits no longer than
    /// [`TRY_MS`](cxl_shm::lock::TRY_MS) for each of two locks. Returns whether a chunk was given
    /// back.
    ///
    /// # Errors
    /// [`ReturnError::Damaged`].
    fn attend(&self, clock: &impl Clock) -> Result<bool, ReturnError>;

    /// Carries out what other hosts have freed, and gives chunks of the heap in which there is no
    /// object back to the region: those above a high-water mark of one, and as many as other nodes
    /// ask for; takes locks between hosts only when there is something to do. A process that is
    /// attached with [`ObjectChunks`](crate::ObjectChunks) does so by itself
    /// ([`Self::attend`]); this is for a program that knows that now is the time. Returns the
    /// number of chunks given back.
    ///
    /// # Errors
    /// [`ReturnError`].
    fn answer_chunk_requests(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
    ) -> Result<u64, ReturnError>;
}

impl<B: Backend> Objects for Member<B> {
    fn allocate(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        bytes: u64,
    ) -> Result<Object, ObjectError> {
        heap::allocate(self, clock, timeout_ms, bytes)
    }

    fn free(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        offset: SharedOffset,
    ) -> Result<(), FreeError> {
        heap::free(self, clock, timeout_ms, offset, None)
    }

    fn free_object(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        object: &PeerObject,
    ) -> Result<(), FreeError> {
        let life = object.life().ok_or(FreeError::OtherLife { offset: object.offset() })?;
        heap::free(self, clock, timeout_ms, object.offset(), Some(life))
    }

    fn object(&self, offset: SharedOffset) -> Option<PeerObject> {
        heap::find(self, offset)
    }

    fn take_over(&self, offset: SharedOffset) -> Result<Object, TakeOverError> {
        heap::take_over(self, offset)
    }

    fn object_bytes_max(&self) -> u64 {
        heap::object_bytes_max(self.layout())
    }

    fn heap_usage(&self, clock: &impl Clock) -> Result<HeapUsage, SweepError> {
        Ok(Access::enter(&Unlocked::begin(self), clock)?.usage())
    }

    fn sweep_heap(&self, clock: &impl Clock, timeout_ms: u64) -> Result<SweepReport, SweepError> {
        heap::sweep(self, clock, timeout_ms)
    }

    fn attend(&self, clock: &impl Clock) -> Result<bool, ReturnError> {
        if self.check_member().is_err() {
            // Others write this node's lines by now.
            return Ok(false);
        }
        give_back::attend(self, clock, || self.beat_in_long_work())
    }

    fn answer_chunk_requests(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
    ) -> Result<u64, ReturnError> {
        give_back::answer_chunk_requests(self, clock, timeout_ms)
    }
}
