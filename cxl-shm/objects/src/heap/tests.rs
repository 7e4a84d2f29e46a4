//! Heaps against a simple model, and what they refuse.

use crate::{NamedRoots, Objects};
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::error::TakeOverError;
use super::*;
use crate::root::RootKind;
use cxl_shm::chunk::{AllocateError, ChunkError};
use cxl_shm::host::{HostIdentity, HostLockName, HostTier, ProcessIdentity};
use cxl_shm::layout::ChunkState;
use cxl_shm::node::Member;
use cxl_shm::units::{ChunkId, LineOffset};
use cxl_shm::verify::SimulatedBackend;
use cxl_shm::verify::fixture::EvenLive;
use cxl_shm::verify::small_rack::{Rig, RigMember, TIMEOUT_MS};

fn check_usage(rig: &Rig, member: &RigMember, live: impl Iterator<Item = u64>) {
    let usage = member.heap_usage(&rig.clock).unwrap();
    let (objects, bytes) = live.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
    assert_eq!((usage.objects, usage.allocated_bytes), (objects, bytes));
    let counted = usage.allocated_bytes + usage.free_bytes + usage.damaged_bytes;
    assert_eq!(counted, usage.capacity_bytes);
    assert_eq!(usage.capacity_bytes, usage.chunks * object_bytes_max(member.layout()));
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Free(usize),
    FreeAgain(usize),
    FreeInside(usize),
    ByOther(usize),
    Return,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![4 => 0u64..600, 3 => 600u64..5000, 1 => 5000u64..61_441];
    let step = prop_oneof![
        6 => bytes.prop_map(Step::Allocate),
        4 => any::<usize>().prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::FreeAgain),
        1 => any::<usize>().prop_map(Step::FreeInside),
        1 => any::<usize>().prop_map(Step::ByOther),
        1 => Just(Step::Return),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_heap_does_what_its_model_does(steps in steps()) {
        let rig = Rig::new(8);
        let (a, b) = (rig.join(0), rig.join(1));
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        let mut freed = Vec::new();
        let pick = |live: &BTreeMap<u64, u64>, n: usize| {
            live.iter().nth(n % live.len().max(1)).map(|(at, bytes)| (*at, *bytes))
        };
        for step in steps {
            match step {
                Step::Allocate(bytes) => match a.allocate(&rig.clock, 0, bytes) {
                    Ok(object) => {
                        let at = object.offset().bytes();
                        let room = object.extent().bytes();
                        prop_assert!(room >= bytes && at % 64 == 0);
                        let before = live.range(..at).next_back();
                        prop_assert!(before.is_none_or(|(start, bytes)| start + bytes <= at));
                        let after = live.range(at..).next();
                        prop_assert!(after.is_none_or(|(start, _)| at + room <= *start));
                        live.insert(at, room);
                        freed.retain(|old| *old != at);
                    }
                    Err(ObjectError::Exhausted { source: AllocateError::Exhausted { .. }, .. }) => {}
                    Err(error) => panic!("{error}"),
                },
                Step::Free(n) | Step::ByOther(n) => {
                    let Some((at, _)) = pick(&live, n) else { continue };
                    let offset = SharedOffset::new(at).unwrap();
                    if matches!(step, Step::Free(_)) {
                        a.free(&rig.clock, 0, offset).unwrap();
                    } else {
                        b.free(&rig.clock, 0, offset).unwrap();
                        a.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
                    }
                    live.remove(&at);
                    freed.push(at);
                }
                Step::FreeAgain(n) => {
                    let Some(at) = freed.get(n % freed.len().max(1)) else { continue };
                    // Unless another object covers the place by now, in any part.
                    let before = live.range(..=*at).next_back();
                    if before.is_none_or(|(start, bytes)| start + bytes <= *at) {
                        prop_assert!(a.free(&rig.clock, 0, SharedOffset::new(*at).unwrap()).is_err());
                    }
                }
                Step::FreeInside(n) => {
                    let Some((at, bytes)) = pick(&live, n) else { continue };
                    if bytes > 64 {
                        let offset = SharedOffset::new(at + 64).unwrap();
                        let error = a.free(&rig.clock, 0, offset).unwrap_err();
                        prop_assert_eq!(error, FreeError::NotAnObject { offset });
                    }
                }
                Step::Return => {
                    a.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
                }
            }
            check_usage(&rig, &a, live.values().copied());
        }
        for at in live.keys() {
            a.free(&rig.clock, 0, SharedOffset::new(*at).unwrap()).unwrap();
        }
        check_usage(&rig, &a, [].into_iter());
        // Asked for, everything goes back.
        b.node_handle().chunk_demand().publish(b.fabric(), u64::MAX);
        a.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
        prop_assert_eq!(a.owned_chunks(), []);
    }

    #[test]
    fn no_bytes_in_a_heap_stop_it(
        lines in prop::collection::vec((0u64..33, any::<[u64; 8]>(), any::<bool>()), 1..40),
        sizes in prop::collection::vec(1u64..20_000, 1..20),
    ) {
        let rig = Rig::new(4);
        let a = rig.join(0);
        let objects: Vec<_> =
            sizes.iter().filter_map(|bytes| a.allocate(&rig.clock, 0, *bytes).ok()).collect();
        let owned = a.owned_chunks();
        for (at, words, small) in lines {
            let chunk = a.layout().chunk(owned[usize::try_from(at).unwrap() % owned.len()].0);
            let line = LineOffset::new(chunk.offset() + at % 16 * 64).unwrap();
            let mut old = rig.rack.host(0).read_line(line);
            for (old, new) in old.iter_mut().zip(words).skip(usize::from(small)) {
                *old = if small { new % 64 } else { new };
            }
            rig.rack.host(0).write_line(line, &old);
        }
        // Anything may come of it but a panic, a circle or a place outside.
        for (object, bytes) in objects.iter().zip(&sizes) {
            let _ = a.free(&rig.clock, 0, object.offset());
            if let Ok(object) = a.allocate(&rig.clock, 0, *bytes) {
                let chunk = a.layout().chunk_of(object.extent());
                prop_assert!(chunk.is_some());
            }
            let _ = a.answer_chunk_requests(&rig.clock, 0);
        }
        let _ = a.heap_usage(&rig.clock);
        a.sweep_heap(&rig.clock, TIMEOUT_MS).unwrap();
        check_usage(&rig, &a, [].into_iter());
    }

    #[test]
    fn no_bytes_in_a_ring_stop_its_receiver(
        words in prop::collection::vec((0u64..512, any::<u64>(), 0u64..400), 0..60), tail: u64,
    ) {
        let rig = Rig::new(4);
        let (a, b) = (rig.join(0), rig.join(1));
        let kept = a.allocate(&rig.clock, 0, 100).unwrap();
        a.put_root(&rig.clock, TIMEOUT_MS, "kept", kept.offset(), RootKind::Leaf).unwrap();
        let ring = a.layout().free_ring(b.node(), a.node());
        for (index, word, near) in words {
            // One in two like a free of something near the object.
            let line = kept.offset().bytes() / 64 + near;
            let word = if word % 2 == 0 { 1 << 58 | 1 << 50 | line } else { word };
            ring.word(index).unwrap().claim().publish(&rig.rack.host(1), word);
        }
        a.layout().free_tails(a.node()).word(1).unwrap().claim().publish(&rig.rack.host(0), tail);
        a.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
        let _ = b.free(&rig.clock, 0, kept.offset());
        a.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
        check_usage(&rig, &a, [128].into_iter());
    }
}

