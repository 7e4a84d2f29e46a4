//! Writes that their caller gave up, because the device did not end them (DRIVE-D7).

use std::sync::Arc;
use std::time::Duration;

use super::Volume;
use super::state::{Leaving, State};
use super::write::Reservation;

/// A device that leaves a transfer unfinished for longer than it has other work, and for so long, does
/// not answer.
pub const SILENT_AFTER: Duration = Duration::from_secs(10);

/// Names a write that is under way, for a caller that may not wait for its end.
#[derive(Clone, Debug)]
pub struct WriteTicket {
    volume: Arc<Volume>,
    /// Number of the segment in memory, and first page of the extent.
    place: (u32, u32),
}

impl WriteTicket {
    pub(super) const fn new(volume: Arc<Volume>, place: (u32, u32)) -> Self {
        Self { volume, place }
    }

    /// Gives the write up: its block is not kept, whenever the write ends. The device is marked, and
    /// takes no write and no commit before the write has ended (DRIVE-D7). `false` when the write has
    /// ended already: then nothing changes.
    #[must_use]
    pub fn give_up(&self) -> bool {
        let now_ms = self.volume.now_ms();
        let mut state = self.volume.state();
        let was_under_way = state.writing.remove(&self.place);
        if was_under_way {
            state.given_up.insert(self.place);
            state.health.write_was_late(now_ms);
        }
        was_under_way
    }
}

impl Volume {
    /// Whether the device has not ended what was given up. Nothing is written to the folder then.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.state().is_silent()
    }
}

impl Reservation {
    /// Names the write of this reservation.
    #[must_use]
    pub fn ticket(&self) -> WriteTicket {
        WriteTicket::new(self.volume(), self.slot_and_page())
    }
}

impl State {
    pub(super) fn is_silent(&self) -> bool {
        !self.given_up.is_empty()
    }

    /// A write has ended, or never began. Says whether it was given up: then its extent goes.
    pub(super) fn end_write(&mut self, slot: u32, first_page: u32, pages: u32) -> bool {
        if let Some(segment) = self.segment(slot) {
            segment.under_way -= pages;
            segment.waiting += pages;
        }
        self.writing.remove(&(slot, first_page));
        if !self.given_up.remove(&(slot, first_page)) {
            return false;
        }
        if let Some(segment) = self.segment(slot) {
            segment.waiting -= pages;
            segment.leaving += pages;
            self.leaving.push(Leaving { slot, first_page, pages });
        }
        true
    }
}
