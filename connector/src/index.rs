//! A pool as a router sees it: which prefixes it has, and on which nodes.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fork::ProcessMark;
use cxl_shm::layout::{Superblock, SuperblockError, read_superblock};
use cxl_shm::region::{OpenError, Region};
use kv_cache::{BlockHash, GeometryError, KeySpace, PoolPrefix, PoolReader};

use crate::options::SessionOptions;

/// How often a refresh checks that the file is still at its path.
const PATH_CHECK_MS: u64 = 1000;

/// Why an index gives no answer. Open the region again for all but [`Open`](Self::Open) and
/// [`Cache`](Self::Cache).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The region cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The memory holds no region, or one of another version.
    #[error("{}: {source}", .region.display())]
    Superblock {
        /// The device or file.
        region: PathBuf,
        /// What is wrong with the superblock.
        source: SuperblockError,
    },
    /// The region is not a KV cache, or one of another version.
    #[error(transparent)]
    Cache(#[from] GeometryError),
    /// The region was formatted again, or its file was replaced, since it was opened.
    #[error(
        "{} was formatted again or replaced after this index opened it, and the blocks that the \
         index knew are gone; open a new index",
        .region.display()
    )]
    Replaced {
        /// The device or file.
        region: PathBuf,
    },
    /// This process is a child made by `fork`, and its parent opened the index.
    #[error("this process is a forked child of the process that opened the index; open one here")]
    Forked,
}

/// A read-only view of a pool for routers: how long a prefix the rack has, and on which nodes.
///
/// An index is no member of the region. It owns no node number, no memory and no lock, it writes
/// nothing that another host sees, and its death needs no recovery. Any number of indexes may be open,
/// on any host that maps the region.
///
/// # What an answer is worth
/// An answer is a hint, as for every lookup without a hold:
///
/// - Every block of the answer was complete and announced, and its removal was not announced before the
///   refresh. The block may be evicted the next moment. An engine that then finds less computes the rest.
/// - Every block that was announced before the refresh is found, unless its descriptor cannot be read
///   at that moment: being changed, or damaged.
/// - Blocks of a node that left or died are found as long as they are in the pool.
/// - An index that was not refreshed for longer than a publication log lasts scans the node's
///   descriptors, at most 64 bytes for each slot of the region. Routers that refresh now and then
///   avoid that.
///
/// A lookup with a refresh takes microseconds: one line for each node is loaded, and the rest is in
/// DRAM. All methods may be called from any thread; one call at a time uses the index.
///
/// # Example
/// ```
/// use rackline::{
///     Attention, BlockHash, Dtype, Index, IndexedModel, KvGeometry, NewBlock, NodeId, Pool,
///     ScratchRegion, SessionOptions,
/// };
///
/// let region = ScratchRegion::create(16 << 20, 2, 4096)?;
/// let heads = Attention::Heads { kv_heads: 2, head_dim: 16 };
/// let kv = KvGeometry::new(4, heads, Dtype::F16, 8)?;
/// let options = SessionOptions::new(kv.model("tiny", "1", 1), kv.rank_block_bytes());
/// let hashes: Vec<_> = (1..=3).map(|number| BlockHash::new([number; 32])).collect();
///
/// // An engine on node 1.
/// let pool = Pool::attach(region.path(), 1)?;
/// let payloads = [[1u8; 4096], [2; 4096]];
/// let parts = payloads.each_ref().map(|payload| [&payload[..]]);
/// pool.session(options)?.publish(&NewBlock::chain(0, hashes[..2].iter().copied(), parts))?;
///
/// // A router.
/// let index = Index::open(region.path())?;
/// let found = index.prefix(&[IndexedModel::new(&options)], &hashes)?;
/// assert_eq!((found.blocks(), found.parts()), (2, &[(NodeId(1), 2)][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Index {
    region: Region,
    superblock: Superblock,
    process: ProcessMark,
    clock: SystemClock,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    reader: PoolReader,
    path_checked_ms: u64,
    /// A refresh found another region: what the reader knows is of neither.
    is_replaced: bool,
}

/// The blocks of one rank of a model, as sessions with these options store them.
#[derive(Clone, Debug)]
pub struct IndexedModel {
    keys: KeySpace,
}

impl IndexedModel {
    /// Blocks that a session with these options finds.
    #[must_use]
    pub fn new(options: &SessionOptions) -> Self {
        Self { keys: options.key_space() }
    }
}

