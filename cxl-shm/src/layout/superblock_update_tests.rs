//! Replacing the profile: by hosts with warm caches, beside readers, with death at every step.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::tests::geometry;
use super::*;
use crate::fabric::FlushKind;
use crate::layout::{FenceEvidence, PayloadPolicy, Platform};
use crate::region::RegionKind;
use crate::units::NodeId;
use crate::verify::simulated::{Faults, Schedule, SimulatedHost, SimulatedRack, Site};

const BYTES: u64 = 1 << 20;
const SEEDS: u64 = 60;

fn profile(number: u64) -> PlatformProfile {
    let platform = Platform {
        vendor: *b"GenuineIntel",
        signature: 7,
        hypervisor: 0,
        flush: FlushKind::Clflushopt,
        memory: RegionKind::Devdax,
        bytes: BYTES,
    };
    let (fence, payload) = (FenceEvidence::TwoHosts, PayloadPolicy::FlushBoth);
    PlatformProfile { platform, fence, payload, strict: false, measured_unix_s: number }
}

fn format(rack: &SimulatedRack) {
    let superblock = Superblock::new([1, 2], geometry(), [3; 6]);
    format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
}

fn number(host: &SimulatedHost) -> Option<u64> {
    read_superblock(host).unwrap().0.profile.map(|profile| profile.measured_unix_s)
}

/// Hosts take turns; each has every line in its caches as it was before.
fn take_turns(rack: SimulatedRack) {
    let hosts = [rack.host(0), rack.host(1)];
    // Lines of an earlier life are in the caches of everybody.
    let all = LineRange::new(line(0), 4 * PAGE_BYTES / LINE_BYTES).unwrap();
    for host in &hosts {
        for line in all.iter() {
            host.write_line(line, &[7; 8]);
        }
        host.publish(all);
        all.iter().for_each(|line| assert_eq!(host.read_line(line), [7; 8]));
    }
    format(&rack);
    for host in hosts.iter().rev() {
        let (superblock, layout) = read_superblock(host).unwrap();
        assert_eq!(superblock.profile, None);
        let blank = layout.node_line(NodeId(0)).fresh(host);
        assert!(matches!(blank, Err(LineError::Blank { .. })), "{blank:?}");
    }
    for turn in 0..6_u64 {
        let writer = &hosts[usize::from(turn % 2 == 1)];
        let stored = replace_profile(writer, Some(profile(turn))).unwrap();
        assert_eq!(stored.profile, Some(profile(turn)));
        assert_eq!(stored.application, [3; 6], "the rest stays");
        for host in &hosts {
            assert_eq!(number(host), Some(turn));
        }
    }
    replace_profile(&hosts[0], None).unwrap();
    assert_eq!(number(&hosts[1]), None);
}

/// A host reads while another replaces the profile again and again: every read finds one.
fn read_beside(rack: SimulatedRack) {
    format(&rack);
    let (writer, reader) = (rack.host(0), rack.host(1));
    replace_profile(&writer, Some(profile(0))).unwrap();
    let seed = rack.settings().seed;
    Schedule::builder(&rack, seed)
        .faults(Faults { pause_one_in: 10, ..Faults::NONE })
        .task(0, "writer", move || {
            for turn in 1..20 {
                replace_profile(&writer, Some(profile(turn))).unwrap();
            }
        })
        .task(1, "reader", move || {
            let mut last = 0;
            for _ in 0..20 {
                let now = number(&reader).unwrap();
                assert!(now >= last, "{now} after {last}");
                last = now;
            }
        })
        .run();
}

/// A process died in an update and left dirty lines; its host flushes them before the lock passes
/// on. What its caches do later harms nothing.
fn flush_after_death(rack: SimulatedRack) {
    for word_stored in [false, true] {
        format(&rack);
        let (dead, next) = (rack.host(0), rack.host(1));
        assert_eq!((number(&dead), number(&next)), (None, None));
        let (superblock, layout) = read_superblock(&dead).unwrap();
        let half_done = Superblock { profile: Some(profile(1)), ..superblock };
        let mut batch = PublishBatch::new(&dead);
        slot_of(2).write(&mut batch, &half_done, &layout, 2);
        if word_stored {
            batch.publish();
            dead.store(current_word().claim().at(), word_of(2));
        } else {
            std::mem::forget(batch);
        }
        flush_superblock(&dead);
        for turn in [7, 8] {
            replace_profile(&next, Some(profile(turn))).unwrap();
        }
        let all = LineRange::new(line(0), 3 * PAGE_BYTES / LINE_BYTES).unwrap();
        // Whatever was dirty or on its way arrives now.
        write_back_late(&dead, all);
        assert_eq!(number(&next), Some(8));
        assert_eq!(number(&dead), Some(8));
    }
}

