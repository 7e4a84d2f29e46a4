//! A rack at rest: in the middle of a run all processes pause, and the content of the pool is
//! compared with what the processes reported.
//!
//! Killed processes are restarted first, so that their resources are reclaimed. Then no process
//! holds, writes or evicts anything: no reader word says that a block is held, and every
//! descriptor is free or READY. The READY ones are the blocks that were acknowledged and not
//! evicted.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use cxl_shm::units::NodeId;
use kv_cache::{BlockKey, BlockState, SlotContent, held_by, segment_of};

use super::child::{Order, Part};
use super::evictions::Evictions;
use super::ground::key;
use super::rack::Rack;

impl Rack {
    /// Has everybody rest, looks, and lets everybody continue. A process that ended in order is
    /// left alone.
    ///
    /// # Errors
    /// What must never be.
    pub(super) fn rest(&mut self) -> Result<()> {
        self.order_all(Order::Rest)?;
        self.order_all(Order::Census)?;
        self.look_at_rest()?;
        self.figures.rests += 1;
        for place in self.of(Part::Worker) {
            self.order(place, Order::Work);
        }
        Ok(())
    }

    /// Waits until all workers do as they are told, those that were dead too.
    fn order_all(&mut self, order: Order) -> Result<()> {
        loop {
            for place in 0..self.players.len() {
                if !self.players[place].lives() && !self.players[place].has_stopped() {
                    // It was armed before; everybody else has to rest beside it.
                    ensure!(order == Order::Rest, "a process dies while it only looks");
                    self.start(place, None, None)?;
                }
            }
            for place in self.of(Part::Worker) {
                self.order(place, order);
            }
            let obeys = |place: usize| self.players[place].obeys || !self.players[place].lives();
            if self.of(Part::Worker).all(obeys) && !self.is_anybody_dead() {
                return Ok(());
            }
            // Who died is started again.
            self.listen(2)?;
        }
    }

    fn is_anybody_dead(&self) -> bool {
        self.players.iter().any(|player| !player.lives() && !player.has_stopped())
    }

    fn look_at_rest(&mut self) -> Result<()> {
        let layout = self.bed.layout;
        self.check_evictions()?;
        for node in layout.nodes() {
            self.look_at_holds(node)?;
            self.look_at_blocks(node)?;
        }
        let workers = self.players.iter().filter(|player| player.part == Part::Worker);
        let ended: BTreeSet<u16> =
            workers.filter(|player| !player.lives()).map(|player| player.node).collect();
        if self.plan.declare && !ended.is_empty() {
            return Ok(());
        }
        // Who ended did not look for its blocks.
        for (node, evictions) in (0..).zip(&mut self.evictions) {
            if !ended.contains(&node) {
                self.figures.evicted += evictions.missing();
                *evictions = Evictions::default();
            }
        }
        Ok(())
    }

    /// No more blocks are missing than can have been evicted.
    ///
    /// # Errors
    /// Those that are lost.
    pub(super) fn check_evictions(&self) -> Result<()> {
        if self.plan.declare {
            // Somebody may have looked after what another left.
            return Evictions::sum(self.evictions.iter()).check();
        }
        for (node, evictions) in self.evictions.iter().enumerate() {
            evictions.check().with_context(|| format!("on node {node}"))?;
        }
        Ok(())
    }

    /// Nobody holds anything.
    fn look_at_holds(&self, node: NodeId) -> Result<()> {
        let (fabric, bed) = (self.bed.region.fabric(), &self.bed);
        let held = held_by(fabric, &bed.superblock, &bed.layout, node)?;
        if let Some((owner, slot)) = held.first() {
            bail!(
                "node {node} says that it holds {} blocks, the first in slot {slot} of node \
                 {owner}, and none of its processes holds any",
                held.len()
            );
        }
        Ok(())
    }

    /// Nobody is at a block, and the blocks are those that were acknowledged.
    fn look_at_blocks(&self, node: NodeId) -> Result<()> {
        let (fabric, bed) = (self.bed.region.fabric(), &self.bed);
        let (mut found, mut wrong) = (BTreeSet::new(), Vec::new());
        let segment = segment_of(&bed.superblock, &bed.layout, node)?;
        segment.scan(fabric, |slot, content| match content {
            Ok(SlotContent::Blank | SlotContent::Free { .. }) => {}
            Ok(SlotContent::Block(block)) if block.state == BlockState::Ready => {
                found.insert(*block.key.as_bytes());
            }
            Ok(SlotContent::Block(block)) => wrong.push(format!("{slot} is {:?}", block.state)),
            Err(error) => wrong.push(format!("{slot}: {error}")),
        });
        if let Some(first) = wrong.first() {
            bail!("nobody is at a block, and {} slots of node {node} are, as {first}", wrong.len());
        }
        let key_bytes = |key: BlockKey| *key.as_bytes();
        let workers = self.players.iter().filter(|it| it.part == Part::Worker && it.node == node.0);
        let mut looked = true;
        let mut known = BTreeSet::new();
        for worker in workers {
            // Who ended did not look: what it had may have been evicted since.
            looked &= worker.lives();
            let blocks = worker.ledger.blocks.iter();
            known.extend(blocks.map(|number| key_bytes(key(worker.index(), *number))));
        }
        let (lost, leaked) = (known.difference(&found).count(), found.difference(&known).count());
        ensure!(leaked == 0, "{leaked} blocks of node {node} are nobody's");
        ensure!(
            lost == 0 || !looked,
            "{lost} blocks of node {node} were there and have no descriptor"
        );
        Ok(())
    }
}
