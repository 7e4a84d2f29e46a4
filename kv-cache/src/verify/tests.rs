//! Holds hold, and what is broken on purpose is noticed.

use std::collections::BTreeSet;

use cxl_shm::verify::Mutant;
use cxl_shm::verify::explored::{Limits, Memory, Verdict};
use cxl_shm::verify::scenarios::Scenario;
use cxl_shm::verify::simulated::Site;

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

/// Removals that no exploration notices: the fence of the next operation is soon enough there, also
/// for what a read-back would push. On busy caches it is not, as `tests::mutation` finds.
const NEXT_FENCE_IS_SOON_ENOUGH: [(&str, &str); 3] =
    [("ask.rs", "Fence"), ("claim.rs", "Fence"), ("claim.rs", "ReadBack")];

/// What asks, answers and takes over after a death (TIER-Q1, TIER-Q2): with any other of its flushes
/// and fences removed, an exploration fails.
#[test]
fn every_flush_of_requests_is_needed() {
    const NAMES: [&str; 4] =
        ["restore", "restore-agent-dies", "restore-asker-dies", "restore-agent-host-dies"];
    let runs: Vec<_> =
        NAMES.iter().flat_map(|name| Memory::ALL.map(|memory| (scenario(name), memory))).collect();
    let explored = runs
        .iter()
        .flat_map(|(scenario, memory)| scenario.explore(*memory, None, None, LIMITS).sites);
    let sites: BTreeSet<Site> =
        explored.filter(|site| site.file.contains("kv-cache/src/tier/")).collect();
    assert!(sites.len() > 15, "{sites:?}");
    let is_noticed = |site: &Site| {
        runs.iter().any(|(scenario, memory)| {
            let without = scenario.explore(*memory, Some(*site), None, LIMITS);
            matches!(without.verdict, Verdict::Refuted(_))
        })
    };
    let unnoticed: Vec<_> = sites.iter().filter(|site| !is_noticed(site)).collect();
    let named = unnoticed.iter().map(|site| {
        let name = site.file.rsplit('/').next().unwrap_or_default();
        (name, format!("{:?}", site.op))
    });
    let named: Vec<_> = named.collect();
    let listed = NEXT_FENCE_IS_SOON_ENOUGH.map(|(name, op)| (name, op.to_owned()));
    assert_eq!(named, listed, "{unnoticed:?}");
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
