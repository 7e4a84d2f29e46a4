//! Putting, replacing and destroying roots, under their lock.

use super::table::{self, Entry};
use super::{DestroyRootError, PutRootError, RootKind, is_name};
use crate::alloc::heap::{self, Access, Retired, Standing};
use crate::alloc::{PeerObject, SharedOffset, SweepError};
use crate::clock::Clock;
use crate::fabric::{Fabric, HostMemory};
use crate::intent::Update;
use crate::layout::{ROOT_LOCK, RootHead, RootName, RootState};
use crate::member::{Liveness, Member};
use crate::units::{ChunkId, Extent, LINE_BYTES};

/// The whole table, read under its lock.
struct Table {
    entries: Vec<(u16, Entry)>,
}

impl Table {
    /// The caller holds the lock of the roots.
    fn read<F: Fabric, H: HostMemory, L: Liveness>(member: &Member<F, H, L>) -> Self {
        let (layout, fabric) = (member.layout(), member.fabric());
        // L1.
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

    fn find<F: Fabric, H: HostMemory, L: Liveness>(
        &self,
        member: &Member<F, H, L>,
        name: &str,
    ) -> Option<(u16, &RootHead)> {
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
            // One that cannot be read stays out of use: nobody knows what it names.
            Entry::Head(_) | Entry::Unreadable => None,
        })
    }
}

fn chunk_at<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    offset: u64,
) -> Option<ChunkId> {
    member.layout().chunk_of(Extent::new(offset, LINE_BYTES)?)
}

/// Where an object stands to this node's heap, built if it has to be. No lock is held.
fn standing<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
    timeout_ms: u64,
    offset: u64,
) -> Result<Standing, SweepError> {
    let Some(chunk) = chunk_at(member, offset) else { return Ok(Standing::NoHeap) };
    let standing = Access::enter(member, clock)?.standing(chunk);
    if standing != Standing::Unbuilt {
        return Ok(standing);
    }
    heap::build_new(member, clock, timeout_ms)?;
    Ok(Access::enter(member, clock)?.standing(chunk))
}

/// That the object is allocated in this node's heap.
fn check_ours<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
    timeout_ms: u64,
    offset: SharedOffset,
) -> Result<(), PutRootError> {
    match standing(member, clock, timeout_ms, offset.bytes())? {
        Standing::Ours => Ok(()),
        Standing::Other(owner) => Err(PutRootError::NotOurs { offset, owner }),
        Standing::Unbuilt | Standing::NoHeap => Err(PutRootError::NotAnObject { offset }),
    }
}

pub(super) fn put<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
    timeout_ms: u64,
    name: &str,
    offset: SharedOffset,
    kind: RootKind,
) -> Result<(), PutRootError> {
    if !is_name(name) {
        return Err(PutRootError::BadName { bytes: name.len() });
    }
    check_ours(member, clock, timeout_ms, offset)?;
    let (layout, fabric) = (member.layout(), member.fabric());
    let _guard = member.lock_shared(ROOT_LOCK, clock, timeout_ms)?;
    let table = Table::read(member);
    if table.find(member, name).is_some() {
        return Err(PutRootError::Exists { name: name.to_owned() });
    }
    if table.live().any(|(_, head)| head.offset() == offset.bytes()) {
        return Err(PutRootError::AlreadyNamed { offset });
    }
    let (entry, sequence) = table.room_for(name).ok_or(PutRootError::Full)?;
    // Until the root is there nobody else on this host can free the object.
    let access = Access::enter(member, clock).map_err(SweepError::from)?;
    let place = access.allocated(offset.bytes()).ok_or(PutRootError::NotAnObject { offset })?;
    let mut update = Update::new(layout, ROOT_LOCK);
    for (line, part) in table::name_lines(layout, entry).iter().zip(RootName::lines(name, sequence))
    {
        update = update.line(fabric, *line, &part);
    }
    let head = RootHead::live(name, offset.bytes(), kind.code(), sequence);
    update.line(fabric, table::head(layout, entry), &head).commit(member.seat(), fabric);
    access.set_named(&place, true);
    Ok(())
}

pub(super) fn replace<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
    timeout_ms: u64,
    name: &str,
    offset: SharedOffset,
    kind: RootKind,
) -> Result<PeerObject, PutRootError> {
    check_ours(member, clock, timeout_ms, offset)?;
    let (layout, fabric) = (member.layout(), member.fabric());
    let _guard = member.lock_shared(ROOT_LOCK, clock, timeout_ms)?;
    let table = Table::read(member);
    let found = table.find(member, name);
    let (entry, head) = found.ok_or_else(|| PutRootError::NotFound { name: name.to_owned() })?;
    if table.live().any(|(_, head)| head.offset() == offset.bytes()) {
        return Err(PutRootError::AlreadyNamed { offset });
    }
    let access = Access::enter(member, clock).map_err(SweepError::from)?;
    let old = SharedOffset::new(head.offset()).ok_or(PutRootError::NotAnObject { offset })?;
    match chunk_at(member, old.bytes()).map(|chunk| access.standing(chunk)) {
        Some(Standing::Ours) => {}
        Some(Standing::Other(owner)) => return Err(PutRootError::NotOurs { offset: old, owner }),
        _ => return Err(PutRootError::NotAnObject { offset: old }),
    }
    let place = access.allocated(offset.bytes()).ok_or(PutRootError::NotAnObject { offset })?;
    let old_place =
        access.allocated(old.bytes()).ok_or(PutRootError::NotAnObject { offset: old })?;
    let head = head.with_offset(offset.bytes(), kind.code());
    let update = Update::new(layout, ROOT_LOCK);
    update.line(fabric, table::head(layout, entry), &head).commit(member.seat(), fabric);
    access.set_named(&place, true);
    access.set_named(&old_place, false);
    Ok(PeerObject::new(old_place.extent(), Some((member.node(), member.incarnation()))))
}

