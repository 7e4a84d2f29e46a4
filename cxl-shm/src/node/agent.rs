//! What the agent of a host remembers between two beats, and what a process that is not the agent
//! has seen of it.

use super::heartbeat::RESIGN_BEATS;

/// What the one elected agent of a host counts. Holds no clock of its own.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Agent {
    beats: u64,
    /// Looks in a row at which no lock manager lived on this host.
    unmanaged: u64,
}

/// Beats between two looks for a lock manager on this host: each is a system call.
const MANAGER_LOOK_BEATS: u64 = 64;

/// Beats between two looks for dead processes of this host: a system call for each of its
/// processes.
const DEAD_LOOK_BEATS: u64 = 128;

impl Agent {
    /// Takes note that the heartbeat has beaten `beats` times by now.
    pub(crate) fn ticked(&mut self, beats: u64) {
        self.beats = beats;
    }

    /// Whether the last beat was one after which to look for dead processes of this host.
    pub(crate) fn is_time_for_the_dead(&self) -> bool {
        self.beats.is_multiple_of(DEAD_LOOK_BEATS)
    }

    /// Whether the last beat was one after which to look for a lock manager on this host.
    pub(crate) fn is_time_for_managers(&self) -> bool {
        self.beats.is_multiple_of(MANAGER_LOOK_BEATS)
    }

    /// Takes note of such a look. Whether none has lived here for long.
    pub(crate) fn has_missed_managers(&mut self, lives: bool) -> bool {
        self.unmanaged = if lives { 0 } else { self.unmanaged + 1 };
        let for_long = self.unmanaged >= RESIGN_BEATS / MANAGER_LOOK_BEATS;
        if for_long {
            self.unmanaged = 0;
        }
        for_long
    }
}

/// Beats of a process during which the heartbeat of its host stands still before the process takes
/// the agent's office over: 160 ms at one beat every
/// [`HEARTBEAT_MS`](super::heartbeat::HEARTBEAT_MS).
pub const STALLED_BEATS: u32 = 16;

/// What a process that is not the agent has seen of the heartbeat of its host.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct OfficeWatch {
    beats: u64,
    looks: u32,
}

impl OfficeWatch {
    /// Takes note of the heartbeat. Whether it has stood still for so many looks that its agent
    /// must be stopped.
    pub(crate) fn look(&mut self, beats: u64) -> bool {
        if self.beats != beats {
            *self = Self { beats, looks: 0 };
            return false;
        }
        self.looks = self.looks.saturating_add(1);
        self.looks >= STALLED_BEATS
    }
}
