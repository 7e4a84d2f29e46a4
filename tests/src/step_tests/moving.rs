//! A node slot that moves from host to host and back, every host's caches full of what the slot
//! was before (rule MEM-M8).

use std::cell::RefCell;

use cxl_shm::fabric::PeerLine;
use cxl_shm::layout::{Layout, LockProtocol, NodeLine, NodeState};
use cxl_shm::lifecycle::{NodeHeartbeat, watch_heartbeats};
use cxl_shm::lock::Manage;
use cxl_shm::node::Backend;
use cxl_shm::units::{ChunkId, LockId, NodeId};

use super::bed::{OBSERVER, Scripted, acquire, beat_all, cluster, manager_polls, poll_grants};
use crate::rack::{Cluster, Mutant, RackMember};

const LOCK: LockId = LockId(9);
const NODE: usize = 1;

/// One life in the slot: takes the lock, gives back what the life before left, and leaves a chunk.
fn live<B: Backend>(
    cluster: &Cluster,
    member: &RackMember,
    manage: &RefCell<Manage<'_, B>>,
    inherited: Option<ChunkId>,
) -> ChunkId {
    let clock = cluster.clock(0);
    for _ in 0..2 {
        drop(acquire(cluster, member, &clock, LOCK, manage));
        cluster.warm();
        poll_grants(&mut manage.borrow_mut(), 0);
    }
    // Given back by a host that has never looked at the table.
    if let Some(chunk) = inherited {
        cluster.warm();
        let clock = manager_polls(cluster, manage, &[1]);
        member.free_chunk(&clock, 1000, chunk).unwrap_or_else(|error| panic!("{error}"));
    }
    cluster.warm();
    assert_eq!(member.owned_chunks(), []);
    let taken = member.allocate_chunk(&manager_polls(cluster, manage, &[1]), 1000, 7);
    let taken = taken.unwrap_or_else(|error| panic!("{error}"));
    cluster.warm();
    assert_eq!(member.owned_chunks(), [(taken, 7)]);
    poll_grants(&mut manage.borrow_mut(), 0);
    taken
}

fn line_of(cluster: &Cluster, layout: &Layout) -> NodeLine {
    cluster.warm();
    let line: PeerLine<NodeLine> = layout.node_line(NodeId(1));
    line.fresh(&cluster.rack.host(OBSERVER)).unwrap_or_else(|error| panic!("{error}"))
}

/// Two hosts inhabit one slot in turn; each continues where the other ended, and everybody sees who
/// lives there at once.
///
/// # Panics
/// When one of them was not seen.
pub fn a_slot_moves_and_comes_back(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let manager = cluster.join(0, "manager");
    let manage = RefCell::new(manager.manage().expect("nobody else manages"));
    manage.borrow_mut().claim().expect("there are terms");
    beat_all(&[&manager]);
    poll_grants(&mut manage.borrow_mut(), 0);
    let mut inherited = None;
    for (life, host) in [1, 2, 1, 2].into_iter().enumerate() {
        cluster.warm();
        let member = cluster.join_as(host, NODE, "inhabitant");
        let member = member.unwrap_or_else(|error| panic!("life {life}: {error}"));
        assert_eq!(member.incarnation().0 as usize, life + 1);
        cluster.warm();
        // LOCK-T4: it has acknowledged the term by joining.
        poll_grants(&mut manage.borrow_mut(), 0);
        let reports = manage.borrow().nodes();
        let report = reports.iter().find(|report| report.node == member.node());
        assert!(report.is_some_and(|report| report.acknowledged), "{reports:?}");
        // Nobody beats: caches that know older beats must not take them for new ones.
        let looker = cluster.rack.host(OBSERVER);
        let layout = *manager.layout();
        beat_all(&[&manager, &member]);
        let still = Scripted::with_pauses_of(400, |_| cluster.warm());
        let heartbeats = watch_heartbeats(&layout, &looker, &still);
        assert!(
            heartbeats.iter().all(|heartbeat| !heartbeat.beats),
            "nobody beats: {heartbeats:?}"
        );
        let lives_there = |heartbeat: &NodeHeartbeat| heartbeat.host == format!("host-{host}");
        assert!(
            heartbeats.iter().any(lives_there),
            "whose slot it is was not seen: {heartbeats:?}"
        );
        // One beat of everybody while we watch.
        cluster.warm();
        let clock = Scripted::new(|pause| {
            assert_eq!(pause, 0, "a beat was not seen at once");
            cluster.warm();
            beat_all(&[&manager, &member]);
        });
        let heartbeats = watch_heartbeats(&layout, &looker, &clock);
        let heartbeat = heartbeats.iter().find(|heartbeat| heartbeat.node == member.node());
        let heartbeat =
            heartbeat.unwrap_or_else(|| panic!("the node is not there: {heartbeats:?}"));
        assert_eq!(
            (heartbeat.host.as_str(), heartbeat.beats),
            (format!("host-{host}").as_str(), true)
        );
        assert_eq!(heartbeat.state, Some(NodeState::Joined));
        assert_eq!(heartbeat.incarnation, member.incarnation());

        // What the layer above keeps in the node's area, eight words to a line.
        let area = member.area();
        let word = |index| area.word(index).expect("an area has a line");
        for earlier in 0..life {
            assert_eq!(word(earlier as u64).own(member.fabric()), 7, "life {earlier} wrote it");
        }
        word(life as u64).publish(member.fabric(), 7);
        inherited = Some(live(&cluster, &member, &manage, inherited));
        member.leave();
        assert_eq!(line_of(&cluster, &layout).state(), Some(NodeState::Left));
        cluster.warm();
        poll_grants(&mut manage.borrow_mut(), 0);
        assert!(manage.borrow().nodes().iter().all(|report| report.node != NodeId(1)));
    }
    cluster.check_writers();
}

/// A manager that leaves and comes back on another host, under the same node number.
///
/// # Panics
/// When one of its claims or beats was not seen.
pub fn a_manager_moves_and_comes_back(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let clock = cluster.clock(0);
    let worker = cluster.join(0, "worker");
    let mut newest = 0;
    for host in [1, 2, 1] {
        cluster.warm();
        let member = cluster.join_as(host, NODE, "manager").unwrap_or_else(|e| panic!("{e}"));
        let manage = RefCell::new(member.manage().expect("nobody else manages"));
        cluster.warm();
        let term = manage.borrow_mut().claim().expect("there are terms");
        assert!(term > newest, "a claim goes beyond all that was claimed");
        newest = term;
        cluster.warm();
        beat_all(&[&worker, &member]);
        for _ in 0..2 {
            let before = worker.manager_seen().expect("it serves");
            assert_eq!((before.term, before.serving), (term, true));
            cluster.warm();
            poll_grants(&mut manage.borrow_mut(), 0);
            assert_ne!(worker.manager_seen(), Some(before), "a round is a beat");
        }
        drop(acquire(&cluster, &worker, &clock, LOCK, &manage));
        cluster.warm();
        poll_grants(&mut manage.borrow_mut(), 0);
        drop(manage);
        cluster.warm();
        assert_eq!(worker.manager_seen().map(|seen| seen.serving), Some(false));
        member.leave();
    }
    cluster.check_writers();
}