#[test]
fn what_cannot_be_freed_is_refused_and_nothing_changes() {
    let rig = Rig::new(8);
    let (a, b) = (rig.join(0), rig.join(1));
    let free = |at: u64| a.free(&rig.clock, TIMEOUT_MS, SharedOffset::new(at).unwrap());
    let object = a.allocate(&rig.clock, TIMEOUT_MS, 1000).unwrap();
    let offset = object.offset();
    let at = offset.bytes();
    let foreign = |at: u64| Err(FreeError::Foreign { offset: SharedOffset::new(at).unwrap() });
    assert_eq!(free(0), foreign(0), "metadata");
    assert_eq!(free(1 << 60), foreign(1 << 60), "outside");
    let payload = a.allocate_chunk(&rig.clock, TIMEOUT_MS, 7).unwrap();
    let payload_at = a.layout().chunk(payload).offset();
    assert_eq!(free(payload_at), foreign(payload_at), "a chunk of something else");
    let chunk = a.layout().chunk_of(object.extent()).unwrap();
    let header_at = a.layout().chunk(chunk).offset();
    let header = SharedOffset::new(header_at).unwrap();
    assert_eq!(free(header_at), Err(FreeError::NotAnObject { offset: header }));
    let inside = SharedOffset::new(at + 64).unwrap();
    assert_eq!(free(at + 64), Err(FreeError::NotAnObject { offset: inside }));
    let in_chunk = a.free_chunk(&rig.clock, TIMEOUT_MS, chunk);
    assert_eq!(in_chunk, Err(ChunkError::InHeap { chunk }));

    a.put_root(&rig.clock, TIMEOUT_MS, "it", offset, RootKind::Leaf).unwrap();
    assert_eq!(free(at), Err(FreeError::Named { offset }));
    b.free(&rig.clock, TIMEOUT_MS, offset).unwrap();
    a.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
    assert_eq!(a.heap_usage(&rig.clock).unwrap().refused_frees, 1);
    check_usage(&rig, &a, [1024].into_iter());
    a.destroy_root(&rig.clock, TIMEOUT_MS, "it").unwrap();
    assert_eq!(free(at), Err(FreeError::NotAllocated { offset }), "destroying frees");
    check_usage(&rig, &a, [].into_iter());
    assert_eq!(b.take_over(inside), Err(TakeOverError::NotAnObject { offset: inside }));
}

