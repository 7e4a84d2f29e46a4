//! The host tier: words in a host's own DRAM that its processes share.
//!
//! ```text
//! word 0  magic and layout version    1..3 uuid    3 node    4 incarnation    5 state
//! 6       term obeyed    7 pid namespace of the processes    8 places of the registry ever in use
//! 16      requests
//! 32      ticket counter of the queues
//! 48 ..   host locks, one every 16 words: agent, manager, heap, objects, chunk demand, orphan,
//!         drives
//! 160 ..  owner words, one per lock of the region (rule LOCK-Q1)
//! ...     process registry: {place, generation} x 256 (rule HOST-N1, in `places`)
//! ...     waiters' words: {lock, ticket} x 256 (rule LOCK-Q2)
//! ...     waiters' words for the host locks: {host lock, ticket} x 256 (rule LOCK-Q5)
//! ...     lock states: {term, phase, ticket} per lock of the region (rule LOCK-T1)
//! ...     what an operator confirmed: per node 1 + the incarnation that is off
//! ...     silence of the lock manager: {1 + term, heartbeat} for which it was found
//! ...     chunks that programs of this host may have written: a bit each, or for several
//! ...     heap of objects: heads of lists, frees in progress
//! ...     figures that people read: what the processes of the host have done together, how they came
//!         to locks, and how many lines they moved
//! ...     words of the layer above
//! ```
//!
//! Soft state: the first process of a host that joins after none was left makes it again.
//!
//! The words below 16 are read before every operation and seldom written. The words that are
//! written all the time lie 128 bytes apart: processors fetch lines of 64 bytes in pairs.

use super::lock::{HolderToken, HostLock};
use super::lock_figures::LockCounters;
use super::lock_kind::LockKind;
use super::lock_state::LockState;
use super::loss::LossCause;
use super::places::{GoneProcess, Place};
use super::process::{Liveness, PROCESSES_MAX, ProcessIdentity, ProcessSlot};
use super::queue::{HostQueue, QueueWords};
use crate::fabric::HostMemory;
use crate::layout::Geometry;
use crate::units::{ChunkId, Incarnation, LockId, NODES_MAX, NodeId};

const MAGIC: u64 = u64::from_le_bytes(*b"RACKTI\0\0");
/// Version of this layout. Raise it whenever a word of the tier moves or changes its meaning, here,
/// in the heap's words, in the queues or in the lock states: processes of two versions must not
/// share a tier. The first version had no number: its first word was `RACKHOST`.
const LAYOUT_VERSION: u64 = 5;
/// Word 0 of a tier that is in use.
const FIRST_WORD: u64 = MAGIC | LAYOUT_VERSION << 48;

const UUID: usize = 1;
const NODE: usize = 3;
const INCARNATION: usize = 4;
const STATE: usize = 5;
const TERM: usize = 6;
const PID_NAMESPACE: usize = 7;
const PLACES: usize = 8;
/// Words between two that are written all the time: two cache lines of 64 bytes.
const APART: usize = 16;
const REQUESTS: usize = APART;
const TICKETS: usize = 2 * APART;
const OWN_LOCKS_AT: usize = 3 * APART;
const OWNERS_AT: usize = OWN_LOCKS_AT + OWN_LOCKS * APART;
const STATE_MEMBER: u64 = 1;
/// Plus the index of the cause in [`LossCause::ALL`].
const STATE_LOST: u64 = 2;
/// Host locks: those of [`HostLockName`].
const OWN_LOCKS: usize = 7;
#[doc(hidden)]
/// Words of the heap of objects, whatever the region.
pub const OBJECT_WORDS: usize = 192;
#[doc(hidden)]
/// Words of figures, whatever the region. The layer above gives them their meaning.
pub const FIGURE_WORDS: usize = 640;
/// Words of figures of locks, whatever the region.
pub(super) const LOCK_FIGURE_WORDS: usize = 368;
/// Words of the lines that were moved, whatever the region.
const MOVED_WORDS: usize = 16;
/// Words of the map of chunks that may have been written.
const WRITTEN_WORDS: usize = 127;

