//! Holds hold, and what is broken on purpose is noticed.

use cxl_shm::verify::Mutant;
use cxl_shm::verify::explored::{Limits, Memory, Verdict};
use cxl_shm::verify::scenarios::Scenario;

use super::{broken, scenarios};

const LIMITS: Limits = Limits { states: 2_000_000, ms: u64::MAX };

fn scenario(name: &str) -> Scenario {
    scenarios().into_iter().find(|scenario| scenario.name == name).unwrap()
}

#[test]
fn who_holds_a_block_reads_it() {
    // Deaths have more states: on all memories they are for `prove explore`.
    for name in ["hold", "hold-owner-leaves", "hold-of-orphan", "restore"] {
        for memory in Memory::ALL {
            let exploration = scenario(name).explore(memory, None, None, LIMITS);
            assert_eq!(exploration.verdict, Verdict::Holds, "{name} on {memory}");
        }
    }
}

#[test]
fn requests_are_answered_once_beside_deaths() {
    for name in ["restore-agent-dies", "restore-asker-dies", "restore-agent-host-dies"] {
        let exploration = scenario(name).explore(Memory::ALL[0], None, None, LIMITS);
        assert_eq!(exploration.verdict, Verdict::Holds, "{name}");
    }
}

#[test]
fn every_broken_rule_of_the_cache_is_noticed() {
    for mutant in Mutant::OF_CACHE {
        assert!(broken().iter().any(|it| it.mutant == mutant), "{mutant:?}");
    }
    // One protocol, and two hosts that may follow it: both are noticed when they do not.
    for mutant in [Mutant::EvictsUnseen, Mutant::StaysEvicting] {
        assert!(broken().iter().filter(|it| it.mutant == mutant).count() >= 2, "{mutant:?}");
    }
    for it in broken() {
        let found = scenario(it.scenario).explore(it.memory, None, Some(it.mutant), LIMITS);
        let Verdict::Refuted(refutation) = found.verdict else { panic!("{it:?}") };
        assert!(!refutation.trace.is_empty(), "{it:?}");
    }
}
