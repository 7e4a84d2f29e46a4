//! Joining and leaving a node slot.

use std::fs;

use super::{HostLockName, HostTier, Liveness, Member, ProcessIdentity, SUSPECT_MS, Seat};
use crate::clock::Clock;
use crate::fabric::{Fabric, HostMemory, LineError};
use crate::intent::redo_own;
use crate::layout::{HostName, NodeLine, NodeState, SuperblockError, read_superblock};
use crate::lock::arbitrated::obey_newest_term;
use crate::units::{Incarnation, LockId, NodeId};

/// The host a process runs on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostIdentity {
    /// Its name, for people.
    pub name: String,
    /// The kernel's id of the present boot.
    pub boot_id: [u64; 2],
}

impl HostIdentity {
    /// The host this process runs on.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn current() -> std::io::Result<Self> {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let half = |part: Option<&str>| part.and_then(|part| u64::from_str_radix(part, 16).ok());
        let boot_id = match (half(digits.get(..16)), half(digits.get(16..))) {
            (Some(high), Some(low)) => [high, low],
            _ => return Err(std::io::Error::other("the kernel's boot id is malformed")),
        };
        let name = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        Ok(Self { name, boot_id })
    }

    /// Host `index` of a simulated rack.
    #[must_use]
    pub fn simulated(index: u64) -> Self {
        Self {
            name: format!("host-{index}"),
            boot_id: [index + 1, 0],
        }
    }
}

/// Why a process did not become a member. Nothing is changed then.
#[derive(Debug, thiserror::Error)]
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
        "node {node} is in use by host \"{host}\", whose heart beats; give this host another \
         node number"
    )]
    NodeInUse {
        /// The node.
        node: NodeId,
        /// The host's name.
        host: String,
    },
    /// The node's identity line cannot be read.
    #[error(
        "the identity line of node {node} is damaged ({source}); `rackline format --force` makes the region anew"
    )]
    Damaged {
        /// The node.
        node: NodeId,
        /// What is wrong.
        source: LineError,
    },
    /// The node slot has been joined too often.
    #[error("node {node} has no incarnations left; format the region anew")]
    NoIncarnations {
        /// The node.
        node: NodeId,
    },
    /// As many processes as a node can have.
    #[error("node {node} has {processes} processes already, the most there can be")]
    TooManyProcesses {
        /// The node.
        node: NodeId,
        /// The most there can be.
        processes: u16,
    },
}

/// What leaving meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaveOutcome {
    /// Other processes of the host are still members.
    OthersRemain,
    /// It was the host's last process: the node has left, the host tier can be removed.
    NodeLeft,
}

impl<F: Fabric, H: HostMemory, L: Liveness> Member<F, H, L> {
    /// Makes this process a member of `node`.
    ///
    /// `memory` is the host tier of this host for this region; the caller keeps other processes
    /// of the host from joining or leaving meanwhile (a file lock on the tier's file). The first
    /// process of the host joins the node slot: after return every host sees the node as joined,
    /// under a new incarnation, with what its former incarnation left half done completed.
    ///
    /// Waits up to [`SUSPECT_MS`] when the slot was left in disorder by what may be another host.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(
        fabric: F,
        memory: H,
        node: u16,
        host: &HostIdentity,
        process: ProcessIdentity,
        liveness: L,
        clock: &impl Clock,
    ) -> Result<Self, JoinError> {
        let (superblock, layout) = read_superblock(&fabric)?;
        let nodes = layout.geometry().nodes;
        let node = layout
            .node(node)
            .ok_or(JoinError::UnknownNode { node, nodes })?;
        let tier = HostTier::new(memory, layout.locks());
        let running = tier.incarnation(superblock.uuid, node).filter(|_| {
            tier.processes()
                .any(|(_, identity)| liveness.is_alive(identity))
        });
        let seat = Seat::new(layout, node, tier);
        let incarnation = match running {
            Some(incarnation) => incarnation,
            None => take_slot(&seat, &fabric, superblock.uuid, host, clock)?,
        };
        let Some((process, token)) = seat.tier().register(process) else {
            let processes = super::PROCESSES_MAX;
            return Err(JoinError::TooManyProcesses { node, processes });
        };
        let agent = Default::default();
        Ok(Self {
            fabric,
            superblock,
            seat,
            incarnation,
            process,
            token,
            liveness,
            agent,
        })
    }

    /// Leaves. The last process of a host leaves the node slot too: after return every host sees
    /// that the node has left. The caller keeps other processes of the host from joining or
    /// leaving meanwhile.
    pub fn leave(self) -> LeaveOutcome {
        self.seat
            .tier()
            .host_lock(HostLockName::Agent)
            .release(self.token);
        self.seat.tier().unregister(self.process);
        let others = self
            .seat
            .tier()
            .processes()
            .any(|(_, identity)| self.liveness.is_alive(identity));
        if others {
            return LeaveOutcome::OthersRemain;
        }
        // Whatever dead processes of this host left of the region's locks ends here.
        for lock in (0..self.layout().locks()).map(LockId) {
            crate::lock::recover(&self, lock);
        }
        self.seat.tier().set_member(false);
        if let Ok(line) = self.seat.node_line().own(&self.fabric) {
            let left = NodeLine::new(NodeState::Left, self.incarnation, line.boot_id());
            self.seat.node_line().publish(&self.fabric, &left);
        }
        LeaveOutcome::NodeLeft
    }
}

