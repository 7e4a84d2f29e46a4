//! The fence `process`: the victim's processes run on this very machine, and are killed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::clock::SystemClock;
use crate::fabric::{Fabric, MappedFabric};
use crate::host::{
    HOST_TIER_FOLDER, HostIdentity, HostTier, HostTierFile, Liveness, ProcLiveness, ProcessIdentity,
};
use crate::layout::{Layout, Superblock};
use crate::lifecycle::fencing::runs::Runs;
use crate::lifecycle::fencing::{Fence, FenceOrder, FenceState};
use crate::lifecycle::write_back::flush_killed;
use crate::units::{Incarnation, NodeId};

/// How long a killed process may take to be gone.
const GONE_MS: u64 = 30_000;
/// After a failure, how long until it is tried again.
const AGAIN_MS: u64 = 1_000;

/// Kills the processes of a node that run on this machine under this boot, as its host tier lists
/// them, and waits until they are gone. Then everything that they may have left in this machine's
/// caches is published (MEM-M8): a dirty line of the dead would otherwise reach the device long
/// after another host has written it.
///
/// Both on a thread of its own: a process may take long to end, and there may be much to publish.
/// The caller grants locks meanwhile.
#[derive(Debug)]
pub struct ProcessFence<F = MappedFabric> {
    fabric: F,
    /// Where host tiers are.
    tiers: PathBuf,
    superblock: Superblock,
    layout: Layout,
    host: HostIdentity,
    runs: Runs<Receiver<Result<(), String>>>,
}

impl<F: Fabric + Clone + Send + 'static> ProcessFence<F> {
    /// A fence for the region on `fabric`, for processes of this machine.
    ///
    /// # Errors
    /// When the operating system does not say which machine this is.
    pub fn new(fabric: F, superblock: Superblock, layout: Layout) -> std::io::Result<Self> {
        let (host, tiers) = (HostIdentity::current()?, PathBuf::from(HOST_TIER_FOLDER));
        let runs = Runs::new(AGAIN_MS);
        Ok(Self { fabric, tiers, superblock, layout, host, runs })
    }
}

impl<F: Fabric + Clone + Send + 'static> Fence for ProcessFence<F> {
    fn poll(&mut self, order: &FenceOrder, now_ms: u64) -> FenceState {
        let Self { fabric, tiers, superblock, layout, host, runs } = self;
        let start = || {
            // The same kernel: its processes are ours to see and to kill. The machine id alone does
            // not tell, as images of one installation share it.
            if order.machine.map(|machine| machine.boot_id) != Some(host.boot_id) {
                let host = order.host.as_ref().map(|host| format!(" \"{host}\""));
                let host = host.unwrap_or_default();
                return Err(format!("its host{host} is another machine than this"));
            }
            let path = HostTierFile::path_in(tiers, superblock, order.victim);
            start(fabric.clone(), *layout, *superblock, path, order, host.pid_namespace)
        };
        runs.poll(order, now_ms, start, |outcome, _| match outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err("the fence's thread has died".to_owned())),
        })
    }
}

/// Starts the thread that kills the processes of the tier at `path` and publishes what they left.
fn start<F: Fabric + Send + 'static>(
    fabric: F,
    layout: Layout,
    superblock: Superblock,
    path: PathBuf,
    order: &FenceOrder,
    pid_namespace: u64,
) -> Result<Receiver<Result<(), String>>, String> {
    let (sender, receiver) = channel();
    let (victim, life) = (order.victim, order.incarnation);
    let job = move || {
        let killed = kill_all(&path, &superblock, victim, life, pid_namespace, GONE_MS);
        if killed.is_ok() {
            flush_killed(&layout, &fabric, victim);
        }
        // Nobody listens when the lock manager has ended meanwhile.
        let _ = sender.send(killed);
    };
    let thread = std::thread::Builder::new().name("rackline-fence".to_owned()).spawn(job);
    thread.map(|_| receiver).map_err(|error| format!("no thread for the fence: {error}"))
}

