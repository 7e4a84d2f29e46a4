//! A watcher that is stopped itself declares nobody dead for the time that it slept through
//! (BEAT-G0).

use std::cell::Cell;

use super::*;
use crate::layout::Layout;
use crate::lifecycle::failure_detector::{NodeHeartbeat, watch_heartbeats};
use crate::node::{LOOK_GAP_MAX_MS, SUSPECT_MS};

const DECLARE_MS: u64 = 3000;

fn is_suspicion(event: &DeathEvent) -> bool {
    *event == DeathEvent::Suspected
}

/// All hosts are stopped, and the manager goes on a moment before the others.
#[test]
fn a_manager_that_was_stopped_with_everybody_declares_nobody_dead() {
    for (paused_ms, earlier_ms) in [(4000, 50), (4000, 200), (60_000, 400), (LOOK_GAP_MAX_MS, 50)] {
        let bed = Bed::of_three(1);
        let [manager, worker] = [0, 2].map(|host| bed.join(host, MANAGER_PID + u32::from(host)));
        let manage = manager.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &bed.clock, DECLARE_MS);
        for _ in 0..50 {
            assert_eq!(bed.look(&mut deaths, &[&worker], &mut Off), []);
        }
        bed.clock.add_us(1000 * paused_ms);
        for _ in 0..earlier_ms / 10 {
            assert_eq!(bed.look(&mut deaths, &[], &mut Off), [], "stopped for {paused_ms} ms");
        }
        for _ in 0..1000 {
            assert_eq!(bed.look(&mut deaths, &[&worker], &mut Off), []);
        }
        // One that is really silent is found all the same, after as long a watch as ever.
        let before_ms = bed.clock.now_ms();
        let events = bed.watch(&mut deaths, &[], &mut Off, is_suspicion);
        assert!(events.iter().any(is_suspicion), "{events:?}");
        assert!(bed.clock.now_ms() - before_ms >= DECLARE_MS);
    }
}

/// The manager begins to suspect somebody, is stopped with everybody, and wakes first.
#[test]
fn a_proposal_is_dropped_when_its_watcher_was_stopped() {
    let bed = Bed::of_three(1);
    let [manager, worker] = [0, 2].map(|host| bed.join(host, MANAGER_PID + u32::from(host)));
    let manage = manager.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, DECLARE_MS);
    bed.look(&mut deaths, &[&worker], &mut Off);
    let events = bed.watch(&mut deaths, &[], &mut Off, is_suspicion);
    assert!(events.iter().any(is_suspicion), "{events:?}");
    bed.clock.add_us(4_000_000);
    for _ in 0..5 {
        assert_eq!(bed.look(&mut deaths, &[], &mut Off), []);
    }
    for _ in 0..1000 {
        assert_eq!(bed.look(&mut deaths, &[&worker], &mut Off), []);
    }
    assert_eq!(manager.check_member(), Ok(()));
    assert_eq!(worker.check_member(), Ok(()));
}

/// In its third pause everything stands still for ten seconds; the heartbeat advances 50 ms after
/// that.
struct Stopped<'b> {
    now_ms: Cell<u64>,
    pauses: Cell<u32>,
    heartbeat: &'b Process,
}

impl Clock for Stopped<'_> {
    fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    fn pause(&self, _: u32) {
        let pauses = self.pauses.replace(self.pauses.get() + 1);
        let pause_ms = if pauses == 3 { 10_000 } else { 10 };
        self.now_ms.set(self.now_ms.get() + pause_ms);
        if pauses == 8 {
            self.heartbeat.beat();
        }
    }
}

#[test]
fn a_watcher_of_heartbeats_is_not_misled_by_a_stop_of_its_own() {
    let bed = Bed::of_three(1);
    let living = bed.join(2, 9);
    let clock = || Stopped { now_ms: Cell::new(0), pauses: Cell::new(0), heartbeat: &living };
    let layout = Layout::new(bed.geometry).unwrap();
    let heartbeats = watch_heartbeats(&layout, &bed.rack.host(1), &clock());
    assert!(matches!(&heartbeats[..], [NodeHeartbeat { beats: true, .. }]), "{heartbeats:?}");
    // Another image of its machine comes for its slot.
    let identity = HostIdentity { boot_id: [99, 0], ..HostIdentity::simulated(2) };
    let memory = bed.rack.host_memory(1, HostTier::words_of(&bed.geometry));
    let (fabric, me) = (bed.rack.host(1), ProcessIdentity::new(10, 1));
    let came = Process::join(fabric, memory, 2, &identity, me, bed.died.clone(), &clock());
    let came = came.map(|_| "it joined beside a living host");
    assert!(matches!(came, Err(JoinError::NodeInUse { .. })), "{came:?}");
    const { assert!(SUSPECT_MS > 2 * LOOK_GAP_MAX_MS, "a stop is told from a silence") };
}