/// The holder of a host lock, for the recovery of what a dead process left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostLockName {
    /// Held for life by the process whose agent sends the heartbeat of this node.
    Agent,
    /// Held for life by the lock manager, at most one a node.
    Manager,
    /// Guards the node's area and its chunks, among the processes of the host.
    Heap,
    /// Guards the heap of objects, among the processes of the host.
    Objects,
    /// Held by the thread that asks other nodes for a chunk, as long as it asks.
    ChunkDemand,
    /// Guards the word that says whose reclaimer the host is, among its processes.
    Orphan,
    /// Held for life by the process that serves the drives of this host, at most one a node.
    Drives,
}

/// The shared words of one host, laid out.
#[derive(Clone, Debug)]
pub struct HostTier<H> {
    memory: H,
    locks: u32,
}

impl HostTier<()> {
    /// Words of the host tier of the region that `geometry` describes.
    #[must_use]
    pub fn words_of(geometry: &Geometry) -> usize {
        // At most 2^30 by the geometry's own check.
        let host_words = usize::try_from(geometry.host_words).unwrap_or(usize::MAX);
        application_at(geometry.locks).saturating_add(host_words)
    }

    /// First word of the registry of processes.
    pub(super) fn places_at(locks: u32) -> usize {
        processes_at(locks)
    }

    /// Whether a file whose first word is `word` may be used as a host tier by this version of the
    /// software: it is in this layout, or nobody has used it yet. Otherwise the word that is
    /// expected.
    pub(super) fn check_layout(word: u64) -> Result<(), u64> {
        if word == FIRST_WORD || word == 0 { Ok(()) } else { Err(FIRST_WORD) }
    }
}

impl<H: HostMemory> HostTier<H> {
    /// The tier in `memory`, which [`Self::words_of`] words fit.
    ///
    /// # Panics
    /// When they do not.
    pub(crate) fn new(memory: H, locks: u32) -> Self {
        assert!(memory.words() >= application_at(locks), "the host memory is too small");
        Self { memory, locks }
    }

    /// The incarnation that the host's processes are in, when there is one for this region.
    pub(crate) fn incarnation(&self, uuid: [u64; 2], node: NodeId) -> Option<Incarnation> {
        self.life(uuid, node).filter(|_| self.memory.load(STATE) == STATE_MEMBER)
    }

    /// The incarnation for which the tier was made, when it is that of this region and node.
    pub(crate) fn life(&self, uuid: [u64; 2], node: NodeId) -> Option<Incarnation> {
        let m = &self.memory;
        let ours = m.load(0) == FIRST_WORD
            && [m.load(UUID), m.load(UUID + 1)] == uuid
            && m.load(NODE) == u64::from(node.0);
        u32::try_from(m.load(INCARNATION)).ok().filter(|_| ours).map(Incarnation)
    }

    /// Why this host does not take part any more, once it has seen that.
    pub(crate) fn loss(&self) -> Option<LossCause> {
        let index = self.memory.load(STATE).checked_sub(STATE_LOST)?;
        LossCause::ALL.get(usize::try_from(index).ok()?).copied()
    }

    /// Tells every process of the host that it does not take part any more. The first cause stays,
    /// but a node that was declared dead may lose its slot or the region later.
    pub(crate) fn set_loss(&self, cause: LossCause) {
        let state = |cause| {
            let index = LossCause::ALL.iter().position(|other| *other == cause).unwrap_or(0);
            STATE_LOST + index as u64
        };
        // Not over a tier that is closed: then the host has left, or another process makes the tier
        // again.
        let lost = self.memory.compare_exchange(STATE, STATE_MEMBER, state(cause));
        let dead = state(LossCause::DeclaredDead);
        if lost == Err(dead) && cause.is_final() {
            let _ = self.memory.compare_exchange(STATE, dead, state(cause));
        }
    }

    /// Whether an operator has confirmed to this host that life `incarnation` of `node` is over.
    pub(crate) fn is_confirmed_off(&self, node: NodeId, incarnation: Incarnation) -> bool {
        let word = self.memory.load(confirmed_at(self.locks) + node.index());
        word == u64::from(incarnation.0) + 1
    }

    /// An operator confirms that the host of `node` is off, in life `incarnation` of the node.
    pub(crate) fn set_confirmed_off(&self, node: NodeId, incarnation: Incarnation) {
        let word = u64::from(incarnation.0) + 1;
        self.memory.store(confirmed_at(self.locks) + node.index(), word);
    }

