//! A lock manager that was appointed to recover dies, and its host lives.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use super::RecoveryNews;
use super::adopt::ADOPTED_MAX;
use crate::alloc::heap::header;
use crate::clock::Clock;
use crate::fabric::Fabric;
use crate::fabric::simulated::{SimulatedHost, SimulatedHostMemory, SimulatedRack};
use crate::layout::{
    Geometry, LockProtocol, RecoveryRecord, RecoveryStep, Superblock, format_superblock,
};
use crate::member::settle::PART_LINES;
use crate::member::{
    DeathNews, Deaths, Fence, FenceOrder, FenceState, HostIdentity, HostTier, Liveness, Manage,
    Member, NoFence, NodeDeath, ProcessIdentity, RESIGN_BEATS, SUSPECT_MS, Visitor, decided_about,
};
use crate::units::{ChunkId, Incarnation, NodeId};

const VICTIM: NodeId = NodeId(2);
const MANAGER_PID: u32 = 7;
/// As long as each area is, in parts that are published at once.
const AREA_PARTS: u64 = 3;

/// Processes that have died, by their numbers.
#[derive(Clone, Debug, Default)]
struct Died(Rc<RefCell<BTreeSet<u32>>>);

impl Liveness for Died {
    fn is_alive(&self, process: ProcessIdentity) -> bool {
        !self.0.borrow().contains(&process.pid())
    }
}

#[derive(Debug, Default)]
struct HandClock(Cell<u64>);

impl Clock for HandClock {
    fn now_ms(&self) -> u64 {
        self.0.get()
    }

    fn pause(&self, _: u32) {
        self.0.set(self.0.get() + 10);
    }
}

/// A fence that holds at once.
struct Off;

impl Fence for Off {
    fn poll(&mut self, _: &FenceOrder, _: u64) -> FenceState {
        FenceState::Fenced
    }
}

type Process = Member<SimulatedHost, SimulatedHostMemory, Died>;
type Watch<'m> = Deaths<'m, SimulatedHost, SimulatedHostMemory, Died>;

/// Three hosts over a region whose locks need no manager.
fn rack_of_three(area_lines: u64) -> (SimulatedRack, Geometry) {
    let geometry = Geometry {
        region_bytes: 64 << 20,
        nodes: 3,
        locks: 8,
        chunk_bytes: 64 << 10,
        area_lines,
        host_words: 0,
    };
    let rack = SimulatedRack::sticky(3, geometry.region_bytes);
    let superblock = Superblock {
        lock_protocol: LockProtocol::Bakery,
        ..Superblock::new([1, 2], geometry, [0; 6])
    };
    format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
    (rack, geometry)
}

fn join(rack: &SimulatedRack, geometry: &Geometry, died: &Died, host: u16, pid: u32) -> Process {
    let memory = rack.host_memory(usize::from(host), HostTier::words_of(geometry));
    let identity = HostIdentity::simulated(u64::from(host));
    let (fabric, me) = (rack.host(usize::from(host)), ProcessIdentity::new(pid, 1));
    let clock = HandClock::default();
    Member::join(fabric, memory, host, &identity, me, died.clone(), &clock).unwrap()
}

/// Looks until `until`, while the hearts of `alive` beat; all news.
fn watch(
    deaths: &mut Watch<'_>,
    clock: &HandClock,
    alive: &[&Process],
    fence: &mut impl Fence,
    until: impl Fn(&DeathNews) -> bool,
) -> Vec<DeathNews> {
    let mut all = Vec::new();
    for _ in 0..2000 {
        alive.iter().for_each(|process| {
            process.beat();
        });
        clock.pause(0);
        let news = deaths.step(clock.now_ms(), true, fence);
        all.extend(news.into_iter().map(|(_, news)| news));
        if all.iter().any(&until) {
            return all;
        }
    }
    all
}

fn is_done(news: &DeathNews) -> bool {
    *news == DeathNews::Recovery(RecoveryNews::Reached(RecoveryStep::Done))
}

