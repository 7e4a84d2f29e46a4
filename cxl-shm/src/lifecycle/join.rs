//! Joining a node slot: `attempt_join` seeks admission, `move_in` prepares the slot.

use super::admission::{JoinAttempt, SlotSnapshot};
use super::consensus::Ballots;
use super::write_back::flush_recoveries;
use crate::clock::Clock;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, refresh_all};
use crate::fork::ProcessMark;
use crate::host::HostIdentity;
use crate::host::HostTier;
use crate::host::Liveness;
use crate::host::MembershipLost;
use crate::host::ProcessIdentity;
use crate::intent::redo_own;
use crate::layout::{Arrival, HostName, NodeLine, NodeState, SuperblockError, read_superblock};
use crate::lock::arbitrated::obey_newest_term;
use crate::lock::{Competitor, HandoffFlush, SharedTier, is_for_programs};
use crate::mutant::{self, Mutant};
use crate::node::{
    Backend, Marks, Member, NodeHandle, SUSPECT_MS, Slot, Stillness, is_unreadable, last_named,
    make_good, recoverers_at_work, send_heartbeat,
};
use crate::units::{Incarnation, LockId, NodeId};

/// Why a process did not become a member. Nothing is changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The region cannot be used.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The region has no such node.
    #[error("node {node} does not exist: this region has nodes 0 to {}", .nodes - 1)]
    UnknownNode {
        /// Asked for.
        node: u16,
        /// Nodes of the region.
        nodes: u16,
    },
    /// Another host lives in the slot.
    #[error(
        "node {node} is in use by host \"{host}\", which sends heartbeats; give this host another \
         node number"
    )]
    NodeInUse {
        /// The node.
        node: NodeId,
        /// The host's name.
        host: String,
    },
    /// Another host had the slot and did not leave. That its heartbeat has stopped proves nothing:
    /// it may be paused, and write again.
    #[error(
        "node {node} belongs to host \"{host}\", which did not leave it. Start Rackline on that \
         host again, or give this host another node number. If that host is dead, a running lock \
         manager declares it dead and frees the number once the host is fenced (`rackline status`, \
         `rackline fence --help`)"
    )]
    NotLeft {
        /// The node.
        node: NodeId,
        /// The host's name.
        host: String,
    },
    /// Another host comes for the slot in this moment, or died while it did (JOIN-J4).
    #[error(
        "another host is joining node {node}, or died while joining (perhaps this machine before \
         its last boot). If the number belongs to another host, start Rackline there again. \
         Otherwise try again, or give this host another node number. If the joining host is dead, \
         a running lock manager declares it dead and frees the number once the host is fenced \
         (`rackline status`, `rackline fence --help`)"
    )]
    Contended {
        /// The node.
        node: NodeId,
    },
    /// The present processes of the node do not take part any more.
    #[error(transparent)]
    MembershipLost(#[from] MembershipLost),
    /// Another host is at the recovery of what the former processes of the node left, or may be.
    #[error("{}", being_recovered(*node, *recoverer, *unreadable))]
    BeingRecovered {
        /// The node.
        node: NodeId,
        /// By whom.
        recoverer: NodeId,
        /// The recoverer's record of this recovery cannot be read: it is being written, or it is
        /// damaged.
        unreadable: bool,
    },
    /// A ticket in the region is beyond all counting.
    #[error(
        "the ticket of node {node} for lock {lock} is damaged; format the region again with \
         `rackline format --force`"
    )]
    BadTicket {
        /// The node.
        node: NodeId,
        /// The lock.
        lock: LockId,
    },
    /// The node slot has been joined too often.
    #[error("node {node} has no incarnations left; give this host another node number")]
    NoIncarnations {
        /// The node.
        node: NodeId,
    },
    /// As many processes as a node can have.
    #[error(
        "node {node} has no place left for this process: a node has {processes} places, and each \
         thread that works on the pool takes one (five or more for a process of an engine); end a \
         process of this node, or set fewer copy_threads and fetch_threads"
    )]
    TooManyProcesses {
        /// The node.
        node: NodeId,
        /// The most there can be.
        processes: u16,
    },
}

