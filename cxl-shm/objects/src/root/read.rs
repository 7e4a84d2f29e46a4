//! Finding roots, without any lock (OBJECT-N2).

use super::error::GetRootError;
use super::table::Entry;
use crate::heap;
use crate::heap::{PeerObject, SharedOffset};
use crate::root::table;
use crate::root::{Root, RootKind, is_name};
use cxl_shm::layout::{RootHead, RootState};
use cxl_shm::node::{Backend, Member};

/// Looks at a table that is being written before it is given up.
const LOOKS_MAX: u32 = 16;
/// Entries whose heads are refreshed together.
const BATCH: usize = 8;

/// What one look at the table found.
enum Seen {
    Found(u16, RootHead, String),
    Missing,
    /// Something was being written, and the name was nowhere else.
    Torn,
}

/// What one look found.
enum Look {
    Found(Root),
    Missing,
    /// Something was being written, and the name was nowhere else.
    Torn,
    /// It names what is no object: destroyed meanwhile, or damaged.
    NoObject(u64),
}

pub(super) fn get<B: Backend>(
    member: &Member<B>,
    name: &str,
) -> Result<Option<Root>, GetRootError> {
    if !is_name(name) {
        return Err(GetRootError::BadName { bytes: name.len() });
    }
    let mut damaged = None;
    for _ in 0..LOOKS_MAX {
        match look(member, name) {
            Look::Found(root) => return Ok(Some(root)),
            Look::Missing => return Ok(None),
            Look::Torn => damaged = None,
            Look::NoObject(offset) => damaged = Some(offset),
        }
    }
    let name = name.to_owned();
    Err(match damaged {
        Some(offset) => GetRootError::Damaged { name, offset },
        None => GetRootError::BeingWritten { name },
    })
}

fn look<B: Backend>(member: &Member<B>, name: &str) -> Look {
    match see(member, name) {
        Seen::Found(_, head, name) => match object_of(member, &head) {
            Some(object) => Look::Found(root_of(name, &head, object)),
            None => Look::NoObject(head.offset()),
        },
        Seen::Missing => Look::Missing,
        Seen::Torn => Look::Torn,
    }
}

/// Entry and head of the root of that name, as one look without the lock finds them. Not checked.
pub(super) fn head_of<B: Backend>(member: &Member<B>, name: &str) -> Option<(u16, RootHead)> {
    match see(member, name) {
        Seen::Found(entry, head, _) => Some((entry, head)),
        Seen::Missing | Seen::Torn => None,
    }
}

fn see<B: Backend>(member: &Member<B>, name: &str) -> Seen {
    let (layout, fabric) = (member.layout(), member.fabric());
    let mut torn = false;
    let order: Vec<u16> = table::entries_for(name).collect();
    'table: for batch in order.chunks(BATCH) {
        table::refresh_heads(layout, fabric, batch);
        for entry in batch {
            match table::entry(layout, fabric, *entry) {
                Entry::Blank => break 'table,
                Entry::Unreadable => torn = true,
                Entry::Head(head) => {
                    if head.state() != Some(RootState::Live) || !head.may_be(name) {
                        continue;
                    }
                    table::refresh_name(layout, fabric, *entry);
                    match table::name(layout, fabric, *entry, &head) {
                        Some(found) if found == name => {
                            return Seen::Found(*entry, head, found);
                        }
                        // Another name with the same hash.
                        Some(_) => {}
                        None => torn = true,
                    }
                }
            }
        }
    }
    if torn { Seen::Torn } else { Seen::Missing }
}

pub(super) fn list<B: Backend>(member: &Member<B>) -> Vec<Root> {
    let (layout, fabric) = (member.layout(), member.fabric());
    let entries: Vec<u16> = table::entries().collect();
    table::refresh_heads(layout, fabric, &entries);
    let one = |entry: u16| {
        for _ in 0..LOOKS_MAX {
            if let Entry::Head(head) = table::entry(layout, fabric, entry) {
                if head.state() != Some(RootState::Live) {
                    return None;
                }
                table::refresh_name(layout, fabric, entry);
                if let Some(name) = table::name(layout, fabric, entry, &head)
                    && let Some(object) = object_of(member, &head)
                {
                    return Some(root_of(name, &head, object));
                }
            } else if matches!(table::entry(layout, fabric, entry), Entry::Blank) {
                return None;
            }
            table::refresh_heads(layout, fabric, &[entry]);
        }
        None
    };
    entries.into_iter().filter_map(one).collect()
}

fn root_of(name: String, head: &RootHead, object: PeerObject) -> Root {
    Root { name, object, kind: RootKind::from_code(head.kind()) }
}

/// The object that a head names, checked to be one (MEM-M5).
fn object_of<B: Backend>(member: &Member<B>, head: &RootHead) -> Option<PeerObject> {
    heap::find(member, SharedOffset::new(head.offset())?)
}
