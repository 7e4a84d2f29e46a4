//! Objects and named roots, each step seen at once by hosts whose caches hold what was before, and
//! kept by hosts that lose power right after it.

use cxl_shm::fabric::Fabric;
use cxl_shm::layout::LockProtocol;
use cxl_shm::units::{LINE_BYTES, LineOffset, LineRange, PAGE_BYTES};
use cxl_shm::verify::simulated::{Faults, Schedule};
use cxl_shm_objects::NamedRoots;
use cxl_shm_objects::Objects;
use cxl_shm_objects::RootKind;
use cxl_shm_objects::{FreeError, Object, PeerObject, SharedOffset};

use super::bed::{Scripted, cluster, crash};
use crate::rack::{Cluster, Mutant, RackMember};

const TIMEOUT_MS: u64 = 1000;
const RING_SLOTS: u64 = 504;
/// Losses of power that are tried: each keeps another part of what was in the caches.
const LOSSES: u64 = 8;

/// Another seed on the same kind of caches.
fn other_loss(seed: u64, loss: u64) -> u64 {
    seed.wrapping_mul(2 * LOSSES).wrapping_add(loss * 2).wrapping_add(seed % 2)
}

fn bakery(mutant: Mutant, seed: u64) -> Cluster {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    warm(&cluster);
    cluster
}

/// Fills all caches, also with payload.
fn warm(cluster: &Cluster) {
    let lines = cluster.rack.bytes() / LINE_BYTES;
    let all = LineOffset::new(0).and_then(|start| LineRange::new(start, lines));
    let all = all.expect("the memory is no longer than its offsets");
    (0..cluster.rack.hosts()).for_each(|host| cluster.rack.warm(host, all));
}

fn allocate(cluster: &Cluster, member: &RackMember, bytes: u64) -> Object {
    let host = usize::from(member.node().0);
    let object = member.allocate(&cluster.clock(host), TIMEOUT_MS, bytes);
    object.unwrap_or_else(|error| panic!("{error}"))
}

fn free(cluster: &Cluster, member: &RackMember, offset: SharedOffset) {
    let freed = member.free(&cluster.clock(usize::from(member.node().0)), TIMEOUT_MS, offset);
    freed.unwrap_or_else(|error| panic!("{error}"));
}

fn put(cluster: &Cluster, member: &RackMember, name: &str, object: &Object, kind: RootKind) {
    let clock = cluster.clock(usize::from(member.node().0));
    let put = member.put_root(&clock, TIMEOUT_MS, name, object.offset(), kind);
    put.unwrap_or_else(|error| panic!("{error}"));
}

/// What the member does for other hosts, once.
fn serve(cluster: &Cluster, member: &RackMember) {
    let clock = cluster.clock(usize::from(member.node().0));
    let served = member.answer_chunk_requests(&clock, TIMEOUT_MS);
    served.unwrap_or_else(|error| panic!("{error}"));
}

fn objects(cluster: &Cluster, member: &RackMember) -> u64 {
    let clock = cluster.clock(usize::from(member.node().0));
    let usage = member.heap_usage(&clock).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(usage.refused_frees, 0);
    assert_eq!(usage.allocated_bytes + usage.free_bytes, usage.capacity_bytes);
    usage.objects
}

/// An object is made zero by its owner: another host sees zeros at once.
///
/// # Panics
/// When it sees what was there before.
pub fn a_zeroed_object_is_seen_at_once(mutant: Mutant, seed: u64) {
    let cluster = bakery(mutant, seed);
    let [owner, other] = [1, 2].map(|host| cluster.join(host, "worker"));
    let object = allocate(&cluster, &owner, 3000);
    assert!(object.write(owner.fabric(), 0, &[7; 3000]));
    warm(&cluster);
    object.zero(owner.fabric());
    let seen = other.object(object.offset()).expect("an object starts there");
    let mut bytes = [1; 3000];
    assert!(seen.read(other.fabric(), 0, &mut bytes));
    assert_eq!(bytes, [0; 3000]);
    cluster.check_writers();
}

