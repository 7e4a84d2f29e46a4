//! Recoveries that are broken off, meet another, or meet who comes for the slot.

mod adopting;
mod at_the_door;
mod giving_up;
mod half_written;
mod pausing;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use super::RecoveryNews;
use crate::clock::Clock;
use crate::fabric::simulated::{SimulatedHost, SimulatedHostMemory, SimulatedRack};
use crate::layout::{Arrival, Geometry, LockProtocol, RecoveryStep, Superblock, format_superblock};
use crate::member::{
    DeathNews, Deaths, Fence, FenceOrder, FenceState, HostIdentity, HostTier, JoinError, Liveness,
    Manage, Member, ProcessIdentity,
};
use crate::units::{Incarnation, NodeId};

const VICTIM: NodeId = NodeId(2);
const MANAGER_PID: u32 = 7;

/// Processes that have died, by their numbers.
#[derive(Clone, Debug, Default)]
struct Died(Rc<RefCell<BTreeSet<u32>>>);

impl Liveness for Died {
    fn is_alive(&self, process: ProcessIdentity) -> bool {
        !self.0.borrow().contains(&process.pid())
    }
}

#[derive(Debug, Default)]
struct HandClock(Cell<u64>);

impl Clock for HandClock {
    fn now_ms(&self) -> u64 {
        self.0.get()
    }

    fn pause(&self, _: u32) {
        self.0.set(self.0.get() + 10);
    }
}

/// A fence that holds at once.
struct Off;

impl Fence for Off {
    fn poll(&mut self, _: &FenceOrder, _: u64) -> FenceState {
        FenceState::Fenced
    }
}

/// A fence that never holds, and keeps what it was told.
struct Told<'t>(&'t mut Vec<FenceOrder>);

impl Fence for Told<'_> {
    fn poll(&mut self, order: &FenceOrder, _: u64) -> FenceState {
        self.0.push(order.clone());
        FenceState::NotFenced("nobody is".to_owned())
    }
}

type Process = Member<SimulatedHost, SimulatedHostMemory, Died>;
type Right<'m> = Manage<'m, SimulatedHost, SimulatedHostMemory, Died>;
type Watch<'m> = Deaths<'m, SimulatedHost, SimulatedHostMemory, Died>;

/// Three hosts over a region whose locks need no manager.
struct Bed {
    rack: SimulatedRack,
    geometry: Geometry,
    died: Died,
    clock: HandClock,
}

impl Bed {
    fn of_three(area_lines: u64) -> Self {
        let geometry = Geometry {
            region_bytes: 64 << 20,
            nodes: 3,
            locks: 8,
            chunk_bytes: 64 << 10,
            area_lines,
            host_words: 0,
        };
        let rack = SimulatedRack::sticky(3, geometry.region_bytes);
        let superblock = Superblock {
            lock_protocol: LockProtocol::Bakery,
            ..Superblock::new([1, 2], geometry, [0; 6])
        };
        format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
        Self { rack, geometry, died: Died::default(), clock: HandClock::default() }
    }

    fn join(&self, host: u16, pid: u32) -> Process {
        let memory = self.rack.host_memory(usize::from(host), HostTier::words_of(&self.geometry));
        let identity = HostIdentity::simulated(u64::from(host));
        let (fabric, me) = (self.rack.host(usize::from(host)), ProcessIdentity::new(pid, 1));
        let clock = HandClock::default();
        Member::join(fabric, memory, host, &identity, me, self.died.clone(), &clock).unwrap()
    }

    /// The victim's host loses power, after a beat.
    fn dies(&self, victim: Process) {
        victim.beat();
        self.rack.crash(2);
        std::mem::forget(victim);
    }

    /// The process of the lock manager dies as it is: it gives nothing back.
    fn manager_dies(&self, deaths: Watch<'_>, manage: Right<'_>) {
        drop(deaths);
        std::mem::forget(manage);
        self.died.0.borrow_mut().insert(MANAGER_PID);
    }

    /// Looks until `until`, while the hearts of `alive` beat; all news.
    fn watch(
        &self,
        deaths: &mut Watch<'_>,
        alive: &[&Process],
        fence: &mut impl Fence,
        until: impl Fn(&DeathNews) -> bool,
    ) -> Vec<DeathNews> {
        let mut all = Vec::new();
        for _ in 0..2000 {
            all.extend(self.look(deaths, alive, fence));
            if all.iter().any(&until) {
                return all;
            }
        }
        all
    }

    /// One beat of each of `alive`, and one step of the watch.
    fn look(
        &self,
        deaths: &mut Watch<'_>,
        alive: &[&Process],
        fence: &mut impl Fence,
    ) -> Vec<DeathNews> {
        alive.iter().for_each(|process| {
            process.beat();
        });
        self.clock.pause(0);
        let news = deaths.step(self.clock.now_ms(), true, fence);
        news.into_iter().map(|(_, news)| news).collect()
    }
}

fn is_done(news: &DeathNews) -> bool {
    *news == DeathNews::Recovery(RecoveryNews::Reached(RecoveryStep::Done))
}

fn has_reached(step: RecoveryStep) -> impl Fn(&DeathNews) -> bool {
    move |news| *news == DeathNews::Recovery(RecoveryNews::Reached(step))
}

fn is_quarantined(news: &DeathNews) -> bool {
    matches!(news, DeathNews::Recovery(RecoveryNews::NotFenced(_)))
}

/// The word of an arrival for life `life`.
fn arrival_of(life: u32) -> u64 {
    Arrival::Life(Incarnation(life)).word()
}
