//! The lock manager as a process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::member::{AttachError, Attachment, DeathNews, ManageError, RecoveryNews};
use cxl_shm::units::NodeId;

use kv_cache::reclaim_dead_processes;

use crate::duty::{Duty, DutyChange, DutyError, Patience};
use crate::fence::fence_of;
use crate::options::Options;

/// How often it looks whether processes of its host have died.
const RECLAIM_MS: u64 = 500;

/// Why the lock manager ended otherwise than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It could not attach to the region.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// It may not manage.
    #[error(transparent)]
    Manage(#[from] ManageError),
    /// It cannot manage any more.
    #[error(transparent)]
    Duty(#[from] DutyError),
    /// The fence cannot be set up.
    #[error("cannot set up the fence: {0}")]
    Fence(std::io::Error),
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
}

/// Runs until SIGINT or SIGTERM, then stops in order: what is held stays held, and a standby takes
/// over at once.
///
/// # Errors
/// [`RunError`]; nothing is left behind then.
pub fn run(options: &Options) -> Result<(), RunError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(RunError::Signals)?;
    }
    if options.with_parent {
        stop_with_parent()?;
    }
    let attachment = Attachment::attach(&options.region, options.node)?;
    let region = attachment.member().superblock().uuid_text();
    let clock = SystemClock::start();
    let Options { takeover_ms, declare_ms, .. } = *options;
    let mut fence = fence_of(options, &attachment).map_err(RunError::Fence)?;
    let mut duty = Duty::new(attachment.member(), &clock, Patience { takeover_ms, declare_ms })?;
    let mut tries = 0;
    let mut reclaim_at_ms = 0;
    while !stop.load(Ordering::Relaxed) {
        let now_ms = clock.now_ms();
        if now_ms >= reclaim_at_ms {
            // A host may run nothing but lock managers: their dead are reclaimed too.
            reclaim_dead_processes(attachment.member(), &clock);
            reclaim_at_ms = now_ms + RECLAIM_MS;
        }
        let stepped = duty.step(now_ms, &mut fence)?;
        if let Some(change) = stepped.change {
            tell(&region, change);
        }
        for (node, news) in &stepped.deaths {
            tell_death(&region, *node, news);
        }
        tries = if stepped.busy { 0 } else { tries + 1 };
        clock.pause(tries);
    }
    tracing::info!(region, "stops");
    Ok(())
}

fn tell(region: &str, change: DutyChange) {
    match change {
        DutyChange::StandingBy { node, term } => {
            tracing::info!(region, %node, term, "stands by: another lock manager serves");
        }
        DutyChange::Collecting { term, waiting_for } => {
            tracing::info!(region, term, %waiting_for, "claimed a term, waits for its acknowledgement");
        }
        DutyChange::Serving { term } => tracing::info!(region, term, "serves"),
        DutyChange::Deposed { by_term } => {
            tracing::warn!(region, by_term, "was deposed, stands by");
        }
    }
}

fn tell_death(region: &str, node: NodeId, news: &DeathNews) {
    match news {
        DeathNews::Suspected => {
            tracing::warn!(region, %node, "its heart stands still: proposes to declare it dead");
        }
        DeathNews::Declared(decision) => {
            let (recoverer, epoch) = (decision.appointment.recoverer, decision.appointment.epoch);
            let incarnation = decision.case.incarnation;
            tracing::warn!(region, %node, %incarnation, epoch, %recoverer, "was declared dead");
        }
        DeathNews::Unreadable { by } => {
            tracing::error!(region, %node, %by, "cannot be declared dead: a ballot is unreadable");
        }
        DeathNews::Recovery(RecoveryNews::NotFenced(reason)) => {
            tracing::warn!(
                region, %node, reason,
                "is quarantined: what it held stays out of use until it is fenced; when its host \
                 is certainly off, confirm it with `rackline fence` on this host"
            );
        }
        DeathNews::Recovery(RecoveryNews::Reached(step)) => {
            tracing::info!(region, %node, ?step, "is being recovered");
        }
        DeathNews::Recovery(RecoveryNews::Adopted(chunks)) => {
            tracing::info!(region, %node, chunks = chunks.len(), "its heap chunks were adopted");
        }
    }
}

/// Asks the kernel for SIGTERM when the parent ends.
fn stop_with_parent() -> Result<(), RunError> {
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .map_err(|error| RunError::Signals(error.into()))?;
    // It may have ended before we asked: then we have another parent now.
    if rustix::process::getppid() != parent {
        return Err(RunError::Signals(std::io::Error::other("the parent has ended already")));
    }
    Ok(())
}
