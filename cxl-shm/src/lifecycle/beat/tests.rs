//! Agents that are stopped and wake, slots and regions that are no longer their host's, and
//! processes that die without a layer above.

mod leaving;

use super::*;
use crate::clock::Clock;
use crate::fabric::Fabric;
use crate::host::LockState;
use crate::host::{HostIdentity, HostTier, PROCESSES_MAX, ProcessIdentity};
use crate::layout::{
    Geometry, LockProtocol, NodeLine, PROFILE_LOCK, Superblock, format_superblock, replace_profile,
};
use crate::lifecycle::deaths::Deaths;
use crate::lifecycle::fencing::NoFence;
use crate::lock::ManagerSeen;
use crate::node::{Backend, SUSPECT_MS};
use crate::units::{Incarnation, LineRange, LockId, NodeId};
use crate::verify::SimulatedBackend;
use crate::verify::fixture::{Died, HandClock};
use crate::verify::simulated::SimulatedRack;

const NODE: NodeId = NodeId(1);
const GEOMETRY: Geometry = Geometry {
    region_bytes: 8 << 20,
    nodes: 2,
    locks: 100,
    chunk_bytes: 64 << 10,
    area_lines: 1,
    host_words: 0,
};

type Process = Member<SimulatedBackend<Died>>;

struct Bed {
    rack: SimulatedRack,
    died: Died,
    clock: HandClock,
}

impl Bed {
    fn new() -> Self {
        let rack = SimulatedRack::sticky(3, GEOMETRY.region_bytes);
        let bed = Self { rack, died: Died::default(), clock: HandClock::new(10) };
        bed.format(2, [1, 2]);
        bed
    }

    fn format(&self, host: usize, uuid: [u64; 2]) {
        let lock_protocol = LockProtocol::Arbitrated;
        let superblock = Superblock { lock_protocol, ..Superblock::new(uuid, GEOMETRY, [0; 6]) };
        format_superblock(&self.rack.host(host), &superblock, |_, _| ()).unwrap();
    }

    fn join(&self, host: u16, pid: u32) -> Process {
        let memory = self.rack.host_memory(usize::from(host), HostTier::words_of(&GEOMETRY));
        let identity = HostIdentity::simulated(u64::from(host));
        let (fabric, me) = (self.rack.host(usize::from(host)), ProcessIdentity::new(pid, 1));
        let died = self.died.clone();
        Member::join(fabric, memory, host, &identity, me, died, &HandClock::new(10)).unwrap()
    }
}

fn loss(member: &Process) -> Option<LossCause> {
    member.check_member().err().map(|lost| lost.cause)
}

#[test]
fn a_stopped_process_costs_its_host_nothing_while_another_lives() {
    // Which of three processes is stopped: the agent first, then one that is not.
    for stopped in [0, 1] {
        let bed = Bed::new();
        let manager = bed.join(0, 1);
        let manage = manager.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
        let processes = [2, 3, 4].map(|pid| bed.join(1, pid));
        assert!(processes[0].beat(), "the first to beat is the agent");
        let mut events = Vec::new();
        for _ in 0..1000 {
            manager.beat();
            for (index, process) in processes.iter().enumerate() {
                if index != stopped {
                    process.beat();
                }
            }
            bed.clock.pause(0);
            events.extend(deaths.step(bed.clock.now_ms(), true, &mut NoFence));
        }
        assert_eq!(events, [], "process {stopped} is stopped, and two others live");
        assert!(processes.iter().all(|process| loss(process).is_none()));
        // It wakes, and one process of the host is its agent.
        for _ in 0..100 {
            let agents = processes.iter().filter(|process| process.beat()).count();
            assert_eq!(agents, 1);
        }
    }
}

