//! Blocks on drives: announced by one host, found and asked for by another.

use super::clear::{keep_up, tenant};
use super::*;
use crate::format::{RequestLine, answer_word};
use crate::tier::{
    Announced, Asked, DriveAnnouncer, DriveClaim, DriveError, DriveReplica, DriveSync,
    ForwardShape, Found, RestoreDesk, RestoreState, RestoreTicket,
};
use crate::{
    AgentLine, Clearing, DriveGeometry, NamespaceTag, Pin, RestoreOutcome, RestoreRequest,
};

const SLOTS: u32 = 16;
const LOG_ENTRIES: u32 = 8;
const RING: u32 = 2;
/// Longer than between two beats.
const BEAT_MS: u64 = 300;

type TestClaim<'m> = DriveClaim<'m, SimulatedBackend<Deaths>>;

fn rig(rack: SimulatedRack) -> Rig {
    of_nodes(rack, 2)
}

fn of_nodes(rack: SimulatedRack, nodes: u16) -> Rig {
    let drives = DriveGeometry::new(SLOTS, LOG_ENTRIES, RING).unwrap();
    let cache = CacheGeometry::new(32, 16).unwrap().with_drives(Some(drives));
    Rig::formatted(rack, REGION_BYTES, nodes, cache)
}

fn block(number: u8) -> Announced {
    let namespace = NamespaceTag::from_bits(3);
    Announced { key: key(number), bytes: 5000, depth: 0, namespace }
}

fn request(number: u8) -> RestoreRequest {
    RestoreRequest { key: key(number), wait_ms: 100, recompute_ms: None, ahead: false }
}

/// The agent of a host.
struct Agent<'m> {
    claim: TestClaim<'m>,
    announcer: DriveAnnouncer,
    replica: DriveReplica,
    desk: RestoreDesk,
}

impl<'m> Agent<'m> {
    fn begin(cache: &TestCache<'m>) -> Self {
        let claim = cache.claim_drives().unwrap();
        let announcer = DriveAnnouncer::begin(&claim, cache).unwrap();
        let replica = DriveReplica::begin(&claim, cache);
        let desk = RestoreDesk::begin(&claim);
        Self { claim, announcer, replica, desk }
    }

    fn sync(&mut self, cache: &TestCache<'_>, clock: &impl Clock) -> DriveSync {
        self.replica.sync(cache, clock).unwrap()
    }

    fn announce(&mut self, cache: &TestCache<'_>, numbers: std::ops::Range<u8>) -> usize {
        let blocks: Vec<_> = numbers.map(block).collect();
        self.announcer.announce(cache, &blocks).unwrap()
    }

    fn withdraw(&mut self, cache: &TestCache<'_>, numbers: std::ops::Range<u8>) -> usize {
        let keys: Vec<_> = numbers.map(key).collect();
        self.announcer.withdraw(cache, &keys).unwrap()
    }
}

/// The nodes on whose drives a host finds blocks behind the end of what the pool has.
fn on_drives(cache: &TestCache<'_>, clock: &impl Clock, numbers: std::ops::Range<u8>) -> Vec<u16> {
    let keys: Vec<_> = numbers.map(key).collect();
    let node = |found: &Found| match found {
        Found::OnDrive { node, .. } => node.0,
        Found::InPool(_) => panic!("{found:?}"),
    };
    cache.find_with_drives(clock, &keys).behind.iter().map(node).collect()
}

fn ask(cache: &TestCache<'_>, clock: &impl Clock, node: u16, numbers: &[u8]) -> Asked {
    let requests: Vec<_> = numbers.iter().map(|number| request(*number)).collect();
    let node = cache.member().layout().node(node).unwrap();
    cache.ask_restore(clock, node, &requests).unwrap()
}

fn state(cache: &TestCache<'_>, ticket: RestoreTicket) -> RestoreState {
    cache.restore_states(&[ticket]).unwrap()[0]
}