    /// For what the lock manager was last found silent, as a word of
    /// [`ManagerWatch`](crate::lock); 0 when it was not.
    pub(crate) fn silence(&self) -> u64 {
        self.memory.load(silence_at(self.locks))
    }

    /// The silence `found` is over, or begins, unless another thread knows better by now.
    pub(crate) fn swap_silence(&self, found: u64, now: u64) {
        let _ = self.memory.compare_exchange(silence_at(self.locks), found, now);
    }

    /// Takes note that programs of this host may write `chunk`, one of `chunks`. Mostly it is
    /// known.
    pub(crate) fn note_written(&self, chunk: ChunkId, chunks: u32) {
        let (at, bit) = self.written_bit(chunk, chunks);
        let mut word = self.memory.load(at);
        while word & bit == 0 {
            match self.memory.compare_exchange(at, word, word | bit) {
                Ok(_) => return,
                Err(found) => word = found,
            }
        }
    }

    /// Whether programs of this host may have written `chunk`, one of `chunks`, since it joined. In
    /// a large region several chunks in a row have one bit.
    pub(crate) fn may_be_written(&self, chunk: ChunkId, chunks: u32) -> bool {
        let (at, bit) = self.written_bit(chunk, chunks);
        self.memory.load(at) & bit != 0
    }

    fn written_bit(&self, chunk: ChunkId, chunks: u32) -> (usize, u64) {
        let bits = WRITTEN_WORDS * u64::BITS as usize;
        let index = chunk.0 as usize / (chunks as usize).div_ceil(bits).max(1);
        (written_at(self.locks) + index / u64::BITS as usize, 1 << (index % u64::BITS as usize))
    }

    /// Makes the tier anew. The caller is alone with it.
    pub(crate) fn reset(
        &self,
        uuid: [u64; 2],
        node: NodeId,
        incarnation: Incarnation,
        pid_namespace: u64,
    ) {
        self.memory.clear();
        self.memory.store(0, FIRST_WORD);
        self.memory.store(UUID, uuid[0]);
        self.memory.store(UUID + 1, uuid[1]);
        self.memory.store(NODE, u64::from(node.0));
        self.memory.store(INCARNATION, u64::from(incarnation.0));
        self.memory.store(PID_NAMESPACE, pid_namespace);
    }

    /// The pid namespace in which the registry's process ids mean something.
    pub(crate) fn pid_namespace(&self) -> u64 {
        self.memory.load(PID_NAMESPACE)
    }

    /// Opens (or closes) the tier to further processes.
    pub(crate) fn set_member(&self, member: bool) {
        self.memory.store(STATE, if member { STATE_MEMBER } else { 0 });
    }

    /// The term that this host obeys; 0 before the first.
    pub(crate) fn term(&self) -> u64 {
        self.memory.load(TERM)
    }

    /// Raises the term that this host obeys to `term`, unless it obeys a later one.
    pub(crate) fn raise_term(&self, term: u64) {
        let mut now = self.memory.load(TERM);
        while now < term {
            match self.memory.compare_exchange(TERM, now, term) {
                Ok(_) => return,
                Err(found) => now = found,
            }
        }
    }

    /// The number of a request of this host: larger than that of every one before it.
    pub(crate) fn next_request(&self) -> u64 {
        let mut last = self.memory.load(REQUESTS);
        loop {
            let next = last.wrapping_add(1);
            match self.memory.compare_exchange(REQUESTS, last, next) {
                Ok(_) => return next,
                Err(found) => last = found,
            }
        }
    }

    /// After which number the requests of this incarnation start, when the host joins.
    pub(crate) fn start_requests(&self, after: u64) {
        self.memory.store(REQUESTS, after);
    }