impl Index {
    /// Opens the region at `path`, a devdax device or a file, and reads which blocks it has. The user
    /// needs permission to read it, and the process cannot change it.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, IndexError> {
        let region = Region::open_read_only(path.as_ref())?;
        let (superblock, layout) = read_superblock(region.fabric()).map_err(|source| {
            IndexError::Superblock { region: region.path().to_owned(), source }
        })?;
        let reader = PoolReader::new(&superblock, &layout)?;
        let state = Mutex::new(State { reader, path_checked_ms: 0, is_replaced: false });
        let (process, clock) = (ProcessMark::of_this(), SystemClock::start());
        let index = Self { region, superblock, process, clock, state };
        index.refresh()?;
        Ok(index)
    }

    /// Takes in what all nodes announced before the call.
    ///
    /// # Errors
    /// [`IndexError::Replaced`], [`IndexError::Superblock`], [`IndexError::Forked`].
    pub fn refresh(&self) -> Result<(), IndexError> {
        self.with_reader(true, |_| ())
    }

    /// The longest prefix of `hashes` of which every block is in the pool for every one of `models`,
    /// after a [`refresh`](Self::refresh). `models` are the ranks of an engine, or one model.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh).
    pub fn prefix(
        &self,
        models: &[IndexedModel],
        hashes: &[BlockHash],
    ) -> Result<PoolPrefix, IndexError> {
        let spaces = key_spaces(models);
        self.with_reader(true, |reader| reader.prefix(&spaces, hashes))
    }

    /// As [`prefix`](Self::prefix), as of the last refresh: nothing of the region is loaded.
    ///
    /// # Errors
    /// [`IndexError::Forked`]; [`IndexError::Replaced`] once a refresh, of any thread, has failed with
    /// that.
    pub fn prefix_as_refreshed(
        &self,
        models: &[IndexedModel],
        hashes: &[BlockHash],
    ) -> Result<PoolPrefix, IndexError> {
        let spaces = key_spaces(models);
        self.with_reader(false, |reader| reader.prefix(&spaces, hashes))
    }

    /// The number of blocks of all models in the pool, as of the last refresh.
    ///
    /// # Errors
    /// As [`prefix_as_refreshed`](Self::prefix_as_refreshed).
    pub fn blocks(&self) -> Result<usize, IndexError> {
        self.with_reader(false, |reader| reader.blocks())
    }

    /// Asks the reader, which was refreshed and is of the region that is there.
    fn with_reader<T>(
        &self,
        refresh: bool,
        ask: impl FnOnce(&PoolReader) -> T,
    ) -> Result<T, IndexError> {
        if !self.process.is_of_this() {
            return Err(IndexError::Forked);
        }
        // A thread that panicked left the reader no worse than stale (INDEX-R1).
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if refresh && !state.is_replaced {
            state.reader.refresh(self.region.fabric());
            // After the refresh: what the region said before was of the region that was opened.
            self.check_region(&mut state)?;
        }
        if state.is_replaced {
            return Err(IndexError::Replaced { region: self.region.path().to_owned() });
        }
        Ok(ask(&state.reader))
    }

    /// Notes that the region was formatted again, or that its file is another one by now.
    fn check_region(&self, state: &mut State) -> Result<(), IndexError> {
        let superblock = read_superblock(self.region.fabric());
        // A formatter is at work, or the memory is another's: the reader may have taken in anything.
        state.is_replaced =
            superblock.as_ref().map_or(true, |it| it.0.uuid != self.superblock.uuid);
        superblock.map_err(|source| IndexError::Superblock {
            region: self.region.path().to_owned(),
            source,
        })?;
        let now_ms = self.clock.now_ms();
        if !state.is_replaced && now_ms >= state.path_checked_ms + PATH_CHECK_MS {
            state.path_checked_ms = now_ms;
            state.is_replaced = !self.region.is_at_its_path();
        }
        Ok(())
    }
}

fn key_spaces(models: &[IndexedModel]) -> Vec<KeySpace> {
    models.iter().map(|model| model.keys.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScratchRegion;

    /// A mistake of a router cannot change the pool.
    #[test]
    fn an_index_maps_the_region_to_read_it() {
        let region = ScratchRegion::create(16 << 20, 2, 4096).unwrap();
        let index = Index::open(region.path()).unwrap();
        assert_eq!(index.blocks().unwrap(), 0);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let of_region: Vec<_> =
            maps.lines().filter(|line| line.ends_with(region.path().to_str().unwrap())).collect();
        assert!(!of_region.is_empty() && of_region.iter().all(|line| line.contains(" r--s ")));
    }

    /// A router that refreshes in one thread, and asks in others what is known.
    #[test]
    fn an_index_of_a_region_that_is_gone_answers_nothing() {
        let region = ScratchRegion::create(16 << 20, 2, 4096).unwrap();
        let index = Index::open(region.path()).unwrap();
        let model = crate::identity_options(4096);
        let models = [IndexedModel::new(&model)];
        let hashes = [BlockHash::new([1; 32])];
        assert_eq!(index.prefix_as_refreshed(&models, &hashes).unwrap().blocks(), 0);
        std::fs::remove_file(region.path()).unwrap();
        while index.refresh().is_ok() {
            SystemClock::start().sleep_ms(PATH_CHECK_MS / 10);
        }
        let is_replaced = |error| matches!(error, Some(IndexError::Replaced { .. }));
        assert!(is_replaced(index.blocks().err()));
        assert!(is_replaced(index.prefix_as_refreshed(&models, &hashes).err()));
        assert!(is_replaced(index.prefix(&models, &hashes).err()));
    }
}
