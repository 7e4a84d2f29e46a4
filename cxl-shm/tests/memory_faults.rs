//! Real SIGBUS in processes of a real region: poison of `userfaultfd`, truncated files, and signals
//! that are none of a region. Each case is a process of its own.
//!
//! Poison needs Linux 6.6 and a user who may use `userfaultfd`; the cases say so when it is not there.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(unsafe_code, reason = "a handler of SIGBUS, as an engine may have one")]

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fabric::Fabric;
use cxl_shm::host::{HOST_TIER_FOLDER, HostLockName, HostTierFile, LossCause};
use cxl_shm::layout::{Geometry, Layout, LockProtocol, Superblock, format_superblock};
use cxl_shm::layout::{SuperblockError, read_superblock};
use cxl_shm::lifecycle::{AttachError, Attachment};
use cxl_shm::region::Region;
use cxl_shm::units::{Extent, LineRange, NodeId, PAGE_BYTES, WordOffset};
use cxl_shm::verify::poison::{contain_nothing, poison};

/// Which case this process is, on which region.
const CASE: &str = "RACKLINE_TEST_CASE";
const REGION: &str = "RACKLINE_TEST_REGION";
/// With this the process contains nothing.
const BROKEN: &str = "RACKLINE_TEST_BROKEN";
/// How long a case waits for what has to happen.
const TIMEOUT_MS: u64 = 60_000;
const TEST: &str = "faults_of_memory_are_contained";
const REGION_BYTES: u64 = 8 << 20;
const SIGBUS: i32 = 7;
/// Status of a handler that a process had before it mapped a region.
const PREVIOUS_HANDLER: i32 = 42;

fn geometry() -> Geometry {
    Geometry {
        region_bytes: REGION_BYTES,
        nodes: 2,
        locks: 16,
        chunk_bytes: 1 << 20,
        area_lines: 1,
        host_words: 0,
    }
}

struct Bed {
    _folder: tempfile::TempDir,
    region: PathBuf,
    tier: PathBuf,
    layout: Layout,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(HOST_TIER_FOLDER).unwrap();
        let path = folder.path().join("region");
        let region = Region::create_file(&path, REGION_BYTES).unwrap();
        region.prefault(REGION_BYTES, |_, _| ()).unwrap();
        let nanos = std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        let uuid = [u64::from(std::process::id()) << 32 | u64::from(nanos), 0xFA17];
        let superblock = Superblock {
            lock_protocol: LockProtocol::Bakery,
            ..Superblock::new(uuid, geometry(), [0; 6])
        };
        let layout = format_superblock(region.fabric(), &superblock, |_, _| ()).unwrap();
        let tier = HostTierFile::path_in(Path::new(HOST_TIER_FOLDER), &superblock, NodeId(0));
        Self { _folder: folder, region: path, tier, layout }
    }

    fn run(&self, case: &str, broken: bool) -> Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", TEST, "--nocapture"]).env(CASE, case).env(REGION, &self.region);
        if broken {
            command.env(BROKEN, "1");
        }
        command.stdin(Stdio::null()).output().unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.tier);
    }
}

fn word(at: u64) -> WordOffset {
    WordOffset::new(at).unwrap()
}

fn page(at: u64) -> Extent {
    Extent::new(at, PAGE_BYTES).unwrap()
}

fn truncate(region: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(region).unwrap().set_len(bytes).unwrap();
}

fn attach(region: &Path) -> Attachment {
    Attachment::attach(region, 0).unwrap_or_else(|error| panic!("{error}"))
}