/// Kills every process of the tier at `path` and waits until they are gone, and before that for
/// processes that join or leave, for `wait_ms` each.
fn kill_all(
    path: &Path,
    superblock: &Superblock,
    victim: NodeId,
    incarnation: Incarnation,
    pid_namespace: u64,
    wait_ms: u64,
) -> Result<(), String> {
    if !path.exists() {
        return Err(format!("its host tier {} is not on this machine", path.display()));
    }
    // Nobody joins or leaves meanwhile.
    let file = HostTierFile::lock_within(path, wait_ms).map_err(|error| error.to_string())?;
    let Some(file) = file else {
        // Perhaps it is stopped, and perhaps no member yet: nothing says that it is one to be
        // killed.
        let path = path.display();
        return Err(format!(
            "a process of the node is joining or leaving and does not finish: it holds the lock of \
             {path} (`lslocks` names it); let it continue, or end it"
        ));
    };
    let words = HostTier::words_of(&superblock.geometry);
    let memory = file.map(words).map_err(|error| error.to_string())?;
    let tier = HostTier::new(memory, superblock.geometry.locks);
    match tier.life(superblock.uuid, victim) {
        // Made by a process that died before it had joined: nobody has ever written as the node.
        None => return Err(format!("{} is not the tier of that node", path.display())),
        // Processes of another life are not to be killed for this one, nor do they say anything
        // about where this one ran.
        Some(life) if life != incarnation => {
            return Err(format!("{} is of incarnation {life} of that node", path.display()));
        }
        Some(_) => {}
    }
    if tier.pid_namespace() != pid_namespace {
        return Err("its processes are in another pid namespace than this one".to_owned());
    }
    let processes: Vec<ProcessIdentity> = tier.processes().map(|(_, identity)| identity).collect();
    // One process may be a member of two nodes: it does not kill itself.
    let me = ProcessIdentity::current().map_err(|error| error.to_string())?;
    if processes.contains(&me) {
        return Err("this very process is one of its processes".to_owned());
    }
    if !processes.is_empty() {
        // Each thread of a process has a place of its own.
        let pids: BTreeSet<u32> = processes.iter().map(|process| process.pid()).collect();
        tracing::warn!(
            node = %victim, %incarnation, ?pids,
            "kills all processes of this node with SIGKILL: the node was declared dead, because \
             its heartbeat stopped, and its processes run on this machine"
        );
    }
    for process in &processes {
        kill(*process)?;
    }
    let clock = SystemClock::start();
    for process in &processes {
        let mut waited_ms = 0;
        while ProcLiveness.is_alive(*process) {
            if waited_ms >= wait_ms {
                return Err(format!("process {} does not end", process.pid()));
            }
            clock.sleep_ms(1);
            waited_ms += 1;
        }
    }
    Ok(())
}

