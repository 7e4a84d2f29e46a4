//! Transfers under way, and what came of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rackline::{
    Completion, Fetched, HoldReport, PrefixMatch, ProcessMark, PublishOutcome, PublishReport,
    Published, Releaser, RestoreReport, SessionError, Share, SubmitErrorKind,
};

use crate::error::{error, not_done, refused_because};
use crate::memory::{ReadBlock, WriteBlock};
use crate::prefix::Prefix;

/// How long a wait continues before it checks for Ctrl-C, in milliseconds.
const SIGNALS_MS: u64 = 100;
/// A thread that works on what it waits for checks for Ctrl-C after so long at the latest.
pub(crate) const WORKS_WITHIN: Duration = Duration::from_secs(2);

/// A result that is taken once, from any thread.
pub(crate) struct Pending<T> {
    completion: Mutex<Completion<T>>,
    /// What a thread that waits does of it itself; `None` where that may take long.
    share: Option<Share>,
    /// In which it is under way: a child made by `fork` would wait for ever.
    process: ProcessMark,
}

impl<T> From<Completion<T>> for Pending<T> {
    fn from(completion: Completion<T>) -> Self {
        let share = Some(completion.share());
        Self { share, ..Self::left_to_threads(completion) }
    }
}

impl<T> Pending<T> {
    /// One on which no thread works that waits for it.
    fn left_to_threads(completion: Completion<T>) -> Self {
        let completion = Mutex::new(completion);
        Self { completion, share: None, process: ProcessMark::of_this() }
    }
}

impl<T: Send> Pending<T> {
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process()?;
        let cancel = || self.completion.lock().unwrap_or_else(PoisonError::into_inner).cancel();
        Ok(py.detach(cancel))
    }

    pub(crate) fn check_process(&self) -> PyResult<()> {
        if self.process.is_of_this() {
            return Ok(());
        }
        Err(refused_because(SubmitErrorKind::Forked))
    }

    /// The result; `None` while there is none, for at most `timeout_ms`, or for ever.
    pub(crate) fn wait(&self, py: Python<'_>, timeout_ms: Option<u64>) -> PyResult<Option<T>> {
        self.check_process()?;
        if let (None, Some(share)) = (timeout_ms, &self.share) {
            // PYTHON-Y1. Each piece takes milliseconds, but where a publish waits for memory.
            while py.detach(|| share.work()) {
                py.check_signals()?;
            }
        }
        wait_in_pieces(py, timeout_ms, |now| {
            let mut completion = self.completion.lock().unwrap_or_else(PoisonError::into_inner);
            if now.is_zero() { completion.poll() } else { completion.wait_timeout(now) }
                .map_err(error)
        })
    }
}

/// What `wait` waits for, for so long at a time; `None` when it takes longer than
/// `timeout_ms`. Ctrl-C ends it.
pub(crate) fn wait_in_pieces<T: Send>(
    py: Python<'_>,
    timeout_ms: Option<u64>,
    wait: impl Fn(Duration) -> PyResult<Option<T>> + Sync,
) -> PyResult<Option<T>> {
    let mut left_ms = timeout_ms;
    loop {
        let now_ms = left_ms.map_or(SIGNALS_MS, |left_ms| left_ms.min(SIGNALS_MS));
        // PYTHON-Y1.
        if let Some(result) = py.detach(|| wait(Duration::from_millis(now_ms)))? {
            return Ok(Some(result));
        }
        if let Some(left_ms) = &mut left_ms {
            *left_ms -= now_ms;
            if *left_ms == 0 {
                return Ok(None);
            }
        }
        py.check_signals()?;
    }
}

/// A lookup under way.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Lookup(LookupKind);

enum LookupKind {
    Plain(Pending<Result<PrefixMatch, SessionError>>),
    Held(Pending<Result<HoldReport, SessionError>>, Releaser),
    Restored(Pending<Result<RestoreReport, SessionError>>, Releaser),
}

impl Lookup {
    pub(crate) fn plain(completion: Completion<Result<PrefixMatch, SessionError>>) -> Self {
        Self(LookupKind::Plain(completion.into()))
    }

    /// One whose blocks are released by `releaser`.
    pub(crate) fn held(
        completion: Completion<Result<HoldReport, SessionError>>,
        releaser: Releaser,
    ) -> Self {
        Self(LookupKind::Held(completion.into(), releaser))
    }

    /// One that waits for drives, whose blocks are released by `releaser`.
    pub(crate) fn restored(
        completion: Completion<Result<RestoreReport, SessionError>>,
        releaser: Releaser,
    ) -> Self {
        Self(LookupKind::Restored(completion.into(), releaser))
    }
}

#[pymethods]
impl Lookup {
    #[pyo3(signature = (timeout_ms = None))]
    fn wait(&self, py: Python<'_>, timeout_ms: Option<u64>) -> PyResult<Option<Prefix>> {
        Ok(match &self.0 {
            LookupKind::Plain(pending) => {
                let found = pending.wait(py, timeout_ms)?.transpose().map_err(not_done)?;
                found.map(|found| Prefix::found(found.into_blocks()))
            }
            LookupKind::Held(pending, releaser) => {
                let held = pending.wait(py, timeout_ms)?.transpose().map_err(not_done)?;
                held.map(|held| Prefix::held_by(held, releaser.clone()))
            }
            LookupKind::Restored(pending, releaser) => {
                let restored = pending.wait(py, timeout_ms)?.transpose().map_err(not_done)?;
                restored.map(|restored| Prefix::held_after(restored, releaser.clone()))
            }
        })
    }

