//! Being the agent of a node: one process a host.

use cxl_shm::fabric::{Fabric, PublishBatch};
use cxl_shm::host::{ApplicationWords, HostGuard, HostLockName, MembershipLost};
use cxl_shm::node::Backend;

use super::host_table::HostTable;
use crate::format::{AgentLine, DriveAreas, OwnDrives};
use crate::heap::drive_table_at;
use crate::process::Cache;

/// Why drives cannot be announced, found or asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriveError {
    /// The region has no room for directories of drives.
    #[error(
        "the region has no room to announce drives; format it again with `rackline format \
         --drive-bytes SIZE`"
    )]
    NoRoom,
    /// Another process serves the drives of this host.
    #[error(
        "another agent serves the drives of this node; stop it, or give the folder to that agent \
         with `--drive`"
    )]
    OtherAgent,
    /// This process does not take part any more.
    #[error(transparent)]
    MembershipLost(#[from] MembershipLost),
}

/// The right to be the agent of this node (TIER-D3), as long as it lives: until it is dropped, or
/// its process dies.
#[derive(Debug)]
pub struct DriveClaim<'m, B: Backend> {
    /// Held as long as the claim.
    _only: HostGuard<'m, B::HostMemory>,
    pub(super) drives: DriveAreas,
}

impl<'m, B: Backend> Cache<'m, B> {
    /// Makes this process the agent of its node: the one that announces the drives of the host,
    /// keeps the host's table of blocks on drives, and answers requests.
    ///
    /// # Errors
    /// [`DriveError`]: another living process of the host is the agent, or the region has no room
    /// for directories of drives.
    pub fn claim_drives(&self) -> Result<DriveClaim<'m, B>, DriveError> {
        self.check_member()?;
        let drives = self.drives()?;
        let guard = self.member().try_lock_host(HostLockName::Drives);
        let guard = guard.ok_or(DriveError::OtherAgent)?;
        // TIER-Q2: an agent that died may have stored an answer that only this host's caches have.
        self.member().fabric().publish(self.own_drives(drives).answers());
        Ok(DriveClaim { _only: guard, drives })
    }

    /// Says what the agent did, for `rackline status` of any host.
    ///
    /// # Errors
    /// [`DriveError`].
    pub fn say_agent_line(
        &self,
        claim: &DriveClaim<'_, B>,
        line: &AgentLine,
    ) -> Result<(), DriveError> {
        self.check_member()?;
        let mut batch = PublishBatch::new(self.member().fabric());
        self.own_drives(claim.drives).say_agent(&mut batch, &line.encode());
        batch.publish();
        Ok(())
    }

    pub(super) fn drives(&self) -> Result<DriveAreas, DriveError> {
        self.areas().drives().ok_or(DriveError::NoRoom)
    }

    pub(super) fn own_drives(&self, drives: DriveAreas) -> OwnDrives {
        drives.own(self.member().area())
    }

    /// The host's table of blocks on drives.
    pub(super) fn drive_table(
        &self,
        drives: DriveAreas,
    ) -> HostTable<ApplicationWords<'m, B::HostMemory>> {
        let areas = self.areas();
        let first = drive_table_at(areas.geometry(), areas.layout());
        let plan = drives.plan;
        HostTable::new(self.member().application(), first, plan.geometry.rows_max(plan.nodes))
    }
}
