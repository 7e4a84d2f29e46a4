//! The region of a run: a file in memory, formatted, and gone when the run is over.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cxl_shm::host::{HOST_TIER_FOLDER, HostTierFile};
use cxl_shm::layout::{Layout, LockProtocol, Superblock, format_superblock};
use cxl_shm::region::Region;

use super::ground;

/// The region file in the folder of a run.
pub(super) fn region_path(folder: &Path) -> PathBuf {
    folder.join("region")
}

/// A formatted region in a folder of its own, removed with its host tiers when dropped.
#[derive(Debug)]
pub(super) struct Bed {
    pub(super) folder: PathBuf,
    pub(super) region: Region,
    pub(super) superblock: Superblock,
    pub(super) layout: Layout,
    _remover: Remover,
}

/// Removes the folder also when the rest of the bed could not be made.
#[derive(Debug)]
struct Remover(PathBuf);

impl Drop for Remover {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

impl Bed {
    /// Makes a bed for `nodes` nodes, on which chunks run out or do not. `number` tells the beds of
    /// this process apart.
    pub(super) fn make(nodes: u16, locks: LockProtocol, number: u64, scarce: bool) -> Result<Self> {
        let name = format!("rackline-torture-{}-{number}", std::process::id());
        let folder = Path::new(HOST_TIER_FOLDER).join(name);
        std::fs::create_dir(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let remover = Remover(folder.clone());
        let uuid = [u64::from(std::process::id()), number];
        let superblock = ground::superblock(nodes, locks, uuid, scarce)?;
        let bytes = superblock.geometry.region_bytes;
        let region = Region::create_file(&region_path(&folder), bytes)?;
        let layout = format_superblock(region.fabric(), &superblock, |_, _| ())?;
        ground::reserve_ground(region.fabric(), &layout);
        Ok(Self { folder, region, superblock, layout, _remover: remover })
    }

    /// Where the tier of `node` lies when its host is a process of its own.
    pub(super) fn own_tier(&self, node: u16) -> Option<PathBuf> {
        let node = self.layout.node(node)?;
        Some(HostTierFile::path_in(&self.folder, &self.superblock, node))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // A process that was killed could not remove the tier of its host.
        let folder = Path::new(HOST_TIER_FOLDER);
        if let Err(error) = HostTierFile::remove_all(folder, &self.superblock, &self.layout) {
            eprintln!("{error}");
        }
    }
}
