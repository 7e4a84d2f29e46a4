//! What always holds (DRIVE-G1, DRIVE-G2): checked after every step of the tests, and by `fsck`.

use std::collections::BTreeMap;

use super::{Flow, Volume};

impl Volume {
    /// Checks the accounts of the folder. Must not run beside a commit.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let usage = self.usage();
        let parts = [
            usage.live,
            usage.reserved,
            usage.leaving,
            usage.garbage,
            usage.unknown,
            usage.never_used,
            usage.free,
        ];
        let room = self.segment_pages_max() * u64::from(crate::io::PAGE_BYTES);
        let sum: u64 = parts.iter().sum();
        // A capacity that was made smaller is passed until blocks leave.
        if sum != room && (usage.free > 0 || sum < room) {
            return Err(format!("{sum} bytes used and free, of {room}: {usage:?}"));
        }
        if usage.metadata > usage.metadata_kept {
            return Err(format!("metadata takes more than is kept for it: {usage:?}"));
        }
        let state = self.state();
        let there = Flow { blocks: state.index.len() as u64, bytes: state.index.payload_bytes() };
        if state.moves.resident() != there {
            return Err(format!("{there:?} is there after {:?}", state.moves));
        }
        let mut extents: BTreeMap<u32, BTreeMap<u32, u32>> = BTreeMap::new();
        for (key, at) in state.index.iter() {
            let pages = at.extent_pages();
            if extents.entry(at.slot).or_default().insert(at.first_page, pages).is_some() {
                return Err(format!("{key:?} is where another block is"));
            }
        }
        for (slot, segment) in state.all() {
            let mut live = extents.remove(&slot).unwrap_or_default();
            let pages: u32 = live.values().sum();
            if pages != segment.live || live.len() != segment.live_blocks as usize {
                return Err(format!("segment {}: {pages} pages are live: {segment:?}", segment.id));
            }
            live.extend(segment.garbage.iter().copied());
            let mut end = 0;
            for (first, pages) in live {
                if first < end {
                    return Err(format!("segment {}: page {first} is used twice", segment.id));
                }
                end = first + pages;
            }
            if end > segment.cursor {
                return Err(format!("segment {}: page {end} was never used", segment.id));
            }
        }
        extents.keys().next().map_or(Ok(()), |slot| Err(format!("no segment {slot}")))
    }
}