/// One host allocates, another frees at once, the first finds it free at the next look; also the
/// next incarnation of the first.
///
/// # Panics
/// When it does not.
pub fn frees_arrive(mutant: Mutant, seed: u64) {
    let cluster = bakery(mutant, seed);
    let [mut owner, other] = [1, 2].map(|host| cluster.join(host, "worker"));
    for bytes in [64, 3000, 3 * PAGE_BYTES] {
        warm(&cluster);
        let object = allocate(&cluster, &owner, bytes);
        // Words that only the host which gives the object away publishes.
        let words = object.extent().offset();
        let line = LineOffset::new(words).expect("objects start on lines");
        let dirty = LineRange::one(line);
        let ours = cluster.rack.host(2);
        ours.store(line.word(3).expect("a line has eight"), 7);
        free(&cluster, &other, object.offset());
        warm(&cluster);
        serve(&cluster, &owner);
        assert_eq!(objects(&cluster, &owner), 0, "a free of {bytes} bytes did not arrive");
        let next = allocate(&cluster, &owner, bytes);
        assert_eq!(next.offset(), object.offset());
        assert!(next.write(owner.fabric(), 0, &[9; 64]));
        ours.publish(dirty);
        let mut seen = [0; 64];
        assert!(next.peer().read(owner.fabric(), 0, &mut seen));
        assert_eq!(seen, [9; 64], "the old owner wrote into the next object");
        free(&cluster, &owner, next.offset());
        owner.leave();
        warm(&cluster);
        owner = cluster.join(1, "next");
    }
    cluster.check_writers();
}

/// More frees than a ring holds, with a new sender in the middle.
///
/// # Panics
/// When one is lost, or the ring stands still.
pub fn rings_go_round(mutant: Mutant, seed: u64) {
    let cluster = bakery(mutant, seed);
    let [owner, sender] = [1, 2].map(|host| cluster.join(host, "worker"));
    let some = |count: u64| -> Vec<_> {
        (0..count).map(|_| allocate(&cluster, &owner, 64).offset()).collect()
    };
    let send = |sender: &RackMember, objects: &[SharedOffset]| {
        objects.iter().for_each(|offset| free(&cluster, sender, *offset));
    };
    send(&sender, &some(RING_SLOTS));
    warm(&cluster);
    serve(&cluster, &owner);
    send(&sender, &some(10));
    warm(&cluster);
    serve(&cluster, &owner);
    assert_eq!(objects(&cluster, &owner), 0);
    // On a host whose caches know the ring from its first lap.
    sender.leave();
    let sender = cluster.join_as(0, 2, "sender").unwrap_or_else(|error| panic!("{error}"));
    let clock = cluster.clock(0);
    for _ in 0..10 {
        let offset = allocate(&cluster, &owner, 64).offset();
        let freed = sender.free(&clock, TIMEOUT_MS, offset);
        freed.unwrap_or_else(|error| panic!("{error}"));
        warm(&cluster);
        serve(&cluster, &owner);
        assert_eq!(objects(&cluster, &owner), 0);
    }
    cluster.check_writers();
}

/// A process dies at each step of sending the free that fills a line of its ring; what others of
/// its host send after it, in other lines, arrives.
///
/// # Panics
/// When it does not.
pub fn a_sender_dies_at_the_end_of_a_line(mutant: Mutant, seed: u64) {
    for step in 1.. {
        let cluster = bakery(mutant, seed);
        let owner = cluster.join(1, "owner");
        let all: Vec<_> = (0..10).map(|_| allocate(&cluster, &owner, 64).offset()).collect();
        let [stays, dies] = ["stays", "dies"].map(|name| cluster.join(2, name));
        all[..7].iter().for_each(|offset| free(&cluster, &stays, *offset));
        let (dying, last) = (cluster.clone(), all[7]);
        let schedule = Schedule::builder(&cluster.rack, seed)
            .faults(Faults::NONE)
            .steps_max(mutant.steps_max(100_000))
            .crash_process_at("dies", step)
            .task(2, "dies", move || free(&dying, &dies, last));
        let processes = cluster.processes.clone();
        let report = schedule.on_crash(move |crash| processes.crashed(crash)).run();
        all[8..].iter().for_each(|offset| free(&cluster, &stays, *offset));
        warm(&cluster);
        serve(&cluster, &owner);
        let left = objects(&cluster, &owner);
        let died = report.tasks.iter().any(|task| task.crashes > 0);
        assert!(left == 0 || died && left == 1, "step {step}: {left} frees are lost");
        cluster.check_writers();
        if !died {
            return;
        }
    }
}