/// The first manager is appointed and comes as far as `first_fence` lets it, then dies; the other
/// host's manager ends the recovery once the first host has given it up, and not before.
fn another_manager_goes_on(mut first_fence: impl Fence, reached: impl Fn(&DeathNews) -> bool) {
    let (rack, geometry) = rack_of_three(AREA_PARTS * PART_LINES);
    let (died, clock) = (Died::default(), HandClock::default());
    let join = |host, pid| join(&rack, &geometry, &died, host, pid);
    let (agent, first, second) = (join(0, 1), join(0, MANAGER_PID), join(1, 2));
    let victim = join(2, 3);
    victim.beat();

    let manage: Manage<'_, _, _, _> = first.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
    let news = watch(&mut deaths, &clock, &[&agent, &second], &mut first_fence, reached);
    assert!(news.iter().any(|it| matches!(it, DeathNews::Declared(_))), "{news:?}");
    // The process dies as it is: it gives nothing back.
    drop(deaths);
    std::mem::forget(manage);
    died.0.borrow_mut().insert(MANAGER_PID);
    // It was redoing an update that gives a chunk to a heap, say.
    let left = header(first.layout().chunk(ChunkId(1))).at();
    rack.host(0).store(left.word(0).unwrap(), 1);

    let manage = second.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
    let death = || NodeDeath::of(second.layout(), second.fabric(), VICTIM).unwrap();
    let appointed = |death: NodeDeath| death.decision.appointment.recoverer;
    // R4: the host of the recoverer lives, and has not given up.
    for _ in 0..400 {
        agent.beat();
        second.beat();
        clock.pause(0);
        let news = deaths.step(clock.now_ms(), true, &mut Off);
        assert!(news.iter().all(|(node, _)| *node != VICTIM), "{news:?}");
    }
    assert_eq!(appointed(death()), NodeId(0));
    let heart = || agent.layout().heartbeat(NodeId(0)).fresh(second.fabric());
    let before = heart();
    for _ in 0..=RESIGN_BEATS + 64 {
        agent.beat();
        second.beat();
    }
    let between = heart() - before - (RESIGN_BEATS + 64 + 1);
    assert!(death().step.is_some_and(RecoveryStep::has_resigned), "{:?}", death().step);
    // Where it had begun, the lines that it may have written pass on with it.
    let stays = death().step == Some(RecoveryStep::ResignedUnfenced);
    assert_eq!(rack.dirty_lines(0).contains(&left), stays);
    // That takes longer than others wait for a heart, when the lines are many.
    assert_eq!(between >= AREA_PARTS, !stays, "the heart beat {between} times in between");
    let news = watch(&mut deaths, &clock, &[&agent, &second], &mut Off, is_done);
    assert!(news.iter().any(is_done), "{news:?}");
    assert!(death().over && appointed(death()) == NodeId(1));

    // A lock manager on the first host finds nothing left to do.
    drop(deaths);
    drop(manage);
    let again = join(0, 9);
    let manage = again.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
    let news = watch(&mut deaths, &clock, &[&agent, &second], &mut Off, |_| false);
    assert_eq!(news, []);
}

#[test]
fn a_recovery_whose_manager_died_before_the_fence_is_carried_on_by_another() {
    another_manager_goes_on(NoFence, |news| {
        matches!(news, DeathNews::Recovery(RecoveryNews::NotFenced(_)))
    });
}

#[test]
fn a_recovery_whose_manager_died_half_way_is_carried_on_by_another() {
    another_manager_goes_on(Off, |news| {
        *news == DeathNews::Recovery(RecoveryNews::Reached(RecoveryStep::Redone))
    });
}