/// The agents of two hosts, which see each other live.
fn two_agents<'m>(
    rig: &Rig,
    a: &TestCache<'m>,
    b: &TestCache<'m>,
    clock: &impl Clock,
) -> (Agent<'m>, Agent<'m>) {
    let (mut first, mut second) = (Agent::begin(a), Agent::begin(b));
    for _ in 0..2 {
        first.sync(a, clock);
        second.sync(b, clock);
        rig.rack.advance_ms(BEAT_MS);
    }
    first.sync(a, clock);
    second.sync(b, clock);
    (first, second)
}

/// Each change is seen by the other host, which has everything in its caches as it was before.
pub(super) fn announced_and_found(rack: SimulatedRack) {
    let rig = rig(rack);
    on_two_hosts(&rig, |a, b, clock| {
        let (mut first, mut second) = two_agents(&rig, a, b, clock);
        let mut scans = second.sync(b, clock).scans;
        assert_eq!(on_drives(b, clock, 1..9), [0; 0]);
        for round in 0..2 {
            // More than once round the log, one by one.
            for number in 1..7 {
                assert_eq!(first.announce(a, number..number + 1), 1);
                scans += second.sync(b, clock).scans;
                assert_eq!(on_drives(b, clock, 1..9), vec![0; usize::from(number)]);
            }
            for number in (1..7).rev() {
                assert_eq!(first.withdraw(a, number..number + 1), 1);
                scans += second.sync(b, clock).scans;
                assert_eq!(on_drives(b, clock, 1..9), vec![0; usize::from(number) - 1]);
            }
            assert_eq!(scans, 0, "round {round}: the log says it all");
        }
        // Overrun: the directory is scanned, of which each line is known as it was.
        assert_eq!(first.announce(a, 1..17), 16);
        assert_eq!(second.sync(b, clock).scans, 1);
        assert_eq!(on_drives(b, clock, 1..20), [0; 16]);
        assert_eq!(first.announce(a, 1..18), 16, "the directory is full");
        assert_eq!(first.withdraw(a, 4..17), 13);
        assert_eq!(second.sync(b, clock).scans, 1);
        assert_eq!(on_drives(b, clock, 1..20), [0; 3]);

        // TIER-D2: another life of the agent, which has announced nothing yet.
        let Agent { claim, .. } = first;
        drop(claim);
        let mut first = Agent::begin(a);
        second.sync(b, clock);
        assert_eq!(on_drives(b, clock, 1..20), [0; 0]);
        first.sync(a, clock);
        assert_eq!(first.announce(a, 1..3), 2);
        second.sync(b, clock);
        assert_eq!(on_drives(b, clock, 1..20), [0; 2]);

        // It stops.
        let Agent { claim, replica, .. } = first;
        replica.stop(a);
        drop(claim);
        second.sync(b, clock);
        assert_eq!(on_drives(b, clock, 1..20), [0; 0]);
    });
}

/// Requests and answers, more than once round the ring of each host.
pub(super) fn asked_and_answered(rack: SimulatedRack) {
    let rig = rig(rack);
    on_two_hosts(&rig, |a, b, clock| {
        let (mut first, _second) = two_agents(&rig, a, b, clock);
        for round in 0..5u8 {
            assert_eq!(first.desk.next(a).unwrap(), []);
            let asked = ask(b, clock, 0, &[round, 50, 51]);
            assert_eq!((asked.tickets.len(), asked.full), (2, 1), "a ring of two lines");
            assert_eq!(ask(b, clock, 0, &[52]).full, 1, "refused at once");
            assert_eq!(state(b, asked.tickets[0]), RestoreState::Pending);
            let taken = first.desk.next(a).unwrap();
            let wanted: Vec<_> = taken.iter().map(|it| it.request).collect();
            assert_eq!(wanted, [Some(request(round)), Some(request(50))]);
            assert!(taken.iter().all(|it| it.asking == b.member().node()));
            assert_eq!(first.desk.cancelled(a, &taken).unwrap(), [false, false]);
            b.cancel_restores(clock, &asked.tickets[1..]).unwrap();
            assert_eq!(first.desk.cancelled(a, &taken).unwrap(), [false, true]);
            let outcomes = [RestoreOutcome::Restored, RestoreOutcome::Cancelled];
            let answers: Vec<_> = taken.iter().copied().zip(outcomes).collect();
            first.desk.answer(a, &answers[..1]).unwrap();
            let states = || asked.tickets.iter().map(|it| state(b, *it)).collect::<Vec<_>>();
            let restored = RestoreState::Answered(RestoreOutcome::Restored);
            assert_eq!(states(), [restored, RestoreState::Pending]);
            first.desk.answer(a, &answers[1..]).unwrap();
            let cancelled = RestoreState::Answered(RestoreOutcome::Cancelled);
            assert_eq!(states(), [restored, cancelled]);
            // TIER-Q2.
            first.desk.answer(a, &[(taken[0], RestoreOutcome::Busy)]).unwrap();
            assert_eq!(states(), [restored, cancelled]);

            // Nobody of this host has looked at the answers since.
            let asked = ask(b, clock, 0, &[60, 61]);
            let taken = first.desk.next(a).unwrap();
            let busy = |asked| (asked, RestoreOutcome::Busy);
            first.desk.answer(a, &taken.into_iter().map(busy).collect::<Vec<_>>()).unwrap();
            let later = ask(b, clock, 0, &[62, 63]);
            assert_eq!((later.tickets.len(), later.full), (2, 0), "the lines may be written again");
            let taken = first.desk.next(a).unwrap();
            first.desk.answer(a, &taken.into_iter().map(busy).collect::<Vec<_>>()).unwrap();
            assert_eq!(state(b, asked.tickets[0]), RestoreState::Overtaken);
        }
    });
}

