//! A double-buffered record: two lines that are written in turn. When the writer dies in the middle
//! of a write, the former value stays readable.
//!
//! One line would not be enough: a host that dies while it writes a line may leave it torn for
//! good. Its earlier promise would be forgotten, which consensus must not allow. Here a torn line
//! counts as a write that never happened, and the reader takes the other line. So a double-buffered
//! record is a register with one writing host, like a word, only wider.

use super::death_records::{BallotRecord, RecoveryRecord};
use crate::fabric::{Fabric, LineError, OwnedArea, OwnedLine, PeerArea, PeerLine, Record};
use crate::layout::DOUBLE_BUFFER_LINES;
use crate::units::{LineRange, NodeId};

/// A record that holds the number of its write.
pub(crate) trait Numbered: Record {
    fn sequence(&self) -> u32;
    fn with_sequence(self, sequence: u32) -> Self;
}

impl Numbered for BallotRecord {
    fn sequence(&self) -> u32 {
        BallotRecord::sequence(self)
    }

    fn with_sequence(self, sequence: u32) -> Self {
        BallotRecord::with_sequence(self, sequence)
    }
}

impl Numbered for RecoveryRecord {
    fn sequence(&self) -> u32 {
        RecoveryRecord::sequence(self)
    }

    fn with_sequence(self, sequence: u32) -> Self {
        RecoveryRecord::with_sequence(self, sequence)
    }
}

/// Neither line holds a record. For a moment that is a reader that was overtaken by two writes;
/// when it stays so, the memory is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unreadable;

/// A double-buffered record that this host writes.
pub(crate) struct OwnedDoubleBuffer<T>([OwnedLine<T>; 2]);

impl<T: Numbered> OwnedDoubleBuffer<T> {
    /// The record about `node` in `area`, which has two lines per node.
    pub(crate) fn of(area: OwnedArea, node: NodeId) -> Self {
        let line = |i| area.line(u64::from(node.0) * DOUBLE_BUFFER_LINES + i);
        Self([0, 1].map(|i| line(i).expect("the area has two lines per node")))
    }

    /// Our own last value, from our caches; `None` before the first.
    pub(crate) fn own(&self, fabric: &impl Fabric) -> Result<Option<T>, Unreadable> {
        newer(self.0.map(|line| line.own(fabric)))
    }

    /// Publishes both lines as they are: a process of this host that died before us may have
    /// written one and not published it. Without this, writing the other would leave the device
    /// with neither that value nor the one before it.
    pub(crate) fn flush_both(&self, fabric: &impl Fabric) {
        for line in self.0 {
            fabric.write_back(line.peer().range());
        }
        fabric.fence();
        for line in self.0 {
            fabric.read_back(line.peer().range());
        }
    }

    /// Publishes `value`. After return every host that reads the double-buffered record fresh sees
    /// it.
    #[track_caller]
    pub(crate) fn publish(&self, fabric: &impl Fabric, value: T) {
        let [first, second] = self.0.map(|line| line.own(fabric).map_or(0, |own| own.sequence()));
        // Over the older, or over what a death has torn.
        let target = if first <= second { self.0[0] } else { self.0[1] };
        target.publish(fabric, &value.with_sequence(first.max(second).wrapping_add(1)));
    }
}

/// A double-buffered record that some host writes.
pub(crate) struct PeerDoubleBuffer<T>([PeerLine<T>; 2]);

impl<T: Numbered> PeerDoubleBuffer<T> {
    /// The record about `node` in `area`, which has two lines per node.
    pub(crate) fn of(area: PeerArea, node: NodeId) -> Self {
        let line = |i| area.line(u64::from(node.0) * DOUBLE_BUFFER_LINES + i);
        Self([0, 1].map(|i| line(i).expect("the area has two lines per node")))
    }

    /// Its lines, to refresh several double-buffered records with one fence.
    pub(crate) fn ranges(&self) -> [LineRange; 2] {
        self.0.map(|line| line.range())
    }

    /// What our caches hold, but where one line is torn: then the other one as it is now.
    ///
    /// A write that tears a line while we read it comes after a write of the other line, and that
    /// may have come after our refresh: what our caches hold of the other line can be older than
    /// what the torn line said when we began.
    #[track_caller]
    pub(crate) fn cached(&self, fabric: &impl Fabric) -> Result<Option<T>, Unreadable> {
        let is_torn = |line: &Result<T, LineError>| matches!(line, Err(LineError::Corrupt { .. }));
        let [first, second] = self.0.map(|line| line.cached(fabric));
        newer(match (is_torn(&first), is_torn(&second)) {
            (true, false) => [first, self.0[1].fresh(fabric)],
            (false, true) => [self.0[0].fresh(fabric), second],
            (true, true) | (false, false) => [first, second],
        })
    }
}

/// The later of the values that can be read.
fn newer<T: Numbered>(lines: [Result<T, LineError>; 2]) -> Result<Option<T>, Unreadable> {
    let blank = |line: &Result<T, LineError>| matches!(line, Err(LineError::Blank { .. }));
    match lines {
        [Ok(first), Ok(second)] if first.sequence() > second.sequence() => Ok(Some(first)),
        [_, Ok(second)] => Ok(Some(second)),
        [Ok(first), Err(_)] => Ok(Some(first)),
        // The first write of all was torn, or has not come.
        lines if lines.iter().any(blank) => Ok(None),
        _ => Err(Unreadable),
    }
}
