//! Sealed lines of the region's own metadata, the chunk table, and redo records.

use cxl_shm::fabric::{Fabric, LineError};
use cxl_shm::layout::{ChunkState, INTENT_LINES, IntentRecord, LineKind, LinePlace, NodeState};
use cxl_shm::units::{ChunkId, LINE_BYTES, LineOffset, LineRange, LockId, NodeId};

use super::{Audit, AuditReport, AuditStep, Fault};

impl<F: Fabric> Audit<'_, F> {
    pub(super) fn check_metadata(
        &self,
        report: &mut AuditReport,
        progress: &mut impl FnMut(AuditStep, u64, u64),
    ) {
        let all: u64 = self.layout.metadata_lines().map(LineRange::lines).sum();
        // What is said of others is judged by the lines of the nodes.
        for node in self.layout.nodes() {
            self.read_anew(self.layout.node_line(node).range());
        }
        for part in self.layout.metadata_lines() {
            self.read_anew(part);
            for at in part.iter() {
                report.checked.metadata_lines += 1;
                if let Some(fault) = self.metadata_fault(at) {
                    report.find(fault);
                }
            }
            progress(AuditStep::Metadata, report.checked.metadata_lines, all);
        }
    }

    pub(super) fn metadata_again(&self, at: u64) -> Option<Fault> {
        let at = LineOffset::new(at)?;
        self.read_anew(LineRange::one(at));
        let place = self.layout.line_place(at);
        if let Some(other) = other_copy(place, at) {
            self.read_anew(LineRange::one(other));
        }
        for node in self.layout.nodes() {
            self.read_anew(self.layout.node_line(node).range());
        }
        self.metadata_fault(at)
    }

    /// What is wrong with a line, as this host's caches hold it.
    fn metadata_fault(&self, at: LineOffset) -> Option<Fault> {
        let place = self.layout.line_place(at);
        let LinePlace { kind, node, index } = place;
        let is_bad = |at: LineOffset| {
            let checked = kind.check(at, &self.fabric.read_line(at));
            matches!(checked, Some(Err(LineError::Corrupt { .. })))
        };
        let bytes = at.bytes();
        match kind {
            LineKind::Chunk => {
                let chunk = self.layout.chunk_id(u32::try_from(index).ok()?)?;
                return self.chunk_fault(chunk);
            }
            LineKind::Ballot | LineKind::Recovery if is_bad(at) => {
                let other = other_copy(place, at).is_some_and(is_bad);
                return Some(if other {
                    Fault::MetadataDamaged { kind, node, index, at: bytes }
                } else {
                    Fault::CopyDamaged { kind, node, index, at: bytes }
                });
            }
            _ if is_bad(at) => {
                return Some(Fault::MetadataDamaged { kind, node, index, at: bytes });
            }
            _ => {}
        }
        let node = node?;
        match kind {
            LineKind::IntentHead => {
                let lock = LockId(u32::try_from(index).ok()?);
                let intent = self.layout.intents(node).part(index * INTENT_LINES, INTENT_LINES)?;
                let head = intent.line::<IntentRecord>(0)?.cached(self.fabric).ok()?;
                let is_open = head.open(lock).is_some() && self.is_quiet(node);
                is_open.then_some(Fault::UpdateOpen { node, lock, at: bytes })
            }
            LineKind::Node => self.node_fault(node),
            _ => None,
        }
    }

    fn node_fault(&self, node: NodeId) -> Option<Fault> {
        let line = self.layout.node_line(node);
        let at = line.at().bytes();
        match line.cached(self.fabric).ok()?.state() {
            None => Some(Fault::MetadataDamaged {
                kind: LineKind::Node,
                node: Some(node),
                index: 0,
                at,
            }),
            Some(NodeState::Joined | NodeState::Joining) if !self.in_use => {
                Some(Fault::NodeAbandoned { node, at })
            }
            Some(_) => None,
        }
    }

    fn chunk_fault(&self, chunk: ChunkId) -> Option<Fault> {
        let entry = self.layout.chunk_entry(chunk);
        let at = entry.at().bytes();
        let Ok(entry) = entry.cached(self.fabric) else {
            return Some(Fault::ChunkUnreadable { chunk, at });
        };
        let failed = entry.failed().map(|_| Fault::ChunkFailed { chunk, at });
        match entry.state() {
            None => Some(Fault::ChunkUnreadable { chunk, at }),
            Some(ChunkState::Owned { owner, incarnation, .. }) => {
                let line = self.layout.node(owner.0).map(|owner| self.layout.node_line(owner));
                // A line that does not read is a finding of its own.
                let is_later = |line: cxl_shm::layout::NodeLine| line.incarnation() < incarnation;
                let impossible = match line.map(|line| line.cached(self.fabric)) {
                    None | Some(Err(LineError::Blank { .. })) => true,
                    Some(Ok(line)) => is_later(line),
                    Some(Err(LineError::Corrupt { .. })) => false,
                };
                let fault = Fault::ChunkOwnerImpossible { chunk, owner, at };
                if impossible { Some(fault) } else { failed }
            }
            Some(ChunkState::Free | ChunkState::Failed) => failed,
        }
    }
}

/// The other line of a record that is written in turn.
fn other_copy(place: LinePlace, at: LineOffset) -> Option<LineOffset> {
    let is_pair = matches!(place.kind, LineKind::Ballot | LineKind::Recovery);
    // A record starts at an even line.
    is_pair.then(|| LineOffset::new(at.bytes() ^ LINE_BYTES)).flatten()
}
