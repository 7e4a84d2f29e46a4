//! A simulated rack with the real membership, locks and lock manager on it.

use cxl_shm_objects::Objects;
use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::panic::{RefUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::host::{HostIdentity, HostTier, Liveness, ProcessIdentity};
use cxl_shm::layout::{Geometry, Layout, LockProtocol, Superblock, format_superblock};
use cxl_shm::lifecycle::{ATTEND_BEATS, JoinError, NoFence};
use cxl_shm::node::Member;
use cxl_shm::units::{LineRange, NodeId};
use cxl_shm::verify::simulated::schedule::{Crash, crash_this_process, host_if_cut_off};
use cxl_shm::verify::simulated::{
    DeviceImage, Schedule, Settings, SimulatedClock, SimulatedHostMemory, SimulatedRack, Site,
};
use cxl_shm::verify::{BackendOf, SimulatedBackend};
use lock_manager::{ManagerRole, Timeouts};

/// A member of a simulated rack.
pub type RackMember = Member<SimulatedBackend<Processes>>;

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

    /// Takes note of a crash; to be called from [`cxl_shm::verify::simulated::Schedule::on_crash`].
    pub fn crashed(&self, crash: &Crash) {
        self.with(|registry| {
            registry.living.retain(|_, (host, name)| match crash {
                Crash::Host { host: dead } => host != dead,
                Crash::Process { host: dead, task } => *host != *dead || *name != *task,
            });
        });
    }

    /// After a schedule has ended: none of its processes lives any more.
    pub fn end_all(&self) {
        self.with(|registry| registry.living.clear());
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

    fn unlock_tier(&self, host: usize, process: ProcessIdentity) {
        self.with(|registry| {
            // A process that was cut off counts as dead, and another may have it by now.
            if registry.joining.get(&host) == Some(&process) {
                registry.joining.remove(&host);
            }
        });
    }
}

impl Liveness for Processes {
    fn is_alive(&self, process: ProcessIdentity) -> bool {
        self.with(|registry| registry.living.contains_key(&process))
    }
}

/// The lock protocol of run `seed`: each in turn, two seeds at a time, so that both meet every
/// setting that follows from the seed's remainder by two or three.
#[must_use]
pub fn lock_protocol(seed: u64) -> LockProtocol {
    if seed % 4 < 2 { LockProtocol::Arbitrated } else { LockProtocol::Bakery }
}

/// A program with, at most, one flush or fence removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mutant {
    /// What is removed.
    pub removed: Option<Site>,
    /// Operations after which a run has failed, if fewer than the scenario allows.
    pub steps_max: u64,
    /// Fewest and most hosts of a scenario that runs with any number of them; its own choice when
    /// `None`.
    pub hosts: Option<(usize, usize)>,
}

impl Mutant {
    /// The program as it is.
    pub const NONE: Self = Self { removed: None, steps_max: u64::MAX, hosts: None };

    /// The operations that a scenario which needs at most `sound` of them is given.
    #[must_use]
    pub fn steps_max(&self, sound: u64) -> u64 {
        self.steps_max.min(sound)
    }

    /// Hosts of run `seed` of a scenario that would choose out of `own`.
    #[must_use]
    pub fn hosts(&self, seed: u64, own: RangeInclusive<usize>) -> usize {
        let (fewest, most) = self.hosts.unwrap_or((*own.start(), *own.end()));
        // Small racks seven times in eight: they get further in the same time.
        let most = if seed % 8 == 7 { most } else { most.min(fewest + 1) };
        let choices = (most - fewest) as u64 + 1;
        fewest + usize::try_from(seed / 8 % choices).unwrap_or(0)
    }

    /// How often a scenario that would do something `own` times does it: less on a rack of a given
    /// number of hosts, where many short schedules find more than few long ones.
    #[must_use]
    pub fn rounds(&self, own: u64) -> u64 {
        if self.hosts.is_none() { own } else { (own / 2).max(1) }
    }
}

/// How often simulated agents beat: not as often as real ones
/// ([`HEARTBEAT_MS`](cxl_shm::node::HEARTBEAT_MS)), and often enough for every suspicion.
const BEAT_MS: u64 = 20;
/// How long a simulated lock manager that nobody asks for anything waits between two rounds.
const IDLE_MS: u64 = 5;

/// From the end of a simulated process that was cut off to its next life.
const RESTART_MS: u64 = 2000;

