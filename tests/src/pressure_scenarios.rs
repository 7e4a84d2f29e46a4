//! A pool that is smaller than what is served from it: eviction, holds and chunks that change
//! hands, on simulated racks.

use std::time::Duration;

use cxl_shm::layout::{Geometry, Layout};
use cxl_shm::verify::simulated::{Faults, Schedule, Settings};
use kv_cache::Watermarks;
use kv_cache::{
    BlockState, Cache, CacheGeometry, DriveGeometry, HOLD_MS_MAX, SlotContent,
    reclaim_dead_processes,
};
use rackline::NewBlock;
use rackline::dma::SimulatedDma;
use rackline::session::SessionCore;

use crate::cache_scenarios::{
    BLOCK_BYTES, dma_cache, options, payload, prompt, publish_behind, with_staff,
};
use crate::failing_lines::{LIVES, with_failing_lines};
use crate::rack::{Cluster, Mutant, end_if_cut_off, failed, lock_protocol, run, wait_ms};

/// Prompts of five blocks, which share their first two: twice as many as there is room for.
const PROMPTS: u32 = 8;
const SHARED: usize = 2;
const CHUNK_BYTES: u64 = 64 << 10;
/// Bytes of a payload slot: a block takes two pages.
const SLOT_BYTES: u64 = 8192;
/// How often a host looks after its part of the pool.
const UPKEEP_MS: u64 = 20;
const CHUNK_TIMEOUT_MS: u64 = 50;

/// A rack whose region has a chunk of eight blocks for each host, and one more, and room for drives as
/// `drives` says.
pub(crate) fn cluster(
    hosts: usize,
    seed: u64,
    mutant: Mutant,
    drives: Option<DriveGeometry>,
) -> Cluster {
    // Tables of 8, 8 and 16 slots.
    let cache = CacheGeometry::new(32, 16).and_then(|cache| cache.with_share(8));
    let cache = cache.unwrap_or_else(|error| panic!("{error}")).with_drives(drives);
    let nodes = u16::try_from(hosts).unwrap_or(u16::MAX);
    let sized = |region_bytes| Geometry {
        region_bytes,
        nodes,
        locks: 8,
        chunk_bytes: CHUNK_BYTES,
        area_lines: cache.area_lines(nodes),
        host_words: 0,
    };
    let chunks = u32::from(nodes) + 1;
    let layouts = (1..).map(|size| Layout::new(sized(size * CHUNK_BYTES)));
    let layout = layouts.flatten().find(|layout| layout.chunks() >= chunks);
    let layout = layout.unwrap_or_else(|| panic!("some size has {chunks} chunks"));
    let geometry = Geometry { host_words: cache.host_words(&layout) as u64, ..layout.geometry() };
    let settings = if seed.is_multiple_of(3) {
        Settings { seed, ..Settings::sticky(hosts, geometry.region_bytes) }
    } else {
        Settings::adversarial(hosts, geometry.region_bytes, seed)
    };
    let settings = Settings { posted_writes: seed.is_multiple_of(2), ..settings };
    Cluster::format(settings, geometry, lock_protocol(seed), cache.encode(), mutant)
        .renumbered(seed)
}

/// Serves every prompt `rounds` times: what the pool has is held, fetched and must be right; the
/// rest is computed and published. Held blocks are there, unless hosts and processes die, which may
/// leave a descriptor half written.
pub(crate) fn serve(
    cluster: &Cluster,
    host: usize,
    name: &str,
    rounds: u32,
    seed: u64,
    nobody_dies: bool,
) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    let cache = Cache::attach(&member, &clock).unwrap_or_else(|error| failed(name, &error));
    let dma = SimulatedDma::new(member.fabric().clone(), dma_cache(seed));
    let options = options().with_hold(Duration::from_millis(HOLD_MS_MAX));
    let session = SessionCore::new(&cache, &dma, &clock, options);
    for round in 0..rounds {
        for number in 0..PROMPTS {
            // Each host in an order of its own.
            let first = u32::try_from(host).unwrap_or(0) * 3 + round;
            let hashes = prompt((first + number) % PROMPTS);
            let held = session.lookup_and_hold(&hashes);
            let held = held.unwrap_or_else(|error| failed(name, &error));
            let blocks = held.blocks();
            let mut bytes = vec![vec![0; BLOCK_BYTES]; blocks.len()];
            let parts = bytes.iter_mut().map(|bytes| vec![bytes.as_mut_slice()]).collect();
            let report = session.fetch(&blocks, parts).unwrap_or_else(|error| failed(name, &error));
            let valid = report.valid_blocks();
            for (hash, bytes) in hashes.iter().zip(&bytes[..valid]) {
                assert!(*bytes == payload(hash), "{name}: wrong bytes were accepted");
            }
            if nobody_dies {
                assert_eq!((valid, report.stop()), (blocks.len(), None), "{name}: all was held");
            }
            if number % 2 == 0 {
                session.release(held);
            }
            publish_behind(&session, &hashes, valid, name);
        }
    }
}

