//! What becomes of hosts that die, or seem to, on a simulated rack: declared dead by consensus,
//! fenced, recovered by another, which may die on the way, and replaced.

use std::sync::{Arc, Mutex, PoisonError};

use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::HEAP_PURPOSE;
use cxl_shm::layout::{ChunkState, IntentRecord, NodeState, RecoveryRecord, RecoveryStep};
use cxl_shm::lifecycle::{Fence, FenceOrder, FenceState, LeaveOutcome, NoFence, membership_epoch};
use cxl_shm::lock::LockError;
use cxl_shm::node::SUSPECT_MS;
use cxl_shm::units::{ChunkId, NodeId};
use cxl_shm::verify::simulated::{Crash, Faults, Schedule};
use lock_manager::{ManagerRole, RoleError, Timeouts};

use crate::lock_scenarios::{LOCK, format, geometry, settings};
use crate::rack::{Cluster, Mutant, RackMember, pause_idle, run, wait_ms};

/// Cuts the power of the host, whatever it is doing.
#[derive(Clone, Debug)]
struct PowerOff(Cluster);

impl Fence for PowerOff {
    fn poll(&mut self, order: &FenceOrder, _: u64) -> FenceState {
        // What a simulated host gives as its boot id. Of a torn line: the node's own host.
        let of_machine = |boot_id: u64| usize::try_from(boot_id - 1).unwrap_or(usize::MAX);
        let of_node = self.0.host_of(order.victim);
        self.0.rack.crash(order.machine.map_or(of_node, |it| of_machine(it.boot_id[0])));
        FenceState::Fenced
    }
}

/// For hosts that did crash: their first life is over, whichever host lives there now. Others are
/// cut off.
#[derive(Clone, Debug)]
struct Crashed {
    power: PowerOff,
    hosts: Arc<Mutex<Vec<usize>>>,
}

impl Fence for Crashed {
    fn poll(&mut self, order: &FenceOrder, now_ms: u64) -> FenceState {
        let hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if order.case.incarnation.0 == 1 && hosts.contains(&self.power.0.host_of(order.victim)) {
            return FenceState::Fenced;
        }
        self.power.poll(order, now_ms)
    }
}

/// The body of a lock manager that declares deaths. Ends when its own host was declared dead.
fn run_manager(cluster: &Cluster, host: usize, name: &str, mut fence: impl Fence) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    let timeouts = Timeouts { takeover_ms: 300, declare_ms: SUSPECT_MS };
    let role = ManagerRole::new(&member, &clock, timeouts);
    let mut role = role.unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut tries = 0;
    loop {
        match role.step(clock.now_ms(), &mut fence) {
            Ok(outcome) => tries = if outcome.busy { 0 } else { tries + 1 },
            Err(RoleError::MembershipLost(_)) => return,
            Err(error) => panic!("{name}: {error}"),
        }
        pause_idle(&clock, tries);
    }
}

/// Adds the agents and, on the first hosts, managers. A host that crashes does not return.
fn with_rack<T: Fence + Clone + Send + 'static>(
    mut schedule: Schedule,
    cluster: &Cluster,
    hosts: usize,
    managers: usize,
    fence: &T,
) -> Schedule {
    for host in 0..hosts {
        let (rack, name) = (cluster.clone(), format!("agent {host}"));
        schedule = schedule.daemon(host, name.clone(), move |life| {
            if life == 0 {
                rack.run_agent(host, &name);
            }
        });
    }
    for host in 0..managers {
        let (rack, name, fence) = (cluster.clone(), format!("manager {host}"), fence.clone());
        schedule = schedule.daemon(host, name.clone(), move |life| {
            if life == 0 {
                run_manager(&rack, host, &name, fence.clone());
            }
        });
    }
    schedule
}

fn state_of(member: &RackMember, node: NodeId) -> Option<NodeState> {
    member.layout().node_line(node).fresh(member.fabric()).ok()?.state()
}

fn wait_for(cluster: &Cluster, host: usize, mut what: impl FnMut() -> bool) {
    let clock = cluster.clock(host);
    while !what() {
        wait_ms(&clock, 5);
    }
}

