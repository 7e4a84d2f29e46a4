//! The heap of this host, entered: its host lock is held.

use super::core::{Broken, Heap, Piece, Refused};
use super::error::{FreeError, ObjectError};
use super::object::{Object, SharedOffset};
use super::page::{Pages, Place};
use super::return_error::ReturnError;
use super::ring::{Ring, SLOTS};
use super::size::Room;
use super::unlocked::Unlocked;
use super::usage::HeapUsage;
use super::words::{HeapWords, Origin};
use cxl_shm::clock::Clock;
use cxl_shm::crash::{self, CrashPoint};
use cxl_shm::fabric::{Fabric, PeerLine, refresh_all};
use cxl_shm::host::{HostGuard, HostLockName};
use cxl_shm::layout::{ChunkState, HEAP_PURPOSE, HeapHeader, Layout, header};
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::{ChunkId, Extent, Incarnation, LineRange, NodeId};

/// To whose heap a chunk belongs, as this heap sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeapOwnership {
    /// This heap's, in use.
    Ours,
    /// This node's, but what its lines say of pages is another incarnation's, or nobody's.
    Unbuilt,
    /// Of another node's heap.
    Other(NodeId),
    /// Nobody's, or used for something else.
    NoHeap,
}

/// The host lock of the heap is held, and what a dead holder left is mended.
#[derive(Debug)]
pub(crate) struct Access<'m, B: Backend> {
    pub(super) member: &'m Member<B>,
    pub(super) heap: Heap<'m, B>,
    /// It is the thread that sends its host's heartbeat: what takes long is not to keep it from
    /// that.
    beats: bool,
    _guard: HostGuard<'m, B::HostMemory>,
}

/// Somebody else writes the heap's lines: they were made anew and contradict each other again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Damaged;

impl From<Damaged> for ObjectError {
    fn from(Damaged: Damaged) -> Self {
        Self::Damaged
    }
}

impl From<Damaged> for ReturnError {
    fn from(Damaged: Damaged) -> Self {
        Self::Damaged
    }
}

impl From<Damaged> for FreeError {
    fn from(Damaged: Damaged) -> Self {
        Self::Damaged
    }
}

/// The node whose heap a chunk belongs to, freshly read.
pub(super) fn heap_owner<F: Fabric>(layout: &Layout, fabric: &F, chunk: ChunkId) -> Option<NodeId> {
    let entry = layout.chunk_entry(chunk).fresh(fabric).ok()?;
    match entry.state()? {
        ChunkState::Owned { owner, purpose: HEAP_PURPOSE, .. } => layout.node(owner.0),
        ChunkState::Owned { .. } | ChunkState::Free | ChunkState::Failed => None,
    }
}

/// The object that starts at `offset`, freshly read, and the node that has built its chunk.
pub(super) fn look_at<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    offset: u64,
) -> Option<(Place, Option<(NodeId, Incarnation)>)> {
    let pages = Pages::new(fabric, layout);
    let page = pages.at(offset)?;
    let header = header(layout.chunk(pages.chunk_of(page)));
    // One fence for both: an object that a caller guarantees stays in the life that it is in, and
    // of one that nobody vouches for nothing depends on what is found.
    refresh_all(fabric, [LineRange::one(pages.line(page)), header.range()]);
    let builder = header.cached(fabric).ok().and_then(|header| header.builder());
    Some((pages.place(offset)?, builder))
}

impl<'m, B: Backend> Access<'m, B> {
    /// Waits for the heap's host lock, then mends what a dead holder left. Other hosts wait for
    /// none of it: the caller holds no lock of theirs.
    pub(crate) fn enter(
        unlocked: &'m Unlocked<'_, B>,
        clock: &impl Clock,
    ) -> Result<Self, Damaged> {
        let member = unlocked.member();
        Self::entered(member, member.lock_host(HostLockName::Objects, clock), false)
    }

    /// As [`enter`](Self::enter), and gives up with `None` at `until_ms` of `clock`. It beats while
    /// it mends, as [`try_enter`](Self::try_enter) does.
    pub(crate) fn enter_until(
        member: &'m Member<B>,
        clock: &impl Clock,
        until_ms: u64,
    ) -> Result<Option<Self>, Damaged> {
        let guard = member.lock_host_until(HostLockName::Objects, clock, until_ms);
        guard.map(|guard| Self::entered(member, guard, true)).transpose()
    }

