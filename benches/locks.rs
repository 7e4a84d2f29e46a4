//! Locks between hosts: hand-over, uncontended cost, what a lock manager's round costs, and chunk
//! allocation.
//!
//! `cargo bench -p rackline-benches --bench locks`. Hand-overs are in units of the one-way flushed
//! hand-over of one line between the same two processes in the same round; uncontended costs in
//! units of one publish and one refresh of a line. Targets: bakery within 3, arbitrated within 5,
//! a chunk within 20 hand-overs of the lock.
//!
//! Under `arbitrated` a hand-over needs a third party that runs all the time: where there are three
//! cores, a lock manager in a process of its own. On two, the manager is polled by one of the two
//! processes whenever it looks for its lock and when it has released it: that saves the manager's
//! way through the memory half of the time and costs its round, so the figure is no substitute for
//! one of three cores. The table says which it is.

use std::cell::RefCell;
use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode};
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fabric::{Fabric, MappedFabric};
use cxl_shm::layout::LockProtocol;
use cxl_shm::lifecycle::{Attachment, LocalMember};
use cxl_shm::units::{ChunkId, LineOffset, LineRange};
use rackline_benches::{Duel, LockBed, acquire, arbitrate, median, serve};

const OTHER: &str = "--other-process-of-the-duel";
const MANAGER: &str = "--lock-manager-of-the-duel";
const PROTOCOLS: [LockProtocol; 2] = [LockProtocol::Bakery, LockProtocol::Arbitrated];
const ROUNDS: usize = 21;

/// Calls `then` with what this thread has to do while it waits for a lock: under `arbitrated` it is
/// the lock manager itself.
fn with_manager<T>(member: &LocalMember, then: impl FnOnce(&mut dyn FnMut()) -> T) -> T {
    if member.superblock().lock_protocol == LockProtocol::Bakery {
        return then(&mut || ());
    }
    let mut manage = member.manage().expect("no other lock manager runs here");
    manage.claim().expect("a new region has terms");
    // Until the agent has acknowledged the term for this node.
    let clock = SystemClock::start();
    let until_ms = clock.now_ms() + 200;
    while clock.now_ms() < until_ms {
        manage.poll();
        clock.pause(1);
    }
    then(&mut || {
        manage.attend();
    })
}

/// The median time of one of `times` runs of `act`, each timed: when the machine does something
/// else in between, that is one sample of many.
fn median_ns(clock: &SystemClock, times: usize, mut act: impl FnMut()) -> f64 {
    median((0..times).map(|_| {
        let start_ns = clock.now_ns();
        act();
        (clock.now_ns() - start_ns) as f64
    }))
}

/// Nanoseconds to publish and refresh one line.
fn publish_and_refresh_ns(fabric: &MappedFabric, clock: &SystemClock, line: LineOffset) -> f64 {
    let (word, range) = (line.word(0).expect("a line has words"), LineRange::one(line));
    let mut value = fabric.load(word);
    median_ns(clock, 2000, || {
        value += 1;
        fabric.store(word, value);
        fabric.publish(range);
        fabric.refresh(range);
        black_box(fabric.load(word));
    })
}

