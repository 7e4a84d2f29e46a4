//! The suite: every scenario by name.

use super::arbitrated::{Clients, Succession, bakery, follow, serve};
use super::asking::{After, die_asking};
use super::consensus::{agree, agree_over_cases};
use super::joining::{Dies, Stays, clones_come_together, come_together, come_together_torn};
use super::lock_task::Pace;
use super::newcomers::join_beside_a_change;
use super::orphans::look_after;
use super::records::{read_blocks, read_records};
use super::recoveries::{Beside, recover_beside, recover_the_living};
use super::recovery::{free_what_the_dead_held, update_through_deaths};
use super::succession::{Agents, Progress, succeed};
use super::two_locks::{TwoLocks, want_two_locks};
use crate::mutant::{self, Mutant};
use crate::verify::explored::{Exploration, Limits, LineStores, Memory, Model, Task, explore};
use crate::verify::simulated::Site;

/// A model by its name.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What happens in it, and what is claimed.
    pub about: &'static str,
    /// Takes minutes: not part of the short form.
    pub long: bool,
    run: fn(Variant) -> Exploration,
}

/// What is explored: on which memory, with what left out, how far.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    memory: Memory,
    removed: Option<Site>,
    limits: Limits,
}

impl Variant {
    /// Explores `model` so.
    #[must_use]
    pub fn explore<T: Task>(self, model: &Model<T>) -> Exploration {
        explore(model, self.memory, self.removed, self.limits)
    }
}

impl Scenario {
    /// A scenario of what uses this crate; `run` makes its model and explores it.
    #[must_use]
    pub fn new(
        name: &'static str,
        about: &'static str,
        long: bool,
        run: fn(Variant) -> Exploration,
    ) -> Self {
        Self { name, about, long, run }
    }

    /// Explores it on `memory`, with a flush or fence `removed`, or a rule broken.
    #[must_use]
    pub fn explore(
        &self,
        memory: Memory,
        removed: Option<Site>,
        mutant: Option<Mutant>,
        limits: Limits,
    ) -> Exploration {
        mutant::with(mutant, || (self.run)(Variant { memory, removed, limits }))
    }
}

macro_rules! scenario {
    ($name:literal, $about:literal, $long:literal, $model:expr) => {
        Scenario {
            name: $name,
            about: $about,
            long: $long,
            run: |variant| variant.explore(&$model),
        }
    };
}

