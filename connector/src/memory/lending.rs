//! What is lent to transfers now.
//!
//! Spans lie on a line of numbers: addresses of a process, or numbers of the blocks in one memory.
//! They are kept in segments that lie apart, each with the number of transfers that read it. A
//! segment that is written is lent to that transfer alone.
//!
//! Memory of GPUs has no list of its own: a process has one range of addresses for its own memory
//! and that of all its GPUs (CUDA's unified addressing, which every driver for 64-bit Linux has).
//! So equal addresses are the same memory, whichever device copies it: managed memory, for example,
//! or pinned memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxl_shm::fork::ProcessMark;

/// A piece of what can be lent.
pub type Span = Range<usize>;

/// What a transfer does with what it is lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It publishes it.
    Read,
    /// It fetches into it.
    Write,
}

/// Why something is not lent. Nothing is changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LendError {
    /// A transfer cannot write two spans that overlap.
    #[error("{first:?} and {second:?} overlap, and one transfer would write both")]
    Overlap {
        /// The one that begins first.
        first: Span,
        /// The other.
        second: Span,
    },
    /// Another transfer has it, and one of the two writes.
    #[error("{taken:?} is lent to another transfer ({access:?}): wait for that transfer first")]
    Taken {
        /// What is to be lent.
        wanted: Span,
        /// What is lent already, and overlaps.
        taken: Span,
        /// What the other transfer does with it.
        access: Access,
    },
    /// This process is a child of the one that lends, made by `fork`.
    #[error("this process is a forked child of the process that lends: attach again in the child")]
    Forked,
}

/// What is lent now.
#[derive(Debug)]
pub struct Lending {
    segments: Mutex<Segments>,
    /// A child of `fork` finds the lock in any state, and has nothing to do with the loans.
    process: ProcessMark,
}

/// By where they start.
type Segments = BTreeMap<usize, Segment>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Segment {
    end: usize,
    /// Transfers that read it; 0 is one that writes.
    readers: u32,
}

/// Spans that are lent until this is dropped.
#[derive(Debug)]
pub struct Loan {
    lending: Arc<Lending>,
    spans: Vec<Span>,
}

impl Default for Lending {
    fn default() -> Self {
        Self { segments: Mutex::default(), process: ProcessMark::of_this() }
    }
}

impl Lending {
    /// Lends `spans`, none of which are empty, to one transfer.
    ///
    /// # Errors
    /// [`LendError`].
    pub fn lend(
        self: &Arc<Self>,
        spans: impl IntoIterator<Item = Span>,
        access: Access,
    ) -> Result<Loan, LendError> {
        let mut spans: Vec<_> = spans.into_iter().collect();
        if !spans.is_sorted_by_key(|span| span.start) {
            spans.sort_unstable_by_key(|span| (span.start, span.end));
        }
        if access == Access::Write {
            check_apart(&spans)?;
        }
        unite(&mut spans);
        let mut segments = self.segments().ok_or(LendError::Forked)?;
        if let Some(taken) = spans.iter().find_map(|span| conflict(&segments, span, access)) {
            return Err(taken);
        }
        for span in &spans {
            match access {
                Access::Write => {
                    segments.insert(span.start, Segment { end: span.end, readers: 0 });
                }
                Access::Read => add_reader(&mut segments, span),
            }
        }
        drop(segments);
        Ok(Loan { lending: Arc::clone(self), spans })
    }

    /// None in a child made by `fork`.
    fn segments(&self) -> Option<MutexGuard<'_, Segments>> {
        let lock = || self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        self.process.is_of_this().then(lock)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let Some(mut segments) = self.lending.segments() else { return };
        for span in &self.spans {
            remove(&mut segments, span);
        }
    }
}

/// Refuses spans, in order, that overlap.
fn check_apart(spans: &[Span]) -> Result<(), LendError> {
    match spans.windows(2).find(|pair| pair[0].end > pair[1].start) {
        None => Ok(()),
        Some(pair) => Err(LendError::Overlap { first: pair[0].clone(), second: pair[1].clone() }),
    }
}

/// Makes one of those `spans`, which are in order, that touch or overlap.
fn unite(spans: &mut Vec<Span>) {
    spans.dedup_by(|next, span| {
        let touches = next.start <= span.end;
        if touches {
            span.end = span.end.max(next.end);
        }
        touches
    });
}

