//! Transfers that sessions begin, of memory of this process or of a GPU.

use pyo3::prelude::*;
use rackline::memory::{LentSession, Place};
use rackline::{AsyncSession, BlockHash, KeySpace, MatchedBlock, NewBlock, SubmitErrorKind};

use crate::completion::{Fetch, Publish, WORKS_WITHIN};
use crate::error::{error, number, refused_because};
use crate::gpu::place;
use crate::layered::{LayeredFetch, LayeredPublish};
use crate::memory::{BlockMemory, ReadBlock, WriteBlock, in_turns};
use crate::prefix::Blocks;

/// Begins what `call` begins. A session whose calling thread works does so without Python's lock
/// (PYTHON-Y1).
pub(crate) fn begin<T: Send>(
    py: Python<'_>,
    session: &AsyncSession,
    call: impl FnOnce(&AsyncSession) -> T + Send,
) -> T {
    if session.is_by_caller() { py.detach(|| call(session)) } else { call(session) }
}

/// Begins what `call` begins, of blocks in that place: without Python's lock where the calling thread
/// works, and where a GPU's driver is called (PYTHON-Y1).
fn begin_at<T: Send>(
    py: Python<'_>,
    session: &AsyncSession,
    place: Place,
    call: impl FnOnce(&LentSession) -> Result<T, SubmitErrorKind> + Send,
) -> PyResult<T> {
    let begin = || call(&LentSession::new(session, place)?);
    let takes_long = session.is_by_caller() || matches!(place, Place::Gpu { .. });
    let begun = if takes_long { py.detach(begin) } else { begin() };
    begun.map_err(refused_because)
}

/// Sessions of which each has a cut of the same blocks. A transfer has all cuts of a block, and then
/// those of the next. A session alone has blocks of one cut.
pub(crate) struct Sessions {
    /// Of all of them together.
    session: AsyncSession,
    /// Of each.
    keys: Vec<KeySpace>,
}

impl Sessions {
    pub(crate) fn new(session: AsyncSession, keys: Vec<KeySpace>) -> Self {
        Self { session, keys }
    }

    /// The session of their transfers.
    pub(crate) fn session(&self) -> &AsyncSession {
        &self.session
    }

    /// The keys of the blocks of each.
    pub(crate) fn keys(&self) -> &[KeySpace] {
        &self.keys
    }

    pub(crate) fn publish(
        &self,
        py: Python<'_>,
        hashes: &[BlockHash],
        first_depth: &Bound<'_, PyAny>,
        (memory, numbers): (&BlockMemory, &[u32]),
        stream: Option<u64>,
    ) -> PyResult<Publish> {
        let first_depth: u32 = number("first_depth", first_depth)?;
        let place = place(memory.gpu(), stream)?;
        self.check(memory, hashes.len(), numbers.len())?;
        if first_depth.checked_add(u32::try_from(numbers.len())?).is_none() {
            return Err(error("a prompt of more than 4 billion blocks"));
        }
        let bytes = memory.read(py, numbers)?;
        let blocks = self.new_blocks(hashes, first_depth..=u32::MAX, bytes);
        // Ctrl-C does not end what a thread waits for while it works itself.
        let may_take_long = self.session.options().chunk_timeout() > WORKS_WITHIN;
        let session = if may_take_long { self.session.by_threads() } else { self.session.clone() };
        let publish = begin_at(py, &session, place, |session| session.publish(blocks))?;
        Ok(Publish::new(publish, may_take_long))
    }

    /// `found` is what each session found.
    pub(crate) fn fetch(
        &self,
        py: Python<'_>,
        found: Vec<Blocks<'_>>,
        memory: (&BlockMemory, &[u32]),
        stream: Option<u64>,
    ) -> PyResult<Fetch> {
        let fetch = self.begin_fetch(py, found, memory, stream, LentSession::fetch)?;
        Ok(Fetch::new(fetch, self.keys.len()))
    }

    /// `found` is what each session found.
    pub(crate) fn fetch_by_layers(
        &self,
        py: Python<'_>,
        found: Vec<Blocks<'_>>,
        memory: (&BlockMemory, &[u32]),
        stream: Option<u64>,
    ) -> PyResult<LayeredFetch> {
        let layers = memory.0.layers();
        let fetch = self.begin_fetch(py, found, memory, stream, |session, blocks, to| {
            session.fetch_by_layers(blocks, to, layers)
        })?;
        Ok(LayeredFetch::new(fetch, self.keys.len()))
    }