#[test]
fn too_large_and_too_many_say_what_would_do() {
    let rig = Rig::new(2);
    let a = rig.join(0);
    let most = a.object_bytes_max();
    assert_eq!(most, 15 * 4096, "a chunk of 16 pages but for its header");
    let error = a.allocate(&rig.clock, 0, most + 1).unwrap_err();
    assert_eq!(error, ObjectError::TooLarge { bytes: most + 1, bytes_max: most });
    let mut objects = Vec::new();
    let error = loop {
        match a.allocate(&rig.clock, 0, most) {
            Ok(object) => objects.push(object),
            Err(error) => break error,
        }
    };
    assert_eq!(objects.len() as u64, u64::from(a.layout().chunks()));
    let heap_chunks = objects.len() as u64;
    assert!(matches!(
        error,
        ObjectError::Exhausted { free_bytes: 0, heap_chunks: chunks, .. } if chunks == heap_chunks
    ));
    a.free(&rig.clock, 0, objects[0].offset()).unwrap();
    assert!(a.allocate(&rig.clock, 0, most).is_ok());
}

#[test]
fn a_host_that_runs_dry_gets_idle_chunks_of_others() {
    let rig = Rig::new(4);
    let (a, b) = (rig.join(0), rig.join(1));
    let most = a.object_bytes_max();
    let objects: Vec<_> = std::iter::from_fn(|| a.allocate(&rig.clock, 0, most).ok()).collect();
    assert!(b.allocate(&rig.clock, 0, 64).is_err());
    assert_eq!(a.chunks_requested(), 0, "the request is withdrawn");
    a.free(&rig.clock, 0, objects[0].offset()).unwrap();
    assert_eq!(a.answer_chunk_requests(&rig.clock, TIMEOUT_MS), Ok(0), "one is kept");
    // What `allocate` says while it waits.
    b.node_handle().chunk_demand().publish(b.fabric(), 1);
    assert_eq!(a.chunks_requested(), 1);
    assert_eq!(a.answer_chunk_requests(&rig.clock, TIMEOUT_MS), Ok(1));
    let object = b.allocate(&rig.clock, TIMEOUT_MS, most).unwrap();
    let chunk = b.layout().chunk_of(object.extent()).unwrap();
    let entry = a.layout().chunk_entry(chunk).fresh(a.fabric()).unwrap();
    assert!(matches!(entry.state(), Some(ChunkState::Owned { owner, .. }) if owner == b.node()));
}

#[test]
fn a_full_ring_says_so_and_frees_go_on_later() {
    let rig = Rig::new(8);
    let (a, b) = (rig.join(0), rig.join(1));
    // More than one lap.
    for round in 0..3 {
        let objects: Vec<_> = (0..ring::SLOTS + 1)
            .map(|_| a.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap().offset())
            .collect();
        let (last, first) = objects.split_last().unwrap();
        for offset in first {
            b.free(&rig.clock, TIMEOUT_MS, *offset).unwrap();
        }
        let full = FreeError::Backlog { owner: a.node(), waiting: ring::SLOTS };
        assert_eq!(b.free(&rig.clock, TIMEOUT_MS, *last), Err(full), "round {round}");
        a.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
        b.free(&rig.clock, TIMEOUT_MS, *last).unwrap();
        a.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
        check_usage(&rig, &a, [].into_iter());
        // Another process of the sender finds out where its host is in the ring.
        HeapWords::of(b.node_handle().tier()).set_sent(a.node(), None);
    }
}