/// What processes stored before they died, and did not publish: a count, then an answer.
pub(super) fn left_by_the_dead(rack: SimulatedRack) {
    let rig = rig(rack);
    on_two_hosts(&rig, |a, b, clock| {
        let (mut first, _second) = two_agents(&rig, a, b, clock);
        let (me, other) = (b.member().node(), a.member().node());
        let asked = ask(b, clock, 0, &[1]);
        let taken = first.desk.next(a).unwrap();
        first.desk.answer(a, &[(taken[0], RestoreOutcome::Busy)]).unwrap();
        assert_eq!(state(b, asked.tickets[0]), RestoreState::Answered(RestoreOutcome::Busy));

        let own = b.areas().drives().unwrap().own(b.member().area());
        for number in [2, 3] {
            let line = RequestLine::new(number, &request(7));
            own.request(other, number).publish(b.member().fabric(), &line);
        }
        let count = own.requests(other).at();
        b.member().fabric().store(count, 3);
        let mut taken = first.desk.next(a).unwrap();
        // A busy cache may have written the count back by itself.
        assert!(taken.is_empty() || rig.rack.device_word(count) == 3);
        assert_eq!(ask(b, clock, 0, &[8]).full, 1);
        taken.extend(first.desk.next(a).unwrap());
        assert_eq!(taken.len(), 2);

        let said = b.areas().drives().unwrap().of(other);
        let answers = || [2, 3].map(|number| said.answer(me, number).fresh(b.member().fabric()));
        let before = answers();
        let own = a.areas().drives().unwrap().own(a.member().area());
        for number in [2, 3] {
            let word = answer_word(number, RestoreOutcome::Stopped);
            a.member().fabric().store(own.answer(me, number).at(), word);
        }
        drop(first.claim);
        let mut next = Agent::begin(a);
        assert_ne!(answers(), before);
        assert_eq!(ask(b, clock, 0, &[8, 9]).full, 0);
        assert_eq!(next.desk.next(a).unwrap().len(), 2);
    });
}

#[test]
fn what_the_dead_stored_keeps_no_request_open() {
    left_by_the_dead(SimulatedRack::sticky(2, REGION_BYTES));
}

