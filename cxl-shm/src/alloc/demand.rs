//! A host that runs dry asks the others for chunks.
//!
//! It publishes how many it wants in a word of its own, and looks at the chunk table now and then.
//! Whoever has a chunk without objects sees the word ([`super::heap`]), and gives the chunk back
//! to the region, where the asking host, or another, takes it. Nobody waits for anybody: the
//! asking host withdraws when its time is over.

use super::{AllocateError, chunk};
use crate::clock::Clock;
use crate::crash::{self, CrashPoint};
use crate::fabric::{Fabric, HostMemory, refresh_all};
use crate::layout::ChunkState;
use crate::member::{Liveness, Member};
use crate::units::ChunkId;

/// A request in progress. Polled until it has a chunk, or withdrawn.
#[derive(Debug)]
#[must_use = "a request that is neither polled nor withdrawn stands"]
struct Request {
    refusal: AllocateError,
}

impl Request {
    /// Asks for a chunk, after `refusal`.
    fn begin<F: Fabric, H: HostMemory, L: Liveness>(
        member: &Member<F, H, L>,
        refusal: AllocateError,
    ) -> Self {
        let request = Self { refusal };
        request.ask(member);
        request
    }

    fn ask<F: Fabric, H: HostMemory, L: Liveness>(&self, member: &Member<F, H, L>) {
        member.seat().chunk_demand().publish(member.fabric(), 1);
        crash::reach(CrashPoint::ChunkAsked);
    }

    /// Whether a chunk is free now. It may be gone again when it is to be taken.
    fn poll<F: Fabric, H: HostMemory, L: Liveness>(&self, member: &Member<F, H, L>) -> bool {
        let (layout, fabric) = (member.layout(), member.fabric());
        if member.seat().chunk_demand().own(fabric) == 0 {
            // Another thread of this host has withdrawn.
            self.ask(member);
        }
        fabric.refresh(layout.chunk_table());
        (0..layout.chunks()).map(ChunkId).any(|chunk| {
            let entry = layout.chunk_entry(chunk).cached(fabric);
            entry.is_ok_and(|entry| entry.state() == Some(ChunkState::Free))
        })
    }

    /// Asks no more.
    fn withdraw<F: Fabric, H: HostMemory, L: Liveness>(
        self,
        member: &Member<F, H, L>,
    ) -> AllocateError {
        member.seat().chunk_demand().publish(member.fabric(), 0);
        self.refusal
    }
}

/// Takes a free chunk of the region, asking the other nodes for one when there is none.
pub(crate) fn request<F: Fabric, H: HostMemory, L: Liveness>(
    member: &Member<F, H, L>,
    clock: &impl Clock,
    timeout_ms: u64,
    purpose: u64,
) -> Result<ChunkId, AllocateError> {
    let until_ms = clock.now_ms().saturating_add(timeout_ms);
    let mut tries = 0;
    loop {
        let left_ms = until_ms.saturating_sub(clock.now_ms());
        let refusal = match chunk::allocate(member, clock, left_ms, purpose) {
            Err(refusal @ AllocateError::Exhausted { .. }) => refusal,
            outcome => return outcome,
        };
        let request = Request::begin(member, refusal);
        let found = loop {
            if request.poll(member) {
                break true;
            }
            if clock.now_ms() >= until_ms {
                break false;
            }
            clock.pause(tries);
            tries += 1;
        };
        let refusal = request.withdraw(member);
        if !found {
            return Err(refusal);
        }
    }
}

/// How many chunks other nodes ask for. What is beyond the chunks of the region nobody can mean.
pub(crate) fn of_others<F: Fabric, H: HostMemory, L: Liveness>(member: &Member<F, H, L>) -> u64 {
    let (layout, fabric) = (member.layout(), member.fabric());
    let words = || {
        let others = layout.nodes().filter(|node| *node != member.node());
        others.map(|node| layout.chunk_demand(node))
    };
    refresh_all(fabric, words().map(|word| word.range()));
    let chunks = u64::from(layout.chunks());
    words().fold(0, |sum: u64, word| sum.saturating_add(word.cached(fabric))).min(chunks)
}
