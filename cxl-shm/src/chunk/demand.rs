//! A host that has run out of chunks asks the other hosts for some.
//!
//! It publishes in a word of its own how many chunks it wants, and looks at the chunk table now and
//! then. A host that has a chunk without objects sees the word (`cxl_shm_objects::heap`) and
//! returns the chunk to the region. The asking host, or another one, takes it there. No host waits
//! for another: the asking host withdraws when its time is over.
//!
//! One thread of a host asks at a time, and holds a host lock meanwhile. When that thread dies, the
//! host's agent finds the lock without a living holder, and withdraws the request. The request of a
//! dead host is withdrawn by its recoverer, or when the host joins again.

//!
//! Of a host one thread at a time asks, and holds a host lock as long as it does: when it dies, the
//! host's agent finds the lock without a living holder and withdraws the request. What a dead host
//! asked for is withdrawn by its recoverer, or when the host joins again.

use super::table::{self, AllocateError};
use crate::clock::Clock;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, refresh_all};
use crate::host::{HostGuard, HostLockName};
use crate::layout::Layout;
use crate::node::{Backend, Member};
use crate::units::{ChunkId, NodeId};

/// A request in progress. Polled until it has a chunk; withdrawn when dropped.
#[derive(Debug)]
#[must_use = "a request that is not polled does not ask"]
struct Request<'m, B: Backend> {
    member: &'m Member<B>,
    /// While we are the one of our host that asks.
    asking: Option<HostGuard<'m, B::HostMemory>>,
}

impl<'m, B: Backend> Request<'m, B> {
    fn begin(member: &'m Member<B>) -> Self {
        Self { member, asking: None }
    }

    /// Asks, and looks whether a chunk is free now. It may be gone again when it is to be taken.
    fn poll(&mut self) -> bool {
        let fabric = self.member.fabric();
        if self.asking.is_none() {
            self.asking = self.member.try_lock_host(HostLockName::ChunkDemand);
            if self.asking.is_some() {
                self.member.node_handle().chunk_demand().publish(fabric, 1);
                crash::reach(CrashPoint::ChunkAsked);
            }
        }
        table::is_any_free(self.member)
    }
}

impl<B: Backend> Drop for Request<'_, B> {
    fn drop(&mut self) {
        // Before the lock goes: the next of this host to ask publishes anew.
        if self.asking.is_some() {
            self.member.node_handle().chunk_demand().publish(self.member.fabric(), 0);
        }
    }
}

/// Withdraws the request of a process of this host that died asking. For the agent, at each beat.
pub(crate) fn end_abandoned_request<B: Backend>(member: &Member<B>) {
    // Mostly nobody asks, which costs one load.
    if member.node_handle().tier().host_lock(HostLockName::ChunkDemand).holder().is_none() {
        return;
    }
    if let Some(guard) = member.try_lock_host(HostLockName::ChunkDemand) {
        // Dropped with the lock: the word is 0 before the lock is free.
        drop(Request { member, asking: Some(guard) });
    }
}

/// Withdraws what a former life of `node` asked for. The caller writes that node's lines (MEM-M1):
/// it is its recoverer, after the fence, or it joins as the node.
pub(crate) fn end_request_of_dead<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) {
    // Not looked at before: what our caches hold of the word may be as old as they are (MEM-M8).
    layout.chunk_demand(node).claim().publish(fabric, 0);
}

#[doc(hidden)]
/// Takes a free chunk of the region, asking the other nodes for one when there is none.
pub fn request<B: Backend>(
    member: &Member<B>,
    clock: &impl Clock,
    timeout_ms: u64,
    purpose: u64,
) -> Result<ChunkId, AllocateError> {
    let until_ms = clock.now_ms().saturating_add(timeout_ms);
    let mut tries = 0;
    loop {
        let left_ms = until_ms.saturating_sub(clock.now_ms());
        let refusal = match table::allocate(member, clock, left_ms, purpose) {
            Err(refusal @ AllocateError::Exhausted { .. }) => refusal,
            outcome => return outcome,
        };
        let mut request = Request::begin(member);
        let found = loop {
            if request.poll() {
                break true;
            }
            if clock.now_ms() >= until_ms {
                break false;
            }
            clock.pause(tries);
            tries += 1;
        };
        drop(request);
        if !found {
            return Err(refusal);
        }
    }
}