fn being_recovered(node: NodeId, recoverer: NodeId, unreadable: bool) -> String {
    if unreadable {
        return format!(
            "node {recoverer} may be recovering node {node}, but its recovery record cannot be \
             read; try again. If this error stays, restart Rackline on node {recoverer}, which \
             repairs the record"
        );
    }
    format!(
        "node {node} was declared dead, and node {recoverer} is recovering it; try again after the \
         recovery (`rackline status` shows its progress)"
    )
}

impl<B: Backend> Member<B> {
    /// Makes this process a member of `node`.
    ///
    /// `memory` is the host tier of this host for this region; the caller keeps other processes
    /// of the host from joining or leaving meanwhile (a file lock on the tier's file). The first
    /// process of the host joins the node slot: after return every host sees the node as joined,
    /// under a new incarnation, with what its former incarnation left half done completed.
    ///
    /// Waits up to [`SUSPECT_MS`] when the slot was left in disorder by what may be another host,
    /// or another host comes for it in the same moment.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(
        fabric: B::Fabric,
        memory: B::HostMemory,
        node: u16,
        host: &HostIdentity,
        process: ProcessIdentity,
        liveness: B::Liveness,
        clock: &impl Clock,
    ) -> Result<Self, JoinError> {
        let (superblock, layout) = read_superblock(&fabric)?;
        let nodes = layout.geometry().nodes;
        let node = layout.node(node).ok_or(JoinError::UnknownNode { node, nodes })?;
        let tier = HostTier::new(memory, layout.locks());
        // Process ids of another pid namespace mean nothing here.
        let comparable = tier.pid_namespace() == host.pid_namespace;
        let alive = comparable && tier.processes().any(|(_, identity)| liveness.is_alive(identity));
        let running = tier.incarnation(superblock.uuid, node).filter(|_| alive);
        let ours = alive && tier.life(superblock.uuid, node).is_some();
        if let Some(cause) = tier.loss().filter(|_| ours) {
            return Err(MembershipLost { node, cause }.into());
        }
        let handle = NodeHandle::new(layout, superblock.lock_protocol, node, tier);
        let incarnation = match running {
            Some(incarnation) => incarnation,
            None => take_slot(&handle, &fabric, superblock.uuid, host, process, clock)?,
        };
        let identity = process;
        let Some((process, token)) = handle.tier().register(identity) else {
            let processes = crate::host::PROCESSES_MAX;
            return Err(JoinError::TooManyProcesses { node, processes });
        };
        crash::reach(CrashPoint::ProcessRegistered);
        let mut member = Self {
            fabric,
            superblock,
            handle,
            incarnation,
            process,
            identity,
            token,
            liveness,
            agent: Default::default(),
            office: Default::default(),
            registered: Some(ProcessMark::of_this()),
        };
        // BEAT-G4: the other processes of this host may have slept, and noticed nothing yet.
        if running.is_some()
            && let Some(cause) = member.find_loss()
        {
            member.handle.tier().set_loss(cause);
            member.unregister();
            return Err(MembershipLost { node, cause }.into());
        }
        member.end_reclaim_of_predecessor(clock);
        Ok(member)
    }
}

/// Joins the node slot as the first process of this host.
fn take_slot<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    uuid: [u64; 2],
    host: &HostIdentity,
    process: ProcessIdentity,
    clock: &impl Clock,
) -> Result<Incarnation, JoinError> {
    let admitted = vacate(handle, fabric, uuid, host, process, clock)?;
    move_in(handle, fabric, uuid, host, &admitted)
}