/// A process dies at each step of sending a free; what others of its host send after it arrives.
///
/// # Panics
/// When it does not.
pub fn a_sender_dies_at_each_step(mutant: Mutant, seed: u64) {
    for step in 1.. {
        let cluster = bakery(mutant, seed);
        let owner = cluster.join(1, "owner");
        // Slots of two lines of the ring.
        let all: Vec<_> = (0..12).map(|_| allocate(&cluster, &owner, 64).offset()).collect();
        let stays = cluster.join(2, "stays");
        let (dying, first) = (cluster.clone(), all[..8].to_vec());
        let schedule = Schedule::builder(&cluster.rack, seed)
            .faults(Faults::NONE)
            .steps_max(mutant.steps_max(100_000))
            .crash_process_at("dies", step * 23)
            .task(2, "dies", move || {
                let member = dying.join(2, "dies");
                first.iter().for_each(|offset| free(&dying, &member, *offset));
            });
        let processes = cluster.processes.clone();
        let report = schedule.on_crash(move |crash| processes.crashed(crash)).run();
        all[8..].iter().for_each(|offset| free(&cluster, &stays, *offset));
        warm(&cluster);
        serve(&cluster, &owner);
        let left = objects(&cluster, &owner);
        let died = report.tasks.iter().any(|task| task.crashes > 0);
        assert!(left <= 8 && (died || left == 0), "step {step}: {left} frees are lost");
        cluster.check_writers();
        if !died {
            return;
        }
    }
}

/// A host frees what it looked up in the heap of another, which has died since: before that heap is
/// rebuilt, and after, when the place is that of another object. Neither time is that freed.
///
/// # Panics
/// When it is.
pub fn a_free_of_a_former_life_frees_nothing(mutant: Mutant, seed: u64) {
    let cluster = bakery(mutant, seed);
    let [owner, other] = [1, 2].map(|host| cluster.join(host, "worker"));
    let free_it = |object: &PeerObject| {
        let clock = cluster.clock(2);
        other.free_object(&clock, TIMEOUT_MS, object)
    };
    let objects_of: Vec<_> = (0..4).map(|_| allocate(&cluster, &owner, 700)).collect();
    let looked_up: Vec<_> = objects_of
        .iter()
        .map(|object| other.object(object.offset()).expect("an object was not seen at once"))
        .collect();
    let life = Some((owner.node(), owner.incarnation()));
    assert!(looked_up.iter().all(|object| object.life() == life));
    assert_eq!(free_it(&looked_up[0]), Ok(()), "its owner lives");
    crash(&cluster, 1);
    std::mem::forget(owner);
    warm(&cluster);
    let owner = cluster.join(1, "worker");
    // Whether it is told that the object is gone, or the owner drops what it sends.
    let _ = free_it(&looked_up[1]);
    free(&cluster, &other, looked_up[2].offset());
    let again: Vec<_> = (0..4).map(|_| allocate(&cluster, &owner, 700).offset()).collect();
    let places =
        |objects: &[PeerObject]| objects.iter().map(PeerObject::offset).collect::<Vec<_>>();
    assert_eq!(again, places(&looked_up), "the places are used again");
    let gone = FreeError::OtherLife { offset: again[3] };
    assert_eq!(free_it(&looked_up[3]), Err(gone));
    warm(&cluster);
    serve(&cluster, &owner);
    assert_eq!(objects(&cluster, &owner), 4, "an object of the new life was freed");
    let found = other.object(again[3]).expect("an object was not seen at once");
    assert_eq!(found.life(), Some((owner.node(), owner.incarnation())));
    assert_eq!(free_it(&found), Ok(()));
    serve(&cluster, &owner);
    assert_eq!(objects(&cluster, &owner), 3);
    cluster.check_writers();
}

