//! What a node leaves to the layer above when nobody has its slot: its area and its chunks, until the
//! slot has a new life.
//!
//! One host that lives may write there meanwhile, the *guardian* of that *ward*. It says so in a word
//! of its own, in a line that holds nothing else (M1):
//!
//! ```text
//! guardian   word names the ward, published    fresh look: vacant, and no other word in force names it?
//!            writes what the ward left         word cleared
//! next life  node's line says that it joins    fresh look: no word in force names it?
//!            drops what its caches hold of its area, then writes there
//! ```
//!
//! - **W1** A host writes the area of another node only while its word names that node, published, and
//!   a fresh look after that found that node dead or left, and named by no other word in force. Of
//!   two that name the same, or of a guardian and the ward's next life, one sees the other. What the
//!   ward's last life stored is on the device by then: a host that leaves flushes its area, and one
//!   that is dead was fenced (R1).
//! - **W2** A new life of a node, once its line says that it lives, waits until no word in force names
//!   it, before it reads or writes what the guardian may write. A guardian looks before every batch,
//!   and while it waits for a lock, whether the ward has come back, and stops then.
//! - **W3** A word is in force until it is cleared, or until the life that wrote it is over *and none of
//!   its stores to the ward can still be on the way*: a host that was declared dead may be writing,
//!   and the caches of one whose processes all died may hold lines of the ward. That is so once that
//!   life is fenced, which a recovery record of it, or of a later life, says: the host is off, or what
//!   its caches hold of all areas was flushed. And it is so once the line of the node says that the
//!   slot is vacant, or has a later life: who leaves, and who joins after a life that did not leave,
//!   flushes the area that the word names, and clears the word, before its line says so ([`settle`]).
//!   Over once is over for good. The word is read before the line: a vacant slot is that of its
//!   life or of a later one, whatever a damaged word says.
//! - **W4** A host is guardian by one of its processes. When that is dead, the next that looks after
//!   the dead writes back what it stored and clears the word (M8), and so does the one that takes its
//!   place in the host's registry. A word that names nobody, as after
//!   damage, is in force for nobody, and cleared by its own host in the same way.

use super::settle::publish_in_parts;
use super::slot::recoveries_of;
use super::{HostGuard, HostLockName, Liveness, Member, ProcessSlot, Seat};
use crate::clock::Clock;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, HostMemory, LineError, OwnedArea, OwnedWord, refresh_all};
use crate::intent::set_chunk;
use crate::layout::{CHUNK_LOCK, ChunkEntry, ChunkState, Layout, NodeState, RecoveryStep};
use crate::lock::LockError;
use crate::lock::arbitrated::beat_heart;
use crate::mutant::{self, Mutant};
use crate::units::{ChunkId, Incarnation, NodeId};

/// What a host's word says: which ward it is the guardian of, and by which process.
///
/// ```text
/// 1 + ward u16 | process u16 | incarnation of the guardian u32
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Guardian {
    /// Whose area it writes. Not checked to be a node of the region.
    pub ward: NodeId,
    /// By which of its processes.
    pub process: ProcessSlot,
    /// In which of its lives.
    pub incarnation: Incarnation,
}

impl Guardian {
    /// The word that says so.
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from(self.incarnation.0) << 32
            | u64::from(self.process.0) << 16
            | u64::from(self.ward.0.wrapping_add(1))
    }

    /// What a word says; `None` when it names nobody.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
        let ward = u16::from_le_bytes([a, b]).checked_sub(1)?;
        Some(Self {
            ward: NodeId(ward),
            process: ProcessSlot(u16::from_le_bytes([c, d])),
            incarnation: Incarnation(u32::from_le_bytes([e, f, g, h])),
        })
    }
}

/// A host other than `me` whose word, freshly read, names `ward` and is in force (W3).
fn guardian_of<F: Fabric>(layout: &Layout, fabric: &F, me: NodeId, ward: NodeId) -> Option<NodeId> {
    let others = || layout.nodes().filter(|node| *node != me);
    refresh_all(fabric, others().map(|node| layout.guardian(node).range()));
    others().find(|node| {
        let guardian = Guardian::from_word(layout.guardian(*node).cached(fabric));
        guardian.is_some_and(|it| it.ward == ward && !has_lapsed(layout, fabric, *node, it))
    })
}

