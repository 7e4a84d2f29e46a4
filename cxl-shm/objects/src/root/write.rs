//! Putting, replacing and destroying roots, under their lock.

use super::error::{DestroyRootError, PutRootError};
use super::table::Entry;
use crate::heap;
use crate::heap::{Access, Deadline, HeapOwnership, HeapWords, Retired, Unlocked};
use crate::heap::{PeerObject, SharedOffset, SweepError};
use crate::root::table;
use crate::root::{RootKind, is_name, read};
use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, refresh_all};
use cxl_shm::intent::Update;
use cxl_shm::layout::{ROOT_LOCK, RootHead, RootName, RootState};
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::{ChunkId, Extent, LINE_BYTES, LineRange};

/// The whole table, read under its lock.
struct Table {
    entries: Vec<(u16, Entry)>,
}

impl Table {
    /// The caller holds the lock of the roots.
    fn read<B: Backend>(member: &Member<B>) -> Self {
        let (layout, fabric) = (member.layout(), member.fabric());
        // LOCK-L1.
        fabric.refresh(layout.roots().range());
        let one = |entry| (entry, table::entry(layout, fabric, entry));
        Self { entries: table::entries().map(one).collect() }
    }

    fn live(&self) -> impl Iterator<Item = (u16, &RootHead)> {
        self.entries.iter().filter_map(|(entry, of)| match of {
            Entry::Head(head) if head.state() == Some(RootState::Live) => Some((*entry, head)),
            _ => None,
        })
    }

    fn find<B: Backend>(&self, member: &Member<B>, name: &str) -> Option<(u16, &RootHead)> {
        let is_it = |entry, head| {
            table::name(member.layout(), member.fabric(), entry, head).as_deref() == Some(name)
        };
        self.live().find(|(entry, head)| head.may_be(name) && is_it(*entry, head))
    }

    /// The entry that a new root of that name takes, and its sequence number there.
    fn room_for(&self, name: &str) -> Option<(u16, u64)> {
        table::entries_for(name).find_map(|entry| match &self.entries.get(usize::from(entry))?.1 {
            Entry::Blank => Some((entry, 1)),
            Entry::Head(head) if head.state() == Some(RootState::Free) => {
                Some((entry, head.sequence().wrapping_add(1)))
            }
            // An entry that cannot be read stays out of use: it is unknown what it names.
            Entry::Head(_) | Entry::Unreadable => None,
        })
    }
}

fn chunk_at<B: Backend>(member: &Member<B>, offset: u64) -> Option<ChunkId> {
    member.layout().chunk_of(Extent::new(offset, LINE_BYTES)?)
}

/// Where an object stands to this node's heap, built if it has to be. No lock is held.
fn ownership<B: Backend>(
    unlocked: &mut Unlocked<'_, B>,
    clock: &impl Clock,
    deadline: Deadline,
    offset: u64,
) -> Result<HeapOwnership, SweepError> {
    let Some(chunk) = chunk_at(unlocked.member(), offset) else { return Ok(HeapOwnership::NoHeap) };
    let ownership = unlocked.enter_until(clock, deadline)?.ownership(chunk);
    if ownership != HeapOwnership::Unbuilt {
        return Ok(ownership);
    }
    heap::build_new(unlocked, clock, deadline)?;
    Ok(unlocked.enter_until(clock, deadline)?.ownership(chunk))
}

/// That the object is allocated in this node's heap (OBJECT-N3).
fn check_ours<B: Backend>(
    unlocked: &mut Unlocked<'_, B>,
    clock: &impl Clock,
    deadline: Deadline,
    offset: SharedOffset,
) -> Result<(), PutRootError> {
    match ownership(unlocked, clock, deadline, offset.bytes())? {
        HeapOwnership::Ours => Ok(()),
        HeapOwnership::Other(owner) => Err(PutRootError::NotOurs { offset, owner }),
        HeapOwnership::Unbuilt | HeapOwnership::NoHeap => Err(PutRootError::NotAnObject { offset }),
    }
}

