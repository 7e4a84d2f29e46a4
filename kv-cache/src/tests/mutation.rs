//! Every flush and fence of this crate is needed: with any one of them removed something goes
//! wrong on caches that do nothing by themselves.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cxl_shm::fabric::simulated::Site;

use super::pressure::{held_and_evicted, nobody_looks_at_what_was};
use super::recovery::death_under_the_lock;
use super::torn::scanned_while_it_is_written;
use super::unpublished::freed_by_the_dead;
use super::ward::guardians_and_homecomings;
use super::*;

/// Runs on busy caches.
const SEEDS: u64 = 100;
const HOSTS: usize = 3;
const SCENARIOS: [fn(SimulatedRack); 7] = [
    exchange_and_lag,
    death_under_the_lock,
    nobody_looks_at_what_was,
    held_and_evicted,
    guardians_and_homecomings,
    scanned_while_it_is_written,
    freed_by_the_dead,
];

/// Everything a cache does while nobody dies, checked with what a reader can see.
fn exchange_and_lag(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 32, 8);
    on_two_hosts(&rig, |a, b, clock| {
        let segment = b.segment(a.member().node()).unwrap();
        let probe = |number| segment.probe(b.member().fabric(), key(number));
        for round in 0..2 {
            let first = 20 * round;
            let writing = reserve(a, clock, first);
            // H2: seen as being written by everybody before a byte of its payload changes.
            assert_eq!(open(b, first, writing.descriptor.handle), Err(Miss::NotReady));
            a.abort(clock, vec![writing]);

            // More than once round the log, one by one. The reader has every line in its caches
            // as it was before.
            let mut handles = Vec::new();
            for number in first..first + 6 {
                assert_eq!(find(b, number), None);
                handles.push(publish(a, clock, number));
                assert_eq!(find(b, number), handles.last().copied());
                assert_eq!(fetch(b, number, handles[handles.len() - 1]), Ok(()));
                assert_eq!(probe(number).map(|block| block.handle), handles.last().copied());
            }
            for number in first..first + 3 {
                let handle = handles[usize::from(number - first)];
                assert_eq!(a.retire(clock, &[handle]), 1);
                assert_eq!(find(b, number), None, "the log tells of removals");
                assert_eq!(probe(number), None);
                let again = publish(a, clock, number);
                assert_eq!(find(b, number), Some(again));
                assert_eq!(fetch(b, number, again), Ok(()), "not the block before it");
            }
            assert_eq!(b.local().metrics().rescans, u64::from(round), "the log says it all");

            // Removed between the looks, the bytes still the old ones.
            let ticket = open(b, first + 3, handles[3]).unwrap();
            a.retire(clock, &handles[3..4]);
            assert_eq!(b.close(&[(ticket, None)]), [Err(Miss::Changed)]);

            // Overrun.
            a.retire(clock, &handles[4..5]);
            for number in first + 6..first + 14 {
                publish(a, clock, number);
            }
            assert_eq!(find(b, first + 4), None);
            assert!(find_and_fetch(b, first + 13));
            assert_eq!(b.local().metrics().rescans, u64::from(round) + 1);
        }
    });
}

#[test]
fn busy_caches_do_no_harm() {
    for seed in 0..SEEDS {
        for scenario in SCENARIOS {
            scenario(SimulatedRack::adversarial(HOSTS, REGION_BYTES, seed));
        }
    }
}

#[test]
fn every_flush_and_fence_is_needed() {
    let sites = SCENARIOS.iter().flat_map(|scenario| {
        let sound = SimulatedRack::sticky(HOSTS, REGION_BYTES);
        scenario(sound.clone());
        sound.sites()
    });
    let of_this_crate =
        |file: &str| file.contains("kv-cache/src/") && !file.contains("kv-cache/src/tests/");
    let sites: BTreeSet<_> = sites.filter(|site| of_this_crate(site.file)).collect();
    assert!(sites.len() > 25, "{sites:?}");
    let is_noticed = |site: Site, rack: &dyn Fn() -> SimulatedRack| {
        SCENARIOS.iter().any(|scenario| {
            let rack = rack();
            rack.suppress(site);
            catch_unwind(AssertUnwindSafe(|| scenario(rack))).is_err()
        })
    };
    // A flush without its fence completes, on caches that do nothing by themselves, with the
    // fence of the next operation, which may be soon enough every time. Not on busy ones.
    let unnoticed = sites.iter().filter(|site| {
        let busy = |seed| move || SimulatedRack::adversarial(HOSTS, REGION_BYTES, seed);
        !is_noticed(**site, &|| SimulatedRack::sticky(HOSTS, REGION_BYTES))
            && !(0..SEEDS).any(|seed| is_noticed(**site, &busy(seed)))
    });
    let unnoticed: Vec<_> = unnoticed.map(ToString::to_string).collect();
    assert_eq!(unnoticed, [""; 0], "nothing went wrong without these");
}