/// What an agent says of itself, as a tool on another host sees it. The region has no other node,
/// so the agent does nothing else that makes it visible.
pub(super) fn agents_seen_by_tools(rack: SimulatedRack) {
    let rig = of_nodes(rack, 1);
    let member = rig.join(0);
    let clock = rig.serve(&[&member]);
    let a = Cache::attach(&member, &clock).unwrap();
    let seen = || {
        let (superblock, tool) = (member.superblock(), rig.rack.host(2));
        crate::agent_of(&tool, superblock, member.layout(), member.node()).unwrap()
    };
    assert_eq!(seen(), None);
    let Agent { claim, mut replica, .. } = Agent::begin(&a);
    let mut beat = 0;
    for blocks in [5, 6, 7] {
        let line = AgentLine { runs: true, blocks, outcomes: [blocks; 8], ..Default::default() };
        let line = AgentLine { backed_up_blocks: blocks, ..line };
        a.say_agent_line(&claim, &line).unwrap();
        assert_eq!(seen().map(|it| (it.life, it.line)), Some((1, line)));
        rig.rack.advance_ms(BEAT_MS);
        replica.sync(&a, &clock).unwrap();
        let before = std::mem::replace(&mut beat, seen().unwrap().beat);
        assert_eq!(beat, before + 1, "the agent beats");
    }
    replica.stop(&a);
    assert_eq!(seen().unwrap().beat, 0);
}

/// The agent of a host carries clears out: its answers as the asking host sees them.
pub(super) fn cleared_on_drives(rack: SimulatedRack) {
    let rig = rig(rack);
    on_two_hosts(&rig, |a, b, clock| {
        let nothing = |clearing: &Clearing| b.cleared_drives(clearing).unwrap().is_empty();
        let ask = || b.clear(clock, Some(&tenant())).unwrap();
        let upkeep = || [a, b].map(|cache| keep_up(cache, clock));
        let clearing = ask();
        assert!(nothing(&clearing), "no node ever had an agent");
        upkeep();
        let first = Agent::begin(a);
        assert!(!nothing(&clearing), "an agent that starts");
        let (mut done, other) = ([0; 32], NamespaceTag::from_bits(!tenant().tag().get()));
        let mut carry_out = |agent: &Agent<'_>, first: u64, last: u64| {
            let asked = a.clears_since(&done).unwrap();
            assert_eq!(asked.missed, []);
            assert!(asked.clears.has(tenant().tag()) && !asked.clears.has(other));
            assert_eq!((done[1] + 1, asked.numbers[1]), (first, last));
            done = asked.numbers;
            agent.announcer.answer_clears(a, &done).unwrap();
            assert!(a.clears_since(&done).unwrap().clears.is_empty());
        };
        carry_out(&first, 1, 1);
        assert!(nothing(&clearing));
        // More than once round the ring, one by one.
        for number in 2..20 {
            let clearing = ask();
            assert!(!nothing(&clearing));
            // Before another process of its host has looked.
            carry_out(&first, number, number);
            assert!(nothing(&clearing));
            upkeep();
        }
        // A stopped agent is waited for as long as it left blocks.
        let say = |runs, blocks, is_unread| {
            let line = AgentLine { runs, blocks, is_unread, ..Default::default() };
            a.say_agent_line(&first.claim, &line).unwrap();
        };
        let clearing = ask();
        for (runs, blocks, is_unread, waits) in [
            (true, 0, false, true),
            (false, 3, false, true),
            (false, 0, true, true),
            (false, 0, false, false),
            (true, 0, false, true),
        ] {
            say(runs, blocks, is_unread);
            assert_eq!(nothing(&clearing), !waits, "{runs} {blocks} {is_unread}");
        }
        upkeep();
        carry_out(&first, 20, 20);

        // CLEAR-D9: pins alone are no loss, and one clear among them is.
        let pin = || {
            let pin = Pin { percent: 10, length_ms: 1000, asked_ms: 1 };
            b.pin(clock, &tenant(), pin).unwrap();
            upkeep();
        };
        (0..19).for_each(|_| pin());
        let pool_alone = b.clear_pool(clock, None).unwrap();
        assert!(nothing(&pool_alone));
        upkeep();
        let asked = a.clears_since(&done).unwrap();
        assert!(asked.clears.is_empty() && asked.missed.is_empty() && asked.numbers[1] == 40);
        ask();
        upkeep();
        (0..16).for_each(|_| pin());
        let asked = a.clears_since(&done).unwrap();
        assert_eq!((asked.missed, asked.numbers[1]), (vec![b.member().node()], 57));
        assert!(asked.clears.has(other));
    });
}

