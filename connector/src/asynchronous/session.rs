//! A session that does not wait.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crossbeam_channel::{Sender, TrySendError};
use kv_cache::{BlockHash, KeySpace, MatchedBlock, Metrics, PrefixMatch};

use super::desk::Desk;
use super::prefetch::{AsyncPrefetch, NewPrefetch};
use super::restores::{Cancelled, NewRestore, NewWork};
use super::submit::Besides;
use super::turns::Lane;
use super::{
    AsyncEngine, Completion, Destination, Running, Source, SubmitError, SubmitErrorKind, pieces,
};
use crate::block::NewBlock;
use crate::dma::HostDma;
use crate::options::{RestoreOptions, SessionOptions};
use crate::session::{
    FetchReport, Forwards, HoldReport, PublishReport, RestoreReport, Session, SessionError,
};

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

/// An engine's way to the blocks of one model and namespace, for any thread: every call returns at
/// once, and the threads of [`AsyncPool`](super::AsyncPool) do the work.
///
/// Clones are the same session. Calls of one thread are not done in order: wait for a publish
/// before looking up what it published.
///
/// Blocks are in memory that `E` copies: that of this process, or of a GPU (`on_gpu`).
#[derive(Debug)]
pub struct AsyncSession<E: AsyncEngine = HostDma> {
    running: Arc<Running>,
    options: SessionOptions,
    /// Whose blocks take turns with its own in a transfer.
    others: Arc<[KeySpace]>,
    /// What its copies come after.
    order: E::Order,
    /// Whether the calling thread does short work itself.
    by_caller: bool,
}

/// What a session is on a thread of the pool.
#[derive(Clone)]
pub(super) struct OfCall {
    pub(super) options: SessionOptions,
    others: Arc<[KeySpace]>,
}

impl OfCall {
    /// The session at a desk.
    pub(super) fn at<'s, E: AsyncEngine>(
        &self,
        desk: &'s Desk<'_>,
        engine: &'s E,
    ) -> Session<'s, E> {
        desk.session(engine, self.options).taking_turns(Arc::clone(&self.others))
    }
}

/// Releases held blocks by a thread of the pool: thousands of them take milliseconds.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Releaser {
    running: Weak<Running>,
    options: SessionOptions,
}

impl Releaser {
    /// Releases `held` soon; at once, by dropping it, where no thread of the pool takes it.
    pub fn release(&self, held: HoldReport) {
        if let Some(running) = self.running.upgrade() {
            // What is refused is given back, and dropped.
            drop(AsyncSession::new(running, self.options).release(held));
        }
    }
}

impl<E: AsyncEngine> Clone for AsyncSession<E> {
    fn clone(&self) -> Self {
        self.ordered(self.order.clone())
    }
}

impl AsyncSession {
    pub(super) fn new(running: Arc<Running>, options: SessionOptions) -> Self {
        Self { running, options, others: Arc::default(), order: (), by_caller: false }
    }
}

impl<E: AsyncEngine> AsyncSession<E> {
    /// The same session for blocks in memory that another engine copies.
    pub(super) fn ordered<O: AsyncEngine>(&self, order: O::Order) -> AsyncSession<O> {
        let (running, others) = (Arc::clone(&self.running), Arc::clone(&self.others));
        let (options, by_caller) = (self.options, self.by_caller);
        AsyncSession { running, options, others, order, by_caller }
    }

    /// The same session for a thread that waits for everything that it begins. The calling thread does
    /// lookups, holds, and fetches and publishes of a few megabytes itself before the call returns,
    /// where no other thread of the process does so at the time. No thread of the pool is woken for
    /// them, which takes longer than a copy of 64 KiB. Longer transfers, and transfers of a GPU's
    /// memory, and transfers by layers are begun as by any session.
    #[must_use]
    pub fn by_caller(&self) -> Self {
        Self { by_caller: true, ..self.clone() }
    }

