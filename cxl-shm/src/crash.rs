//! Named crash points: the places in multi-step updates where dying matters.
//!
//! Code calls [`reach`] there. Without the feature `crash-points` that is nothing. With it visits
//! are counted, and a process that was armed (`arm`, `arm_from_environment`) kills itself with
//! SIGKILL at the nth visit of a point, so that a test can demand that a death at every one of them
//! ([`CrashPoint::ALL`]) is recovered from.
//!
//! A point belongs after the step that it names, before the next one. Each has a test:
//! `tests/tests/crash_points.rs` fails for one that no process reaches.

#[cfg(feature = "crash-points")]
mod armed;

#[cfg(feature = "crash-points")]
pub use armed::{ARM_VARIABLE, ArmError, Armed, arm, arm_from_environment, visits};

/// Makes the enumeration, its list and its names out of one list of documented names.
macro_rules! crash_points {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A place where a process may die.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum CrashPoint {
            $($(#[doc = $doc])+ $name,)+
        }

        impl CrashPoint {
            /// All of them, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Its name, for people and for [`from_name`](Self::from_name).
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }
        }
    };
}

crash_points! {
    /// The host's lock state says that it waits, its ticket is not published yet.
    LockStateWritten,
    /// A lock is requested.
    LockRequested,
    /// A number of the bakery is published.
    LockNumbered,
    /// The host's lock state says that it holds the lock.
    LockHeld,
    /// A lock was passed on within the host, and the thread that passed it did not look at it
    /// again.
    LockPassed,
    /// A lock that was passed on within the host is taken over.
    LockTakenOver,
    /// A request is about to be withdrawn.
    LockWithdrawing,
    /// What a lock protects is published, the lock is about to be released.
    LockReleasing,
    /// A release or a withdrawal is published, the host's lock state does not say so yet.
    LockEnded,
    /// A lock is released, its host lock is still held.
    LockReleased,
    /// What a dead holder left is redone, its lock is not released yet.
    LockRecovering,
    /// The host's lock states carry a new term, which is not acknowledged yet.
    TermWritten,
    /// A new term is acknowledged, the host tier does not say so yet.
    TermAcknowledged,
    /// A lock manager has claimed a term.
    ManagerClaimed,
    /// Grants are written, not published yet.
    ManagerGranting,
    /// Grants are published.
    ManagerGranted,
    /// A host has written its join mark at a slot, and did not look yet whether another host joins
    /// at the same moment.
    JoinMarked,
    /// The host tier is rebuilt. The node's line is still that of the earlier life.
    JoinTierReset,
    /// The node's line says that it joins.
    JoinAnnounced,
    /// The open intent of one lock is redone. The lock request of the earlier life still stands.
    JoinRedone,
    /// Intents are redone and requests ended, no term is acknowledged yet.
    JoinResumed,
    /// The node's line says that it has joined, the host tier is not open yet.
    JoinSaid,
    /// A process is in the host's registry.
    ProcessRegistered,
    /// A leaving process is removed from the host's registry.
    ProcessUnregistered,
    /// The host tier is closed by the last process to leave, the node's line does not say so yet.
    LeaveTierClosed,
    /// The node's line says that it has left.
    LeaveSaid,
    /// An intent is published, nothing of it written yet.
    IntentOpen,
    /// An intent is published, one of the lines that it names is written.
    IntentPartWritten,
    /// What an intent says is written, it is not closed yet.
    IntentWritten,
    /// What a dead holder's intent says is written again, it is not closed yet.
    IntentRedone,
    /// A chunk belongs to this node, and is not used yet.
    ChunkAllocated,
    /// A chunk is given back, its lock still held.
    ChunkFreed,
    /// A ballot for the death of a host is promised, nothing is accepted at it yet.
    DeathPromised,
    /// The recoverer of a dead host is accepted, not known to be decided.
    DeathAccepted,
    /// A host is declared dead, the decision is published.
    DeathDecided,
    /// A host without free chunks asks other hosts for a chunk.
    ChunkAsked,
    /// A chunk is out of its heap's lists and published. The chunk table does not say so yet.
    ChunkFlushed,
    /// A page of a heap says what it is used for, the heap's lists do not.
    HeapPageTaken,
    /// A page of a heap says that it is free, the heap's lists do not.
    HeapPageReleased,
    /// A freed object of another host is in that host's ring, or one of ours was taken from a ring.
    HeapFreePassed,
    /// The reachable objects of a chunk are marked. Nothing is swept yet.
    HeapMarked,
    /// A destroyed root's object is free, the root's entry is not.
    RootCollected,
    /// A dead host is fenced and its recovery announced, nothing of it is touched.
    RecoveryFenced,
    /// What a dead host left half done is redone, its locks are still held.
    RecoveryRedone,
    /// The locks of a dead host are free. Its heap chunks still belong to it.
    RecoveryFreed,
    /// The heap chunks of a dead host belong to its recoverer. Its slot is still taken.
    RecoveryAdopted,
    /// The slot of a dead host may be joined again. The record of its recovery does not say so yet.
    RecoveryFinalized,
    /// A recovery is done, or was not needed.
    RecoveryDone,
    /// A host has found itself declared dead, and says so to its processes.
    SelfFenced,
    /// A joining host found that the earlier life of the slot has ended, and published its arrival.
    JoinArrived,
    /// Descriptors say WRITING, the payloads are not copied.
    PublishReserved,
    /// The payloads are on the device, their descriptors still say WRITING.
    PublishCopied,
    /// Descriptors say READY in the caches of their host. The log has no entries for them yet.
    PublishReady,
    /// Descriptors say READY, and the log has new entries. Its head does not count them yet.
    PublishLogged,
    /// The log's head covers the new entries, the heap is still locked.
    PublishAnnounced,
    /// Descriptors of removed blocks are tombstones. The heap's directory does not say so yet.
    RetireFreed,
    /// Tombstones say that searches end there, the heap is still locked.
    TombstonesCleaned,
    /// Holds are counted on their host, their reader words are not published.
    HoldCounted,
    /// The reader words of holds are published, the descriptors were not looked at.
    HoldWritten,
    /// Holds are released, on their host and in their reader words.
    HoldReleased,
    /// Descriptors say EVICTING, their reader words were not looked at.
    EvictAnnounced,
    /// Held blocks are READY again. The other blocks still say EVICTING.
    EvictDecided,
    /// A chunk that is being given back is empty. The chunk table does not say so yet.
    ChunkVacated,
    /// A reclaimer has named the orphan that it empties. Nothing of the orphan is written yet.
    OrphanTaken,
    /// A heap's directory is about to be rebuilt. Nothing is written yet.
    SweepMarked,
    /// The other slot of the superblock is published, the word names the old one.
    SuperblockSlotWritten,
    /// The word names the new slot of the superblock, its lock is still held.
    SuperblockReplaced,
    /// Blocks are written to a drive, and not durable yet.
    BackupWritten,
    /// Blocks are durable on a drive, and not announced yet.
    BackupCommitted,
    /// Blocks on a drive are announced.
    BackupAnnounced,
    /// Restored blocks are in the pool, and their requests are not answered yet.
    RestorePublished,
    /// A clear has swept the pool again. The drives still have the blocks.
    ClearSwept,
    /// Cleared blocks are withdrawn, and still on a drive.
    ClearWithdrawn,
    /// Cleared blocks are removed from a folder, and that is not durable yet.
    ClearRemoved,
    /// A clear is durable on all drives, and not answered yet.
    ClearCommitted,
}

impl CrashPoint {
    /// The point with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|point| point.name() == name)
    }
}

/// Marks that the program is at `point`.
#[cfg(feature = "crash-points")]
#[inline]
pub fn reach(point: CrashPoint) {
    armed::visit(point);
}

/// Marks that the program is at `point`.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub fn reach(_: CrashPoint) {}
