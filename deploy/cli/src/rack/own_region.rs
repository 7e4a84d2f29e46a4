//! A region of one's own.

use std::path::Path;

use anyhow::{Context, Result};
use cxl_shm::host::{HOST_TIER_FOLDER, HostTierFile};
use cxl_shm::layout::{Layout, Superblock};
use cxl_shm::region::Region;

use super::Interrupt;
use crate::format::{self, Plan};
use crate::output::complain;

/// A region in a file that is removed when this is dropped, with all its host tiers.
#[derive(Debug)]
pub(crate) struct OwnRegion {
    pub(crate) region: Region,
    pub(crate) superblock: Superblock,
    pub(crate) layout: Layout,
}

impl OwnRegion {
    /// Makes the file and formats it, and touches all of it so that no request pays for that.
    pub(crate) fn make(
        path: &Path,
        bytes: u64,
        plan: &Plan,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let region = Region::create_file(path, bytes)?;
        let (superblock, layout) = match format::make(&region, plan, format::Overrule::Nothing) {
            Ok(made) => made,
            Err(error) => {
                region.remove_file().context("and the region's file could not be removed")?;
                return Err(error);
            }
        };
        let own = Self { region, superblock, layout };
        format::prefault(&own.region)?;
        interrupt.check()?;
        Ok(own)
    }

    pub(crate) fn path(&self) -> &Path {
        self.region.path()
    }

    /// Takes the file out of its folder, once all have opened it: then nothing is left of it even
    /// when this process is killed.
    pub(crate) fn unlink(&self) -> Result<()> {
        Ok(self.region.remove_file()?)
    }
}

impl Drop for OwnRegion {
    fn drop(&mut self) {
        if let Err(error) = self.region.remove_file() {
            complain!("rackline: {error}");
        }
        // A worker that was killed could not remove the tier of its host.
        let folder = Path::new(HOST_TIER_FOLDER);
        if let Err(error) = HostTierFile::remove_all(folder, &self.superblock, &self.layout) {
            complain!("rackline: {error}");
        }
    }
}
