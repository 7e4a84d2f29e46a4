//! Why blocks are missing in a result.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::{CStr, c_char};

use rackline::{FetchStop, HoldError, PrefetchStop, PublishOutcome, RestoreStop};

/// Why a prefix was not fetched, held, restored from drives, or prefetched, to its end. Always harmless: the engine computes the rest
/// itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum RacklineReason {
    /// Nothing is missing.
    None = 0,
    /// The block was removed.
    Absent = 1,
    /// The block made room for others.
    Evicted = 2,
    /// The block is still being written, or just being removed.
    NotReady = 3,
    /// The block's owner is dead, and the block is not in the pool.
    OwnerDead = 4,
    /// The block is on a drive of its owner.
    Spilled = 5,
    /// This process has failed to read the block before.
    Quarantined = 6,
    /// The block was replaced by a later one.
    StaleGeneration = 7,
    /// The descriptor is that of another block.
    WrongKey = 8,
    /// The block is of another model, or of other tokens with a key that collides.
    KeyCollision = 9,
    /// The block has another length.
    WrongLength = 10,
    /// The descriptor is torn or damaged.
    Torn = 11,
    /// The descriptor, or the handle, names something outside the region.
    Malformed = 12,
    /// The block was removed or replaced while it was read.
    Changed = 13,
    /// The payload is damaged: its checksum differs.
    Checksum = 14,
    /// The bytes could not be copied. The block itself may be good.
    Copy = 15,
    /// The processes of this host hold as many blocks as there is room for.
    TooManyHeld = 16,
    /// This node was declared dead: nothing of it may be written any more.
    DeclaredDead = 17,
    /// The block has left its drive meanwhile.
    RestoreUnknown = 18,
    /// The block on the drive is damaged, and was removed.
    RestoreDamaged = 19,
    /// The drive cannot restore the block in time, or computing it is faster.
    RestoreTooLate = 20,
    /// The queue of the drive's agent is full.
    RestoreBusy = 21,
    /// The pool has no room for the block.
    RestoreNoRoom = 22,
    /// The agent of the drive stopped.
    RestoreStopped = 23,
    /// The wait was over before the block came.
    RestoreLate = 24,
    /// The agent of the drive's host does not answer.
    RestoreNoAgent = 25,
    /// Too many requests to the drive's host were unanswered until the wait was over.
    RestoreRequestsFull = 26,
    /// The block was restored, and evicted before it was held.
    RestoreEvictedAgain = 27,
    /// The pool was closed meanwhile.
    RestoreClosed = 28,
    /// The memory of the payload failed: the device reported an error that it cannot correct.
    MemoryFailed = 29,
    /// The block is neither in the pool nor on a drive.
    PrefetchAbsent = 30,
    /// No agent of this host lives, so nothing is known of drives.
    PrefetchNoAgent = 31,
    /// The options say that drives are not asked.
    PrefetchNoWait = 32,
    /// The prefetches of this process have as much under way as they may.
    PrefetchFull = 33,
}

impl RacklineReason {
    const ALL: [Self; 34] = [
        Self::None,
        Self::Absent,
        Self::Evicted,
        Self::NotReady,
        Self::OwnerDead,
        Self::Spilled,
        Self::Quarantined,
        Self::StaleGeneration,
        Self::WrongKey,
        Self::KeyCollision,
        Self::WrongLength,
        Self::Torn,
        Self::Malformed,
        Self::Changed,
        Self::Checksum,
        Self::Copy,
        Self::TooManyHeld,
        Self::DeclaredDead,
        Self::RestoreUnknown,
        Self::RestoreDamaged,
        Self::RestoreTooLate,
        Self::RestoreBusy,
        Self::RestoreNoRoom,
        Self::RestoreStopped,
        Self::RestoreLate,
        Self::RestoreNoAgent,
        Self::RestoreRequestsFull,
        Self::RestoreEvictedAgain,
        Self::RestoreClosed,
        Self::MemoryFailed,
        Self::PrefetchAbsent,
        Self::PrefetchNoAgent,
        Self::PrefetchNoWait,
        Self::PrefetchFull,
    ];