#[test]
fn a_new_incarnation_keeps_what_roots_reach() {
    let rig = Rig::new(8);
    let a = rig.join(0);
    let b = rig.join(1);
    let make = |bytes| a.allocate(&rig.clock, TIMEOUT_MS, bytes).unwrap();
    let (leaf, list, far) = (make(100), make(200), make(9000));
    let lost = make(300);
    let remote = b.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
    let word = |offset: SharedOffset| offset.bytes().to_le_bytes();
    assert!(list.write(a.fabric(), 64, &word(remote.offset())));
    assert!(remote.write(b.fabric(), 8, &word(far.offset())));
    assert!(leaf.write(a.fabric(), 0, &word(lost.offset())));
    assert!(far.write(a.fabric(), 8000, b"far"));
    a.put_root(&rig.clock, TIMEOUT_MS, "leaf", leaf.offset(), RootKind::Leaf).unwrap();
    a.put_root(&rig.clock, TIMEOUT_MS, "list", list.offset(), RootKind::Linked).unwrap();
    a.leave();

    let a = rig.join(0);
    assert_eq!(a.heap_usage(&rig.clock).unwrap().chunks, 0, "nothing is built yet");
    let new = a.allocate(&rig.clock, TIMEOUT_MS, 300).unwrap();
    let kept = [leaf, list, far, new].map(|object| object.extent().bytes());
    check_usage(&rig, &a, kept.into_iter());
    let mut bytes = [0; 3];
    assert!(a.object(far.offset()).unwrap().read(a.fabric(), 8000, &mut bytes));
    assert_eq!(&bytes, b"far");
    let offset = leaf.offset();
    assert_eq!(a.free(&rig.clock, 0, offset), Err(FreeError::Named { offset }));
    let report = a.sweep_heap(&rig.clock, TIMEOUT_MS).unwrap();
    assert_eq!(report.kept_objects, 3, "nothing reaches the new one");
    check_usage(&rig, &a, kept[..3].iter().copied());
}

#[test]
fn roots_of_other_hosts_are_destroyed_and_their_objects_freed_once() {
    let rig = Rig::new(8);
    let (a, b) = (rig.join(0), rig.join(1));
    let object = a.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
    a.put_root(&rig.clock, TIMEOUT_MS, "one", object.offset(), RootKind::Leaf).unwrap();
    b.destroy_root(&rig.clock, TIMEOUT_MS, "one").unwrap();
    assert_eq!(b.root("one"), Ok(None));
    check_usage(&rig, &a, [64].into_iter());
    a.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
    check_usage(&rig, &a, [].into_iter());
    // The place is another object's now; nothing is freed again.
    let again = a.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
    assert_eq!(again.offset(), object.offset());
    a.answer_chunk_requests(&rig.clock, TIMEOUT_MS).unwrap();
    check_usage(&rig, &a, [64].into_iter());
    assert_eq!(a.owned_chunks().first().map(|(chunk, _)| *chunk), Some(ChunkId(0)));
}

#[test]
fn an_agent_waits_for_nobody_who_sleeps_in_the_heap() {
    let rig = Rig::new(8);
    let (a, sleeper, b) = (rig.join(0), rig.join(0), rig.join(1));
    let most = object_bytes_max(a.layout());
    let object = a.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
    a.put_root(&rig.clock, TIMEOUT_MS, "one", object.offset(), RootKind::Leaf).unwrap();
    for other in [0; 2].map(|_| a.allocate(&rig.clock, TIMEOUT_MS, most).unwrap()) {
        a.free(&rig.clock, TIMEOUT_MS, other.offset()).unwrap();
    }
    b.destroy_root(&rig.clock, TIMEOUT_MS, "one").unwrap();
    assert!(a.beat(), "it is the agent");

    let asleep = sleeper.lock_host(HostLockName::Objects, &rig.clock);
    assert_eq!(a.attend(&rig.clock), Ok(false), "and the locks between hosts are free for others");
    let other = b.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
    b.put_root(&rig.clock, TIMEOUT_MS, "two", other.offset(), RootKind::Leaf).unwrap();
    drop(asleep);
    assert_eq!(a.attend(&rig.clock), Ok(true), "a chunk is given back");
    check_usage(&rig, &a, [].into_iter());
}

