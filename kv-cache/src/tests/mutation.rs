//! Every flush and fence of this crate is needed: with any one of them removed something goes
//! wrong on caches that do nothing by themselves.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use cxl_shm::verify::simulated::Site;

use super::audit::audited_and_repaired;
use super::clear::{cleared_by_their_owner, cleared_while_a_node_leaves};
use super::directives::{damaged_while_somebody_waits, refusals_seen_at_once};
use super::drives::{
    agents_seen_by_tools, announced_and_found, asked_and_answered, cleared_on_drives,
    left_by_the_dead,
};
use super::figures::summaries_seen_by_tools;
use super::orphan::reclaimers_and_rejoins;
use super::pin::pins_seen_by_tools;
use super::pressure::{held_and_evicted, nobody_looks_at_what_was};
use super::reader::read_by_a_tool;
use super::recovery::death_under_the_lock;
use super::shares::shares_as_nodes_come_and_go;
use super::tables::tables_seen_by_others;
use super::torn::{fetched_while_it_is_written, scanned_while_it_is_written};
use super::unpublished::freed_by_the_dead;
use super::uses::uses_seen_by_tools;
use super::*;
use crate::BlockKey;
use crate::identity::IndexKey;

/// Runs on busy caches.
const SEEDS: u64 = 100;
const HOSTS: usize = 3;
const SCENARIOS: [fn(SimulatedRack); 27] = [
    exchange_and_lag,
    cleared_by_their_owner,
    cleared_while_a_node_leaves,
    damaged_while_somebody_waits,
    refusals_seen_at_once,
    death_under_the_lock,
    nobody_looks_at_what_was,
    held_and_evicted,
    reclaimers_and_rejoins,
    scanned_while_it_is_written,
    fetched_while_it_is_written,
    shares_as_nodes_come_and_go,
    tombstones_seen_by_others,
    evicted_in_front_of_others,
    freed_by_the_dead,
    holds_seen_by_tools,
    pins_seen_by_tools,
    tables_seen_by_others,
    read_by_a_tool,
    announced_and_found,
    asked_and_answered,
    agents_seen_by_tools,
    left_by_the_dead,
    cleared_on_drives,
    summaries_seen_by_tools,
    uses_seen_by_tools,
    audited_and_repaired,
];

/// Calls that flush or fence, by the file below `src` and the text of their line, which no scenario
/// reaches; each with the reason.
const UNREACHED: [(&str, &str, &str); 4] = [
    (
        "format/segment.rs",
        "batch.publish();",
        "`publish_as` passes on who calls it: those are the places",
    ),
    ("upkeep/failed.rs", "let entry = layout.chunk_entry(chunk).fresh(fabric);", REAL_MEMORY),
    ("upkeep/failed.rs", "fabric.refresh(layout.chunk_entry(chunk).range());", REAL_MEMORY),
    ("upkeep/failed.rs", "fabric.refresh(layout.chunk_table());", REAL_MEMORY),
];
const REAL_MEMORY: &str = "no host of a simulated rack loses payload: \
     `connector/tests/memory_faults.rs` runs it on real memory";

/// Everything a cache does while nobody dies, checked with what a reader can see.
fn exchange_and_lag(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 32, 8);
    on_two_hosts(&rig, |a, b, clock| {
        let segment = b.segment(a.member().node()).unwrap();
        let probe = |number| segment.probe(b.member().fabric(), key(number));
        for round in 0..2 {
            let first = 20 * round;
            let writing = reserve(a, clock, first);
            // EVICT-H2: seen as being written by everybody before a byte of its payload changes.
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
            assert_eq!(
                b.process_state().metrics().rescans,
                u64::from(round),
                "the log says it all"
            );

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
            assert_eq!(b.process_state().metrics().rescans, u64::from(round) + 1);
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

/// The lines of this crate's source that flush or fence: file, number from 1, and text.
fn flushing_lines() -> Vec<(String, u32, String)> {
    const CALLS: [&str; 10] = [
        "refresh(",
        "refresh_all(",
        "publish(",
        "publish_as(",
        "publish_all(",
        "fresh(",
        "write_back(",
        "invalidate(",
        "fence(",
        "read_back(",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut lines = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                if !["tests", "verify"].contains(&name.as_str()) {
                    folders.push(path);
                }
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            // Unit tests come last in a file.
            let code = text.lines().take_while(|line| *line != "#[cfg(test)]" || name == "lib.rs");
            for (line, number) in code.zip(1..) {
                let calls = |call: &str| {
                    let mut found = line.match_indices(call);
                    found.any(|(at, _)| {
                        let before = line[..at].chars().next_back();
                        !before.is_some_and(|it| it.is_alphanumeric() || it == '_')
                            && !line[..at].ends_with("fn ")
                    })
                };
                if !line.trim_start().starts_with("//") && CALLS.iter().any(|call| calls(call)) {
                    lines.push((name.clone(), number, line.trim().to_owned()));
                }
            }
        }
    }
    lines
}

#[test]
fn every_line_that_flushes_is_reached() {
    let mut reached = BTreeSet::new();
    for scenario in SCENARIOS {
        let rack = SimulatedRack::sticky(HOSTS, REGION_BYTES);
        scenario(rack.clone());
        reached.extend(rack.sites().into_iter().map(|site| (site.file, site.line)));
    }
    let is_reached = |file: &str, number: u32| {
        reached.iter().any(|(reached, line)| {
            *line == number && reached.ends_with(&format!("kv-cache/src/{file}"))
        })
    };
    let lines = flushing_lines();
    let (seen, unseen): (Vec<_>, Vec<_>) =
        lines.iter().partition(|(file, number, _)| is_reached(file, *number));
    println!("{} lines flush or fence, {} are reached", lines.len(), seen.len());
    let unlisted: Vec<_> = unseen
        .iter()
        .filter(|(file, _, text)| !UNREACHED.iter().any(|it| (it.0, it.1) == (file, text)))
        .collect();
    assert!(unlisted.is_empty(), "reached by no scenario, and not listed: {unlisted:#?}");
    let is_unseen = |(file, text, _): &&(&str, &str, &str)| {
        unseen.iter().any(|it| (it.0.as_str(), it.2.as_str()) == (*file, *text))
    };
    let outdated: Vec<_> = UNREACHED.iter().filter(|it| !is_unseen(it)).collect();
    assert!(outdated.is_empty(), "listed, and reached or gone: {outdated:#?}");
}

/// Holds as a tool on another host sees them, which is no member.
fn holds_seen_by_tools(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        let member = b.member();
        let seen = || {
            let superblock = member.superblock();
            crate::held_by(&rig.rack.host(2), superblock, member.layout(), member.node()).unwrap()
        };
        let holders = || {
            let (superblock, layout) = (member.superblock(), member.layout());
            let (host, owner) = (rig.rack.host(2), handle.owner());
            crate::holders_of(&host, superblock, layout, owner, handle.slot()).unwrap()
        };
        // The first that looks after a change refreshes the word: each is the first once.
        for is_seen_first in [false, true] {
            let check = |nodes: &[_], blocks: &[_]| {
                let before = is_seen_first.then(seen);
                assert_eq!(holders(), nodes);
                assert_eq!(before.unwrap_or_else(seen), blocks);
            };
            check(&[], &[]);
            let held = hold(b, clock, 1).unwrap();
            check(&[member.node()], &[(handle.owner(), handle.slot())]);
            b.release(clock, vec![held]);
        }
    });
}

