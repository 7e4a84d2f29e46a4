//! Chunks without objects: built into the heap, and given back to the region.

use super::access::{Access, Damaged};
use super::core::Broken;
use super::page::{PageNumber, PageUse, PageWord};
use cxl_shm::layout::HeapHeader;
use cxl_shm::node::Backend;
use cxl_shm::units::ChunkId;

/// High-water mark: chunks without objects that a heap keeps for itself while nobody asks.
pub(crate) const IDLE_CHUNKS_MAX: u64 = 1;

impl<B: Backend> Access<'_, B> {
    /// Takes a chunk into the heap that was taken from the region; whether it is built now. Builds
    /// none that another process of the host may be giving back at this moment: who wants that one
    /// needs the lock of the chunk table ([`build_new`](super::build_new)).
    pub(crate) fn build_empty(&self, chunk: ChunkId) -> Result<bool, Damaged> {
        if self.is_built(chunk) {
            return Ok(true);
        }
        if self.is_given_up(chunk) || !self.chunks().contains(&chunk) {
            return Ok(false);
        }
        let pages = self.heap.pages;
        for page in pages.data_of(chunk).map(PageNumber) {
            pages.set(page, PageWord::Allocated, 0);
            pages.set(page, PageWord::Named, 0);
            pages.set_usage(page, PageUse::Free);
        }
        let header = HeapHeader::built_by(self.member.node(), self.member.incarnation());
        self.set_header(chunk, &header);
        // Publishes what the pages are: else a former owner's would count after our death.
        self.relink().map(|()| true)
    }

    /// Whether this incarnation gave the chunk up, and may be giving it back still: until
    /// [`give_back_one`](crate::give_back) has said in the table that it is free, it is ours there.
    fn is_given_up(&self, chunk: ChunkId) -> bool {
        self.header(chunk).cached(self.member.fabric()) == Ok(self.given_up())
    }

    fn given_up(&self) -> HeapHeader {
        HeapHeader::given_up_by(self.member.node(), self.member.incarnation())
    }

    /// Says, to this host alone, that the chunk is given up (see [`Self::build_empty`]).
    pub(super) fn set_given_up(&self, chunk: ChunkId) {
        self.heap.words.forget(chunk);
        self.set_header(chunk, &self.given_up());
    }

    /// Takes a chunk without objects out of the heap: from here on it is given up. The caller holds
    /// the lock of the chunk table until it has given the chunk back.
    ///
    /// Gives up none while a destroyed root waits whose object is freed: another host that has the
    /// chunk next would free its own object there for that root.
    pub(crate) fn give_up_idle(&self) -> Result<Option<ChunkId>, Damaged> {
        if self.heap.words.has_collected() {
            return Ok(None);
        }
        let chunk = self.mended(|heap| {
            heap.release_empty()?;
            heap.take_idle_chunk()
        })?;
        if let Some(chunk) = chunk {
            // Published with the chunk: should it come back to us from another host, it must not
            // look as if we had built it.
            self.set_given_up(chunk);
        }
        Ok(chunk)
    }

    pub(crate) fn idle_chunks(&self, asked: bool) -> Result<u64, Damaged> {
        self.mended(|heap| {
            if asked {
                heap.release_empty()?;
            }
            heap.idle_chunks()
        })
    }
}

impl From<Broken> for Damaged {
    fn from(Broken: Broken) -> Self {
        Self
    }
}
