//! The chunk that a process of this host gives back: from its first step on it takes no payload
//! (EVICT-V7).

use cxl_shm::node::Backend;
use cxl_shm::units::ChunkId;

use super::{ChunkUse, LockedHeap};

impl<B: Backend> LockedHeap<'_, B> {
    /// Begins to give a chunk back that is still `wanted`: no payload is taken in it any more. False
    /// when it is not, and while another process of the host gives one back.
    pub(crate) fn close_chunk(
        &mut self,
        chunk: ChunkId,
        wanted: impl Fn(&ChunkUse) -> bool,
    ) -> bool {
        self.end_closing();
        if self.directory.closing().is_some() {
            return false;
        }
        let uses = self.directory.chunk_uses();
        let is_wanted = uses.iter().any(|it| it.chunk == chunk && wanted(it));
        if is_wanted {
            self.directory.set_closing(Some((chunk, self.member.process())));
        }
        is_wanted
    }

    /// Ends what a process left that died while it gave a chunk back, or this one when it failed.
    /// False when that has to wait: it died in the middle of an update of the chunk table, which is
    /// not redone yet. The chunk takes no payload until then.
    pub(crate) fn end_closing(&mut self) -> bool {
        let (Some(chunk), Some(process)) =
            (self.directory.closing(), self.directory.closing_process())
        else {
            return true;
        };
        if process != self.member.process() && self.member.is_process_alive(process) {
            return true;
        }
        // Before that the chunk table may name us as the owner of what will be nobody's.
        let is_ended = self.member.recover_locks();
        if is_ended {
            self.reopen(chunk);
        }
        is_ended
    }

    /// Uses a chunk on that was being given back, if it is still this node's, or again.
    pub(crate) fn reopen(&mut self, chunk: ChunkId) {
        let uses = self.directory.chunk_uses();
        // One with blocks was not given away. Of another the chunk table tells whose it is now:
        // as soon as it was nobody's another process of the host may have taken it, for blocks of
        // any size.
        if !uses.iter().any(|it| it.chunk == chunk && it.taken() > 0) {
            self.directory.forget_chunk(chunk);
            self.add_chunk(chunk);
        }
        self.directory.set_closing(None);
    }
}
