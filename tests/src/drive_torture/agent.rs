//! A child that is the agent of its host, with drives that fail as they are told.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use kv_drive::io::faulty::Faults;
use rackline_agent::Agent;
use rackline_workers::tasks;

use super::child::ChildOptions;
use super::event::{Event, Order, Trouble, tell};
use super::ground::settings;

/// How often the agent is looked at.
const LOOK_MS: u64 = 5;

/// Runs the agent until its standard input ends.
pub(super) fn run(options: &ChildOptions) -> Result<()> {
    let settings = settings(&options.region, &options.folder, options.host);
    // Before the folders are opened, or they have none.
    let faults: Vec<_> = settings.drives.iter().map(|it| Faults::of_folder(&it.path)).collect();
    if options.lying {
        let (call, fault) = Trouble::WriteLost.fault();
        faults.iter().for_each(|it| it.plan(call, 0, u64::MAX, fault));
    }
    let agent = Agent::start(settings)?;
    tell(&Event::Up)?;
    let (give, orders) = channel();
    std::thread::Builder::new()
        .name("standard-input".to_owned())
        .spawn(move || tasks::<Order>().try_for_each(|order| give.send(order)))
        .context("cannot start a thread")?;
    let mut was_ready = false;
    loop {
        match orders.recv_timeout(Duration::from_millis(LOOK_MS)) {
            Ok(order) => carry_out(order?, &faults),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if !was_ready && agent.is_ready() {
            was_ready = true;
            tell(&Event::Ready)?;
        }
        if agent.has_ended() {
            let why = agent.stop().err().map_or_else(String::new, |error| error.to_string());
            return tell(&Event::Fault(format!("the agent has ended by itself: {why}")));
        }
    }
    carry_out(Order::Mend, &faults);
    agent.stop().context("the agent did not end in order")
}

fn carry_out(order: Order, faults: &[Faults]) {
    match order {
        Order::Trouble { folder, trouble, skip, count } => {
            let (call, fault) = trouble.fault();
            faults[folder % faults.len()].plan(call, skip, count, fault);
        }
        Order::Mend => faults.iter().for_each(|it| {
            it.clear();
            it.release();
        }),
    }
}
