//! The litmus programs with two threads of one host.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::finding::Finding;
use super::measured::{Measured, run_all};
use super::party::{Party, Role, Silent};
use super::probe::Probe;
use super::scratch::{self, ScratchError};
use super::timing::Timing;
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fabric::OwnedArea;
use cxl_shm::node::{Backend, Member};

/// Why a measurement of one host came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum AloneError {
    /// There was no chunk to measure in, or it was not given back.
    #[error(transparent)]
    Scratch(#[from] ScratchError),
    /// A thread got no time on a processor.
    #[error(transparent)]
    Silent(#[from] Silent),
    /// No second thread.
    #[error("cannot start the second thread of the litmus programs: {0}")]
    Thread(std::io::Error),
}

/// Runs the litmus programs with two threads of this process, on two cores where there are two.
///
/// Takes a chunk of the region meanwhile. Nothing else in the region is touched.
///
/// # Errors
/// [`AloneError`].
pub fn alone<B: Backend<Fabric: Probe + Send>>(
    member: &Member<B>,
    rounds: u64,
    timeout_ms: u64,
) -> Result<Measured, AloneError> {
    let clock = SystemClock::start();
    let chunk = scratch::take(member, &clock, timeout_ms)?;
    let areas = [scratch::own_area(member, chunk, 0)?, scratch::own_area(member, chunk, 1)?];
    let timing = Timing::measure(member.fabric(), areas[0], &clock);
    let cores = two_cores();
    let findings = both(member.fabric(), areas, &clock, rounds, timeout_ms, cores);
    member.free_chunk(&clock, timeout_ms, chunk).map_err(ScratchError::from)?;
    Ok(Measured { findings: findings?, hosts: 1, timing, cores })
}

/// Both parties, each in a thread of its own: the caller's thread keeps its cores.
pub(super) fn both<F: Probe + Send, C: Clock + Sync>(
    fabric: &F,
    areas: [OwnedArea; 2],
    clock: &C,
    rounds: u64,
    timeout_ms: u64,
    cores: Option<[usize; 2]>,
) -> Result<Vec<Finding>, AloneError> {
    pair_of(fabric.clone(), fabric.clone(), areas, clock, rounds, timeout_ms, cores)
}

/// As [`both`], each over a fabric of its own.
pub(super) fn pair_of<F: Probe + Send, C: Clock + Sync>(
    first: F,
    second: F,
    areas: [OwnedArea; 2],
    clock: &C,
    rounds: u64,
    timeout_ms: u64,
    cores: Option<[usize; 2]>,
) -> Result<Vec<Finding>, AloneError> {
    let [a, b] = areas;
    Party::<F, C>::clear(&first, a);
    Party::<F, C>::clear(&second, b);
    let party = |fabric, role, mine: OwnedArea, theirs: OwnedArea| {
        Party::new(fabric, role, mine, theirs.peer(), clock, timeout_ms)
    };
    let run = |mut party: Party<'_, F, C>, core: Option<usize>| {
        core.into_iter().for_each(pin);
        run_all(&mut party, rounds)
    };
    let parties = [party(first, Role::First, a, b), party(second, Role::Second, b, a)];
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, party) in parties.into_iter().enumerate() {
            let core = cores.map(|cores| cores[index]);
            let builder = std::thread::Builder::new().name(format!("rackline-litmus-{index}"));
            let thread = builder.spawn_scoped(scope, move || run(party, core));
            threads.push(thread.map_err(AloneError::Thread)?);
        }
        let mut findings = Vec::new();
        for thread in threads {
            // Both have the same findings: they exchange what they see.
            findings = match thread.join() {
                Ok(found) => found?,
                Err(panic) => std::panic::resume_unwind(panic),
            };
        }
        Ok(findings)
    })
}

/// Two cores that this thread may run on.
fn two_cores() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    Some([cores.next()?, cores.next()?])
}

fn pin(core: usize) {
    let mut only = CpuSet::new();
    only.set(core);
    if let Err(error) = sched_setaffinity(None, &only) {
        tracing::warn!(core, %error, "a litmus thread is not bound to a core");
    }
}
