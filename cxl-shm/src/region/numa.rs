//! Which CPUs are nearest to the memory of a region.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::dax::Sysfs;
use super::{Region, RegionKind};

/// The CPUs nearest to a region's memory, on a machine where others are further away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NearCpus {
    /// The NUMA node of the memory, as the kernel numbers it.
    pub memory_node: u32,
    /// The CPUs, as the kernel numbers them.
    pub cpus: Vec<usize>,
}

impl Region {
    /// The CPUs nearest to this memory. `None` where all are as near, and where the kernel does not
    /// say: on a machine with one NUMA node that has CPUs, for a file whose pages lie on several
    /// nodes, and for a device without a node.
    #[must_use]
    pub fn near_cpus(&self, sysfs: &Sysfs) -> Option<NearCpus> {
        let nodes = match self.kind() {
            RegionKind::Devdax => self.path.device_number().map(|device| sysfs.dax_nodes(device)),
            RegionKind::File => {
                let start = self.fabric.mapping().start();
                let maps = fs::read_to_string("/proc/self/numa_maps").ok()?;
                node_of_pages(&maps, start).map(|node| vec![node])
            }
        };
        nodes?.into_iter().find_map(|node| sysfs.nearest(node).ok().flatten())
    }
}

impl Sysfs {
    /// The nodes of a devdax: that of its memory, and the nearest with CPUs, where the first is not
    /// online.
    fn dax_nodes(&self, (major, minor): (u32, u32)) -> Vec<u32> {
        let device = self.root.join(format!("dev/char/{major}:{minor}"));
        let node = |name| fs::read_to_string(device.join(name)).ok()?.trim().parse().ok();
        ["target_node", "numa_node"].into_iter().filter_map(node).collect()
    }

    /// The CPUs nearest to memory of `memory_node`, unless all are as near.
    fn nearest(&self, memory_node: u32) -> io::Result<Option<NearCpus>> {
        let nodes = self.root.join("devices/system/node");
        let cpus = cpus_of_nodes(&nodes)?;
        let distances = fs::read_to_string(nodes.join(format!("node{memory_node}/distance")))?;
        // One for each online node, in the order of their numbers.
        let online = online_nodes(&nodes)?;
        let distances = distances.split_whitespace().map_while(|number| number.parse::<u32>().ok());
        let distance: BTreeMap<u32, u32> = online.into_iter().zip(distances).collect();
        let with_cpus = || cpus.iter().filter(|(_, cpus)| !cpus.is_empty());
        let Some(least) = with_cpus().filter_map(|(node, _)| distance.get(node)).min() else {
            return Ok(None);
        };
        let (near, far): (Vec<_>, Vec<_>) =
            with_cpus().partition(|(node, _)| distance.get(node) == Some(least));
        let cpus = near.into_iter().flat_map(|(_, cpus)| cpus.iter().copied()).collect();
        Ok((!far.is_empty()).then_some(NearCpus { memory_node, cpus }))
    }
}

fn online_nodes(nodes: &Path) -> io::Result<Vec<u32>> {
    let list = fs::read_to_string(nodes.join("online"))?;
    let numbers = numbers(&list).into_iter().filter_map(|number| u32::try_from(number).ok());
    Ok(numbers.collect())
}

fn cpus_of_nodes(nodes: &Path) -> io::Result<BTreeMap<u32, Vec<usize>>> {
    let cpus = |node: u32| {
        let list = fs::read_to_string(nodes.join(format!("node{node}/cpulist")))?;
        Ok((node, numbers(&list)))
    };
    online_nodes(nodes)?.into_iter().map(cpus).collect()
}

/// The numbers of a list as the kernel writes it: `0-3,8,10-11`.
fn numbers(list: &str) -> Vec<usize> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