    #[doc(hidden)]
    /// A host lock by its name.
    pub fn host_lock(&self, name: HostLockName) -> HostLock<'_, H> {
        HostLock::new(&self.memory, host_lock_at(name))
    }

    #[doc(hidden)]
    /// The queue for a host lock (rule LOCK-Q5).
    pub fn host_queue(&self, name: HostLockName) -> HostQueue<'_, H> {
        let waits = host_waits_at(self.locks);
        let owner = host_lock_at(name);
        let words = QueueWords { owner, tickets: TICKETS, places: PLACES, waits };
        HostQueue::new(&self.memory, LockId(index_of(name)), words)
    }

    /// The host's queue for a lock of the region.
    pub(crate) fn queue(&self, lock: LockId) -> HostQueue<'_, H> {
        let owner = OWNERS_AT + self.lock_index(lock);
        let waits = waits_at(self.locks);
        let words = QueueWords { owner, tickets: TICKETS, places: PLACES, waits };
        HostQueue::new(&self.memory, lock, words)
    }

    /// The state of a lock (rule LOCK-T1).
    pub(crate) fn lock_state(&self, lock: LockId) -> LockState {
        LockState::from_word(self.memory.load(self.lock_state_at(lock)))
    }

    pub(crate) fn set_lock_state(&self, lock: LockId, state: LockState) {
        self.memory.store(self.lock_state_at(lock), state.word());
    }

    /// Replaces the lock state `current`; the one found when it is another.
    pub(crate) fn swap_lock_state(
        &self,
        lock: LockId,
        current: LockState,
        new: LockState,
    ) -> Result<(), LockState> {
        self.memory
            .compare_exchange(self.lock_state_at(lock), current.word(), new.word())
            .map(|_| ())
            .map_err(LockState::from_word)
    }

    /// Enters a process into the registry; `None` when it is full.
    pub(crate) fn register(&self, identity: ProcessIdentity) -> Option<(ProcessSlot, HolderToken)> {
        (0..PROCESSES_MAX).map(ProcessSlot).find_map(|slot| {
            let (place_at, generation_at) = self.process_at(slot);
            let entering = self.enter(slot, identity)?;
            let generation = self.memory.load(generation_at).wrapping_add(1);
            self.memory.store(generation_at, generation);
            // What a dead predecessor waited for (LOCK-Q3).
            for waits in [waits_at(self.locks), host_waits_at(self.locks)] {
                self.memory.store(waits + usize::from(slot.0), 0);
            }
            self.raise_places(u64::from(slot.0) + 1);
            let taken = Place::Taken { identity, named: false }.word();
            // It fails when others believed the process dead and struck it off.
            self.memory.compare_exchange(place_at, entering, taken).ok()?;
            Some((slot, HolderToken::new(slot, generation)))
        })
    }

    /// Takes the place for the process, which has no token yet (HOST-N4). The place's word.
    pub(crate) fn enter(&self, slot: ProcessSlot, identity: ProcessIdentity) -> Option<u64> {
        let entering = Place::Entering { identity }.word();
        self.memory.compare_exchange(self.process_at(slot).0, 0, entering).ok()?;
        Some(entering)
    }

    /// A search for waiters looks at so many places.
    fn raise_places(&self, places: u64) {
        let mut now = self.memory.load(PLACES);
        while now < places {
            match self.memory.compare_exchange(PLACES, now, places) {
                Ok(_) => return,
                Err(found) => now = found,
            }
        }
    }

    /// The process in `slot` leaves: its place is free, unless the layer above may name it
    /// (HOST-N1).
    pub(crate) fn unregister(&self, slot: ProcessSlot, identity: ProcessIdentity) {
        let (place_at, generation_at) = self.process_at(slot);
        let generation = self.memory.load(generation_at);
        for (named, after) in [(false, Place::Free), (true, Place::Left { generation })] {
            let taken = Place::Taken { identity, named }.word();
            // It fails when others believed the process dead and struck it off.
            let _ = self.memory.compare_exchange(place_at, taken, after.word());
        }
    }

    /// From now on the layer above may name the place of the process in `slot` (HOST-N1).
    pub(crate) fn name_place(&self, slot: ProcessSlot, identity: ProcessIdentity) {
        let [before, after] = [false, true].map(|named| Place::Taken { identity, named }.word());
        let _ = self.memory.compare_exchange(self.process_at(slot).0, before, after);
    }

    /// The places of processes that died or left.
    pub(crate) fn gone<'t>(
        &'t self,
        liveness: &'t impl Liveness,
    ) -> impl Iterator<Item = GoneProcess> + 't {
        (0..PROCESSES_MAX).map(ProcessSlot).filter_map(|slot| {
            let place = Place::from_word(self.memory.load(self.process_at(slot).0));
            GoneProcess::of(slot, place, liveness)
        })
    }

    /// Frees the place of a process that is gone. False when another process has done so.
    pub(crate) fn free_place(&self, gone: GoneProcess) -> bool {
        let place_at = self.process_at(gone.slot()).0;
        let (before, after) = (gone.place().word(), Place::Free.word());
        self.memory.compare_exchange(place_at, before, after).is_ok()
    }

    /// Whether no other process has had the place that `token` names since.
    pub(crate) fn has_place(&self, token: HolderToken) -> bool {
        let slot = token.process();
        slot.0 < PROCESSES_MAX
            && HolderToken::new(slot, self.memory.load(self.process_at(slot).1)) == token
    }

    #[doc(hidden)]
    /// The process in a slot of the registry.
    pub fn process(&self, slot: ProcessSlot) -> Option<ProcessIdentity> {
        match Place::from_word(self.memory.load(self.process_at(slot).0)) {
            Place::Taken { identity, .. } => Some(identity),
            Place::Free | Place::Entering { .. } | Place::Left { .. } => None,
        }
    }

    /// The registry's entries.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (ProcessSlot, ProcessIdentity)> + '_ {
        (0..PROCESSES_MAX).map(ProcessSlot).filter_map(|slot| Some((slot, self.process(slot)?)))
    }

    /// Whether the process that `token` names is still in its slot and alive.
    pub(crate) fn is_holder_alive(&self, token: HolderToken, liveness: &impl Liveness) -> bool {
        self.has_place(token)
            && self.process(token.process()).is_some_and(|identity| liveness.is_alive(identity))
    }

    #[doc(hidden)]
    /// The words of the heap of objects: [`OBJECT_WORDS`].
    pub fn object_words(&self) -> ApplicationWords<'_, H> {
        ApplicationWords { memory: &self.memory, first: heap_at(self.locks) }
    }

    /// The words of figures: [`FIGURE_WORDS`].
    pub(crate) fn figures(&self) -> ApplicationWords<'_, H> {
        ApplicationWords { memory: &self.memory, first: figures_at(self.locks) }
    }

    /// What is counted of locks of this kind.
    pub(crate) fn lock_counters(&self, kind: LockKind) -> LockCounters<'_, H> {
        let first = lock_figures_at(self.locks);
        LockCounters::of(ApplicationWords { memory: &self.memory, first }, kind)
    }

    /// The words of the lines that the processes of the host have moved.
    pub(crate) fn moved_lines(&self) -> ApplicationWords<'_, H> {
        ApplicationWords { memory: &self.memory, first: moved_at(self.locks) }
    }

    /// The words of the layer above.
    pub(crate) fn application(&self) -> ApplicationWords<'_, H> {
        ApplicationWords { memory: &self.memory, first: application_at(self.locks) }
    }

    fn lock_index(&self, lock: LockId) -> usize {
        assert!(lock.0 < self.locks, "lock {lock} of {}", self.locks);
        lock.0 as usize
    }

    fn lock_state_at(&self, lock: LockId) -> usize {
        lock_states_at(self.locks) + self.lock_index(lock)
    }

    fn process_at(&self, slot: ProcessSlot) -> (usize, usize) {
        let at = processes_at(self.locks) + 2 * usize::from(slot.0);
        (at, at + 1)
    }
}

