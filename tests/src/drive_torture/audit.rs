//! What must be in the end: in the folders, in the pool, and in a region formatted anew.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use kv_cache::tier::RestoreState;
use kv_cache::{BlockKey, RestoreOutcome, RestoreRequest};
use kv_drive::io::EngineKind;
use kv_drive::store::{Access, FolderOptions, Store, StoreOptions};
use rackline::NodeId;

use super::bed::Bed;
use super::ground::{A, B, BLOCKS, HOSTS, folder_bytes, folders, key};
use super::rack::{NO_PROGRESS_MS, Rack};

/// Requests of each host to each agent.
const REQUESTS: u32 = 128;
/// How long a request may wait in its queue.
const WAIT_MS: u32 = 60_000;

/// A block whose bytes are not those that were written, and why.
type Damaged = (BlockKey, String);

impl Rack {
    /// Ends the engines, and compares the region and the folders with what was acknowledged.
    ///
    /// # Errors
    /// What is lost, leaked, damaged or wedged.
    pub(super) fn audit(&mut self) -> Result<()> {
        let agents = 0..usize::from(HOSTS);
        self.end(self.engines())?;
        ensure!(self.shadow.len() > 0, "no drive acknowledged a block");
        ensure!(self.figures.restored > 0, "no block came back from a drive");
        self.call_roll()?;
        self.ask_everywhere()?;
        self.empty_pool()?;
        self.end(agents.clone())?;
        self.read_folders()?;

        // The whole pool is lost, and formatted anew.
        self.bed = Bed::make()?;
        agents.clone().try_for_each(|place| self.start(place, None))?;
        self.call_roll()?;
        let all: Vec<_> = self.shadow.numbers().collect();
        self.bring_back(&all)?;
        self.clear_drives()?;
        self.end(agents)?;
        for host in 0..HOSTS {
            let (_, left) = self.open_folders(host)?;
            ensure!(left.is_empty(), "{} blocks are on drives of {host} after a clear", left.len());
        }
        Ok(())
    }

    /// No request line is taken: each host asks each agent for as many blocks as it may, and gets as
    /// many answers.
    fn ask_everywhere(&mut self) -> Result<()> {
        for (host, owner) in [(A, A), (A, B), (B, A), (B, B)] {
            let unknown = |number| RestoreRequest {
                key: key(BLOCKS + number),
                wait_ms: WAIT_MS,
                recompute_ms: None,
                ahead: false,
            };
            let requests: Vec<_> = (0..REQUESTS).map(unknown).collect();
            let asked =
                self.bed.on(host).cache().ask_restore(&self.bed.clock, NodeId(owner), &requests)?;
            ensure!(asked.full == 0, "{} requests of {host} to {owner} find no line", asked.full);
            self.wait_until("all requests are answered", |rack| {
                let states = rack.bed.on(host).cache().restore_states(&asked.tickets)?;
                let is_unknown =
                    |it: &RestoreState| *it == RestoreState::Answered(RestoreOutcome::Unknown);
                Ok(states.iter().all(is_unknown))
            })?;
        }
        Ok(())
    }

    /// Clears the pool alone. No slot and no byte of it is taken then.
    fn empty_pool(&mut self) -> Result<()> {
        let timeout = Duration::from_millis(NO_PROGRESS_MS);
        let left = self.bed.on(A).clear_pool(None, timeout)?.nodes_left();
        ensure!(left.is_empty(), "hosts {left:?} did not clear the pool");
        for host in 0..HOSTS {
            let cache = self.bed.on(host).cache();
            let (usage, member) = (cache.heap_use(&self.bed.clock), cache.member());
            ensure!(usage.blocks == 0, "host {host} has {} blocks after a clear", usage.blocks);
            let chunk_bytes = member.layout().geometry().chunk_bytes;
            let has_bytes = member.owned_chunks().len() as u64 * chunk_bytes;
            ensure!(
                has_bytes == usage.free_bytes,
                "host {host} owns {has_bytes} bytes of payload, and knows of {usage:?}"
            );
        }
        Ok(())
    }

    fn clear_drives(&mut self) -> Result<()> {
        let timeout = Duration::from_millis(NO_PROGRESS_MS);
        let left = self.bed.on(B).clear(None, timeout)?.nodes_left();
        ensure!(left.is_empty(), "hosts {left:?} did not clear their drives");
        Ok(())
    }

    /// Every acknowledged block is in the folders of A, whole, and nobody's agent runs.
    fn read_folders(&self) -> Result<()> {
        let (damaged, whole) = self.open_folders(A)?;
        if let Some((key, why)) = damaged.first() {
            bail!("{} blocks of {A} are damaged, for one {key:?}: {why}", damaged.len());
        }
        let lost: Vec<_> = self.shadow.numbers().filter(|it| !whole.contains(&key(*it))).collect();
        ensure!(lost.is_empty(), "{} acknowledged blocks are in no folder: {lost:?}", lost.len());
        // Those of B may be damaged.
        self.open_folders(B)?;
        Ok(())
    }

    /// Reads all blocks in the folders of `host`, as a tool does: which are damaged, which whole.
    fn open_folders(&self, host: u16) -> Result<(Vec<Damaged>, BTreeSet<BlockKey>)> {
        let options = StoreOptions {
            engine: EngineKind::Posix,
            host: [0; 16],
            take_over: false,
            access: Access::Read,
        };
        let capacity_bytes = folder_bytes(host);
        let paths = folders(self.folders.path(), host).into_iter();
        let places: Vec<_> = paths.map(|path| FolderOptions { path, capacity_bytes }).collect();
        let store = Store::open(&places, options)?;
        store.scan(|_, _| ())?;
        let (mut damaged, mut whole) = (Vec::new(), BTreeSet::new());
        store.verify(|(key, outcome)| {
            match outcome {
                Ok(_) => drop(whole.insert(key)),
                Err(miss) => damaged.push((key, miss.to_string())),
            }
            true
        });
        Ok((damaged, whole))
    }
}
