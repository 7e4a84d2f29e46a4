//! A beat of the heart, and what the host's agent does with each.
//!
//! - **G1** The office of agent is a host lock. It passes to another process of the host when its
//!   holder is dead, and also when the holder lives and the heart has not beaten for [`STALLED_BEATS`]
//!   beats of the process that watches it: a process that is stopped (a debugger, a frozen
//!   container) costs its host nothing while another one runs. Each process counts its own beats, so
//!   one that was stopped itself deposes nobody for that.
//! - **G2** A deposed agent may go on at any time, from wherever it was stopped. It finishes the beat
//!   it was at beside the new agent, and then finds that the office is another's. So each part of a
//!   beat is safe beside itself: a late beat of the heart is one more change of a word that is only
//!   compared with what it was; acknowledgements of terms by T2a and T2b (`lock/arbitrated/agent.rs`);
//!   everything else is done under host locks, which are not taken from living processes.
//! - **G3** Before the heart beats the agent looks whether the slot, and the region, are still its own
//!   ([`Loss`](super::LossCause)). When they are not it writes nothing, and tells all processes of the host.
//!   That holds for each beat in the middle of long work, too.
//! - **G4** The last process of a host looks at the slot and the region itself before it writes what
//!   leaving writes, and a process that joins others of its host looks before it writes. The agent may
//!   have slept since its last beat. A node that was declared dead still leaves in order, until a
//!   recoverer says that the host is fenced (R1), or the line says that the life is over.

use super::slot::{is_over, last_named};
use super::{HostLockName, Liveness, LossCause, Member, recovery};
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, HostMemory, refresh_all};
use crate::layout::{NodeState, SuperblockError, SuperblockWatch, read_superblock};
use crate::lock::{HostAcquire, HostLock, Living};
use crate::member::is_declared_dead;

/// Beats of a process during which the heart of its host stands still before the process takes the
/// agent's office over: 160 ms at one beat every [`HEARTBEAT_MS`](super::HEARTBEAT_MS).
pub const STALLED_BEATS: u32 = 16;

/// What a process that is not the agent has seen of the heart of its host.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct OfficeWatch {
    beats: u64,
    looks: u32,
}

impl OfficeWatch {
    /// Takes note of the heart. Whether it has stood still for so many looks that its agent must be
    /// stopped.
    fn look(&mut self, beats: u64) -> bool {
        if self.beats != beats {
            *self = Self { beats, looks: 0 };
            return false;
        }
        self.looks = self.looks.saturating_add(1);
        self.looks >= STALLED_BEATS
    }
}

impl<F: Fabric, H: HostMemory, L: Liveness> Member<F, H, L> {
    /// One beat of the heart, if this process is its host's agent or can become it; called every
    /// [`HEARTBEAT_MS`](super::HEARTBEAT_MS). Returns whether it is. It becomes the agent when the agent
    /// is dead, or has not beaten for [`STALLED_BEATS`] calls (G1).
    ///
    /// The agent also ends what nobody looks after of the region's locks: what dead processes of the
    /// host left, and what was passed to one that did not take it over; asks for no more chunks on
    /// behalf of the dead; strikes dead processes off the registry that nothing names; and gives up
    /// recoveries when no lock manager has lived here for [`RESIGN_BEATS`](super::RESIGN_BEATS). When
    /// the node has lost its membership ([`LossCause`]) it tells all processes of the host, and writes
    /// no more.
    pub fn beat(&self) -> bool {
        let lock = self.seat.tier().host_lock(HostLockName::Agent);
        let is_agent = lock.holder() == Some(self.token) || self.takes_office(&lock);
        if !is_agent {
            return false;
        }
        if self.check_member().is_err() {
            return true;
        }
        if !self.tick_unless_lost() {
            return true;
        }
        crate::lock::end_abandoned(self, Some(&|| self.tick_unless_lost()));
        if self.check_member().is_err() {
            return true;
        }
        crate::alloc::end_abandoned_request(self);
        if self.agent.borrow().is_time_for_the_dead() {
            self.forget_unnamed();
        }
        self.resign_unless_managed();
        true
    }

    /// Takes the agent's office, unless its holder lives and beats (G1).
    fn takes_office(&self, lock: &HostLock<'_, H>) -> bool {
        // After a loss nobody beats.
        if self.check_member().is_err() {
            return false;
        }
        // Written by this host alone, whose caches agree: no refresh is needed.
        let beats = self.seat.heartbeat().own(&self.fabric);
        let stalled = self.office.borrow_mut().look(beats);
        let mut deposed = None;
        let is_alive = |holder| {
            let lives = self.holds(holder);
            deposed = Some(holder).filter(|_| lives && stalled);
            lives && !stalled
        };
        if lock.try_acquire(self.token, is_alive) == HostAcquire::Busy {
            return false;
        }
        self.office.replace(OfficeWatch::default());
        if let Some(process) = deposed.and_then(|holder| self.seat.tier().process(holder.process()))
        {
            tracing::warn!(
                node = %self.node(), pid = process.pid(),
                "this process beats the heart of the node from now on: the process that did has not \
                 moved for {STALLED_BEATS} beats, and is probably stopped"
            );
        }
        true
    }

