//! What a test does to a rack.

use super::machine::Machine;
use super::{FailedLine, SimulatedRack, Site, schedule};
use crate::units::{LineOffset, LineRange};

impl SimulatedRack {
    /// Lets `ms` milliseconds pass for everybody.
    pub fn advance_ms(&self, ms: u64) {
        self.lock().now_ns += ms * 1_000_000;
    }

    /// Host `host` loses power: any subset of its dirty and posted lines reaches the device, its
    /// caches and DRAM are cleared. In a schedule all its tasks crash, the calling one included.
    ///
    /// # Panics
    /// When there is no such host.
    pub fn crash(&self, host: usize) {
        self.check_host(host);
        schedule::crash_host(self, host);
    }

    /// The caches of host `host` fetch those of `lines` that they do not hold, as caches may at any
    /// time. What they hold from then on is as old as this moment. Lines to which the host has
    /// writes on their way stay out: a fetch would make up for a forgotten read-back.
    ///
    /// # Panics
    /// When there is no such host, or the lines are outside the memory.
    pub fn warm(&self, host: usize, lines: LineRange) {
        self.check_host(host);
        self.check_lines(lines);
        let mut machine = self.lock();
        let Machine { hosts, device, .. } = &mut *machine;
        hosts[host].warm(device, lines);
    }

    /// Keeps the tasks of host `host` from running from their next operation on, in the running
    /// or the next schedule. Its caches go on.
    ///
    /// # Panics
    /// When there is no such host.
    pub fn pause(&self, host: usize) {
        self.check_host(host);
        self.lock().paused[host] = true;
    }

    /// Ends a [`pause`](Self::pause).
    ///
    /// # Panics
    /// When there is no such host.
    pub fn resume(&self, host: usize) {
        self.check_host(host);
        self.lock().paused[host] = false;
    }

    /// From now on the device answers garbage for this line and takes no writes to it. Cached
    /// copies stay.
    ///
    /// # Panics
    /// When the line is outside the memory.
    pub fn poison(&self, line: LineOffset) {
        self.check_lines(LineRange::one(line));
        self.lock().device.poison(line);
    }

    /// From now on the device cannot read this line of metadata. A process that asks for it, and does
    /// not find it in the caches of its host, is cut off (FAULT-F4): it sees zeros and its own stores
    /// in place of all of the memory and of its host's DRAM, and everybody else sees a process that
    /// died at this moment. In a schedule the observer of crashes is told so.
    ///
    /// # Panics
    /// When the line is outside the memory.
    pub fn fail(&self, line: LineOffset, how: FailedLine) {
        self.check_lines(LineRange::one(line));
        self.lock().device.fail(line, how);
    }

    /// From now on a process that meets a line which cannot be read sees zeros in place of its page
    /// alone, and goes on: a program without FAULT-F4, which a test has to notice.
    pub fn go_on_after_failures(&self) {
        self.lock().failed.go_on();
    }

    /// From now on the DMA engines of a process that was cut off reach the device still, as a GPU does
    /// that has the pages of the pool registered. Otherwise they are its processors.
    pub fn let_engines_go_on(&self) {
        self.lock().failed.let_engines_go_on();
    }

    /// The calling process maps the memory anew, as one that starts does: it is not cut off any more.
    pub fn map_anew(&self) {
        let mut machine = self.lock();
        let actor = machine.actor();
        machine.failed.map_anew(actor);
    }

    /// Flips bit `bit` of the byte at `byte_offset` on the device. Cached copies stay.
    ///
    /// # Panics
    /// When the byte is outside the memory or has no such bit.
    pub fn flip_bit(&self, byte_offset: u64, bit: u32) {
        assert!(byte_offset < self.bytes(), "byte {byte_offset:#x} is outside the memory");
        self.lock().device.flip_bit(byte_offset, bit);
    }

    /// Operations outside of schedules that are left before one panics: what waits there for
    /// something that never comes has no other end.
    pub fn limit_operations(&self, operations: u64) {
        self.lock().operations_left = operations;
    }

    /// From now on operations issued from `site` do nothing.
    pub fn suppress(&self, site: Site) {
        self.lock().sites.suppress(site);
    }
}