/// The node that has nearly all pages of the mapping that starts at `start`, as `numa_maps` of
/// numa(7) says.
fn node_of_pages(numa_maps: &str, start: usize) -> Option<u32> {
    let start = format!("{start:x} ");
    let line = numa_maps.lines().find(|line| line.starts_with(&start))?;
    let pages = line.split_whitespace().filter_map(|word| {
        let (node, pages) = word.strip_prefix('N')?.split_once('=')?;
        Some((node.parse::<u32>().ok()?, pages.parse::<u64>().ok()?))
    });
    let pages: Vec<_> = pages.collect();
    let all: u64 = pages.iter().map(|(_, pages)| pages).sum();
    let (node, most) = pages.into_iter().max_by_key(|(_, pages)| *pages)?;
    // A tenth may have come from elsewhere when memory was short.
    (most * 10 >= all * 9).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with nodes of these CPUs, and these distances.
    fn machine(nodes: &[(&str, &str)]) -> (tempfile::TempDir, Sysfs) {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("devices/system/node");
        for (number, (cpus, distances)) in nodes.iter().enumerate() {
            let node = folder.join(format!("node{number}"));
            fs::create_dir_all(&node).unwrap();
            fs::write(node.join("cpulist"), format!("{cpus}\n")).unwrap();
            fs::write(node.join("distance"), format!("{distances}\n")).unwrap();
        }
        fs::write(folder.join("online"), format!("0-{}\n", nodes.len() - 1)).unwrap();
        let sysfs = Sysfs { root: root.path().to_owned() };
        (root, sysfs)
    }

    fn cpus(sysfs: &Sysfs, node: u32) -> Option<Vec<usize>> {
        sysfs.nearest(node).unwrap().map(|near| near.cpus)
    }

    #[test]
    fn the_socket_beside_the_memory_is_near() {
        // Two sockets, and CXL memory without CPUs at the second.
        let (_root, sysfs) =
            machine(&[("0-3,8-11", "10 21 24"), ("4-7,12", "21 10 14"), ("", "24 14 10")]);
        assert_eq!(cpus(&sysfs, 0), Some(vec![0, 1, 2, 3, 8, 9, 10, 11]));
        assert_eq!(cpus(&sysfs, 2), Some(vec![4, 5, 6, 7, 12]));
        assert!(sysfs.nearest(3).is_err(), "there is no such node");
    }

    #[test]
    fn where_all_are_as_near_no_cpus_are_named() {
        let (_root, sysfs) = machine(&[("0-1", "10 14"), ("", "14 10")]);
        assert_eq!(cpus(&sysfs, 1), None, "one node has CPUs");
        let (_root, sysfs) = machine(&[("0", "10 21 17"), ("1", "21 10 17"), ("", "17 17 10")]);
        assert_eq!(cpus(&sysfs, 2), None, "both are as near");
    }

    #[test]
    fn a_device_names_its_memory_and_the_node_beside_it() {
        let (root, sysfs) = machine(&[("0-1", "10 21"), ("2-3", "21 10")]);
        let device = root.path().join("dev/char/252:7");
        fs::create_dir_all(&device).unwrap();
        assert!(sysfs.dax_nodes((252, 7)).is_empty());
        // The memory's own node is not online while it is a devdax.
        fs::write(device.join("target_node"), "2\n").unwrap();
        fs::write(device.join("numa_node"), "1\n").unwrap();
        assert_eq!(sysfs.dax_nodes((252, 7)), [2, 1]);
        let near =
            sysfs.dax_nodes((252, 7)).into_iter().find_map(|node| sysfs.nearest(node).ok()?);
        assert_eq!(near, Some(NearCpus { memory_node: 1, cpus: vec![2, 3] }));
        fs::write(device.join("target_node"), "-1\n").unwrap();
        assert_eq!(sysfs.dax_nodes((252, 7)), [1]);
    }

    #[test]
    fn pages_of_a_file_lie_on_a_node_or_on_several() {
        let maps = "7f0000000000 default file=/dev/shm/a mapped=1 N0=1\n\
                    7f1000000000 default file=/dev/shm/pool dirty=95 N0=5 N1=90 kernelpagesize_kB=4\n\
                    7f2000000000 interleave:0-1 file=/dev/shm/b dirty=100 N0=50 N1=50\n\
                    7f3000000000 default file=/dev/shm/c\n";
        assert_eq!(node_of_pages(maps, 0x7f10_0000_0000), Some(1));
        assert_eq!(node_of_pages(maps, 0x7f20_0000_0000), None, "on two");
        assert_eq!(node_of_pages(maps, 0x7f30_0000_0000), None, "none is mapped");
        assert_eq!(node_of_pages(maps, 0x7f40_0000_0000), None);
    }

    #[test]
    fn a_region_of_this_machine_is_asked_about() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let region = Region::create_file(&directory.path().join("pool"), 1 << 20).unwrap();
        region.prefault(1 << 20, |_, _| ()).unwrap();
        let maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
        let node = node_of_pages(&maps, region.fabric.mapping().start()).expect("all on one node");
        let near = region.near_cpus(&Sysfs::default());
        assert!(near.is_none_or(|near| near.memory_node == node && !near.cpus.is_empty()));
    }
}
