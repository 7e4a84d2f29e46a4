//! `rackline replay --live`: the trace through a real pool, with real bytes.

mod drive;
mod figures;
mod folder;
mod protocol;
mod tiers;
mod worker;

pub(super) use folder::folder_room;
pub(super) use tiers::{LiveTiers, run_tiers};
pub(crate) use worker::{WorkerOptions, run_worker};

use std::num::NonZeroU16;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use cxl_shm::clock::SystemClock;
use cxl_shm::layout::{LockProtocol, read_superblock};
use cxl_shm::lock::ManagerSeen;
use cxl_shm::region::Region;
use rackline_replay::{Outcome, PoolShape, PoolSimulation, Touch, Trace};
use serde::Serialize;

use self::figures::{Calls, Figures};
use self::protocol::{Event, Served, Task};
use super::progress;
use super::rule::Rule;
use crate::output::{say, show};
use crate::rack::{self, Interrupt, LockManager, OwnRegion, Sizes};

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<'a> {
    pub(super) nodes: NonZeroU16,
    pub(super) workers_per_node: NonZeroU16,
    /// `None` is no limit.
    pub(super) capacity: Option<u32>,
    pub(super) block_bytes: u64,
    /// A pool that is there, and the first of its nodes to be used.
    pub(super) pool: Option<(&'a Path, u16)>,
    /// Where the folder of a drive is made; `None` is the directory for temporary files.
    pub(super) drive_in: Option<&'a Path>,
}

impl Wish<'_> {
    fn sizes(&self, trace: &Trace) -> Result<Sizes> {
        let workers = (self.nodes, self.workers_per_node);
        Sizes::new(workers, self.capacity, trace.unique_blocks(), self.block_bytes)
    }

    /// The pool that would be made.
    pub(super) fn shape(&self, trace: &Trace) -> Result<PoolShape> {
        Ok(self.sizes(trace)?.shape)
    }
}

/// What a live replay adds to the figures of a replay.
#[derive(Debug, Serialize)]
pub(super) struct Live {
    block_bytes: u64,
    /// Hits of a simulated pool of this shape, and of the policy alone with as much room: not for a
    /// pool that others have made.
    expected_hits: Option<u64>,
    policy_hits: Option<u64>,
    elapsed_s: f64,
    requests_per_s: f64,
    blocks_per_s: f64,
    lookup: Figures,
    hold: Figures,
    fetch: Figures,
    publish: Figures,
}

/// The outcome of a replay, blocks refused, and the figures.
pub(super) type Replayed = (Outcome, u64, Live);

/// Replays `trace` through a pool, one request after the other, each by the next of its workers.
pub(super) fn run(wish: &Wish<'_>, trace: &Trace) -> Result<Replayed> {
    let interrupt = Interrupt::install_for_terminal()?;
    let salt = uuid::Uuid::new_v4().to_string();
    let Some((path, first_node)) = wish.pool else {
        let sizes = wish.sizes(trace)?;
        let region = sizes.make_region("replay", &interrupt)?;
        let own = Some(&region);
        let manager = LockManager::start(&region.region, &region.layout, 0, &interrupt)?;
        let mut fleet = Fleet::start(wish, region.path(), 0, &[], &salt, own, &interrupt)?;
        let mut replayed = fleet.replay(trace, wish)?;
        drop(fleet);
        drop(manager);
        compare(&mut replayed, trace, &sizes.shape)?;
        return Ok(replayed);
    };
    let region = Region::open(path, None)?;
    let (superblock, layout) = read_superblock(region.fabric()).with_context(|| {
        format!("{} is not a pool; format it with `rackline format`", path.display())
    })?;
    let serves = ManagerSeen::look(&layout, region.fabric()).is_some_and(|seen| seen.serving);
    let needed = superblock.lock_protocol == LockProtocol::Arbitrated && !serves;
    let start = || LockManager::start(&region, &layout, first_node, &interrupt);
    let manager = needed.then(start).transpose()?;
    let mut fleet = Fleet::start(wish, path, first_node, &[], &salt, None, &interrupt)?;
    let replayed = fleet.replay(trace, wish);
    drop(fleet);
    drop(manager);
    replayed
}

/// Hits have to be those of a simulated pool.
fn compare((outcome, _, live): &mut Replayed, trace: &Trace, shape: &PoolShape) -> Result<()> {
    let expected = PoolSimulation::new(trace, *shape).run();
    let capacity = u32::try_from(shape.blocks()).ok();
    let alone = super::replay(trace, capacity, Rule::default(), Touch::LeafFirst);
    live.expected_hits = Some(expected.hits);
    live.policy_hits = alone.map(|alone| alone.hits);
    ensure!(
        (outcome.hits, outcome.evictions) == (expected.hits, expected.evictions),
        "the pool had {} hits and {} evictions, a simulated one has {} and {}: this is a bug, \
         please report it",
        outcome.hits,
        outcome.evictions,
        expected.hits,
        expected.evictions
    );
    Ok(())
}

type Worker = rack::Worker<Task, Event>;

/// The workers of all nodes.
struct Fleet {
    /// By node, then by process.
    workers: Vec<Vec<Worker>>,
}