    /// As [`enter`](Self::enter), if no living process has the lock. Mending takes a few
    /// milliseconds a chunk. So a host whose agent mends, or died, has its heartbeat meanwhile.
    pub(crate) fn try_enter(member: &'m Member<B>) -> Result<Option<Self>, Damaged> {
        let guard = member.try_lock_host(HostLockName::Objects);
        guard.map(|guard| Self::entered(member, guard, true)).transpose()
    }

    fn entered(
        member: &'m Member<B>,
        guard: HostGuard<'m, B::HostMemory>,
        beats: bool,
    ) -> Result<Self, Damaged> {
        let recovered = guard.recovered();
        let pages = Pages::new(member.fabric(), member.layout());
        let heap = Heap { pages, words: HeapWords::of(member.node_handle().tier()) };
        let access = Self { member, heap, beats, _guard: guard };
        if recovered {
            access.mend()?;
        }
        Ok(access)
    }

    /// Ends what a process began that died in the heap.
    fn mend(&self) -> Result<(), Damaged> {
        self.relink()?;
        for node in self.member.layout().nodes() {
            self.heap.words.set_sent(node, None);
        }
        if let Some((offset, origin)) = self.heap.words.redo() {
            // Nobody has been in the heap since: what is not allocated was freed by the dead.
            self.finish_free(offset, origin)?;
        }
        Ok(())
    }

    /// Makes the heap's lists anew.
    pub(super) fn relink(&self) -> Result<(), Damaged> {
        let built = self.built_chunks();
        let beat = || {
            if self.beats {
                self.member.beat_in_long_work();
            }
        };
        self.heap.relink(built.into_iter(), beat).map_err(|Broken| Damaged)
    }

