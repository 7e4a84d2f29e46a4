//! Locks of a program whose holder died, lines of a dead host that cannot be read, and counters
//! that reach their maximum: each is seen at once by the processes that depend on it.

use cxl_shm_objects::Objects;
use std::cell::RefCell;
use std::mem::forget;

use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::host::HostTier;
use cxl_shm::layout::{Layout, LockProtocol};
use cxl_shm::lifecycle::NumberUse;
use cxl_shm::units::{LineOffset, LockId, NodeId, WordOffset};
use cxl_shm::verify::simulated::Crash;

use super::bed::{OBSERVER, acquire, beat_all, cluster, poll_grants};
use crate::rack::{Cluster, Mutant, RackMember};

const LOCK: LockId = LockId(9);
const NODE: NodeId = NodeId(1);
const TIMEOUT_MS: u64 = 1000;

/// An object of `member`, which is on host 1: where its first word is.
fn object_of(cluster: &Cluster, member: &RackMember) -> WordOffset {
    let object = member.allocate(&cluster.clock(1), TIMEOUT_MS, 64);
    let object = object.unwrap_or_else(|error| panic!("{error}"));
    WordOffset::new(object.extent().offset()).expect("objects begin with a line")
}

fn dies(cluster: &Cluster) {
    cluster.processes.crashed(&Crash::Process { host: 1, task: "dies".to_owned() });
}

/// A process stores under a lock between programs and dies. The next beat of its host moves what it
/// stored to the device and frees the lock; the next holder is told, until one has made all
/// consistent.
///
/// # Panics
/// When that is not so, with locks of bakery.
pub fn a_dead_holder_is_told_of(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let [third, beside, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    let dying = cluster.join(1, "dies");
    let word = object_of(&cluster, &beside);
    cluster.warm();
    let guard = dying.lock_shared(LOCK, &clocks[1], TIMEOUT_MS);
    forget(guard.unwrap_or_else(|error| panic!("{error}")));
    dying.fabric().store(word, 5);
    forget(dying);
    dies(&cluster);
    cluster.warm();
    beat_all(&[&beside]);
    assert_eq!(cluster.rack.device_word(word), 5, "it could come over what later holders store");
    for (member, clock, told, mends) in [
        (&other, &clocks[2], true, false),
        (&third, &clocks[0], true, true),
        (&other, &clocks[2], false, false),
        (&beside, &clocks[1], false, false),
    ] {
        cluster.warm();
        let guard = member.lock_shared(LOCK, clock, TIMEOUT_MS);
        let mut guard = guard.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(guard.previous_holder_died(), told);
        if mends {
            guard.set_consistent();
        }
    }
    cluster.check_writers();
}

/// As [`a_dead_holder_is_told_of`], with a lock manager, which makes one round for each holder.
///
/// # Panics
/// When that is not so.
pub fn a_dead_holder_is_told_of_by_the_manager(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let clocks = [0, 1, 2].map(|host| cluster.clock(host));
    let [third, beside, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    let dying = cluster.join(1, "dies");
    let manage = RefCell::new(third.manage().expect("nobody else manages"));
    manage.borrow_mut().claim().expect("there are terms");
    beat_all(&[&third, &beside, &other]);
    cluster.warm();
    poll_grants(&mut manage.borrow_mut(), 0);
    forget(acquire(&cluster, &dying, &clocks[1], LOCK, &manage));
    forget(dying);
    dies(&cluster);
    cluster.warm();
    beat_all(&[&beside]);
    // The mending host is not the manager's: the manager's caches know the words of the dead host
    // already.
    for (member, clock, told, mends) in [
        (&other, &clocks[2], true, false),
        (&third, &clocks[0], true, false),
        (&other, &clocks[2], true, true),
        (&third, &clocks[0], false, false),
    ] {
        let mut guard = acquire(&cluster, member, clock, LOCK, &manage);
        assert_eq!(guard.previous_holder_died(), told);
        if mends {
            guard.set_consistent();
        }
        drop(guard);
        cluster.warm();
        poll_grants(&mut manage.borrow_mut(), 0);
    }
    cluster.check_writers();
}

/// The only process of a host holds a lock between programs, and stores into the heap of another
/// host. The chunk table in its caches is older than that heap. The process dies, and the tier of
/// its host is lost. The next process of the host moves the stores to the device: it reads the
/// chunk table freshly (LOCK-L5).
///
/// # Panics
/// When it does not.
pub fn a_holder_whose_tier_is_lost_is_flushed(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let clocks = [0, 1].map(|host| cluster.clock(host));
    let [owner, dying] = [(0, "owner"), (1, "dies")].map(|(host, name)| cluster.join(host, name));
    cluster.warm();
    let object = owner.allocate(&clocks[0], TIMEOUT_MS, 64);
    let extent = object.unwrap_or_else(|error| panic!("{error}")).extent();
    let word = WordOffset::new(extent.offset()).expect("objects begin with a line");
    let guard = dying.lock_shared(LOCK, &clocks[1], TIMEOUT_MS);
    forget(guard.unwrap_or_else(|error| panic!("{error}")));
    // As a C program does, which was told where the object is.
    dying.may_write(extent);
    dying.fabric().store(word, 5);
    forget(dying);
    dies(&cluster);
    cluster.rack.host_memory(1, HostTier::words_of(&cluster.geometry())).clear();
    let again = cluster.join(1, "again");
    assert_eq!(cluster.rack.device_word(word), 5, "it could come over what later holders store");
    drop(again);
    cluster.check_writers();
}

/// A node says nothing readable of a recovery any more. The next host that joins it repairs that:
/// as long as it cannot be read, and somebody lives there, others wait for a recovery.
///
/// # Panics
/// When that is not so.
pub fn records_that_cannot_be_read_are_made_good(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let layout = Layout::new(cluster.geometry()).expect("the region was formatted by it");
    cluster.join(1, "before").leave();
    let records = layout.recoveries(NODE).range();
    let about_two: Vec<LineOffset> = records.iter().skip(4).take(2).collect();
    let host = cluster.rack.host(1);
    about_two.iter().for_each(|line| host.write_line(*line, &[0xbad; 8]));
    host.publish(records);
    cluster.warm();
    forget(cluster.join(1, "next"));
    let first_words = about_two.iter().filter_map(|line| line.word(0));
    let bad = first_words.filter(|word| cluster.rack.device_word(*word) == 0xbad);
    assert!(bad.count() < 2, "what cannot be read is left");
    cluster.check_writers();
}

/// A host uses the tickets of a lock up: who looks from another host sees it at once.
///
/// # Panics
/// When it does not.
pub fn an_end_of_numbers_is_seen_at_once(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let layout = Layout::new(cluster.geometry()).expect("the region was formatted by it");
    let scarce = |host| {
        let looker = cluster.rack.host(host);
        NumberUse::scarce(&layout, LockProtocol::Arbitrated, &[], &looker)
    };
    assert_eq!(scarce(2), []);
    cluster.warm();
    let (host, requests) = (cluster.rack.host(1), layout.requests(NODE).range());
    // Beyond all counting, which is the end too.
    host.store(requests.start().word(0).expect("a line has words"), u64::MAX);
    host.publish(requests);
    // Its first look: a second one would fence what the first has only asked for.
    assert_eq!(scarce(OBSERVER).len(), 1);
}