/// How far `recoverer` says it is with `victim`.
fn step_of(member: &RackMember, recoverer: NodeId, victim: NodeId) -> Option<RecoveryStep> {
    let (area, fabric) = (member.layout().recoveries(recoverer), member.fabric());
    let lines = [0, 1].map(|line| u64::from(victim.0) * 2 + line);
    let records = lines.map(|line| area.line::<RecoveryRecord>(line)?.fresh(fabric).ok());
    let newest = records.into_iter().flatten().max_by_key(RecoveryRecord::sequence)?;
    newest.step()
}

/// Takes chunks, of its heap and of the layer above, until something stops it.
fn take_chunks(cluster: &Cluster, host: usize, name: &str, wanted: usize) {
    let member = cluster.join(host, name);
    let clock = cluster.clock(host);
    let mut taken = 0;
    while taken < wanted {
        let purpose = if taken % 2 == 0 { HEAP_PURPOSE } else { 42 };
        match member.allocate_chunk(&clock, 2000, purpose) {
            Ok(_) => taken += 1,
            Err(error) => assert!(
                !matches!(error, cxl_shm::chunk::AllocateError::Lock(LockError::MembershipLost(_))),
                "{name} lives, and nobody suspects it"
            ),
        }
    }
}

/// Nothing of `victim` is left: its intents are closed, its heap chunks are somebody else's, every
/// entry of the chunk table can be read, and its heir may take locks and chunks.
fn check_heir(cluster: &Cluster, heir: &RackMember, host: usize) {
    let (layout, fabric, clock) = (heir.layout(), heir.fabric(), cluster.clock(host));
    let intents = layout.intents(heir.node());
    fabric.refresh(intents.range());
    for lock in [cxl_shm::layout::ROOT_LOCK, cxl_shm::layout::CHUNK_LOCK] {
        let head = intents.line::<IntentRecord>(u64::from(lock.0) * 8);
        let record = head.and_then(|head| head.cached(fabric).ok());
        assert!(record.is_none_or(|record| record.open(lock).is_none()), "an open intent is left");
    }
    for chunk in (0..layout.chunks()).map(ChunkId) {
        let state = layout.chunk_entry(chunk).fresh(fabric).map(|entry| entry.state());
        match state {
            Ok(Some(ChunkState::Owned { owner, purpose: HEAP_PURPOSE, .. })) => {
                assert_ne!(owner, heir.node(), "{chunk} of the dead heap was not adopted");
            }
            Ok(Some(_)) => {}
            other => panic!("{chunk} is half written: {other:?}"),
        }
    }
    let mut tries = 0;
    // It has no agent of its own: it beats between its tries.
    heir.beat();
    while heir.allocate_chunk(&clock, 20, 43).is_err() {
        heir.beat();
        tries += 1;
        assert!(tries < 1000, "the heir gets no chunk");
    }
    while heir.lock_shared(LOCK, &clock, 20).is_err() {
        heir.beat();
        tries += 1;
        assert!(tries < 2000, "what the dead held is not free");
    }
}