    /// Carries `operation` out, once more after mending when the lists are broken.
    pub(super) fn mended<T>(
        &self,
        operation: impl Fn(&Heap<'m, B>) -> Result<T, Broken>,
    ) -> Result<T, Damaged> {
        match operation(&self.heap) {
            Ok(value) => Ok(value),
            Err(Broken) => {
                self.relink()?;
                operation(&self.heap).map_err(|Broken| Damaged)
            }
        }
    }

    /// Takes room for an object; `None` when there is none in the chunks of this heap.
    pub(super) fn take(&self, room: Room) -> Result<Option<Object>, Damaged> {
        let offset = self.mended(|heap| heap.take(room))?;
        let life = (self.member.node(), self.member.incarnation());
        // MEM-M1: the chunk is this node's, and no object was there.
        let object = |extent| {
            self.member.may_write(extent);
            Object::new(extent, Some(life))
        };
        Ok(offset.and_then(|offset| Extent::new(offset, room.bytes())).map(object))
    }

    /// Frees an object of this heap.
    pub(super) fn free(&self, offset: SharedOffset) -> Result<(), FreeError> {
        let place = self.heap.pages.place(offset.bytes());
        let place = place.ok_or(FreeError::NotAnObject { offset })?;
        self.free_place(&place, offset)
    }

    fn free_place(&self, place: &Place, offset: SharedOffset) -> Result<(), FreeError> {
        let refused = |refused| match refused {
            Refused::NotAllocated => FreeError::NotAllocated { offset },
            Refused::Named => FreeError::Named { offset },
            Refused::Broken => FreeError::Damaged,
        };
        match self.heap.give_back(place) {
            Err(Refused::Broken) => {
                self.relink()?;
                // The object itself may be free by now: then only the lists were in the way.
                match self.heap.give_back(place) {
                    Ok(()) | Err(Refused::NotAllocated) => Ok(()),
                    Err(error) => Err(refused(error)),
                }
            }
            outcome => outcome.map_err(refused),
        }
    }

    /// The object that starts at `offset` in this heap, if it is allocated.
    pub(crate) fn allocated(&self, offset: u64) -> Option<Place> {
        let place = self.heap.pages.place(offset)?;
        self.heap.is_allocated(&place).then_some(place)
    }

    /// Says that a root names the object, or that none does any more.
    pub(crate) fn set_named(&self, place: &Place, named: bool) {
        self.heap.set_named(place, named);
    }

    /// Sends the free of an object of `owner`'s heap there; only if it is still in `life`, when
    /// that is given.
    pub(super) fn send_free(
        &self,
        owner: NodeId,
        offset: SharedOffset,
        life: Option<(NodeId, Incarnation)>,
    ) -> Result<(), FreeError> {
        let (layout, fabric) = (self.member.layout(), self.member.fabric());
        let found = look_at(layout, fabric, offset.bytes());
        let (place, builder) = found.ok_or(FreeError::NotAnObject { offset })?;
        if life.is_some_and(|life| builder != Some(life)) {
            return Err(FreeError::OtherLife { offset });
        }
        // OBJECT-O5: the life that the object is in, as its chunk says. Should that be over by the
        // time that the owner looks, the free is of something that is gone.
        let built_by_owner = builder.filter(|(node, _)| *node == owner);
        let (_, incarnation) = built_by_owner.ok_or(FreeError::OwnerUnknown { owner })?;
        let ring = Ring::new(layout, self.member.node(), owner);
        let words = &self.heap.words;
        let sent = words.sent(owner).unwrap_or_else(|| ring.recount(fabric));
        words.set_sent(owner, Some(sent));
        let waiting = ring.waiting(fabric, sent);
        if waiting >= SLOTS {
            return Err(FreeError::Backlog { owner, waiting });
        }
        // OBJECT-O4, MEM-M1: nothing that we wrote there may land in the owner's next object.
        fabric.publish(LineRange::covering(place.extent));
        ring.send(self.member.node_handle(), fabric, sent, offset, incarnation);
        crash::reach(CrashPoint::HeapFreePassed);
        words.set_sent(owner, Some(sent.wrapping_add(1)));
        Ok(())
    }

    /// Carries out the frees that other hosts have sent; how many there were.
    pub(crate) fn drain(&self) -> Result<u64, Damaged> {
        let (layout, fabric) = (*self.member.layout(), self.member.fabric());
        let me = self.member.node();
        let mut drained = 0;
        let senders = || layout.nodes().filter(|sender| *sender != me);
        let ring_of = |sender| Ring::new(&layout, sender, me);
        // One fence for what mostly is all: whether there is a first free of each.
        let next =
            |ring: Ring| ring.slot_range(ring.own_tail(self.member.node_handle()).own(fabric));
        refresh_all(fabric, senders().map(|sender| next(ring_of(sender))));
        for sender in senders() {
            let ring = ring_of(sender);
            let tail = ring.own_tail(self.member.node_handle());
            let first = tail.own(fabric);
            let mut position = first;
            while position.wrapping_sub(first) < SLOTS
                && let Some(sent) = ring.look(fabric, position, position == first)
            {
                let origin = Origin::Ring { sender, position };
                // One that was meant for a former incarnation was swept with it.
                if sent.is_for(self.member.incarnation()) {
                    self.heap.words.begin_redo(sent.offset.bytes(), origin);
                    self.finish_free(sent.offset.bytes(), origin)?;
                } else {
                    fabric.store(tail.at(), position.wrapping_add(1));
                }
                position = position.wrapping_add(1);
            }
            if position != first {
                // The sender may use the slots again.
                tail.publish(fabric, position);
            }
            drained += position.wrapping_sub(first);
        }
        Ok(drained)
    }

    /// Frees an object for the reason `origin`, and says so where the reason came from. Done again
    /// by the next in the heap when this process dies on the way.
    pub(super) fn finish_free(&self, offset: u64, origin: Origin) -> Result<(), Damaged> {
        let words = &self.heap.words;
        let chunk = Extent::new(offset, 1).and_then(|at| self.member.layout().chunk_of(at));
        let ours = chunk.is_some_and(|chunk| self.ownership(chunk) == HeapOwnership::Ours);
        let place = self.heap.pages.place(offset).filter(|_| ours);
        if let (Origin::Root { .. }, Some(place)) = (origin, &place) {
            self.set_named(place, false);
        }
        let outcome = match (SharedOffset::new(offset), place) {
            (Some(offset), Some(place)) => self.free_place(&place, offset),
            (Some(offset), None) => Err(FreeError::Foreign { offset }),
            (None, _) => {
                words.count_refused();
                tracing::warn!(
                    offset,
                    ?origin,
                    "refused a free: no object can start at that offset"
                );
                Ok(())
            }
        };
        match outcome {
            Ok(()) => {}
            Err(FreeError::Damaged) => {
                // Where it came from says still that it is to be done. Remembered here, it would be
                // done after a later death, too, to whatever object has the place by then.
                words.end_redo();
                return Err(Damaged);
            }
            Err(error) => {
                words.count_refused();
                tracing::warn!(%error, ?origin, "a free was refused");
            }
        }
        crash::reach(CrashPoint::HeapFreePassed);
        match origin {
            Origin::Ring { sender, position } => {
                let ring = Ring::new(self.member.layout(), sender, self.member.node());
                let tail = ring.own_tail(self.member.node_handle());
                // Published with the rest of the ring; within the host it counts from here.
                let fabric = self.member.fabric();
                let low = tail.own(fabric) & !Origin::POSITION_MASK;
                fabric.store(tail.at(), (low | position).wrapping_add(1));
            }
            Origin::Root { .. } => words.set_collected(Some(origin)),
        }
        words.end_redo();
        Ok(())
    }

    /// To whose heap a chunk belongs.
    pub(crate) fn ownership(&self, chunk: ChunkId) -> HeapOwnership {
        if self.heap.words.knows(chunk) {
            return HeapOwnership::Ours;
        }
        match heap_owner(self.member.layout(), self.member.fabric(), chunk) {
            Some(owner) if owner != self.member.node() => HeapOwnership::Other(owner),
            Some(_) if self.is_built(chunk) => {
                self.heap.words.learn(chunk);
                HeapOwnership::Ours
            }
            Some(_) => HeapOwnership::Unbuilt,
            None => HeapOwnership::NoHeap,
        }
    }

    /// Whether this incarnation has built the chunk, which is this node's.
    pub(super) fn is_built(&self, chunk: ChunkId) -> bool {
        let header = self.header(chunk).cached(self.member.fabric());
        header == Ok(HeapHeader::built_by(self.member.node(), self.member.incarnation()))
    }

    /// Says, to this host alone, which node has built the chunk.
    pub(super) fn set_header(&self, chunk: ChunkId, header: &HeapHeader) {
        // MEM-M1: the chunk is this node's.
        self.header(chunk).claim().write(self.member.fabric(), header);
    }

    pub(super) fn header(&self, chunk: ChunkId) -> PeerLine<HeapHeader> {
        header(self.member.layout().chunk(chunk))
    }

    /// The chunks of this node's heap, built or not, freshly read.
    pub(super) fn chunks(&self) -> Vec<ChunkId> {
        let owned = self.member.owned_chunks().into_iter();
        owned.filter(|(_, purpose)| *purpose == HEAP_PURPOSE).map(|(chunk, _)| chunk).collect()
    }

    pub(super) fn built_chunks(&self) -> Vec<ChunkId> {
        self.chunks().into_iter().filter(|chunk| self.is_built(*chunk)).collect()
    }

    /// Counts the heap.
    pub(crate) fn usage(&self) -> HeapUsage {
        let mut usage =
            HeapUsage { refused_frees: self.heap.words.refused(), ..HeapUsage::default() };
        for chunk in self.built_chunks() {
            usage.chunks += 1;
            let pieces: Vec<Piece> = self.heap.pieces(chunk).collect();
            pieces.iter().for_each(|piece| usage.count(piece));
        }
        usage
    }
}

/// A destroyed root whose object waits to be freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Retired {
    /// Its entry in the table.
    pub(crate) entry: u16,
    /// Which of the roots that were in the entry.
    pub(crate) sequence: u64,
    /// Its object.
    pub(crate) offset: u64,
}