#[test]
fn clears_are_carried_out_for_drives() {
    cleared_on_drives(SimulatedRack::sticky(2, REGION_BYTES));
}

#[test]
fn a_damaged_directive_is_waited_for() {
    let rig = rig(SimulatedRack::sticky(2, REGION_BYTES));
    on_two_hosts(&rig, |a, b, clock| {
        let mut clearing = b.clear(clock, None).unwrap();
        b.clear(clock, Some(&tenant())).unwrap();
        let line = a.areas().directives(b.member().node()).line(1).range();
        rig.rack.flip_bit(line.start().bytes() + 20, 3);
        let asked = a.clears_since(&[0; 32]).unwrap();
        assert!(asked.clears.is_empty() && asked.numbers == [0; 32]);
        b.cleared(clock, &mut clearing).unwrap();
        let asked = a.clears_since(&[0; 32]).unwrap();
        assert!(asked.clears.has(NamespaceTag::default()) && asked.numbers[1] == 2);
    });
}

#[test]
fn damaged_words_of_lost_lines_clear_nothing_else() {
    let rig = rig(SimulatedRack::sticky(2, REGION_BYTES));
    on_two_hosts(&rig, |a, b, clock| {
        b.clear(clock, Some(&tenant())).unwrap();
        let other = NamespaceTag::from_bits(!tenant().tag().get());
        for word in b.areas().own_directives(b.member().area()).lost {
            word.publish(b.member().fabric(), 1 << 40);
            let asked = a.clears_since(&[0; 32]).unwrap();
            assert!(asked.clears.has(tenant().tag()) && !asked.clears.has(other));
            assert_eq!((asked.missed, asked.numbers[1]), (vec![], 1));
            word.publish(b.member().fabric(), 0);
        }
    });
}

#[test]
fn blocks_on_drives_are_announced_and_found() {
    announced_and_found(SimulatedRack::sticky(2, REGION_BYTES));
}

#[test]
fn requests_are_asked_and_answered() {
    asked_and_answered(SimulatedRack::sticky(2, REGION_BYTES));
}

#[test]
fn agents_are_seen_by_tools() {
    agents_seen_by_tools(SimulatedRack::sticky(3, REGION_BYTES));
}

#[test]
fn a_region_without_room_for_drives_says_so() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, _, clock| {
        assert_eq!(a.claim_drives().err(), Some(DriveError::NoRoom));
        assert_eq!(a.ask_restore(clock, a.member().node(), &[]), Err(DriveError::NoRoom));
        publish(a, clock, 1);
        let found = a.find_with_drives(clock, &[key(1), key(2)]);
        assert_eq!((found.pool.len(), found.behind), (1, vec![]));
    });
}

#[test]
fn a_host_has_one_agent() {
    let rig = rig(SimulatedRack::sticky(2, REGION_BYTES));
    let (first, second) = (rig.join(0), rig.join(0));
    let clock = rig.serve(&[&first, &second]);
    let a = Cache::attach(&first, &clock).unwrap();
    let b = Cache::attach(&second, &clock).unwrap();
    let claim = a.claim_drives().unwrap();
    assert_eq!(b.claim_drives().err(), Some(DriveError::OtherAgent));
    drop(claim);
    let claim = b.claim_drives().unwrap();
    assert_eq!(a.claim_drives().err(), Some(DriveError::OtherAgent));
    rig.kill(&second);
    a.claim_drives().expect("the other is dead");
    drop(claim);
}