/// Three to eight hosts take chunks; one or two crash for good in the middle, managers too. They
/// are declared dead and recovered, and another machine takes the slot.
///
/// # Panics
/// When that is not so.
pub fn the_dead_are_replaced(mutant: Mutant, seed: u64) {
    let hosts = mutant.hosts(seed, 3..=8);
    let nodes = u16::try_from(hosts).unwrap_or(0);
    // One machine more than nodes: the heir.
    let cluster = format(settings(hosts + 1, seed), geometry(nodes), seed, mutant);
    cluster.warm();
    let fence = PowerOff(cluster.clone());
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(8_000_000));
    schedule = schedule.faults(Faults::NONE);
    schedule = with_rack(schedule, &cluster, hosts, 3, &fence);
    // At most two of the three managers.
    let first = usize::try_from(seed / 6).unwrap_or(0) % hosts;
    let second = (first + 1) % hosts;
    let victims =
        if seed.is_multiple_of(5) && hosts > 3 { vec![first, second] } else { vec![first] };
    for (at, victim) in victims.iter().enumerate() {
        schedule = schedule.crash_host_at(*victim, 1500 + seed % 61 * 53 + at as u64 * 400);
    }
    for host in 0..hosts {
        let (rack, name) = (cluster.clone(), format!("worker {host}"));
        let victim = victims.contains(&host);
        let wanted = if victim { 1000 } else { 3 };
        let body = move |life| {
            if life == 0 {
                take_chunks(&rack, host, &name, wanted);
            }
        };
        let name = format!("worker {host}");
        schedule = if victim {
            schedule.daemon(host, name, body)
        } else {
            schedule.restarting(host, name, body)
        };
    }
    let rack = cluster.clone();
    let (heir_on, node) = (hosts, cluster.node_of(victims[0]).index());
    let witness = (0..hosts).rev().find(|host| !victims.contains(host)).unwrap_or(0);
    let recovered = Arc::new(Mutex::new(false));
    let is_recovered =
        |recovered: &Mutex<bool>| *recovered.lock().unwrap_or_else(PoisonError::into_inner);
    schedule = schedule.task(witness, "witness", {
        let (rack, victims, recovered) = (cluster.clone(), victims.clone(), Arc::clone(&recovered));
        move || {
            let member = rack.join(witness, "witness");
            for victim in victims {
                let victim = rack.node_of(victim);
                wait_for(&rack, witness, || state_of(&member, victim) == Some(NodeState::Dead));
            }
            assert!(membership_epoch(member.layout(), member.fabric()) > 0);
            *recovered.lock().unwrap_or_else(PoisonError::into_inner) = true;
        }
    });
    schedule = schedule.task(heir_on, "heir", move || {
        wait_for(&rack, heir_on, || is_recovered(&recovered));
        let heir = rack.join_as(heir_on, node, "heir").unwrap_or_else(|error| panic!("{error}"));
        check_heir(&rack, &heir, heir_on);
    });
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    cluster.check_writers();
}

/// A host crashes, and its recoverer crashes at each step of the recovery in turn (by seed); the
/// next one continues.
///
/// # Panics
/// When nobody does.
pub fn recoverers_die(mutant: Mutant, seed: u64) {
    let hosts = 5;
    let cluster = format(settings(hosts, seed), geometry(5), seed, mutant);
    cluster.warm();
    let fence = PowerOff(cluster.clone());
    let steps = [
        RecoveryStep::Fenced,
        RecoveryStep::Redone,
        RecoveryStep::Freed,
        RecoveryStep::Adopted,
        RecoveryStep::Done,
    ];
    let deadly = steps[usize::try_from(seed % 5).unwrap_or(0)];
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(8_000_000));
    schedule = with_rack(schedule.faults(Faults::NONE), &cluster, hosts, 3, &fence);
    schedule = schedule.crash_host_at(3, 1500 + seed % 47 * 41);
    let rack = cluster.clone();
    schedule = schedule.daemon(3, "worker 3", move |life| {
        if life == 0 {
            take_chunks(&rack, 3, "worker 3", 1000);
        }
    });
    let rack = cluster.clone();
    schedule = schedule.task(4, "witness", move || {
        let member = rack.join(4, "witness");
        let victim = rack.node_of(3);
        let mut killed = None;
        wait_for(&rack, 4, || {
            for recoverer in (0..3).map(|host| rack.node_of(host)) {
                let step = step_of(&member, recoverer, victim);
                if killed.is_none() && step.is_some_and(|step| step >= deadly) {
                    rack.rack.crash(rack.host_of(recoverer));
                    killed = Some(recoverer);
                }
            }
            let dead = |node| state_of(&member, node) == Some(NodeState::Dead);
            dead(victim) && killed.is_some_and(dead)
        });
        let clock = rack.clock(4);
        drop(member.lock_shared(LOCK, &clock, 60_000).expect("the locks are free"));
        assert!(member.allocate_chunk(&clock, 60_000, 42).is_ok(), "the chunk lock is free");
        let (layout, fabric) = (member.layout(), member.fabric());
        for chunk in (0..layout.chunks()).map(ChunkId) {
            let state = layout.chunk_entry(chunk).fresh(fabric).ok().and_then(|it| it.state());
            if let Some(ChunkState::Owned { owner, purpose: HEAP_PURPOSE, .. }) = state {
                assert!(owner != victim && Some(owner) != killed, "{chunk} is a dead heap's");
            }
        }
    });
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    cluster.check_writers();
}