/// The body of the process of a host that looks after its part of the pool: never returns.
fn keep_up(cluster: &Cluster, host: usize, name: &str) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    let cache = Cache::attach(&member, &clock).unwrap_or_else(|error| failed(name, &error));
    loop {
        cache.upkeep(&clock, Watermarks::default(), CHUNK_TIMEOUT_MS);
        reclaim_dead_processes(&member, &clock);
        end_if_cut_off();
        wait_ms(&clock, UPKEEP_MS);
    }
}

pub(crate) fn schedule(cluster: &Cluster, hosts: usize, seed: u64, steps_max: u64) -> Schedule {
    let mut schedule = Schedule::builder(&cluster.rack, seed).steps_max(steps_max);
    schedule = with_staff(schedule, cluster, hosts);
    for host in 0..hosts {
        let (cluster, name) = (cluster.clone(), format!("keeper {host}"));
        schedule = schedule.daemon(host, name.clone(), move |_| keep_up(&cluster, host, &name));
    }
    schedule
}

/// Once nobody lives any more: nothing is lost. Every slot, every chunk and every hold is accounted
/// for, what is there is right, and what a host has it can use again, all of it. A host may need a
/// further chunk for that, so each is looked at in a schedule of its own, with a lock manager.
pub(crate) fn audit(cluster: &Cluster, hosts: usize, mutant: Mutant, seed: u64) {
    cluster.processes.end_all();
    for host in 0..hosts {
        let member = cluster.join(host, "undertaker");
        let clock = cluster.clock(host);
        Cache::attach(&member, &clock).unwrap_or_else(|error| panic!("{error}"));
        reclaim_dead_processes(&member, &clock);
    }
    for host in 0..hosts {
        cluster.processes.end_all();
        let mut schedule =
            Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(5_000_000));
        schedule = with_staff(schedule.faults(Faults::NONE), cluster, hosts);
        let auditor = cluster.clone();
        run(schedule.task(host, "auditor", move || audit_host(&auditor, host)));
    }
    cluster.check_writers();
}

fn audit_host(cluster: &Cluster, host: usize) {
    let member = cluster.join(host, "auditor");
    let clock = cluster.clock(host);
    let cache = Cache::attach(&member, &clock).unwrap_or_else(|error| panic!("{error}"));
    cache.reap(&clock);
    let chunks = member.owned_chunks().len() as u64;
    let mut blocks = 0;
    let segment = cache.segment(member.node()).unwrap_or_else(|| panic!("a node has one"));
    segment.scan(member.fabric(), |slot, content| match content {
        Ok(SlotContent::Block(block)) => {
            assert_eq!(block.state, BlockState::Ready, "slot {slot} of host {host}");
            blocks += 1;
        }
        Ok(SlotContent::Blank | SlotContent::Free { .. }) => {}
        Err(error) => panic!("slot {slot} of host {host}: {error}"),
    });
    let heap = cache.heap_use(&clock);
    assert_eq!(heap.blocks, blocks, "host {host}");
    let slots_bytes = heap.blocks * SLOT_BYTES + heap.free_bytes;
    assert_eq!(slots_bytes, chunks * CHUNK_BYTES, "host {host}");
    if chunks == 0 {
        return;
    }
    let dma = SimulatedDma::new(member.fabric().clone(), dma_cache(0));
    let session = SessionCore::new(&cache, &dma, &clock, options());
    // Blocks that nobody had: they take every place that there is, so nothing is held.
    for number in 0..4 {
        let hashes = &prompt(1000 + number)[SHARED..];
        let bytes: Vec<_> = hashes.iter().map(payload).collect();
        let parts = bytes.iter().map(|bytes| [bytes.as_slice()]);
        let blocks = NewBlock::chain(0, hashes.iter().copied(), parts);
        let report = session.publish(&blocks).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(report.published(), blocks.len(), "host {host}: {report:?}");
        let found = session.lookup(hashes).unwrap_or_else(|error| panic!("{error}"));
        let mut bytes = vec![vec![0; BLOCK_BYTES]; found.blocks().len()];
        let parts = bytes.iter_mut().map(|bytes| vec![bytes.as_mut_slice()]).collect();
        let report = session.fetch(found.blocks(), parts).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(report.valid_blocks(), hashes.len(), "host {host}: {report:?}");
    }
    // The next host finds nothing of it.
    let mut handles = Vec::new();
    segment.scan(member.fabric(), |_, content| {
        if let Ok(SlotContent::Block(block)) = content {
            handles.push(block.handle);
        }
    });
    cache.retire(&clock, &handles);
}