#[test]
fn the_pool_comes_before_drives_and_the_own_drive_before_others() {
    let rig = rig(SimulatedRack::sticky(2, REGION_BYTES));
    on_two_hosts(&rig, |a, b, clock| {
        let (mut first, mut second) = two_agents(&rig, a, b, clock);
        publish(a, clock, 1);
        let third = publish(a, clock, 3);
        first.announce(a, 1..6);
        second.announce(b, 4..5);
        for _ in 0..2 {
            first.sync(a, clock);
            second.sync(b, clock);
        }
        let numbers = [1, 2, 3, 4, 5, 6];
        let found = |cache: &TestCache<'_>| cache.find_with_drives(clock, &numbers.map(key));
        let on_drive = |number, node| Found::OnDrive { key: key(number), node: crate_node(node) };
        let in_pool = found(b).behind[1];
        assert!(matches!(in_pool, Found::InPool(block) if block.handle == third));
        assert_eq!(found(b).pool.len(), 1);
        assert_eq!(
            found(b).behind,
            [on_drive(2, 0), in_pool, on_drive(4, 1), on_drive(5, 0)],
            "the own drive first"
        );
        assert_eq!(found(a).behind[2], on_drive(4, 0));
        // A pool without its first block, which no drive has.
        assert_eq!(b.find_with_drives(clock, &[key(9), key(1)]).behind, []);
    });
}

fn crate_node(node: u16) -> cxl_shm::units::NodeId {
    cxl_shm::units::NodeId(node)
}

#[test]
fn an_agent_that_stands_still_is_asked_nothing() {
    let rig = rig(SimulatedRack::sticky(2, REGION_BYTES));
    on_two_hosts(&rig, |a, b, clock| {
        let (mut first, mut second) = two_agents(&rig, a, b, clock);
        first.announce(a, 1..3);
        second.sync(b, clock);
        assert_eq!(on_drives(b, clock, 1..3), [0, 0]);
        // The agent of the other host.
        for _ in 0..8 {
            rig.rack.advance_ms(BEAT_MS);
            second.sync(b, clock);
        }
        assert_eq!(on_drives(b, clock, 1..3), [0; 0]);
        assert!(!b.is_drive_agent_alive(clock, a.member().node()));
        first.sync(a, clock);
        second.sync(b, clock);
        assert_eq!(on_drives(b, clock, 1..3), [0, 0], "what was known is known");
        assert!(b.is_drive_agent_alive(clock, a.member().node()));
        // That of the own host, without which nobody keeps the table.
        rig.rack.advance_ms(3000);
        assert_eq!(on_drives(b, clock, 1..3), [0; 0]);
    });
}

#[test]
fn an_agent_that_starts_answers_what_the_one_before_left_open() {
    let rig = rig(SimulatedRack::sticky(2, REGION_BYTES));
    on_two_hosts(&rig, |a, b, clock| {
        let (mut first, _second) = two_agents(&rig, a, b, clock);
        let asked = ask(b, clock, 0, &[1, 2]);
        let taken = first.desk.next(a).unwrap();
        first.desk.answer(a, &[(taken[1], RestoreOutcome::NoRoom)]).unwrap();
        drop(first.claim);
        let mut next = Agent::begin(a);
        let open = next.desk.next(a).unwrap();
        assert_eq!(open, taken[..1]);
        next.desk.answer(a, &[(open[0], RestoreOutcome::Stopped)]).unwrap();
        let states = b.restore_states(&asked.tickets).unwrap();
        let answered = [RestoreOutcome::Stopped, RestoreOutcome::NoRoom];
        assert_eq!(states, answered.map(RestoreState::Answered));
        assert_eq!(Agent { claim: next.claim, ..next }.desk.next(a).unwrap(), []);
    });
}

#[test]
fn a_request_that_cannot_be_read_is_answered() {
    let rig = rig(SimulatedRack::sticky(2, REGION_BYTES));
    on_two_hosts(&rig, |a, b, clock| {
        let (mut first, _second) = two_agents(&rig, a, b, clock);
        let asked = ask(b, clock, 0, &[1]);
        let line = b.areas().drives().unwrap().of(b.member().node());
        let line = line.request(a.member().node(), 1).range();
        let word = line.start().word(3).unwrap();
        b.member().fabric().store(word, 77);
        b.member().fabric().publish(line);
        let taken = first.desk.next(a).unwrap();
        assert_eq!(taken[0].request, None);
        first.desk.answer(a, &[(taken[0], RestoreOutcome::Damaged)]).unwrap();
        let damaged = RestoreState::Answered(RestoreOutcome::Damaged);
        assert_eq!(state(b, asked.tickets[0]), damaged);
        assert_eq!(ask(b, clock, 0, &[1, 2]).full, 0);
    });
}

