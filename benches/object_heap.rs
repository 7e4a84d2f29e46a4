//! Small objects and named roots on memory of this machine, against what the host tier costs.
//!
//! `cargo bench -p rackline-benches --bench object_heap`. The criterion groups watch each operation
//! over time; the table at the end compares them with their floors within one run.

use cxl_shm_objects::NamedRoots;
use cxl_shm_objects::Objects;
use std::error::Error;
use std::time::Duration;

use criterion::Criterion;
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::{Fabric, HostMemory, MappedFabric, MappedHostMemory, Mapping};
use cxl_shm::host::{HostIdentity, HostTier, ProcLiveness, ProcessIdentity};
use cxl_shm::layout::{Geometry, LockProtocol, Superblock, format_superblock};
use cxl_shm::lifecycle::LocalMember;
use cxl_shm::node::Member;
use cxl_shm::units::{Extent, LineOffset, LineRange};
use cxl_shm_objects::RootKind;
use cxl_shm_objects::SharedOffset;

const TIMEOUT_MS: u64 = 1000;
const SIZES: [u64; 4] = [64, 256, 1024, 4096];
/// Operations of a round of the table: few enough for a round to end before another process gets
/// the core, so that the median over the rounds is of rounds that nobody interrupted.
const BATCH: u32 = 1000;
const ROUNDS: usize = 101;
/// Objects that are allocated before the first of them is freed: they fit the pages that are there.
const OBJECTS: u32 = 100;

/// A region in `/dev/shm` with two nodes, and a process of each: two hosts on one machine.
struct Rack {
    near: LocalMember,
    far: LocalMember,
    floor: MappedHostMemory,
    clock: SystemClock,
}

fn mapping(bytes: u64) -> Result<Mapping, Box<dyn Error>> {
    let file = tempfile::tempfile_in("/dev/shm")?;
    file.set_len(bytes)?;
    let mapping = Mapping::shared(&file, bytes)?;
    mapping.prefault(Extent::new(0, bytes).ok_or("the mapping is too long")?)?;
    Ok(mapping)
}

impl Rack {
    fn new() -> Result<Self, Box<dyn Error>> {
        let geometry = Geometry {
            region_bytes: 64 << 20,
            nodes: 2,
            locks: 8,
            chunk_bytes: 8 << 20,
            area_lines: 1,
            host_words: 0,
        };
        let fabric = MappedFabric::new(mapping(geometry.region_bytes)?)?;
        let superblock = Superblock {
            lock_protocol: LockProtocol::Bakery,
            ..Superblock::new([1, 2], geometry, [0; 6])
        };
        format_superblock(&fabric, &superblock, |_, _| ())?;
        let clock = SystemClock::start();
        let join = |node: u16| -> Result<LocalMember, Box<dyn Error>> {
            let tier = mapping(HostTier::words_of(&geometry) as u64 * 8)?;
            let identity = HostIdentity::simulated(u64::from(node));
            let me = ProcessIdentity::current()?;
            let memory = MappedHostMemory::new(tier);
            let fabric = fabric.clone();
            Ok(Member::join(fabric, memory, node, &identity, me, ProcLiveness, &clock)?)
        };
        let rack = Self {
            near: join(0)?,
            far: join(1)?,
            floor: MappedHostMemory::new(mapping(4096)?),
            clock,
        };
        // Warm: every class has a page, the chunk is built.
        for bytes in SIZES {
            rack.allocate_and_free(bytes);
        }
        let object = rack.near.allocate(&rack.clock, TIMEOUT_MS, 64)?;
        rack.near.put_root(&rack.clock, TIMEOUT_MS, "root", object.offset(), RootKind::Leaf)?;
        Ok(rack)
    }

    /// The least that an operation of a heap shared by processes costs: take and release a lock
    /// in the host's memory, and store a word.
    fn lock_pair(&self) {
        let taken = self.floor.compare_exchange(0, 0, 1);
        self.floor.store(8, 1);
        let released = self.floor.compare_exchange(0, 1, 0);
        assert!(taken.is_ok() && released.is_ok(), "nobody else has this lock");
    }

