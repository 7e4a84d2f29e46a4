//! One heartbeat, and what the host's agent does with it.
//!
//! - **BEAT-G1** The office of agent is a host lock. It passes to another process of the host when
//!   its holder is dead. It also passes when the holder lives and the heartbeat has not advanced
//!   for [`STALLED_BEATS`] beats of the process that watches it. So a stopped process (a debugger,
//!   a frozen container) costs its host nothing while another one runs. Each process counts its own
//!   beats, so a process that was stopped itself deposes nobody for that.
//! - **BEAT-G2** A deposed agent may continue at any time, wherever it was stopped. It finishes its
//!   beat beside the new agent, and then finds that it has lost the office. So each part of a beat
//!   is safe beside itself. A late heartbeat is one more change of a word that is only compared
//!   with its former value. Acknowledgements of terms follow LOCK-T2a and LOCK-T2b
//!   (`lock/arbitrated/agent.rs`). Everything else happens under host locks, which are never taken
//!   from living processes.
//! - **BEAT-G3** Before the heartbeat advances, the agent checks that the slot and the region are
//!   still its own ([`Loss`](crate::host::LossCause)). If not, the agent writes nothing and tells
//!   all processes of the host. This also holds for each beat in the middle of long work.
//! - **BEAT-G4** The last process of a host checks the slot and the region itself before it writes
//!   what leaving writes. A process that joins others of its host also checks before it writes. The
//!   agent may have slept since its last beat. A node that was declared dead still leaves in order,
//!   until a recoverer says that the host is fenced (DEATH-R1), or the line says that the life is
//!   over.

use super::consensus::is_declared_dead;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, refresh_all};
use crate::host::{HostAcquire, HostLock, HostLockName, Living, LossCause};
use crate::layout::{NodeState, SuperblockError, SuperblockWatch, read_superblock};
use crate::lifecycle::recovery;
use crate::node::{Backend, Member, OfficeWatch, STALLED_BEATS, is_over, last_named};

impl<B: Backend> Member<B> {
    /// One heartbeat, if this process is its host's agent or can become it; called every
    /// [`HEARTBEAT_MS`](crate::node::HEARTBEAT_MS). Returns whether it is. It becomes the agent
    /// when the agent is dead, or has not beaten for [`STALLED_BEATS`] calls (BEAT-G1).
    ///
    /// The agent also ends what nobody looks after of the region's locks: what dead processes of
    /// the host left, and what was passed to one that did not take it over; asks for no more chunks
    /// on behalf of the dead; strikes dead processes off the registry that nothing names; and gives
    /// up recoveries when no lock manager has lived here for
    /// [`RESIGN_BEATS`](crate::node::RESIGN_BEATS). When the node has lost its membership
    /// ([`LossCause`]) it tells all processes of the host, and writes no more.
    pub fn beat(&self) -> bool {
        let lock = self.handle.tier().host_lock(HostLockName::Agent);
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
        crate::chunk::end_abandoned_request(self);
        if self.agent.borrow().is_time_for_the_dead() {
            self.forget_unnamed();
        }
        self.resign_unless_managed();
        self.count_moved_lines();
        true
    }

    /// [`Self::beat`] in the middle of long work, if this process is its host's agent or the agent
    /// is dead. Does nothing while another process is the agent and lives: calls in quick
    /// succession would count as looks at a heartbeat that has stopped (BEAT-G1).
    pub fn beat_in_long_work(&self) {
        let agent = self.handle.tier().host_lock(HostLockName::Agent).holder();
        if !agent.is_some_and(|agent| agent != self.token && self.holds(agent)) {
            self.beat();
        }
    }

    /// Takes the agent's office, unless its holder lives and beats (BEAT-G1).
    fn takes_office(&self, lock: &HostLock<'_, B::HostMemory>) -> bool {
        // After a loss nobody beats.
        if self.check_member().is_err() {
            return false;
        }
        // Written by this host alone, whose caches agree: no refresh is needed.
        let beats = self.handle.heartbeat().own(&self.fabric);
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
        if let Some(process) =
            deposed.and_then(|holder| self.handle.tier().process(holder.process()))
        {
            tracing::warn!(
                node = %self.node(), pid = process.pid(),
                "this process sends the heartbeat of the node from now on: the process that did \
                 has not moved for {STALLED_BEATS} beats, and is probably stopped"
            );
        }
        true
    }

    /// Whether the lines of this life are still its own to write, freshly read (BEAT-G4).
    pub(super) fn has_slot(&self) -> bool {
        let is_final = |cause: Option<LossCause>| cause.is_some_and(LossCause::is_final);
        !self.fabric.is_cut_off()
            && !is_final(self.handle.tier().loss())
            && !is_final(self.find_loss())
            && !is_over(self.layout(), &self.fabric, self.node(), self.incarnation)
    }

    /// Why this node does not take part any more, if so (BEAT-G3).
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
            // MEM-M5: one damaged line ends no membership. The next inhabitant of the slot has a
            // whole line soon, and a decision about us is in the ballots.
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
        let manager = self.handle.tier().host_lock(HostLockName::Manager).holder();
        let lives = manager.is_some_and(|manager| self.holds(manager));
        let is_missed = self.agent.borrow_mut().has_missed_managers(lives);
        if is_missed {
            for victim in recovery::resign(self) {
                tracing::warn!(
                    node = %self.node(), %victim,
                    "gives up the recovery: no lock manager runs on this host any more; another \
                     node will recover"
                );
            }
        }
    }

    /// The heartbeat continues, unless this node does not take part any more (BEAT-G3): then all
    /// processes of the host are told. Only of the agent. Returns whether it does.
    fn tick_unless_lost(&self) -> bool {
        if let Some(cause) = self.find_loss() {
            self.handle.tier().set_loss(cause);
            crash::reach(CrashPoint::SelfFenced);
            return false;
        }
        self.tick();
        true
    }

    /// The heartbeat continues in the middle of long work, unless the slot or the region was lost
    /// meanwhile (BEAT-G4). Only of the agent, and of the last process of the host. Returns whether
    /// it does.
    pub(super) fn tick_in_slot(&self) -> bool {
        let ours = self.has_slot();
        if ours {
            self.tick();
        }
        ours
    }

    /// The heartbeat continues. Only of the agent, and of the last process of the host.
    fn tick(&self) {
        let beats = crate::lock::arbitrated::tick(&self.handle, &self.fabric);
        self.agent.borrow_mut().ticked(beats);
    }
}

#[cfg(test)]
mod tests;