    fn poll(&self, py: Python<'_>) -> PyResult<Option<Prefix>> {
        self.wait(py, Some(0))
    }
}

/// A question under way: which blocks are in the pool, each one for itself.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Presence(Pending<Result<Vec<bool>, SessionError>>);

impl Presence {
    pub(crate) fn new(completion: Completion<Result<Vec<bool>, SessionError>>) -> Self {
        Self(completion.into())
    }
}

#[pymethods]
impl Presence {
    #[pyo3(signature = (timeout_ms = None))]
    fn wait<'py>(
        &self,
        py: Python<'py>,
        timeout_ms: Option<u64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let present = self.0.wait(py, timeout_ms)?.transpose().map_err(not_done)?;
        Ok(present.map(|present| {
            let bytes: Vec<u8> = present.into_iter().map(u8::from).collect();
            PyBytes::new(py, &bytes)
        }))
    }
}

/// What became of the blocks of a publish.
#[pyclass(frozen, get_all, module = "rackline")]
pub(crate) struct PublishResult {
    /// Blocks that every host can find now, because of this call.
    published: usize,
    /// Blocks that were there already.
    already_there: usize,
    /// For each block: `published`, `already_there`, `aborted` (all of a publish by layers), or a
    /// short name of why it is not in the pool.
    outcomes: Vec<&'static str>,
    /// For each of the names of why blocks are not in the pool: the same for people, of the first.
    messages: BTreeMap<&'static str, String>,
}

impl PublishResult {
    pub(crate) fn of(report: &PublishReport) -> Self {
        let mut messages = BTreeMap::new();
        for outcome in report.outcomes() {
            if !messages.contains_key(outcome.label())
                && let Some(why) = outcome.why_missing()
            {
                messages.insert(outcome.label(), why);
            }
        }
        Self {
            published: report.published(),
            already_there: report.available() - report.published(),
            outcomes: report.outcomes().iter().map(PublishOutcome::label).collect(),
            messages,
        }
    }

    /// Nothing of `blocks` blocks was published.
    pub(crate) fn aborted(blocks: usize) -> Self {
        let messages = BTreeMap::new();
        Self { published: 0, already_there: 0, outcomes: vec!["aborted"; blocks], messages }
    }
}

/// A publish under way.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Publish(Pending<Published<ReadBlock>>);

impl Publish {
    /// One that the threads of the pool do where it `may_take_long`.
    pub(crate) fn new(completion: Completion<Published<ReadBlock>>, may_take_long: bool) -> Self {
        Self(match may_take_long {
            true => Pending::left_to_threads(completion),
            false => completion.into(),
        })
    }
}

#[pymethods]
impl Publish {
    #[pyo3(signature = (timeout_ms = None))]
    fn wait(&self, py: Python<'_>, timeout_ms: Option<u64>) -> PyResult<Option<PublishResult>> {
        let Some(Published { report, blocks }) = self.0.wait(py, timeout_ms)? else {
            return Ok(None);
        };
        drop(blocks);
        Ok(Some(PublishResult::of(&report.map_err(not_done)?)))
    }

    fn poll(&self, py: Python<'_>) -> PyResult<Option<PublishResult>> {
        self.wait(py, Some(0))
    }

    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.cancel(py)
    }
}

/// How much of a fetch is good.
#[pyclass(frozen, get_all, module = "rackline")]
pub(crate) struct FetchResult {
    /// Blocks, from the first on, that have their right bytes. The content of the others is
    /// undefined.
    valid_blocks: usize,
    /// Why the next one is not good; `None` when all are. A label of the misses of
    /// `Pool.metrics()`, or `copy` when the bytes could not be copied.
    reason: Option<String>,
    /// The same for people.
    message: Option<String>,
}

impl FetchResult {
    /// Of `shares` sessions in turns: a block is valid with all of its shares.
    pub(crate) fn of(fetched: Fetched<WriteBlock>, shares: usize) -> PyResult<Self> {
        let Fetched { report, destinations } = fetched;
        drop(destinations);
        let report = report.map_err(not_done)?;
        let reason = report.stop().map(|stop| stop.label().to_owned());
        let message = report.stop().map(ToString::to_string);
        Ok(Self { valid_blocks: report.valid_blocks() / shares, reason, message })
    }
}

/// A fetch under way.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Fetch {
    fetched: Pending<Fetched<WriteBlock>>,
    /// How many sessions take turns in it.
    shares: usize,
}

impl Fetch {
    pub(crate) fn new(completion: Completion<Fetched<WriteBlock>>, shares: usize) -> Self {
        Self { fetched: completion.into(), shares }
    }
}

#[pymethods]
impl Fetch {
    #[pyo3(signature = (timeout_ms = None))]
    fn wait(&self, py: Python<'_>, timeout_ms: Option<u64>) -> PyResult<Option<FetchResult>> {
        let fetched = self.fetched.wait(py, timeout_ms)?;
        fetched.map(|fetched| FetchResult::of(fetched, self.shares)).transpose()
    }

    fn poll(&self, py: Python<'_>) -> PyResult<Option<FetchResult>> {
        self.wait(py, Some(0))
    }
}