    /// The same session for a thread that does not work in the call itself: the opposite of
    /// [`by_caller`](Self::by_caller).
    #[must_use]
    pub fn by_threads(&self) -> Self {
        Self { by_caller: false, ..self.clone() }
    }

    /// Whether calls of it may do the work before they return ([`by_caller`](Self::by_caller)).
    #[must_use]
    pub fn is_by_caller(&self) -> bool {
        self.by_caller
    }

    /// Who does its transfers besides the threads of the pool.
    pub(super) fn besides(&self) -> Besides {
        match (E::BY_WAITER, self.by_caller) {
            (false, _) => Besides::Nobody,
            (true, false) => Besides::Waiter,
            (true, true) => Besides::Caller,
        }
    }

    /// This session for transfers of it and `others` together, of which each has other bytes of the same
    /// blocks of an engine. A transfer has the first block of each session, then the second of each.
    /// Lookups stay those of this session. `None` when a session is of another pool, or has blocks of
    /// another length or namespace, or other times. For sibling crates: no semver.
    #[doc(hidden)]
    #[must_use]
    pub fn together(&self, others: &[&Self]) -> Option<Self> {
        let is_like = |other: &&Self| {
            Arc::ptr_eq(&self.running, &other.running) && self.options.is_like(&other.options)
        };
        let others = others.iter();
        let keys = others.map(|other| is_like(other).then(|| other.options.key_space()));
        let others = keys.collect::<Option<_>>()?;
        Some(Self { others, ..self.clone() })
    }

    /// How many sessions it is for.
    pub(super) fn turns(&self) -> usize {
        1 + self.others.len()
    }

    /// What a call of it is on a thread of the pool.
    pub(super) fn of_call(&self) -> OfCall {
        OfCall { options: self.options, others: Arc::clone(&self.others) }
    }

    /// What the blocks are.
    #[must_use]
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    pub(super) fn running(&self) -> &Running {
        &self.running
    }

    pub(super) fn order(&self) -> &E::Order {
        &self.order
    }