/// A host pauses with a lock in its hands, is declared dead, and wakes. With no fence nothing of
/// it is touched: nobody gets the lock before it has left, and it gets nothing done any more.
///
/// # Panics
/// When that is not so.
pub fn a_paused_host_is_quarantined(mutant: Mutant, seed: u64) {
    let hosts = 3;
    let cluster = format(settings(hosts, seed), geometry(3), seed, mutant);
    cluster.warm();
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(4_000_000));
    schedule = with_rack(schedule.faults(Faults::NONE), &cluster, 2, 2, &NoFence);
    let rack = cluster.clone();
    schedule = schedule.task(2, "victim", move || {
        let member = rack.join(2, "victim");
        let clock = rack.clock(2);
        member.beat();
        let guard = loop {
            member.beat();
            if let Ok(guard) = member.lock_shared(LOCK, &clock, 20) {
                break guard;
            }
        };
        // From here on its heartbeat has stopped. It beats again much later.
        wait_ms(&clock, 4000);
        member.beat();
        assert!(member.check_member().is_err(), "it sees that it was declared dead");
        let refused = member.lock_shared(cxl_shm::units::LockId(10), &clock, 1000);
        assert!(matches!(refused, Err(LockError::MembershipLost(_))), "{refused:?}");
        drop(refused);
        drop(guard);
        assert_eq!(member.leave(), LeaveOutcome::NodeLeft);
    });
    let rack = cluster.clone();
    schedule = schedule.task(1, "witness", move || {
        let member = rack.join(1, "witness");
        let clock = rack.clock(1);
        let (victim, layout, fabric) = (rack.node_of(2), *member.layout(), member.fabric().clone());
        wait_for(&rack, 1, || {
            let recoverers = || (0..2).map(|host| rack.node_of(host));
            let waits = |by| step_of(&member, by, victim) == Some(RecoveryStep::Unfenced);
            recoverers().any(waits) || state_of(&member, victim) == Some(NodeState::Left)
        });
        assert!(membership_epoch(&layout, &fabric) == 1, "one death");
        // Quarantined: the lock cannot be acquired as long as the victim has not left.
        while let Err(error) = member.lock_shared(LOCK, &clock, 200) {
            assert!(matches!(error, LockError::TimedOut { .. }), "{error}");
        }
        wait_for(&rack, 1, || state_of(&member, victim) == Some(NodeState::Left));
    });
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| processes.crashed(crash)));
    cluster.check_writers();
}

/// A host crashes and its machine comes back at about the time at which it is declared dead: it
/// joins again, before the recovery, after it, or waits for it; never do both write.
///
/// # Panics
/// When two hosts have written one line, or it does not come back.
pub fn the_dead_return(mutant: Mutant, seed: u64) {
    let hosts = 4;
    let cluster = format(settings(hosts, seed), geometry(4), seed, mutant);
    cluster.warm();
    let crashed = Arc::new(Mutex::new(Vec::new()));
    let fence = Crashed { power: PowerOff(cluster.clone()), hosts: Arc::clone(&crashed) };
    let mut schedule =
        Schedule::builder(&cluster.rack, seed).steps_max(mutant.steps_max(8_000_000));
    schedule = with_rack(schedule.faults(Faults::NONE), &cluster, 3, 2, &fence);
    schedule = schedule.crash_host_at(3, 1200 + seed % 53 * 37);
    let rack = cluster.clone();
    schedule = schedule.restarting(3, "returner", move |life| {
        let clock = rack.clock(3);
        if life == 0 {
            let member = rack.join(3, "returner");
            member.beat();
            loop {
                let _ = member.allocate_chunk(&clock, 500, 42);
                member.beat();
            }
        }
        wait_ms(&clock, 1400 + seed % 40 * 5);
        let member = loop {
            match rack.try_join(3, "returner") {
                Ok(member) => break member,
                Err(_) => wait_ms(&clock, 20),
            }
        };
        let mut got = false;
        while !got {
            member.beat();
            got = member.allocate_chunk(&clock, 500, 42).is_ok();
            if member.check_member().is_err() {
                // A fence of its former life has met this one: it comes again.
                member.leave();
                return;
            }
        }
    });
    let processes = cluster.processes.clone();
    run(schedule.on_crash(move |crash| {
        if let Crash::Host { host } = crash {
            crashed.lock().unwrap_or_else(PoisonError::into_inner).push(*host);
        }
        processes.crashed(crash);
    }));
    cluster.check_writers();
}
