//! The small scenarios hold, and what is broken on purpose is noticed. The large ones are for
//! `prove explore`.

use super::{Scenario, broken, rack_scenarios, scenarios};
use crate::verify::Mutant;
use crate::verify::explored::{Limits, Memory, Verdict};

const LIMITS: Limits = Limits { states: 2_000_000, ms: u64::MAX };

fn scenario(name: &str) -> Scenario {
    scenarios().into_iter().find(|scenario| scenario.name == name).unwrap()
}

fn states(name: &str) -> [usize; 4] {
    Memory::ALL.map(|memory| {
        let exploration = scenario(name).explore(memory, None, None, LIMITS);
        assert_eq!(exploration.verdict, Verdict::Holds, "{name} on {memory}");
        exploration.states
    })
}

#[test]
fn two_nodes_take_turns_in_the_bakery() {
    let [sticky, posted, adversarial, both] = states("bakery-2x2");
    assert!(sticky < posted && sticky < adversarial && posted.max(adversarial) < both);
}

#[test]
fn two_threads_of_a_node_are_both_heard() {
    assert!(states("two-locks").iter().all(|states| *states > 1000));
}

#[test]
fn a_host_that_dies_while_it_asks_strands_nobody() {
    assert!(states("asker-dies").iter().all(|states| *states > 1000));
    assert!(states("asker-comes-again").iter().all(|states| *states > 1000));
}

#[test]
fn a_block_is_read_whole_or_not_at_all() {
    assert!(states("block").iter().all(|states| *states > 100));
}

#[test]
fn proposers_agree() {
    // Here this found a look that took a promise for blank: one line of its record was torn, the
    // copy of the other older than the promise.
    let adversarial = Memory::ALL[2];
    let exploration = scenario("consensus-2").explore(adversarial, None, None, LIMITS);
    assert_eq!(exploration.verdict, Verdict::Holds);
}

#[test]
fn every_mutant_has_its_place_and_every_place_a_scenario() {
    // Where those of the cache are noticed is known there.
    for mutant in Mutant::ALL.into_iter().filter(|mutant| !Mutant::OF_CACHE.contains(mutant)) {
        assert!(broken().iter().any(|it| it.mutant == mutant), "{mutant:?}");
    }
    let places = broken();
    let mut pairs: Vec<_> = places.iter().map(|it| (it.mutant, it.scenario)).collect();
    pairs.sort_unstable();
    pairs.dedup();
    assert_eq!(pairs.len(), places.len(), "a mutant is named twice for one scenario");
    assert!(broken().iter().all(|it| scenario(it.scenario).long <= it.long));
    let mut names: Vec<_> = scenarios().iter().map(|scenario| scenario.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), scenarios().len());
}

#[test]
fn broken_rules_are_noticed() {
    // Deaths within updates have many states: those are for `prove explore --mutants`.
    for it in broken().iter().filter(|it| !it.long && it.scenario != "holder-dies") {
        let found = scenario(it.scenario).explore(it.memory, None, Some(it.mutant), LIMITS);
        let Verdict::Refuted(refutation) = found.verdict else { panic!("{it:?}") };
        assert!(!refutation.trace.is_empty(), "{it:?}");
    }
}

#[test]
fn a_removed_flush_is_noticed() {
    let scenario = scenario("bakery-2x2");
    let sticky = Memory::ALL[0];
    let sites = scenario.explore(sticky, None, None, LIMITS).sites;
    let request = sites.iter().find(|site| {
        site.file.ends_with("bakery/client.rs") && format!("{:?}", site.op) == "WriteBack"
    });
    let found = scenario.explore(sticky, request.copied(), None, LIMITS);
    assert!(matches!(found.verdict, Verdict::Refuted(_)), "without {request:?}");
}

#[test]
fn racks_come_through_deaths() {
    for scenario in rack_scenarios() {
        (0..2).for_each(|seed| scenario.run(seed, &|_| ()));
    }
}

#[test]
fn one_at_a_time_writes_what_a_node_left() {
    assert!(states("orphan").iter().all(|states| *states > 100));
    assert!(states("orphan-reclaimer-dies").iter().all(|states| *states > 100));
}