    fn label(self) -> &'static CStr {
        match self {
            Self::None => c"none",
            Self::Absent => c"absent",
            Self::Evicted => c"evicted",
            Self::NotReady => c"not_ready",
            Self::OwnerDead => c"owner_dead",
            Self::Spilled => c"spilled",
            Self::Quarantined => c"quarantined",
            Self::StaleGeneration => c"stale_generation",
            Self::WrongKey => c"wrong_key",
            Self::KeyCollision => c"key_collision",
            Self::WrongLength => c"wrong_length",
            Self::Torn => c"torn",
            Self::Malformed => c"malformed",
            Self::Changed => c"changed",
            Self::Checksum => c"checksum",
            Self::MemoryFailed => c"memory_failed",
            Self::Copy => c"copy",
            Self::TooManyHeld => c"too_many_held",
            Self::DeclaredDead => c"declared_dead",
            Self::RestoreUnknown => c"restore_unknown",
            Self::RestoreDamaged => c"restore_damaged",
            Self::RestoreTooLate => c"restore_too_late",
            Self::RestoreBusy => c"restore_busy",
            Self::RestoreNoRoom => c"restore_no_room",
            Self::RestoreStopped => c"restore_stopped",
            Self::RestoreLate => c"restore_late",
            Self::RestoreNoAgent => c"restore_no_agent",
            Self::RestoreRequestsFull => c"restore_requests_full",
            Self::RestoreEvictedAgain => c"restore_evicted_again",
            Self::RestoreClosed => c"restore_closed",
            Self::PrefetchAbsent => c"prefetch_absent",
            Self::PrefetchNoAgent => c"prefetch_no_agent",
            Self::PrefetchNoWait => c"prefetch_no_wait",
            Self::PrefetchFull => c"prefetch_full",
        }
    }
}

impl RacklineReason {
    /// The reason with this label. Tests see to it that there is one for every label of the
    /// library.
    fn labelled(label: &str) -> Self {
        let known =
            Self::ALL.into_iter().find(|known| known.label().to_bytes() == label.as_bytes());
        known.expect("every label of a missing block is in the header")
    }
}

impl From<&FetchStop> for RacklineReason {
    fn from(stop: &FetchStop) -> Self {
        Self::labelled(stop.label())
    }
}

impl From<&HoldError> for RacklineReason {
    fn from(error: &HoldError) -> Self {
        Self::labelled(error.label())
    }
}

impl From<&RestoreStop> for RacklineReason {
    fn from(stop: &RestoreStop) -> Self {
        Self::labelled(stop.label())
    }
}

impl From<PrefetchStop> for RacklineReason {
    fn from(stop: PrefetchStop) -> Self {
        Self::labelled(stop.label())
    }
}

/// What became of a block that was published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum RacklineOutcome {
    /// Every host can find and read it.
    Published = 0,
    /// It was in the pool already, or is being written by this host.
    AlreadyThere = 1,
    /// Blocks of this length cannot be: they are longer than a chunk of the region.
    LongerThanChunk = 2,
    /// The descriptors of this node are used up.
    SegmentFull = 3,
    /// No memory is free, and no more was available from the region.
    NoChunk = 4,
    /// This node was declared dead: nothing of it may be written any more.
    DeclaredDead = 5,
    /// Other processes of this host took the free memory first. Publish it again.
    Outrun = 6,
    /// Its bytes could not be copied. Nothing of it is visible.
    Copy = 7,
    /// Other processes of this host believed this one dead and took the block away.
    TakenAway = 8,
    /// No memory is free, and the lock of the region's chunks was not acquired in time. Is a lock
    /// manager running?
    ChunkLock = 9,
    /// The memory for its bytes failed: the device reported an error that it cannot correct.
    MemoryFailed = 10,
    /// This node is drained: it publishes no new blocks (`rackline drain`).
    Drained = 11,
    /// The publish by layers was aborted: none of its blocks is in the pool because of it.
    Aborted = 12,
}

impl RacklineOutcome {
    const ALL: [Self; 13] = [
        Self::Published,
        Self::AlreadyThere,
        Self::LongerThanChunk,
        Self::SegmentFull,
        Self::NoChunk,
        Self::DeclaredDead,
        Self::Outrun,
        Self::Copy,
        Self::TakenAway,
        Self::ChunkLock,
        Self::MemoryFailed,
        Self::Drained,
        Self::Aborted,
    ];

    fn label(self) -> &'static CStr {
        match self {
            Self::Published => c"published",
            Self::AlreadyThere => c"already_there",
            Self::LongerThanChunk => c"longer_than_chunk",
            Self::SegmentFull => c"segment_full",
            Self::NoChunk => c"no_chunk",
            Self::DeclaredDead => c"declared_dead",
            Self::Outrun => c"outrun",
            Self::Copy => c"copy",
            Self::TakenAway => c"taken_away",
            Self::ChunkLock => c"chunk_lock",
            Self::MemoryFailed => c"memory_failed",
            Self::Drained => c"drained",
            Self::Aborted => c"aborted",
        }
    }
}

