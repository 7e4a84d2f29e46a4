//! A session that does not wait.

use std::sync::{Arc, Mutex, PoisonError};

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::member::Liveness;
use kv_cache::{BlockHash, MatchedBlock, Metrics, PrefixMatch};

use super::completion::Revoke;
use super::lanes::{Desk, Lane, Work};
use super::{Completion, Destination, Running, Source};
use crate::dma::DmaEngine;
use crate::pool::LocalSession;
use crate::session::{
    FetchReport, HoldReport, PublishBlock, PublishReport, Session, SessionError, SessionOptions,
};

/// A block to be published, with its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewBlock<S> {
    /// The engine's hash of the block and of all before it.
    pub hash: BlockHash,
    /// Blocks before it in its prompt.
    pub depth: u32,
    /// Its bytes.
    pub bytes: S,
}

/// A publish that came to its end.
#[derive(Debug)]
pub struct Published<S> {
    /// What became of each block.
    pub report: Result<PublishReport, SessionError>,
    /// The blocks, given back.
    pub blocks: Vec<NewBlock<S>>,
}

/// A fetch that came to its end.
#[derive(Debug)]
pub struct Fetched<D> {
    /// How many destinations are good.
    pub report: Result<FetchReport, SessionError>,
    /// The destinations, given back.
    pub destinations: Vec<D>,
}

/// Work that was not taken up, given back. Nothing is changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubmitError<T> {
    /// As much as the queue takes is waiting: go on without, or try again later.
    #[error("the queue is full: as many transfers as it takes are waiting")]
    Busy(T),
    /// This process is a child of the one that attached, made by `fork`: the threads that transfer
    /// stayed behind, and so did the right to write.
    #[error("this process is a forked child of the one that attached: attach again in the child")]
    Forked(T),
    /// [`close`](super::Transfers::close) was called.
    #[error("the pool was closed in this process")]
    Closed(T),
}

impl<T> SubmitError<T> {
    /// What was given back.
    pub fn into_inner(self) -> T {
        match self {
            Self::Busy(inner) | Self::Forked(inner) | Self::Closed(inner) => inner,
        }
    }

    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> SubmitError<U> {
        match self {
            Self::Busy(inner) => SubmitError::Busy(f(inner)),
            Self::Forked(inner) => SubmitError::Forked(f(inner)),
            Self::Closed(inner) => SubmitError::Closed(f(inner)),
        }
    }
}

/// An engine's way to the blocks of one model and namespace, for any thread: every call returns at
/// once, and what it asked for is done by the threads of [`Transfers`](super::Transfers).
///
/// Clones are the same session. Calls of one thread are not done in order: wait for a publish before
/// looking up what it published.
#[derive(Clone, Debug)]
pub struct TransferSession {
    running: Arc<Running>,
    options: SessionOptions,
    hold_ms: u64,
}

impl TransferSession {
    pub(super) fn new(running: Arc<Running>, options: SessionOptions) -> Self {
        Self { running, options, hold_ms: kv_cache::HOLD_MS }
    }

    /// The session with holds of this length in milliseconds, instead of [`kv_cache::HOLD_MS`]; at
    /// most [`kv_cache::HOLD_MS_MAX`].
    #[must_use]
    pub fn with_hold_ms(self, hold_ms: u64) -> Self {
        Self { hold_ms, ..self }
    }

    /// What the blocks are.
    #[must_use]
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    pub(super) fn hold_ms(&self) -> u64 {
        self.hold_ms
    }

    pub(super) fn running(&self) -> &Running {
        &self.running
    }

