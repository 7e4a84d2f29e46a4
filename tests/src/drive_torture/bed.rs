//! The region and the folders of a run, gone when it is over.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cxl_shm::clock::SystemClock;
use kv_cache::tier::Found;
use kv_cache::{AgentSeen, agent_of};
use rackline::{NodeId, Pool, ScratchRegion};

use super::ground::{ANNOUNCED_BYTES, BLOCK_BYTES, HOSTS, REGION_BYTES, folders, key};

/// The folders of all drives. They outlive a region.
#[derive(Debug)]
pub(super) struct Folders(PathBuf);

impl Folders {
    pub(super) fn make() -> Result<Self> {
        let name = format!("rackline-torture-drives-{}", std::process::id());
        let made = Self(std::env::temp_dir().join(name));
        for host in 0..HOSTS {
            for folder in folders(&made.0, host) {
                std::fs::create_dir_all(&folder)
                    .with_context(|| format!("cannot create {}", folder.display()))?;
            }
        }
        Ok(made)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// A region, and the parent as a process of each host: it outlives all other processes of them.
#[derive(Debug)]
pub(super) struct Bed {
    pools: Vec<Pool>,
    /// Started when the pools were: how long ago an agent was heard of is told by it.
    pub(super) clock: SystemClock,
    /// Goes after the pools.
    pub(super) region: ScratchRegion,
}

impl Bed {
    pub(super) fn make() -> Result<Self> {
        let region = ScratchRegion::create_with_drives(
            REGION_BYTES,
            HOSTS,
            BLOCK_BYTES as u64,
            ANNOUNCED_BYTES,
        )?;
        let clock = SystemClock::start();
        let attach = |host| Pool::attach(region.path(), host);
        let pools = (0..HOSTS).map(attach).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { pools, clock, region })
    }

    /// The parent as a process of `host`.
    pub(super) fn on(&self, host: u16) -> &Pool {
        &self.pools[usize::from(host)]
    }

    /// Where a process of `host` finds the block, if anywhere.
    pub(super) fn find(&self, host: u16, number: u32) -> Option<Found> {
        let found = self.on(host).cache().find_with_drives(&self.clock, &[key(number)]);
        let in_pool = found.pool.first().map(|block| Found::InPool(*block));
        in_pool.or_else(|| found.behind.first().copied())
    }

    /// What the agent of `host` says of itself.
    pub(super) fn agent(&self, host: u16) -> Result<Option<AgentSeen>> {
        let cache = self.on(host).cache();
        let member = cache.member();
        let (superblock, layout) = (member.superblock(), member.layout());
        Ok(agent_of(member.fabric(), superblock, layout, NodeId(host))?)
    }
}