#[test]
fn the_table_of_a_host_grows_with_what_is_announced() {
    let drives = DriveGeometry::new(8192, 64, RING).unwrap();
    let cache = CacheGeometry::new(32, 16).unwrap().with_drives(Some(drives));
    let rack = SimulatedRack::sticky(2, 2 << 20);
    let rig = Rig::formatted(rack, 2 << 20, 2, cache);
    on_two_hosts(&rig, |a, b, clock| {
        let (mut first, mut second) = two_agents(&rig, a, b, clock);
        let keys = |from: u32, to: u32| {
            let space = KeySpace::new(MODEL, Namespace::default(), BLOCK_BYTES);
            (from..to).map(move |number| {
                let mut hash = [0; 32];
                hash[..4].copy_from_slice(&number.to_le_bytes());
                space.key(&BlockHash::new(hash))
            })
        };
        let blocks: Vec<_> = keys(0, 6000).map(|key| Announced { key, ..block(0) }).collect();
        assert_eq!(first.announcer.announce(a, &blocks).unwrap(), 6000);
        let synced = second.sync(b, clock);
        assert!(synced.scans >= 3 && synced.dropped == 0, "{synced:?}");
        let all: Vec<_> = keys(0, 6000).collect();
        assert_eq!(b.find_with_drives(clock, &all).behind.len(), 6000);
        assert_eq!(first.announcer.withdraw(a, &all[..5000]).unwrap(), 5000);
        second.sync(b, clock);
        assert_eq!(b.find_with_drives(clock, &all[5000..]).behind.len(), 1000);
        assert_eq!(b.find_with_drives(clock, &all[..1]).behind, []);
    });
}

/// Engines say when they compute, and the agent of their host sees it.
#[test]
fn forwards_are_seen_by_processes_of_the_host_and_not_by_others() {
    let rig = rig(SimulatedRack::sticky(2, REGION_BYTES));
    on_two_hosts(&rig, |a, b, clock| {
        let engine = rig.join(0);
        let engine = Cache::attach(&engine, clock).unwrap();
        let mut reporter = engine.report_forwards(9).unwrap().unwrap();
        let seen = |cache: &TestCache<'_>| cache.forwards().unwrap();
        let shape = ForwardShape::new(4096, 100);
        assert_eq!((seen(a)[0].runs, seen(a)[0].ended), (None, None));
        for number in 1..=3 {
            reporter.begin(shape);
            assert_eq!(seen(a)[0].runs, Some((number, shape)));
            reporter.end(1234);
            assert_eq!((seen(a)[0].runs, seen(a)[0].ended), (None, Some((number, shape, 1234))));
        }
        assert_eq!((seen(a).len(), seen(a)[0].model, seen(b)), (1, 9, vec![]));
        reporter.end(99);
        assert_eq!(seen(a)[0].ended, Some((3, shape, 1234)), "no forward ran");
        drop(reporter);
        assert_eq!(seen(a), []);
    });
}

#[test]
fn the_row_of_a_dead_engine_is_ignored_and_taken_again() {
    let rig = rig(SimulatedRack::sticky(2, REGION_BYTES));
    on_two_hosts(&rig, |a, _, clock| {
        let victim = rig.join(0);
        let engine = Cache::attach(&victim, clock).unwrap();
        let reporters: Vec<_> = (0..70).map_while(|_| engine.report_forwards(1).unwrap()).collect();
        assert_eq!(reporters.len(), 64, "each engine has a row, as far as there are some");
        assert!(a.report_forwards(2).unwrap().is_none());
        let seen = a.forwards().unwrap();
        assert!(seen.iter().all(|it| a.is_engine_alive(it)));
        rig.kill(&victim);
        assert!(!seen.iter().any(|it| a.is_engine_alive(it)));
        let mut next = a.report_forwards(2).unwrap().unwrap();
        next.begin(ForwardShape::new(1, 1));
        // What the dead process would do when its memory is dropped.
        drop(reporters);
        let seen = a.forwards().unwrap();
        assert_eq!(seen.len(), 1);
        assert!(a.is_engine_alive(&seen[0]) && seen[0].runs.is_some() && seen[0].model == 2);
    });
}
