//! Orphans: the area and the chunks that a node leaves to the layer above, while its slot is
//! vacant.
//!
//! One live host may write there meanwhile: the *reclaimer* of the orphan. It says so in a word of
//! its own, in a line that holds nothing else (MEM-M1):
//!
//! ```text
//! reclaimer  word names the orphan, published     fresh look: vacant, and no other word in force names it?
//!            writes what the orphan left          word cleared
//! next life  the node's line says that it joins   fresh look: no word in force names it?
//!            drops its cached lines of its area, then writes there
//! ```
//!
//! - **ORPHAN-W1** A host writes the area of another node only while its published word names that
//!   node. After the publish, a fresh look must have found the node dead or left, and named by no
//!   other word in force. Of two reclaimers of one orphan, or of a reclaimer and the orphan's next
//!   life, one always sees the other. By then everything that the orphan's last life stored is on
//!   the device: a host that leaves flushes its area, and a dead host was fenced (DEATH-R1).
//! - **ORPHAN-W2** A new life of a node first says in its line that it lives. Then it waits until
//!   no word in force names the node, before it reads or writes anything that a reclaimer may
//!   write. A reclaimer looks for the orphan's return before every batch, and while it waits for a
//!   lock. It stops when the orphan has returned.
//! - **ORPHAN-W3** A word is in force until it is cleared. It also ends when the life that wrote it
//!   is over *and none of that life's stores to the orphan can still arrive*. A host that was
//!   declared dead may still be writing, and a host whose processes all died may hold cached lines
//!   of the orphan. No store can arrive once that life is fenced: its recovery record, or one of a
//!   later life, says so. The host is then off, or its cached lines of all areas were flushed. Nor
//!   can a store arrive once the node's line says that the slot is vacant or has a later life. A
//!   host that leaves, or joins after a life that did not leave, first flushes the area that the
//!   word names, and clears the word ([`end_reclaim`]). A life that is over stays over. A reader
//!   reads the word before the line: a vacant slot is then that of the word's life or a later one,
//!   whatever a damaged word says.
//! - **ORPHAN-W4** A host is reclaimer through one of its processes. When that process dies,
//!   another process writes back what it stored and clears the word (MEM-M8): the next one that
//!   cleans up after dead processes, or the one that takes the dead process's place in the
//!   registry. A word that names no process, for example after damage, is in force for nobody. Its
//!   own host clears it in the same way.

use crate::clock::Clock;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, LineError, OwnedArea, OwnedWord, publish_in_parts, refresh_all};
use crate::host::{HostGuard, HostLockName, ProcessSlot};
use crate::intent::set_chunk;
use crate::layout::{CHUNK_LOCK, ChunkEntry, ChunkState, Layout, NodeState, RecoveryStep};
use crate::lock::LockError;
use crate::mutant::{self, Mutant};
use crate::node::{Backend, Member, NodeHandle, recoveries_of, send_heartbeat};
use crate::units::{ChunkId, Incarnation, NodeId};

/// What a host's word says: which orphan it is the reclaimer of, and by which process.
///
/// ```text
/// 1 + orphan u16 | process u16 | incarnation of the reclaimer u32
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reclaimer {
    /// Whose area it writes. Not checked to be a node of the region.
    pub orphan: NodeId,
    /// By which of its processes.
    pub process: ProcessSlot,
    /// In which of its lives.
    pub incarnation: Incarnation,
}

impl Reclaimer {
    /// The word that says so.
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from(self.incarnation.0) << 32
            | u64::from(self.process.0) << 16
            | u64::from(self.orphan.0.wrapping_add(1))
    }

    /// What a word says; `None` when it names nobody.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
        let orphan = u16::from_le_bytes([a, b]).checked_sub(1)?;
        Some(Self {
            orphan: NodeId(orphan),
            process: ProcessSlot(u16::from_le_bytes([c, d])),
            incarnation: Incarnation(u32::from_le_bytes([e, f, g, h])),
        })
    }
}