    pub(crate) fn publish_by_layers(
        &self,
        py: Python<'_>,
        hashes: &[BlockHash],
        depths: &[u32],
        (memory, numbers): (&BlockMemory, &[u32]),
    ) -> PyResult<LayeredPublish> {
        self.check(memory, hashes.len(), numbers.len())?;
        if depths.len() != numbers.len() {
            return Err(error(format!("{} blocks, and {} depths", numbers.len(), depths.len())));
        }
        let bytes = memory.read(py, numbers)?;
        let blocks = self.new_blocks(hashes, depths.iter().copied(), bytes);
        let (gpu, layers) = (memory.gpu(), memory.layers());
        let place = gpu.map_or(Place::Process, |gpu| Place::Gpu { gpu, stream: None });
        let publish = begin_at(py, &self.session, place, |session| {
            session.publish_by_layers(blocks, layers)
        })?;
        Ok(LayeredPublish::new(publish, gpu))
    }

    /// Refuses memory whose blocks are not those of the sessions, or other than so many.
    fn check(&self, memory: &BlockMemory, blocks: usize, numbers: usize) -> PyResult<()> {
        let (cuts, count) = (memory.cut_count(), self.keys.len());
        if cuts != count {
            return Err(error(match count {
                1 => format!(
                    "the memory has {cuts} cuts: transfer its blocks by Shares, with a session for each cut"
                ),
                _ => format!("blocks of {cuts} cuts in memory, and {count} sessions"),
            }));
        }
        let (bytes, wanted) = (memory.bytes(), self.session.options().block_bytes());
        if bytes != wanted {
            return Err(error(format!(
                "blocks of {bytes} bytes in memory, and of {wanted} in the session"
            )));
        }
        if blocks != numbers {
            return Err(error(format!("{blocks} blocks, and {numbers} places in memory")));
        }
        Ok(())
    }

    /// The blocks of a publish, in turns.
    fn new_blocks(
        &self,
        hashes: &[BlockHash],
        depths: impl Iterator<Item = u32>,
        bytes: Vec<ReadBlock>,
    ) -> Vec<NewBlock<ReadBlock>> {
        let mut blocks = Vec::with_capacity(bytes.len());
        let mut bytes = bytes.into_iter();
        for (hash, depth) in hashes.iter().zip(depths) {
            let cuts = bytes.by_ref().take(self.keys.len());
            blocks.extend(cuts.map(|bytes| NewBlock { hash: *hash, depth, bytes }));
        }
        blocks
    }

    /// Begins what `call` begins, of the blocks that each session found.
    fn begin_fetch<T: Send>(
        &self,
        py: Python<'_>,
        found: Vec<Blocks<'_>>,
        (memory, numbers): (&BlockMemory, &[u32]),
        stream: Option<u64>,
        call: impl FnOnce(
            &LentSession,
            Vec<MatchedBlock>,
            Vec<WriteBlock>,
        ) -> Result<T, SubmitErrorKind>
        + Send,
    ) -> PyResult<T> {
        let place = place(memory.gpu(), stream)?;
        let (blocks, count) = self.in_turns(found)?;
        self.check(memory, count, numbers.len())?;
        let to = memory.write(py, numbers)?;
        begin_at(py, &self.session, place, |session| call(session, blocks, to))
    }

    /// The blocks of a fetch, in turns: what each session found. And how many there are of each.
    fn in_turns(&self, found: Vec<Blocks<'_>>) -> PyResult<(Vec<MatchedBlock>, usize)> {
        if found.len() != self.keys.len() {
            let (found, count) = (found.len(), self.keys.len());
            return Err(error(format!("blocks that {found} sessions found, and {count} sessions")));
        }
        let each = found.into_iter().zip(&self.keys).map(|(found, keys)| found.into_matched(keys));
        let each = each.collect::<PyResult<Vec<_>>>()?;
        let count = each.first().map_or(0, Vec::len);
        if let Some(other) = each.iter().find(|blocks| blocks.len() != count) {
            let other = other.len();
            return Err(error(format!(
                "{count} blocks of one session, and {other} of another: pass equally many"
            )));
        }
        Ok((in_turns(each.into_iter()), count))
    }
}
