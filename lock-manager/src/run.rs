//! The lock manager as a process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::lifecycle::{AttachError, Attachment, DeathEvent, Fence, LocalMember, RecoveryEvent};
use cxl_shm::lock::ManageError;
use cxl_shm::units::NodeId;
use cxl_shm_objects::ObjectChunks;

use kv_cache::reclaim_dead_processes;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cpu::{self, CpuError};
use crate::fence::{self, FenceError, fence_of};
use crate::figures::ManagerFigures;
use crate::options::Options;
use crate::pace;
use crate::role::{ManagerRole, RoleChange, RoleError, Timeouts};
use crate::service::Service;

/// How often it looks whether processes of its host have died.
const RECLAIM_MS: u64 = 500;
/// How often the thread that does so looks whether it is to end.
const STOP_LOOK_MS: u64 = 20;

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
    Role(#[from] RoleError),
    /// Hosts cannot be fenced as the options say.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The CPU that the options name.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// No thread that tells the service manager.
    #[error("cannot start the thread that tells the service manager: {0}")]
    Notify(std::io::Error),
    /// No thread for what dead processes left.
    #[error("cannot start the thread that cleans up after dead processes of this host: {0}")]
    Thread(std::io::Error),
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
}

/// Reads the settings of a lock manager again, from where they came; or says why they are not good.
pub type ReadAgain<'a> = &'a dyn Fn() -> Result<Options, String>;

/// Runs until SIGINT or SIGTERM, then stops in order: what is held stays held, and a standby takes
/// over at once. What it does is counted in `figures`. SIGHUP calls `read_again`: settings that are
/// not good change nothing.
///
/// # Errors
/// [`RunError`]; nothing is left behind then.
pub fn run(
    options: &Options,
    figures: &ManagerFigures,
    read_again: ReadAgain<'_>,
) -> Result<(), RunError> {
    fence::check(options)?;
    let [stop, reload] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    for (signal, flag) in [(SIGINT, &stop), (SIGTERM, &stop), (SIGHUP, &reload)] {
        signal_hook::flag::register(signal, Arc::clone(flag)).map_err(RunError::Signals)?;
    }
    let mut service = Service::start().map_err(RunError::Notify)?;
    if options.with_parent {
        stop_with_parent()?;
    }
    let attachment = Attachment::attach_with(&options.region, options.node, ObjectChunks)?;
    let region = attachment.member().superblock().uuid_text();
    let clock = SystemClock::start();
    let mut options = options.clone();
    let mut fence = fence_of(&options, &attachment)?;
    let mut role = ManagerRole::new(attachment.member(), &clock, timeouts_of(&options))?;
    let reclaimer = Reclaimer::start(&attachment)?;
    // Behind the start of the other thread, which is not bound.
    cpu::bind(options.cpu, attachment.region())?;
    let mut tries = 0;
    let outcome = loop {
        if stop.load(Ordering::Relaxed) {
            tracing::info!(region, "stops");
            service.stops();
            break Ok(());
        }
        if reload.swap(false, Ordering::Relaxed) {
            service.reloads();
            if let Some((new, new_fence)) = new_settings(&options, read_again, &attachment) {
                role.set_timeouts(timeouts_of(&new));
                (options, fence) = (new, new_fence);
            }
        }
        let outcome = match role.step(clock.now_ms(), &mut fence) {
            Ok(outcome) => outcome,
            Err(error) => break Err(error.into()),
        };
        figures.count(&outcome);
        if let Some(change) = outcome.change {
            tell(&region, change);
        }
        // The words take memory: not in each of many turns.
        if outcome.change.is_some() || service.awaits_word() {
            service.is_at_work(&figures.in_words());
        }
        service.turn(clock.now_ms());
        for (node, event) in &outcome.deaths {
            tell_death(&region, *node, event);
        }
        tries = if outcome.busy { 0 } else { tries + 1 };
        pace::rest(&clock, tries);
    };
    // Others are to take over at once, whatever the thread is at.
    drop(role);
    reclaimer.end(&attachment);
    outcome
}

fn timeouts_of(options: &Options) -> Timeouts {
    let Options { takeover_ms, declare_ms, .. } = *options;
    Timeouts { takeover_ms, declare_ms }
}