/// A host other than `me` whose word, freshly read, names `orphan` and is in force (ORPHAN-W3).
fn reclaimer_of<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    me: NodeId,
    orphan: NodeId,
) -> Option<NodeId> {
    let others = || layout.nodes().filter(|node| *node != me);
    refresh_all(fabric, others().map(|node| layout.reclaimer(node).range()));
    others().find(|node| {
        let reclaimer = Reclaimer::from_word(layout.reclaimer(*node).cached(fabric));
        reclaimer.is_some_and(|it| it.orphan == orphan && !has_lapsed(layout, fabric, *node, it))
    })
}

/// Whether the word of `node`, which was read before, is not in force any more (ORPHAN-W3).
fn has_lapsed<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId, reclaimer: Reclaimer) -> bool {
    let over = match layout.node_line(node).fresh(fabric) {
        // Nobody ever lived there: damage.
        Err(LineError::Blank { .. }) => true,
        Ok(line) => {
            line.incarnation() > reclaimer.incarnation
                || line.state().is_some_and(NodeState::is_vacant)
        }
        Err(LineError::Corrupt { .. }) => false,
    };
    over || recoveries_of(layout, fabric, node).iter().any(|(_, record)| {
        record.case().incarnation >= reclaimer.incarnation
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

/// The look of ORPHAN-W1: whether `me`, whose word names `orphan`, may write its area.
pub(crate) fn may_write<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    me: NodeId,
    orphan: NodeId,
) -> bool {
    mutant::is(Mutant::GuardsUnseen)
        || is_vacant(layout, fabric, orphan) && reclaimer_of(layout, fabric, me, orphan).is_none()
}

/// The look of ORPHAN-W2: who may still be writing the area of `me`, whose line says that it lives.
pub(crate) fn still_guarded<F: Fabric>(layout: &Layout, fabric: &F, me: NodeId) -> Option<NodeId> {
    if mutant::is(Mutant::ComesHomeUnseen) {
        return None;
    }
    reclaimer_of(layout, fabric, me, me)
}

/// Ends the reclamation of a process that is gone, of this life of the host or of an earlier one
/// (ORPHAN-W3, ORPHAN-W4). Everything that process stored arrives before any other host writes
/// there. The caller is alone on its host: it is the first process to join or the last to leave, so
/// no agent sends the heartbeat. Flushing one area, or all of them, may take longer than other
/// hosts wait for a heartbeat. So this sends the heartbeat meanwhile.
pub(crate) fn end_reclaim<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric) {
    end_reclaim_in_parts(handle, fabric, || {
        send_heartbeat(handle, fabric);
    });
}

/// As [`end_reclaim`], and calls `between` after every few milliseconds' work.
fn end_reclaim_in_parts<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    between: impl Fn(),
) {
    let (layout, word) = (handle.layout(), handle.reclaimer());
    let found = word.own(fabric);
    if found == 0 {
        return;
    }
    let orphan = Reclaimer::from_word(found).and_then(|reclaimer| layout.node(reclaimer.orphan.0));
    // Of a damaged word nobody knows whom it named.
    let orphans = layout.nodes().filter(|node| orphan.is_none_or(|orphan| orphan == *node));
    // MEM-M8.
    publish_in_parts(fabric, orphans.map(|orphan| layout.area(orphan).range()), between);
    word.publish(fabric, 0);
}

impl<B: Backend> Member<B> {
    /// The word in which this host says whose reclaimer it is: a [`Reclaimer`], or 0. The processes
    /// of the host agree on who writes it by [`Self::lock_orphan`].
    #[must_use]
    pub fn reclaimer_word(&self) -> OwnedWord {
        self.node_handle().reclaimer()
    }