#[test]
fn an_agent_that_beats_is_not_deposed() {
    let bed = Bed::new();
    let [agent, beside] = [2, 3].map(|pid| bed.join(1, pid));
    for _ in 0..1000 {
        assert!(agent.beat());
        assert!((1..STALLED_BEATS).all(|_| !beside.beat()), "nearly too late each time");
    }
    // A process that was stopped itself has seen nothing of the silence.
    assert!(!beside.beat());
    assert!(agent.beat());
    assert!(!beside.beat());
}

#[test]
fn a_manager_takes_over_beside_a_stopped_agent() {
    let bed = Bed::new();
    let [stopped, beside] = [2, 3].map(|pid| bed.join(1, pid));
    assert!(stopped.beat());
    let manager = bed.join(0, 1);
    let mut manage = manager.manage().unwrap();
    let term = manage.claim().unwrap();
    for _ in 0..=STALLED_BEATS {
        manager.beat();
        beside.beat();
    }
    let seen = ManagerSeen::look(manager.layout(), manager.fabric()).unwrap();
    assert_eq!((seen.term, seen.waiting_for(manager.layout(), manager.fabric())), (term, None));
}

/// What a deposed agent stores when it wakes within its acknowledgement of an older term.
#[test]
fn an_acknowledgement_that_was_overwritten_is_written_anew() {
    let bed = Bed::new();
    let manager = bed.join(0, 1);
    let mut manage = manager.manage().unwrap();
    manage.claim().unwrap();
    let worker = bed.join(1, 2);
    worker.beat();
    let (layout, fabric) = (worker.layout(), worker.fabric());
    let late = |lock: u64| layout.acks(NODE).word(lock).unwrap();
    let before = [0, 99].map(|lock| late(lock).fresh(fabric));
    let newer = manage.claim().unwrap();
    worker.beat();
    for (lock, word) in [0, 99].into_iter().zip(before) {
        assert!(LockState::from_word(word).term < newer);
        late(lock).claim().publish(fabric, word);
    }
    // All parts of the acknowledgements are looked at in turn.
    worker.beat();
    worker.beat();
    let looker = bed.rack.host(2);
    for lock in [0, 99] {
        assert_eq!(LockState::from_word(late(lock).fresh(&looker)).term, newer, "lock {lock}");
    }
}

#[test]
fn a_lock_state_does_not_go_back_to_an_older_term() {
    let bed = Bed::new();
    let worker = bed.join(1, 2);
    let manager = bed.join(0, 1);
    let mut manage = manager.manage().unwrap();
    let claimed = manage.claim().unwrap();
    let tier = worker.node_handle().tier();
    // Another agent of the host has begun to follow a later one.
    let later = LockState { term: claimed + 2, ..tier.lock_state(LockId(5)) };
    tier.set_lock_state(LockId(5), later);
    worker.beat();
    assert_eq!(tier.lock_state(LockId(5)), later);
    assert_eq!(tier.term(), 0, "the agent that moved the state acknowledges");
}

#[test]
fn who_sleeps_through_a_formatting_notices_at_its_next_beat() {
    let bed = Bed::new();
    let [sleeper, beside] = [2, 3].map(|pid| bed.join(1, pid));
    assert!(sleeper.beat());
    bed.format(2, [3, 4]);
    // The slot has an owner again, in the same life.
    let other = Bed { rack: bed.rack.clone(), ..Bed::new() };
    let memory = bed.rack.host_memory(2, HostTier::words_of(&GEOMETRY));
    let (identity, me) = (HostIdentity::simulated(2), ProcessIdentity::new(9, 1));
    let (fabric, died) = (bed.rack.host(2), bed.died.clone());
    let heir = Process::join(fabric, memory, 1, &identity, me, died, &other.clock).unwrap();
    assert_eq!(heir.incarnation(), sleeper.incarnation());
    let line = || sleeper.layout().node_line(NODE).fresh(heir.fabric());
    let before = line();
    sleeper.beat();
    assert_eq!(loss(&sleeper), Some(LossCause::RegionReplaced));
    assert_eq!(
        loss(&beside),
        Some(LossCause::RegionReplaced),
        "all processes of the host are told"
    );
    let beats = heir.layout().heartbeat(NODE).fresh(heir.fabric());
    (0..50).for_each(|_| {
        sleeper.beat();
        beside.beat();
    });
    assert_eq!(line(), before);
    assert_eq!(heir.layout().heartbeat(NODE).fresh(heir.fabric()), beats, "it writes no more");
    heir.beat();
    assert_eq!(loss_of(&heir), None);
}