/// A clock by which another process of the host enters the heap as soon as somebody waits, and
/// stands still there, while another host tries to have a lock between hosts.
struct SleeperClock<'m> {
    clock: cxl_shm::clock::SystemClock,
    sleeper: &'m RigMember,
    far: &'m RigMember,
    lock: cxl_shm::units::LockId,
    asleep: std::cell::RefCell<
        Option<cxl_shm::host::HostGuard<'m, cxl_shm::verify::simulated::SimulatedHostMemory>>,
    >,
    tries: std::cell::Cell<u32>,
    had: std::cell::Cell<u32>,
}

impl Clock for SleeperClock<'_> {
    fn now_ms(&self) -> u64 {
        // The time that others wait is counted in tries.
        u64::from(self.tries.get()) / 100
    }

    fn pause(&self, tries: u32) {
        self.clock.pause(tries.min(1));
        self.tries.set(self.tries.get() + 1);
        let mut asleep = self.asleep.borrow_mut();
        match self.tries.get() {
            1 => *asleep = self.sleeper.try_lock_host(HostLockName::Objects),
            1000 => *asleep = None,
            _ if asleep.is_some() => {
                let had = self.far.try_lock_shared(self.lock, &self.clock);
                self.had.set(self.had.get() + u32::from(had.unwrap().is_some()));
            }
            _ => {}
        }
    }
}

#[test]
fn no_lock_between_hosts_is_held_while_a_process_of_the_host_sleeps_in_the_heap() {
    type Act = fn(&RigMember, &SleeperClock<'_>, SharedOffset);
    let acts: [(&str, cxl_shm::units::LockId, Act); 5] = [
        ("put", cxl_shm::layout::ROOT_LOCK, |a, clock, free| {
            a.put_root(clock, 1000, "put", free, RootKind::Leaf).unwrap();
        }),
        ("replace", cxl_shm::layout::ROOT_LOCK, |a, clock, free| {
            a.replace_root(clock, 1000, "one", free, RootKind::Leaf).unwrap();
        }),
        ("destroy", cxl_shm::layout::ROOT_LOCK, |a, clock, _| {
            a.destroy_root(clock, 1000, "one").unwrap();
        }),
        ("sweep", cxl_shm::layout::ROOT_LOCK, |a, clock, _| {
            a.sweep_heap(clock, 1000).unwrap();
        }),
        ("answer", cxl_shm::layout::CHUNK_LOCK, |a, clock, _| {
            a.answer_chunk_requests(clock, 1000).unwrap();
        }),
    ];
    for (name, lock, act) in acts {
        let rig = Rig::new(8);
        let (a, sleeper, far) = (rig.join(0), rig.join(0), rig.join(1));
        let most = object_bytes_max(a.layout());
        let [one, free] = [0; 2].map(|_| a.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap().offset());
        a.put_root(&rig.clock, TIMEOUT_MS, "one", one, RootKind::Leaf).unwrap();
        // Chunks to be given back.
        for other in [0; 2].map(|_| a.allocate(&rig.clock, TIMEOUT_MS, most).unwrap()) {
            a.free(&rig.clock, TIMEOUT_MS, other.offset()).unwrap();
        }
        let clock = SleeperClock {
            clock: rig.clock,
            sleeper: &sleeper,
            far: &far,
            lock,
            asleep: std::cell::RefCell::default(),
            tries: std::cell::Cell::new(0),
            had: std::cell::Cell::new(0),
        };
        act(&a, &clock, free);
        let (tries, had) = (clock.tries.get(), clock.had.get());
        assert!(tries >= 1000, "{name}: the sleeper was not met");
        assert!(had > 0, "{name}: another host was refused the lock {tries} times");
    }
}

#[test]
fn who_comes_after_an_unwinding_is_told() {
    let rig = Rig::new(4);
    let (a, beside) = (rig.join(0), rig.join(0));
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guard = a.lock_host(HostLockName::Objects, &rig.clock);
        panic!("inside");
    }));
    assert!(unwound.is_err());
    let guard = beside.try_lock_host(HostLockName::Objects).expect("nobody holds it");
    assert!(guard.recovered(), "what it guards may be half done");
    drop(guard);
    let guard = a.try_lock_host(HostLockName::Objects).expect("nobody holds it");
    assert!(!guard.recovered(), "it was mended");
}

