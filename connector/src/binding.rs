//! The CPUs that threads which copy are bound to: those nearest to the pool's memory.

use core_affinity::CoreId;
use cxl_shm::region::{NearCpus, Region, Sysfs};
use rustix::thread::{CpuSet, sched_setaffinity};

/// CPUs for threads that copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Binding {
    cpus: Vec<usize>,
}

impl Binding {
    /// The CPUs nearest to the memory of `region` that this thread may use. `None` where there is
    /// nothing to choose: see [`Region::near_cpus`].
    pub(crate) fn of(region: &Region) -> Option<Self> {
        let near = region.near_cpus(&Sysfs::default())?;
        // What the process was given by its user, by a container or by numactl(8).
        let allowed = core_affinity::get_core_ids()?;
        let binding = Self::within(&near, &allowed);
        let (node, allowed) = (near.memory_node, allowed.len());
        match &binding {
            Some(Self { cpus }) => {
                tracing::info!(node, ?cpus, "threads that copy are bound to CPUs near the memory");
            }
            None => {
                tracing::info!(node, allowed, "threads that copy keep the CPUs of the process");
            }
        }
        binding
    }

    /// Those that are near and allowed; `None` when these are all that are allowed, or none.
    fn within(near: &NearCpus, allowed: &[CoreId]) -> Option<Self> {
        let cpus = allowed.iter().map(|core| core.id).filter(|cpu| near.cpus.contains(cpu));
        let cpus: Vec<_> = cpus.filter(|cpu| *cpu < CpuSet::MAX_CPU).collect();
        (!cpus.is_empty() && cpus.len() < allowed.len()).then_some(Self { cpus })
    }

    /// How many there are.
    #[cfg(feature = "cuda")]
    pub(crate) fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Binds the calling thread. It stays where it is when the system refuses, which is said.
    pub(crate) fn bind_this_thread(&self) {
        let mut set = CpuSet::new();
        self.cpus.iter().for_each(|cpu| set.set(*cpu));
        // All of them, not one: `core_affinity` binds to a single CPU, and threads of other
        // processes would be bound to the same one.
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::warn!(%error, "a thread that copies is not bound to CPUs near the memory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(near: &[usize], allowed: &[usize]) -> Option<Vec<usize>> {
        let near = NearCpus { memory_node: 1, cpus: near.to_vec() };
        let allowed: Vec<_> = allowed.iter().map(|id| CoreId { id: *id }).collect();
        Binding::within(&near, &allowed).map(|binding| binding.cpus)
    }

    #[test]
    fn only_what_the_process_may_use_is_chosen() {
        assert_eq!(within(&[4, 5, 6, 7], &[0, 1, 4, 5]), Some(vec![4, 5]));
        assert_eq!(within(&[4, 5], &[0, 1]), None, "against the mask of the user");
        assert_eq!(within(&[4, 5, 6, 7], &[4, 5]), None, "nothing to choose");
        assert_eq!(within(&[4, 5000], &[0, 5000]), None, "more than a mask can name");
    }

    #[test]
    fn a_thread_is_bound_and_others_are_not() {
        let allowed = || core_affinity::get_core_ids().unwrap();
        let before = allowed();
        let binding = Binding { cpus: vec![before[0].id] };
        let bound = std::thread::spawn(move || {
            binding.bind_this_thread();
            allowed()
        });
        assert_eq!(bound.join().unwrap(), [before[0]]);
        assert_eq!(allowed(), before);
    }
}
