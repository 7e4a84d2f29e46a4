//! Lines of the device that go bad under the KV cache, at any moment: they read as garbage and take
//! no writes from then on.

use cxl_shm::layout::Layout;
use cxl_shm::units::{ChunkId, LINE_BYTES, LineOffset};
use cxl_shm::verify::simulated::{Faults, Schedule};

use crate::cache_scenarios::{cluster, dma_cache, serve, with_staff};
use crate::pressure_scenarios;
use crate::rack::{Cluster, Mutant, run, wait_ms};

/// Times at which lines go bad, and how many do each time.
const TIMES: u64 = 20;
const LINES: u64 = 24;
/// From one time to the next.
const GAP_MS: u64 = 10;

/// Lines of the payload of any chunk go bad, one after the other, while processes and hosts serve,
/// pause and crash. No wrong byte is accepted; what cannot be read is a miss, and the rest is served.
///
/// # Panics
/// When that is not so.
pub fn payload_goes_bad(mutant: Mutant, seed: u64) {
    let _ = bad_blocks_after(mutant, seed);
}

/// As [`payload_goes_bad`]. Returns how many blocks hosts found bad after all of it.
///
/// # Panics
/// When that is not so.
pub fn bad_blocks_after(mutant: Mutant, seed: u64) -> u64 {
    let hosts = mutant.hosts(seed, 3..=3);
    let cluster = cluster(hosts, seed, mutant);
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(16_000_000)).spare(0);
    schedule = with_staff(schedule.faults(crashes()), &cluster, hosts);
    schedule = with_bad_lines(schedule, &cluster, seed);
    for host in 0..hosts {
        let (cluster, name) = (cluster.clone(), format!("worker {host}"));
        schedule = schedule.restarting(host, name.clone(), move |_| {
            let _ = serve(&cluster, host, &name, 3, dma_cache(seed));
        });
    }
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    cluster.check_writers();
    // Whatever is bad by now: what is read is right.
    let audit = |host| {
        cluster.processes.end_all();
        serve(&cluster, host, "auditor", 1, dma_cache(seed)).1
    };
    (0..hosts).map(audit).sum()
}

/// The same in a pool that is too small, so that the room of bad lines is used again and again.
///
/// # Panics
/// When that is not so.
pub fn payload_goes_bad_under_pressure(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 2..=3);
    let cluster = pressure_scenarios::cluster(hosts, seed, mutant, None);
    let steps_max = mutant.steps_max(16_000_000);
    let mut schedule = pressure_scenarios::schedule(&cluster, hosts, seed, steps_max).spare(0);
    schedule = with_bad_lines(schedule.faults(crashes()), &cluster, seed);
    for host in 0..hosts {
        let (cluster, name) = (cluster.clone(), format!("worker {host}"));
        schedule = schedule.restarting(host, name.clone(), move |_| {
            pressure_scenarios::serve(&cluster, host, &name, 2, seed, false);
        });
    }
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    cluster.check_writers();
}

fn crashes() -> Faults {
    Faults {
        host_crash_one_in: 40_000,
        host_crashes_max: 1,
        process_crash_one_in: 8000,
        process_crashes_max: 3,
        pause_one_in: 20_000,
        pause_ms_max: 1000,
        ..Faults::NONE
    }
}

/// Host 0, which does not crash, has a task that makes lines bad.
fn with_bad_lines(schedule: Schedule, cluster: &Cluster, seed: u64) -> Schedule {
    let cluster = cluster.clone();
    schedule.daemon(0, "bad lines", move |_| {
        let clock = cluster.clock(0);
        let layout = Layout::new(cluster.geometry()).unwrap_or_else(|error| panic!("{error}"));
        for time in 0..TIMES {
            wait_ms(&clock, GAP_MS);
            for number in time * LINES..(time + 1) * LINES {
                cluster.rack.poison(payload_line(&layout, seed, number));
            }
        }
        loop {
            wait_ms(&clock, 1000);
        }
    })
}

/// A line of some chunk.
fn payload_line(layout: &Layout, seed: u64, number: u64) -> LineOffset {
    let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ number;
    let random = random.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let chunks = u64::from(layout.chunks());
    let chunk = ChunkId(u32::try_from((random >> 8) % chunks).unwrap_or(0));
    let extent = layout.chunk(chunk);
    let line = (random >> 24) % (extent.bytes() / LINE_BYTES);
    let offset = extent.offset() + line * LINE_BYTES;
    LineOffset::new(offset).unwrap_or_else(|| panic!("chunks begin at lines"))
}
