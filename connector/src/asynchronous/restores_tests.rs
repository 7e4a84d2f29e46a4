//! Lookups that wait for drives, without a thread of the caller that waits.

use std::sync::mpsc;
use std::time::Duration;

use cxl_shm::clock::SystemClock;
use kv_cache::tier::{Announced, DriveAnnouncer, DriveReplica, RestoreDesk};
use kv_cache::{DriveGeometry, RestoreOutcome};

use super::tests::{attach, block, options, region_with};
use super::*;
use crate::block::NewBlock;
use crate::options::RestoreOptions;
use crate::session::{PrefetchStop, RestoreStop};

const WAIT: RestoreOptions = RestoreOptions::new(Duration::from_secs(60));

/// The agent of a test has this block on its drive, and does not answer requests for it.
const UNANSWERED: u8 = 20;

fn hashes(numbers: std::ops::Range<u8>) -> Vec<kv_cache::BlockHash> {
    numbers.map(|number| block(number).hash).collect()
}

/// Runs the agent of node 0, which has blocks `1..=9` on its drive and restores all but 9, until
/// `test` ends.
fn beside_an_agent(path: &Path, test: impl FnOnce()) {
    let (ready, is_ready) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let pool = Pool::attach(path, 0).unwrap();
            let (cache, clock) = (pool.cache(), *pool.clock());
            let claim = cache.claim_drives().unwrap();
            let mut announcer = DriveAnnouncer::begin(&claim, &cache).unwrap();
            let mut replica = DriveReplica::begin(&claim, &cache);
            let mut desk = RestoreDesk::begin(&claim);
            let key = |number: u8| options().key_space().key(&block(number).hash);
            let namespace = options().namespace().tag();
            let announced =
                |number| Announced { key: key(number), bytes: 8192, depth: 0, namespace };
            announcer
                .announce(&cache, &(1..=9).chain([UNANSWERED]).map(announced).collect::<Vec<_>>())
                .unwrap();
            let session = pool.session(options()).unwrap();
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                replica.sync(&cache, &clock).unwrap();
                if !cache.find_with_drives(&clock, &[key(1)]).behind.is_empty() {
                    let _ = ready.send(());
                }
                for asked in desk.next(&cache).unwrap() {
                    let wanted = asked.request.unwrap().key;
                    let Some(number) = (1..=9).find(|number| key(*number) == wanted) else {
                        continue;
                    };
                    let outcome = if number == 9 {
                        RestoreOutcome::Damaged
                    } else {
                        let NewBlock { hash, depth, bytes } = block(number);
                        let parts: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
                        let new = NewBlock { hash, depth, bytes: parts };
                        assert_eq!(session.publish(&[new]).unwrap().available(), 1);
                        RestoreOutcome::Restored
                    };
                    desk.answer(&cache, &[(asked, outcome)]).unwrap();
                }
                clock.sleep_ms(2);
            }
            replica.stop(&cache);
        });
        is_ready.recv().unwrap();
        test();
        drop(stop);
    });
}

#[test]
fn many_lookups_wait_for_drives_at_once() {
    let (_folder, path) = region_with(Some(DriveGeometry::new(64, 64, 256).unwrap()));
    let pool = attach(&path, 0, 64);
    beside_an_agent(&path, || {
        let session = pool.session(options()).unwrap();
        let lookups: Vec<_> =
            (0..20).map(|_| session.lookup_and_restore(hashes(1..12), WAIT).unwrap()).collect();
        for lookup in lookups {
            let report = lookup.wait().unwrap().unwrap();
            let stop = Some(RestoreStop::Refused(RestoreOutcome::Damaged));
            assert_eq!((report.held().len(), report.stop()), (8, stop));
        }
        let report = session.lookup_and_restore(hashes(1..9), WAIT).unwrap().wait();
        let report = report.unwrap().unwrap();
        assert_eq!((report.held().len(), report.on_drives(), report.stop()), (8, 0, None));
        let unwanted = session.lookup_and_restore(hashes(1..12), WAIT).unwrap();
        assert!(unwanted.cancel() && !unwanted.cancel());
        assert_eq!(unwanted.wait().err(), Some(Lost));
    });
}

#[test]
fn a_lookup_whose_completion_is_dropped_waits_no_longer() {
    let (_folder, path) = region_with(Some(DriveGeometry::new(64, 64, 256).unwrap()));
    let pool = attach(&path, 0, 64);
    beside_an_agent(&path, || {
        let session = pool.session(options()).unwrap();
        let hour = RestoreOptions::new(Duration::from_secs(3600));
        drop(session.lookup_and_restore(hashes(UNANSWERED..UNANSWERED + 1), hour).unwrap());
        let clock = SystemClock::start();
        while pool.metrics().drive_blocks == 0 {
            assert!(clock.now_us() < 60_000_000, "the lookup still waits");
            clock.sleep_ms(2);
        }
        assert_eq!(pool.metrics().restored_blocks, 0);
    });
}

