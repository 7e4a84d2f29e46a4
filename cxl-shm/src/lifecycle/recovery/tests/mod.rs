//! Recoveries that are broken off, meet another recovery, or meet a host that joins the slot.

mod adopting;
mod during_admission;
mod failed_memory;
mod giving_up;
mod half_written;
mod pausing;

use std::cell::Cell;

use crate::clock::Clock;
use crate::host::{HostIdentity, HostTier, ProcessIdentity};
use crate::layout::{Arrival, Geometry, LockProtocol, RecoveryStep};
use crate::lifecycle::deaths::{DeathEvent, Deaths};
use crate::lifecycle::fencing::{Fence, FenceOrder, FenceState};
use crate::lifecycle::join::JoinError;
use crate::lifecycle::recovery::RecoveryEvent;
use crate::lock::Manage;
use crate::node::Member;
use crate::units::{Incarnation, NodeId};
use crate::verify::SimulatedBackend;
use crate::verify::fixture::{Died, HandClock, SMALL, SmallRegion};
use crate::verify::simulated::{SimulatedHost, SimulatedHostMemory, SimulatedRack};

const VICTIM: NodeId = NodeId(2);
const MANAGER_PID: u32 = 7;

/// A fence that holds at once.
struct Off;

impl Fence for Off {
    fn poll(&mut self, _: &FenceOrder, _: u64) -> FenceState {
        FenceState::Fenced
    }
}

/// A fence that never holds, and keeps what it was told.
struct RecordingFence<'t>(&'t mut Vec<FenceOrder>);

impl Fence for RecordingFence<'_> {
    fn poll(&mut self, order: &FenceOrder, _: u64) -> FenceState {
        self.0.push(order.clone());
        FenceState::NotFenced("nobody is".to_owned())
    }
}

type Process = Member<SimulatedBackend<Died>>;
type Right<'m> = Manage<'m, SimulatedBackend<Died>>;
type Watch<'m> = Deaths<'m, SimulatedBackend<Died>>;

/// Three hosts over a region whose locks need no manager.
struct Bed {
    rack: SimulatedRack,
    geometry: Geometry,
    died: Died,
    clock: HandClock,
}

impl Bed {
    fn of_three(area_lines: u64) -> Self {
        let geometry = Geometry { region_bytes: 64 << 20, nodes: 3, area_lines, ..SMALL };
        let SmallRegion { rack, .. } = SmallRegion::new(geometry, LockProtocol::Bakery);
        Self { rack, geometry, died: Died::default(), clock: HandClock::new(10) }
    }

    fn join(&self, host: u16, pid: u32) -> Process {
        let memory = self.rack.host_memory(usize::from(host), HostTier::words_of(&self.geometry));
        let identity = HostIdentity::simulated(u64::from(host));
        let (fabric, me) = (self.rack.host(usize::from(host)), ProcessIdentity::new(pid, 1));
        let clock = HandClock::new(10);
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
        self.died.add(MANAGER_PID);
    }

    /// Looks until `until`, while the heartbeats of `alive` beat; all events.
    fn watch(
        &self,
        deaths: &mut Watch<'_>,
        alive: &[&Process],
        fence: &mut impl Fence,
        until: impl Fn(&DeathEvent) -> bool,
    ) -> Vec<DeathEvent> {
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
    ) -> Vec<DeathEvent> {
        alive.iter().for_each(|process| {
            process.beat();
        });
        self.clock.pause(0);
        let events = deaths.step(self.clock.now_ms(), true, fence);
        events.into_iter().map(|(_, event)| event).collect()
    }
}

fn is_done(event: &DeathEvent) -> bool {
    *event == DeathEvent::Recovery(RecoveryEvent::Reached(RecoveryStep::Done))
}

fn has_reached(step: RecoveryStep) -> impl Fn(&DeathEvent) -> bool {
    move |event| *event == DeathEvent::Recovery(RecoveryEvent::Reached(step))
}

fn is_quarantined(event: &DeathEvent) -> bool {
    matches!(event, DeathEvent::Recovery(RecoveryEvent::NotFenced(_)))
}

/// The word of an arrival for life `life`.
fn arrival_of(life: u32) -> u64 {
    Arrival::Life(Incarnation(life)).word()
}