pub(super) fn destroy<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
    timeout_ms: u64,
    name: &str,
) -> Result<(), DestroyRootError> {
    let fabric = member.fabric();
    let _guard = member.lock_shared(ROOT_LOCK, clock, timeout_ms)?;
    let table = Table::read(member);
    let found = table.find(member, name);
    let (entry, head) =
        found.ok_or_else(|| DestroyRootError::NotFound { name: name.to_owned() })?;
    let chunk = chunk_at(member, head.offset());
    let standing = {
        let access = Access::enter(member, clock).map_err(SweepError::from)?;
        chunk.map_or(Standing::NoHeap, |chunk| access.standing(chunk))
    };
    if standing == Standing::NoHeap {
        // It names nothing that anybody could free.
        table::set_free(member.seat(), fabric, entry);
        return Ok(());
    }
    table::set_state(member.seat(), fabric, entry, RootState::Retired);
    match standing {
        Standing::Ours => {
            collect_here(member, clock)?;
        }
        Standing::Other(owner) => {
            // M1: the lock of the roots is held, so one process of this host is here.
            let retired = heap::retired(member.layout(), member.node(), owner).claim();
            retired.publish(fabric, retired.own(fabric).wrapping_add(1));
        }
        // The sweep that builds the chunk does not find the object reachable.
        Standing::Unbuilt | Standing::NoHeap => {}
    }
    Ok(())
}

/// Whether other hosts say that they have destroyed roots whose objects are this node's.
pub(crate) fn retired_by_others<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
) -> bool {
    let words = member.seat().tier().heap_words();
    others(member).any(|(sender, count)| words.retired_seen(sender) != count)
}

fn others<'m, F: Fabric, H: HostMemory, L: Liveness>(
    member: &'m Member<F, H, L>,
) -> impl Iterator<Item = (crate::units::NodeId, u64)> + 'm {
    let (layout, me) = (member.layout(), member.node());
    let others = layout.nodes().filter(move |node| *node != me);
    others.map(move |node| (node, heap::retired(layout, node, me).fresh(member.fabric())))
}

/// Frees the objects of this node's heap whose roots were destroyed.
pub(crate) fn collect<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
    timeout_ms: u64,
) -> Result<u64, SweepError> {
    let _guard = member.lock_shared(ROOT_LOCK, clock, timeout_ms)?;
    collect_retired(member, || Ok(Access::enter(member, clock)?))
}

/// As [`collect`], without waiting: not for the lock of the roots, nor, with that lock in hand, for a
/// process of this host that is in the heap. `None` when one of them was not to be had.
pub(crate) fn try_collect<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
) -> Result<Option<u64>, SweepError> {
    let Some(_guard) = member.try_lock_shared(ROOT_LOCK, clock)? else { return Ok(None) };
    let Some(access) = Access::try_enter(member)? else { return Ok(None) };
    collect_retired(member, || Ok(access)).map(Some)
}

/// The caller holds the lock of the roots.
fn collect_retired<'m, F: Fabric, H: HostMemory, L: Liveness>(
    member: &'m Member<F, H, L>,
    enter: impl FnOnce() -> Result<Access<'m, F, H, L>, SweepError>,
) -> Result<u64, SweepError> {
    // Counted first: what is destroyed from here on is for the next look.
    let counts: Vec<_> = others(member).collect();
    // L1.
    member.fabric().refresh(member.layout().roots().range());
    let collected = collect_locked(member, &enter()?)?;
    let words = member.seat().tier().heap_words();
    counts.into_iter().for_each(|(sender, count)| words.set_retired_seen(sender, count));
    Ok(collected)
}

/// As [`collect`]; the caller holds the lock of the roots and has refreshed them.
fn collect_here<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
) -> Result<u64, SweepError> {
    collect_locked(member, &Access::enter(member, clock)?)
}

/// As [`collect_here`], in the heap.
fn collect_locked<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    access: &Access<'_, F, H, L>,
) -> Result<u64, SweepError> {
    let retired: Vec<Retired> = table::seen(member.layout(), member.fabric())
        .into_iter()
        .filter(|root| root.retired)
        .map(|root| Retired { entry: root.entry, sequence: root.sequence, offset: root.offset })
        .collect();
    let set_free = |root: &Retired| table::set_free(member.seat(), member.fabric(), root.entry);
    Ok(access.collect(&retired, set_free)?)
}