#[test]
fn a_host_with_a_lock_manager_gives_nothing_up() {
    let geometry = Geometry {
        region_bytes: 8 << 20,
        nodes: 3,
        locks: 8,
        chunk_bytes: 64 << 10,
        area_lines: 1,
        host_words: 0,
    };
    let rack = SimulatedRack::sticky(3, geometry.region_bytes);
    format_superblock(&rack.host(0), &Superblock::new([1, 2], geometry, [0; 6]), |_, _| ())
        .unwrap();
    let (died, clock) = (Died::default(), HandClock::default());
    let join = |host, pid| join(&rack, &geometry, &died, host, pid);
    let (agent, first, victim) = (join(0, 1), join(0, MANAGER_PID), join(2, 3));
    victim.beat();
    let manage = first.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
    let quarantined =
        |it: &DeathNews| matches!(it, DeathNews::Recovery(RecoveryNews::NotFenced(_)));
    let news = watch(&mut deaths, &clock, &[&agent], &mut NoFence, quarantined);
    assert!(news.iter().any(quarantined), "{news:?}");
    for _ in 0..=2 * RESIGN_BEATS {
        agent.beat();
    }
    let death = NodeDeath::of(agent.layout(), agent.fabric(), VICTIM).unwrap();
    assert_eq!(death.step, Some(RecoveryStep::Unfenced));
    assert!(watch(&mut deaths, &clock, &[&agent], &mut Off, is_done).iter().any(is_done));
}

/// A recoverer's process died when the dead was buried, and before it said so; its host lives, and
/// nobody is appointed to that life any more. What it last said keeps neither the slot's next return
/// waiting nor its next recovery.
#[test]
fn a_record_that_nobody_corrects_keeps_nobody_waiting() {
    let (rack, geometry) = rack_of_three(1);
    let (died, clock) = (Died::default(), HandClock::default());
    let join = |host, pid| join(&rack, &geometry, &died, host, pid);
    let (agent, first, second) = (join(0, 1), join(0, MANAGER_PID), join(1, 2));
    let dies = |victim: Process| {
        victim.beat();
        rack.crash(2);
        std::mem::forget(victim);
    };

    dies(join(2, 3));
    let manage: Manage<'_, _, _, _> = first.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
    let news = watch(&mut deaths, &clock, &[&agent, &second], &mut Off, is_done);
    assert!(news.iter().any(is_done), "{news:?}");
    let case = decided_about(first.layout(), first.fabric(), VICTIM, Incarnation(1)).unwrap().case;
    let buried = RecoveryRecord::new(case, first.incarnation(), RecoveryStep::Adopted);
    super::twin(&first, VICTIM).publish(first.fabric(), buried);
    drop(deaths);
    std::mem::forget(manage);
    died.0.borrow_mut().insert(MANAGER_PID);

    let recover = || {
        let manage = second.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
        let news = watch(&mut deaths, &clock, &[&agent, &second], &mut Off, is_done);
        assert!(news.iter().any(is_done), "{news:?}");
    };
    // The next life dies at the door: of what is past the line says no more than that.
    let identity = HostIdentity::simulated(1);
    let visitor = Visitor::new(VICTIM, &identity, ProcessIdentity::new(4, 1));
    let (layout, fabric) = (second.layout(), rack.host(1));
    let outside = visitor.look(layout, &fabric, Incarnation(1));
    assert_eq!(visitor.pass(layout, &fabric, &outside, Incarnation(2)), Ok(()));
    recover();
    // The one after it dies, too, and its machine comes back: that looks for recoverers.
    dies(join(2, 5));
    let back = join(2, 6);
    assert_eq!(back.incarnation(), Incarnation(4));
    dies(back);
    recover();
}

