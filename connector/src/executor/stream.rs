//! The thread that fetches layers, one after the other: of those it was told, the soonest first.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, unbounded};
use cxl_shm::clock::SystemClock;
use kv_cache::MatchedBlock;

use super::error::{ExecutorError, Failure};
use super::queue::{Adding, Taking, by_layer};
use crate::asynchronous::AsyncSession;
use crate::dma::{Checksum, Layers};
use crate::spawn::spawn_with;

/// One layer to fetch.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) request: u64,
    /// Counted from 1.
    pub(super) layer: u16,
    /// The same, counted from 0.
    pub(super) index: usize,
    pub(super) layers: Arc<Layers>,
    pub(super) blocks: Arc<Vec<MatchedBlock>>,
    /// Of this layer, of each block.
    pub(super) checksums: Arc<Vec<Checksum>>,
    pub(super) buffer: Vec<Vec<u8>>,
}

/// A layer that was fetched, or not.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) request: u64,
    pub(super) layer: u16,
    /// Given back, with the layer in it.
    pub(super) buffer: Vec<Vec<u8>>,
    pub(super) outcome: Result<(), Failure>,
    /// How long the transfer took.
    pub(super) took_ns: u64,
}

/// The thread, and what it was told to do.
#[derive(Debug)]
pub(super) struct Stream {
    /// `None` when it is being dropped.
    work: Option<Adding<Work>>,
    done: Receiver<Done>,
    /// Layers that it was given and has not given back.
    busy: usize,
    /// Bytes of their buffers.
    busy_bytes: usize,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    pub(super) fn start(session: AsyncSession) -> io::Result<Self> {
        let clock = SystemClock::start();
        Self::fetching(move |work| fetch(&session, work, &clock))
    }

    /// Has each layer fetched by `fetch`, on the thread.
    fn fetching(fetch: impl Fn(Work) -> Done + Send + 'static) -> io::Result<Self> {
        let (work, to_do) = by_layer();
        let (tell, done) = unbounded();
        let run = move |(fetch, to_do): (_, Taking<Work>)| {
            let fetch: Box<dyn Fn(Work) -> Done + Send> = fetch;
            // Nobody listens any more when the executor is dropped.
            while let Some(work) = to_do.take() {
                if tell.send(fetch(work)).is_err() {
                    break;
                }
            }
        };
        let thread = spawn_with("rackline-stream", (Box::new(fetch) as _, to_do), run);
        let thread = thread.map_err(|(error, _)| error)?;
        Ok(Self { work: Some(work), done, busy: 0, busy_bytes: 0, thread: Some(thread) })
    }

    pub(super) fn begin(&mut self, work: Work) -> Result<(), ExecutorError> {
        let queue = self.work.as_mut().ok_or(ExecutorError::Ended)?;
        let bytes = bytes_of(&work.buffer);
        queue.add(work.layer, work).map_err(|_| ExecutorError::Ended)?;
        self.busy += 1;
        self.busy_bytes += bytes;
        Ok(())
    }

    /// The next layer that it gives back; waits for it.
    pub(super) fn next(&mut self) -> Result<Done, ExecutorError> {
        if self.busy == 0 {
            return Err(ExecutorError::NoIteration);
        }
        let done = self.done.recv().map_err(|_| ExecutorError::Ended)?;
        self.busy -= 1;
        self.busy_bytes =
            if self.busy == 0 { 0 } else { self.busy_bytes.saturating_sub(bytes_of(&done.buffer)) };
        Ok(done)
    }

    /// Drops what the thread has not begun, and waits for the layer that it fetches.
    pub(super) fn give_up(&mut self) {
        let dropped = self.work.as_ref().map_or_else(Vec::new, Adding::take_back);
        self.busy -= dropped.len();
        // A thread that is gone has none.
        while self.busy > 0 && self.next().is_ok() {}
        self.busy_bytes = 0;
    }

    /// Whether [`next`](Self::next) does not wait.
    pub(super) fn has_next(&self) -> bool {
        !self.done.is_empty()
    }

    /// Bytes of the buffers that the thread has.
    pub(super) const fn busy_bytes(&self) -> usize {
        self.busy_bytes
    }
}

/// Bytes that a buffer takes.
pub(super) fn bytes_of(buffer: &[Vec<u8>]) -> usize {
    buffer.iter().map(Vec::capacity).sum()
}

impl Drop for Stream {
    fn drop(&mut self) {
        // What waits is fetched for nobody.
        self.work.as_ref().map(Adding::take_back);
        self.work = None;
        if let Some(thread) = self.thread.take() {
            // If it panicked, that was printed.
            let _ = thread.join();
        }
    }
}

fn fetch(session: &AsyncSession, work: Work, clock: &SystemClock) -> Done {
    let Work { request, layer, index, layers, blocks, checksums, buffer } = work;
    let began_ns = clock.now_ns();
    let (buffer, outcome) = match session.fetch_layer(blocks, (layers, index), checksums, buffer) {
        Err(refused) => (refused.given, Err(Failure::Refused(refused.kind.to_string()))),
        Ok(completion) => match completion.wait() {
            Err(lost) => (Vec::new(), Err(Failure::Refused(lost.to_string()))),
            Ok(fetched) => {
                let outcome = match fetched.report {
                    Err(error) => Err(Failure::Session(error)),
                    Ok(report) => report.stop().map_or(Ok(()), |stop| {
                        Err(Failure::Block { block: report.valid_blocks(), stop: stop.clone() })
                    }),
                };
                (fetched.destinations, outcome)
            }
        },
    };
    Done { request, layer, buffer, outcome, took_ns: clock.now_ns() - began_ns }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use cxl_shm::clock::Clock as _;

    use super::*;

    #[test]
    fn a_dropped_stream_fetches_nothing_more() {
        let (begins, begun) = mpsc::channel();
        let (open, gate) = mpsc::channel::<()>();
        let mut stream = Stream::fetching(move |Work { request, layer, buffer, .. }| {
            begins.send(request).unwrap();
            gate.recv().unwrap_err();
            Done { request, layer, buffer, outcome: Ok(()), took_ns: 1 }
        })
        .unwrap();
        let layers = Arc::new(Layers::new([64]));
        for request in 0..100 {
            let (blocks, checksums, buffer) = Default::default();
            let layers = Arc::clone(&layers);
            let work = Work { request, layer: 1, index: 0, layers, blocks, checksums, buffer };
            stream.begin(work).unwrap();
        }
        assert_eq!(begun.recv(), Ok(0));
        std::thread::scope(|threads| {
            threads.spawn(move || drop(stream));
            // What the thread has not begun is dropped before the stream waits for its thread. The
            // thread has one.
            let clock = SystemClock::start();
            while Arc::strong_count(&layers) > 2 {
                assert!(clock.now_ms() < 60_000, "what waits stays with the thread");
                clock.sleep_ms(1);
            }
            drop(open);
        });
        assert_eq!(begun.iter().count(), 0, "layers were fetched for nobody");
    }
}