/// LOCK-L5: the former life of this host may have held programs' locks, which are released in its
/// name further on. First goes to the device what its programs may have written, by the map in its
/// tier, if that is there still. The tier of an older life says nothing of it: a life between the
/// two had its tier in another folder, a container's say.
fn flush_holders<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric, uuid: [u64; 2]) {
    let (layout, node) = (handle.layout(), handle.node());
    let mut locks = (0..layout.locks()).map(LockId).filter(|lock| is_for_programs(*lock));
    if !locks.any(|lock| Competitor::may_have_held(handle, fabric, lock)) {
        return;
    }
    let mut flush = match handle.tier().life(uuid, node) {
        // Also of a life that came no further than its tier: it had flushed this before it made
        // that.
        Some(life) if life >= last_named(layout, fabric, node) => HandoffFlush::begin(handle),
        _ => HandoffFlush::all_heaps(layout, fabric),
    };
    while !flush.step(fabric) {
        send_heartbeat(handle, fabric);
    }
}

/// The rest of a join, after the admission: the slot says that this host lives there.
pub(crate) fn move_in<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    uuid: [u64; 2],
    host: &HostIdentity,
    admitted: &Admitted,
) -> Result<Incarnation, JoinError> {
    let (layout, node) = (handle.layout(), handle.node());
    let incarnation = admitted.next;

    // MEM-M8: what an earlier life of this host left in its caches is gone before we write, and
    // what a recoverer wrote meanwhile is there: of all that a node handle gives access to. Beats
    // go on from the last one: a count that went back could repeat what a watcher has seen.
    if !mutant::is(Mutant::JoinsUnrefreshed) {
        refresh_all(fabric, layout.owned_by(node));
    }
    // MEM-M5, and before anything is changed that cannot be taken back.
    let bad = |lock: &LockId| !Competitor::can_resume(handle, fabric, *lock);
    if let Some(lock) = (0..layout.locks()).map(LockId).find(bad) {
        admitted.withdraw(handle, fabric);
        return Err(JoinError::BadTicket { node, lock });
    }
    flush_holders(handle, fabric, uuid);
    handle.tier().reset(uuid, node, incarnation, host.pid_namespace);
    crash::reach(CrashPoint::JoinTierReset);

    make_good(layout, fabric, node, handle.recoveries());
    // ORPHAN-W3: before our line says that the life which wrote the word is over.
    super::orphans::end_reclaim(handle, fabric);
    // Coming is announced before we look for a manager: a manager that claims a term either sees
    // us, or we see its claim (LOCK-T4).
    handle.host_name().publish(fabric, &HostName::new(&host.name));
    let line = |state| NodeLine::new(state, incarnation, host.boot_id, host.machine_id);
    if mutant::is(Mutant::JoinsUnannounced) {
        obey_newest_term(handle, fabric);
    }
    handle.node_line().publish(fabric, &line(NodeState::Joining));
    crash::reach(CrashPoint::JoinAnnounced);
    crate::chunk::end_request_of_dead(layout, fabric, node);

    // LOCK-L2: redo and close what the former incarnation left open, while its requests still
    // stand, then end those. LOCK-A2: tickets go on beyond those.
    for lock in (0..layout.locks()).map(LockId) {
        redo_own(handle, fabric, lock);
        crash::reach(CrashPoint::JoinRedone);
        Competitor::resume(handle, fabric, lock);
    }
    handle.resume_requests(incarnation);
    crash::reach(CrashPoint::JoinResumed);
    if !mutant::is(Mutant::JoinsUnannounced) {
        obey_newest_term(handle, fabric);
    }
    handle.node_line().publish(fabric, &line(NodeState::Joined));
    crash::reach(CrashPoint::JoinSaid);
    handle.tier().set_member(true);
    Ok(incarnation)
}

/// A host that was admitted.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Admitted {
    attempt: JoinAttempt,
    snapshot: SlotSnapshot,
    /// The incarnation that is next, which is ours.
    next: Incarnation,
    /// The life before, when it did not leave: our arrival says that it is over.
    arrived_after: Option<Incarnation>,
}

impl Admitted {
    /// The life that the host came for.
    #[cfg(feature = "verify")]
    pub(crate) fn life(&self) -> Incarnation {
        self.next
    }

    /// The life before did not leave the slot.
    #[cfg(feature = "verify")]
    pub(crate) fn has_arrived(&self) -> bool {
        self.arrived_after.is_some()
    }

