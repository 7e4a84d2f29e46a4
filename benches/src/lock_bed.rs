//! A region in `/dev/shm` for the benchmarks of locks, and the process at its other end.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fabric::{Fabric, MappedFabric};
use cxl_shm::layout::{Geometry, LockProtocol, Superblock, format_superblock};
use cxl_shm::lifecycle::{Attachment, LocalMember};
use cxl_shm::region::Region;
use cxl_shm::units::{ChunkId, LineRange, LockId, WordOffset};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::median;

/// The lock that is measured: none of the region's own, which have intents.
pub const LOCK: LockId = LockId(9);
/// Longer than any measurement.
const TIMEOUT_MS: u64 = 60_000;
const CHUNK_BYTES: u64 = 1 << 20;
/// How long one figure is measured. It is a median of single hand-overs: those during which one of
/// the two processes did not run, on a machine that does other things too, do not count.
const SAMPLE_MS: u64 = 50;
/// How long each process holds the lock: longer than the other takes to stand in line again, so
/// that what is measured is the hand-over to a waiting thread.
const HOLD_NS: u64 = 5_000;

/// A region that goes when this is dropped.
#[derive(Debug)]
pub struct LockBed {
    folder: tempfile::TempDir,
}

impl LockBed {
    /// Formats a region.
    ///
    /// # Errors
    /// When there is no room in `/dev/shm`.
    pub fn new(protocol: LockProtocol, nodes: u16, locks: u32) -> Result<Self, Box<dyn Error>> {
        let folder = tempfile::tempdir_in("/dev/shm")?;
        let bytes = CHUNK_BYTES * (64 + u64::from(nodes) * u64::from(nodes)) + (256 << 20);
        let region = Region::create_file(&folder.path().join("region"), bytes)?;
        let geometry = Geometry {
            region_bytes: bytes,
            nodes,
            locks,
            chunk_bytes: CHUNK_BYTES,
            area_lines: 1,
            host_words: 0,
        };
        let uuid = [u64::from(std::process::id()), SystemClock::start().now_us()];
        let superblock =
            Superblock { lock_protocol: protocol, ..Superblock::new(uuid, geometry, [0; 6]) };
        format_superblock(region.fabric(), &superblock, |_, _| ())?;
        Ok(Self { folder })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("region")
    }
}

/// Two lines that two processes write in turn, one each, and a word that both may write, since they
/// run on one machine.
#[derive(Clone, Copy, Debug)]
struct Wires {
    lines: [WordOffset; 2],
    command: WordOffset,
    last: WordOffset,
}

/// What the other process is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Wait,
    Echo,
    Lock,
    End,
}

impl Order {
    fn of(word: u64) -> Self {
        match word {
            1 => Self::Echo,
            2 => Self::Lock,
            3 => Self::End,
            _ => Self::Wait,
        }
    }
}

impl Wires {
    fn of(member: &LocalMember) -> Self {
        // The last chunk: the table hands out the others first.
        let chunk = member.layout().chunk(ChunkId(member.layout().chunks() - 1)).offset();
        let word = |line: u64| WordOffset::new(chunk + line * 128).expect("chunks are aligned");
        Self { lines: [word(0), word(1)], command: word(2), last: word(3) }
    }
}

/// Two processes on two nodes of one region, on cores of their own where there are two. Under
/// `arbitrated`, and where there are three, a third one is the lock manager.
#[derive(Debug)]
pub struct Duel {
    // Dropped first: the other processes end before the region goes.
    others: Vec<Child>,
    attachment: Attachment,
    _bed: LockBed,
}

/// The cores that the processes of a [`Duel`] with a lock manager of its own need.
const CORES_OF_THREE: usize = 3;

impl Duel {
    /// Starts the other processes: this program again, with the region's path as its only argument
    /// after `role`, which is to call [`serve`], or after `manager_role`, which is to call
    /// [`arbitrate`].
    ///
    /// # Errors
    /// When they cannot be started.
    pub fn start(
        protocol: LockProtocol,
        role: &str,
        manager_role: &str,
    ) -> Result<Self, Box<dyn Error>> {
        let bed = LockBed::new(protocol, 2, 64)?;
        let cores = std::thread::available_parallelism()?.get();
        let attachment = Attachment::attach(&bed.path(), 0)?;
        pin(0);
        let start =
            |role: &str| Command::new(std::env::current_exe()?).arg(role).arg(bed.path()).spawn();
        let mut others = vec![start(role)?];
        if protocol == LockProtocol::Arbitrated && cores >= CORES_OF_THREE {
            others.push(start(manager_role)?);
            let clock = SystemClock::start();
            while attachment.member().lock_shared(LOCK, &clock, TIMEOUT_MS).is_err() {
                clock.sleep_ms(1);
            }
        }
        Ok(Self { others, attachment, _bed: bed })
    }

    /// Whether the lock manager is a process of its own, on a core of its own.
    #[must_use]
    pub fn has_manager(&self) -> bool {
        self.others.len() > 1
    }

    /// This process' member, on node 0.
    #[must_use]
    pub fn member(&self) -> &LocalMember {
        self.attachment.member()
    }

    /// Nanoseconds for the one-way hand-over of one flushed line: half of the median way there and
    /// back, over [`SAMPLE_MS`].
    #[must_use]
    pub fn line_ns(&self) -> f64 {
        let (fabric, wires) = (self.member().fabric(), Wires::of(self.member()));
        let mut value = fabric.load(wires.lines[0]) + 1;
        fabric.store(wires.command, 1);
        // Until the other answers the first it may still be waking up.
        exchange(fabric, wires, value);
        let (clock, mut samples) = (SystemClock::start(), Vec::new());
        let mut before_ns = clock.now_ns();
        while clock.now_ms() < SAMPLE_MS {
            value += 1;
            exchange(fabric, wires, value);
            let now_ns = clock.now_ns();
            samples.push((now_ns - before_ns) as f64 / 2.0);
            before_ns = now_ns;
        }
        fabric.store(wires.command, 0);
        median(samples)
    }