fn processes_at(locks: u32) -> usize {
    (OWNERS_AT + locks as usize).next_multiple_of(APART)
}

fn waits_at(locks: u32) -> usize {
    processes_at(locks) + 2 * usize::from(PROCESSES_MAX)
}

fn host_waits_at(locks: u32) -> usize {
    waits_at(locks) + usize::from(PROCESSES_MAX)
}

fn lock_states_at(locks: u32) -> usize {
    host_waits_at(locks) + usize::from(PROCESSES_MAX)
}

fn index_of(name: HostLockName) -> u32 {
    match name {
        HostLockName::Agent => 0,
        HostLockName::Manager => 1,
        HostLockName::Heap => 2,
        HostLockName::Objects => 3,
        HostLockName::ChunkDemand => 4,
        HostLockName::Orphan => 5,
        HostLockName::Drives => 6,
    }
}

fn host_lock_at(name: HostLockName) -> usize {
    OWN_LOCKS_AT + index_of(name) as usize * APART
}

fn confirmed_at(locks: u32) -> usize {
    lock_states_at(locks) + locks as usize
}

fn silence_at(locks: u32) -> usize {
    confirmed_at(locks) + usize::from(NODES_MAX)
}

fn written_at(locks: u32) -> usize {
    silence_at(locks) + 1
}

