//! A node slot that moves from host to host and back, every host's caches full of what the slot
//! was before (rule M8).

use std::cell::RefCell;

use cxl_shm::fabric::{Fabric, HostMemory, PeerLine};
use cxl_shm::layout::{LockProtocol, NodeLine, NodeState};
use cxl_shm::member::{Liveness, Manage, watch_hearts};
use cxl_shm::units::{LockId, NodeId};

use super::bed::{Scripted, acquire, beat_all, cluster, manager_polls, poll_grants};
use crate::rack::{Cluster, Mutant, RackMember};

const LOCK: LockId = LockId(9);
const NODE: usize = 1;

/// One life in the slot: takes the lock, takes a chunk and gives back what the life before left.
fn live<F: Fabric, H: HostMemory, L: Liveness>(
    cluster: &Cluster,
    member: &RackMember,
    manage: &RefCell<Manage<'_, F, H, L>>,
    inherited: usize,
) {
    let clock = cluster.clock(0);
    for _ in 0..2 {
        drop(acquire(cluster, member, &clock, LOCK, manage));
        cluster.warm();
        poll_grants(&mut manage.borrow_mut(), 0);
    }
    cluster.warm();
    let owned = member.owned_chunks();
    assert_eq!(owned.len(), inherited, "what the life before owned: {owned:?}");
    let taken = member.allocate_chunk(&manager_polls(cluster, manage, &[1]), 1000, 7);
    let taken = taken.unwrap_or_else(|error| panic!("{error}"));
    for (chunk, _) in owned {
        cluster.warm();
        let clock = manager_polls(cluster, manage, &[1]);
        member.free_chunk(&clock, 1000, chunk).unwrap_or_else(|error| panic!("{error}"));
    }
    cluster.warm();
    assert_eq!(member.owned_chunks(), [(taken, 7)]);
    poll_grants(&mut manage.borrow_mut(), 0);
}

fn line_of(cluster: &Cluster, observer: &RackMember) -> NodeLine {
    cluster.warm();
    let line: PeerLine<NodeLine> = observer.layout().node_line(NodeId(1));
    line.fresh(observer.fabric()).unwrap_or_else(|error| panic!("{error}"))
}

/// Two hosts inhabit one slot in turn; each goes on where the other ended, and everybody sees who
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
    for (life, host) in [1, 2, 1, 2].into_iter().enumerate() {
        cluster.warm();
        let member = cluster.join_as(host, NODE, "inhabitant");
        let member = member.unwrap_or_else(|error| panic!("life {life}: {error}"));
        assert_eq!(member.incarnation().0 as usize, life + 1);
        cluster.warm();
        // T4: it has acknowledged the term by joining.
        poll_grants(&mut manage.borrow_mut(), 0);
        let reports = manage.borrow().nodes();
        let report = reports.iter().find(|report| report.node == member.node());
        assert!(report.is_some_and(|report| report.acknowledged), "{reports:?}");
        let line = line_of(&cluster, &manager);
        assert_eq!(
            (line.state(), line.incarnation()),
            (Some(NodeState::Joined), member.incarnation())
        );
        // One beat of everybody while we watch.
        let clock = Scripted::new(|pause| {
            assert_eq!(pause, 0, "a beat was not seen at once");
            cluster.warm();
            beat_all(&[&manager, &member]);
        });
        let hearts = watch_hearts(manager.layout(), manager.fabric(), &clock);
        let heart = hearts.iter().find(|heart| heart.node == member.node());
        let heart = heart.unwrap_or_else(|| panic!("the node is not there: {hearts:?}"));
        assert_eq!((heart.host.as_str(), heart.beats), (format!("host-{host}").as_str(), true));

        live(&cluster, &member, &manage, usize::from(life > 0));
        member.leave();
        let line = line_of(&cluster, &manager);
        assert_eq!(line.state(), Some(NodeState::Left));
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