/// Prints them; nanoseconds of a hand-over under each protocol.
fn print_hand_overs() -> Result<[f64; 2], Box<dyn Error>> {
    let (mut hand_overs, mut own_manager) = ([0.0; 2], false);
    println!("\nlock hand-over between two processes: median of {ROUNDS} rounds");
    println!(
        "{:>12} {:>12} {:>12} {:>8} {:>8}",
        "protocol", "one line ns", "lock ns", "ratio", "target"
    );
    for (protocol, hand_over_ns) in PROTOCOLS.into_iter().zip(&mut hand_overs) {
        let duel = Duel::start(protocol, OTHER, MANAGER)?;
        let (mut floors, mut locks, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let mut measure = |manage: &mut dyn FnMut()| {
            for _ in 0..ROUNDS {
                let floor_ns = duel.line_ns();
                let lock_ns = duel.lock_ns(&mut *manage);
                floors.push(floor_ns);
                locks.push(lock_ns);
                ratios.push(lock_ns / floor_ns);
            }
        };
        own_manager |= duel.has_manager();
        match duel.has_manager() {
            true => measure(&mut || ()),
            false => with_manager(duel.member(), measure),
        }
        let target = if protocol == LockProtocol::Bakery { 3.0 } else { 5.0 };
        let (floor, lock, ratio) = (median(floors), median(locks), median(ratios));
        // Not the median of the hand-overs: on a busy machine the other process did not run in some
        // rounds, for which floor and hand-over pay alike.
        *hand_over_ns = ratio * floor;
        let verdict = if ratio <= target { "" } else { "  MISSED" };
        println!(
            "{:>12} {floor:>12.0} {lock:>12.0} {ratio:>8.2} {target:>8.1}{verdict}",
            protocol.to_string()
        );
    }
    println!(
        "(arbitrated: the manager is {})",
        match own_manager {
            true => "a process of its own",
            false => "polled by one of the two processes, not by a third",
        }
    );
    Ok(hand_overs)
}

fn print_uncontended(hand_overs: [f64; 2]) -> Result<(), Box<dyn Error>> {
    println!("\nuncontended, two nodes: median of {ROUNDS} rounds, in publish + refresh of a line");
    println!(
        "{:>12} {:>12} {:>18} {:>18}",
        "protocol", "unit ns", "acquire+release", "chunk/hand-over"
    );
    for (protocol, hand_over_ns) in PROTOCOLS.into_iter().zip(hand_overs) {
        let bed = LockBed::new(protocol, 2, 64)?;
        let attachment = Attachment::attach(&bed.path(), 0)?;
        let (member, clock) = (attachment.member(), SystemClock::start());
        let chunk = member.layout().chunk(ChunkId(member.layout().chunks() - 1));
        let line = LineOffset::new(chunk.offset()).ok_or("chunks are aligned")?;
        let (mut units, mut ratios, mut chunks) = (Vec::new(), Vec::new(), Vec::new());
        let mut taken = Vec::new();
        with_manager(member, |manage| {
            for _ in 0..ROUNDS {
                let unit_ns = publish_and_refresh_ns(member.fabric(), &clock, line);
                let lock_ns = median_ns(&clock, 1000, || {
                    acquire(member, &clock, &mut || manage(), |_| ());
                });
                units.push(unit_ns);
                ratios.push(lock_ns / unit_ns);
                let managed = Managed { clock: &clock, manage: RefCell::new(&mut *manage) };
                let chunk_ns = median_ns(&clock, 50, || {
                    taken.push(member.allocate_chunk(&managed, 10_000, 1).expect("one is free"));
                });
                for chunk in taken.drain(..) {
                    member.free_chunk(&managed, 10_000, chunk).expect("it is ours");
                }
                chunks.push(chunk_ns / hand_over_ns);
            }
        });
        let (unit, ratio, chunk) = (median(units), median(ratios), median(chunks));
        println!("{:>12} {unit:>12.0} {ratio:>18.2} {chunk:>18.2}", protocol.to_string());
    }
    Ok(())
}

/// A clock on which the lock manager continues while a thread waits.
struct Managed<'m> {
    clock: &'m SystemClock,
    manage: RefCell<&'m mut dyn FnMut()>,
}

impl Clock for Managed<'_> {
    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    fn pause(&self, _: u32) {
        (self.manage.borrow_mut())();
    }
}

fn measure(criterion: &mut Criterion) -> Result<(), Box<dyn Error>> {
    let mut group = criterion.benchmark_group("uncontended");
    for protocol in PROTOCOLS {
        let bed = LockBed::new(protocol, 2, 64)?;
        let attachment = Attachment::attach(&bed.path(), 0)?;
        let clock = SystemClock::start();
        with_manager(attachment.member(), |manage| {
            group.bench_function(protocol.to_string(), |bencher| {
                bencher.iter(|| acquire(attachment.member(), &clock, &mut || manage(), |_| ()));
            });
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("manager round");
    group.sample_size(20).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(50)).measurement_time(Duration::from_millis(300));
    let locks = [16, 256, 4096].map(|locks| (8, locks));
    let nodes = [2, 4, 8, 16, 32].map(|nodes| (nodes, 64));
    for (nodes, locks) in locks.into_iter().chain(nodes) {
        let bed = LockBed::new(LockProtocol::Arbitrated, nodes, locks)?;
        let attachment = Attachment::attach(&bed.path(), 0)?;
        with_manager(attachment.member(), |manage| {
            let id = BenchmarkId::new(format!("{nodes} nodes"), format!("{locks} locks"));
            group.bench_function(id, |bencher| bencher.iter(&mut *manage));
        });
    }
    group.finish();
    Ok(())
}

fn print_manager_rounds() -> Result<(), Box<dyn Error>> {
    println!("\nidle round of the lock manager: flat in the locks, linear in the nodes");
    let locks = [16, 256, 4096].map(|locks| (8, locks));
    let nodes = [2, 4, 8, 16, 32].map(|nodes| (nodes, 64));
    for (nodes, locks) in locks.into_iter().chain(nodes) {
        let bed = LockBed::new(LockProtocol::Arbitrated, nodes, locks)?;
        let attachment = Attachment::attach(&bed.path(), 0)?;
        let round_ns = with_manager(attachment.member(), |manage| {
            median_ns(&SystemClock::start(), 20_000, &mut *manage)
        });
        println!(
            "{nodes:>4} nodes {locks:>6} locks {round_ns:>8.0} ns {:>6.0} ns a node",
            round_ns / f64::from(nodes)
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [OTHER, region] => return serve(Path::new(region)),
        [MANAGER, region] => return arbitrate(Path::new(region)),
        _ => {}
    }
    let mut criterion = Criterion::default().configure_from_args();
    measure(&mut criterion)?;
    criterion.final_summary();
    // Under `cargo test` everything has now run once, which is all that is wanted.
    if arguments.iter().any(|argument| argument == "--bench") {
        print_uncontended(print_hand_overs()?)?;
        print_manager_rounds()?;
    }
    Ok(())
}
