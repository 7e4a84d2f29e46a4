//! Drives behind a pool: an agent on each node. All agents may be killed, and started again.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::units::NodeId;
use kv_cache::{AgentSeen, agent_of};
#[cfg(feature = "demo")]
use serde::Serialize;

use super::{DriveAgent, Interrupt, OwnRegion};
use crate::agent::Drive;
use crate::output::complain;

/// What all folders together may take when nobody says how much.
const DRIVE_BYTES: u64 = 2 << 30;
/// The least that a drive may have.
const DRIVE_BYTES_MIN: u64 = 2 << 20;
/// An agent knows that another one lives when it has seen the beat of that one move.
const BEATS: u64 = 4;
/// A wait for agents fails after this time: far longer than on a slow machine.
const LIMIT_MS: u64 = 60_000;
const LOOK_MS: u64 = 10;

/// What was seen when the agents were killed and started again.
#[cfg(feature = "demo")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Restart {
    /// Blocks that hosts could find on drives before.
    pub(crate) announced_before: u64,
    /// Blocks that hosts can find on drives since.
    pub(crate) found_again: u64,
    /// From the kill until hosts found them.
    pub(crate) elapsed_ms: u64,
}

#[cfg(feature = "demo")]
impl Restart {
    /// The same for people.
    pub(crate) fn in_words(&self) -> String {
        let Self { announced_before, found_again, elapsed_ms } = self;
        format!("{found_again} of {announced_before} blocks found again after {elapsed_ms} ms")
    }
}

/// The agents of all nodes.
#[derive(Debug)]
pub(crate) struct Drives<'r> {
    region: &'r OwnRegion,
    interrupt: &'r Interrupt,
    folders: Vec<PathBuf>,
    folder_bytes: u64,
    /// By node; none where it was killed.
    agents: Vec<Option<DriveAgent>>,
    /// Whether the folders stay in the end.
    stay: bool,
    /// How many agents each node had.
    lives: u32,
}

impl<'r> Drives<'r> {
    /// Starts an agent on each node, each with a folder of its own in that of `drive`, named by
    /// `name`. With `stay` the folders stay in the end: what an earlier run has put there is found.
    /// Otherwise the region is in their names, and a folder that is there is an error.
    pub(crate) fn start(
        region: &'r OwnRegion,
        nodes: u16,
        name: &str,
        drive: &Drive,
        stay: bool,
        interrupt: &'r Interrupt,
    ) -> Result<Self> {
        let folder_bytes = bytes_of(drive) / u64::from(nodes);
        ensure!(
            folder_bytes >= DRIVE_BYTES_MIN,
            "the drives of {nodes} nodes have {} together: give at least {}",
            ByteSize(bytes_of(drive)),
            ByteSize(DRIVE_BYTES_MIN * u64::from(nodes))
        );
        let place = &drive.0.path;
        let cannot = |folder: &Path| {
            format!("cannot make {}: name a folder of this user's", folder.display())
        };
        std::fs::create_dir_all(place).with_context(|| cannot(place))?;
        let (folders, agents) = (Vec::new(), Vec::new());
        let mut drives = Self { region, interrupt, folders, folder_bytes, agents, stay, lives: 0 };
        for node in 0..nodes {
            let folder = if stay {
                place.join(format!("{name}-{node}"))
            } else {
                place.join(format!("{name}-{}-{node}", region.superblock.uuid_text()))
            };
            let made =
                if stay { std::fs::create_dir_all(&folder) } else { std::fs::create_dir(&folder) };
            made.with_context(|| cannot(&folder))?;
            drives.folders.push(folder);
        }
        drives.start_agents()?;
        drives.wait_until_heard(0)?;
        Ok(drives)
    }

    /// An error when an agent has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.agents.iter_mut().flatten().try_for_each(DriveAgent::check)
    }

    /// Kills the agent of a node, as `kill -9` does.
    pub(crate) fn kill(&mut self, node: u16) -> Result<()> {
        let agent = self.agents.get_mut(usize::from(node)).and_then(Option::take);
        agent.map_or(Ok(()), DriveAgent::kill)
    }

    /// The process ids of the agents.
    #[cfg(feature = "demo")]
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.agents.iter().flatten().map(DriveAgent::pid).collect()
    }

    /// Blocks that hosts can find on drives.
    #[cfg(feature = "demo")]
    pub(crate) fn announced(&self) -> Result<u64> {
        Ok(self.seen()?.iter().flatten().map(|seen| seen.line.announced_blocks).sum())
    }

    /// Kills all agents at whatever they do, starts them again, and waits until hosts find on drives
    /// what they found before.
    #[cfg(feature = "demo")]
    pub(crate) fn kill_and_start_again(&mut self) -> Result<Restart> {
        let clock = SystemClock::start();
        let announced_before = self.announced()?;
        for agent in self.agents.drain(..).flatten() {
            agent.kill()?;
        }
        self.start_agents()?;
        self.wait_until_heard(announced_before)?;
        Ok(Restart { announced_before, found_again: self.announced()?, elapsed_ms: clock.now_ms() })
    }

    fn start_agents(&mut self) -> Result<()> {
        for (node, folder) in (0..).zip(&self.folders) {
            let path = self.region.path();
            self.agents.push(Some(DriveAgent::start(path, node, folder, self.folder_bytes)?));
        }
        self.lives += 1;
        Ok(())
    }

    /// Waits until all agents have heard each other, and have announced so many blocks. Blocks that
    /// left a drive meanwhile to make room count.
    fn wait_until_heard(&mut self, announced: u64) -> Result<()> {
        let clock = SystemClock::start();
        let mut first_beats = vec![None; self.agents.len()];
        loop {
            self.interrupt.check()?;
            self.agents.iter_mut().flatten().try_for_each(DriveAgent::check)?;
            let (mut heard, mut found) = (true, 0);
            for (first, seen) in first_beats.iter_mut().zip(self.seen()?) {
                let seen = seen.filter(|it| it.life == self.lives && it.beat > 0);
                let beats = seen.map_or(0, |it| it.beat - *first.get_or_insert(it.beat));
                heard &= beats >= BEATS;
                found += seen.map_or(0, |it| it.line.announced_blocks + it.line.removed_blocks);
            }
            if heard && found >= announced {
                return Ok(());
            }
            ensure!(
                clock.now_ms() < LIMIT_MS,
                "the agents did not find {announced} blocks on their drives again in {} s: see what \
                 they said above",
                LIMIT_MS / 1000
            );
            clock.sleep_ms(LOOK_MS);
        }
    }

    /// What the agent of each node says of itself.
    fn seen(&self) -> Result<Vec<Option<AgentSeen>>> {
        let OwnRegion { region, superblock, layout } = self.region;
        let nodes = (0..).map(NodeId).take(self.folders.len());
        let look = |node| Ok(agent_of(region.fabric(), superblock, layout, node)?);
        nodes.map(look).collect()
    }
}

impl Drop for Drives<'_> {
    fn drop(&mut self) {
        self.agents.clear();
        for folder in self.folders.iter().filter(|_| !self.stay) {
            if let Err(error) = std::fs::remove_dir_all(folder)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                complain!("rackline: {} is left: {error}", folder.display());
            }
        }
    }
}

/// What the folders of all nodes may take together.
pub(crate) fn bytes_of(drive: &Drive) -> u64 {
    drive.0.capacity_bytes.unwrap_or(DRIVE_BYTES)
}