#[test]
fn a_pool_that_closes_ends_the_wait() {
    let (_folder, path) = region_with(Some(DriveGeometry::new(64, 64, 256).unwrap()));
    let pool = attach(&path, 0, 64);
    let session = pool.session(options()).unwrap();
    assert_eq!(
        session.publish(vec![block(0)]).unwrap().wait().unwrap().report.unwrap().published(),
        1
    );
    beside_an_agent(&path, || {
        let report = session.lookup_and_restore(hashes(0..1), WAIT).unwrap().wait();
        assert_eq!(report.unwrap().unwrap().held().len(), 1);
    });
    // The agent has stopped in order: nothing is waited for.
    let report = session.lookup_and_restore(hashes(0..9), WAIT).unwrap().wait().unwrap().unwrap();
    assert_eq!((report.held().len(), report.on_drives()), (1, 0));
    drop(report);
    pool.close();
    let refused = session.lookup_and_restore(hashes(0..9), WAIT).unwrap_err();
    assert_eq!((refused.kind, refused.given.len()), (SubmitErrorKind::Closed, 9));
}

#[test]
fn a_region_without_drives_has_none_to_wait_for() {
    let (_folder, path) = region_with(None);
    let pool = attach(&path, 1, 8);
    let session = pool.session(options()).unwrap();
    let report = session.lookup_and_restore(hashes(0..9), WAIT).unwrap().wait().unwrap().unwrap();
    assert_eq!((report.held().len(), report.on_drives(), report.stop()), (0, 0, None));
}

/// Asked, restored, cancelled.
fn prefetched(pool: &AsyncPool) -> [u64; 3] {
    let metrics = pool.metrics();
    let ended = (metrics.prefetch_restored_blocks, metrics.prefetch_cancelled_blocks);
    [metrics.prefetch_asked_blocks, ended.0, ended.1]
}

fn wait_until_prefetched(pool: &AsyncPool, counts: [u64; 3]) {
    let clock = SystemClock::start();
    while prefetched(pool) != counts {
        assert!(clock.now_us() < 60_000_000, "{:?} of {counts:?}", prefetched(pool));
        clock.sleep_ms(2);
    }
}

#[test]
fn a_prefetch_goes_on_without_its_caller() {
    let (_folder, path) = region_with(Some(DriveGeometry::new(64, 64, 256).unwrap()));
    let pool = attach(&path, 0, 64);
    beside_an_agent(&path, || {
        let session = pool.session(options()).unwrap();
        let prefetch = session.prefetch(hashes(1..9), WAIT).unwrap();
        let told = prefetch.wait().unwrap().unwrap();
        assert_eq!((told.asked(), told.not_asked(), told.stop()), (8, 0, None));
        assert_eq!(prefetch.wait().unwrap().unwrap().asked(), 8, "told as often as it is asked");
        drop(prefetch);
        wait_until_prefetched(&pool, [8, 8, 0]);
        let report = session.lookup_and_restore(hashes(1..9), WAIT).unwrap().wait();
        assert_eq!(report.unwrap().unwrap().on_drives(), 0);
        assert_eq!(pool.metrics().prefetch_used_blocks, 8);
        // Whether it was taken back before it began or after: nothing is left under way.
        let unanswered = || hashes(UNANSWERED..UNANSWERED + 1);
        let early = session.prefetch(unanswered(), WAIT).unwrap();
        early.cancel();
        let late = session.prefetch(unanswered(), WAIT).unwrap();
        let told = late.wait().unwrap().unwrap();
        assert_eq!(told.asked() + told.under_way(), 1);
        late.cancel();
        late.cancel();
        let [asked, ..] = prefetched(&pool);
        assert!((9..=10).contains(&asked));
        wait_until_prefetched(&pool, [asked, 8, asked - 8]);
        assert!(session.prefetch(unanswered(), WAIT).unwrap().wait().is_ok());
        pool.close();
        assert_eq!(prefetched(&pool), [asked + 1, 8, asked - 7]);
        let refused = session.prefetch(unanswered(), WAIT).unwrap_err();
        assert_eq!((refused.kind, refused.given.len()), (SubmitErrorKind::Closed, 1));
    });
}

#[test]
fn a_region_without_drives_has_nothing_to_prefetch() {
    let (_folder, path) = region_with(None);
    let pool = attach(&path, 1, 8);
    let session = pool.session(options()).unwrap();
    let publish = session.publish(vec![block(0)]).unwrap().wait().unwrap();
    assert_eq!(publish.report.unwrap().published(), 1);
    let prefetch = session.prefetch(hashes(0..9), WAIT).unwrap();
    let told = prefetch.wait().unwrap().unwrap();
    assert_eq!((told.asked(), told.in_pool(), told.not_asked()), (0, 1, 8));
    assert_eq!(told.stop(), Some(PrefetchStop::NoAgent));
    prefetch.cancel();
}