fn kill(process: ProcessIdentity) -> Result<(), String> {
    let failed = |error: rustix::io::Errno| format!("cannot kill {}: {error}", process.pid());
    let Some(pid) = i32::try_from(process.pid()).ok().and_then(Pid::from_raw) else {
        return Err(format!("{} is no process id", process.pid()));
    };
    // The descriptor first, the look at the start time after it: what is killed is what was
    // looked at, also when the number passes to another process meanwhile.
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        handle => handle.map_err(failed)?,
    };
    if !ProcLiveness.is_alive(process) {
        return Ok(());
    }
    match pidfd_send_signal(&handle, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::OwnedLine;
    use crate::layout::{Case, ChunkEntry, ChunkState, Geometry, Machine, format_superblock};
    use crate::units::{ChunkId, LineOffset, LineRange, WordOffset};
    use crate::verify::simulated::{Access, Interposed, SimulatedRack};
    use std::process::{Child, Command};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    const NODE: NodeId = NodeId(1);
    const LIFE: Incarnation = Incarnation(4);
    const HERE: u64 = 1;

    fn superblock() -> Superblock {
        let geometry = Geometry {
            region_bytes: 16 << 20,
            nodes: 2,
            locks: 8,
            chunk_bytes: 1 << 20,
            area_lines: 1,
            host_words: 0,
        };
        Superblock::new([1, 2], geometry, [0; 6])
    }

    /// A tier of `life` in pid namespace `namespace`, in which a child of this process is a member.
    fn with_member(life: Incarnation, namespace: u64, test: impl FnOnce(&Path, &mut Child)) {
        let folder = tempfile::tempdir().unwrap();
        let path = HostTierFile::path_in(folder.path(), &superblock(), NODE);
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let start = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap();
        let identity = ProcessIdentity::new(child.id(), start.parse().unwrap());
        assert!(ProcLiveness.is_alive(identity));
        {
            let file = HostTierFile::lock(&path).unwrap();
            let memory = file.map(HostTier::words_of(&superblock().geometry)).unwrap();
            let tier = HostTier::new(memory, superblock().geometry.locks);
            tier.reset(superblock().uuid, NODE, life, namespace);
            tier.register(identity).unwrap();
        }
        test(&path, &mut child);
        // It may have ended already.
        let _ = child.kill();
        child.wait().unwrap();
    }

    fn is_running(child: &mut Child) -> bool {
        child.try_wait().unwrap().is_none()
    }

    #[test]
    fn processes_of_the_life_that_is_dead_are_killed() {
        with_member(LIFE, HERE, |path, child| {
            assert_eq!(kill_all(path, &superblock(), NODE, LIFE, HERE, GONE_MS), Ok(()));
            assert!(!is_running(child));
        });
    }

    #[test]
    fn numbers_of_another_pid_namespace_kill_nobody_and_are_no_fence() {
        with_member(LIFE, HERE + 1, |path, child| {
            let refused = kill_all(path, &superblock(), NODE, LIFE, HERE, GONE_MS).unwrap_err();
            assert!(refused.contains("another pid namespace"), "{refused}");
            assert!(is_running(child), "a process that has the number by chance was killed");
        });
    }

    #[test]
    fn a_tier_of_another_life_kills_nobody_and_is_no_fence() {
        with_member(Incarnation(LIFE.0 + 1), HERE, |path, child| {
            let refused = kill_all(path, &superblock(), NODE, LIFE, HERE, GONE_MS).unwrap_err();
            assert!(refused.contains("incarnation 5"), "{refused}");
            assert!(is_running(child));
        });
    }

    /// A process is killed, whose machine's caches hold what it had stored and not published: in
    /// its node's area, in another's, in a chunk of its node, in another's heap, and in the first
    /// line of a chunk that it was giving to a heap.
    #[test]
    fn what_the_killed_left_in_the_caches_is_on_the_device_before_the_fence_holds() {
        let this = HostIdentity::current().unwrap();
        with_member(LIFE, this.pid_namespace, |path, child| {
            let superblock = superblock();
            let rack = SimulatedRack::sticky(1, superblock.geometry.region_bytes);
            let host = rack.host(0);
            let layout = format_superblock(&host, &superblock, |_, _| ()).unwrap();
            let first = |chunk| LineRange::covering(layout.chunk(ChunkId(chunk))).start();
            for (chunk, owner, purpose) in
                [(1, NODE, 7), (2, NodeId(0), crate::layout::HEAP_PURPOSE)]
            {
                let state = ChunkState::Owned { owner, incarnation: LIFE, purpose };
                let entry = layout.chunk_entry(ChunkId(chunk));
                OwnedLine::new(entry.at()).publish(&host, &ChunkEntry::new(state));
            }
            let after = |line: LineOffset| LineOffset::new(line.bytes() + (128 << 10)).unwrap();
            let areas = layout.nodes().map(|node| layout.area(node).range().start());
            let left: Vec<WordOffset> = areas
                .chain([after(first(1)), after(first(2)), first(3)])
                .map(|line| line.word(0).unwrap())
                .collect();
            left.iter().for_each(|word| host.store(*word, 5));

            let [asked, goes_on] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
            let (is_asked, may_go_on) = (Arc::clone(&asked), Arc::clone(&goes_on));
            // What is written back waits until it may continue.
            let held = Interposed::new(host, move |access: Access| {
                if matches!(access, Access::WriteBack(_)) {
                    is_asked.store(true, Ordering::Relaxed);
                    while !may_go_on.load(Ordering::Relaxed) {
                        SystemClock::start().sleep_ms(1);
                    }
                }
            });
            let mut fence = ProcessFence::new(held, superblock, layout).unwrap();
            fence.tiers = path.parent().unwrap().to_owned();
            let order = FenceOrder {
                victim: NODE,
                // Of a life that was given up during admission since: the slot has the one before
                // it.
                case: Case { incarnation: Incarnation(LIFE.0 + 1), appointment: 1 },
                incarnation: LIFE,
                host: Some(this.name.clone()),
                machine: Some(Machine { boot_id: this.boot_id, machine_id: this.machine_id }),
            };
            // The caller is not kept waiting, and is told nothing that is not true yet.
            while is_running(child) || !asked.load(Ordering::Relaxed) {
                assert_eq!(fence.poll(&order, 0), FenceState::Running);
                SystemClock::start().sleep_ms(1);
            }
            assert_eq!(fence.poll(&order, 0), FenceState::Running);
            goes_on.store(true, Ordering::Relaxed);
            while fence.poll(&order, 0) == FenceState::Running {
                SystemClock::start().sleep_ms(1);
            }
            assert_eq!(fence.poll(&order, 0), FenceState::Fenced);
            let arrived: Vec<u64> = left.iter().map(|word| rack.device_word(*word)).collect();
            assert_eq!(arrived, [5; 5]);
        });
    }

    #[test]
    fn a_process_that_joins_and_does_not_end_is_waited_for_and_told_of() {
        with_member(LIFE, HERE, |path, child| {
            let joins = HostTierFile::lock(path).unwrap();
            let refused = kill_all(path, &superblock(), NODE, LIFE, HERE, 20).unwrap_err();
            assert!(refused.contains("is joining or leaving"), "{refused}");
            assert!(is_running(child));
            drop(joins);
            assert_eq!(kill_all(path, &superblock(), NODE, LIFE, HERE, GONE_MS), Ok(()));
        });
    }

    #[test]
    fn without_a_tier_there_is_no_fence() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tier");
        assert!(kill_all(&path, &superblock(), NODE, LIFE, HERE, GONE_MS).is_err());
        assert!(!path.exists());
    }
}