    /// Nanoseconds from the release of the lock in one process to its acquisition in the other,
    /// which waits: half of the median time in which it went there and came back, without the time
    /// for which it was held there, over [`SAMPLE_MS`]. `manage` runs whenever this process waits,
    /// and after it has released: a lock manager of its own would look at that moment too.
    #[must_use]
    pub fn lock_ns(&self, mut manage: impl FnMut()) -> f64 {
        let member = self.member();
        let (fabric, wires) = (member.fabric(), Wires::of(member));
        let clock = SystemClock::start();
        fabric.store(wires.last, 0);
        fabric.store(wires.command, 2);
        while fabric.load(wires.last) == 0 {
            manage();
            clock.pause(0);
        }
        let (until_ms, mut samples) = (clock.now_ms() + SAMPLE_MS, Vec::new());
        let mut released_ns = clock.now_ns();
        while clock.now_ms() < until_ms {
            acquire(member, &clock, &mut manage, |manage| {
                let acquired_ns = clock.now_ns();
                if fabric.load(wires.last) == 2 {
                    let away_ns = acquired_ns.saturating_sub(released_ns);
                    samples.push(away_ns.saturating_sub(HOLD_NS) as f64 / 2.0);
                }
                fabric.store(wires.last, 1);
                hold(&clock, manage);
                released_ns = clock.now_ns();
            });
            manage();
        }
        fabric.store(wires.command, 0);
        // It may be waiting for a grant still.
        let until_ms = clock.now_ms() + SAMPLE_MS;
        while clock.now_ms() < until_ms {
            manage();
        }
        median(samples)
    }
}

impl Drop for Duel {
    fn drop(&mut self) {
        let wires = Wires::of(self.member());
        self.member().fabric().store(wires.command, 3);
        for other in &mut self.others {
            if let Err(error) = other.wait() {
                eprintln!("another process of the benchmark: {error}");
            }
        }
    }
}

/// Sends `value` and waits until it comes back.
fn exchange(fabric: &MappedFabric, wires: Wires, value: u64) {
    send(fabric, wires.lines[0], value);
    while receive(fabric, wires.lines[1]) != value {
        std::hint::spin_loop();
    }
}

fn send(fabric: &MappedFabric, word: WordOffset, value: u64) {
    fabric.store(word, value);
    fabric.publish(LineRange::one(word.line()));
}

fn receive(fabric: &MappedFabric, word: WordOffset) -> u64 {
    fabric.refresh(LineRange::one(word.line()));
    fabric.load(word)
}

/// Holds the lock until the other process certainly waits for it.
fn hold(clock: &SystemClock, manage: &mut impl FnMut()) {
    let until_ns = clock.now_ns() + HOLD_NS;
    while clock.now_ns() < until_ns {
        manage();
    }
}

/// Takes the lock, calls `inside`, and gives it back; `manage` at each look.
pub fn acquire<M: FnMut()>(
    member: &LocalMember,
    clock: &SystemClock,
    manage: &mut M,
    inside: impl FnOnce(&mut M),
) {
    let mut pending = member.begin_shared(LOCK, clock);
    let mut tries = 0;
    let guard = loop {
        match pending.poll() {
            Ok(Some(guard)) => break guard,
            Ok(None) => manage(),
            Err(error) => panic!("{error}"),
        }
        clock.pause(tries);
        tries += 1;
    };
    inside(manage);
    drop(guard);
}

/// The other process of a [`Duel`].
///
/// # Errors
/// When it cannot attach, or does not get the lock.
pub fn serve(region: &Path) -> Result<(), Box<dyn Error>> {
    let attachment = Attachment::attach(region, 1)?;
    pin(1);
    let member = attachment.member();
    let (fabric, wires, clock) = (member.fabric(), Wires::of(member), SystemClock::start());
    let (mut answered, mut idle) = (fabric.load(wires.lines[1]), 0);
    loop {
        match Order::of(fabric.load(wires.command)) {
            Order::Wait => {
                clock.pause(idle);
                idle += 1;
                continue;
            }
            Order::Echo => {
                let value = receive(fabric, wires.lines[0]);
                if value != answered {
                    answered = value;
                    send(fabric, wires.lines[1], value);
                }
            }
            Order::Lock => {
                let guard = member.lock_shared(LOCK, &clock, TIMEOUT_MS)?;
                fabric.store(wires.last, 2);
                hold(&clock, &mut || ());
                drop(guard);
            }
            Order::End => return Ok(()),
        }
        idle = 0;
    }
}

/// The lock manager of a [`Duel`], as a process of its own.
///
/// # Errors
/// When it cannot attach, or another lock manager is at work.
pub fn arbitrate(region: &Path) -> Result<(), Box<dyn Error>> {
    let attachment = Attachment::attach(region, 0)?;
    pin(2);
    let (member, clock) = (attachment.member(), SystemClock::start());
    let (fabric, wires) = (member.fabric(), Wires::of(member));
    let mut manage = member.manage()?;
    manage.claim()?;
    while Order::of(fabric.load(wires.command)) != Order::End {
        manage.attend();
        clock.pause(0);
    }
    Ok(())
}

/// Keeps this thread on core `core`, if there is one.
fn pin(core: usize) {
    let mut only = CpuSet::new();
    only.set(core);
    if let Err(error) = sched_setaffinity(None, &only) {
        eprintln!("not pinned to core {core}, the figures will be of no use: {error}");
    }
}
