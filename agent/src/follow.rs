//! The agent of a host without drives.

use cxl_shm::clock::{Clock as _, SystemClock};
use cxl_shm::node::MappedBackend;
use kv_cache::RestoreOutcome;
use kv_cache::tier::{ClearNumbers, DriveAnnouncer, DriveClaim, DriveError, RestoreDesk};
use rackline::LocalCache;

/// How often the agent looks whether nodes ask for something, in milliseconds.
const LOOK_MS: u64 = 20;

/// Says for a host that it has nothing: its announced blocks are withdrawn, what is asked of it is
/// refused, and clears are carried out.
#[derive(Debug)]
pub(crate) struct Follower {
    announcer: DriveAnnouncer,
    desk: RestoreDesk,
    cleared: ClearNumbers,
    look_ms: u64,
}

impl Follower {
    /// Takes a new life, of which there is no entry (TIER-D2).
    ///
    /// # Errors
    /// [`DriveError`].
    pub(crate) fn begin(
        claim: &DriveClaim<'_, MappedBackend>,
        cache: &LocalCache<'_>,
    ) -> Result<Self, DriveError> {
        let announcer = DriveAnnouncer::begin(claim, cache)?;
        let (desk, cleared) = (RestoreDesk::begin(claim), ClearNumbers::default());
        Ok(Self { announcer, desk, cleared, look_ms: 0 })
    }

    /// Answers what nodes asked for.
    ///
    /// # Errors
    /// [`DriveError::MembershipLost`].
    pub(crate) fn turn(
        &mut self,
        cache: &LocalCache<'_>,
        clock: &SystemClock,
    ) -> Result<(), DriveError> {
        let now_ms = clock.now_ms();
        if now_ms < self.look_ms {
            return Ok(());
        }
        self.look_ms = now_ms + LOOK_MS;
        // A request that an earlier agent left, or of a host with an older table.
        let asked = self.desk.next(cache)?.into_iter();
        let refused: Vec<_> = asked.map(|it| (it, RestoreOutcome::Unknown)).collect();
        self.desk.answer(cache, &refused)?;
        // A folder that is opened later knows by itself what it missed (CLEAR-D9).
        let clears = cache.clears_since(&self.cleared)?;
        if clears.numbers != self.cleared {
            self.announcer.answer_clears(cache, &clears.numbers)?;
            self.cleared = clears.numbers;
        }
        Ok(())
    }
}