pub(super) fn put<B: Backend>(
    member: &Member<B>,
    clock: &impl Clock,
    timeout_ms: u64,
    name: &str,
    offset: SharedOffset,
    kind: RootKind,
) -> Result<(), PutRootError> {
    if !is_name(name) {
        return Err(PutRootError::BadName { bytes: name.len() });
    }
    let (mut unlocked, deadline) = (Unlocked::begin(member), Deadline::after(clock, timeout_ms));
    check_ours(&mut unlocked, clock, deadline, offset)?;
    unlocked.in_heap_under(&[ROOT_LOCK], clock, deadline, |access| {
        let (layout, fabric) = (member.layout(), member.fabric());
        let table = Table::read(member);
        if table.find(member, name).is_some() {
            return Err(PutRootError::Exists { name: name.to_owned() });
        }
        if table.live().any(|(_, head)| head.offset() == offset.bytes()) {
            return Err(PutRootError::AlreadyNamed { offset });
        }
        let (entry, sequence) = table.room_for(name).ok_or(PutRootError::Full)?;
        // Until the root is there nobody else on this host can free the object.
        let place = access.allocated(offset.bytes()).ok_or(PutRootError::NotAnObject { offset })?;
        // First: a process that dies behind the commit leaves no named object that could be freed.
        // One that dies before it leaves an object for the sweep, as any that it had allocated.
        access.set_named(&place, true);
        // OBJECT-N1.
        let mut update = Update::new(layout, ROOT_LOCK);
        let lines = table::name_lines(layout, entry);
        for (line, part) in lines.iter().zip(RootName::lines(name, sequence)) {
            update = update.line(fabric, *line, &part);
        }
        let head = RootHead::live(name, offset.bytes(), kind.code(), sequence);
        update.line(fabric, table::head(layout, entry), &head).commit(member.node_handle(), fabric);
        Ok(())
    })
}

pub(super) fn replace<B: Backend>(
    member: &Member<B>,
    clock: &impl Clock,
    timeout_ms: u64,
    name: &str,
    offset: SharedOffset,
    kind: RootKind,
) -> Result<PeerObject, PutRootError> {
    let (mut unlocked, deadline) = (Unlocked::begin(member), Deadline::after(clock, timeout_ms));
    check_ours(&mut unlocked, clock, deadline, offset)?;
    unlocked.in_heap_under(&[ROOT_LOCK], clock, deadline, |access| {
        let (layout, fabric) = (member.layout(), member.fabric());
        let table = Table::read(member);
        let found = table.find(member, name);
        let (entry, head) =
            found.ok_or_else(|| PutRootError::NotFound { name: name.to_owned() })?;
        if table.live().any(|(_, head)| head.offset() == offset.bytes()) {
            return Err(PutRootError::AlreadyNamed { offset });
        }
        let old = SharedOffset::new(head.offset()).ok_or(PutRootError::NotAnObject { offset })?;
        // The old object is the caller's to free, in this node's heap: it takes no other host's
        // stores.
        match chunk_at(member, old.bytes()).map(|chunk| access.ownership(chunk)) {
            Some(HeapOwnership::Ours) => {}
            Some(HeapOwnership::Other(owner)) => {
                return Err(PutRootError::NotOurs { offset: old, owner });
            }
            _ => return Err(PutRootError::NotAnObject { offset: old }),
        }
        // While the root still names the old object: a free that was sent for it is refused now, and
        // would later free the next object there (OBJECT-N3).
        access.drain().map_err(SweepError::from)?;
        let place = access.allocated(offset.bytes()).ok_or(PutRootError::NotAnObject { offset })?;
        let old_place =
            access.allocated(old.bytes()).ok_or(PutRootError::NotAnObject { offset: old })?;
        let head = head.with_offset(offset.bytes(), kind.code());
        access.set_named(&place, true);
        let update = Update::new(layout, ROOT_LOCK);
        update.line(fabric, table::head(layout, entry), &head).commit(member.node_handle(), fabric);
        access.set_named(&old_place, false);
        Ok(PeerObject::new(old_place.extent(), Some((member.node(), member.incarnation()))))
    })
}

pub(super) fn destroy<B: Backend>(
    member: &Member<B>,
    clock: &impl Clock,
    timeout_ms: u64,
    name: &str,
) -> Result<(), DestroyRootError> {
    let (mut unlocked, deadline) = (Unlocked::begin(member), Deadline::after(clock, timeout_ms));
    let published =
        read::head_of(member, name).inspect(|(_, head)| take_stores_along(member, head));
    unlocked.in_heap_under(&[ROOT_LOCK], clock, deadline, |access| {
        let fabric = member.fabric();
        let table = Table::read(member);
        let found = table.find(member, name);
        let (entry, head) =
            found.ok_or_else(|| DestroyRootError::NotFound { name: name.to_owned() })?;
        let chunk = chunk_at(member, head.offset());
        let ownership = chunk.map_or(HeapOwnership::NoHeap, |chunk| access.ownership(chunk));
        if ownership == HeapOwnership::NoHeap {
            // It names nothing that any host could free.
            table::set_free(member.node_handle(), fabric, entry);
            return Ok(());
        }
        if published != Some((entry, *head)) {
            // Of another root of that name, put since we looked.
            take_stores_along(member, head);
        }
        table::set_state(member.node_handle(), fabric, entry, RootState::Retired);
        match ownership {
            HeapOwnership::Ours => {
                collect_locked(member, &access)?;
            }
            HeapOwnership::Other(owner) => {
                // MEM-M1: the lock of the roots is held, so one process of this host is here.
                let count = heap::retired(member.layout(), member.node(), owner);
                let retired = member.node_handle().retired(count);
                retired.publish(fabric, retired.own(fabric).wrapping_add(1));
            }
            // The sweep that builds the chunk does not find the object reachable.
            HeapOwnership::Unbuilt | HeapOwnership::NoHeap => {}
        }
        Ok(())
    })
}

