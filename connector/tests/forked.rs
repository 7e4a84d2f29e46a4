//! A child made by `fork` of an attached process, which has all that its parent has.
#![expect(unsafe_code, reason = "the test forks")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use cxl_shm::lifecycle::LocalMember;
use rackline::{Attention, Dtype, KvGeometry, OpenError, Pool, ScratchRegion, SessionOptions};

/// For how long a child may live.
const CHILD_SECONDS: u32 = 20;

/// Carries `act` out in a child, which then ends. Returns whether it returned.
fn in_child(act: impl FnOnce()) -> bool {
    // SAFETY: the child uses what the library says that a child may use, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it ends the process, should it wait for ever.
        unsafe { libc::alarm(CHILD_SECONDS) };
        let ended = catch_unwind(AssertUnwindSafe(act));
        // SAFETY: it ends the process at once.
        unsafe { libc::_exit(i32::from(ended.is_err())) }
    }
    let mut status = 0;
    // SAFETY: the status is written to a place of its own.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(ended, child);
    status == 0
}

#[test]
fn what_a_child_drops_stays_its_parents() {
    let region = ScratchRegion::create(16 << 20, 1, 64 << 10).unwrap();
    let pool = Pool::attach(region.path(), 0).unwrap();
    let thread = pool.attachment().join_thread().unwrap();
    let (place, before) = (thread.process(), pool.attachment().member().processes());
    let mut both = Some((pool, thread));
    assert!(in_child(|| drop(both.take())), "it waits for threads of its parent");
    let (pool, thread) = both.unwrap();
    let mut thread = Some(thread);
    assert!(in_child(|| assert!(thread.take().map(LocalMember::leave).is_some())));
    let member = pool.attachment().member();
    assert_eq!(member.processes(), before, "a member of the parent was struck off");
    assert!(member.is_process_alive(place) && member.check_member().is_ok());
}

#[test]
fn a_child_opens_no_session_of_its_parents_pool() {
    let region = ScratchRegion::create(16 << 20, 1, 64 << 10).unwrap();
    let pool = Pool::attach(region.path(), 0).unwrap();
    let heads = Attention::Heads { kv_heads: 1, head_dim: 64 };
    let kv = KvGeometry::new(2, heads, Dtype::F16, 4).unwrap();
    let options = || SessionOptions::new(kv.model("tiny", "1", 1), kv.rank_block_bytes());
    assert!(in_child(|| assert_eq!(pool.session(options()).unwrap_err(), OpenError::Forked)));
    pool.session(options()).unwrap();
}
