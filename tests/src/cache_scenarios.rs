//! Prefill and decode on a simulated rack: sessions that look up, fetch, compute and publish.

use std::time::Duration;

use cxl_shm::layout::{Geometry, Layout};
use cxl_shm::units::Extent;
use cxl_shm::verify::SimulatedBackend;
use cxl_shm::verify::simulated::{DmaCache, Faults, Schedule, Settings, SimulatedClock};
use kv_cache::{BlockHash, Cache, CacheGeometry, ChainHasher, Miss, Model};
use rackline::dma::SimulatedDma;
use rackline::session::SessionCore;
use rackline::{NewBlock, SessionOptions};

use crate::rack::{Cluster, Mutant, Processes, failed, lock_protocol, run};

/// A session on a simulated rack.
pub(crate) type RackSession<'a> =
    SessionCore<'a, SimulatedBackend<Processes>, SimulatedDma, SimulatedClock>;

const BLOCK_TOKENS: u32 = 4;
/// Ends inside a line, and takes two pages.
pub(crate) const BLOCK_BYTES: usize = 4200;
const PROMPTS: u32 = 4;
const BLOCKS_A_PROMPT: u32 = 5;

pub(crate) fn cluster(hosts: usize, seed: u64, mutant: Mutant) -> Cluster {
    // Tables of 16, 16 and 32 slots.
    let cache = CacheGeometry::new(64, 16).and_then(|cache| cache.with_share(16));
    let cache = cache.unwrap_or_else(|error| panic!("{error}"));
    let nodes = u16::try_from(hosts.max(4)).unwrap_or(u16::MAX);
    let geometry = Geometry {
        // Half a megabyte a node, most of it chunks.
        region_bytes: u64::from(nodes) << 19,
        nodes,
        locks: 8,
        chunk_bytes: 64 << 10,
        area_lines: cache.area_lines(nodes),
        host_words: 0,
    };
    let layout = Layout::new(geometry).unwrap_or_else(|error| panic!("{error}"));
    let geometry = Geometry { host_words: cache.host_words(&layout) as u64, ..geometry };
    let settings = if seed.is_multiple_of(3) {
        Settings { seed, ..Settings::sticky(hosts, geometry.region_bytes) }
    } else {
        Settings::adversarial(hosts, geometry.region_bytes, seed)
    };
    let settings = Settings { posted_writes: seed.is_multiple_of(2), ..settings };
    Cluster::format(settings, geometry, lock_protocol(seed), cache.encode(), mutant)
        .renumbered(seed)
}

pub(crate) fn options() -> SessionOptions {
    let model = Model {
        name: "tiny",
        revision: "1",
        dtype: "u8",
        layout_version: 1,
        block_tokens: BLOCK_TOKENS,
        tensor_parallel_rank: 0,
        tensor_parallel_size: 1,
        layers: 1,
        kv_heads: 1,
        head_dim: 64,
    };
    SessionOptions::new(model, BLOCK_BYTES as u64).with_chunk_timeout(Duration::from_millis(3000))
}

/// The hashes of a prompt; prompts share their first two blocks.
pub(crate) fn prompt(number: u32) -> Vec<BlockHash> {
    let tokens: Vec<u32> = (0..BLOCKS_A_PROMPT * BLOCK_TOKENS)
        .map(|token| if token < 2 * BLOCK_TOKENS { token } else { 1000 * number + token })
        .collect();
    ChainHasher::new(b"", BLOCK_TOKENS as usize).chain(&tokens)
}

/// What a real engine would compute: follows from the hash alone.
pub(crate) fn payload(hash: &BlockHash) -> Vec<u8> {
    hash.as_bytes()
        .iter()
        .copied()
        .cycle()
        .zip(0u8..=250)
        .cycle()
        .map(|(a, b)| a ^ b)
        .take(BLOCK_BYTES)
        .collect()
}