    /// Whether the lines of this life are still its own to write, freshly read (G4).
    pub(super) fn has_slot(&self) -> bool {
        let is_final = |cause: Option<LossCause>| cause.is_some_and(LossCause::is_final);
        !is_final(self.seat.tier().loss())
            && !is_final(self.find_loss())
            && !is_over(self.layout(), &self.fabric, self.node(), self.incarnation)
    }

    /// Why this node does not take part any more, if so (G3).
    pub(super) fn find_loss(&self) -> Option<LossCause> {
        let (layout, node) = (self.layout(), self.node());
        let watch = SuperblockWatch::new(self.superblock.uuid);
        let own = layout.node_line(node);
        refresh_all(&self.fabric, [own.range()].into_iter().chain(watch.lines()));
        if let Ok(line) = own.cached(&self.fabric)
            && watch.is_same(&self.fabric)
        {
            if line.incarnation() > self.incarnation {
                return Some(LossCause::SlotTaken);
            }
            if line.incarnation() < self.incarnation {
                // The memory has what it had before we joined.
                return Some(LossCause::ContentLost);
            }
            return match line.state() {
                Some(NodeState::Dead) => Some(LossCause::DeclaredDead),
                Some(NodeState::Left) => Some(LossCause::SlotTaken),
                Some(NodeState::Joining | NodeState::Joined) | None => {
                    let dead = is_declared_dead(layout, &self.fabric, node, self.incarnation);
                    dead.then_some(LossCause::DeclaredDead)
                }
            };
        }
        // Something cannot be read, or has changed: by a formatting, by the loss of the content, by
        // damage to a line, or by an update of the superblock at this moment.
        match read_superblock(&self.fabric) {
            Ok((superblock, _)) if superblock.uuid != self.superblock.uuid => {
                Some(LossCause::RegionReplaced)
            }
            // M5: one damaged line ends no membership. Whoever has the slot after us has a whole line
            // soon, and a decision about us is in the ballots.
            Ok(_) => {
                let dead = is_declared_dead(layout, &self.fabric, node, self.incarnation);
                dead.then_some(LossCause::DeclaredDead)
            }
            Err(SuperblockError::OtherVersion { .. } | SuperblockError::WrongSize { .. }) => {
                Some(LossCause::RegionReplaced)
            }
            Err(_) => {
                let line = own.cached(&self.fabric);
                let named = last_named(layout, &self.fabric, node);
                let ours = line.is_ok() && named == self.incarnation;
                (!ours).then_some(LossCause::ContentLost)
            }
        }
    }

    /// Every so many beats: looks whether a lock manager lives on this host, and when none has for
    /// long, gives up the recoveries that this node was appointed to, so that another host's can go
    /// on with them.
    fn resign_unless_managed(&self) {
        if !self.agent.borrow().is_time_for_managers() {
            return;
        }
        let manager = self.seat.tier().host_lock(HostLockName::Manager).holder();
        let lives = manager.is_some_and(|manager| self.holds(manager));
        let is_missed = self.agent.borrow_mut().has_missed_managers(lives);
        if is_missed {
            for victim in recovery::resign(self) {
                tracing::warn!(
                    node = %self.node(), %victim,
                    "gives up the recovery: no lock manager runs on this host any more"
                );
            }
        }
    }

    /// The heart goes on, unless this node does not take part any more (G3): then all processes of the host
    /// are told. Only of the agent. Returns whether it does.
    fn tick_unless_lost(&self) -> bool {
        if let Some(cause) = self.find_loss() {
            self.seat.tier().set_loss(cause);
            crash::reach(CrashPoint::SelfFenced);
            return false;
        }
        self.tick();
        true
    }

    /// The heart goes on in the middle of long work, unless the slot or the region was lost meanwhile (G4).
    /// Only of the agent, and of the last process of the host. Returns whether it does.
    pub(super) fn tick_in_slot(&self) -> bool {
        let ours = self.has_slot();
        if ours {
            self.tick();
        }
        ours
    }

    /// The heart goes on. Only of the agent, and of the last process of the host.
    fn tick(&self) {
        self.agent.borrow_mut().tick(&self.seat, &self.fabric);
    }
}

#[cfg(test)]
mod tests;
