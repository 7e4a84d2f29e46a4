//! What a task does at a scheduling point.

use std::sync::MutexGuard;

use super::super::machine::Machine;
use super::super::{SimulatedHost, SimulatedRack};
use super::run::Decision;
use super::task::{self, End};

/// What a task is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Point {
    /// An operation.
    Operation,
    /// The rest of one, when others should see what half of it looks like.
    Interruption,
    /// To wait for about as long.
    Pause { ns: u64 },
}

/// A scheduling point. Returns with the rack locked when the task may continue; `None` for a task
/// that has crashed and only unwinds.
///
/// Unwinds when the task crashes here. For threads that are no tasks it is a plain lock, and a
/// pause lets the time pass.
pub(in super::super) fn point(
    rack: &SimulatedRack,
    point: Point,
) -> Option<MutexGuard<'_, Machine>> {
    let running = task::running(rack);
    let mut machine = rack.lock();
    let Some((me, dead)) = running else {
        if let Point::Pause { ns } = point {
            machine.now_ns += ns;
        }
        machine.operations_left = machine.operations_left.saturating_sub(1);
        let in_vain = machine.operations_left == 0 && !std::thread::panicking();
        assert!(!in_vain, "as many operations outside of a schedule as were allowed");
        return Some(machine);
    };
    if dead {
        return None;
    }
    if std::thread::panicking() {
        // The run has failed anyway; destructors get through without a chance to unwind twice.
        return Some(machine);
    }
    let decision = machine.step(me, point);
    machine = tell_crashes(rack, machine);
    if decision == Decision::Switch {
        drop(machine);
        task::wait_for_baton();
        machine = rack.lock();
    }
    Some(unless_doomed(rack, machine, me))
}

/// Crashes a host, also out of a task of it.
pub(in super::super) fn crash_host(rack: &SimulatedRack, host: usize) {
    let mut machine = rack.lock();
    machine.crash_host(host);
    machine = tell_crashes(rack, machine);
    if let Some((me, false)) = task::running(rack)
        && !std::thread::panicking()
    {
        drop(unless_doomed(rack, machine, me));
    }
}

/// Crashes the process that the calling task is: a named crash point. Nothing that follows runs.
///
/// # Panics
/// Outside a task.
pub fn crash_this_process() -> ! {
    let (rack, index) =
        task::current_anywhere().expect("only a task of a schedule can crash itself");
    let current = task::current(&rack).expect("it is of this rack");
    let mut machine = rack.lock();
    machine.crash_task(index);
    drop(tell_crashes(&rack, machine));
    current.die()
}

/// The host of the process that the calling task is, if the process was cut off (FAULT-F4). `None`
/// outside a task.
#[must_use]
pub fn host_if_cut_off() -> Option<SimulatedHost> {
    let (rack, index) = task::current_anywhere()?;
    let mut machine = rack.lock();
    let host = machine.is_cut_off().then(|| machine.run_mut().tasks[index].host);
    drop(machine);
    host.map(|host| rack.host(host))
}

/// Ends one life of a task and draws the task that has the baton next. Says whether the task is to
/// live again.
pub(super) fn end_life(rack: &SimulatedRack, index: usize, end: End, again: bool) -> bool {
    let mut machine = rack.lock();
    let again = machine.end_life(index, end, again);
    if !machine.run_mut().over() {
        machine.pass_baton();
    }
    again
}

fn unless_doomed<'r>(
    rack: &SimulatedRack,
    mut machine: MutexGuard<'r, Machine>,
    me: usize,
) -> MutexGuard<'r, Machine> {
    if machine.run_mut().tasks[me].doom.is_some() {
        drop(machine);
        let current = task::current(rack).expect("task `me` is the one that runs here");
        current.die();
    }
    machine
}

/// Tells the test of crashes, with the rack unlocked so that it can look at it.
fn tell_crashes<'r>(
    rack: &'r SimulatedRack,
    mut machine: MutexGuard<'r, Machine>,
) -> MutexGuard<'r, Machine> {
    while let Some(run) = &mut machine.run
        && !run.untold.is_empty()
    {
        let crashes = std::mem::take(&mut run.untold);
        if let Some(mut told) = run.on_crash.take() {
            drop(machine);
            crashes.iter().for_each(&mut told);
            machine = rack.lock();
            machine.run_mut().on_crash = Some(told);
        }
    }
    machine
}