/// That a segment within `wanted` excludes such an access.
fn conflict(segments: &Segments, wanted: &Span, access: Access) -> Option<LendError> {
    let before = segments.range(..wanted.end).rev();
    let mut within = before.take_while(|(_, segment)| segment.end > wanted.start);
    let excludes = |segment: &Segment| access == Access::Write || segment.readers == 0;
    let (start, segment) = within.find(|(_, segment)| excludes(segment))?;
    let access = if segment.readers == 0 { Access::Write } else { Access::Read };
    Some(LendError::Taken { wanted: wanted.clone(), taken: *start..segment.end, access })
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

/// What is within `span` has a reader more. No transfer writes it.
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

/// What is within `span`, which was lent, is lent to one transfer less. Segments begin and end at
/// its ends since then.
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

    fn read(lending: &Arc<Lending>, spans: &[Span]) -> Result<Loan, LendError> {
        lending.lend(spans.to_vec(), Access::Read)
    }

    fn write(lending: &Arc<Lending>, spans: &[Span]) -> Result<Loan, LendError> {
        lending.lend(spans.to_vec(), Access::Write)
    }

    #[test]
    fn what_is_written_is_lent_once_and_what_is_read_often() {
        let lending = Arc::<Lending>::default();
        let reads = read(&lending, &[100..200, 300..400, 150..250]).unwrap();
        let also = read(&lending, &[180..250, 240..320]).unwrap();
        let refused = write(&lending, &[10..20, 399..500]).unwrap_err();
        let taken = LendError::Taken { wanted: 399..500, taken: 320..400, access: Access::Read };
        assert_eq!(refused, taken);
        let writes = write(&lending, &[10..20, 20..100, 400..500]).unwrap();
        let refused = read(&lending, &[250..300, 499..600]).unwrap_err();
        let taken = LendError::Taken { wanted: 499..600, taken: 400..500, access: Access::Write };
        assert_eq!(refused, taken);
        drop(reads);
        write(&lending, &[100..180, 320..400]).unwrap();
        assert!(write(&lending, &[310..321, 330..340]).is_err());
        drop((also, writes));
        assert_eq!(*lending.segments().unwrap(), BTreeMap::new());
    }

    #[test]
    fn spans_to_be_written_that_touch_pass_and_those_that_overlap_do_not() {
        let lending = Arc::<Lending>::default();
        for apart in [vec![], vec![100..110, 110..120, 200..201], vec![200..201, 110..120, 1..2]] {
            write(&lending, &apart).unwrap();
        }
        for overlapping in [
            [100..111, 110..120, 300..301],
            [110..120, 100..111, 300..301],
            [100..600, 700..701, 110..111],
            [100..110, 300..301, 100..110],
        ] {
            let refused = write(&lending, &overlapping).unwrap_err();
            assert!(matches!(refused, LendError::Overlap { .. }), "{refused}");
            read(&lending, &overlapping).unwrap();
        }
    }

    #[test]
    fn a_forked_child_lends_nothing_and_waits_for_no_lock_of_its_parent() {
        // As if a fork were in between, while another thread lends.
        let lending = Arc::new(Lending { process: ProcessMark::default(), ..Lending::default() });
        let held = lending.segments.lock().unwrap();
        assert_eq!(
            lending.lend(std::iter::once(1..2), Access::Read).unwrap_err(),
            LendError::Forked
        );
        drop(Loan { lending: Arc::clone(&lending), spans: vec![] });
        drop(held);
    }

    /// Takes a loan of spans, or gives back one that was taken.
    #[derive(Clone, Debug)]
    enum Step {
        Lend { spans: Vec<Span>, access: Access },
        GiveBack { which: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let span = (0usize..60, 1usize..12).prop_map(|(start, bytes)| start..start + bytes);
        let access = prop_oneof![Just(Access::Read), Just(Access::Write)];
        let lend = (prop::collection::vec(span, 0..4), access);
        let lend = lend.prop_map(|(spans, access)| Step::Lend { spans, access });
        let give_back = (0usize..8).prop_map(|which| Step::GiveBack { which });
        prop::collection::vec(prop_oneof![lend, give_back], 1..40)
    }

    fn meet(one: &Span, other: &Span) -> bool {
        one.start < other.end && other.start < one.end
    }

    proptest! {
        /// As a list of every byte of every loan would have it.
        #[test]
        fn loans_are_refused_exactly_when_one_writes_what_another_has(steps in steps()) {
            let lending = Arc::<Lending>::default();
            let mut taken: Vec<(Vec<Span>, Access, Loan)> = Vec::new();
            for step in steps {
                match step {
                    Step::Lend { spans, access } => {
                        let writes = |access| access == Access::Write;
                        let meets = |theirs: &Vec<Span>| {
                            spans.iter().any(|span| theirs.iter().any(|other| meet(span, other)))
                        };
                        let meets_itself = spans.iter().enumerate().any(|(number, span)| {
                            spans[..number].iter().any(|other| meet(span, other))
                        });
                        let refused = (writes(access) && meets_itself)
                            || taken.iter().any(|(theirs, other, _)| {
                                (writes(access) || writes(*other)) && meets(theirs)
                            });
                        let loan = lending.lend(spans.clone(), access);
                        prop_assert_eq!(loan.is_err(), refused);
                        if let Ok(loan) = loan {
                            taken.push((spans, access, loan));
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
            prop_assert!(lending.segments().unwrap().is_empty());
        }
    }
}
