//! The litmus programs where it is known what they must see.

use super::alone::pair_of;
use super::finding::Expect;
use super::party::PARTY_LINES;
use super::probe::Probe;
use super::{EVIDENCE_TRIALS_MIN, Finding, Measured, Timing, trials_of};
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::{Fabric, LineWords, MappedFabric, Mapping, MemoryFenceKind, OwnedArea};
use cxl_shm::layout::FenceEvidence;
use cxl_shm::units::{LineOffset, LineRange};
use cxl_shm::verify::simulated::{Access, Interposed, SimulatedHost, SimulatedRack};

const BYTES: u64 = 64 << 10;
const TIMEOUT_MS: u64 = 60_000;

fn areas() -> [OwnedArea; 2] {
    [0, BYTES / 2].map(|at| {
        let start = LineOffset::new(at).unwrap();
        OwnedArea::in_test(LineRange::new(start, PARTY_LINES).unwrap())
    })
}

fn run<F: Probe + Send>(first: F, second: F, rounds: u64) -> Vec<Finding> {
    let clock = SystemClock::start();
    pair_of(first, second, areas(), &clock, rounds, TIMEOUT_MS, None).unwrap()
}

fn seen(findings: &[Finding], litmus: &str, tried: &str) -> (u64, u64) {
    let found = findings.iter().find(|found| found.litmus == litmus && found.tried == tried);
    let found = found.unwrap_or_else(|| panic!("no {litmus}, {tried}"));
    (found.seen, found.trials)
}

#[test]
fn this_machine_keeps_what_the_protocols_need() {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(BYTES).unwrap();
    let fabric = MappedFabric::new(Mapping::shared(&file, BYTES).unwrap()).unwrap();
    let findings = run(fabric.clone(), fabric, 20);
    let violated: Vec<_> = findings.iter().filter(|found| found.is_violated()).collect();
    assert!(violated.is_empty(), "{violated:?}");
    assert!(findings.iter().filter(|found| found.expect == Expect::Never).count() >= 6);
}

#[test]
fn hosts_with_caches_of_their_own_show_what_the_rules_are_for() {
    let rack = SimulatedRack::sticky(2, BYTES);
    let findings = run(rack.host(0), rack.host(1), 3);
    for found in &findings {
        assert!(!found.is_violated(), "{found:?}");
    }
    let all = trials_of(3);
    let of = |litmus, tried| seen(&findings, litmus, tried);
    assert_eq!(of("load passes flush", "flush, load"), (all, all));
    assert_eq!(of("load passes flush", "flush, load fence, load"), (all, all));
    assert_eq!(of("stale after prefetch", "prefetch, plain load"), (all, all));
    assert!(of("store buffering", "plain store, plain load").0 > 0);
    let (lost, trials) = of("clobber", "two writers in one line (against MEM-M1)");
    assert!(lost > 0 && trials == 2 * all);
    // A fence of this rack does not wait for the device.
    let (late, _) = of("fence waits for device", "write back, fence, tell");
    assert!(late > 0);
    assert_eq!(measured(findings, 2).fence(), FenceEvidence::Unproven);
}

#[test]
fn a_side_that_stops_is_not_waited_for_without_end() {
    use super::party::{Party, Role};
    let rack = SimulatedRack::sticky(2, BYTES);
    let [mine, theirs] = areas();
    let clock = SystemClock::start();
    let mut party = Party::new(rack.host(0), Role::First, mine, theirs.peer(), &clock, 1);
    let silent = party.meet().unwrap_err();
    assert!(silent.to_string().contains("check that its command still runs"), "{silent}");
}

/// A host whose processor forgets the fence of a refresh.
type Unfenced = Interposed<fn(Access)>;

fn unfenced(host: SimulatedHost) -> Unfenced {
    Interposed::new(host, |_| ())
}

impl Probe for Unfenced {
    fn fence_of(&self, _: MemoryFenceKind) {}
    fn prefetch(&self, at: LineOffset) {
        self.read_line(at);
    }
    fn write_whole_line(&self, _: LineOffset, _: &LineWords) -> bool {
        false
    }
    fn read_whole_line(&self, _: LineOffset) -> Option<LineWords> {
        None
    }
    fn ticks(&self) -> Option<u64> {
        None
    }
}

#[test]
fn a_platform_that_cannot_refresh_is_found_out() {
    let rack = SimulatedRack::sticky(2, BYTES);
    let findings = run(unfenced(rack.host(0)), unfenced(rack.host(1)), 2);
    let refresh = findings.iter().find(|found| found.tried.contains("(MEM-M3)")).unwrap();
    assert!(refresh.is_violated(), "{refresh:?}");
    assert!(refresh.meaning(2).contains("VIOLATED"));
    assert!(!measured(findings, 2).is_fit());
}

fn measured(findings: Vec<Finding>, hosts: u8) -> Measured {
    let timing = Timing {
        publish_ns: 1.0,
        publish_read_back_ns: 2.0,
        refresh_ns: 1.0,
        loads_passing_flush: [0.0; 4],
    };
    Measured { findings, hosts, timing, cores: None }
}

#[test]
fn only_two_hosts_and_enough_trials_are_evidence_for_a_fence() {
    let arrival = |trials, seen| Finding {
        litmus: super::litmus_arrival::LITMUS,
        tried: "write back, fence, tell",
        counted: "line that was late",
        trials,
        seen,
        expect: Expect::Hidden,
    };
    let fence = |hosts, trials, seen| measured(vec![arrival(trials, seen)], hosts).fence();
    assert_eq!(fence(2, EVIDENCE_TRIALS_MIN, 0), FenceEvidence::TwoHosts);
    assert_eq!(fence(1, EVIDENCE_TRIALS_MIN, 0), FenceEvidence::Unproven);
    assert_eq!(fence(2, EVIDENCE_TRIALS_MIN - 1, 0), FenceEvidence::Unproven);
    assert_eq!(fence(2, EVIDENCE_TRIALS_MIN, 1), FenceEvidence::Unproven);
    assert_eq!(measured(Vec::new(), 2).fence(), FenceEvidence::Unproven);
}