    /// Nothing of the new life was written, so there is none: what says that it comes is taken
    /// back.
    fn withdraw<B: Backend>(&self, handle: &NodeHandle<B>, fabric: &B::Fabric) {
        if let Some(last) = self.arrived_after {
            handle.arrival().publish(fabric, Arrival::Life(last).word());
        }
        self.attempt.withdraw(handle.layout(), fabric, &self.snapshot);
    }
}

/// The outcome of one attempt at admission.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum AttemptOutcome {
    /// The host is admitted.
    Admitted(Admitted),
    /// The life that was tried for is no longer the next one: to be tried again at once.
    Again,
    /// Another host comes for the slot.
    Refused,
}

/// Makes sure that nobody else lives in the slot, and that nobody else comes for it.
fn vacate<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    uuid: [u64; 2],
    host: &HostIdentity,
    process: ProcessIdentity,
    clock: &impl Clock,
) -> Result<Admitted, JoinError> {
    let node = handle.node();
    let attempt = JoinAttempt::new(node, host, process);
    let until_ms = clock.now_ms().saturating_add(SUSPECT_MS);
    let mut tries = 0;
    loop {
        match attempt_join(handle, fabric, uuid, host, attempt, || {
            heartbeat_advances(handle, fabric, clock)
        })? {
            AttemptOutcome::Admitted(admitted) => return Ok(admitted),
            AttemptOutcome::Again => continue,
            AttemptOutcome::Refused => {}
        }
        if clock.now_ms() >= until_ms {
            return Err(JoinError::Contended { node });
        }
        clock.pause(tries);
        tries += 1;
    }
}

/// One attempt at admission. `heartbeat_advances` watches the heartbeat of the slot's last
/// inhabitant.
pub(crate) fn attempt_join<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    uuid: [u64; 2],
    host: &HostIdentity,
    attempt: JoinAttempt,
    heartbeat_advances: impl Fn() -> bool,
) -> Result<AttemptOutcome, JoinError> {
    let (layout, node) = (handle.layout(), handle.node());
    let slot = Slot::inside(layout, fabric, node);
    let said = slot.map_or(Incarnation(0), |slot| slot.said);
    let snapshot = attempt.look(layout, fabric, said);
    let (last, died_in_admission) = snapshot.last();
    let arrived = slot.filter(|slot| slot.in_admission).map_or(last, |slot| slot.incarnation);
    // DEATH-R3: the arrival of a host at a slot that was not left, whose mark is now ours or
    // belongs to no host.
    let closed = snapshot.is_closed() || arrived > last;
    let next = life_after(handle, fabric, last).ok_or(JoinError::NoIncarnations { node })?;
    let vacant = slot.is_none_or(|slot| slot.vacant) && !died_in_admission;
    if closed || vacant {
        // Nobody to make sure of, or no use in it.
    } else if died_in_admission {
        // JOIN-J4: this host's own life. None of its processes joins beside us; a heartbeat that
        // stands still proves the death on this very machine, as below.
        if heartbeat_advances() {
            return Err(JoinError::NodeInUse { node, host: host_of(handle, fabric) });
        }
    } else if let Some(last) = slot {
        // Of a line that cannot be read the mark still tells the machine.
        let marks = Marks::cached(layout, fabric, node);
        let machine = last.machine.or_else(|| marks.machine_of(last.incarnation));
        check_gone(handle, fabric, uuid, host, &Slot { machine, ..last }, heartbeat_advances)?;
    }
    if closed || attempt.try_claim(layout, fabric, &snapshot, next).is_err() {
        return Ok(AttemptOutcome::Refused);
    }
    let arrived_after = (!vacant).then_some(last);
    let admitted = Admitted { attempt, snapshot, next, arrived_after };
    if life_after(handle, fabric, last) != Some(next) {
        // DEATH-C2: another came for that life while we watched a heartbeat, or slept, and gave up.
        attempt.withdraw(layout, fabric, &admitted.snapshot);
        return Ok(AttemptOutcome::Again);
    }
    if !vacant {
        flush_recoveries(layout, fabric, node);
    }
    if !vacant && let Err(error) = arrive(handle, fabric, next) {
        admitted.withdraw(handle, fabric);
        return Err(error);
    }
    Ok(AttemptOutcome::Admitted(admitted))
}

