//! What the own node publishes, followed by a process that keeps copies of it elsewhere.
//!
//! Such a process changes nothing: a block stays as it is, and leaves the pool as it would. So the
//! copy must not count as a use ([`Cache::close_unused`]): it would keep the block in the pool.

use cxl_shm::node::Backend;

use crate::evict::last_uses;
use crate::format::{Behind, Descriptor, Handle, LogKind, SlotContent, behind};
use crate::process::Cache;

/// How far a process has followed its node's log.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnFeed {
    position: Option<u64>,
}

impl OwnFeed {
    /// Has the next call look at every block of the node.
    pub fn start_over(&mut self) {
        self.position = None;
    }
}

/// What a node has published since its log was read last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnNews {
    /// Blocks that are readable now, each with the position in the log from which on a use counts as
    /// one after its publication.
    pub blocks: Vec<(Descriptor, u64)>,
    /// All blocks were looked at, because the log does not say what is new.
    pub scanned: bool,
}

/// What is known of the use of a block of this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnUse {
    /// The block is not in the pool any more, or cannot be read.
    Gone,
    /// Nobody has used it.
    Never,
    /// It was used last when the node's log had this position.
    At(u64),
}

impl<B: Backend> Cache<'_, B> {
    /// What this node has published since the last call with `feed`. The first call, and one after
    /// the log has overrun `feed`, looks at every block of the node.
    ///
    /// It reads what this host's caches hold, and nothing of other hosts.
    pub fn follow_own(&self, feed: &mut OwnFeed) -> OwnNews {
        let (areas, fabric, node) = (self.areas(), self.member().fabric(), self.member().node());
        let log = areas.log(node);
        // What this host had in its caches from before the node was its own is gone: the sweep of its
        // first process has refreshed log and segment (MEM-M8).
        let head = areas.log_head(node).cached(fabric);
        let Some(first) = feed.position.replace(head) else { return self.scan_own() };
        let Behind::By(count) = behind(first, head, log.entries()) else { return self.scan_own() };
        let mut blocks = Vec::new();
        for step in 0..count {
            let number = first.wrapping_add(step);
            // INDEX-G2: overwritten meanwhile.
            let Some(entry) = log.cached(fabric, number) else { return self.scan_own() };
            if entry.kind == LogKind::Published {
                let handle = Handle::new(node, entry.slot, entry.generation);
                blocks.extend(self.look(handle).ok().map(|block| (block, number)));
            }
        }
        OwnNews { blocks, scanned: false }
    }

    /// Every readable block of this node.
    fn scan_own(&self) -> OwnNews {
        let node = self.member().node();
        let mut blocks = Vec::new();
        self.areas().segment(node).scan(self.member().fabric(), |_, content| {
            if let Ok(SlotContent::Block(block)) = content
                && block.is_readable()
            {
                blocks.push((block, 0));
            }
        });
        OwnNews { blocks, scanned: true }
    }

    /// How many entries the log of this node has had: a use at this position or before is none of a
    /// block that is published from now on. A use from now on of a block that is published already is
    /// at this position or behind it.
    #[must_use]
    pub fn own_position(&self) -> u64 {
        self.areas().log_head(self.member().node()).cached(self.member().fabric())
    }

    /// When blocks of this node were used last on any host. A hint: what other hosts have not told yet
    /// is not seen. The results are in the same order.
    #[must_use]
    pub fn own_uses(&self, handles: &[Handle]) -> Vec<OwnUse> {
        let slots: Vec<u32> = handles.iter().map(Handle::slot).collect();
        let uses = last_uses(self.member(), self.areas(), &slots);
        let of_block = |(handle, used): (&Handle, Option<u64>)| match (self.look(*handle), used) {
            (Err(_), _) => OwnUse::Gone,
            (Ok(_), None) => OwnUse::Never,
            (Ok(_), Some(position)) => OwnUse::At(position),
        };
        handles.iter().zip(uses).map(of_block).collect()
    }
}