/// Whether the word of `node`, which was read before, is not in force any more (W3).
fn has_lapsed<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId, guardian: Guardian) -> bool {
    let over = match layout.node_line(node).fresh(fabric) {
        // Nobody ever lived there: damage.
        Err(LineError::Blank { .. }) => true,
        Ok(line) => {
            line.incarnation() > guardian.incarnation
                || line.state().is_some_and(NodeState::is_vacant)
        }
        Err(LineError::Corrupt { .. }) => false,
    };
    over || recoveries_of(layout, fabric, node).iter().any(|(_, record)| {
        record.case().incarnation >= guardian.incarnation
            && record.step().is_some_and(RecoveryStep::is_fenced)
    })
}

/// Whether nobody has the slot of `node`, and its last life is over: it left, or it died and was
/// recovered. Freshly read.
#[must_use]
pub fn is_vacant<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> bool {
    let line = layout.node_line(node).fresh(fabric);
    line.is_ok_and(|line| line.state().is_some_and(NodeState::is_vacant))
}

/// The look of W1: whether `me`, whose word names `ward`, may write its area.
pub(crate) fn may_write<F: Fabric>(layout: &Layout, fabric: &F, me: NodeId, ward: NodeId) -> bool {
    mutant::is(Mutant::GuardsUnseen)
        || is_vacant(layout, fabric, ward) && guardian_of(layout, fabric, me, ward).is_none()
}

/// The look of W2: who may still be writing the area of `me`, whose line says that it lives.
pub(crate) fn still_guarded<F: Fabric>(layout: &Layout, fabric: &F, me: NodeId) -> Option<NodeId> {
    if mutant::is(Mutant::ComesHomeUnseen) {
        return None;
    }
    guardian_of(layout, fabric, me, me)
}

/// Ends the guardianship of a process that is gone, of this life of the host or of an earlier one
/// (W3, W4): what it stored has arrived before anybody else writes there. The caller is alone on its
/// host, as who joins or is the last to leave, and no agent beats: an area, or all of them, may take
/// longer than others wait for a heart, so that beats meanwhile.
pub(crate) fn settle<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F) {
    settle_in_parts(seat, fabric, || {
        beat_heart(seat, fabric);
    });
}

/// As [`settle`], and calls `between` after every few milliseconds' work.
fn settle_in_parts<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, between: impl Fn()) {
    let (layout, word) = (seat.layout(), seat.guardian());
    let found = word.own(fabric);
    if found == 0 {
        return;
    }
    let ward = Guardian::from_word(found).and_then(|guardian| layout.node(guardian.ward.0));
    // Of a damaged word nobody knows whom it named.
    let wards = layout.nodes().filter(|node| ward.is_none_or(|ward| ward == *node));
    // M8.
    publish_in_parts(fabric, wards.map(|ward| layout.area(ward).range()), between);
    word.publish(fabric, 0);
}

impl<F: Fabric, H: HostMemory, L: Liveness> Member<F, H, L> {
    /// The word in which this host says whose guardian it is: a [`Guardian`], or 0. The processes of
    /// the host agree on who writes it by [`Self::lock_ward`].
    #[must_use]
    pub fn guardian_word(&self) -> OwnedWord {
        self.seat().guardian()
    }