/// A dead host had more chunks in its heap than are adopted in one step: between two steps whoever
/// recovers it can grant and beat, and others can have the lock of the chunks.
#[test]
fn many_chunks_are_adopted_a_few_at_a_time() {
    const CHUNKS: usize = 2 * ADOPTED_MAX + 1;
    let (rack, geometry) = rack_of_three(1);
    let (died, clock) = (Died::default(), HandClock::default());
    let join = |host, pid| join(&rack, &geometry, &died, host, pid);
    let (recoverer, victim) = (join(0, MANAGER_PID), join(2, 3));
    let most = victim.object_bytes_max();
    for _ in 0..CHUNKS {
        victim.allocate(&clock, 1000, most).unwrap();
    }
    rack.crash(2);
    std::mem::forget(victim);

    let manage: Manage<'_, _, _, _> = recoverer.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
    let (mut before, mut news) = (0, Vec::new());
    while !news.iter().any(is_done) {
        recoverer.beat();
        clock.pause(0);
        let step = deaths.step(clock.now_ms(), true, &mut Off);
        news.extend(step.into_iter().map(|(_, news)| news));
        let now = recoverer.chunks_of(recoverer.node()).len();
        assert!(now - before <= ADOPTED_MAX, "{} in one step", now - before);
        before = now;
    }
    let adopted = news.iter().find_map(|news| match news {
        DeathNews::Recovery(RecoveryNews::Adopted(chunks)) => Some(chunks.len()),
        _ => None,
    });
    assert_eq!((before, adopted), (CHUNKS, Some(CHUNKS)), "{news:?}");
}

/// The machine of a dead host comes back, and sleeps between its arrival and its first line until a case
/// of its life is opened; then it is refused, and takes its arrival back. The life before it, which the
/// slot has still, is declared dead all the same, with the one that was given up.
#[test]
fn a_life_that_is_given_up_at_the_door_keeps_none_before_it_from_being_declared_dead() {
    for declared in [false, true] {
        let (rack, geometry) = rack_of_three(1);
        let (died, clock) = (Died::default(), HandClock::default());
        let join = |host, pid| join(&rack, &geometry, &died, host, pid);
        let (first, second, paused) = (join(0, 1), join(1, 2), join(2, 3));
        paused.beat();
        let arrival = first.layout().arrival(VICTIM).claim();
        arrival.publish(&rack.host(2), 2);
        let manage = first.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
        let until = |news: &DeathNews| match news {
            DeathNews::Suspected => !declared,
            DeathNews::Declared(_) => declared,
            _ => false,
        };
        let news = watch(&mut deaths, &clock, &[&first, &second], &mut NoFence, until);
        assert!(news.iter().any(until), "{news:?}");
        let opened = decided_about(second.layout(), second.fabric(), VICTIM, Incarnation(2));
        assert_eq!(opened.is_some(), declared);
        // Whoever goes on reads what everybody said.
        drop(deaths);
        drop(manage);
        arrival.publish(&rack.host(2), 1);

        let manage = second.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
        let by_first = |news: &DeathNews| matches!(news, DeathNews::Declared(decision) if decision.case.incarnation.0 == 2);
        // Appointed is who declared it: then the first host has to give it up.
        if declared {
            for _ in 0..=RESIGN_BEATS + 64 {
                first.beat();
            }
        }
        let news = watch(&mut deaths, &clock, &[&first, &second], &mut Off, is_done);
        let (declares, ends) = (news.iter().any(by_first), news.iter().any(is_done));
        assert!(declares && ends, "of {} news, the last is {:?}", news.len(), news.last());
        let death = NodeDeath::of(second.layout(), second.fabric(), VICTIM).unwrap();
        assert!(death.over, "{death:?}");
        // It only slept, and stops itself.
        paused.beat();
        assert!(paused.check_member().is_err());
        std::mem::forget(paused);
        died.0.borrow_mut().insert(3);
        assert_eq!(join(2, 4).incarnation(), Incarnation(3));
    }
}

/// Between a machine's return to a slot and its first line there, the line is of the host before.
#[test]
fn who_comes_back_and_dies_before_its_first_line_is_not_taken_for_the_host_before() {
    let (rack, geometry) = rack_of_three(1);
    let (died, clock) = (Died::default(), HandClock::default());
    let join = |host, pid| join(&rack, &geometry, &died, host, pid);
    let (first, before) = (join(0, 1), join(2, 3));
    before.beat();
    // No mark says whose it is.
    first.layout().arrival(VICTIM).claim().publish(&rack.host(1), 2);
    let mut told = Vec::new();
    let manage = first.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
    let fenced = |news: &DeathNews| matches!(news, DeathNews::Recovery(_));
    let mut fence = Told(&mut told);
    let news = watch(&mut deaths, &clock, &[&first], &mut fence, fenced);
    assert!(news.iter().any(fenced), "{news:?}");
    assert!(
        !told.is_empty() && told.iter().all(|order| (&order.host, order.machine) == (&None, None))
    );
}

