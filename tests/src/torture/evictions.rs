//! Which blocks may be missing: as many as were evicted, and no more.
//!
//! An eviction is made by the node that owns the block, or, where hosts are declared dead, by a
//! reclaimer of the dead node. Each living process says how many blocks it evicted. One that died
//! while it published takes that with it: then they were at most [`begun`]. Both are forgotten
//! whenever everybody rests and every block has been looked for.

use anyhow::{Result, ensure};

/// Most blocks in a chunk.
const CHUNK_BLOCKS: u64 = 8;

/// Most evictions of a process that died while it published `blocks`: it makes room for as many,
/// for as many again each time that others of its host took the room, which happens seldom, and of
/// a chunk that it gives back, for blocks of another size, all leave.
fn begun(blocks: u64) -> u64 {
    3 * blocks + CHUNK_BLOCKS
}

/// Blocks of one node that made room for others, since everybody rested last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evictions {
    counted: u64,
    begun: u64,
    missing: u64,
}

impl Evictions {
    /// So many were evicted.
    pub(super) fn count(&mut self, blocks: u64) {
        self.counted += blocks;
    }

    /// A process died while it published so many.
    pub(super) fn died_publishing(&mut self, blocks: u64) {
        self.begun += begun(blocks);
    }

    /// A block that was there is not any more.
    pub(super) fn miss(&mut self) {
        self.missing += 1;
    }

    /// Blocks that were missed.
    pub(super) fn missing(&self) -> u64 {
        self.missing
    }

    /// All of `nodes` together.
    pub(super) fn sum<'e>(nodes: impl Iterator<Item = &'e Self>) -> Self {
        nodes.fold(Self::default(), |sum, it| Self {
            counted: sum.counted + it.counted,
            begun: sum.begun + it.begun,
            missing: sum.missing + it.missing,
        })
    }

    /// No more are missing than can have been evicted.
    ///
    /// # Errors
    /// When blocks are lost.
    pub(super) fn check(&self) -> Result<()> {
        let Self { counted, begun, missing } = self;
        ensure!(
            *missing <= counted + begun,
            "{} blocks are lost: of {missing} that are missing {counted} were evicted, and at most \
             {begun} by processes that died meanwhile",
            missing - counted - begun
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_missing_only_when_one_was_evicted() {
        let mut evictions = Evictions::default();
        evictions.check().unwrap();
        evictions.miss();
        evictions.check().unwrap_err();
        evictions.count(1);
        evictions.check().unwrap();
        evictions.died_publishing(1);
        for _ in 0..begun(1) {
            evictions.miss();
        }
        evictions.check().unwrap();
        evictions.miss();
        evictions.check().unwrap_err();
    }
}
