//! Answering requests: what the agent of a node is asked to restore.

use cxl_shm::fabric::{PublishBatch, refresh_all};
use cxl_shm::node::Backend;
use cxl_shm::units::NodeId;

use super::{DriveClaim, DriveError};
use crate::broken::{Rule, is_broken};
use crate::format::{DriveAreas, RestoreOutcome, RestoreRequest, answer_word, answered_number};
use crate::process::Cache;

/// A request that an agent has to answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AskedRestore {
    /// The node whose process asks.
    pub asking: NodeId,
    number: u64,
    /// What it asks for; `None` when the request cannot be read: it is answered
    /// [`RestoreOutcome::Damaged`] (TIER-Q3).
    pub request: Option<RestoreRequest>,
}

/// How far the agent has read the requests of all nodes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RestoreDesk {
    /// By asking node; `None` before its requests were read.
    taken: Vec<Option<u64>>,
}

impl RestoreDesk {
    /// Begins: the first [`next`](Self::next) has the requests that no earlier agent answered
    /// (TIER-Q2).
    #[must_use]
    pub fn begin<B: Backend>(claim: &DriveClaim<'_, B>) -> Self {
        Self { taken: claim.drives.nodes().map(|_| None).collect() }
    }

    /// The requests that were made since the last call, in order of the asking node. To be called
    /// every few milliseconds. Each has to be answered.
    ///
    /// # Errors
    /// [`DriveError`].
    pub fn next<B: Backend>(
        &mut self,
        cache: &Cache<'_, B>,
    ) -> Result<Vec<AskedRestore>, DriveError> {
        cache.check_member()?;
        let (drives, me) = (cache.drives()?, cache.member().node());
        let (fabric, ring) = (cache.member().fabric(), drives.plan.ring());
        // What processes of this host ask is in this host's caches.
        let others = drives.nodes().filter(|node| *node != me);
        refresh_all(fabric, others.map(|node| drives.of(node).requests(me).range()));
        let mut new = Vec::new();
        for (asking, taken) in drives.nodes().zip(&mut self.taken) {
            let count = drives.of(asking).requests(me).cached(fabric);
            let oldest = count.saturating_sub(ring);
            // A count that went back is another's, or damaged.
            let first = taken.filter(|taken| *taken <= count).unwrap_or(oldest).max(oldest);
            *taken = Some(count);
            let open = |number: &u64| {
                let answer = cache.own_drives(drives).answer(asking, *number);
                is_open(answer.own(fabric), *number)
            };
            new.extend((first..count).map(|last| last + 1).filter(open).map(|it| (asking, it)));
        }
        // MEM-M4: the counts were seen, now the lines.
        let line = |(asking, number): &(NodeId, u64)| drives.of(*asking).request(me, *number);
        refresh_all(fabric, new.iter().filter(|it| it.0 != me).map(|it| line(it).range()));
        let asked = |it: &(NodeId, u64)| AskedRestore {
            asking: it.0,
            number: it.1,
            request: line(it).cached(fabric).ok().and_then(|line| line.request(it.1)),
        };
        Ok(new.iter().map(asked).collect())
    }

    /// Which of the requests were taken back: asked before a block is read.
    ///
    /// # Errors
    /// [`DriveError`].
    pub fn cancelled<B: Backend>(
        &self,
        cache: &Cache<'_, B>,
        asked: &[AskedRestore],
    ) -> Result<Vec<bool>, DriveError> {
        cache.check_member()?;
        let (drives, me) = (cache.drives()?, cache.member().node());
        let fabric = cache.member().fabric();
        let line = |it: &AskedRestore| drives.of(it.asking).request(me, it.number);
        refresh_all(fabric, asked.iter().map(|it| line(it).range()));
        let is_cancelled =
            |it: &AskedRestore| line(it).cached(fabric).is_ok_and(|at| at.is_cancelled(it.number));
        Ok(asked.iter().map(is_cancelled).collect())
    }

    /// Answers requests: once each (TIER-Q2). A request that was answered keeps its answer. A block is
    /// published before its request is answered [`RestoreOutcome::Restored`] (TIER-Q4).
    ///
    /// # Errors
    /// [`DriveError`].
    pub fn answer<B: Backend>(
        &self,
        cache: &Cache<'_, B>,
        answers: &[(AskedRestore, RestoreOutcome)],
    ) -> Result<(), DriveError> {
        cache.check_member()?;
        let drives: DriveAreas = cache.drives()?;
        let fabric = cache.member().fabric();
        let own = cache.own_drives(drives);
        let mut batch = PublishBatch::new(fabric);
        for (asked, outcome) in answers {
            let word = own.answer(asked.asking, asked.number);
            if is_open(word.own(fabric), asked.number) {
                batch.word(word, answer_word(asked.number, *outcome));
            }
        }
        batch.publish();
        Ok(())
    }
}

/// Whether request `number` has no answer, nor a later request of its line (TIER-Q2).
fn is_open(answer: u64, number: u64) -> bool {
    answered_number(answer) < number || is_broken(Rule::AnswersOnce)
}
