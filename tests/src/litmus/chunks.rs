//! Chunks that change hands, each step seen at once by hosts whose caches know the table of before.

use std::cell::RefCell;

use cxl_shm::alloc::AllocateError;
use cxl_shm::layout::LockProtocol;
use cxl_shm::units::ChunkId;

use super::bed::{beat_all, cluster, manager_polls, poll_grants};
use crate::rack::{Mutant, RackMember};

/// One host takes all chunks, another finds none; every chunk that the first gives back the second
/// can take, in both directions.
///
/// # Panics
/// When one of them was not seen.
pub fn chunks_change_hands(mutant: Mutant, seed: u64) {
    let cluster = cluster(LockProtocol::Arbitrated, mutant, seed);
    let [manager, one, other] = [0, 1, 2].map(|host| cluster.join(host, "worker"));
    let manage = RefCell::new(manager.manage().expect("nobody else manages"));
    manage.borrow_mut().claim().expect("there are terms");
    beat_all(&[&manager, &one, &other]);
    poll_grants(&mut manage.borrow_mut(), 0);
    let take = |member: &RackMember| {
        cluster.warm();
        let clock = manager_polls(&cluster, &manage, &[1]);
        let chunk = member.allocate_chunk(&clock, 1000, 7);
        cluster.warm();
        poll_grants(&mut manage.borrow_mut(), 0);
        chunk
    };
    let give = |member: &RackMember, chunk: ChunkId| {
        cluster.warm();
        let clock = manager_polls(&cluster, &manage, &[1]);
        member.free_chunk(&clock, 1000, chunk).unwrap_or_else(|error| panic!("{error}"));
        cluster.warm();
        poll_grants(&mut manage.borrow_mut(), 0);
    };
    let owned = |member: &RackMember| {
        cluster.warm();
        member.owned_chunks().into_iter().map(|(chunk, _)| chunk).collect::<Vec<_>>()
    };

    let chunks = one.layout().chunks() as usize;
    let mut all: Vec<_> = (0..chunks).map(|_| take(&one).expect("one is free")).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), chunks, "no chunk is taken twice");
    assert!(matches!(take(&other), Err(AllocateError::Exhausted { own: 0, .. })));
    assert_eq!(owned(&one), all);
    for (from, to) in [(&one, &other), (&other, &one)] {
        let passed = owned(from)[0];
        give(from, passed);
        assert!(!owned(from).contains(&passed));
        let error = from.free_chunk(&manager_polls(&cluster, &manage, &[1]), 1000, passed);
        assert!(error.is_err(), "a chunk is given back once");
        poll_grants(&mut manage.borrow_mut(), 0);
        assert_eq!(take(to).ok(), Some(passed));
        assert_eq!(owned(to), if std::ptr::eq(to, &other) { vec![passed] } else { all.clone() });
    }
    cluster.check_writers();
}