fn write_back_late(host: &SimulatedHost, lines: LineRange) {
    host.write_back(lines);
    host.fence();
    host.read_back(lines);
}

const SCENARIOS: [fn(SimulatedRack); 3] = [take_turns, read_beside, flush_after_death];

#[test]
fn profiles_are_replaced_on_any_caches() {
    for scenario in SCENARIOS {
        scenario(SimulatedRack::sticky(2, BYTES));
        for seed in 0..SEEDS {
            scenario(SimulatedRack::adversarial(2, BYTES, seed));
        }
    }
}

#[test]
fn every_flush_and_fence_of_the_superblock_is_needed() {
    let sites = SCENARIOS.iter().flat_map(|scenario| {
        let sound = SimulatedRack::sticky(2, BYTES);
        scenario(sound.clone());
        sound.sites()
    });
    let ours = |file: &str| file.ends_with("layout/superblock.rs");
    let sites: BTreeSet<_> = sites.filter(|site| ours(site.file)).collect();
    assert!(sites.len() > 12, "{sites:?}");
    let is_noticed = |site: Site, rack: &dyn Fn() -> SimulatedRack| {
        SCENARIOS.iter().any(|scenario| {
            let rack = rack();
            rack.suppress(site);
            catch_unwind(AssertUnwindSafe(|| scenario(rack))).is_err()
        })
    };
    let unnoticed = sites.iter().filter(|site| {
        let busy = |seed| move || SimulatedRack::adversarial(2, BYTES, seed);
        !is_noticed(**site, &|| SimulatedRack::sticky(2, BYTES))
            && !(0..SEEDS).any(|seed| is_noticed(**site, &busy(seed)))
    });
    let unnoticed: Vec<_> = unnoticed.map(ToString::to_string).collect();
    assert_eq!(unnoticed, [""; 0], "nothing went wrong without these");
}

/// The writer dies at operation `step`; the next host finds the old or the new, and continues.
fn dies_at(rack: &SimulatedRack, seed: u64, step: u64, whole_host: bool) -> bool {
    format(rack);
    replace_profile(&rack.host(0), Some(profile(1))).unwrap();
    let writer = rack.host(0);
    let schedule = Schedule::builder(rack, seed).faults(Faults::NONE);
    let schedule = if whole_host {
        schedule.crash_host_at(0, step)
    } else {
        schedule.crash_process_at("writer", step)
    };
    let report = schedule
        .task(0, "writer", move || {
            replace_profile(&writer, Some(profile(2))).unwrap();
        })
        .run();
    if !whole_host {
        flush_superblock(&rack.host(0));
    }
    let next = rack.host(1);
    let found = number(&next).unwrap();
    assert!(found == 1 || found == 2, "step {step}: {found}");
    replace_profile(&next, Some(profile(3))).unwrap();
    write_back_late(&rack.host(0), LineRange::new(line(0), 3 * PAGE_BYTES / LINE_BYTES).unwrap());
    for host in [rack.host(0), next] {
        assert_eq!(number(&host), Some(3), "step {step}");
    }
    let crashed = report.task("writer").unwrap().crashes > 0;
    assert!(crashed || found == 2);
    crashed
}

#[test]
fn death_at_every_step_leaves_the_old_profile_or_the_new_one() {
    for whole_host in [false, true] {
        let mut steps = 1;
        while dies_at(&SimulatedRack::sticky(2, BYTES), 0, steps, whole_host) {
            steps += 1;
        }
        assert!(steps > 20, "an update has more operations than {steps}");
        for seed in 0..SEEDS {
            for step in (1..steps).step_by(3) {
                let rack = SimulatedRack::adversarial(2, BYTES, seed * 1000 + step);
                dies_at(&rack, seed, step, whole_host);
            }
        }
    }
}