    /// The least that a look at another host's line costs.
    fn refresh_line(&self) {
        let line = LineOffset::new(4096).map(LineRange::one);
        line.into_iter().for_each(|line| self.near.fabric().refresh(line));
    }

    /// The least that telling another host costs.
    fn publish_line(&self) {
        let line = LineOffset::new(4096).map(LineRange::one);
        line.into_iter().for_each(|line| self.near.fabric().publish(line));
    }

    fn allocate(&self, bytes: u64) -> SharedOffset {
        let object = self.near.allocate(&self.clock, TIMEOUT_MS, bytes);
        object.unwrap_or_else(|error| panic!("{error}")).offset()
    }

    fn allocate_and_free(&self, bytes: u64) {
        let offset = self.allocate(bytes);
        let freed = self.near.free(&self.clock, TIMEOUT_MS, offset);
        freed.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Frees by the other host, as many as a ring holds at once, then what the owner does.
    fn free_from_afar(&self, objects: &[SharedOffset]) {
        for offset in objects {
            let freed = self.far.free(&self.clock, TIMEOUT_MS, *offset);
            freed.unwrap_or_else(|error| panic!("{error}"));
        }
    }

    fn take_frees(&self) {
        let done = self.near.answer_chunk_requests(&self.clock, TIMEOUT_MS);
        done.unwrap_or_else(|error| panic!("{error}"));
    }

    fn find_root(&self) {
        let root = self.far.root("root");
        assert!(matches!(root, Ok(Some(_))), "the root is there: {root:?}");
    }

    /// Nanoseconds of each of `count` calls of `operation`.
    fn time(&self, count: u32, mut operation: impl FnMut()) -> f64 {
        let clock = SystemClock::start();
        for _ in 0..count {
            operation();
        }
        clock.now_us() as f64 * 1000.0 / f64::from(count)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints what an operation costs, and how often its floor that is: both in turn, the median over
/// all rounds.
fn print_ratio(
    rack: &Rack,
    name: &str,
    count: u32,
    mut operation: impl FnMut(),
    floor_name: &str,
    mut floor: impl FnMut(),
) {
    let (mut costs, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let cost = rack.time(count, &mut operation);
        let least = rack.time(BATCH, &mut floor);
        costs.push(cost);
        ratios.push(cost / least);
    }
    let (cost, ratio) = (median(&mut costs), median(&mut ratios));
    println!("{name:>34} {cost:>10.1} ns {ratio:>8.2} x {floor_name}");
}

/// Prints what allocating costs, and what freeing does, each by itself.
fn print_halves(rack: &Rack) {
    for bytes in SIZES {
        let (mut allocate, mut free) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (clock, count) = (SystemClock::start(), OBJECTS);
            let objects: Vec<_> = (0..count).map(|_| rack.allocate(bytes)).collect();
            let allocated_ns = clock.now_ns();
            for offset in objects {
                let freed = rack.near.free(&rack.clock, TIMEOUT_MS, offset);
                freed.unwrap_or_else(|error| panic!("{error}"));
            }
            allocate.push(allocated_ns as f64 / f64::from(count));
            free.push((clock.now_ns() - allocated_ns) as f64 / f64::from(count));
        }
        let (name, allocate, free) =
            (format!("allocate / free {bytes} B"), median(&mut allocate), median(&mut free));
        println!("{name:>34} {allocate:>10.1} ns {free:>8.1} ns  (target of allocate: 100)");
    }
}

fn print_table(rack: &Rack) {
    println!("\nobjects: median of {ROUNDS} rounds");
    for bytes in SIZES {
        let name = format!("allocate and free {bytes} B");
        let operation = || rack.allocate_and_free(bytes);
        let floor = || {
            rack.lock_pair();
            rack.lock_pair();
        };
        print_ratio(rack, &name, BATCH, operation, "two host locks", floor);
    }
    print_halves(rack);
    let objects: Vec<_> = (0..500).map(|_| rack.allocate(64)).collect();
    let mut costs = Vec::new();
    for _ in 0..ROUNDS {
        let clock = SystemClock::start();
        rack.free_from_afar(&objects);
        costs.push(clock.now_us() as f64 * 1000.0 / objects.len() as f64);
        rack.take_frees();
        // The same places are allocated again.
        objects.iter().for_each(|_| {
            rack.allocate(64);
        });
    }
    let mut least: Vec<_> = (0..ROUNDS)
        .map(|_| {
            rack.time(BATCH, || {
                rack.refresh_line();
                rack.publish_line();
            })
        })
        .collect();
    let (cost, least) = (median(&mut costs), median(&mut least));
    let name = "free from another host, 64 B";
    println!("{name:>34} {cost:>10.1} ns {:>8.2} x refresh + publish", cost / least);
    let floor = || rack.refresh_line();
    print_ratio(rack, "root, found by name", 100, || rack.find_root(), "refresh of a line", floor);
}

/// A member of a region of many chunks, of which it has a few.
fn member_of_many() -> Result<LocalMember, Box<dyn Error>> {
    let geometry = Geometry {
        region_bytes: 4 << 30,
        nodes: 2,
        locks: 8,
        chunk_bytes: 64 << 10,
        area_lines: 1,
        host_words: 0,
    };
    // Memory that nobody touches is not there.
    let file = tempfile::tempfile_in("/dev/shm")?;
    file.set_len(geometry.region_bytes)?;
    let fabric = MappedFabric::new(Mapping::shared(&file, geometry.region_bytes)?)?;
    let superblock = Superblock {
        lock_protocol: LockProtocol::Bakery,
        ..Superblock::new([1, 2], geometry, [0; 6])
    };
    format_superblock(&fabric, &superblock, |_, _| ())?;
    let memory = MappedHostMemory::new(mapping(HostTier::words_of(&geometry) as u64 * 8)?);
    let (identity, me) = (HostIdentity::simulated(0), ProcessIdentity::current()?);
    let clock = SystemClock::start();
    Ok(Member::join(fabric, memory, 0, &identity, me, ProcLiveness, &clock)?)
}

/// What a chunk costs, against one look at the whole table: that all hosts waited for once.
fn print_chunks(rack: &Rack) -> Result<(), Box<dyn Error>> {
    let member = member_of_many()?;
    let take = || member.allocate_chunk(&rack.clock, TIMEOUT_MS, 7);
    for _ in 0..100 {
        take()?;
    }
    let chunks = member.layout().chunks();
    let operation = || {
        let chunk = take().unwrap_or_else(|error| panic!("{error}"));
        let freed = member.free_chunk(&rack.clock, TIMEOUT_MS, chunk);
        freed.unwrap_or_else(|error| panic!("{error}"));
    };
    let name = format!("take and give back 1 of {chunks}");
    let look = || assert_eq!(member.owned_chunks().len(), 100);
    print_ratio(rack, &name, 20, operation, "the whole table", look);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let rack = Rack::new()?;
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("objects");
    group.sample_size(20).warm_up_time(Duration::from_millis(50));
    group.measurement_time(Duration::from_millis(300));
    for bytes in SIZES {
        group.bench_function(format!("allocate and free {bytes} B"), |bencher| {
            bencher.iter(|| rack.allocate_and_free(bytes));
        });
    }
    group.bench_function("host lock", |bencher| bencher.iter(|| rack.lock_pair()));
    group.bench_function("root", |bencher| bencher.iter(|| rack.find_root()));
    group.finish();
    criterion.final_summary();
    // Under `cargo test` every operation has now run once, which is all that is wanted.
    if std::env::args().any(|argument| argument == "--bench") {
        print_table(&rack);
        print_chunks(&rack)?;
    }
    Ok(())
}