/// A fence that never holds, and keeps what it was told.
struct Told<'t>(&'t mut Vec<FenceOrder>);

impl Fence for Told<'_> {
    fn poll(&mut self, order: &FenceOrder, _: u64) -> FenceState {
        self.0.push(order.clone());
        FenceState::NotFenced("nobody is".to_owned())
    }
}

/// A recoverer is about to begin, and one of a later case, whose life was given up at the door, too: the
/// one of the earlier case yields, and neither waits for the other for ever.
#[test]
fn of_two_that_are_about_to_recover_one_slot_the_earlier_yields() {
    let (rack, geometry) = rack_of_three(1);
    let (died, clock) = (Died::default(), HandClock::default());
    let join = |host, pid| join(&rack, &geometry, &died, host, pid);
    let (first, second) = (join(0, 1), join(1, 2));
    let victim = join(2, 3);
    victim.beat();
    rack.crash(2);
    std::mem::forget(victim);
    let unfenced = |it: &DeathNews| matches!(it, DeathNews::Recovery(RecoveryNews::NotFenced(_)));
    let alive = [&first, &second];
    let arrival = first.layout().arrival(VICTIM).claim();

    let manages = [first.manage().unwrap(), second.manage().unwrap()];
    let [mut by_first, mut by_second] =
        manages.each_ref().map(|manage| Deaths::watch(manage, &clock, SUSPECT_MS));
    assert!(watch(&mut by_first, &clock, &alive, &mut NoFence, unfenced).iter().any(unfenced));
    arrival.publish(&rack.host(2), 2);
    assert!(watch(&mut by_second, &clock, &alive, &mut NoFence, unfenced).iter().any(unfenced));
    arrival.publish(&rack.host(2), 1);

    let mut all = Vec::new();
    for _ in 0..100 {
        for deaths in [&mut by_first, &mut by_second] {
            alive.iter().for_each(|process| {
                process.beat();
            });
            clock.pause(0);
            let news = deaths.step(clock.now_ms(), true, &mut Off);
            all.extend(news.into_iter().map(|(_, news)| news));
        }
    }
    assert!(all.iter().any(is_done), "{all:?}");
    assert!(
        all.contains(&DeathNews::Recovery(RecoveryNews::Reached(RecoveryStep::Moot))),
        "{all:?}"
    );
    assert_eq!(rack.conflicts(), []);
}

/// A manager dies in the middle of a recovery, and before its host gives that up another case is opened
/// for the slot: nobody waits for the dead one's record for ever.
#[test]
fn a_recovery_that_broke_off_in_an_earlier_case_is_given_up() {
    let (rack, geometry) = rack_of_three(1);
    let (died, clock) = (Died::default(), HandClock::default());
    let join = |host, pid| join(&rack, &geometry, &died, host, pid);
    let (agent, first, second) = (join(0, 1), join(0, MANAGER_PID), join(1, 2));
    let victim = join(2, 3);
    victim.beat();
    rack.crash(2);
    std::mem::forget(victim);
    let manage = first.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
    let redone = |news: &DeathNews| {
        *news == DeathNews::Recovery(RecoveryNews::Reached(RecoveryStep::Redone))
    };
    let news = watch(&mut deaths, &clock, &[&agent, &second], &mut Off, redone);
    assert!(news.iter().any(redone), "{news:?}");
    drop(deaths);
    std::mem::forget(manage);
    died.0.borrow_mut().insert(MANAGER_PID);
    let left = header(first.layout().chunk(ChunkId(1))).at();
    rack.host(0).store(left.word(0).unwrap(), 1);

    // Of a life that never came further than its arrival.
    let arrival = second.layout().arrival(VICTIM).claim();
    arrival.publish(&rack.host(2), 2);
    let manage = second.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
    let news = watch(&mut deaths, &clock, &[&agent, &second], &mut Off, is_done);
    assert!(news.iter().any(is_done), "of {} news, the last is {:?}", news.len(), news.last());
    assert!(!rack.dirty_lines(0).contains(&left), "it would arrive after what came later");
    assert!(NodeDeath::of(second.layout(), second.fabric(), VICTIM).unwrap().over);
}

