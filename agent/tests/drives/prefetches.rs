//! Blocks that a host has restored ahead of a lookup.

use rackline::PrefetchStop;

use super::*;

const WAIT: RestoreOptions = RestoreOptions::new(std::time::Duration::from_mins(2));

#[test]
fn blocks_of_two_hosts_are_in_the_pool_before_they_are_looked_up() {
    let (region, [a, b]) = (region(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let (agent_a, agent_b) = (start(&region, A, &a), start(&region, B, &b));
    let (on_a, on_b) =
        (Pool::attach(region.path(), A).unwrap(), Pool::attach(region.path(), B).unwrap());
    let (hashes, keys): (Vec<_>, Vec<_>) = (0..12).map(|it| (hash(it), key(it))).unzip();
    // The first blocks are on the drive of one host, the last ones on that of the other.
    publish(&on_a, 0..8);
    publish(&on_b, 8..12);
    wait_until("the blocks are backed up", || {
        agent_a.figures().announced >= 8 && agent_b.figures().announced >= 4
    });
    evict(&on_a, &keys[..8], 100);
    evict(&on_b, &keys[8..], 2000);
    wait_until("the other host knows", || on_drives(&on_b, &keys).len() == 12);

    let session = on_b.session(options()).unwrap();
    let mut all = hashes.clone();
    all.push(hash(99_999));
    let prefetch = session.prefetch(&all, WAIT).unwrap();
    assert_eq!((prefetch.asked(), prefetch.in_pool(), prefetch.not_asked()), (12, 0, 1));
    assert_eq!(prefetch.stop(), Some(PrefetchStop::Absent));
    wait_until("all came", || session.poll_prefetches().unwrap() == 0);
    assert_eq!((agent_a.figures().restored, agent_b.figures().restored), (8, 4));
    let report = session.lookup_and_restore(&hashes, WAIT).unwrap();
    assert_eq!((report.held().blocks().len(), report.on_drives()), (12, 0));
    drop(report);
    for number in 0..12 {
        assert_eq!(fetch(&on_b, number).as_deref(), Some(&*content(number)), "block {number}");
    }
    let metrics = session.metrics();
    assert_eq!((metrics.prefetch_asked_blocks, metrics.prefetch_restored_blocks), (12, 12));
    assert_eq!((metrics.prefetch_used_blocks, metrics.prefetch_joined_blocks), (12, 0));
    laws::prefetched(&agent_b, 12);
    agent_a.stop().unwrap();
    agent_b.stop().unwrap();
    let none = session.prefetch(&[hash(99_999)], WAIT).unwrap();
    assert_eq!((none.asked(), none.stop()), (0, Some(PrefetchStop::NoAgent)));
}

/// One that is taken back leaves blocks on the drive that were not being read; a lookup gets all.
#[test]
fn a_prefetch_that_is_taken_back_spoils_no_lookup() {
    let (region, folder) = (region(), tempfile::tempdir().unwrap());
    let agent = start(&region, A, &folder);
    let pool = Pool::attach(region.path(), A).unwrap();
    let (hashes, keys): (Vec<_>, Vec<_>) = (0..20).map(|it| (hash(it), key(it))).unzip();
    publish(&pool, 0..20);
    wait_until("the blocks are backed up", || agent.figures().announced >= 20);
    evict(&pool, &keys, 100);
    wait_until("its host knows", || on_drives(&pool, &keys).len() == 20);
    let session = pool.session(options()).unwrap();
    let prefetch = session.prefetch(&hashes, WAIT).unwrap();
    session.cancel_prefetch(&prefetch).unwrap();
    assert_eq!(session.poll_prefetches().unwrap(), 0);
    let report = session.lookup_and_restore(&hashes, WAIT).unwrap();
    assert_eq!((report.held().blocks().len(), report.stop()), (20, None));
    let metrics = session.metrics();
    let ended = metrics.prefetch_cancelled_blocks + metrics.prefetch_restored_blocks;
    assert_eq!((metrics.prefetch_asked_blocks, ended), (20, 20));
    agent.stop().unwrap();
}
