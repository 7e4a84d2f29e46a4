//! Where in the source lines are flushed and fenced, and switching single places off.
//!
//! This is the ground of the mutation suite: it runs a protocol once to learn its sites, then once
//! more for each of them with that site suppressed, and demands that some run fails.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;

use super::line_map::LineHash;

const _: () = assert!(align_of::<Location<'_>>() > SiteOp::ReadBack as usize);

/// An operation whose absence a suite must notice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SiteOp {
    /// [`Fabric::write_back`](crate::fabric::Fabric::write_back), alone or in a publish.
    WriteBack,
    /// [`Fabric::invalidate`](crate::fabric::Fabric::invalidate), alone or in a refresh.
    Invalidate,
    /// [`Fabric::fence`](crate::fabric::Fabric::fence), alone, in a publish or in a refresh.
    Fence,
    /// [`Fabric::read_back`](crate::fabric::Fabric::read_back), alone or in a publish.
    ReadBack,
}

/// One operation at one place in the source. A publish is three sites at one place (write back,
/// fence, read back), a refresh two.
///
/// The place is the first caller that is not itself `#[track_caller]`: the protocol, not the
/// typed line it goes through. A closure always ends that chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Site {
    /// Source file, as the compiler names it.
    pub file: &'static str,
    /// Line in the file, from 1.
    pub line: u32,
    /// Column in the line, from 1.
    pub column: u32,
    /// What is done there.
    pub op: SiteOp,
}

impl Site {
    /// Whether `other` is at the same place in the source: part of the same publish or refresh.
    #[must_use]
    pub fn same_place(&self, other: &Self) -> bool {
        (self.file, self.line, self.column) == (other.file, other.line, other.column)
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{} {:?}", self.file, self.line, self.column, self.op)
    }
}

#[derive(Debug, Default)]
struct Entry {
    executions: u64,
    suppressed: bool,
}

/// All sites seen or suppressed.
#[derive(Debug, Default)]
pub(super) struct Sites {
    entries: Vec<(Site, Entry)>,
    by_site: HashMap<Site, usize>,
    /// The compiler may keep several copies of one location, so this only saves hashing names.
    by_address: HashMap<u64, usize, LineHash>,
}

impl Sites {
    /// Counts an operation; says whether it is to be carried out.
    pub(super) fn pass(&mut self, location: &'static Location<'static>, op: SiteOp) -> bool {
        // A location contains pointers, so the low bits of its address are free.
        let address = std::ptr::from_ref(location).addr() as u64 | op as u64;
        let place = match self.by_address.get(&address) {
            Some(place) => *place,
            None => {
                let (file, line, column) = (location.file(), location.line(), location.column());
                let place = self.place(Site { file, line, column, op });
                self.by_address.insert(address, place);
                place
            }
        };
        let entry = &mut self.entries[place].1;
        entry.executions += 1;
        !entry.suppressed
    }

    pub(super) fn suppress(&mut self, site: Site) {
        let place = self.place(site);
        self.entries[place].1.suppressed = true;
    }

    pub(super) fn executions(&self, site: Site) -> u64 {
        self.by_site.get(&site).map_or(0, |place| self.entries[*place].1.executions)
    }

    pub(super) fn executed(&self) -> Vec<Site> {
        let executed = self.entries.iter().filter(|(_, entry)| entry.executions > 0);
        let mut sites: Vec<_> = executed.map(|(site, _)| *site).collect();
        sites.sort_unstable();
        sites
    }

    fn place(&mut self, site: Site) -> usize {
        *self.by_site.entry(site).or_insert_with(|| {
            self.entries.push((site, Entry::default()));
            self.entries.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::SimulatedRack;
    use super::*;
    use crate::fabric::{Fabric, OwnedArea, PublishBatch, refresh_all};
    use crate::units::{LineOffset, LineRange};

    /// The places, by line of this file, at which `act` flushes or fences, with how many sites.
    fn places(act: impl FnOnce(&SimulatedRack, OwnedArea)) -> Vec<(u32, usize)> {
        let rack = SimulatedRack::sticky(1, 4096);
        act(&rack, OwnedArea::new(LineRange::new(LineOffset::new(0).unwrap(), 4).unwrap()));
        let sites = rack.sites();
        assert!(sites.iter().all(|site| site.file == file!()), "{sites:?}");
        sites.chunk_by(Site::same_place).map(|sites| (sites[0].line, sites.len())).collect()
    }

    #[test]
    fn the_place_is_that_of_the_protocol_whatever_it_goes_through() {
        let mut lines = [0; 6];
        let found = places(|rack, area| {
            let (host, word) = (rack.host(0), area.word(9).unwrap());
            (lines[0], _) = (line!(), host.publish(area.range()));
            (lines[1], _) = (line!(), host.refresh(area.range()));
            (lines[2], _) = (line!(), word.publish(&host, 5));
            (lines[3], _) = (line!(), word.peer().fresh(&host));
            (lines[4], _) = (line!(), refresh_all(&host, [area.range(), word.peer().range()]));
            let mut batch = PublishBatch::new(&host);
            batch.word(word, 6);
            (lines[5], _) = (line!(), batch.publish());
        });
        let expected: Vec<_> = lines.into_iter().zip([3, 2, 3, 2, 2, 3]).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_suppressed_site_is_counted_and_does_nothing() {
        let rack = SimulatedRack::sticky(1, 4096);
        let host = rack.host(0);
        let word = LineOffset::new(64).unwrap().word(0).unwrap();
        let publish = |value| {
            host.store(word, value);
            host.publish(LineRange::one(word.line()));
        };
        publish(1);
        let write_back = rack.sites()[0];
        assert_eq!((write_back.op, rack.executions(write_back)), (SiteOp::WriteBack, 1));
        rack.suppress(write_back);
        publish(2);
        assert_eq!((rack.device_word(word), rack.executions(write_back)), (1, 2));
        assert_eq!(rack.sites().len(), 3);
    }
}