/// OBJECT-O4, OBJECT-N4, MEM-M1: what this host wrote in the object of a root that it destroys is
/// on the device before its owner may free it, so that none of it lands in the next object. Called
/// before the lock of the roots is taken: the object may be as long as a chunk, and nobody writes
/// it any more.
fn take_stores_along<B: Backend>(member: &Member<B>, head: &RootHead) {
    let object = SharedOffset::new(head.offset()).and_then(|offset| heap::find(member, offset));
    let ours = |object: &PeerObject| object.life().is_some_and(|(node, _)| node == member.node());
    if let Some(object) = object.filter(|object| !ours(object)) {
        member.fabric().publish(LineRange::covering(object.extent()));
    }
}

/// Whether objects of this node wait to be freed for destroyed roots: other hosts say that they
/// have destroyed some, or a process of this host died while it freed one.
pub(crate) fn is_to_collect<B: Backend>(member: &Member<B>) -> bool {
    let words = HeapWords::of(member.node_handle().tier());
    words.has_collected()
        || others(member).any(|(sender, count)| words.retired_seen(sender) != count)
}

/// What each other node says of itself, freshly read with one fence.
fn others<'m, B: Backend>(
    member: &'m Member<B>,
) -> impl Iterator<Item = (cxl_shm::units::NodeId, u64)> + 'm {
    let (layout, me) = (member.layout(), member.node());
    let others = move || layout.nodes().filter(move |node| *node != me);
    let count = move |node| heap::retired(layout, node, me);
    refresh_all(member.fabric(), others().map(|node| count(node).range()));
    others().map(move |node| (node, count(node).cached(member.fabric())))
}

/// Frees the objects of this node's heap whose roots were destroyed.
pub(crate) fn collect<B: Backend>(
    unlocked: &mut Unlocked<'_, B>,
    clock: &impl Clock,
    deadline: Deadline,
) -> Result<u64, SweepError> {
    let member = unlocked.member();
    unlocked.in_heap_under(&[ROOT_LOCK], clock, deadline, |access| collect_retired(member, &access))
}

/// As [`collect`], without waiting: not for the lock of the roots, nor, with that lock in hand, for
/// a process of this host that is in the heap. `None` when one of them was not available.
pub(crate) fn try_collect<B: Backend>(
    member: &Member<B>,
    clock: &impl Clock,
) -> Result<Option<u64>, SweepError> {
    let Some(_guard) = member.try_lock_shared(ROOT_LOCK, clock)? else { return Ok(None) };
    let Some(access) = Access::try_enter(member)? else { return Ok(None) };
    collect_retired(member, &access).map(Some)
}

/// The caller holds the lock of the roots.
fn collect_retired<B: Backend>(
    member: &Member<B>,
    access: &Access<'_, B>,
) -> Result<u64, SweepError> {
    // Counted first: what is destroyed from here on is for the next look.
    let counts: Vec<_> = others(member).collect();
    // LOCK-L1.
    member.fabric().refresh(member.layout().roots().range());
    let collected = collect_locked(member, access)?;
    let words = HeapWords::of(member.node_handle().tier());
    counts.into_iter().for_each(|(sender, count)| words.set_retired_seen(sender, count));
    Ok(collected)
}

/// As [`collect`]; the caller holds the lock of the roots and has refreshed them.
fn collect_locked<B: Backend>(
    member: &Member<B>,
    access: &Access<'_, B>,
) -> Result<u64, SweepError> {
    let retired: Vec<Retired> = table::seen(member.layout(), member.fabric())
        .into_iter()
        .filter(|root| root.retired)
        .map(|root| Retired { entry: root.entry, sequence: root.sequence, offset: root.offset })
        .collect();
    let set_free =
        |root: &Retired| table::set_free(member.node_handle(), member.fabric(), root.entry);
    // Before their room can be taken again: a free that was sent while a root named its object is
    // refused now, and would later free the next object there (OBJECT-N3).
    access.drain()?;
    Ok(access.collect(&retired, set_free)?)
}
