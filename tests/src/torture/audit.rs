//! What must be in the region when every process has ended in order.

use anyhow::{Result, bail};
use cxl_shm::alloc::heap::HEAP_PURPOSE;
use cxl_shm::clock::SystemClock;
use cxl_shm::layout::NodeState;
use kv_cache::Cache;

use super::blocks::{Fetched, fetch};
use super::child::Part;
use super::ground::{BLOCK_BYTES, Pair, is_purpose};
use super::life::{join, leave, own_host};
use super::rack::Rack;

impl Rack {
    /// Compares the region with what its processes said, from every node: counters, chunks,
    /// descriptors, payload, and that every node has left.
    ///
    /// # Errors
    /// What is lost, leaked, doubled or damaged.
    pub(super) fn audit(&mut self) -> Result<()> {
        let (layout, fabric) = (self.bed.layout, self.bed.region.fabric().clone());
        for (index, count) in (0..).zip(&self.counts) {
            let found = Pair::new(&layout, index).read(&fabric);
            count.compare(found).map_err(|what| anyhow::anyhow!("counter {index}: {what}"))?;
        }
        let mut verified = 0;
        for node in layout.nodes() {
            let line = layout.node_line(node).fresh(&fabric);
            let lived = self.players.iter().any(|player| player.node == node.0);
            if lived && line.ok().and_then(|line| line.state()) != Some(NodeState::Left) {
                bail!("node {node} has not left: {line:?}");
            }
            self.lives += 1;
            let host = own_host(node.0, self.lives)?;
            let member = join(fabric.clone(), &self.bed.folder, node.0, &host)?;
            verified += self.audit_from(&member)?;
            leave(member, &self.bed.folder)?;
        }
        self.figures.blocks_verified += verified;
        Ok(())
    }

    fn audit_from(
        &self,
        member: &super::child::ChildMember<cxl_shm::fabric::MappedFabric>,
    ) -> Result<u64> {
        let (clock, node) = (SystemClock::start(), member.node());
        let cache = Cache::attach(member, &clock)?;
        let mut verified = 0;
        let mut own_blocks = 0;
        for worker in self.of(Part::Worker).map(|place| &self.players[place]) {
            for number in &worker.ledger.blocks {
                match fetch(&cache, worker.index(), *number) {
                    Fetched::Right => verified += 1,
                    Fetched::Missed(why) => bail!(
                        "block {number} of worker {} was acknowledged and is not found from node \
                         {node}: {why:?}",
                        worker.index()
                    ),
                    Fetched::Wrong(what) => bail!("from node {node}: {what}"),
                }
            }
            if worker.node == node.0 {
                own_blocks += worker.ledger.blocks.len() as u64;
            }
        }
        let usage = cache.heap_use(&clock);
        if usage.blocks != own_blocks {
            bail!("node {node} has {} descriptors for {own_blocks} blocks", usage.blocks);
        }
        let chunk_bytes = member.layout().geometry().chunk_bytes;
        let chunks = member.owned_chunks();
        if let Some((chunk, _)) = chunks.iter().find(|(_, purpose)| is_purpose(*purpose)) {
            bail!("chunk {chunk} leaked: node {node} owns it, and no worker has it");
        }
        let of_cache = chunks.iter().filter(|(_, purpose)| purpose >> 32 != HEAP_PURPOSE >> 32);
        let has_bytes = of_cache.count() as u64 * chunk_bytes;
        let slot_bytes = BLOCK_BYTES.next_multiple_of(cxl_shm::units::PAGE_BYTES);
        let named_bytes = usage.blocks * slot_bytes + usage.free_bytes;
        if has_bytes != named_bytes {
            bail!(
                "node {node} owns {has_bytes} bytes of payload and knows of {named_bytes}: {usage:?}"
            );
        }
        Ok(verified)
    }
}