/// Operations that a mutant is given on a rack that is moved by hand: ten times as many as any
/// sound scenario needs.
const BY_HAND_MAX: u64 = 1_000_000;

/// A formatted simulated rack, one node a host.
///
/// Hosts need not have the numbers of their nodes ([`Cluster::renumbered`]): a program that takes
/// one for the other is found out.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The rack below.
    pub rack: SimulatedRack,
    /// Who lives.
    pub processes: Processes,
    geometry: Geometry,
    /// How much further the number of a host's node is, counted round.
    shift: usize,
}

impl Cluster {
    /// Makes a rack with a formatted region.
    ///
    /// One in sixteen seeds formats from host 0; the others start with what such a formatting has
    /// left on the device, which is the same every time and would take most of their time. What a
    /// mutant leaves out of a formatting is the business of [`crate::step_tests::formatting`].
    ///
    /// # Panics
    /// When the geometry cannot be laid out.
    #[must_use]
    pub fn format(
        settings: Settings,
        geometry: Geometry,
        lock_protocol: LockProtocol,
        application: [u64; 6],
        mutant: Mutant,
    ) -> Self {
        let superblock =
            Superblock { lock_protocol, ..Superblock::new([7, 9], geometry, application) };
        if settings.seed % 16 == 15 {
            let cluster = Self::over(SimulatedRack::with(settings), geometry, mutant);
            cluster.reformat(0, &superblock);
            return cluster;
        }
        let image = image_of(&superblock);
        Self::over(SimulatedRack::with_image(settings, &image), geometry, mutant)
    }

    /// A rack whose memory is blank.
    #[must_use]
    pub fn blank(settings: Settings, geometry: Geometry, mutant: Mutant) -> Self {
        Self::over(SimulatedRack::with(settings), geometry, mutant)
    }

    fn over(rack: SimulatedRack, geometry: Geometry, mutant: Mutant) -> Self {
        adopt(&rack, mutant);
        Self { rack, processes: Processes::default(), geometry, shift: 0 }
    }

    /// The same region on a rack of its own, whose device holds what this one's does and fails
    /// nowhere. Nobody lives there.
    #[must_use]
    pub fn on_a_whole_device(&self) -> Self {
        let settings = Settings::sticky(self.rack.hosts(), self.rack.bytes());
        let rack = SimulatedRack::with_image(settings, &self.rack.image());
        Self { rack, processes: Processes::default(), ..self.clone() }
    }

    /// The same rack, with hosts that lay the region out by `geometry`.
    #[must_use]
    pub fn laid_out_by(&self, geometry: Geometry) -> Self {
        Self { geometry, ..self.clone() }
    }

    /// The same rack, whose hosts join other nodes in most seeds.
    #[must_use]
    pub fn renumbered(self, seed: u64) -> Self {
        let nodes = u64::from(self.geometry.nodes);
        Self { shift: usize::try_from(seed / 2 % nodes).unwrap_or(0), ..self }
    }

    /// The node that `host` joins.
    ///
    /// # Panics
    /// When it is a machine without a node of its own.
    #[must_use]
    pub fn node_of(&self, host: usize) -> NodeId {
        let nodes = usize::from(self.geometry.nodes);
        assert!(host < nodes, "host {host} has no node of its own");
        NodeId(u16::try_from((host + self.shift) % nodes).unwrap_or(u16::MAX))
    }

    /// The host that joins `node`.
    #[must_use]
    pub fn host_of(&self, node: NodeId) -> usize {
        let nodes = usize::from(self.geometry.nodes);
        (node.index() + nodes - self.shift) % nodes
    }