    /// What this process did with the pool so far, in all its sessions.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.running.process_state.metrics()
    }

    /// The longest prefix of `hashes` of which every block is in the pool: [`Session::lookup`].
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn lookup<H: AsRef<[BlockHash]> + Send + 'static>(
        &self,
        hashes: H,
    ) -> Result<Completion<Result<PrefixMatch, SessionError>>, SubmitError<H>> {
        self.submit(Lane::Lookup, hashes, |session, hashes| session.lookup(hashes.as_ref()))
    }

    /// The longest such prefix, held: [`Session::lookup_and_hold`].
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn lookup_and_hold<H: AsRef<[BlockHash]> + Send + 'static>(
        &self,
        hashes: H,
    ) -> Result<Completion<Result<HoldReport, SessionError>>, SubmitError<H>> {
        self.submit(Lane::Lookup, hashes, |session, hashes| {
            session.lookup_and_hold(hashes.as_ref())
        })
    }

    /// The longest prefix that is in the pool or on drives, restored and held:
    /// [`Session::lookup_and_restore`]. A thread of its own waits for the drives: other lookups are not
    /// held up. Where nothing is to be waited for, this is [`lookup_and_hold`](Self::lookup_and_hold).
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn lookup_and_restore<H: AsRef<[BlockHash]> + Send + 'static>(
        &self,
        hashes: H,
        restore: RestoreOptions,
    ) -> Result<Completion<Result<RestoreReport, SessionError>>, SubmitError<H>> {
        match self.running.restores() {
            Err(kind) => Err(kind.with(hashes)),
            Ok(Some(queue)) if restore.waits() => self.restore(&queue, hashes, restore),
            Ok(_) => self.submit(Lane::Lookup, hashes, |session, hashes| {
                Ok(RestoreReport::of_pool(session.lookup_and_hold(hashes.as_ref())?))
            }),
        }
    }

    fn restore<H: AsRef<[BlockHash]> + Send + 'static>(
        &self,
        queue: &Sender<NewWork>,
        hashes: H,
        restore: RestoreOptions,
    ) -> Result<Completion<Result<RestoreReport, SessionError>>, SubmitError<H>> {
        let (tell, receiver) = oneshot::channel();
        let cancelled = Arc::new(Cancelled::default());
        let of_thread = Arc::clone(&cancelled);
        let call = move |session: &Session<'_>, hashes: &[BlockHash]| {
            session.begin_restore(hashes, restore)
        };
        let options = self.options;
        hand_over(queue, hashes, call, |begin| {
            NewWork::Lookup(NewRestore { begin, options, tell, cancelled: of_thread })
        })?;
        Ok(Completion::new(receiver, cancelled, None))
    }

    /// Has blocks restored for a later lookup: [`Session::prefetch`]. The thread that waits for drives
    /// begins it, takes the answers and asks on.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn prefetch<H: AsRef<[BlockHash]> + Send + 'static>(
        &self,
        hashes: H,
        restore: RestoreOptions,
    ) -> Result<AsyncPrefetch, SubmitError<H>> {
        let (prefetch, untold) = AsyncPrefetch::new(&self.running.prefetches);
        let queue = match self.running.restores() {
            Err(kind) => return Err(kind.with(hashes)),
            // Without drives it says what the pool has.
            Ok(None) => {
                let looks = self.submit(Lane::Lookup, hashes, move |session, hashes| {
                    untold.begin(|| session.prefetch(hashes.as_ref(), restore));
                });
                return looks.map(|_| prefetch);
            }
            Ok(Some(queue)) => queue,
        };
        let call =
            move |session: &Session<'_>, hashes: &[BlockHash]| session.prefetch(hashes, restore);
        let options = self.options;
        hand_over(&queue, hashes, call, |begin| {
            NewWork::Prefetch(NewPrefetch { begin, options, untold })
        })?;
        Ok(prefetch)
    }

    /// Begins to report the forwards of an engine: [`Session::report_forwards`]. What it gives is for any
    /// thread, and of use until the pool is closed.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn report_forwards(&self) -> Result<Completion<Option<Forwards>>, SubmitError<()>> {
        self.submit(Lane::Lookup, (), |session, ()| session.report_forwards())
    }

    /// Which of `hashes` have their block in the pool: [`Session::present`].
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn present<H: AsRef<[BlockHash]> + Send + 'static>(
        &self,
        hashes: H,
    ) -> Result<Completion<Result<Vec<bool>, SessionError>>, SubmitError<H>> {
        self.submit(Lane::Lookup, hashes, |session, hashes| session.present(hashes.as_ref()))
    }

    /// The same with drives: [`Session::present_with_drives`].
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn present_with_drives<H: AsRef<[BlockHash]> + Send + 'static>(
        &self,
        hashes: H,
    ) -> Result<Completion<Result<Vec<bool>, SessionError>>, SubmitError<H>> {
        self.submit(Lane::Lookup, hashes, |session, hashes| {
            session.present_with_drives(hashes.as_ref())
        })
    }

    /// Holds `blocks`: [`Session::hold`].
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

    /// Counts layers for which an engine had to wait, in the metrics of the host.
    ///
    /// # Errors
    /// [`SubmitError`]: they are not counted.
    pub(crate) fn count_stream_waits(
        &self,
        waits: u64,
        wait_us: u64,
    ) -> Result<Completion<()>, SubmitError<()>> {
        self.submit(Lane::Lookup, (), move |session, ()| session.count_stream_waits(waits, wait_us))
    }

    /// What releases blocks that this session holds, and does not keep the pool attached. For sibling
    /// crates: no semver.
    #[doc(hidden)]
    #[must_use]
    pub fn releaser(&self) -> Releaser {
        Releaser { running: Arc::downgrade(&self.running), options: self.options }
    }

    /// Publishes `blocks`: [`Session::publish`]. Many blocks are published in pieces, by several
    /// threads.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn publish<S: Source<E>>(
        &self,
        blocks: Vec<NewBlock<S>>,
    ) -> Result<Completion<Published<S>>, SubmitError<Vec<NewBlock<S>>>> {
        pieces::publish(self, blocks)
    }

    /// Fetches `blocks`, each into its destination: [`Session::fetch`]. Many blocks are fetched in
    /// pieces, by several threads, the first blocks first.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn fetch<D: Destination<E>>(
        &self,
        blocks: Vec<MatchedBlock>,
        destinations: Vec<D>,
    ) -> Result<Completion<Fetched<D>>, SubmitError<Vec<D>>> {
        pieces::fetch(self, blocks, destinations)
    }

    /// Has `work` done with `given` by a thread of the lane that copies nothing.
    fn submit<G: Send + 'static, T: Send + 'static>(
        &self,
        lane: Lane,
        given: G,
        work: impl FnOnce(&Session<'_>, G) -> T + Send + 'static,
    ) -> Result<Completion<T>, SubmitError<G>> {
        let options = self.options;
        let besides = if self.by_caller { Besides::Caller } else { Besides::Waiter };
        self.running.submit_to(lane, besides, given, move |desk, given| {
            work(&desk.session(desk.dma, options), given)
        })
    }

    /// Has `work` done with `given` by a thread of the lane, with the engine of this session.
    pub(super) fn copy<G: Send + 'static, T: Send + 'static>(
        &self,
        lane: Lane,
        given: G,
        work: impl FnOnce(&Session<'_, E>, G, &E) -> T + Send + 'static,
    ) -> Result<Completion<T>, SubmitError<G>> {
        match E::of(&self.running, &self.order) {
            Ok(engine) => self.copy_by(engine, lane, given, work),
            Err(kind) => Err(kind.with(given)),
        }
    }

    /// The same with a given engine.
    pub(super) fn copy_by<G: Send + 'static, T: Send + 'static>(
        &self,
        engine: E,
        lane: Lane,
        given: G,
        work: impl FnOnce(&Session<'_, E>, G, &E) -> T + Send + 'static,
    ) -> Result<Completion<T>, SubmitError<G>> {
        let call = self.of_call();
        // The engine uses layers while others are copied.
        let besides = match self.besides() {
            Besides::Waiter | Besides::Caller if lane != Lane::Layers => Besides::Waiter,
            _ => Besides::Nobody,
        };
        self.running.submit_to(lane, besides, given, move |desk, given| {
            work(&call.at(desk, &engine), given, &engine)
        })
    }
}

/// Hands `call` to the thread that waits for drives, with the hashes. A queue that does not take it
/// gives the hashes back.
fn hand_over<H: AsRef<[BlockHash]> + Send + 'static, T>(
    queue: &Sender<NewWork>,
    hashes: H,
    call: impl FnOnce(&Session<'_>, &[BlockHash]) -> T + Send + 'static,
    work: impl FnOnce(Box<dyn FnOnce(&Session<'_>) -> T + Send>) -> NewWork,
) -> Result<(), SubmitError<H>> {
    // What is sent and refused comes back as work, and the hashes are not in it then.
    let given = Arc::new(Mutex::new(Some(hashes)));
    let take =
        |given: &Mutex<Option<H>>| given.lock().unwrap_or_else(PoisonError::into_inner).take();
    let of_thread = Arc::clone(&given);
    let begin = Box::new(move |session: &Session<'_>| {
        let hashes = take(&of_thread).expect("the thread takes them once");
        call(session, hashes.as_ref())
    });
    queue.try_send(work(begin)).map_err(|refused| {
        let kind = match refused {
            TrySendError::Full(_) => SubmitErrorKind::Busy,
            TrySendError::Disconnected(_) => SubmitErrorKind::Closed,
        };
        kind.with(take(&given).expect("what was not sent was not taken"))
    })
}