#[doc(hidden)]
/// How many chunks other nodes ask for. What is beyond the chunks of the region nobody can mean.
pub fn of_others<B: Backend>(member: &Member<B>) -> u64 {
    let (layout, fabric) = (member.layout(), member.fabric());
    let words = || {
        let others = layout.nodes().filter(|node| *node != member.node());
        others.map(|node| layout.chunk_demand(node))
    };
    refresh_all(fabric, words().map(|word| word.range()));
    let chunks = u64::from(layout.chunks());
    words().fold(0, |sum: u64, word| sum.saturating_add(word.cached(fabric))).min(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::table::ChunkError;
    use crate::host::{HostIdentity, HostTier, ProcessIdentity};
    use crate::layout::CHUNK_LOCK;
    use crate::units::LineRange;
    use crate::verify::SimulatedBackend;
    use crate::verify::fixture::EvenLive;
    use crate::verify::small_rack::{Rig, RigMember, TIMEOUT_MS};

    type Process = Member<SimulatedBackend<EvenLive>>;

    fn process(rig: &Rig, host: u16, pid: u32) -> Process {
        let memory = rig.rack.host_memory(usize::from(host), HostTier::words_of(&rig.geometry));
        let identity = HostIdentity::simulated(u64::from(host));
        let (fabric, me) = (rig.rack.host(usize::from(host)), ProcessIdentity::new(pid, 1));
        Member::join(fabric, memory, host, &identity, me, EvenLive, &rig.clock).unwrap()
    }

    /// Every chunk of the region is taken by `member`.
    fn take_all<B: Backend>(rig: &Rig, member: &Member<B>) -> Vec<ChunkId> {
        std::iter::from_fn(|| member.allocate_chunk(&rig.clock, TIMEOUT_MS, 7).ok()).collect()
    }

    #[test]
    fn a_request_stands_as_long_as_anybody_of_the_host_waits() {
        let rig = Rig::new(1);
        let (one, other): (RigMember, RigMember) = (rig.join(0), rig.join(0));
        let far = rig.join(1);
        take_all(&rig, &far);
        let (mut first, mut second) = (Request::begin(&one), Request::begin(&other));
        assert!(!first.poll() && !second.poll());
        assert_eq!(far.chunks_requested(), 1, "a host asks for one at a time");
        drop(first);
        assert_eq!(far.chunks_requested(), 0);
        assert!(!second.poll());
        assert_eq!(far.chunks_requested(), 1, "the other goes on asking");
        drop(second);
        assert_eq!(far.chunks_requested(), 0);
    }

    #[test]
    fn a_chunk_is_written_back_before_the_lock_of_all_hosts_is_taken() {
        let rig = Rig::new(1);
        let (owner, far): (RigMember, RigMember) = (rig.join(0), rig.join(1));
        let chunk = owner.allocate_chunk(&rig.clock, TIMEOUT_MS, 7).unwrap();
        let line = LineRange::covering(owner.layout().chunk(chunk)).start();
        owner.fabric().store(line.word(0).unwrap(), 5);
        let held = far.lock_shared(CHUNK_LOCK, &rig.clock, TIMEOUT_MS).unwrap();
        assert!(owner.free_chunk(&rig.clock, 1, chunk).is_err(), "others have the lock");
        assert!(!rig.rack.dirty_lines(0).contains(&line), "and would wait for all of the chunk");
        assert_eq!(owner.owned_chunks(), [(chunk, 7)]);
        drop(held);
        owner.free_chunk(&rig.clock, TIMEOUT_MS, chunk).unwrap();
        assert_eq!(owner.owned_chunks(), []);
        assert_eq!(
            far.free_chunk(&rig.clock, TIMEOUT_MS, chunk),
            Err(ChunkError::NotOurs { chunk })
        );
    }

    #[test]
    fn what_a_dead_process_asked_for_is_withdrawn_by_its_host() {
        let rig = Rig::new(1);
        let (agent, asking, far) = (process(&rig, 0, 2), process(&rig, 0, 3), process(&rig, 1, 2));
        take_all(&rig, &far);
        let mut request = Request::begin(&asking);
        assert!(!request.poll());
        std::mem::forget(request);
        assert_eq!(far.chunks_requested(), 1);
        assert!(agent.beat());
        assert_eq!(far.chunks_requested(), 0);
        // One that lives is not interrupted.
        let waiting = process(&rig, 0, 4);
        let mut request = Request::begin(&waiting);
        assert!(!request.poll());
        assert!(agent.beat());
        assert_eq!(far.chunks_requested(), 1);
        drop(request);
        assert_eq!(far.chunks_requested(), 0);
    }

    #[test]
    fn what_a_dead_host_asked_for_is_withdrawn_by_its_recoverer_and_by_its_next_life() {
        let rig = Rig::new(1);
        let far = rig.join(1);
        take_all(&rig, &far);
        for recovered in [true, false] {
            let asking = rig.join(0);
            let mut request = Request::begin(&asking);
            assert!(!request.poll());
            std::mem::forget(request);
            std::mem::forget(asking);
            assert_eq!(far.chunks_requested(), 1);
            rig.rack.crash(0);
            if recovered {
                end_request_of_dead(far.layout(), far.fabric(), NodeId(0));
            } else {
                let reborn = rig.join(0);
                assert_eq!(far.chunks_requested(), 0);
                drop(reborn);
            }
            assert_eq!(far.chunks_requested(), 0);
        }
    }
}
