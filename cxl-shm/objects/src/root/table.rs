//! The table of named roots as lines.

use cxl_shm::fabric::{Fabric, LineError, PeerLine, refresh_all};
use cxl_shm::intent::Update;
use cxl_shm::layout::{
    Layout, ROOT_LINES, ROOT_LOCK, ROOTS_MAX, RootHead, RootName, RootState, root_name_hash,
};
use cxl_shm::node::{Backend, NodeHandle};

/// What a root's object is to a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RootKind {
    /// It refers to no other object.
    Leaf,
    /// Its words may be offsets of other objects, and theirs of more: all of them are kept.
    Linked,
}

impl RootKind {
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Leaf => 1,
            Self::Linked => 2,
        }
    }

    /// The kind in a record; `None` for one that this version does not know.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        match code {
            1 => Some(Self::Leaf),
            2 => Some(Self::Linked),
            _ => None,
        }
    }
}

/// The head of entry `entry`.
pub(crate) fn head(layout: &Layout, entry: u16) -> PeerLine<RootHead> {
    let line = layout.roots().line(u64::from(entry) * ROOT_LINES);
    line.expect("entries are counted by `entries`")
}

/// The lines of the name of entry `entry`.
pub(crate) fn name_lines(layout: &Layout, entry: u16) -> [PeerLine<RootName>; 3] {
    let first = u64::from(entry) * ROOT_LINES + 1;
    [0, 1, 2].map(|line| layout.roots().line(first + line).expect("an entry has these lines"))
}

/// All entries.
pub(crate) fn entries() -> impl Iterator<Item = u16> {
    (0..u16::MAX).take(usize::try_from(ROOTS_MAX).unwrap_or(0))
}

/// All entries in the order in which `name` is looked for. An entry is taken in this order, and
/// never made blank again, so a name is in front of the first blank one or nowhere.
pub(crate) fn entries_for(name: &str) -> impl Iterator<Item = u16> {
    let first = usize::try_from(root_name_hash(name) % ROOTS_MAX).unwrap_or(0);
    entries().skip(first).chain(entries().take(first))
}

/// What is in an entry.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// Never used.
    Blank,
    /// Somebody writes it, died while writing it, or damaged it.
    Unreadable,
    /// Its head.
    Head(RootHead),
}

/// The head of an entry, from our caches.
pub(crate) fn entry<F: Fabric>(layout: &Layout, fabric: &F, entry: u16) -> Entry {
    match head(layout, entry).cached(fabric) {
        Ok(head) => Entry::Head(head),
        Err(LineError::Blank { .. }) => Entry::Blank,
        Err(LineError::Corrupt { .. }) => Entry::Unreadable,
    }
}

/// The name of a head, from our caches; `None` when its lines are not those of this head.
pub(crate) fn name<F: Fabric>(
    layout: &Layout,
    fabric: &F,
    entry: u16,
    head: &RootHead,
) -> Option<String> {
    let [a, b, c] = name_lines(layout, entry).map(|line| line.cached(fabric));
    RootName::join(head, &[a.ok()?, b.ok()?, c.ok()?])
}

/// Refreshes the heads of `entries` with one fence.
pub(crate) fn refresh_heads<F: Fabric>(layout: &Layout, fabric: &F, entries: &[u16]) {
    refresh_all(fabric, entries.iter().map(|entry| head(layout, *entry).range()));
}

/// Refreshes the name of an entry with one fence. Its head was seen before (MEM-M4).
pub(crate) fn refresh_name<F: Fabric>(layout: &Layout, fabric: &F, entry: u16) {
    refresh_all(fabric, name_lines(layout, entry).map(|line| line.range()));
}

/// A root as a sweep or a collection sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RootSeen {
    /// Its entry.
    pub(crate) entry: u16,
    /// Which of the roots that were in the entry.
    pub(crate) sequence: u64,
    /// Where its object starts; not checked.
    pub(crate) offset: u64,
    /// Its object's words refer to others.
    pub(crate) linked: bool,
    /// It was destroyed, its object waits to be freed.
    pub(crate) retired: bool,
}

/// All roots, from our caches. The caller holds the lock of the roots and has refreshed them
/// (LOCK-L1).
pub(crate) fn seen<F: Fabric>(layout: &Layout, fabric: &F) -> Vec<RootSeen> {
    let one = |number| {
        let Entry::Head(head) = entry(layout, fabric, number) else { return None };
        let retired = match head.state()? {
            RootState::Live => false,
            RootState::Retired => true,
            RootState::Free => return None,
        };
        let (sequence, offset) = (head.sequence(), head.offset());
        // A kind that this version does not know keeps all it can reach.
        let linked = RootKind::from_code(head.kind()) != Some(RootKind::Leaf);
        Some(RootSeen { entry: number, sequence, offset, linked, retired })
    };
    entries().filter_map(one).collect()
}

/// Makes an entry free. The caller holds the lock of the roots and has refreshed them (LOCK-L1).
pub(crate) fn set_free<B: Backend>(node_handle: &NodeHandle<B>, fabric: &B::Fabric, number: u16) {
    set_state(node_handle, fabric, number, RootState::Free);
}

/// Changes the state of an entry. The caller holds the lock of the roots and has refreshed them.
pub(crate) fn set_state<B: Backend>(
    node_handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    number: u16,
    state: RootState,
) {
    let layout = node_handle.layout();
    if let Entry::Head(of) = entry(layout, fabric, number) {
        let update = Update::new(layout, ROOT_LOCK);
        update
            .line(fabric, head(layout, number), &of.with_state(state))
            .commit(node_handle, fabric);
    }
}