    /// The host lock of the word in which this host says whose reclaimer it is. Waits for other
    /// threads and processes of this host only, which may be moving an area to the device: never
    /// taken where others wait for the heap, nor for a heartbeat.
    pub fn lock_orphan(&self, clock: &impl Clock) -> HostGuard<'_, B::HostMemory> {
        self.lock_host(HostLockName::Orphan, clock)
    }

    /// Makes this host the reclaimer of `orphan`, by this process; its word says nothing yet. False
    /// when it may not be, which the caller then says by clearing the word: the orphan has come
    /// back, or another host looks after it (ORPHAN-W1).
    ///
    /// After return of true this host alone may write what the orphan left, until it clears its
    /// word.
    #[must_use]
    pub fn take_orphan(&self, orphan: NodeId) -> bool {
        let reclaimer =
            Reclaimer { orphan, process: self.process(), incarnation: self.incarnation() };
        self.reclaimer_word().publish(self.fabric(), reclaimer.word());
        crash::reach(CrashPoint::OrphanTaken);
        may_write(self.layout(), self.fabric(), self.node(), orphan)
    }

    /// Ends what a process left of this host that was a reclaimer, and died, left or panicked
    /// (ORPHAN-W4). Does nothing while it lives and is not this one. Under [`Self::lock_orphan`].
    pub fn end_reclaim(&self) {
        let found = self.reclaimer_word().own(self.fabric());
        let reclaimer = Reclaimer::from_word(found)
            .filter(|reclaimer| self.layout().node(reclaimer.orphan.0).is_some());
        let lives = reclaimer.is_some_and(|reclaimer| {
            reclaimer.incarnation == self.incarnation()
                && reclaimer.process != self.process()
                && self.is_process_alive(reclaimer.process)
        });
        if !lives {
            // The agent beats.
            end_reclaim_in_parts(self.node_handle(), self.fabric(), || ());
        }
    }

    /// ORPHAN-W4: ends what a process left that had the place of this one in the registry. From now
    /// on it would seem to be us.
    pub(super) fn end_reclaim_of_predecessor(&self, clock: &impl Clock) {
        let found = Reclaimer::from_word(self.reclaimer_word().own(self.fabric()));
        if found.is_some_and(|reclaimer| reclaimer.process == self.process()) {
            let _guard = self.lock_orphan(clock);
            self.end_reclaim();
        }
    }

    /// The host, if there is one, that may still be writing what earlier lives of this node left
    /// (ORPHAN-W2).
    #[must_use]
    pub fn still_guarded(&self) -> Option<NodeId> {
        still_guarded(self.layout(), self.fabric(), self.node())
    }

    /// Whether nobody can write what `node` left: nobody has its slot, and no word in force names
    /// it, of this host or of another (ORPHAN-W1). Freshly read. A host that may write there later
    /// says so later.
    #[must_use]
    pub fn is_unattended(&self, node: NodeId) -> bool {
        let (layout, fabric) = (self.layout(), self.fabric());
        if !is_vacant(layout, fabric, node) {
            return false;
        }
        if mutant::is(Mutant::HoldsBesideReclaimer) {
            return true;
        }
        let ours = Reclaimer::from_word(self.reclaimer_word().own(fabric));
        ours.is_none_or(|ours| ours.orphan != node)
            && reclaimer_of(layout, fabric, self.node(), node).is_none()
    }

    /// The area of a node that is vacant, for the one host that the layer above lets write it: its
    /// reclaimer.
    ///
    /// # Panics
    /// When the region has no such node.
    #[must_use]
    pub fn area_of_vacant(&self, node: NodeId) -> OwnedArea {
        self.layout().area(node).claim()
    }

    /// Gives a chunk of a vacant node, in which nothing is in use any more, back to the region.
    /// Only its reclaimer may. Returns false, and changes nothing, when it is not that node's, or
    /// its heap of objects has it, or the node's next life came while this waited for the lock
    /// (ORPHAN-W2).
    ///
    /// # Errors
    /// When the lock of the chunk table cannot be acquired; nothing is changed then.
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
        // LOCK-L1.
        let entry = layout.chunk_entry(chunk).fresh(fabric);
        let state = entry.ok().and_then(|entry| entry.state());
        let is_its = matches!(state, Some(ChunkState::Owned { owner, purpose, .. })
            if owner == node && purpose != crate::layout::HEAP_PURPOSE);
        if is_its {
            // FAULT-C1.
            let failed = entry.ok().and_then(|entry| entry.failed());
            let free = ChunkEntry::new(ChunkState::Free).with_failed(failed);
            set_chunk(self.node_handle(), fabric, chunk, &free);
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
    use crate::fabric::PART_LINES;
    use crate::host::Liveness;
    use crate::host::ProcessIdentity;
    use crate::layout::{Geometry, LockProtocol};
    use crate::lifecycle::leave::LeaveOutcome;
    use crate::verify::fixture::{SMALL, SmallRegion};

    const ORPHAN: NodeId = NodeId(1);
    /// As long as each area is, in parts that are published at once.
    const AREA_PARTS: u64 = 3;

    /// Processes up to this number are dead.
    #[derive(Clone, Debug)]
    struct DeadUpTo(Rc<Cell<u32>>);

    impl Liveness for DeadUpTo {
        fn is_alive(&self, process: ProcessIdentity) -> bool {
            process.pid() > self.0.get()
        }
    }

    /// How often the heartbeat of node 0 beats while its last process leaves, or its machine comes
    /// back after all of them died, when its reclaimer's word is `word`.
    fn beats(word: u64, leaves: bool) -> u64 {
        let area_lines = AREA_PARTS * PART_LINES;
        let geometry = Geometry { region_bytes: 64 << 20, nodes: 3, area_lines, ..SMALL };
        let region = SmallRegion::new(geometry, LockProtocol::Bakery);
        let (rack, layout) = (&region.rack, region.layout);
        let dead = DeadUpTo(Rc::default());
        let clock = SystemClock::start();
        let join = |pid| region.join(0, pid, dead.clone(), &clock);
        let [reclaimer, beside] = [1, 2].map(join);
        reclaimer.reclaimer_word().publish(reclaimer.fabric(), word);
        let left = layout.area(ORPHAN).range().start().word(0).unwrap();
        reclaimer.fabric().store(left, 5);
        dead.0.set(1);
        std::mem::forget(reclaimer);
        let heartbeat = || layout.heartbeat(NodeId(0)).fresh(&rack.host(1));
        let before = heartbeat();
        if leaves {
            assert_eq!(beside.leave(), LeaveOutcome::NodeLeft);
        } else {
            dead.0.set(2);
            std::mem::forget(beside);
            std::mem::forget(join(3));
        }
        if word != 0 {
            assert_eq!(rack.device_word(left), 5, "what the reclaimer stored");
            assert_eq!(layout.reclaimer(NodeId(0)).fresh(&rack.host(1)), 0);
        }
        heartbeat() - before
    }

    #[test]
    fn heartbeats_go_on_while_what_a_reclaimer_left_is_written_back() {
        let (process, incarnation) = (ProcessSlot(0), Incarnation(1));
        let named = Reclaimer { orphan: ORPHAN, process, incarnation }.word();
        let damaged = 7 << 16;
        for leaves in [true, false] {
            let without = beats(0, leaves);
            assert_eq!(beats(named, leaves) - without, AREA_PARTS, "leaves: {leaves}");
            assert_eq!(beats(damaged, leaves) - without, 3 * AREA_PARTS, "leaves: {leaves}");
        }
    }

    #[test]
    fn a_word_says_who_looks_after_whom() {
        for (orphan, process, incarnation) in [(0, 0, 1), (31, 255, u32::MAX), (7, 3, 9)] {
            let reclaimer = Reclaimer {
                orphan: NodeId(orphan),
                process: ProcessSlot(process),
                incarnation: Incarnation(incarnation),
            };
            assert_eq!(Reclaimer::from_word(reclaimer.word()), Some(reclaimer));
        }
        assert_eq!(Reclaimer::from_word(0), None);
        assert_eq!(Reclaimer::from_word(5 << 32), None, "nobody's");
    }
}
