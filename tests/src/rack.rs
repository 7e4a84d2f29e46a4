//! A simulated rack with the real membership, locks and lock manager on it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cxl_shm::clock::Clock;
use cxl_shm::fabric::simulated::schedule::Crash;
use cxl_shm::fabric::simulated::{
    Settings, SimulatedClock, SimulatedHost, SimulatedHostMemory, SimulatedRack,
};
use cxl_shm::layout::{Geometry, Superblock, format_superblock};
use cxl_shm::member::{HostIdentity, HostTier, Liveness, Member, ProcessIdentity};
use lock_manager::Duty;

/// A member of a simulated rack.
pub type RackMember = Member<SimulatedHost, SimulatedHostMemory, Processes>;

/// Which simulated processes live: what `/proc` is on a real host.
#[derive(Clone, Debug, Default)]
pub struct Processes(Arc<Mutex<Registry>>);

#[derive(Debug, Default)]
struct Registry {
    living: HashMap<ProcessIdentity, (usize, String)>,
    /// The process of each host that joins or leaves at the moment: what the file lock of the
    /// host tier is on a real host.
    joining: HashMap<usize, ProcessIdentity>,
    started: u32,
}

impl Processes {
    fn with<T>(&self, f: impl FnOnce(&mut Registry) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn start(&self, host: usize, name: &str) -> ProcessIdentity {
        self.with(|registry| {
            registry.started += 1;
            let identity = ProcessIdentity::new(registry.started, 1);
            registry.living.insert(identity, (host, name.to_owned()));
            identity
        })
    }

    /// Takes note of a crash; to be called from [`cxl_shm::fabric::simulated::Schedule::on_crash`].
    pub fn crashed(&self, crash: &Crash) {
        self.with(|registry| {
            registry.living.retain(|_, (host, name)| match crash {
                Crash::Host { host: dead } => host != dead,
                Crash::Process { host: dead, task } => (host, name) != (&mut dead.clone(), &mut task.clone()),
            });
        });
    }

    fn try_lock_tier(&self, host: usize, process: ProcessIdentity) -> bool {
        self.with(|registry| {
            let holder = registry.joining.get(&host);
            let free = holder.is_none_or(|holder| !registry.living.contains_key(holder));
            if free {
                registry.joining.insert(host, process);
            }
            free
        })
    }

    fn unlock_tier(&self, host: usize) {
        self.with(|registry| registry.joining.remove(&host));
    }
}

impl Liveness for Processes {
    fn is_alive(&self, process: ProcessIdentity) -> bool {
        self.with(|registry| registry.living.contains_key(&process))
    }
}

/// A formatted simulated rack, one node a host.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The rack below.
    pub rack: SimulatedRack,
    /// Who lives.
    pub processes: Processes,
    geometry: Geometry,
}

impl Cluster {
    /// Makes the rack and formats its memory from host 0.
    ///
    /// # Panics
    /// When the geometry cannot be laid out.
    #[must_use]
    pub fn format(settings: Settings, geometry: Geometry, application: [u64; 6]) -> Self {
        let rack = SimulatedRack::with(settings);
        let superblock = Superblock { uuid: [7, 9], geometry, application };
        format_superblock(&rack.host(0), &superblock, |_, _| ())
            .unwrap_or_else(|error| panic!("{error}"));
        Self { rack, processes: Processes::default(), geometry }
    }

    /// The clock of a host.
    #[must_use]
    pub fn clock(&self, host: usize) -> SimulatedClock {
        self.rack.clock(host)
    }

    /// Starts process `name` on `host` and joins.
    ///
    /// # Panics
    /// When it is refused.
    #[must_use]
    pub fn join(&self, host: usize, name: &str) -> RackMember {
        let process = self.processes.start(host, name);
        let clock = self.clock(host);
        let mut tries = 0;
        while !self.processes.try_lock_tier(host, process) {
            clock.pause(tries);
            tries += 1;
        }
        let memory = self.rack.host_memory(host, HostTier::words_of(&self.geometry));
        let node = u16::try_from(host).unwrap_or(u16::MAX);
        let member = Member::join(
            self.rack.host(host),
            memory,
            node,
            &HostIdentity::simulated(u64::from(node)),
            process,
            self.processes.clone(),
            &clock,
        );
        self.processes.unlock_tier(host);
        member.unwrap_or_else(|error| panic!("{name} on host {host}: {error}"))
    }

    /// The body of a host's agent process: never returns.
    pub fn run_agent(&self, host: usize, name: &str) {
        let member = self.join(host, name);
        let clock = self.clock(host);
        loop {
            member.beat();
            wait_ms(&clock, cxl_shm::member::HEARTBEAT_MS);
        }
    }

    /// The body of a lock manager: never returns.
    ///
    /// # Panics
    /// When it may not manage.
    pub fn run_manager(&self, host: usize, name: &str) {
        let member = self.join(host, name);
        let clock = self.clock(host);
        let mut duty = Duty::new(&member, 500).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut tries = 0;
        loop {
            let now_ms = clock.now_ms();
            let (busy, _) = duty.step(now_ms).unwrap_or_else(|error| panic!("{name}: {error}"));
            tries = if busy { 0 } else { tries + 1 };
            clock.pause(tries);
        }
    }
}

/// Waits on a host's clock.
pub fn wait_ms(clock: &SimulatedClock, ms: u64) {
    let until_ms = clock.now_ms() + ms;
    while clock.now_ms() < until_ms {
        // As long a pause as there is.
        clock.pause(u32::MAX);
    }
}

/// Runs `one` for each of `seeds`; the environment variable `RACKLINE_SEED` replays a single one.
///
/// # Panics
/// When `RACKLINE_SEED` is not a number.
pub fn for_seeds(seeds: std::ops::Range<u64>, mut one: impl FnMut(u64)) {
    match std::env::var("RACKLINE_SEED") {
        Ok(seed) => one(seed.parse().unwrap_or_else(|_| panic!("RACKLINE_SEED={seed}: not a number"))),
        Err(_) => seeds.for_each(one),
    }
}