/// Joins the node slot as the first process of this host.
fn take_slot<F: Fabric, H: HostMemory>(
    seat: &Seat<H>,
    fabric: &F,
    uuid: [u64; 2],
    host: &HostIdentity,
    clock: &impl Clock,
) -> Result<Incarnation, JoinError> {
    let (layout, node) = (seat.layout(), seat.node());
    let last = match layout.node_line(node).fresh(fabric) {
        Ok(line) => Some(line),
        Err(LineError::Blank { .. }) => None,
        Err(source) => return Err(JoinError::Damaged { node, source }),
    };
    let left = last.is_none_or(|line| line.state() == Some(NodeState::Left));
    // Our own tier of an earlier life, with nobody alive in it, says that the slot is ours.
    let ours = seat
        .tier()
        .incarnation(uuid, node)
        .is_some_and(|incarnation| {
            last.is_some_and(|line| {
                line.boot_id() == host.boot_id && line.incarnation() == incarnation
            })
        });
    if !left && !ours && heart_beats(seat, fabric, clock) {
        let host = layout.host_name(node).fresh(fabric);
        let host = host.map_or_else(|_| "unknown".to_owned(), |name| name.to_string());
        return Err(JoinError::NodeInUse { node, host });
    }
    let last = last.map_or(0, |line| line.incarnation().0);
    let incarnation = last
        .checked_add(1)
        .ok_or(JoinError::NoIncarnations { node })?;
    let incarnation = Incarnation(incarnation);

    // M8: what an earlier life of this host left in its caches is gone before we write.
    fabric.refresh(seat.area().range());
    fabric.refresh(layout.requests(node).range());
    fabric.refresh(layout.intents(node).range());
    seat.tier().reset(uuid, node, incarnation);

    // Coming is announced before we look for a manager: a manager that claims a term either sees
    // us, or we see its claim (T4).
    seat.host_name().publish(fabric, &HostName::new(&host.name));
    seat.node_line().publish(
        fabric,
        &NodeLine::new(NodeState::Joining, incarnation, host.boot_id),
    );

    // L2: redo and close what the former incarnation left open, while its requests still stand,
    // then end those. A2: tickets go on from where they were.
    for lock in (0..layout.locks()).map(LockId) {
        redo_own(seat, fabric, lock);
        let request = seat.request(lock);
        let ticket = request.own(fabric);
        let even = ticket.next_multiple_of(2);
        if even != ticket {
            request.publish(fabric, even);
        }
        seat.resume_ticket(lock, even);
    }
    seat.resume_summary(fabric);
    obey_newest_term(seat, fabric);
    seat.node_line().publish(
        fabric,
        &NodeLine::new(NodeState::Joined, incarnation, host.boot_id),
    );
    seat.tier().set_member(true);
    Ok(incarnation)
}

/// Watches the heart of the slot's last inhabitant.
fn heart_beats<F: Fabric, H: HostMemory>(seat: &Seat<H>, fabric: &F, clock: &impl Clock) -> bool {
    let heartbeat = seat.layout().heartbeat(seat.node());
    let first = heartbeat.fresh(fabric);
    let until_ms = clock.now_ms().saturating_add(SUSPECT_MS);
    let mut tries = 0;
    while clock.now_ms() < until_ms {
        if heartbeat.fresh(fabric) != first {
            return true;
        }
        clock.pause(tries);
        tries += 1;
    }
    false
}