/// A host that holds nothing but objects, and does nothing, has only its agent: that frees what
/// others send, collects the roots that they destroy, keeps one chunk and gives the others back,
/// and the last one to a host that asks.
///
/// # Panics
/// When one of these does not happen at the next look.
pub fn an_idle_host_gives_back(mutant: Mutant, seed: u64) {
    let cluster = bakery(mutant, seed);
    let [owner, other] = [1, 2].map(|host| cluster.join(host, "worker"));
    let (clock, most) = (cluster.clock(1), owner.object_bytes_max());
    let all: Vec<_> = (0..3).map(|_| allocate(&cluster, &owner, most)).collect();
    put(&cluster, &owner, "named", &all[2], RootKind::Leaf);
    let attend = || {
        warm(&cluster);
        assert!(owner.beat(), "its process is the agent");
        owner.attend(&clock).unwrap_or_else(|error| panic!("{error}"))
    };
    assert!(!attend(), "there is nothing to give");
    warm(&cluster);
    all[..2].iter().for_each(|object| free(&cluster, &other, object.offset()));
    let destroyed = other.destroy_root(&cluster.clock(2), TIMEOUT_MS, "named");
    destroyed.unwrap_or_else(|error| panic!("{error}"));
    assert!(attend() && attend(), "one at a time");
    assert!(!attend(), "it keeps one");
    assert_eq!(owner.owned_chunks().len(), 1);
    let take = || other.allocate_chunk(&cluster.clock(2), TIMEOUT_MS, 7);
    while take().is_ok() {}
    let word = owner.layout().chunk_demand(other.node()).range().start().word(0);
    let word = word.expect("a line has eight");
    // Its first pauses are for the lock, under which it finds that there is no chunk.
    let asking = Scripted::new(|_| {
        if cluster.rack.device_word(word) != 0 {
            assert!(attend(), "it was not given at the first look");
        }
    });
    let given = other.request_chunk(&asking, 50, 7);
    assert_eq!(owner.owned_chunks(), []);
    assert!(given.is_ok(), "{given:?}");
    cluster.check_writers();
}

/// A slot moves to a host whose caches are full of the past, and the heap with it: what roots reach
/// is kept, also over the heap of another node.
///
/// # Panics
/// When it is not.
pub fn a_heap_moves(mutant: Mutant, seed: u64) {
    let cluster = bakery(mutant, seed);
    let [first, peer] = [1, 2].map(|host| cluster.join(host, "worker"));
    let word = |object: &Object| object.offset().bytes().to_le_bytes();
    let make = |member: &RackMember, bytes| allocate(&cluster, member, bytes);
    let (near, far, leaf, lost) =
        (make(&first, 100), make(&first, 2 * PAGE_BYTES), make(&first, 700), make(&first, 64));
    let between = make(&peer, 64);
    assert!(near.write(first.fabric(), 64, &word(&between)));
    assert!(between.write(peer.fabric(), 0, &word(&far)));
    let old = peer.object(leaf.offset()).expect("an object was not seen at once");
    let mut seen = [0; 8];
    assert!(old.read(peer.fabric(), 0, &mut seen));
    assert!(leaf.write(first.fabric(), 0, &word(&lost)));
    assert!(old.read(peer.fabric(), 0, &mut seen));
    assert_eq!(seen, word(&lost), "bytes were not seen at once");
    put(&cluster, &first, "near", &near, RootKind::Linked);
    assert!(peer.root("near").is_ok_and(|root| root.is_some()), "a root was not seen at once");
    put(&cluster, &first, "leaf", &leaf, RootKind::Leaf);
    first.leave();
    let next = cluster.join_as(0, 1, "next").unwrap_or_else(|error| panic!("{error}"));
    let clock = cluster.clock(0);
    let swept = next.sweep_heap(&clock, TIMEOUT_MS).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(swept.kept_objects, 3, "near, far and leaf");
    let destroyed = peer.destroy_root(&cluster.clock(2), TIMEOUT_MS, "leaf");
    destroyed.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(next.root("leaf"), Ok(None));
    let served = next.answer_chunk_requests(&clock, TIMEOUT_MS);
    served.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(next.heap_usage(&clock).map(|usage| usage.objects), Ok(2));
    cluster.check_writers();
}

/// A host that is given an object continues from what the giver wrote, whatever its caches held
/// there.
///
/// # Panics
/// When it does not.
pub fn an_object_is_handed_over(mutant: Mutant, seed: u64) {
    let cluster = bakery(mutant, seed);
    let [giver, taker] = [1, 2].map(|host| cluster.join(host, "worker"));
    let given = allocate(&cluster, &giver, 64);
    assert!(given.write(giver.fabric(), 0, &[1; 8]));
    let taken = taker.take_over(given.offset()).unwrap_or_else(|error| panic!("{error}"));
    // Of the word that this is in, the rest stays.
    assert!(taken.write(taker.fabric(), 0, &[2]));
    let mut seen = [0; 8];
    assert!(taken.peer().read(giver.fabric(), 0, &mut seen));
    assert_eq!(seen, [2, 1, 1, 1, 1, 1, 1, 1], "what the giver wrote is gone");
    cluster.check_writers();
}

/// A host loses power right after an object was named, and right after pages were used again: the
/// object is there, and no address inside it passes for another.
///
/// # Panics
/// When it is not so.
pub fn a_heap_survives_a_loss_of_power(mutant: Mutant, seed: u64) {
    for loss in 0..LOSSES {
        lose_power(&bakery(mutant, other_loss(seed, loss)), loss % 2 == 0);
    }
}