/// Evicted blocks whose tombstones end no search, because others come after them: a host that knows
/// them as they were finds that they are gone, and that their places are another's.
fn evicted_in_front_of_others(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        let spec = |number: u8| {
            let key = BlockKey::new(IndexKey::from_words([5, u64::from(number)]), 0);
            BlockSpec { key, ..spec(number) }
        };
        let put = |number| {
            let reserved = a.reserve(clock, &[spec(number)], CHUNK_TIMEOUT_MS).remove(0);
            let Reservation::Writing(block) = reserved else { panic!("{reserved:?}") };
            a.commit(clock, vec![(block, 0)]).remove(0).unwrap().handle
        };
        let handles: Vec<_> = (1..=4).map(put).collect();
        let open = |number: u8| {
            let handle = handles[usize::from(number) - 1];
            let wanted = Wanted { key: spec(number).key, ..wanted(number, handle) };
            b.open(&[wanted]).remove(0).map(|_| ())
        };
        let evict = |number: u8| {
            let (slot, now_ms) = (handles[usize::from(number) - 1].slot(), clock.now_ms());
            a.locked(clock, |heap| heap.evict_all(&mut a.process_state().order(), now_ms, &[slot]))
        };
        for number in 1..=4 {
            assert_eq!(open(number), Ok(()));
        }
        for number in 1..=3 {
            assert_eq!(evict(number), 1);
            assert_eq!(open(number), Err(Miss::Evicted), "block {number}");
            assert_eq!(open(4), Ok(()));
        }
    });
}

/// Tombstones that upkeep lets searches end at, as another host's searches see them.
fn tombstones_seen_by_others(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 32, 64);
    on_two_hosts(&rig, |a, b, clock| {
        // A chain of blocks with one home, and one that is not at home behind it.
        let spec = |number: u8, home: u64| {
            let key = BlockKey::new(IndexKey::from_words([home, u64::from(number)]), 0);
            BlockSpec { key, ..spec(number) }
        };
        let put = |number, home| {
            let reserved = a.reserve(clock, &[spec(number, home)], CHUNK_TIMEOUT_MS).remove(0);
            let Reservation::Writing(block) = reserved else { panic!("{reserved:?}") };
            a.commit(clock, vec![(block, 0)]).remove(0).unwrap().handle
        };
        let handles: Vec<_> = (1..=4).map(|number| put(number, 5)).collect();
        put(5, 9);
        let segment = b.segment(a.member().node()).unwrap();
        let content = |slot: u32| {
            b.member().fabric().refresh(segment.range(slot));
            segment.cached(b.member().fabric(), slot)
        };
        let ends = |slot| matches!(content(slot), Ok(SlotContent::Free { ends_search: true, .. }));
        assert_eq!(handles[3].slot(), 8);
        a.retire(clock, &handles[1..2]);
        a.locked(clock, |heap| heap.end_searches());
        assert!(!ends(6), "blocks of home 5 come after it");
        a.retire(clock, &handles[2..]);
        assert!(!ends(8), "not known at once: a block comes next");
        a.locked(clock, |heap| heap.end_searches());
        assert!(ends(6) && ends(7) && ends(8));
        let probe = |number, home| segment.probe(b.member().fabric(), spec(number, home).key);
        assert!(probe(1, 5).is_some() && probe(5, 9).is_some() && probe(4, 5).is_none());
    });
}
