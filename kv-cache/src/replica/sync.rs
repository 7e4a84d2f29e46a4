//! Making the replica current: tail every log, scan the segments whose log was overrun.

use cxl_shm::fabric::{Fabric, refresh_all};
use cxl_shm::units::NodeId;

use super::Replica;
use crate::format::{Behind, DescriptorError, behind};

/// What a sync had to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SyncCounts {
    /// Log entries taken in.
    pub(crate) entries: u64,
    /// Segments scanned, because their log was overrun or never read.
    pub(crate) rescans: u64,
}

impl Replica {
    /// Takes in everything that was announced before the call. `own` is the node that this process
    /// belongs to, if any.
    ///
    /// One refresh of a line for each other node; a second one for their new entries, if there are
    /// any. What the own node announced is in the caches of this host, and no other host writes there
    /// (MEM-M1): it is refreshed once, the first time, since a host before may have had the node.
    /// Takes no lock and writes nothing. A segment whose log was overrun is scanned, which is bounded
    /// by its size.
    pub(crate) fn sync<F: Fabric>(&mut self, fabric: &F, own: Option<NodeId>) -> SyncCounts {
        let areas = self.areas;
        let nodes = || areas.layout().nodes();
        let own = own.filter(|node| self.position(*node).is_some());
        let others = nodes().filter(|node| Some(*node) != own);
        refresh_all(fabric, others.map(|node| areas.log_head(node).range()));
        let mut new = Vec::new();
        let mut overrun = Vec::new();
        for node in nodes() {
            let head = areas.log_head(node).cached(fabric);
            let entries = areas.log(node).entries();
            match self.position(node).map(|position| (position, behind(position, head, entries))) {
                Some((_, Behind::By(0))) => {}
                Some((position, Behind::By(count))) => new.push((node, position, count)),
                // A node that never announced anything has nothing to be read.
                None if head == 0 => self.owners[node.index()].position = Some(0),
                None | Some((_, Behind::Overrun)) => overrun.push((node, head)),
            }
        }

        // MEM-M4: the heads were seen, now what they count.
        let ranges =
            |(node, first, count): &(NodeId, u64, u64)| areas.log(*node).ranges(*first, *count);
        let of_others = new.iter().filter(|(node, ..)| Some(*node) != own);
        refresh_all(fabric, of_others.flat_map(ranges));
        let mut counts = SyncCounts::default();
        for (node, position, count) in new {
            let end = position.wrapping_add(count);
            self.owners[node.index()].position = Some(end);
            for step in 0..count {
                let number = position.wrapping_add(step);
                let Some(entry) = areas.log(node).cached(fabric, number) else {
                    // INDEX-G2: overwritten while we read, or damaged.
                    overrun.push((node, end));
                    break;
                };
                self.follow(node, &entry);
                counts.entries += 1;
            }
        }
        for (node, head) in overrun {
            self.rescan(fabric, node, head);
            counts.rescans += 1;
        }
        self.look_again(fabric);
        counts
    }

    /// Looks again at slots of which an earlier look said nothing (INDEX-R5).
    fn look_again<F: Fabric>(&mut self, fabric: &F) {
        let slots = self.again.next();
        let areas = self.areas;
        let places: Vec<_> = slots.iter().map(|waiting| self.place(waiting.number)).collect();
        let range = |(node, slot): &(NodeId, u32)| areas.segment(*node).range(*slot);
        refresh_all(fabric, places.iter().map(range));
        for (waiting, (node, slot)) in slots.into_iter().zip(places) {
            let read = areas.segment(node).cached(fabric, slot);
            if !self.learn_again(node, slot, read) {
                self.again.put_back(waiting);
            }
        }
    }

    /// How far the log of `node` was read; `None` before its segment was.
    pub(crate) fn position(&self, node: NodeId) -> Option<u64> {
        self.owners[node.index()].position
    }

    /// Reads a whole segment; `head` was read before (INDEX-G2).
    fn rescan<F: Fabric>(&mut self, fabric: &F, node: NodeId, head: u64) {
        self.owners[node.index()].position = Some(head);
        let segment = self.areas.segment(node);
        let mut torn = Vec::new();
        segment.scan(fabric, |slot, content| match content {
            Ok(content) => self.learn(node, slot, content),
            Err(DescriptorError::Torn(_)) => torn.push(slot),
            Err(DescriptorError::Malformed) => self.remove(node, slot),
        });
        // Being written just now, perhaps in place: nothing to find for the moment (INDEX-R5).
        for slot in torn {
            self.remove(node, slot);
            self.again.add(self.number(node, slot));
        }
    }
}