    /// Formats the memory from `host`.
    ///
    /// # Panics
    /// When it is refused.
    pub fn reformat(&self, host: usize, superblock: &Superblock) {
        format_superblock(&self.rack.host(host), superblock, |_, _| ())
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// What the region is laid out by.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Every host fetches all metadata that its caches do not hold: what it finds there later is
    /// as old as this moment, or older. A protocol that reads without a refresh is found out.
    ///
    /// # Panics
    /// When the geometry cannot be laid out.
    pub fn warm(&self) {
        let layout = Layout::new(self.geometry).unwrap_or_else(|error| panic!("{error}"));
        let metadata = LineRange::covering(layout.metadata());
        (0..self.rack.hosts()).for_each(|host| self.rack.warm(host, metadata));
    }

    /// Checks that no line had two writing hosts at once (MEM-M1).
    ///
    /// # Panics
    /// With the lines that had.
    pub fn check_writers(&self) {
        let conflicts = self.rack.conflicts();
        assert!(conflicts.is_empty(), "lines with two writing hosts (MEM-M1): {conflicts:?}");
    }

    /// The clock of a host.
    #[must_use]
    pub fn clock(&self, host: usize) -> SimulatedClock {
        self.rack.clock(host)
    }

    /// Starts process `name` on `host` and joins the host's node.
    ///
    /// # Panics
    /// When it is refused.
    #[must_use]
    pub fn join(&self, host: usize, name: &str) -> RackMember {
        self.try_join(host, name).unwrap_or_else(|error| failed(name, &error))
    }

    /// Starts process `name` on `host` and asks to join the host's node.
    ///
    /// # Errors
    /// As [`Member::join`].
    pub fn try_join(&self, host: usize, name: &str) -> Result<RackMember, JoinError> {
        self.join_as(host, self.node_of(host).index(), name)
    }

    /// Starts process `name` on `host` and joins `node`.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join_as(&self, host: usize, node: usize, name: &str) -> Result<RackMember, JoinError> {
        self.join_over(self.rack.host(host), &self.clock(host), host, node, name)
    }

    /// As [`join_as`](Self::join_as), over a memory that ends in this rack, waiting on `clock`.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join_over<F: Fabric>(
        &self,
        fabric: F,
        clock: &impl Clock,
        host: usize,
        node: usize,
        name: &str,
    ) -> Result<Member<BackendOf<F, SimulatedHostMemory, Processes>>, JoinError> {
        let identity = HostIdentity::simulated(host as u64);
        self.join_known_as(&identity, fabric, clock, host, node, name)
    }

    /// As [`join_over`](Self::join_over), from a machine that says of itself what `identity` says.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join_known_as<F: Fabric>(
        &self,
        identity: &HostIdentity,
        fabric: F,
        clock: &impl Clock,
        host: usize,
        node: usize,
        name: &str,
    ) -> Result<Member<BackendOf<F, SimulatedHostMemory, Processes>>, JoinError> {
        let process = self.processes.start(host, name);
        let mut tries = 0;
        while !self.processes.try_lock_tier(host, process) {
            clock.pause(tries);
            tries += 1;
        }
        let memory = self.rack.host_memory(host, HostTier::words_of(&self.geometry));
        let node = u16::try_from(node).unwrap_or(u16::MAX);
        let liveness = self.processes.clone();
        let member = Member::join(fabric, memory, node, identity, process, liveness, clock);
        self.processes.unlock_tier(host, process);
        member
    }

    /// After a schedule has ended: a new process of `host`, with every other one gone.
    #[must_use]
    pub fn audit(&self, host: usize) -> RackMember {
        self.processes.end_all();
        self.join(host, "auditor")
    }

    /// The body of a host's agent process: never returns.
    pub fn run_agent(&self, host: usize, name: &str) {
        let member = self.join(host, name);
        let clock = self.clock(host);
        for beat in 0_u64.. {
            if member.beat() && beat.is_multiple_of(ATTEND_BEATS) {
                member.attend(&clock).unwrap_or_else(|error| failed(name, &error));
            }
            end_if_cut_off();
            wait_ms(&clock, BEAT_MS);
        }
    }

    /// The body of a lock manager: never returns.
    ///
    /// # Panics
    /// When it may not manage.
    pub fn run_manager(&self, host: usize, name: &str) {
        let member = self.join(host, name);
        let clock = self.clock(host);
        // Nobody is declared dead, however long he pauses.
        let timeouts = Timeouts { takeover_ms: 500, declare_ms: u64::MAX };
        let role = ManagerRole::new(&member, &clock, timeouts);
        let mut role = role.unwrap_or_else(|error| failed(name, &error));
        let mut tries = 0;
        loop {
            let outcome = role.step(clock.now_ms(), &mut NoFence);
            let outcome = outcome.unwrap_or_else(|error| failed(name, &error));
            tries = if outcome.busy { 0 } else { tries + 1 };
            pause_idle(&clock, tries);
        }
    }
}

/// A call of process `name` failed that may fail only when the process was cut off from the region
/// (FAULT-F4). Ends the process, as by a crash.
///
/// # Panics
/// When it was not cut off.
pub(crate) fn failed(name: &str, error: &dyn fmt::Display) -> ! {
    end_if_cut_off();
    panic!("{name}: {error}");
}

