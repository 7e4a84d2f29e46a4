//! Two proposers with three changes between them, all of them: one goes up to its operation `a`,
//! the other up to its operation `b`, then the first to its end, then the second. A write-back or a
//! refresh that is removed must let them disagree, or hang, for some `a` and `b`.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::layout::{Appointment, Layout};
use crate::lifecycle::consensus::decisions::decided_about;
use crate::lifecycle::consensus::proposal::{Progress, Proposal};
use crate::lifecycle::consensus::tests::{CASE, VICTIM, geometry, rack};
use crate::units::{Incarnation, NodeId};
use crate::verify::simulated::{
    Access, Interposed, Interposer, Settings, SimulatedRack, Site, SiteOp,
};

/// Stops a host before one operation until it is told to continue.
struct Gate {
    left: Cell<u64>,
    reached: Sender<()>,
    go: Receiver<()>,
}

impl Interposer for Gate {
    fn before(&self, access: Access) {
        // No gate before a load: what it finds was fetched by the refresh before it.
        if access.is_load() {
            return;
        }
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        if left == 1 {
            self.reached.send(()).unwrap();
            self.go.recv().unwrap();
        }
    }
}

/// What a proposer comes to, within a bound: what is removed may make it wait for ever.
fn propose(layout: &Layout, fabric: &Interposed<Gate>, node: u16) -> Option<Appointment> {
    let mut proposal = Proposal::begin(NodeId(node), Incarnation(1), VICTIM, CASE);
    (0..40).find_map(|_| match proposal.poll(layout, fabric) {
        Progress::Decided(value) => Some(value),
        _ => None,
    })
}

/// How two proposers end, and how many of each one's gates were reached.
fn race(posted: bool, gates: [u64; 2], removed: Option<Site>) -> (bool, [bool; 2], SimulatedRack) {
    let settings = Settings::sticky(3, geometry(3).region_bytes);
    let seed = gates[0] << 16 | gates[1];
    let (rack, layout) = rack(Settings { seed, posted_writes: posted, ..settings }, 3);
    if let Some(site) = removed {
        rack.suppress(site);
    }
    for host in 0..3 {
        // Stale copies of everything.
        let _ = decided_about(&layout, &rack.host(host), VICTIM, CASE.incarnation);
    }
    let mut reached = [false; 2];
    let ends = std::thread::scope(|scope| {
        // The one with the larger ballot first: the other does not outbid it.
        let runs: Vec<_> = [(2, gates[0]), (1, gates[1])]
            .into_iter()
            .enumerate()
            .map(|(index, (node, gate))| {
                let (reach, at_gate) = channel();
                let (go, may_go) = channel();
                let host = rack.host(usize::from(node));
                let left = Cell::new(gate);
                let fabric = Interposed::new(host, Gate { left, reached: reach, go: may_go });
                let run = scope.spawn(move || propose(&layout, &fabric, node));
                // An error: it has come to its end before its gate.
                reached[index] = at_gate.recv().is_ok();
                (run, go)
            })
            .collect();
        let end = |(run, go): (std::thread::ScopedJoinHandle<'_, _>, Sender<()>)| {
            let _ = go.send(());
            run.join().unwrap()
        };
        runs.into_iter().map(end).collect::<Vec<Option<Appointment>>>()
    });
    let read = decided_about(&layout, &rack.host(0), VICTIM, CASE.incarnation);
    let agreed = ends[0].is_some()
        && ends.iter().all(|end| *end == ends[0])
        && read.map(|decision| decision.appointment) == ends[0];
    (agreed, reached, rack)
}

/// Whether all races end in agreement, and where flushes and fences were issued.
fn all_agree(posted: bool, removed: Option<Site>) -> (bool, BTreeSet<Site>) {
    let mut sites = BTreeSet::new();
    let (mut a, mut b) = (1, 1);
    loop {
        let (agreed, [first_goes_on, second_goes_on], rack) = race(posted, [a, b], removed);
        if !agreed {
            return (false, sites);
        }
        sites.extend(rack.sites());
        if second_goes_on {
            b += 1;
        } else if first_goes_on {
            (a, b) = (a + 1, 1);
        } else {
            return (true, sites);
        }
    }
}

#[test]
fn every_write_back_and_refresh_is_needed() {
    let (agreed, sites) = all_agree(true, None);
    assert!(agreed, "two proposers disagree");
    // The look that follows a publish, in the next poll, has a fence of its own before it reads.
    let publishes =
        |site: &Site| sites.iter().any(|it| it.same_place(site) && it.op == SiteOp::WriteBack);
    let fenced_later = |site: &Site| site.op == SiteOp::Fence && publishes(site);
    let ours = |site: &&Site| {
        let in_race = site.file.contains("lifecycle/consensus/") && site.op != SiteOp::ReadBack;
        in_race && !fenced_later(site)
    };
    let ours: Vec<&Site> = sites.iter().filter(ours).collect();
    assert!(ours.len() >= 4, "{ours:?}");
    for site in ours {
        let missed = [false, true].into_iter().any(|posted| !all_agree(posted, Some(*site)).0);
        assert!(missed, "nobody misses {site:?}");
    }
}