impl Fleet {
    /// Starts the workers and waits until all have attached. Then the file of a region of one's own
    /// goes: nothing is left of it, whichever process is killed.
    fn start(
        wish: &Wish<'_>,
        region: &Path,
        first_node: u16,
        more: &[&str],
        salt: &str,
        own: Option<&OwnRegion>,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let block_bytes = wish.block_bytes.to_string();
        let mut arguments = vec!["replay-worker", "--block-bytes", &block_bytes, "--salt", salt];
        if own.is_none() {
            arguments.push("--tidy");
        }
        arguments.extend_from_slice(more);
        let start = |node: u16| -> Result<Vec<Worker>> {
            let node = first_node.checked_add(node).context("there is no such node")?;
            let start =
                |_| Worker::start("worker", &arguments, Some((region, node)), &[], interrupt);
            (0..wish.workers_per_node.get()).map(start).collect()
        };
        let mut workers: Vec<_> = (0..wish.nodes.get()).map(start).collect::<Result<_>>()?;
        for worker in workers.iter_mut().flatten() {
            match worker.next()? {
                Event::Ready => {}
                Event::Served(_) => bail!("a worker served before it was ready"),
            }
        }
        own.map(OwnRegion::unlink).transpose()?;
        Ok(Self { workers })
    }

    fn replay(&mut self, trace: &Trace, wish: &Wish<'_>) -> Result<Replayed> {
        let shape = wish.shape(trace)?;
        let requests = trace.requests();
        let bar = progress::live(requests.len());
        let mut totals = Totals::new()?;
        let clock = SystemClock::start();
        for (number, request) in requests.iter().enumerate() {
            let (node, worker) = shape.server(number);
            let worker = &mut self.workers[usize::from(node)][usize::from(worker)];
            let now_ms = trace.times_ms()[number];
            let served =
                serve(worker, request, now_ms).with_context(|| format!("request {number}"))?;
            totals.count(&served, request.len() as u64)?;
            if let (Some(trouble), None) = (served.trouble, wish.pool) {
                bail!("request {number}: a block was refused: {trouble}");
            }
            bar.inc(1);
        }
        let elapsed_ns = clock.now_ns();
        bar.finish_and_clear();
        Ok(totals.replayed(wish.block_bytes, elapsed_ns))
    }
}

fn serve(worker: &mut Worker, request: &[u32], now_ms: u64) -> Result<Served> {
    worker.give(&Task::Serve { blocks: request.to_vec(), now_ms })?;
    match worker.next()? {
        Event::Served(served) => Ok(served),
        Event::Ready => bail!("the worker was ready twice"),
    }
}

/// What is counted while requests are served.
struct Totals {
    outcome: Outcome,
    refused: u64,
    lookup: Calls,
    hold: Calls,
    fetch: Calls,
    publish: Calls,
}

impl Totals {
    fn new() -> Result<Self> {
        let [lookup, hold, fetch, publish] =
            [Calls::new()?, Calls::new()?, Calls::new()?, Calls::new()?];
        Ok(Self { outcome: Outcome::default(), refused: 0, lookup, hold, fetch, publish })
    }

    fn count(&mut self, served: &Served, blocks: u64) -> Result<()> {
        self.outcome.requests += 1;
        self.outcome.block_refs += blocks;
        self.outcome.hits += served.hits;
        self.outcome.evictions += served.evicted;
        self.refused += served.refused;
        self.lookup.count(served.lookup_ns, blocks)?;
        if served.hits > 0 {
            self.hold.count(served.hold_ns, served.hits)?;
            self.fetch.count(served.fetch_ns, served.hits)?;
        }
        if served.hits < blocks {
            self.publish.count(served.publish_ns, served.published)?;
        }
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn replayed(self, block_bytes: u64, elapsed_ns: u64) -> Replayed {
        let elapsed_s = elapsed_ns as f64 / 1e9;
        let live = Live {
            block_bytes,
            expected_hits: None,
            policy_hits: None,
            elapsed_s,
            requests_per_s: self.outcome.requests as f64 / elapsed_s,
            blocks_per_s: self.outcome.block_refs as f64 / elapsed_s,
            // Nothing but names is looked up and held.
            lookup: self.lookup.figures(0),
            hold: self.hold.figures(0),
            fetch: self.fetch.figures(block_bytes),
            publish: self.publish.figures(block_bytes),
        };
        (self.outcome, self.refused, live)
    }
}

impl Live {
    pub(super) fn print(&self) {
        say!(
            "served in {:.1} s, one request after the other: {:.0} requests and {:.0} blocks a \
             second",
            self.elapsed_s,
            self.requests_per_s,
            self.blocks_per_s
        );
        say!("             p50       p90       p99       max    (us)    while at it");
        for (name, figures) in [
            ("lookup", &self.lookup),
            ("hold", &self.hold),
            ("fetch", &self.fetch),
            ("publish", &self.publish),
        ] {
            let figures::Latency { p50, p90, p99, max } = figures.latency_us;
            show!("  {name:<8}{p50:>8.1}  {p90:>8.1}  {p99:>8.1}  {max:>8.1}");
            if figures.bytes > 0 {
                let rate = figures.bytes_per_s / 1e9;
                show!("            {rate:.2} GB/s, {} blocks", figures.blocks);
            }
            say!("");
        }
        if let (Some(expected), Some(alone)) = (self.expected_hits, self.policy_hits) {
            say!(
                "a simulated pool of this shape has {expected} hits, the policy alone with as much \
                 room {alone}"
            );
        }
    }
}