#[test]
fn a_process_that_dies_sweeping_loses_no_named_object() {
    let rig = Rig::new(1);
    let (sweeps, stays) = (rig.join(0), rig.join(0));
    let named = sweeps.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap().offset();
    sweeps.put_root(&rig.clock, TIMEOUT_MS, "it", named, RootKind::Leaf).unwrap();
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let access = Access::try_enter(&sweeps).unwrap().unwrap();
        sweep::unbuild(&access, &access.chunks().into_iter().collect());
        panic!("dies");
    }));
    unwound.unwrap_err();
    // As a process that took the chunk long ago, and has not been in the heap since.
    let access = Access::try_enter(&stays).unwrap().unwrap();
    for chunk in access.chunks() {
        assert!(!access.build_empty(chunk).unwrap(), "built as a chunk without objects");
    }
    drop(access);
    let next = stays.allocate(&rig.clock, TIMEOUT_MS, 64).unwrap();
    assert_ne!(next.offset(), named, "a root names what is there");
    let refused = Err(FreeError::Named { offset: named });
    assert_eq!(stays.free(&rig.clock, TIMEOUT_MS, named), refused);
}

/// How often the agent beats while it mends the heap, in which `chunks` objects of a chunk each are
/// allocated, and a process died.
fn beats_while_mended(rig: &Rig, chunks: u64) -> u64 {
    let (agent, dies) = (process(rig, 2), process(rig, 3));
    let most = dies.object_bytes_max();
    for _ in 0..chunks {
        dies.allocate(&rig.clock, TIMEOUT_MS, most).unwrap();
    }
    assert!(agent.beat());
    // It dies in the heap, where nobody else of its host goes.
    std::mem::forget(dies.lock_host(HostLockName::Objects, &rig.clock));
    let heartbeat = agent.layout().heartbeat(agent.node());
    let before = heartbeat.fresh(agent.fabric());
    assert_eq!(agent.attend(&rig.clock), Ok(false), "there is nothing to give");
    let beats = heartbeat.fresh(agent.fabric()) - before;
    assert_eq!(agent.heap_usage(&rig.clock).unwrap().objects, chunks);
    beats
}

/// A process of `rig`'s first host; those with even numbers live.
fn process(rig: &Rig, pid: u32) -> Member<SimulatedBackend<EvenLive>> {
    let memory = rig.rack.host_memory(0, HostTier::words_of(&rig.geometry));
    let (identity, me) = (HostIdentity::simulated(0), ProcessIdentity::new(pid, 1));
    Member::join(rig.rack.host(0), memory, 0, &identity, me, EvenLive, &rig.clock).unwrap()
}

#[test]
fn a_process_that_mends_the_heap_leaves_a_living_agent_its_office() {
    let rig = Rig::new(24);
    let (agent, other, dies) = (process(&rig, 2), process(&rig, 4), process(&rig, 3));
    let most = dies.object_bytes_max();
    for _ in 0..20 {
        dies.allocate(&rig.clock, TIMEOUT_MS, most).unwrap();
    }
    assert!(agent.beat());
    std::mem::forget(dies.lock_host(HostLockName::Objects, &rig.clock));
    assert_eq!(other.attend(&rig.clock), Ok(false), "there is nothing to give");
    assert!(!other.beat() && agent.beat(), "the agent lives, and had no time to beat");
}

#[test]
fn a_process_that_mends_the_heap_beats_for_a_dead_agent() {
    let rig = Rig::new(24);
    let (other, dies) = (process(&rig, 4), process(&rig, 3));
    dies.allocate(&rig.clock, TIMEOUT_MS, dies.object_bytes_max()).unwrap();
    assert!(dies.beat());
    std::mem::forget(dies.lock_host(HostLockName::Objects, &rig.clock));
    let heartbeat = other.layout().heartbeat(other.node());
    let before = heartbeat.fresh(other.fabric());
    assert_eq!(other.attend(&rig.clock), Ok(false), "there is nothing to give");
    assert!(heartbeat.fresh(other.fabric()) > before);
}

#[test]
fn an_agent_beats_while_it_mends_the_heap() {
    let beats = beats_while_mended(&Rig::new(8), 5);
    assert!(beats >= 5, "{beats} beats while 5 chunks");
}

#[test]
fn an_agent_beats_while_it_mends_a_long_chunk() {
    // Its header alone is two parts.
    let rig = Rig::with_chunks_of(512 << 20, 2 << 30);
    let beats = beats_while_mended(&rig, 1);
    assert!(beats >= 2, "{beats} beats while a chunk of {} pages", (512 << 20) / 4096);
}