impl<B: Backend> Access<'_, B> {
    /// Frees the objects of those of `retired` that are in this heap, each once, and calls
    /// `set_free` for the root of each. The caller holds the lock of the roots.
    pub(crate) fn collect(
        &self,
        retired: &[Retired],
        set_free: impl Fn(&Retired),
    ) -> Result<u64, Damaged> {
        let words = &self.heap.words;
        let origin_of =
            |root: &Retired| Origin::Root { entry: root.entry, sequence: root.sequence };
        let ours = |root: &&Retired| {
            let chunk =
                Extent::new(root.offset, 1).and_then(|at| self.member.layout().chunk_of(at));
            chunk.is_some_and(|chunk| self.ownership(chunk) == HeapOwnership::Ours)
        };
        let mut mine: Vec<_> = retired.iter().filter(ours).collect();
        // The one that a process died with comes first: there is one word to remember it by.
        mine.sort_by_key(|root| !words.is_collected(origin_of(root)));
        for root in &mine {
            let origin = origin_of(root);
            if !words.is_collected(origin) {
                words.begin_redo(root.offset, origin);
                self.finish_free(root.offset, origin)?;
            }
            crash::reach(CrashPoint::RootCollected);
            set_free(root);
            words.set_collected(None);
        }
        // Of a process that died behind `set_free`: no root waits for that any more.
        words.set_collected(None);
        Ok(mine.len() as u64)
    }
}
