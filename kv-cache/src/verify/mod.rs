//! Holds, evictions and requests to restore blocks in small configurations, explored exhaustively: the cache's part of
//! `prove explore`.
//!
//! As the models of `cxl_shm::verify::scenarios`, each starts from what the real sources wrote on a
//! simulated rack ([`ground`]) and then runs in all ways there are. Time stands still: no hold
//! expires.

mod ground;
mod holder;
mod holds;
mod owner;
mod restores;
#[cfg(test)]
mod tests;
mod vacant;

use cxl_shm::verify::Mutant;
use cxl_shm::verify::explored::Memory;
use cxl_shm::verify::scenarios::{Broken, Scenario};
use cxl_shm::verify::simulated::CacheMode;

use holds::{Dies, hold_while_evicted};
use restores::restores_asked;
use vacant::{hold_beside_a_reclaimer, hold_while_the_owner_leaves};

macro_rules! scenario {
    ($name:literal, $about:literal, $long:literal, $model:expr) => {
        Scenario::new($name, $about, $long, |variant| variant.explore(&$model))
    };
}

/// All scenarios of the cache.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    vec![
        scenario!(
            "hold",
            "a host holds a block while its owner evicts it, twice at most, and reuses its place",
            false,
            hold_while_evicted(2, Dies::Nobody)
        ),
        scenario!(
            "hold-holder-dies",
            "as hold, once; the holder's process dies and another of its host looks after it",
            false,
            hold_while_evicted(1, Dies::Holder)
        ),
        scenario!(
            "hold-owner-dies",
            "as hold, once; the owner's process dies and another of its host goes on",
            false,
            hold_while_evicted(1, Dies::Owner)
        ),
        scenario!(
            "hold-host-dies",
            "as hold, once; the host of either loses power",
            false,
            hold_while_evicted(1, Dies::Host)
        ),
        scenario!(
            "hold-owner-leaves",
            "a host holds a block while its owner evicts it, once, and leaves",
            false,
            hold_while_the_owner_leaves()
        ),
        scenario!(
            "hold-of-orphan",
            "a host holds a block that its owner left EVICTING while a reclaimer evicts it",
            false,
            hold_beside_a_reclaimer(false)
        ),
        scenario!(
            "hold-of-orphan-reclaimer-dies",
            "as hold-of-orphan; the reclaimer's host loses power",
            true,
            hold_beside_a_reclaimer(true)
        ),
        scenario!(
            "restore",
            "a process asks the agent of another host for two blocks, through a ring of one line",
            false,
            restores_asked(restores::Dies::Nobody)
        ),
        scenario!(
            "restore-agent-dies",
            "as restore; the agent dies and another of its host answers what is open",
            false,
            restores_asked(restores::Dies::Agent)
        ),
        scenario!(
            "restore-asker-dies",
            "as restore; the asking process dies and another of its host asks",
            false,
            restores_asked(restores::Dies::Asker)
        ),
        scenario!(
            "restore-agent-host-dies",
            "as restore; the host of the agent loses power",
            false,
            restores_asked(restores::Dies::AgentHost)
        ),
    ]
}

/// Every broken rule of the cache, with the exploration that is to refute it.
#[must_use]
pub fn broken() -> Vec<Broken> {
    let memory = Memory { caches: CacheMode::Sticky, posted_writes: false };
    let short = |mutant, scenario| Broken { mutant, scenario, memory, long: false };
    vec![
        short(Mutant::EvictsUnseen, "hold"),
        short(Mutant::EvictsUnseen, "hold-of-orphan"),
        short(Mutant::HoldsUnseen, "hold"),
        short(Mutant::KeepsDeadHolds, "hold-holder-dies"),
        short(Mutant::StaysEvicting, "hold-owner-dies"),
        short(Mutant::StaysEvicting, "hold-of-orphan"),
        short(Mutant::HoldsOfVacantUnseen, "hold-owner-leaves"),
        short(Mutant::HoldsBesideReclaimer, "hold-of-orphan"),
        short(Mutant::CountsBeforeRequest, "restore"),
        short(Mutant::OverwritesRequest, "restore"),
        short(Mutant::AnswersTwice, "restore-agent-dies"),
    ]
}