fn loss_of<B: Backend>(member: &Member<B>) -> Option<LossCause> {
    member.check_member().err().map(|lost| lost.cause)
}

#[test]
fn content_that_is_lost_is_noticed() {
    for lost in [0, u64::MAX] {
        let bed = Bed::new();
        let member = bed.join(1, 2);
        assert!(member.beat() && loss(&member).is_none());
        let device = bed.rack.host(2);
        let metadata = LineRange::covering(member.layout().metadata());
        for line in metadata.iter() {
            device.write_line(line, &[lost; 8]);
        }
        device.publish(metadata);
        member.beat();
        assert_eq!(loss(&member), Some(LossCause::ContentLost), "all words are {lost:#x}");
    }
}

#[test]
fn a_later_life_in_the_slot_is_noticed() {
    let states = [
        (NodeState::Joined, 2, Some(LossCause::SlotTaken)),
        (NodeState::Joining, 2, Some(LossCause::SlotTaken)),
        (NodeState::Left, 1, Some(LossCause::SlotTaken)),
        (NodeState::Dead, 1, Some(LossCause::DeclaredDead)),
        (NodeState::Joined, 0, Some(LossCause::ContentLost)),
        (NodeState::Joined, 1, None),
    ];
    for (state, life, expected) in states {
        let bed = Bed::new();
        let member = bed.join(1, 2);
        member.beat();
        let line = NodeLine::new(state, Incarnation(life), [9, 9], [9, 9]);
        member.layout().node_line(NODE).claim().publish(&bed.rack.host(2), &line);
        member.beat();
        assert_eq!(loss(&member), expected, "{state:?} in life {life}");
    }
}

#[test]
fn one_damaged_line_ends_no_membership() {
    let bed = Bed::new();
    let member = bed.join(1, 2);
    member.beat();
    let byte = member.layout().node_line(NODE).at().bytes() + 20;
    bed.rack.flip_bit(byte, 3);
    member.beat();
    assert_eq!(loss(&member), None);
    bed.rack.flip_bit(byte, 3);
    // A line of the superblock, with the own line whole.
    bed.rack.flip_bit(20, 3);
    member.beat();
    assert_eq!(loss(&member), None);
    bed.rack.flip_bit(20, 3);
    // The profile is replaced, twice: the superblock moves to its other place and back.
    assert_eq!(PROFILE_LOCK.0, 7);
    for _ in 0..2 {
        replace_profile(&bed.rack.host(2), None).unwrap();
        member.beat();
        assert_eq!(loss(&member), None);
    }
}

#[test]
fn dead_processes_that_nothing_names_are_struck_off_by_the_agent() {
    let bed = Bed::new();
    let stays = bed.join(1, 1);
    for pid in 2..2 + 3 * u32::from(PROCESSES_MAX) {
        std::mem::forget(bed.join(1, pid));
        bed.died.add(pid);
        if pid % 100 == 0 {
            (0..128).for_each(|_| assert!(stays.beat()));
        }
    }
    // The layer above says when it has tidied up after one that it may name.
    let named = bed.join(1, 5000);
    named.name_place();
    let slot = named.process();
    std::mem::forget(named);
    bed.died.add(5000);
    (0..128).for_each(|_| assert!(stays.beat()));
    let gone: Vec<_> = stays.gone_processes().iter().map(|gone| gone.slot()).collect();
    assert_eq!(gone, [slot]);
}
