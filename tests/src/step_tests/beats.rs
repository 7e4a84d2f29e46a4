//! The heartbeat of a lock manager, seen for the first time by a host whose caches hold an older
//! beat.

use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::host::LossCause;
use cxl_shm::layout::{LockProtocol, Superblock};
use cxl_shm::node::{LOOK_GAP_MAX_MS, SUSPECT_MS};
use cxl_shm::units::{LineRange, LockId};

use super::bed::{OBSERVER, Scripted, beat_all, cluster, geometry, poll_grants};
use crate::rack::Mutant;

const LOCK: LockId = LockId(9);
/// Polls of a waiter between two of its looks at the manager.
const POLLS_PER_LOOK: u32 = 32;

/// The first look of a host finds the last beat.
///
/// # Panics
/// When it finds an older one.
pub fn a_first_look_finds_the_last_beat(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let [worker, manager] = [0, 1].map(|host| cluster.join(host, "worker"));
    let mut manage = manager.manage().expect("nobody else manages");
    manage.claim().expect("there are terms");
    beat_all(&[&worker, &manager]);
    poll_grants(&mut manage, 0);
    poll_grants(&mut manage, 0);
    let seen = worker.manager_seen();
    assert_eq!(seen.map(|seen| seen.heartbeat), Some(2), "two rounds are two beats");
}

/// A manager does nothing any more, and a waiter has an older beat in its caches. The waiter looks
/// as seldom as BEAT-G0 allows, and notices the silence at the first look that is [`SUSPECT_MS`]
/// after the first one: the first look must read the last beat.
///
/// # Panics
/// When the waiter notices nothing by then.
pub fn a_silent_manager_is_noticed(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let [worker, manager] = [0, 1].map(|host| cluster.join(host, "worker"));
    let mut manage = manager.manage().expect("nobody else manages");
    manage.claim().expect("there are terms");
    beat_all(&[&worker, &manager]);
    poll_grants(&mut manage, 0);
    let clock = Scripted::with_pauses_of(LOOK_GAP_MAX_MS, |_| ());
    let mut pending = worker.begin_shared(LOCK, &clock);
    // The first poll takes the host's turn, and does not count.
    let found = pending.poll().unwrap_or_else(|error| panic!("{error}"));
    assert!(found.is_none(), "nobody grants anything");
    while clock.now_ms() < SUSPECT_MS {
        for _ in 0..POLLS_PER_LOOK {
            let found = pending.poll().unwrap_or_else(|error| panic!("{error}"));
            assert!(found.is_none(), "nobody grants anything");
        }
        clock.pause(0);
    }
    assert!((0..POLLS_PER_LOOK).any(|_| pending.poll().is_err()), "the silence was not noticed");
}

/// The region is formatted anew while a host sleeps whose caches hold what it was: the first beat
/// after that finds it out, and nothing of the host is written.
///
/// # Panics
/// When it does not.
pub fn a_formatted_region_is_noticed(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Bakery, mutant, seed);
    let sleeper = cluster.join(1, "sleeper");
    beat_all(&[&sleeper]);
    cluster.warm();
    cluster.reformat(OBSERVER, &Superblock::new([8, 8], geometry(), [0; 6]));
    beat_all(&[&sleeper]);
    let cause = sleeper.check_member().err().map(|lost| lost.cause);
    assert_eq!(cause, Some(LossCause::RegionReplaced));
}

/// A deposed agent wakes, and stores an acknowledgement of an older term over a newer one. The next
/// beat of the agent looks at it, and then the manager of the newer term serves.
///
/// # Panics
/// When it waits.
pub fn an_overwritten_acknowledgement_is_written_anew(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let [worker, manager] = [0, 1].map(|host| cluster.join(host, "worker"));
    let mut manage = manager.manage().expect("nobody else manages");
    manage.claim().expect("there are terms");
    beat_all(&[&worker, &manager]);
    let acks = worker.layout().acks(worker.node()).range();
    let first = acks.start().word(0).expect("a line has words");
    let older = worker.fabric().load(first);
    manage.claim().expect("there are terms");
    cluster.warm();
    beat_all(&[&worker, &manager]);
    worker.fabric().store(first, older);
    worker.fabric().publish(LineRange::one(acks.start()));
    cluster.warm();
    // Not twice: the second beat would read the line, which pushes what the first has left on its
    // way.
    beat_all(&[&worker]);
    poll_grants(&mut manage, 0);
}