/// Serves every prompt `rounds` times: what the pool has is fetched and must be right, the rest is
/// computed and published. Returns how many blocks were fetched, and how many were damaged.
pub(crate) fn serve(
    cluster: &Cluster,
    host: usize,
    name: &str,
    rounds: u32,
    dma_cache: DmaCache,
) -> (usize, u64) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    let cache = Cache::attach(&member, &clock).unwrap_or_else(|error| panic!("{name}: {error}"));
    let dma = SimulatedDma::new(member.fabric().clone(), dma_cache);
    let session = SessionCore::new(&cache, &dma, &clock, options());
    let mut fetched = 0;
    for round in 0..rounds {
        for number in 0..PROMPTS {
            // Each host in an order of its own.
            let first = u32::try_from(host).unwrap_or(0) + round;
            let hashes = prompt((first + number) % PROMPTS);
            fetched += fetch_or_compute(&session, &hashes, name);
        }
    }
    (fetched, session.metrics().misses(Miss::Checksum))
}

/// Fetches what the pool has of a prompt, which must be right, and publishes the rest. Returns how
/// many blocks were fetched.
pub(crate) fn fetch_or_compute(
    session: &RackSession<'_>,
    hashes: &[BlockHash],
    name: &str,
) -> usize {
    let found = session.lookup(hashes).unwrap_or_else(|error| failed(name, &error));
    let mut bytes = vec![vec![0; BLOCK_BYTES]; found.blocks().len()];
    let parts = bytes.iter_mut().map(|bytes| vec![bytes.as_mut_slice()]).collect();
    let report = session.fetch(found.blocks(), parts);
    let valid = report.unwrap_or_else(|error| failed(name, &error)).valid_blocks();
    for (hash, bytes) in hashes.iter().zip(&bytes[..valid]) {
        assert!(*bytes == payload(hash), "{name}: wrong bytes were accepted");
    }
    publish_behind(session, hashes, valid, name);
    valid
}

/// Computes and publishes the blocks of a prompt behind its first `valid`. Some may be refused:
/// while there is no chunk, or no lock manager to give one, or all that there is is held.
pub(crate) fn publish_behind(
    session: &RackSession<'_>,
    hashes: &[BlockHash],
    valid: usize,
    name: &str,
) {
    let computed: Vec<_> = hashes[valid..].iter().map(payload).collect();
    let parts = computed.iter().map(|bytes| [bytes.as_slice()]);
    let depth = u32::try_from(valid).unwrap_or(u32::MAX);
    let blocks = NewBlock::chain(depth, hashes[valid..].iter().copied(), parts);
    let _ = session.publish(&blocks).unwrap_or_else(|error| failed(name, &error));
}

pub(crate) fn with_staff(mut schedule: Schedule, cluster: &Cluster, hosts: usize) -> Schedule {
    let manager = cluster.clone();
    schedule = schedule.daemon(0, "manager", move |_| manager.run_manager(0, "manager"));
    for host in 0..hosts {
        let (cluster, name) = (cluster.clone(), format!("agent {host}"));
        schedule = schedule.daemon(host, name.clone(), move |_| cluster.run_agent(host, &name));
    }
    schedule
}

pub(crate) fn dma_cache(seed: u64) -> DmaCache {
    if seed.is_multiple_of(5) { DmaCache::Allocate } else { DmaCache::Bypass }
}

/// Two to four hosts serve the same prompts at once, without faults but the caches' own: in the
/// end every host finds and reads every block of every prompt.
///
/// # Panics
/// When that is not so, or a wrong byte was accepted.
pub fn serve_together(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 2..=4);
    let cluster = cluster(hosts, seed, mutant);
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(5_000_000));
    schedule = with_staff(schedule.faults(Faults::NONE), &cluster, hosts);
    let rounds = u32::try_from(mutant.rounds(2)).unwrap_or(1);
    for host in 0..hosts {
        let (cluster, name) = (cluster.clone(), format!("worker {host}"));
        schedule = schedule.task(host, name.clone(), move || {
            serve(&cluster, host, &name, rounds, dma_cache(seed));
        });
    }
    run(schedule);
    let all = usize::try_from(PROMPTS * BLOCKS_A_PROMPT).unwrap_or(0);
    for host in 0..hosts {
        cluster.processes.end_all();
        assert_eq!(serve(&cluster, host, "auditor", 1, dma_cache(seed)), (all, 0), "host {host}");
    }
    cluster.check_writers();
}

