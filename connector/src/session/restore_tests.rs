//! Lookups that wait for drives, on a simulated rack of two hosts. The test is the agent of both.

use kv_cache::RestoreOutcome;
use kv_cache::tier::{
    Announced, AskedRestore, DriveAnnouncer, DriveClaim, DriveReplica, RestoreDesk,
};

use super::tests::{Pair, TestSession, fetch, hashes, on_two_hosts, options, publish};
use super::*;
use crate::options::RestoreOptions;

const WAIT: RestoreOptions = RestoreOptions::new(std::time::Duration::from_secs(60));

/// The agent of a host.
pub(super) struct Agent<'a> {
    cache: &'a Cache<'a, cxl_shm::verify::SimulatedBackend>,
    _claim: DriveClaim<'a, cxl_shm::verify::SimulatedBackend>,
    announcer: DriveAnnouncer,
    replica: DriveReplica,
    desk: RestoreDesk,
}

fn key(number: u8) -> BlockKey {
    options().key_space().key(&BlockHash::new([number; 32]))
}

impl<'a> Agent<'a> {
    pub(super) fn begin(pair: &Pair<'a, '_>, host: usize) -> Self {
        let cache = pair.caches[host];
        let claim = cache.claim_drives().unwrap();
        let announcer = DriveAnnouncer::begin(&claim, cache).unwrap();
        let replica = DriveReplica::begin(&claim, cache);
        let desk = RestoreDesk::begin(&claim);
        Self { cache, _claim: claim, announcer, replica, desk }
    }

    pub(super) fn announce(&mut self, numbers: impl IntoIterator<Item = u8>) {
        let namespace = options().namespace().tag();
        let block = |number: u8| Announced { key: key(number), bytes: 1, depth: 0, namespace };
        let blocks: Vec<_> = numbers.into_iter().map(block).collect();
        let count = self.announcer.announce(self.cache, &blocks).unwrap();
        assert_eq!(count, blocks.len());
    }

    pub(super) fn asked(&mut self) -> Vec<(u8, AskedRestore)> {
        let asked = self.desk.next(self.cache).unwrap();
        let number = |it: &AskedRestore| {
            let wanted = it.request.unwrap().key;
            (0..=255).find(|number| key(*number) == wanted).unwrap()
        };
        asked.into_iter().map(|it| (number(&it), it)).collect()
    }

    /// Which of the requests were taken back.
    pub(super) fn cancelled(&self, asked: &[AskedRestore]) -> Vec<bool> {
        self.desk.cancelled(self.cache, asked).unwrap()
    }

    /// Ends, as another host sees it.
    pub(super) fn stop(self) {
        self.replica.stop(self.cache);
    }

    pub(super) fn sync(&mut self, pair: &Pair<'a, '_>) {
        self.replica.sync(self.cache, pair.clock).unwrap();
    }

    pub(super) fn answer(&self, asked: AskedRestore, outcome: RestoreOutcome) {
        self.desk.answer(self.cache, &[(asked, outcome)]).unwrap();
    }
}

pub(super) fn sleep(pair: &Pair<'_, '_>, ms: u64) {
    let until_ms = pair.clock.now_ms() + ms;
    while pair.clock.now_ms() < until_ms {
        pair.clock.pause(2000);
    }
}

