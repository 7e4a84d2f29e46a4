//! What a test may look at, and no program could.

use super::device::bytes_of;
use super::dma::Piece;
use super::{CutOff, DeviceImage, Event, SimulatedRack, Site};
use crate::units::{Extent, LineOffset, LineRange, WordOffset};

impl SimulatedRack {
    /// The bytes that the device holds, past all caches and posted writes: for checkers only.
    ///
    /// # Panics
    /// When the extent is outside the memory.
    #[must_use]
    pub fn device_bytes(&self, extent: Extent) -> Vec<u8> {
        if extent.bytes() == 0 {
            return Vec::new();
        }
        let lines = LineRange::covering(extent);
        self.check_lines(lines);
        let machine = self.lock();
        let pieces = lines.iter().map(|line| Piece::of(extent, line));
        let parts = pieces.map(|piece| {
            let found = bytes_of(&machine.device.peek(piece.line));
            found[piece.start..piece.start + piece.range.len()].to_vec()
        });
        parts.collect::<Vec<_>>().concat()
    }

    /// The word that the device holds, past all caches and posted writes: for checkers only.
    ///
    /// # Panics
    /// When the word is outside the memory.
    #[must_use]
    pub fn device_word(&self, at: WordOffset) -> u64 {
        self.check_lines(LineRange::one(at.line()));
        self.lock().device.peek(at.line())[at.index_in_line()]
    }

    /// What the device holds, past all caches and posted writes: to start other racks with.
    #[must_use]
    pub fn image(&self) -> DeviceImage {
        self.lock().device.image(self.bytes())
    }

    /// Lines of host `host` that hold stores the device has not got, in order. Posted lines are
    /// not among them.
    ///
    /// # Panics
    /// When there is no such host.
    #[must_use]
    pub fn dirty_lines(&self, host: usize) -> Vec<LineOffset> {
        self.check_host(host);
        self.lock().hosts[host].dirty_lines()
    }

    /// Lines that a host wrote while another host's write to them had not reached the device:
    /// MEM-M1 was broken there, whether or not a value was lost this time.
    #[must_use]
    pub fn conflicts(&self) -> Vec<LineOffset> {
        self.lock().conflicts.clone()
    }

    /// The processes that met a line which cannot be read, in order.
    #[must_use]
    pub fn cut_offs(&self) -> Vec<CutOff> {
        self.lock().failed.cut_offs().to_vec()
    }

    /// Places where something was flushed or fenced so far, suppressed ones included, in order.
    #[must_use]
    pub fn sites(&self) -> Vec<Site> {
        self.lock().sites.executed()
    }

    /// How often `site` was reached so far.
    #[must_use]
    pub fn executions(&self, site: Site) -> u64 {
        self.lock().sites.executions(site)
    }

    /// A fingerprint of everything that happened so far, in order.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.lock().trace.hash()
    }

    /// The last events, at most 1024, oldest first.
    #[must_use]
    pub fn history(&self) -> Vec<Event> {
        self.lock().trace.last().collect()
    }
}