/// The first life after `last` of which nobody has opened a case (DEATH-C2); `None` when there is
/// none left. One may have been in admission (JOIN-J4), where its host only slept, and withdrew:
/// the host that took that life would fence itself, at once or later.
fn life_after<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    last: Incarnation,
) -> Option<Incarnation> {
    let node = handle.node();
    let opened = Ballots::fresh(handle.layout(), fabric, [node]).last_case(node);
    let after = opened.map_or(last, |case| case.incarnation.max(last));
    after.0.checked_add(1).map(Incarnation)
}

/// Makes sure that the last inhabitant of the slot, which did not leave it, is gone.
fn check_gone<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    uuid: [u64; 2],
    host: &HostIdentity,
    last: &Slot,
    heartbeat_advances: impl Fn() -> bool,
) -> Result<(), JoinError> {
    let node = handle.node();
    let same_boot = last.machine.is_some_and(|machine| machine.boot_id == host.boot_id);
    let same_machine = host.machine_id != [0; 2]
        && last.machine.is_some_and(|machine| machine.machine_id == host.machine_id);
    // Our own tier of that life, in which nobody lives: it tells the machine, too.
    let ours = last.machine.is_none_or(|_| same_boot)
        && handle.tier().pid_namespace() == host.pid_namespace
        && handle.tier().life(uuid, node) == Some(last.incarnation);
    // Also of a machine that seems to have booted since: images of one installation have one id,
    // and the other may live.
    if !ours && heartbeat_advances() {
        return Err(JoinError::NodeInUse { node, host: host_of(handle, fabric) });
    }
    // A heartbeat that has stopped proves a death only on this very machine (a time-out is not a
    // fence).
    if !ours && !same_boot && !same_machine {
        return Err(JoinError::NotLeft { node, host: host_of(handle, fabric) });
    }
    Ok(())
}

/// The former life is over, and its lines are ours, unless a recoverer has them already (DEATH-R3):
/// say that we come, then look. A recoverer says that it begins, then looks.
fn arrive<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    next: Incarnation,
) -> Result<(), JoinError> {
    let (layout, node) = (handle.layout(), handle.node());
    fabric.refresh(layout.arrival(node).range());
    handle.arrival().publish(fabric, Arrival::Life(next).word());
    crash::reach(CrashPoint::JoinArrived);
    // The line of the slot was refreshed when we came.
    let at_work = recoverers_at_work(layout, fabric, node);
    if let Some(recoverer) = at_work.first().filter(|_| !mutant::is(Mutant::ArrivesUnseen)).copied()
    {
        // The caller takes the arrival back. A recoverer that has yielded to it meanwhile begins
        // again.
        let unreadable = is_unreadable(layout, fabric, recoverer, node);
        return Err(JoinError::BeingRecovered { node, recoverer, unreadable });
    }
    Ok(())
}

fn host_of<B: Backend>(handle: &NodeHandle<B>, fabric: &B::Fabric) -> String {
    let name = handle.layout().host_name(handle.node()).fresh(fabric);
    name.map_or_else(|_| "unknown".to_owned(), |name| name.to_string())
}

/// Watches the heartbeat of the slot's last inhabitant, until it has beaten or was watched for
/// [`SUSPECT_MS`] without a gap (BEAT-G0).
fn heartbeat_advances<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    clock: &impl Clock,
) -> bool {
    let heartbeat = handle.layout().heartbeat(handle.node());
    let first = heartbeat.fresh(fabric);
    let (mut watching, mut tries) = (Stillness::default(), 0);
    // The heartbeat is read before the time: what was not watched does not count.
    while heartbeat.fresh(fabric) == first {
        if watching.look((), clock.now_ms()) >= SUSPECT_MS {
            return false;
        }
        clock.pause(tries);
        tries += 1;
    }
    true
}