    /// The host lock of the word in which this host says whose guardian it is. Waits for other threads
    /// and processes of this host only, which may be moving an area to the device: never taken
    /// where others wait for the heap, nor for a heart.
    pub fn lock_ward(&self, clock: &impl Clock) -> HostGuard<'_, H> {
        self.lock_host(HostLockName::Ward, clock)
    }

    /// Makes this host the guardian of `ward`, by this process; its word says nothing yet. False when
    /// it may not be, which the caller then says by clearing the word: the ward has come back, or
    /// another host looks after it (W1).
    ///
    /// After return of true this host alone may write what the ward left, until it clears its word.
    #[must_use]
    pub fn take_ward(&self, ward: NodeId) -> bool {
        let guardian = Guardian { ward, process: self.process(), incarnation: self.incarnation() };
        self.guardian_word().publish(self.fabric(), guardian.word());
        crash::reach(CrashPoint::WardTaken);
        may_write(self.layout(), self.fabric(), self.node(), ward)
    }

    /// Ends what a process left of this host that was a guardian, and died, left or panicked (W4).
    /// Does nothing while it lives and is not this one. Under [`Self::lock_ward`].
    pub fn settle_ward(&self) {
        let found = self.guardian_word().own(self.fabric());
        let guardian = Guardian::from_word(found)
            .filter(|guardian| self.layout().node(guardian.ward.0).is_some());
        let lives = guardian.is_some_and(|guardian| {
            guardian.incarnation == self.incarnation()
                && guardian.process != self.process()
                && self.is_process_alive(guardian.process)
        });
        if !lives {
            // The agent beats.
            settle_in_parts(self.seat(), self.fabric(), || ());
        }
    }

    /// W4: ends what a process left that had the place of this one in the registry. From now on it
    /// would seem to be us.
    pub(super) fn settle_predecessor(&self, clock: &impl Clock) {
        let found = Guardian::from_word(self.guardian_word().own(self.fabric()));
        if found.is_some_and(|guardian| guardian.process == self.process()) {
            let _guard = self.lock_ward(clock);
            self.settle_ward();
        }
    }

    /// The host, if there is one, that may still be writing what earlier lives of this node left (W2).
    #[must_use]
    pub fn still_guarded(&self) -> Option<NodeId> {
        still_guarded(self.layout(), self.fabric(), self.node())
    }

    /// Whether nobody can write what `node` left: nobody has its slot, and no word in force names it, of
    /// this host or of another (W1). Freshly read. Whoever may write there later says so later.
    #[must_use]
    pub fn is_unattended(&self, node: NodeId) -> bool {
        let (layout, fabric) = (self.layout(), self.fabric());
        if !is_vacant(layout, fabric, node) {
            return false;
        }
        if mutant::is(Mutant::HoldsBesideGuardian) {
            return true;
        }
        let ours = Guardian::from_word(self.guardian_word().own(fabric));
        ours.is_none_or(|ours| ours.ward != node)
            && guardian_of(layout, fabric, self.node(), node).is_none()
    }

    /// The area of a node that is vacant, for the one host that the layer above lets write it: its
    /// guardian.
    ///
    /// # Panics
    /// When the region has no such node.
    #[must_use]
    pub fn area_of_vacant(&self, node: NodeId) -> OwnedArea {
        self.layout().area(node).claim()
    }

    /// The chunks of `node` and what it uses them for, freshly read from the chunk table.
    #[must_use]
    pub fn chunks_of(&self, node: NodeId) -> Vec<(ChunkId, u64)> {
        crate::alloc::owned(self, node)
    }

    /// Gives a chunk of a vacant node, in which nothing is in use any more, back to the region. Only
    /// its guardian may. Returns false, and changes nothing, when it is not that node's, or its heap
    /// of objects has it, or the node's next life came while this waited for the lock (W2).
    ///
    /// # Errors
    /// When the lock of the chunk table is not to be had; nothing is changed then.
    ///
    /// # Panics
    /// When the region has no such chunk.
    pub fn free_chunk_of_vacant(
        &self,
        clock: &impl Clock,
        timeout_ms: u64,
        node: NodeId,
        chunk: ChunkId,
    ) -> Result<bool, LockError> {
        let (layout, fabric) = (*self.layout(), self.fabric());
        let vacant = || is_vacant(&layout, fabric, node);
        let guard = self.lock_shared_while(CHUNK_LOCK, clock, timeout_ms, vacant)?;
        let Some(_guard) = guard else { return Ok(false) };
        // L1.
        let entry = layout.chunk_entry(chunk).fresh(fabric);
        let state = entry.ok().and_then(|entry| entry.state());
        let is_its = matches!(state, Some(ChunkState::Owned { owner, purpose, .. })
            if owner == node && purpose != crate::alloc::HEAP_PURPOSE);
        if is_its {
            set_chunk(self.seat(), fabric, chunk, &ChunkEntry::new(ChunkState::Free));
            crash::reach(CrashPoint::ChunkFreed);
        }
        Ok(is_its)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::clock::SystemClock;
    use crate::fabric::simulated::{SimulatedHost, SimulatedHostMemory, SimulatedRack};
    use crate::layout::{Geometry, LockProtocol, Superblock, format_superblock};
    use crate::member::{HostIdentity, HostTier, LeaveOutcome, PART_LINES, ProcessIdentity};

    const WARD: NodeId = NodeId(1);
    /// As long as each area is, in parts that are published at once.
    const AREA_PARTS: u64 = 3;

    /// Processes up to this number are dead.
    #[derive(Clone)]
    struct DeadUpTo(Rc<Cell<u32>>);

    impl Liveness for DeadUpTo {
        fn is_alive(&self, process: ProcessIdentity) -> bool {
            process.pid() > self.0.get()
        }
    }

    /// How often the heart of node 0 beats while its last process leaves, or its machine comes back
    /// after all of them died, when its guardian's word is `word`.
    fn beats(word: u64, leaves: bool) -> u64 {
        let geometry = Geometry {
            region_bytes: 64 << 20,
            nodes: 3,
            locks: 8,
            chunk_bytes: 64 << 10,
            area_lines: AREA_PARTS * PART_LINES,
            host_words: 0,
        };
        let rack = SimulatedRack::sticky(2, geometry.region_bytes);
        let superblock = Superblock {
            lock_protocol: LockProtocol::Bakery,
            ..Superblock::new([1, 2], geometry, [0; 6])
        };
        let layout = format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
        let dead = DeadUpTo(Rc::default());
        let join = |pid| -> Member<SimulatedHost, SimulatedHostMemory, DeadUpTo> {
            let memory = rack.host_memory(0, HostTier::words_of(&geometry));
            let (identity, me) = (HostIdentity::simulated(0), ProcessIdentity::new(pid, 1));
            let clock = SystemClock::start();
            Member::join(rack.host(0), memory, 0, &identity, me, dead.clone(), &clock).unwrap()
        };
        let [guardian, beside] = [1, 2].map(join);
        guardian.guardian_word().publish(guardian.fabric(), word);
        let left = layout.area(WARD).range().start().word(0).unwrap();
        guardian.fabric().store(left, 5);
        dead.0.set(1);
        std::mem::forget(guardian);
        let heart = || layout.heartbeat(NodeId(0)).fresh(&rack.host(1));
        let before = heart();
        if leaves {
            assert_eq!(beside.leave(), LeaveOutcome::NodeLeft);
        } else {
            dead.0.set(2);
            std::mem::forget(beside);
            std::mem::forget(join(3));
        }
        if word != 0 {
            assert_eq!(rack.device_word(left), 5, "what the guardian stored");
            assert_eq!(layout.guardian(NodeId(0)).fresh(&rack.host(1)), 0);
        }
        heart() - before
    }

    #[test]
    fn a_heart_beats_while_what_a_guardian_left_is_written_back() {
        let (process, incarnation) = (ProcessSlot(0), Incarnation(1));
        let named = Guardian { ward: WARD, process, incarnation }.word();
        let damaged = 7 << 16;
        for leaves in [true, false] {
            let without = beats(0, leaves);
            assert_eq!(beats(named, leaves) - without, AREA_PARTS, "leaves: {leaves}");
            assert_eq!(beats(damaged, leaves) - without, 3 * AREA_PARTS, "leaves: {leaves}");
        }
    }

    #[test]
    fn a_word_says_who_looks_after_whom() {
        for (ward, process, incarnation) in [(0, 0, 1), (31, 255, u32::MAX), (7, 3, 9)] {
            let guardian = Guardian {
                ward: NodeId(ward),
                process: ProcessSlot(process),
                incarnation: Incarnation(incarnation),
            };
            assert_eq!(Guardian::from_word(guardian.word()), Some(guardian));
        }
        assert_eq!(Guardian::from_word(0), None);
        assert_eq!(Guardian::from_word(5 << 32), None, "nobody's");
    }
}
