//! What memory is lent to transfers (I7).
//!
//! Addresses in segments that lie apart, each with the number of transfers that read it; one that is
//! written is lent to that transfer alone.
//!
//! Memory of GPUs has no list of its own: a process has one range of addresses for its own memory and that
//! of all its GPUs (CUDA's unified addressing, which every driver for 64-bit Linux has). So what has the
//! same address is the same memory, whoever copies it: managed memory, say, or memory that was pinned.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cxl_shm::fork::ProcessMark;

use super::error::{Failure, RacklineError};

/// A piece of memory.
pub(super) type Span = Range<usize>;

/// The memory that is lent now.
#[derive(Default)]
pub(super) struct Lending {
    segments: Mutex<Segments>,
}

/// By where they start.
type Segments = BTreeMap<usize, Segment>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Segment {
    end: usize,
    /// Transfers that read it; 0 is one that writes.
    readers: u32,
}

/// Memory that is lent until this is dropped.
pub(super) struct Loan {
    lending: &'static Lending,
    /// In a child of `fork` it is the parent's, and so is the lock (I10).
    process: ProcessMark,
    spans: Vec<Span>,
}

impl Lending {
    /// Lends `spans`, none of which are empty, to a transfer that writes them, and then they lie apart,
    /// or one that reads them.
    pub(super) fn lend(&'static self, mut spans: Vec<Span>, writes: bool) -> Result<Loan, Failure> {
        unite(&mut spans);
        let mut segments = self.segments();
        if let Some(taken) = spans.iter().find_map(|span| conflict(&segments, span, writes)) {
            let (start, Segment { end, readers }) = taken;
            let does = if readers == 0 { "written" } else { "read" };
            let message = format!(
                "{} bytes at {start:#x} are {does} by another transfer: wait for that one first, or \
                 free it",
                end - start
            );
            return Err(Failure::new(RacklineError::Lent, message));
        }
        for span in &spans {
            if writes {
                segments.insert(span.start, Segment { end: span.end, readers: 0 });
            } else {
                add_reader(&mut segments, span);
            }
        }
        drop(segments);
        Ok(Loan { lending: self, process: ProcessMark::of_this(), spans })
    }

    fn segments(&self) -> MutexGuard<'_, Segments> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if !self.process.is_of_this() {
            return;
        }
        let mut segments = self.lending.segments();
        for span in &self.spans {
            remove(&mut segments, span);
        }
    }
}

/// Sorts `spans`, and makes one of those that touch or lie one over the other.
fn unite(spans: &mut Vec<Span>) {
    if !spans.is_sorted_by_key(|span| span.start) {
        spans.sort_unstable_by_key(|span| span.start);
    }
    spans.dedup_by(|next, span| {
        let touches = next.start <= span.end;
        if touches {
            span.end = span.end.max(next.end);
        }
        touches
    });
}

/// A segment within `span` that does not go with who reads it, or writes it.
fn conflict(segments: &Segments, span: &Span, writes: bool) -> Option<(usize, Segment)> {
    let before = segments.range(..span.end).rev();
    let mut within = before.take_while(|(_, segment)| segment.end > span.start);
    let found = within.find(|(_, segment)| writes || segment.readers == 0);
    found.map(|(start, segment)| (*start, *segment))
}

/// Ends a segment at `at`, and begins another there, if one reaches over it.
fn split(segments: &mut Segments, at: usize) {
    let Some((_, segment)) = segments.range_mut(..at).next_back() else { return };
    if segment.end > at {
        let rest = *segment;
        segment.end = at;
        segments.insert(at, rest);
    }
}

/// What is within `span` has a reader more. Nobody writes it.
fn add_reader(segments: &mut Segments, span: &Span) {
    split(segments, span.start);
    split(segments, span.end);
    let mut gaps = Vec::new();
    let mut at = span.start;
    for (start, segment) in segments.range_mut(span.clone()) {
        if at < *start {
            gaps.push(at..*start);
        }
        segment.readers += 1;
        at = segment.end;
    }
    if at < span.end {
        gaps.push(at..span.end);
    }
    for Range { start, end } in gaps {
        segments.insert(start, Segment { end, readers: 1 });
    }
}

/// What is within `span`, which was lent, is lent to one transfer less. Segments begin and end at its
/// ends since then.
fn remove(segments: &mut Segments, span: &Span) {
    let mut free = Vec::new();
    for (start, segment) in segments.range_mut(span.clone()) {
        segment.readers = segment.readers.saturating_sub(1);
        if segment.readers == 0 {
            free.push(*start);
        }
    }
    for start in free {
        segments.remove(&start);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lending() -> &'static Lending {
        Box::leak(Box::default())
    }

    #[test]
    fn what_is_written_is_lent_once_and_what_is_read_often() {
        let lending = lending();
        let reads = lending.lend(vec![100..200, 300..400, 150..250], false).unwrap();
        let also = lending.lend(vec![180..250, 240..320], false).unwrap();
        let refused = lending.lend(vec![10..20, 399..500], true).err().unwrap();
        assert_eq!(refused.code, RacklineError::Lent);
        let message = refused.message.to_str().unwrap();
        assert!(message.contains("80 bytes at 0x140 are read by another transfer"), "{message}");
        let writes = lending.lend(vec![10..20, 20..100, 400..500], true).unwrap();
        let refused = lending.lend(vec![250..300, 499..600], false).err().unwrap();
        assert!(refused.message.to_str().unwrap().contains("written by another transfer"));
        drop(reads);
        lending.lend(vec![100..180, 320..400], true).unwrap();
        assert!(lending.lend(vec![310..321, 330..340], true).is_err());
        drop((also, writes));
        assert_eq!(*lending.segments(), BTreeMap::new());
    }

    /// Takes a loan of spans, or gives back one that was taken.
    #[derive(Clone, Debug)]
    enum Step {
        Lend { spans: Vec<Span>, writes: bool },
        GiveBack { which: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let span = (0usize..60, 1usize..12).prop_map(|(start, bytes)| start..start + bytes);
        let lend = (prop::collection::vec(span, 0..4), any::<bool>());
        let lend = lend.prop_map(|(spans, writes)| Step::Lend { spans, writes });
        let give_back = (0usize..8).prop_map(|which| Step::GiveBack { which });
        prop::collection::vec(prop_oneof![lend, give_back], 1..40)
    }

    proptest! {
        /// As a list of every byte of every loan would have it.
        #[test]
        fn loans_are_refused_exactly_when_one_writes_what_another_has(steps in steps()) {
            let lending = lending();
            let mut taken: Vec<(Vec<Span>, bool, Loan)> = Vec::new();
            for step in steps {
                match step {
                    Step::Lend { spans, writes } => {
                        let meets = |theirs: &Vec<Span>| spans.iter().any(|span| {
                            theirs.iter().any(|other| span.start < other.end && other.start < span.end)
                        });
                        let refused = taken.iter().any(|(theirs, written, _)| {
                            (writes || *written) && meets(theirs)
                        });
                        let loan = lending.lend(spans.clone(), writes);
                        prop_assert_eq!(loan.is_err(), refused);
                        if let Ok(loan) = loan {
                            taken.push((spans, writes, loan));
                        }
                    }
                    Step::GiveBack { which } => {
                        if which < taken.len() {
                            taken.swap_remove(which);
                        }
                    }
                }
            }
            drop(taken);
            prop_assert!(lending.segments().is_empty());
        }
    }
}