impl From<&PublishOutcome> for RacklineOutcome {
    fn from(outcome: &PublishOutcome) -> Self {
        let label = outcome.label().as_bytes();
        let known = Self::ALL.into_iter().find(|known| known.label().to_bytes() == label);
        known.expect("every label of a published block is in the header")
    }
}

/// A short name of a reason, as the counters of `rackline_pool_metrics` have it: `"evicted"`, say.
/// The text stays valid. For a number that is not a reason it is `"unknown"`.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_reason_label(reason: i32) -> *const c_char {
    let known = RacklineReason::ALL.into_iter().find(|known| *known as i32 == reason);
    known.map_or(c"unknown", RacklineReason::label).as_ptr()
}

/// A short name of an outcome of a block: `"already_there"`, for example. The text stays valid. For
/// a number that is not an outcome it is `"unknown"`.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn rackline_outcome_label(outcome: i32) -> *const c_char {
    let known = RacklineOutcome::ALL.into_iter().find(|known| *known as i32 == outcome);
    known.map_or(c"unknown", RacklineOutcome::label).as_ptr()
}

#[cfg(test)]
mod tests {
    use cxl_shm::chunk::AllocateError;
    use cxl_shm::lock::LockError;
    use cxl_shm::units::Extent;
    use kv_cache::RestoreOutcome;
    use rackline::dma::DmaError;
    use rackline::{LossCause, MembershipLost, Miss, NodeId, Refusal};

    use super::*;

    #[test]
    fn every_label_of_the_library_is_in_the_header() {
        for miss in Miss::ALL {
            let reason = RacklineReason::from(&FetchStop::Miss(miss));
            assert_eq!(reason.label().to_str().unwrap(), miss.label());
            assert_eq!(RacklineReason::from(&HoldError::Miss(miss)), reason);
        }
        let reason = "not on this machine".to_owned();
        let failed = DmaError::Device { payload: Extent::new(0, 64).unwrap(), reason };
        let lost = MembershipLost { node: NodeId(1), cause: LossCause::DeclaredDead };
        let stop = FetchStop::Failed(failed.clone());
        assert_eq!(RacklineReason::from(&stop), RacklineReason::Copy);
        for (error, expected) in [
            (HoldError::TooMany { most: 1 }, RacklineReason::TooManyHeld),
            (HoldError::MembershipLost(lost), RacklineReason::DeclaredDead),
        ] {
            assert_eq!(RacklineReason::from(&error), expected);
        }
        let refused = RestoreOutcome::ALL.map(RestoreStop::Refused);
        let others = [
            RestoreStop::Late,
            RestoreStop::NoAgent,
            RestoreStop::RequestsFull,
            RestoreStop::EvictedAgain,
            RestoreStop::Hold(HoldError::TooMany { most: 1 }),
            RestoreStop::Closed,
        ];
        for stop in refused.iter().chain(&others) {
            assert_eq!(RacklineReason::from(stop).label().to_str().unwrap(), stop.label());
        }
        let exhausted = AllocateError::Exhausted { chunks: 1, chunk_bytes: 1, own: 1 };
        let locked = AllocateError::Lock(LockError::NoManager);
        let refused = PublishOutcome::Refused;
        for (outcome, expected) in [
            (PublishOutcome::Published, RacklineOutcome::Published),
            (PublishOutcome::AlreadyThere, RacklineOutcome::AlreadyThere),
            (
                refused(Refusal::Length { bytes: 0, most_bytes: 1 }),
                RacklineOutcome::LongerThanChunk,
            ),
            (refused(Refusal::SegmentFull { blocks: 1, slots: 1 }), RacklineOutcome::SegmentFull),
            (refused(Refusal::NoChunk(exhausted)), RacklineOutcome::NoChunk),
            (refused(Refusal::NoChunk(locked)), RacklineOutcome::ChunkLock),
            (refused(Refusal::MembershipLost(lost)), RacklineOutcome::DeclaredDead),
            (refused(Refusal::Outrun), RacklineOutcome::Outrun),
            (refused(Refusal::Drained), RacklineOutcome::Drained),
            (PublishOutcome::Failed(failed), RacklineOutcome::Copy),
            (PublishOutcome::TakenAway, RacklineOutcome::TakenAway),
            (PublishOutcome::MemoryFailed, RacklineOutcome::MemoryFailed),
        ] {
            assert_eq!(RacklineOutcome::from(&outcome), expected);
        }
    }

    #[test]
    fn numbers_are_those_of_the_lists() {
        for (number, reason) in (0..).zip(RacklineReason::ALL) {
            assert_eq!(reason as i32, number, "{reason:?}");
        }
        for (number, outcome) in (0..).zip(RacklineOutcome::ALL) {
            assert_eq!(outcome as i32, number, "{outcome:?}");
        }
    }
}
