//! The conformance suite over the memories that one process can have: the simulated rack in all
//! its modes, two mappings of one file (regular, `/dev/shm`, memfd, huge pages), and two shadowed
//! hosts over one file. `tests/virtual-hosts` runs it on a real device.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{File, read_to_string};
use std::path::{Path, PathBuf};

use cxl_shm::fabric::{HostMemory, MappedFabric, MappedHostMemory, Mapping};
use cxl_shm::region::Region;
use cxl_shm::verify::shadowed::ShadowedFabric;
use cxl_shm::verify::simulated::{CacheMode, Settings, SimulatedRack};
use rackline_tests::fabric_conformance::{
    HOST_WORDS, LINES_USED, host_memory, one_thread, two_threads,
};
use rustix::fs::{MemfdFlags, memfd_create};

const BYTES: u64 = 64 * 1024;
const _: () = assert!(LINES_USED * 64 < BYTES);

/// The simulated racks of one seed.
fn racks(seed: u64) -> [SimulatedRack; 4] {
    let settings = [Settings::sticky(2, BYTES), Settings::adversarial(2, BYTES, seed)];
    let posted = settings.clone().map(SimulatedRack::with);
    let direct =
        settings.map(|settings| SimulatedRack::with(Settings { posted_writes: false, ..settings }));
    let ([a, b], [c, d]) = (posted, direct);
    [a, b, c, d]
}

/// A new file of `bytes` zeros.
fn file(bytes: u64) -> File {
    sized(tempfile::tempfile().unwrap(), bytes)
}

fn memfd(bytes: u64, flags: MemfdFlags) -> File {
    sized(memfd_create("rackline-conformance", flags | MemfdFlags::CLOEXEC).unwrap().into(), bytes)
}

fn sized(file: File, bytes: u64) -> File {
    file.set_len(bytes).unwrap();
    file
}

/// Two mappings of one file of `bytes` bytes.
fn mappings(file: &File, bytes: u64) -> [Mapping; 2] {
    [(); 2].map(|()| Mapping::shared(file, bytes).unwrap())
}

fn fabrics(file: &File, bytes: u64) -> [MappedFabric; 2] {
    mappings(file, bytes).map(|mapping| MappedFabric::new(mapping).unwrap())
}

/// A line of /proc/meminfo, such as "HugePages_Free:        4".
fn memory_info(name: &str) -> u64 {
    let text = read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim_start_matches(':').split_whitespace().next().map_or(0, |word| word.parse().unwrap())
}

/// Where a hugetlbfs is mounted.
fn hugetlbfs() -> Option<PathBuf> {
    let mounts = read_to_string("/proc/mounts").unwrap();
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let path = fields.next()?;
        (fields.next()? == "hugetlbfs").then(|| path.into())
    })
}

#[test]
fn the_simulated_rack_conforms() {
    for rack in (0..30).flat_map(racks) {
        one_thread(&rack.host(0), &rack.host(1));
        assert_eq!(rack.conflicts(), []);
    }
}

#[test]
fn the_simulated_rack_conforms_under_threads() {
    for rack in (0..3).flat_map(racks) {
        two_threads(rack.host(0), rack.host(1));
    }
}

#[test]
fn a_mapped_file_conforms() {
    let [a, b] = fabrics(&file(BYTES), BYTES);
    one_thread(&a, &b);
    two_threads(a, b);
}

#[test]
fn mapped_shared_memory_conforms() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    region_conforms(folder.path());
}

#[test]
fn a_mapped_memfd_conforms() {
    let [a, b] = fabrics(&memfd(BYTES, MemfdFlags::empty()), BYTES);
    one_thread(&a, &b);
    two_threads(a, b);
}

/// Needs free huge pages, which only the administrator of a machine sets aside: `.ci/steps` does.
#[test]
fn mapped_huge_pages_conform() {
    let page_bytes = memory_info("Hugepagesize") * 1024;
    if memory_info("HugePages_Free") < 1 {
        eprintln!(
            "SKIPPED: no free huge page on this machine; as root, \
             `echo 4 > /proc/sys/vm/nr_hugepages`"
        );
        return;
    }
    let [a, b] = fabrics(&memfd(page_bytes, MemfdFlags::HUGETLB), page_bytes);
    one_thread(&a, &b);
    two_threads(a, b);
    match hugetlbfs() {
        Some(folder) => region_conforms(&folder),
        None => eprintln!("SKIPPED: a region in a hugetlbfs, which is not mounted"),
    }
}

/// A region file in `folder`, as two processes open it.
fn region_conforms(folder: &Path) {
    let path = folder.join(format!("rackline-conformance-{}", std::process::id()));
    let created = Region::create_file(&path, BYTES).unwrap();
    let opened = Region::open(&path, None).unwrap();
    created.remove_file().unwrap();
    assert!(opened.bytes() >= BYTES);
    one_thread(created.fabric(), opened.fabric());
    two_threads(created.fabric().clone(), opened.fabric().clone());
}

#[test]
fn shadowed_memory_conforms() {
    for seed in 0..40 {
        for cache in [CacheMode::Sticky, CacheMode::Adversarial] {
            let hosts = || fabrics(&file(BYTES), BYTES);
            let shadowed = |[a, b]: [MappedFabric; 2]| {
                [(a, seed), (b, seed + 1000)]
                    .map(|(below, seed)| ShadowedFabric::new(below, cache, seed))
            };
            let [a, b] = shadowed(hosts());
            one_thread(&a, &b);
            if seed < 4 {
                let [a, b] = shadowed(hosts());
                two_threads(a, b);
            }
        }
    }
}

#[test]
fn simulated_host_memory_conforms() {
    let rack = SimulatedRack::sticky(2, BYTES);
    host_memory(&rack.host_memory(0, HOST_WORDS), &rack.host_memory(0, HOST_WORDS));
    assert_eq!(rack.host_memory(1, HOST_WORDS).load(3), 0, "another host's words are others");
}

#[test]
fn mapped_host_memory_conforms() {
    let bytes = HOST_WORDS as u64 * 8;
    let [a, b] = mappings(&file(bytes), bytes).map(MappedHostMemory::new);
    host_memory(&a, &b);
}