/// The agents see each other live.
pub(super) fn follow(pair: &Pair<'_, '_>, agents: &mut [Agent<'_>; 2]) {
    for _ in 0..3 {
        agents.iter_mut().for_each(|it| _ = it.replica.sync(it.cache, pair.clock).unwrap());
        sleep(pair, 260);
    }
}

/// The first host has blocks 3 to 6 on its drive, and 1, 2 and 5 in the pool.
pub(super) fn with_drives(
    test: impl Fn(&Pair<'_, '_>, &TestSession<'_, '_>, &mut Agent<'_>, &mut Agent<'_>),
) {
    on_two_hosts(|pair| {
        assert_eq!(publish(&pair.session(0, options()), [1, 2, 5]).published(), 3);
        let mut agents = [Agent::begin(pair, 0), Agent::begin(pair, 1)];
        agents[0].announce(3..=6);
        follow(pair, &mut agents);
        let [owner, other] = &mut agents;
        test(pair, &pair.session(1, options()), owner, other);
    });
}

#[test]
fn blocks_on_a_drive_are_restored_and_held() {
    with_drives(|pair, session, owner, _| {
        let mut waits = session.begin_restore(&hashes(1..=9), WAIT).unwrap();
        assert!(session.poll_restore(&mut waits).unwrap().is_none());
        let asked = owner.asked();
        assert_eq!(asked.iter().map(|it| it.0).collect::<Vec<_>>(), [3, 4, 6], "5 is in the pool");
        // The last block comes first.
        for (number, asked) in asked.into_iter().rev() {
            assert!(session.poll_restore(&mut waits).unwrap().is_none());
            assert_eq!(publish(&pair.session(0, options()), [number]).published(), 1);
            owner.answer(asked, RestoreOutcome::Restored);
        }
        let report = session.poll_restore(&mut waits).unwrap().unwrap();
        assert_eq!((report.held().len(), report.on_drives(), report.restored()), (6, 3, 3));
        assert_eq!((report.stop(), report.held().stop()), (None, None));
        assert_eq!(fetch(session, 1..=6).valid_blocks(), 6);
        let metrics = session.metrics();
        assert_eq!((metrics.drive_blocks, metrics.restored_blocks), (3, 3));
        assert_eq!((metrics.lookups, metrics.lookup_hits), (2, 12), "and that of the fetch");
    });
}

#[test]
fn blocks_on_drives_are_present_each_for_itself() {
    with_drives(|_, session, owner, _| {
        let asked = hashes([9, 2, 8, 4, 6]);
        assert_eq!(session.present(&asked).unwrap(), [false, true, false, false, false]);
        let with_drives = session.present_with_drives(&asked).unwrap();
        assert_eq!(with_drives, [false, true, false, true, true]);
        assert_eq!(owner.asked(), [], "nothing is restored for that");
        assert_eq!(session.metrics().lookups, 0);
    });
    on_two_hosts(|pair| {
        assert_eq!(publish(&pair.session(0, options()), [1]).published(), 1);
        let present = pair.session(1, options()).present_with_drives(&hashes(1..=2)).unwrap();
        assert_eq!(present, [true, false], "without an agent, what the pool has");
    });
}

#[test]
fn a_refusal_ends_the_prefix_and_the_rest_is_taken_back() {
    with_drives(|pair, session, owner, _| {
        let mut waits = session.begin_restore(&hashes(1..=6), WAIT).unwrap();
        assert!(session.poll_restore(&mut waits).unwrap().is_none());
        let asked = owner.asked();
        owner.answer(asked[1].1, RestoreOutcome::TooLate);
        assert!(session.poll_restore(&mut waits).unwrap().is_none(), "block 3 may still come");
        assert_eq!(publish(&pair.session(0, options()), [3]).published(), 1);
        owner.answer(asked[0].1, RestoreOutcome::Restored);
        let report = session.poll_restore(&mut waits).unwrap().unwrap();
        assert_eq!((report.held().len(), report.restored()), (3, 1));
        assert_eq!(report.stop(), Some(RestoreStop::Refused(RestoreOutcome::TooLate)));
        let left = [asked[2].1];
        assert_eq!(owner.desk.cancelled(owner.cache, &left).unwrap(), [true]);
        // Nobody holds block 5 any more.
        assert_eq!(session.metrics().held_blocks, 4);
        session.release(report.into_held());
        assert_eq!(session.metrics().released_blocks, 4);
    });
}

#[test]
fn a_wait_that_is_over_is_a_miss() {
    with_drives(|pair, session, owner, _| {
        let wait = RestoreOptions::new(std::time::Duration::from_millis(40));
        let mut waits = session.begin_restore(&hashes(1..=6), wait).unwrap();
        assert!(session.poll_restore(&mut waits).unwrap().is_none());
        let asked: Vec<_> = owner.asked().into_iter().map(|it| it.1).collect();
        assert!(asked.iter().all(|it| it.request.unwrap().wait_ms <= 40));
        sleep(pair, 40);
        let report = session.poll_restore(&mut waits).unwrap().unwrap();
        assert_eq!((report.held().len(), report.stop()), (2, Some(RestoreStop::Late)));
        assert_eq!(owner.desk.cancelled(owner.cache, &asked).unwrap(), [true; 3]);
        // A session that waits by itself comes to the same.
        let report = session.lookup_and_restore(&hashes(1..=6), wait).unwrap();
        assert_eq!((report.held().len(), report.stop()), (2, Some(RestoreStop::Late)));
    });
}

#[test]
fn nothing_is_asked_for_without_a_wait() {
    with_drives(|_, session, owner, _| {
        let none = RestoreOptions::new(std::time::Duration::ZERO);
        let report = session.lookup_and_restore(&hashes(1..=6), none).unwrap();
        assert_eq!((report.held().len(), report.on_drives(), report.stop()), (2, 0, None));
        assert_eq!(owner.asked(), []);
    });
}

#[test]
fn an_agent_that_stops_is_not_waited_for() {
    on_two_hosts(|pair| {
        let mut agents = [Agent::begin(pair, 0), Agent::begin(pair, 1)];
        agents[0].announce([1]);
        follow(pair, &mut agents);
        let [owner, mut other] = agents;
        let session = pair.session(1, options());
        let mut waits = session.begin_restore(&hashes([1]), WAIT).unwrap();
        assert!(session.poll_restore(&mut waits).unwrap().is_none());
        owner.replica.stop(owner.cache);
        other.replica.sync(other.cache, pair.clock).unwrap();
        let report = session.poll_restore(&mut waits).unwrap().unwrap();
        assert_eq!((report.held().len(), report.stop()), (0, Some(RestoreStop::NoAgent)));
    });
}

#[test]
fn a_block_that_is_evicted_again_is_a_miss() {
    with_drives(|_, session, owner, _| {
        let mut waits = session.begin_restore(&hashes(1..=6), WAIT).unwrap();
        assert!(session.poll_restore(&mut waits).unwrap().is_none());
        let first = owner.asked()[0].1;
        owner.answer(first, RestoreOutcome::Restored);
        let report = session.poll_restore(&mut waits).unwrap().unwrap();
        assert_eq!((report.held().len(), report.stop()), (2, Some(RestoreStop::EvictedAgain)));
    });
}

#[test]
fn a_full_ring_is_asked_again_when_it_is_emptied_and_holds_up_others_for_their_wait() {
    with_drives(|pair, session, owner, other| {
        owner.announce(10..=29);
        other.replica.sync(other.cache, pair.clock).unwrap();
        let mut waits = session.begin_restore(&hashes(10..=29), WAIT).unwrap();
        assert!(session.poll_restore(&mut waits).unwrap().is_none());
        let wait = RestoreOptions::new(std::time::Duration::from_millis(40));
        let report = session.lookup_and_restore(&hashes(3..=4), wait).unwrap();
        assert_eq!((report.held().len(), report.stop()), (0, Some(RestoreStop::RequestsFull)));
        let mut rounds = 0;
        let report = loop {
            for (number, asked) in owner.asked() {
                assert_eq!(publish(&pair.session(0, options()), [number]).published(), 1);
                owner.answer(asked, RestoreOutcome::Restored);
            }
            rounds += 1;
            if let Some(report) = session.poll_restore(&mut waits).unwrap() {
                break report;
            }
        };
        assert_eq!((report.restored(), report.stop(), rounds), (20, None, 3));
    });
}