/// A page of payload is lost: this process reads zeros there, and goes on.
fn payload(region: &Path) {
    let attached = attach(region);
    let (member, fabric) = (attached.member(), attached.region().fabric());
    let at = member.layout().payload().offset() + (1 << 20);
    for offset in [at, at + PAGE_BYTES] {
        fabric.store(word(offset), 7);
    }
    assert!(!fabric.has_lost(page(at)));
    poison(region, page(at)).unwrap();
    assert_eq!(fabric.load(word(at)), 0);
    assert!(fabric.has_lost(page(at)) && fabric.has_lost(Extent::new(at + 64, 1).unwrap()));
    assert!(!fabric.has_lost(page(at + PAGE_BYTES)));
    assert_eq!(fabric.lost_ranges(), [page(at)]);
    assert_eq!(fabric.load(word(at + PAGE_BYTES)), 7, "the page beside it is as it was");
    // What is stored there reaches nobody.
    fabric.store(word(at), 9);
    fabric.publish(LineRange::covering(page(at)));
    let other = Region::open_read_only(region).unwrap();
    assert_eq!(other.fabric().load(word(at)), 7);
    assert_eq!(member.check_member(), Ok(()));
    // The next page is another fault of the same range.
    poison(region, page(at + PAGE_BYTES)).unwrap();
    assert_eq!(fabric.load(word(at + PAGE_BYTES)), 0);
    let range = Extent::new(at, 2 * PAGE_BYTES).unwrap();
    assert_eq!((fabric.lost_ranges(), fabric.faults()), (vec![range], 2));
}

/// Many ranges of payload are lost: the process is cut off.
fn many_ranges(region: &Path) {
    let attached = attach(region);
    let (member, fabric) = (attached.member(), attached.region().fabric());
    let at = member.layout().payload().offset();
    for range in 0..=cxl_shm::fabric::RANGES_MAX as u64 {
        assert_eq!(member.check_member(), Ok(()), "{range}");
        let lost = at + range * 2 * PAGE_BYTES;
        poison(region, page(lost)).unwrap();
        fabric.load(word(lost));
    }
    let lost = member.check_member().unwrap_err();
    assert_eq!(lost.cause, LossCause::MemoryFailed);
}

/// A page of metadata is lost: the process is cut off, and to the others of its host it is dead.
fn metadata(region: &Path) {
    let (attached, clock) = (attach(region), SystemClock::start());
    let (member, fabric) = (attached.member(), attached.region().fabric());
    let layout = *member.layout();
    let locked = member.lock_heap(&clock);
    println!("holds the heap");
    poison(region, Extent::new(layout.node_line(NodeId(1)).range().start().bytes(), 64).unwrap())
        .unwrap();
    let began_ms = clock.now_ms();
    // One of two threads touches it first: this one, or the one that sends the heartbeat.
    fabric.load(layout.heartbeat(NodeId(1)).range().start().word(0).unwrap());
    let lost = member.check_member().unwrap_err();
    assert_eq!(lost.cause, LossCause::MemoryFailed);
    assert!(lost.to_string().contains("uncorrectable error"), "{lost}");
    // Nothing that this process does reaches anybody: the region of another mapping is as it was.
    let at = layout.payload().offset();
    fabric.store(word(at), 5);
    fabric.publish(LineRange::covering(page(at)));
    let whole = Region::open_read_only(region).unwrap();
    assert_eq!(whole.fabric().load(word(at)), 0);
    drop(whole);
    // Calls return, and the process ends in order.
    drop(locked);
    drop(member.lock_host(HostLockName::Orphan, &clock));
    assert!(member.lock_shared(cxl_shm::layout::CHUNK_LOCK, &clock, 100).is_err());
    assert!(member.allocate_chunk(&clock, 100, 7).is_err());
    let beside = attached.join_thread();
    assert!(beside.is_err(), "nobody joins through what failed");
    println!("is cut off");
    // Until the other process has seen that it counts as dead.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    drop(attached);
    assert!(clock.now_ms() - began_ms < TIMEOUT_MS);
}

