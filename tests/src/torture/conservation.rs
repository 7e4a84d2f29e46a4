//! The accounts of objects, roots and chunks at the end of a run: every byte is somebody's.

use anyhow::{Result, bail, ensure};
use cxl_shm::clock::SystemClock;
use cxl_shm::layout::HEAP_PURPOSE;
use cxl_shm::layout::{ChunkState, ROOTS_MAX, RootHead, RootState};
use cxl_shm::lifecycle::LocalMember;
use cxl_shm::units::{ChunkId, Extent, LINE_BYTES, NodeId};
use cxl_shm_objects::NamedRoots;
use cxl_shm_objects::Objects;
use cxl_shm_objects::{HeapUsage, PeerObject, SharedOffset};

use super::ground::{ground, is_purpose};
use super::named::RootId;
use super::rack::Rack;

/// Nothing of the audit is contended: only a lock manager that is slow to start keeps it waiting.
const LOCK_TIMEOUT_MS: u64 = 60_000;
/// Chunks without objects that a heap keeps for itself.
const IDLE_CHUNKS_MAX: u64 = 1;

/// An object that a root reaches.
struct Reached {
    owner: NodeId,
    bytes: u64,
}

impl Rack {
    /// Compares roots, heaps and the chunk table with what the processes said, then destroys all
    /// roots: nothing but the blocks is left. One member of each node. Returns the bytes that were
    /// accounted for.
    pub(super) fn account(&self, members: &[LocalMember]) -> Result<u64> {
        let clock = SystemClock::start();
        let Some(first) = members.first() else { bail!("no node takes part in the audit") };
        let reached = self.reachable(first)?;
        for member in members {
            let swept = member.sweep_heap(&clock, LOCK_TIMEOUT_MS)?;
            let own = || reached.iter().filter(|reached| reached.owner == member.node());
            let (objects, bytes) = (own().count() as u64, own().map(|it| it.bytes).sum());
            let usage = member.heap_usage(&clock)?;
            check_heap(member, &usage, objects, bytes)?;
            ensure!(
                (swept.kept_objects, swept.kept_bytes) == (objects, bytes),
                "a sweep of node {} kept {swept:?}, and roots reach {objects} objects",
                member.node()
            );
        }
        let bytes = check_table(first)?;
        check_table_of_roots(first)?;

        for root in first.roots() {
            first.destroy_root(&clock, LOCK_TIMEOUT_MS, &root.name)?;
        }
        for member in members {
            // What roots referred to is unreachable now.
            member.answer_chunk_requests(&clock, LOCK_TIMEOUT_MS)?;
            member.sweep_heap(&clock, LOCK_TIMEOUT_MS)?;
            while member.answer_chunk_requests(&clock, LOCK_TIMEOUT_MS)? > 0 {}
            let usage = member.heap_usage(&clock)?;
            check_heap(member, &usage, 0, 0)?;
            ensure!(
                usage.chunks <= IDLE_CHUNKS_MAX,
                "node {} keeps {} chunks for no object",
                member.node(),
                usage.chunks
            );
        }
        check_table_of_roots(first)?;
        ensure!(first.roots().is_empty(), "roots are left after all were destroyed");
        Ok(bytes)
    }

    /// Every root is one that may be there, and whole; those that must be there are. What they
    /// reach.
    fn reachable(&self, member: &LocalMember) -> Result<Vec<Reached>> {
        let mut reached = Vec::new();
        let roots = member.roots();
        for found in &roots {
            let root = RootId::from_name(&found.name).filter(|root| self.roots.is_possible(*root));
            let Some(root) = root else { bail!("root {} should not be there", found.name) };
            let Some(child) = root.read_whole(member, found) else {
                bail!("root {} has other bytes, or is of another kind", found.name);
            };

            for object in [Some(found.object), child].into_iter().flatten() {
                reached.push(Reached {
                    owner: owner_of(member, &object)?,
                    bytes: object.extent().bytes(),
                });
            }
        }
        let there = |root: &RootId| roots.iter().any(|found| found.name == root.name());
        if let Some(root) = self.roots.certain().find(|root| !there(root)) {
            bail!("root {}, which was acknowledged, is gone", root.name());
        }
        Ok(reached)
    }
}

/// The node in whose heap an object is.
fn owner_of(member: &LocalMember, object: &PeerObject) -> Result<NodeId> {
    let chunk = chunk_at(member, object.offset());
    let entry = chunk.map(|chunk| member.layout().chunk_entry(chunk).fresh(member.fabric()));
    match entry.and_then(Result::ok).and_then(|entry| entry.state()) {
        Some(ChunkState::Owned { owner, purpose: HEAP_PURPOSE, .. }) => Ok(owner),
        state => bail!("{object:?} is in a chunk that is {state:?}"),
    }
}

/// The chunk that an object is in.
fn chunk_at(member: &LocalMember, offset: SharedOffset) -> Option<ChunkId> {
    member.layout().chunk_of(Extent::new(offset.bytes(), LINE_BYTES)?)
}

fn check_heap(member: &LocalMember, usage: &HeapUsage, objects: u64, bytes: u64) -> Result<()> {
    let node = member.node();
    ensure!(
        (usage.objects, usage.allocated_bytes) == (objects, bytes),
        "roots reach {objects} objects of {bytes} bytes in the heap of node {node}, which has \
         {usage:?}"
    );
    let whole = usage.allocated_bytes + usage.free_bytes;
    ensure!(
        usage.damaged_bytes == 0 && whole == usage.capacity_bytes,
        "bytes of the heap of node {node} are nobody's: {usage:?}"
    );
    let owned = member.owned_chunks();
    let of_heap = owned.iter().filter(|(_, purpose)| *purpose == HEAP_PURPOSE).count() as u64;
    let capacity_bytes = of_heap * member.object_bytes_max();
    ensure!(
        (usage.chunks, usage.capacity_bytes) == (of_heap, capacity_bytes),
        "node {node} has {of_heap} chunks of objects, and knows of {usage:?}"
    );
    Ok(())
}

/// Every chunk but the ground is free, or a node's: for blocks, or in its heap. Returns the bytes
/// of all.
fn check_table(member: &LocalMember) -> Result<u64> {
    let (layout, fabric) = (member.layout(), member.fabric());
    for chunk in (0..layout.chunks()).map(ChunkId).filter(|chunk| *chunk != ground(layout)) {
        let entry = layout.chunk_entry(chunk).fresh(fabric);
        match entry.map(|entry| entry.state()) {
            Ok(Some(ChunkState::Free)) => {}
            Ok(Some(ChunkState::Owned { owner, purpose, .. }))
                if layout.node(owner.0).is_some() && !is_purpose(purpose) => {}
            state => bail!("chunk {chunk} is {state:?}"),
        }
    }
    Ok(u64::from(layout.chunks()) * layout.geometry().chunk_bytes)
}

/// No destroyed root waits for its object to be freed.
fn check_table_of_roots(member: &LocalMember) -> Result<()> {
    let roots = member.layout().roots();
    for entry in 0..ROOTS_MAX {
        let head = roots.line::<RootHead>(entry * roots.lines() / ROOTS_MAX);
        let head = head.and_then(|head| head.fresh(member.fabric()).ok());
        let waits = head.is_some_and(|head| head.state() == Some(RootState::Retired));
        ensure!(!waits, "root {entry} of the table is destroyed, and its object was never freed");
    }
    Ok(())
}
