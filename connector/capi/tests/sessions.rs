//! Sessions from C and C++: programs against the generated header, over a real region in /dev/shm.
#![expect(clippy::unwrap_used, reason = "a test")]

mod agent;
mod driver;
mod install;
mod program;
mod region;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::Command;

use kv_cache::{ChainHasher, DriveGeometry, RestoreOutcome};

use driver::compile_with_driver;
use program::{compile, finish, start, warn};
use region::Pool;

const MIB: u64 = 1 << 20;

/// The value of a counter in what a program printed.
fn counter(said: &str, name: &str) -> u64 {
    let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {said}")).parse().unwrap()
}

#[test]
fn what_one_process_publishes_another_finds_holds_and_fetches() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(Path::new("sessions.c"), folder.path());
    let pool = Pool::new(16 * MIB);
    let mut publisher = start(&program, pool.path(), &["publish"]);
    let mut said = BufReader::new(publisher.stdout.take().unwrap());
    let mut handles = String::new();
    said.read_line(&mut handles).unwrap();
    if handles.is_empty() {
        finish(publisher);
        panic!("the publisher said nothing");
    }
    let fetched = finish(start(&program, pool.path(), &["fetch", handles.trim()]));
    assert_eq!(counter(&fetched, "fetched_blocks"), 6 + 4 + 6);
    assert_eq!(counter(&fetched, "published_blocks"), 0);

    drop(publisher.stdin.take());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    finish(publisher);
    assert_eq!(counter(&rest, "published_blocks"), 6);
    assert_eq!(counter(&rest, "released_blocks"), 6);
    let tokens: Vec<u32> = (0..16).map(|i| i * i).collect();
    let hash = &ChainHasher::new(b"", 16).chain(&tokens)[0];
    let hash: String = hash.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(rest.lines().next(), Some(&*hash), "hashes are those of Rust");
    assert!(pool.host_tiers().is_empty(), "both have left: {:?}", pool.host_tiers());
}

/// Runs a program of one process on a fresh pool, which it must have left.
fn run_alone(program: &Path, pool: &Pool, arguments: &[&str]) -> String {
    let said = finish(start(program, pool.path(), arguments));
    assert!(pool.host_tiers().is_empty(), "it has left: {:?}", pool.host_tiers());
    said
}

#[test]
fn blocks_on_drives_are_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(Path::new("drives.c"), folder.path());
    let pool = Pool::of(16 * MIB, DriveGeometry::suggest(4 * MIB, 4096, 2));
    let agent = agent::StandIn::start(pool.path());
    finish(start(&program, pool.path(), &[]));
    assert_eq!(agent.stop(), [RestoreOutcome::Restored; 3], "and one that was refused");
    assert!(pool.host_tiers().is_empty(), "both have left: {:?}", pool.host_tiers());
}

#[test]
fn misuse_is_an_error_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(Path::new("misuse.c"), folder.path());
    run_alone(&program, &Pool::new(16 * MIB), &[]);
}

#[test]
fn calls_with_arbitrary_arguments_are_errors_at_worst() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_with_driver(Path::new("arbitrary.c"), folder.path());
    let (mut on_gpu, mut published, mut fetched) = (0, 0, 0);
    for seed in 0..8 {
        let said = run_alone(&program, &Pool::new(32 * MIB), &[&seed.to_string(), "4000"]);
        assert!(counter(&said, "succeeded") > 100 && counter(&said, "refused") > 1000, "{said}");
        on_gpu += counter(&said, "on_gpu");
        published += counter(&said, "published_by_layers");
        fetched += counter(&said, "fetched_by_layers");
    }
    assert!(on_gpu > 20, "{on_gpu} transfers with a GPU were taken up");
    assert!(published > 50, "{published} publishes by layers were taken up");
    assert!(fetched > 10, "{fetched} fetches by layers were taken up");
}

#[test]
fn memory_is_lent_to_one_that_writes() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(Path::new("lent.c"), folder.path());
    run_alone(&program, &Pool::new(16 * MIB), &[]);
}

#[test]
fn watermarks_and_quotas_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(Path::new("pool_options.c"), folder.path());
    run_alone(&program, &Pool::new(16 * MIB), &[]);
}

#[test]
fn a_child_of_fork_never_waits_for_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(Path::new("forked.c"), folder.path());
    for when in ["attached", "attaching", "shared", "last", "number"] {
        let said = run_alone(&program, &Pool::new(16 * MIB), &[when]);
        if said == "cannot\n" {
            warn("namespaces cannot be made: no child had the number of its parent");
        }
    }
}

#[test]
fn transfers_under_way_are_polled_cancelled_and_freed() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(Path::new("under_way.c"), folder.path());
    run_alone(&program, &Pool::new(128 * MIB), &[]);
}

#[test]
fn many_threads_share_a_session_and_its_handles() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(Path::new("contention.c"), folder.path());
    let said = run_alone(&program, &Pool::new(64 * MIB), &["8", "20"]);
    assert!(counter(&said, "refused") > 0, "no queue was ever full: {said}");
}

#[test]
fn blocks_of_a_gpu_follow_its_stream_and_are_lent_like_others() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_with_driver(Path::new("gpu.c"), folder.path());
    for driver in ["straight", "bounced", "failing"] {
        run_alone(&program, &Pool::new(16 * MIB), &[driver]);
    }
}

#[test]
fn layers_come_and_go_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(Path::new("by_layers.c"), folder.path());
    run_alone(&program, &Pool::new(16 * MIB), &[]);
}

#[test]
fn layers_of_a_gpu_follow_the_streams_that_compute_them() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_with_driver(Path::new("gpu_layers.c"), folder.path());
    for driver in ["straight", "bounced"] {
        run_alone(&program, &Pool::new(16 * MIB), &[driver]);
    }
}

#[test]
fn a_machine_without_a_driver_has_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(Path::new("no_gpu.c"), folder.path());
    // Also where there is one: what cannot be loaded is found first.
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(folder.path().join(name), "no library").unwrap();
    }
    let pool = Pool::new(16 * MIB);
    let mut command = Command::new(program);
    let output = command.arg(pool.path()).env("LD_LIBRARY_PATH", folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(pool.host_tiers().is_empty(), "it has left: {:?}", pool.host_tiers());
}

#[test]
fn a_child_of_fork_leaves_the_gpu_alone() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_with_driver(Path::new("forked_gpu.c"), folder.path());
    run_alone(&program, &Pool::new(16 * MIB), &[]);
}

#[test]
fn the_wrapper_for_cpp_owns_its_handles() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(Path::new("wrapper.cpp"), folder.path());
    run_alone(&program, &Pool::new(16 * MIB), &[]);
}

#[test]
fn the_wrapper_for_cpp_owns_what_a_gpu_copies() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_with_driver(Path::new("wrapper_gpu.cpp"), folder.path());
    run_alone(&program, &Pool::new(16 * MIB), &[]);
}

#[test]
fn the_wrapper_for_cpp_is_short() {
    let wrapper = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/rackline.hpp");
    assert!(std::fs::read_to_string(wrapper).unwrap().lines().count() < 260);
}