    /// What this process did with the pool so far, in all its sessions.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.running.local.metrics()
    }

    /// The longest prefix of `hashes` of which every block is in the pool:
    /// [`Session::lookup`](crate::session::Session::lookup).
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn lookup(
        &self,
        hashes: Vec<BlockHash>,
    ) -> Result<Completion<Result<PrefixMatch, SessionError>>, SubmitError<Vec<BlockHash>>> {
        self.submit(Lane::Lookup, hashes, |session, hashes| session.lookup(&hashes))
    }

    /// The longest such prefix, held: what is found stays until the report is dropped, for at most
    /// as long as the session holds.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn lookup_and_hold(
        &self,
        hashes: Vec<BlockHash>,
    ) -> Result<Completion<Result<HoldReport, SessionError>>, SubmitError<Vec<BlockHash>>> {
        self.submit(Lane::Lookup, hashes, |session, hashes| session.lookup_and_hold(&hashes))
    }

    /// Holds `blocks`: [`Session::hold`](crate::session::Session::hold).
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn hold(
        &self,
        blocks: Vec<MatchedBlock>,
    ) -> Result<Completion<Result<HoldReport, SessionError>>, SubmitError<Vec<MatchedBlock>>> {
        self.submit(Lane::Lookup, blocks, |session, blocks| session.hold(&blocks))
    }

    /// Releases what is held, sooner than dropping it would.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn release(&self, held: HoldReport) -> Result<Completion<()>, SubmitError<HoldReport>> {
        self.submit(Lane::Lookup, held, |session, held| session.release(held))
    }

    /// Publishes `blocks`: [`Session::publish`](crate::session::Session::publish).
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn publish<S: Source>(
        &self,
        blocks: Vec<NewBlock<S>>,
    ) -> Result<Completion<Published<S>>, SubmitError<Vec<NewBlock<S>>>> {
        self.submit(Lane::Publish, blocks, |session, blocks| {
            let report = publish(session, &blocks, Source::parts);
            Published { report, blocks }
        })
    }

    /// Fetches `blocks`, each into its destination:
    /// [`Session::fetch`](crate::session::Session::fetch).
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn fetch<D: Destination>(
        &self,
        blocks: Vec<MatchedBlock>,
        destinations: Vec<D>,
    ) -> Result<Completion<Fetched<D>>, SubmitError<Vec<D>>> {
        let given = (blocks, destinations);
        let submitted = self.submit(Lane::Fetch, given, |session, (blocks, mut destinations)| {
            let parts = destinations.iter_mut().map(Destination::parts_mut).collect();
            let report = session.fetch(&blocks, parts);
            Fetched { report, destinations }
        });
        submitted.map_err(|error| error.map(|(_, destinations)| destinations))
    }

    /// Has `work` done with `given` by a thread of the lane.
    fn submit<G: Send + 'static, T: Send + 'static>(
        &self,
        lane: Lane,
        given: G,
        work: impl FnOnce(&LocalSession<'_>, G) -> T + Send + 'static,
    ) -> Result<Completion<T>, SubmitError<G>> {
        let (options, hold_ms) = (self.options, self.hold_ms);
        self.submit_to(lane, given, move |desk, given| {
            work(&desk.session(options).with_hold_ms(hold_ms), given)
        })
    }

    /// Has `work` done with `given`, by a thread of the lane with what that works with.
    pub(super) fn submit_to<G: Send + 'static, T: Send + 'static>(
        &self,
        lane: Lane,
        given: G,
        work: impl FnOnce(&Desk<'_>, G) -> T + Send + 'static,
    ) -> Result<Completion<T>, SubmitError<G>> {
        // Given back when it is not taken up, so that the caller has its buffers.
        let parcel = Arc::new(Parcel(Mutex::new(Some(given))));
        let taken = Arc::clone(&parcel);
        let (done, completion) = Completion::new(Arc::<Parcel<G>>::clone(&parcel));
        let work: Work = Box::new(move |desk: &Desk<'_>| {
            if let Some(given) = taken.open() {
                // Nobody may be waiting any more.
                let _ = done.send(work(desk, given));
            }
        });
        self.running.submit(lane, work).map_err(|error| {
            let given = || parcel.open().expect("work that is given back was not taken up");
            error.map(|()| given())
        })?;
        Ok(completion)
    }
}

/// What is taken out once: by the thread that does the work, or by who gave it and takes it back.
struct Parcel<G>(Mutex<Option<G>>);

impl<G> Parcel<G> {
    fn open(&self) -> Option<G> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<G: Send> Revoke for Parcel<G> {
    fn revoke(&self) -> bool {
        self.open().is_some()
    }
}

/// Publishes blocks whose bytes are in the parts that `parts` says.
pub(super) fn publish<'b, S, F, H, L, D, C>(
    session: &Session<'_, F, H, L, D, C>,
    blocks: &'b [NewBlock<S>],
    parts: impl Fn(&'b S) -> Vec<D::Source<'b>>,
) -> Result<PublishReport, SessionError>
where
    F: Fabric,
    H: HostMemory,
    L: Liveness,
    D: DmaEngine,
    C: Clock,
{
    let parts: Vec<_> = blocks.iter().map(|block| parts(&block.bytes)).collect();
    let blocks: Vec<_> = blocks
        .iter()
        .zip(&parts)
        .map(|(block, parts)| PublishBlock { hash: block.hash, depth: block.depth, parts })
        .collect();
    session.publish(&blocks)
}