/// The pages of two runs are used again by one: freed first to last, or last to first.
fn lose_power(cluster: &Cluster, first_to_last: bool) {
    let owner = cluster.join(1, "worker");
    let [small, far] = [64, 3000].map(|bytes| allocate(cluster, &owner, bytes));
    assert!(small.write(owner.fabric(), 0, &far.offset().bytes().to_le_bytes()));
    put(cluster, &owner, "small", &small, RootKind::Linked);
    // A run of pages whose start is inside a longer run after that.
    let [before, start] = [1, 3].map(|pages| allocate(cluster, &owner, (1 + pages) * PAGE_BYTES));
    let guard = allocate(cluster, &owner, 2 * PAGE_BYTES);
    let freed = if first_to_last { [before, start] } else { [start, before] };
    freed.iter().for_each(|object| free(cluster, &owner, object.offset()));
    let long = allocate(cluster, &owner, 5 * PAGE_BYTES);
    assert_eq!(long.offset(), before.offset());
    put(cluster, &owner, "long", &long, RootKind::Leaf);
    put(cluster, &owner, "guard", &guard, RootKind::Leaf);
    crash(cluster, 1);
    std::mem::forget(owner);
    let owner = cluster.join(1, "worker");
    let swept = owner.sweep_heap(&cluster.clock(1), TIMEOUT_MS);
    assert_eq!(swept.map(|swept| swept.kept_objects), Ok(4));
    assert!(owner.object(long.offset()).is_some());
    assert_eq!(owner.object(start.offset()), None, "inside another object");
    cluster.check_writers();
}

/// A chunk full of what looks like a heap, and of words that its user did not publish, becomes part
/// of another host's heap, which loses power.
///
/// # Panics
/// When anything of the former user is left.
pub fn a_used_chunk_becomes_a_heap(mutant: Mutant, seed: u64) {
    for loss in 0..LOSSES {
        use_again(&bakery(mutant, other_loss(seed, loss)));
    }
}

fn use_again(cluster: &Cluster) {
    let [owner, user] = [1, 2].map(|host| cluster.join(host, "worker"));
    let clock = cluster.clock(2);
    let layout = *owner.layout();
    let [first, object] = [1, 3].map(|pages| allocate(cluster, &owner, (1 + pages) * PAGE_BYTES));
    let chunk = layout.chunk_of(object.extent()).expect("an object is in a chunk");
    let header: Vec<_> = LineRange::covering(layout.chunk(chunk)).iter().take(16).collect();
    let looks: Vec<_> = header.iter().map(|line| owner.fabric().read_line(*line)).collect();
    free(cluster, &owner, object.offset());
    free(cluster, &owner, first.offset());
    let want = u64::from(layout.chunks());
    let all: Vec<_> = (0..want - 1)
        .map(|_| user.allocate_chunk(&clock, TIMEOUT_MS, 7).expect("one is left"))
        .collect();
    // The owner returns its one chunk to any host that asks.
    let asking = Scripted::new(|_| serve(cluster, &owner));
    assert_eq!(user.request_chunk(&asking, 50, 7).ok(), Some(chunk), "it was asked for");
    assert_eq!(owner.chunks_requested(), 0, "the request was not withdrawn");
    for (line, words) in header.iter().zip(&looks) {
        user.fabric().write_line(*line, words);
    }
    user.free_chunk(&clock, TIMEOUT_MS, chunk).unwrap_or_else(|error| panic!("{error}"));
    let small = allocate(cluster, &owner, 64);
    // What the user had not published would land there now.
    user.fabric().publish(LineRange::covering(layout.chunk(chunk)));
    put(cluster, &owner, "small", &small, RootKind::Leaf);
    // Over the place of the former object.
    let long = allocate(cluster, &owner, 8 * PAGE_BYTES);
    put(cluster, &owner, "long", &long, RootKind::Leaf);
    crash(cluster, 1);
    std::mem::forget(owner);
    let owner = cluster.join(1, "worker");
    let swept = owner.sweep_heap(&cluster.clock(1), TIMEOUT_MS);
    assert_eq!(swept.map(|swept| swept.kept_objects), Ok(2));
    assert_eq!(owner.object(object.offset()), None, "inside another object");
    assert_eq!(user.owned_chunks().len(), all.len());
    cluster.check_writers();
}