/// All scenarios.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    vec![
        scenario!(
            "arbitrated-2x2",
            "arbitrated lock, 2 nodes, 2 rounds each, the manager on one of them",
            false,
            serve(Clients { lines: 2, ..Clients::new(2, 2) }, 0)
        ),
        scenario!(
            "arbitrated-2x2-withdraw",
            "arbitrated lock, 2 nodes, 2 rounds each, one node may give one of its up at any time",
            false,
            serve(Clients { withdrawals: 1, withdrawing: 1, ..Clients::new(2, 2) }, 2)
        ),
        scenario!(
            "arbitrated-2x2-withdraw-both",
            "as arbitrated-2x2-withdraw, and so may the other node",
            true,
            serve(Clients { withdrawals: 1, ..Clients::new(2, 2) }, 2)
        ),
        scenario!(
            "arbitrated-2x2-hurried",
            "as arbitrated-2x2, any round of the manager in haste while somebody waits",
            false,
            serve(Clients { lines: 2, managers: Pace::Hurried, ..Clients::new(2, 2) }, 0)
        ),
        scenario!(
            "arbitrated-2x2-withdraw-hurried",
            "as arbitrated-2x2-withdraw-both, any round of the manager in haste while somebody waits",
            true,
            serve(Clients { withdrawals: 1, managers: Pace::Hurried, ..Clients::new(2, 2) }, 2)
        ),
        scenario!(
            "arbitrated-3x1",
            "arbitrated lock, 3 nodes, 1 round each",
            false,
            serve(Clients::new(3, 1), 3)
        ),
        scenario!(
            "two-locks",
            "arbitrated locks, 2 threads of one node want a lock each, 1 round each",
            false,
            want_two_locks(TwoLocks::new())
        ),
        scenario!(
            "two-locks-withdraw",
            "as two-locks, one thread may give its round up at any time",
            false,
            want_two_locks(TwoLocks { withdrawals: 1, ..TwoLocks::new() })
        ),
        scenario!(
            "two-locks-shared",
            "as two-locks, and another node wants one of the locks",
            true,
            want_two_locks(TwoLocks { other: true, ..TwoLocks::new() })
        ),
        scenario!(
            "two-locks-twice",
            "as two-locks, 2 rounds each",
            true,
            want_two_locks(TwoLocks { rounds: 2, ..TwoLocks::new() })
        ),
        scenario!(
            "asker-dies",
            "a host loses power while it asks for a lock, another frees what it asked for",
            false,
            die_asking(After::Recovered)
        ),
        scenario!(
            "asker-comes-again",
            "a host loses power while it asks for a lock, another machine comes as the same node",
            false,
            die_asking(After::ComesAgain)
        ),
        scenario!(
            "bakery-2x2",
            "bakery, 2 nodes, 2 rounds each",
            false,
            bakery(Clients { lines: 2, ..Clients::new(2, 2) })
        ),
        scenario!(
            "bakery-2x2-withdraw",
            "bakery, 2 nodes, 2 rounds each, of which one may be given up at any time",
            false,
            bakery(Clients { withdrawals: 1, ..Clients::new(2, 2) })
        ),
        scenario!("bakery-3x1", "bakery, 3 nodes, 1 round each", false, bakery(Clients::new(3, 1))),
        scenario!(
            "next-term-granted",
            "a client was granted the lock by a manager that died since, another waits: the next term",
            false,
            succeed(Progress::Granted, Agents::One)
        ),
        scenario!(
            "next-term-held",
            "as next-term-granted, and the client is inside",
            false,
            succeed(Progress::Holds, Agents::One)
        ),
        scenario!(
            "next-term-two-agents",
            "as next-term-granted, a host has a deposed agent that goes on beside its agent",
            true,
            succeed(Progress::Granted, Agents::Two)
        ),
        scenario!(
            "next-term-joined",
            "a host joins beside a change of managers, while another client waits",
            true,
            join_beside_a_change()
        ),
        scenario!(
            "next-term-recovered",
            "the holder of a lock is dead and being recovered beside a change of managers",
            true,
            recover_beside(Beside::NextTerm, LineStores::FirstWordApart)
        ),
        scenario!(
            "restart-2x1",
            "a manager dies and another starts on its node",
            true,
            follow(Clients::new(2, 1), Succession::Restart)
        ),
        scenario!(
            "take-over-2x1",
            "another manager takes over while the old one sleeps and wakes",
            true,
            follow(Clients::new(2, 1), Succession::TakeOver(1))
        ),
        scenario!(
            "take-over-2x1-hurried",
            "as take-over-2x1, any round of either manager in haste while somebody waits",
            true,
            follow(
                Clients { managers: Pace::Hurried, ..Clients::new(2, 1) },
                Succession::TakeOver(1)
            )
        ),
        scenario!(
            "take-over-twice-2x1",
            "two managers take over, in any order, while the old ones sleep and wake",
            true,
            follow(Clients::new(2, 1), Succession::TakeOver(2))
        ),
        scenario!(
            "take-over-2x2",
            "as take-over-2x1, 2 rounds each",
            true,
            follow(Clients::new(2, 2), Succession::TakeOver(1))
        ),
        scenario!(
            "take-over-3x1",
            "as take-over-2x1, 3 nodes with clients",
            true,
            follow(Clients::new(3, 1), Succession::TakeOver(1))
        ),
        scenario!(
            "holder-dies",
            "a holder dies within an update of two lines, a process of its host recovers it",
            false,
            update_through_deaths(1, false)
        ),
        scenario!(
            "dead-holder",
            "a host has lost power holding the lock, another frees it beside the manager",
            false,
            free_what_the_dead_held()
        ),
        scenario!(
            "recoverer-dies",
            "a holder dies within an update of two lines, then its recoverer",
            true,
            update_through_deaths(2, false)
        ),
        scenario!(
            "holder-then-host-dies",
            "a holder dies within an update of two lines, then its host while it is recovered",
            true,
            update_through_deaths(2, true)
        ),
        scenario!(
            "recovery-waiter",
            "a host that died within an update is recovered, beside another that waits for its lock",
            false,
            recover_beside(Beside::Waits, LineStores::FirstWordApart)
        ),
        scenario!(
            "recovery-living",
            "a host is to be recovered that lives on, inside a lock, until it loses power",
            false,
            recover_the_living(LineStores::Whole)
        ),
        scenario!(
            "recovery-return",
            "a host that died is recovered, beside its next life, which comes twice at most",
            false,
            recover_beside(Beside::Returns, LineStores::Whole)
        ),
        scenario!(
            "recovery-return-torn",
            "as recovery-return, with lines that are written back half stored",
            true,
            recover_beside(Beside::Returns, LineStores::FirstWordApart)
        ),
        scenario!(
            "recovery-return-dies",
            "as recovery-return-torn, once; the recoverer's process dies and another goes on",
            true,
            recover_beside(Beside::ReturnsAndDies, LineStores::FirstWordApart)
        ),
        scenario!(
            "recovery-successor",
            "the process of a recoverer dies, its host gives the recovery up, and another takes it",
            true,
            recover_beside(Beside::Succeeds, LineStores::FirstWordApart)
        ),
        scenario!(
            "recovery-later-life",
            "a recovery is under way when a later life of the slot dies in admission: two cases (DEATH-C2)",
            false,
            recover_beside(Beside::Later, LineStores::Whole)
        ),
        scenario!(
            "recovery-later-life-torn",
            "as recovery-later-life, with lines that are written back half stored",
            true,
            recover_beside(Beside::Later, LineStores::FirstWordApart)
        ),
        scenario!(
            "consensus-2",
            "2 proposers, neither of which goes on after it was outbid",
            false,
            agree(2, 0, 0, false)
        ),
        scenario!(
            "consensus-2-cases",
            "2 proposers in two cases, of which the one of the earlier case goes on in the later one",
            false,
            agree_over_cases()
        ),
        scenario!(
            "consensus-2-outbid",
            "2 proposers, each outbid at most once",
            true,
            agree(2, 1, 0, false)
        ),
        scenario!(
            "consensus-2-process-dies",
            "2 proposers, one dies at any point and another process of its host goes on",
            true,
            agree(2, 0, 1, false)
        ),
        scenario!(
            "consensus-2-host-dies",
            "2 proposers, the host of one loses power at any point",
            true,
            agree(2, 0, 1, true)
        ),
        scenario!(
            "consensus-3",
            "3 proposers, none of which goes on after it was outbid",
            true,
            agree(3, 0, 0, false)
        ),
        scenario!(
            "join-2",
            "2 hosts come for one node slot, each twice at most, and stay",
            false,
            come_together(2, 2, Stays::ForEver, Dies::Nobody)
        ),
        scenario!(
            "join-2-torn",
            "as join-2, once, with lines that are written back half stored",
            true,
            come_together_torn(2, 1)
        ),
        scenario!(
            "join-2-clones",
            "as join-2, with two hosts that have one machine id",
            false,
            clones_come_together(2)
        ),
        scenario!(
            "join-2-host-dies",
            "2 hosts come for one node slot, one loses power at any point",
            false,
            come_together(2, 1, Stays::ForEver, Dies::Host)
        ),
        scenario!(
            "join-2-process-dies",
            "2 hosts come for one node slot, a process of one dies and another of its host comes",
            false,
            come_together(2, 1, Stays::ForEver, Dies::Process)
        ),
        scenario!(
            "join-3",
            "3 hosts come for one node slot, and stay",
            false,
            come_together(3, 1, Stays::ForEver, Dies::Nobody)
        ),
        scenario!(
            "join-3-leave",
            "3 hosts join one node slot; the admitted host leaves, and another may join after it",
            false,
            come_together(3, 1, Stays::NotAtAll, Dies::Nobody)
        ),
        scenario!(
            "slot-moves",
            "2 hosts have one node slot in turn, twice each, and use a ticket of a lock each time",
            false,
            come_together(2, 2, Stays::ForOneTicket, Dies::Nobody)
        ),
        scenario!(
            "orphan",
            "2 hosts would look after what a third left, which comes back: one at a time",
            false,
            look_after(false)
        ),
        scenario!(
            "orphan-reclaimer-dies",
            "the process of a reclaimer dies at any point, another of its host joins, and nobody waits \
             for good",
            false,
            look_after(true)
        ),
        scenario!(
            "record",
            "a sealed record is read while it is written, 2 rounds",
            false,
            read_records(2)
        ),
        scenario!(
            "block",
            "a block of 2 lines is read with two looks while its place is reused",
            false,
            read_blocks(2, 2)
        ),
    ]
}