fn heap_at(locks: u32) -> usize {
    // On lines of its own: these words are hot in another way than the locks.
    (written_at(locks) + WRITTEN_WORDS).next_multiple_of(APART)
}

fn figures_at(locks: u32) -> usize {
    heap_at(locks) + OBJECT_WORDS
}

fn lock_figures_at(locks: u32) -> usize {
    figures_at(locks) + FIGURE_WORDS
}

fn moved_at(locks: u32) -> usize {
    lock_figures_at(locks) + LOCK_FIGURE_WORDS
}

fn application_at(locks: u32) -> usize {
    moved_at(locks) + MOVED_WORDS
}

/// The host-tier words that belong to the layer above: zero when the host joins, shared by its
/// processes, lost when the last of them has gone.
#[derive(Debug)]
pub struct ApplicationWords<'t, H> {
    memory: &'t H,
    first: usize,
}

impl<H> Clone for ApplicationWords<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<H> Copy for ApplicationWords<'_, H> {}

impl<H: HostMemory + Clone> ApplicationWords<'_, H> {
    /// The same words, for a thread that keeps no member.
    #[must_use]
    pub fn to_memory(&self) -> ApplicationMemory<H> {
        ApplicationMemory { memory: self.memory.clone(), first: self.first }
    }
}

/// The words of the layer above, with the memory that they are in.
#[derive(Clone, Debug)]
pub struct ApplicationMemory<H> {
    memory: H,
    first: usize,
}

impl<H: HostMemory> HostMemory for ApplicationMemory<H> {
    fn words(&self) -> usize {
        self.memory.words() - self.first
    }

    fn load(&self, index: usize) -> u64 {
        self.memory.load(self.first + index)
    }

    fn store(&self, index: usize, value: u64) {
        self.memory.store(self.first + index, value);
    }

    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.memory.compare_exchange(self.first + index, current, new)
    }
}

impl<H: HostMemory> HostMemory for ApplicationWords<'_, H> {
    fn words(&self) -> usize {
        self.memory.words() - self.first
    }

    fn load(&self, index: usize) -> u64 {
        self.memory.load(self.first + index)
    }

    fn store(&self, index: usize, value: u64) {
        self.memory.store(self.first + index, value);
    }

    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.memory.compare_exchange(self.first + index, current, new)
    }

    fn count(&self, index: usize, value: u64) {
        self.memory.count(self.first + index, value);
    }

    fn counted(&self, index: usize) -> u64 {
        self.memory.counted(self.first + index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change here is a change of the layout: raise [`LAYOUT_VERSION`], then change this.
    #[test]
    fn every_word_is_where_layout_5_has_it() {
        assert_eq!(FIRST_WORD.to_le_bytes(), *b"RACKTI\x05\0");
        let sections = [
            [UUID, NODE, INCARNATION, STATE, TERM, PID_NAMESPACE, PLACES].as_slice(),
            &[REQUESTS, TICKETS, OWN_LOCKS_AT, OWNERS_AT],
            &[processes_at(9), waits_at(9), host_waits_at(9), lock_states_at(9), confirmed_at(9)],
            &[silence_at(9), written_at(9), heap_at(9)],
            &[figures_at(9), lock_figures_at(9), moved_at(9), application_at(9)],
        ];
        let expected = [
            [1, 3, 4, 5, 6, 7, 8].as_slice(),
            &[16, 32, 48, 160],
            &[176, 688, 944, 1200, 1209],
            &[1241, 1242, 1376],
            &[1568, 2208, 2576, 2592],
        ];
        assert_eq!(sections, expected);
    }

    #[test]
    fn words_that_are_written_all_the_time_share_no_pair_of_lines() {
        let own_locks = (0..OWN_LOCKS).map(|index| OWN_LOCKS_AT + index * APART);
        let hot = [REQUESTS, TICKETS, OWNERS_AT].into_iter().chain(own_locks);
        let mut pairs: Vec<usize> = hot.map(|word| word / APART).chain([STATE / APART]).collect();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), OWN_LOCKS + 4);
    }
}