/// As [`serve_together`] while processes and hosts pause and crash at any moment: no wrong byte is
/// ever accepted, and after it the pool works on all hosts.
///
/// # Panics
/// When that is not so.
pub fn serve_through_crashes(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 3..=3);
    let cluster = cluster(hosts, seed, mutant);
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(12_000_000)).spare(0);
    schedule = schedule.faults(Faults {
        host_crash_one_in: 20_000,
        host_crashes_max: 2,
        process_crash_one_in: 6000,
        process_crashes_max: 4,
        pause_one_in: 20_000,
        pause_ms_max: 1000,
        ..Faults::NONE
    });
    schedule = with_staff(schedule, &cluster, hosts);
    let rounds = u32::try_from(mutant.rounds(2)).unwrap_or(1);
    for host in 0..hosts {
        let (cluster, name) = (cluster.clone(), format!("worker {host}"));
        schedule = schedule.restarting(host, name.clone(), move |_| {
            serve(&cluster, host, &name, rounds, dma_cache(seed));
        });
    }
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    cluster.check_writers();
    let all = usize::try_from(PROMPTS * BLOCKS_A_PROMPT).unwrap_or(0);
    for host in 0..hosts {
        cluster.processes.end_all();
        // What a crash cost is computed again by the first pass; it must need no new chunk, since
        // no lock manager serves any more.
        serve(&cluster, host, "repairer", 1, dma_cache(seed));
        cluster.processes.end_all();
        assert_eq!(serve(&cluster, host, "auditor", 1, dma_cache(seed)), (all, 0), "host {host}");
    }
}

/// Bits flip in the payload of published blocks: each is a miss with the reason, none is accepted,
/// and what was damaged is published again.
///
/// # Panics
/// When that is not so.
pub fn flipped_bits_are_misses(mutant: Mutant, seed: u64) {
    let cluster = cluster(2, seed, mutant);
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(5_000_000));
    schedule = with_staff(schedule.faults(Faults::NONE), &cluster, 2);
    let publisher = cluster.clone();
    schedule = schedule.task(0, "publisher", move || {
        serve(&publisher, 0, "publisher", 1, dma_cache(seed));
        // All that it published, found and damaged in the device.
        let (member, clock) = (publisher.join(0, "vandal"), publisher.clock(0));
        let cache = Cache::attach(&member, &clock).unwrap_or_else(|error| panic!("{error}"));
        let segment = cache.segment(member.node()).unwrap_or_else(|| panic!("node 0 is there"));
        let mut payloads: Vec<Extent> = Vec::new();
        segment.scan(member.fabric(), |_, content| {
            if let Ok(kv_cache::SlotContent::Block(block)) = content {
                payloads.push(block.payload);
            }
        });
        assert!(!payloads.is_empty());
        for (number, payload) in payloads.iter().enumerate() {
            let byte = seed.wrapping_mul(7919).wrapping_add(number as u64 * 613) % payload.bytes();
            publisher.rack.flip_bit(payload.offset() + byte, 3);
        }
    });
    run(schedule);
    cluster.processes.end_all();
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(5_000_000));
    schedule = with_staff(schedule.faults(Faults::NONE), &cluster, 2);
    let reader = cluster.clone();
    schedule = schedule.task(1, "reader", move || {
        // The first round finds nothing but damage and repairs it, the second reads what it
        // repaired: a process tries a block that was damaged once only.
        let (fetched, damaged) = serve(&reader, 1, "reader", 2, dma_cache(seed));
        let all = usize::try_from(PROMPTS * BLOCKS_A_PROMPT).unwrap_or(0);
        let shared = usize::try_from(2 * (PROMPTS - 1)).unwrap_or(0);
        assert!((all..=all + shared).contains(&fetched), "{fetched} blocks were fetched");
        assert!(damaged > 0, "damage was not counted");
    });
    run(schedule);
}