/// Two to four hosts serve twice as many prompts as there is room for, at once, without faults but
/// the caches' own: what is held is there and right, and in the end nothing is lost.
///
/// # Panics
/// When that is not so.
pub fn serve_from_too_small_a_pool(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 2..=4);
    let cluster = cluster(hosts, seed, mutant, None);
    let mut schedule = schedule(&cluster, hosts, seed, mutant.steps_max(12_000_000));
    schedule = schedule.faults(Faults::NONE);
    let rounds = u32::try_from(mutant.rounds(2)).unwrap_or(1);
    for host in 0..hosts {
        let (cluster, name) = (cluster.clone(), format!("worker {host}"));
        schedule = schedule.task(host, name.clone(), move || {
            serve(&cluster, host, &name, rounds, seed, true);
        });
    }
    run(schedule);
    audit(&cluster, hosts, mutant, seed);
}

/// As [`serve_from_too_small_a_pool`] while processes and hosts pause and crash at any moment: no
/// wrong byte is accepted, and in the end nothing is lost.
///
/// # Panics
/// When that is not so.
pub fn share_chunks_through_crashes(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 3..=3);
    let cluster = cluster(hosts, seed, mutant, None);
    let mut schedule = schedule(&cluster, hosts, seed, mutant.steps_max(20_000_000)).spare(0);
    schedule = schedule.faults(Faults {
        host_crash_one_in: 20_000,
        host_crashes_max: 2,
        process_crash_one_in: 5000,
        process_crashes_max: 6,
        pause_one_in: 20_000,
        pause_ms_max: 1000,
        ..Faults::NONE
    });
    let rounds = u32::try_from(mutant.rounds(2)).unwrap_or(1);
    for host in 0..hosts {
        let (cluster, name) = (cluster.clone(), format!("worker {host}"));
        schedule = schedule.restarting(host, name.clone(), move |_| {
            serve(&cluster, host, &name, rounds, seed, false);
        });
    }
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    audit(&cluster, hosts, mutant, seed);
}

/// As [`serve_from_too_small_a_pool`] while lines of the metadata fail (FAULT-F4): no wrong byte is
/// accepted, every process does its work or is left without the pool, and on a device that fails
/// nowhere nothing is lost of what the others have.
///
/// # Panics
/// When that is not so.
pub fn share_chunks_beside_bad_metadata(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 2..=3);
    let cluster = cluster(hosts, seed, mutant, None);
    let mut schedule = schedule(&cluster, hosts, seed, mutant.steps_max(20_000_000)).spare(0);
    schedule = with_failing_lines(schedule.faults(Faults::NONE), &cluster, seed);
    for (host, number) in (0..hosts).flat_map(|host| [(host, 0), (host, 1)]) {
        let (cluster, name) = (cluster.clone(), format!("worker {number} of {host}"));
        schedule = schedule.restarting(host, name.clone(), move |life| {
            if life < LIVES {
                serve(&cluster, host, &name, 2, seed, false);
            }
        });
    }
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    cluster.check_writers();
    audit(&cluster.on_a_whole_device(), hosts, mutant, seed);
}