/// The settings as they are now, and their fence; `None` when they are not good.
fn new_settings(
    options: &Options,
    read_again: ReadAgain<'_>,
    attachment: &Attachment,
) -> Option<(Options, Box<dyn Fence>)> {
    let checked = read_again().and_then(|new| {
        fence::check(&new).map_err(|error| error.to_string())?;
        let fence = fence_of(&new, attachment).map_err(|error| error.to_string())?;
        Ok((new, fence))
    });
    match checked {
        Ok((new, fence)) => {
            let fixed = |it: &Options| (it.region.clone(), it.node, it.cpu, it.with_parent);
            if fixed(&new) != fixed(options) {
                tracing::warn!(
                    "--region, --node, --cpu and --with-parent change at the next start"
                );
            }
            let Options { takeover_ms, declare_ms, .. } = new;
            tracing::info!(takeover_ms, declare_ms, "read the settings again");
            Some((new, fence))
        }
        Err(reason) => {
            tracing::error!("the settings stay as they were: {reason}");
            None
        }
    }
}

/// A thread that looks after the dead processes of this host: there may be much to sweep, and other
/// processes of the host to wait for, while all hosts wait for this one's grants.
struct Reclaimer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<LocalMember>,
}

impl Reclaimer {
    fn start(attachment: &Attachment) -> Result<Self, RunError> {
        let member = attachment.join_thread()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let body = move || {
            let clock = SystemClock::start();
            // A host may run nothing but lock managers: their dead are reclaimed too.
            for turn in 0u64.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                if turn % (RECLAIM_MS / STOP_LOOK_MS) == 0 {
                    reclaim_dead_processes(&member, &clock);
                }
                clock.sleep_ms(STOP_LOOK_MS);
            }
            member
        };
        let name = "rackline-reclaim".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(body);
        Ok(Self { stop, thread: thread.map_err(RunError::Thread)? })
    }

    fn end(self, attachment: &Attachment) {
        self.stop.store(true, Ordering::Relaxed);
        // If it panicked, that was printed, and its place in the registry falls to the next
        // process that reclaims.
        if let Ok(member) = self.thread.join() {
            attachment.leave_thread(member);
        }
    }
}

fn tell(region: &str, change: RoleChange) {
    match change {
        RoleChange::StandingBy { node, term } => {
            tracing::info!(region, %node, term, "stands by: another lock manager serves");
        }
        RoleChange::Collecting { term, waiting_for } => {
            tracing::info!(region, term, %waiting_for, "claimed a term, waits for its acknowledgement");
        }
        RoleChange::Serving { term } => tracing::info!(region, term, "serves"),
        RoleChange::Deposed { by_term } => {
            tracing::warn!(region, by_term, "was deposed, stands by");
        }
    }
}

fn tell_death(region: &str, node: NodeId, event: &DeathEvent) {
    match event {
        DeathEvent::Suspected => {
            tracing::warn!(region, %node, "its heartbeat stopped: proposes to declare the node \
                                           dead");
        }
        DeathEvent::Declared(decision) => {
            let (recoverer, epoch) = (decision.appointment.recoverer, decision.appointment.epoch);
            let incarnation = decision.case.incarnation;
            tracing::warn!(region, %node, %incarnation, epoch, %recoverer, "was declared dead");
        }
        DeathEvent::Unreadable { by } => {
            tracing::error!(region, %node, %by, "cannot be declared dead: a ballot is unreadable");
        }
        DeathEvent::Recovery(RecoveryEvent::NotFenced(reason)) => {
            tracing::warn!(
                region, %node, reason,
                "is quarantined: its locks and memory stay out of use until the host is fenced; \
                 when the host is certainly off, confirm that with `rackline fence` on this host"
            );
        }
        DeathEvent::Recovery(RecoveryEvent::Reached(step)) => {
            tracing::info!(region, %node, ?step, "is being recovered");
        }
        DeathEvent::Recovery(RecoveryEvent::Adopted(chunks)) => {
            tracing::info!(region, %node, chunks = chunks.len(), "its heap chunks were adopted");
        }
    }
}

/// Asks the kernel to send this process SIGTERM when its parent ends.
///
/// # Errors
/// [`RunError::Signals`]: the kernel refuses, or the parent has ended already.
pub fn stop_with_parent() -> Result<(), RunError> {
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .map_err(|error| RunError::Signals(error.into()))?;
    // It may have ended before we asked: then we have another parent now.
    if rustix::process::getppid() != parent {
        return Err(RunError::Signals(std::io::Error::other("the parent has ended already")));
    }
    Ok(())
}