/// A process stands at the door behind a slot that was not left, and has not said that it arrives: it came
/// before the case of its life was opened, which was for another that gave up. It is the one to be fenced.
#[test]
fn who_came_before_its_case_was_opened_is_fenced_behind_a_line_of_the_life_before() {
    let (rack, geometry) = rack_of_three(1);
    let (died, clock) = (Died::default(), HandClock::default());
    let join = |host, pid| join(&rack, &geometry, &died, host, pid);
    let (first, second, before) = (join(0, 1), join(1, 2), join(2, 3));
    before.beat();
    rack.crash(2);
    std::mem::forget(before);
    let layout = first.layout();
    let again = HostIdentity { boot_id: [99, 0], ..HostIdentity::simulated(2) };
    let visitor = Visitor::new(VICTIM, &again, ProcessIdentity::new(4, 1));
    let outside = visitor.look(layout, &rack.host(2), Incarnation(1));
    assert_eq!(visitor.pass(layout, &rack.host(2), &outside, Incarnation(2)), Ok(()));
    let arrival = layout.arrival(VICTIM).claim();
    arrival.publish(&rack.host(2), 2);
    let manage = first.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
    let suspected = |news: &DeathNews| *news == DeathNews::Suspected;
    let news = watch(&mut deaths, &clock, &[&first, &second], &mut NoFence, suspected);
    assert!(news.iter().any(suspected), "{news:?}");
    drop(deaths);
    arrival.publish(&rack.host(2), 1);

    let manage = second.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
    let mut told = Vec::new();
    let fenced = |news: &DeathNews| matches!(news, DeathNews::Recovery(_));
    let news = watch(&mut deaths, &clock, &[&first, &second], &mut Told(&mut told), fenced);
    assert!(news.iter().any(fenced), "{news:?}");
    let order = told.first().unwrap();
    assert_eq!(order.machine.map(|machine| machine.boot_id), Some(again.boot_id), "{order:?}");
    assert_eq!((order.incarnation, &order.host), (Incarnation(2), &None));
}

/// A manager dies in the middle of a recovery, and its host leaves, or comes back, before it gives that up:
/// what is in its caches of the lines of the dead does not outlast its life.
#[test]
fn what_a_recoverer_had_not_published_arrives_before_its_life_is_over() {
    for leaves in [true, false] {
        let (rack, geometry) = rack_of_three(1);
        let (died, clock) = (Died::default(), HandClock::default());
        let join = |host, pid| join(&rack, &geometry, &died, host, pid);
        let (agent, first, victim) = (join(0, 1), join(0, MANAGER_PID), join(2, 3));
        victim.beat();
        rack.crash(2);
        std::mem::forget(victim);
        let manage = first.manage().unwrap();
        let mut deaths = Deaths::watch(&manage, &clock, SUSPECT_MS);
        let redone = |news: &DeathNews| {
            *news == DeathNews::Recovery(RecoveryNews::Reached(RecoveryStep::Redone))
        };
        let news = watch(&mut deaths, &clock, &[&agent], &mut Off, redone);
        assert!(news.iter().any(redone), "{news:?}");
        drop(deaths);
        std::mem::forget(manage);
        died.0.borrow_mut().insert(MANAGER_PID);
        let left = first.layout().requests(VICTIM).range().start();
        rack.host(0).store(left.word(0).unwrap(), 1);
        if leaves {
            assert_eq!(agent.leave(), crate::member::LeaveOutcome::NodeLeft);
        } else {
            std::mem::forget(agent);
            died.0.borrow_mut().insert(1);
            std::mem::forget(join(0, 5));
        }
        assert!(!rack.dirty_lines(0).contains(&left), "leaves: {leaves}");
    }
}
