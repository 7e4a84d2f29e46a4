//! What must be in the region when every process has ended in order.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::layout::HEAP_PURPOSE;
use cxl_shm::layout::{LockProtocol, NodeState};
use cxl_shm::lifecycle::{LocalMember, NoFence};
use cxl_shm::units::PAGE_BYTES;
use kv_cache::Cache;
use lock_manager::{ManagerRole, Timeouts};

use super::blocks::{Fetched, fetch};
use super::child::Part;
use super::evictions::Evictions;
use super::ground::{Pair, block_bytes, is_purpose};
use super::life::{Agent, join, leave, own_host};
use super::rack::Rack;
use super::usable::use_again;

impl Rack {
    /// Compares the region with what its processes said, from every node: counters, chunks,
    /// descriptors, payload, objects, roots, and that every node has left.
    ///
    /// # Errors
    /// What is lost, leaked, doubled or damaged.
    pub(super) fn audit(&mut self) -> Result<()> {
        let (layout, fabric) = (self.bed.layout, self.bed.region.fabric().clone());
        for (index, count) in (0..).zip(&self.counts) {
            let found = Pair::new(&layout, index).read(&fabric);
            count.compare(found).map_err(|what| anyhow::anyhow!("counter {index}: {what}"))?;
        }
        let (mut members, mut agents) = (Vec::new(), Vec::new());
        for node in layout.nodes() {
            let line = layout.node_line(node).fresh(&fabric);
            let lived = self.players.iter().any(|player| player.node == node.0);
            let state = line.ok().and_then(|line| line.state());
            if lived && !state.is_some_and(NodeState::is_vacant) {
                bail!("node {node} has not left: {line:?}");
            }
            self.lives += 1;
            let host = own_host(node.0, self.lives)?;
            let join = || join(fabric.clone(), &self.bed.folder, node.0, &host);
            members.push(join()?);
            agents.push(Agent::start(join()?, |agent| {
                agent.beat();
            })?);
        }
        self.find_evicted(&members)?;
        for member in &members {
            self.figures.verified += self.audit_blocks(member)?;
        }
        self.figures.audited_bytes = match self.bed.superblock.lock_protocol {
            LockProtocol::Bakery => self.account_and_use(&members)?,
            LockProtocol::Arbitrated => self.managed(|| self.account_and_use(&members))?,
        };
        for agent in agents {
            leave(agent.stop()?, &self.bed.folder)?;
        }
        for member in members {
            leave(member, &self.bed.folder)?;
        }
        Ok(())
    }

    /// Accounts for every byte, and uses again what is free.
    fn account_and_use(&self, members: &[LocalMember]) -> Result<u64> {
        let bytes = self.account(members)?;
        use_again(members)?;
        Ok(bytes)
    }

    /// Does something while a lock manager of node 0, which has members, grants.
    fn managed<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let fabric = self.bed.region.fabric().clone();
        let host = own_host(0, self.lives - u64::from(self.bed.layout.geometry().nodes) + 1)?;
        let member = join(fabric, &self.bed.folder, 0, &host)?;
        let ends = AtomicBool::new(false);
        let told = &ends;
        std::thread::scope(|scope| {
            let managing = scope.spawn(move || manage(&member, told).map(|()| member));
            let outcome = act();
            ends.store(true, Ordering::Relaxed);
            let member = managing.join().map_err(|_| anyhow::anyhow!("the manager panicked"))??;
            leave(member, &self.bed.folder)?;
            outcome
        })
    }

    /// Blocks that are not there any more are as many as made room for others at most.
    fn find_evicted(&mut self, members: &[LocalMember]) -> Result<()> {
        let Some(member) = members.first() else { bail!("no node takes part in the audit") };
        let cache = Cache::attach(member, &SystemClock::start())?;
        let evictions = &mut self.evictions;
        for player in self.players.iter_mut().filter(|player| player.part == Part::Worker) {
            let (node, worker) = (usize::from(player.node), player.index());
            player.ledger.blocks.retain(|number| {
                let there = !matches!(fetch(&cache, worker, *number), Fetched::Missed(_));
                if !there {
                    evictions[node].miss();
                }
                there
            });
        }
        self.figures.evicted += Evictions::sum(evictions.iter()).missing();
        self.check_evictions()
    }

    fn audit_blocks(&self, member: &LocalMember) -> Result<u64> {
        let (clock, node) = (SystemClock::start(), member.node());
        let cache = Cache::attach(member, &clock)?;
        let mut verified = 0;
        let (mut own_blocks, mut own_bytes) = (0, 0);
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
                let slot = |number: &u64| block_bytes(*number).next_multiple_of(PAGE_BYTES);
                own_bytes += worker.ledger.blocks.iter().map(slot).sum::<u64>();
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
        let named_bytes = own_bytes + usage.free_bytes;
        if has_bytes != named_bytes {
            bail!(
                "node {node} owns {has_bytes} bytes of payload and knows of {named_bytes}: {usage:?}"
            );
        }
        Ok(verified)
    }
}

/// Grants until `ends`. Nobody dies in an audit.
fn manage(member: &LocalMember, ends: &AtomicBool) -> Result<()> {
    let clock = SystemClock::start();
    let timeouts = Timeouts { takeover_ms: 0, declare_ms: u64::MAX };
    let mut role = ManagerRole::new(member, &clock, timeouts)?;
    let mut tries = 0;
    while !ends.load(Ordering::Relaxed) {
        let outcome = role.step(clock.now_ms(), &mut NoFence)?;
        tries = if outcome.busy { 0 } else { tries + 1 };
        clock.pause(tries);
    }
    Ok(())
}