/// The file is cut to its first half while the process runs.
fn truncated(region: &Path) {
    let attached = attach(region);
    let (member, fabric) = (attached.member(), attached.region().fabric());
    truncate(region, REGION_BYTES - (1 << 20));
    let last = member.layout().payload().end() - 8;
    assert_eq!(fabric.load(word(last)), 0);
    assert!(fabric.has_lost(Extent::new(last, 8).unwrap()));
    assert_eq!(member.check_member(), Ok(()));
    truncate(region, PAGE_BYTES);
    let clock = SystemClock::start();
    // The thread that sends the heartbeat finds it.
    while member.check_member().is_ok() {
        assert!(clock.now_ms() < TIMEOUT_MS, "nobody noticed");
        clock.sleep_ms(5);
    }
}

/// The superblock is poisoned: told as what it is.
fn superblock(region: &Path) {
    let opened = Region::open(region, None).unwrap();
    poison(region, page(0)).unwrap();
    poison(region, page(2 * PAGE_BYTES)).unwrap();
    let error = read_superblock(opened.fabric()).unwrap_err();
    assert!(matches!(error, SuperblockError::MemoryFailed), "{error}");
    // Mapped anew by this process it is not poisoned.
    drop(attach(region));
}

/// As the region of an attaching process is truncated to its superblock.
fn attaching(region: &Path) {
    truncate(region, REGION_BYTES);
    let mut failed = None;
    std::thread::scope(|scope| {
        let cutter = scope.spawn(|| {
            for _ in 0..200 {
                truncate(region, 3 * PAGE_BYTES);
                truncate(region, REGION_BYTES);
            }
        });
        while !cutter.is_finished() && failed.is_none() {
            if let Err(error @ AttachError::MemoryFailed { .. }) = Attachment::attach(region, 0) {
                failed = Some(error);
            }
        }
    });
    if let Some(error) = failed {
        assert!(error.to_string().contains("the memory of the region failed"), "{error}");
    }
}

extern "C" fn previous(_: libc::c_int) {
    // SAFETY: may be called in a handler.
    unsafe { libc::_exit(PREVIOUS_HANDLER) }
}

/// Faults that are none of a region end the process, or go to the handler that was there.
fn elsewhere(region: &Path, with_handler: bool) {
    if with_handler {
        // SAFETY: the handler calls only what may be called in one.
        unsafe { libc::signal(libc::SIGBUS, previous as *const () as usize) };
    }
    let attached = attach(region);
    let file = tempfile::tempfile_in(HOST_TIER_FOLDER).unwrap();
    file.set_len(PAGE_BYTES).unwrap();
    let mapping = cxl_shm::fabric::Mapping::shared(&file, PAGE_BYTES).unwrap();
    file.set_len(0).unwrap();
    let other = cxl_shm::fabric::MappedFabric::new(mapping).unwrap();
    other.load(word(0));
    drop(attached);
}

/// A signal that a program sends.
fn sent(region: &Path) {
    // SAFETY: the default is no handler. Without this it would be the one of Rust's runtime, which
    // ignores the first signal that a program sends.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    let attached = attach(region);
    // SAFETY: no memory is passed.
    unsafe { libc::raise(libc::SIGBUS) };
    drop(attached);
}

/// A child made by `fork` that touches a poisoned page: it ends, and its parent stays a member.
fn forked(region: &Path) {
    let attached = attach(region);
    let at = attached.member().layout().payload().offset();
    // SAFETY: the child calls what needs no lock of the program, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        if poison(region, page(at)).is_ok() {
            attached.region().fabric().load(word(at));
        }
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the status is a word of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WTERMSIG(status), SIGBUS, "the child went on: {status:#x}");
    assert_eq!(attached.member().check_member(), Ok(()));
    assert_eq!(attached.region().fabric().load(word(at)), 0);
    assert_eq!(attached.region().fabric().faults(), 0);
}