/// Ends the process of the calling task, as by a crash, if it was cut off. It is started again
/// after a while: the next life may meet the same line.
pub(crate) fn end_if_cut_off() {
    if let Some(host) = host_if_cut_off() {
        wait_ms(&host.rack().clock(host.index()), RESTART_MS);
        crash_this_process();
    }
}

/// The pause of a lock manager after `tries` rounds in vain: soon as seldom as nobody minds, or
/// such rounds would be most of a run.
pub(crate) fn pause_idle(clock: &SimulatedClock, tries: u32) {
    match tries {
        0..16 => clock.pause(tries),
        _ => wait_ms(clock, IDLE_MS),
    }
}

/// Leaves out of the programs of a new rack what `mutant` leaves out, and watches it.
pub fn adopt(rack: &SimulatedRack, mutant: Mutant) {
    if let Some(site) = mutant.removed {
        rack.suppress(site);
        rack.limit_operations(BY_HAND_MAX);
    }
    WATCHED.with_borrow_mut(|watched| watched.note(Some(rack)));
}

/// What a formatting of `superblock` leaves on the device.
fn image_of(superblock: &Superblock) -> DeviceImage {
    static IMAGES: Mutex<Vec<(Superblock, DeviceImage)>> = Mutex::new(Vec::new());
    let mut images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, image)) = images.iter().find(|(made, _)| made == superblock) {
        return image.clone();
    }
    let rack = SimulatedRack::sticky(1, superblock.geometry.region_bytes);
    format_superblock(&rack.host(0), superblock, |_, _| ())
        .unwrap_or_else(|error| panic!("{error}"));
    images.push((*superblock, rack.image()));
    rack.image()
}

/// What a scenario did.
#[derive(Clone, Default, Debug)]
pub struct Watched {
    /// Where it flushed and fenced.
    pub sites: BTreeSet<Site>,
    /// The fingerprint of what happened on each of its racks, in order.
    pub traces: Vec<u64>,
    /// Operations of its longest schedule.
    pub steps: u64,
    /// The rack that it made last. One at a time: some make thousands.
    rack: Option<SimulatedRack>,
    counts_only: bool,
}

impl Watched {
    fn note(&mut self, next: Option<&SimulatedRack>) {
        if self.counts_only {
            return;
        }
        if let Some(rack) = self.rack.take() {
            self.sites.extend(rack.sites());
            self.traces.push(rack.trace_hash());
        }
        self.rack = next.cloned();
    }
}

thread_local! {
    static WATCHED: RefCell<Watched> = RefCell::default();
}

/// Runs `scenario` and returns what it did.
pub fn watch(scenario: impl FnOnce()) -> Watched {
    WATCHED.take();
    scenario();
    let mut watched = WATCHED.take();
    watched.note(None);
    watched
}

/// Runs `scenario` and returns the operations of its longest schedule.
pub fn steps_of(scenario: impl FnOnce()) -> u64 {
    WATCHED.replace(Watched { counts_only: true, ..Watched::default() });
    scenario();
    WATCHED.take().steps
}

/// Runs a schedule on a rack of this crate.
///
/// # Panics
/// When it fails.
pub fn run(schedule: Schedule) {
    let report = schedule.run();
    WATCHED.with_borrow_mut(|watched| watched.steps = watched.steps.max(report.steps));
}

/// What a panic said.
#[must_use]
pub fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("something that is not text").to_owned()
}

/// Waits on a host's clock.
pub fn wait_ms(clock: &SimulatedClock, ms: u64) {
    let until_ms = clock.now_ms() + ms;
    loop {
        match until_ms.saturating_sub(clock.now_ms()) {
            0 => return,
            // A millisecond, and as long a pause as there is.
            1..16 => clock.pause(1024),
            _ => clock.pause(u32::MAX),
        }
    }
}

/// Runs `one` for each of `seeds`; the environment variable `RACKLINE_SEED` replays a single one.
///
/// # Panics
/// When `RACKLINE_SEED` is not a number, and as `one` does, after the seed was printed.
pub fn for_seeds(seeds: Range<u64>, one: impl Fn(u64) + RefUnwindSafe) {
    let run = |seed| {
        if let Err(panic) = catch_unwind(|| one(seed)) {
            eprintln!("failed with RACKLINE_SEED={seed}");
            resume_unwind(panic);
        }
    };
    match std::env::var("RACKLINE_SEED") {
        Ok(seed) => {
            run(seed.parse().unwrap_or_else(|_| panic!("RACKLINE_SEED={seed}: not a number")))
        }
        Err(_) => seeds.for_each(run),
    }
}