fn child(case: &str, region: &Path) {
    if std::env::var_os(BROKEN).is_some() {
        contain_nothing();
    }
    match case {
        "payload" => payload(region),
        "many ranges" => many_ranges(region),
        "metadata" => metadata(region),
        "truncated" => truncated(region),
        "superblock" => superblock(region),
        "attaching" => attaching(region),
        "elsewhere" => elsewhere(region, false),
        "elsewhere with a handler" => elsewhere(region, true),
        "sent" => sent(region),
        "forked" => forked(region),
        other => panic!("no case {other:?}"),
    }
}

fn said(output: &Output) -> String {
    let said = [&output.stdout, &output.stderr];
    said.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// Whether this user and kernel can poison memory.
fn can_poison() -> bool {
    let bed = Bed::new();
    let region = Region::open(&bed.region, None).unwrap();
    match poison(&bed.region, page(0)) {
        Ok(()) => true,
        Err(error) => {
            drop(region);
            let skipped = format!("SKIPPED cases with poison: {error}\n");
            std::io::stderr().write_all(skipped.as_bytes()).unwrap();
            false
        }
    }
}

#[test]
fn faults_of_memory_are_contained() {
    if let Some(case) = std::env::var_os(CASE) {
        let region = std::env::var_os(REGION).unwrap();
        return child(case.to_str().unwrap(), Path::new(&region));
    }
    let mut cases = vec!["truncated", "attaching"];
    if can_poison() {
        cases.extend(["payload", "many ranges", "superblock", "forked"]);
    }
    for case in cases {
        let output = Bed::new().run(case, false);
        assert!(output.status.success(), "{case}: {:?}: {}", output.status, said(&output));
        if matches!(case, "attaching" | "forked") {
            continue;
        }
        let output = Bed::new().run(case, true);
        assert_eq!(output.status.signal(), Some(SIGBUS), "{case}: {}", said(&output));
    }
    for (case, signal, code) in [
        ("elsewhere", Some(SIGBUS), None),
        ("elsewhere with a handler", None, Some(PREVIOUS_HANDLER)),
        ("sent", Some(SIGBUS), None),
    ] {
        let output = Bed::new().run(case, false);
        let status = output.status;
        assert_eq!((status.signal(), status.code()), (signal, code), "{case}: {}", said(&output));
    }
}

#[test]
fn a_process_that_was_cut_off_counts_as_dead_on_its_host() {
    if !can_poison() {
        return;
    }
    let bed = Bed::new();
    let here = attach(&bed.region);
    let clock = SystemClock::start();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", TEST, "--nocapture"]).env(CASE, "metadata").env(REGION, &bed.region);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut line, mut lines) =
        (String::new(), std::io::BufReader::new(child.stdout.take().unwrap()));
    while !line.contains("is cut off") {
        line.clear();
        let read = std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
        if read == 0 {
            panic!("{}", said(&child.wait_with_output().unwrap()));
        }
    }
    // The process still runs. The lock that it held is recovered from, and all its places are of a
    // dead one.
    let guard = here.member().lock_heap(&clock);
    assert!(guard.recovered(), "nobody died with the lock");
    drop(guard);
    let member = here.member();
    let others: Vec<_> = member.processes().into_iter().map(|(slot, _)| slot).collect();
    let alive = others.iter().filter(|slot| member.is_process_alive(**slot)).count();
    assert_eq!(alive, 2, "this thread, and the one that beats: {others:?}");
    assert_eq!(member.check_member(), Ok(()));
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(bed.tier.exists(), "the file of those that stay");
    // The node goes on: this process beats, and leaves as the last one.
    let beats = || {
        let at = bed.layout.heartbeat(NodeId(0)).range().start().word(0).unwrap();
        here.region().fabric().load(at)
    };
    let (before, began_ms) = (beats(), clock.now_ms());
    while beats() == before {
        assert!(clock.now_ms() - began_ms < TIMEOUT_MS, "the heartbeat has stopped");
        clock.sleep_ms(5);
    }
    drop(here);
    assert!(!bed.tier.exists());
}
