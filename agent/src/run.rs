//! The agent as a process: its threads, from the first to the last.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::lifecycle::LocalMember;
use cxl_shm::node::MappedBackend;
use kv_cache::BlockKey;
use kv_cache::tier::{DriveAnnouncer, DriveClaim, DriveError, DriveReplica, RestoreDesk};
use kv_drive::store::Store;
use rackline::dma::HostDma;
use rackline::{LocalCache, Pool};
use rackline_metrics::{Family, Health, Source};

use crate::backup::{BackupParts, Mover};
use crate::clear::Gate;
use crate::drives::{self, TablesRead};
use crate::error::AgentError;
use crate::figures::{Figures, SharedFigures};
use crate::follow::Follower;
use crate::metrics::{self, LastSeen};
use crate::reads::Reads;
use crate::restore::{RestoreParts, Restorer};
use crate::settings::Settings;

/// How often the agent says what it does, in the region.
const LINE_MS: u64 = 250;
/// How often it says so in its log, when something has changed.
const LOG_MS: u64 = 10_000;
/// How often it looks at the pool and at what the processes of the host have counted.
const SEEN_MS: u64 = 500;
/// The agent is not at work when its last look is as old as this.
const SEEN_MS_MAX: u64 = 10_000;
/// How long the thread that keeps the host's table of blocks on drives rests.
const SYNC_MS: u64 = 2;
/// How long the thread that restores rests when nothing is asked of it, in microseconds: so many times in
/// a row, then for longer. It neither spins nor yields, since engines need the processors.
const REST_US: u64 = 100;
const RESTS: u32 = 200;
const LONG_REST_US: u64 = 1000;
/// How long the backlog is written when the agent is stopped.
const STOP_MS: u64 = 5_000;

/// What the threads share.
#[derive(Debug)]
struct Shared {
    /// The drives; an agent without any only follows what other hosts announce.
    store: Option<Store>,
    tables: TablesRead,
    figures: SharedFigures,
    reads: Reads,
    seen: LastSeen,
    settings: Settings,
    /// What is not announced and not restored while it is cleared.
    gate: Gate,
    /// Backups and restores end.
    stop: AtomicBool,
    /// The last thread ends.
    stop_last: AtomicBool,
}

type Outcome = Result<(), DriveError>;
type LocalClaim<'c> = DriveClaim<'c, MappedBackend>;

/// What an agent shows: figures of the tiers, of its host and of its drives.
#[derive(Clone, Debug)]
pub struct AgentMetrics(Arc<Shared>);

impl AgentMetrics {
    /// Whether the thread that keeps the host's table has made a turn within the last 10 seconds.
    #[must_use]
    pub fn looked_lately(&self) -> bool {
        self.0.seen.age_ms() <= SEEN_MS_MAX
    }
}

impl Source for AgentMetrics {
    fn families(&self) -> Vec<Family> {
        let Shared { store, figures, seen, .. } = &*self.0;
        metrics::families(seen.get(), &figures.get(), store.as_ref())
    }

    fn health(&self) -> Health {
        let bad = |why: &str| Health::Bad(why.to_owned());
        if self.0.stop.load(Ordering::Relaxed) {
            return bad("the agent stops, or one of its threads has ended; its log says why");
        }
        if !self.looked_lately() {
            return bad("the agent has done nothing for 10 seconds");
        }
        if let Some(store) = &self.0.store
            && store.volumes().next().is_none()
        {
            return bad("no drive answers; the agent tries again by itself");
        }
        Health::Good
    }
}

/// The agent of this host, at work until it is [stopped](Self::stop).
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    threads: Vec<(JoinHandle<LocalMember>, Receiver<Outcome>)>,
    reading: Option<JoinHandle<()>>,
    pool: Pool,
}

impl Agent {
    /// Attaches to the pool, opens the folders, and begins. Without folders the agent *follows*: it
    /// keeps the host's table of blocks on the drives of other hosts, and announces nothing.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn start(settings: Settings) -> Result<Self, AgentError> {
        let pool = Pool::attach(&settings.region, settings.node)?;
        // Before the folders: so it is this agent that tells the operator of another one.
        drop(pool.cache().claim_drives()?);
        let store = if settings.drives.is_empty() { None } else { Some(drives::open(&settings)?) };
        let (tables, figures) = (TablesRead::default(), SharedFigures::default());
        figures.count(|figures| figures.is_unread = store.is_some());
        let (stop, stop_last) = (AtomicBool::new(false), AtomicBool::new(false));
        let (reads, seen) = (Reads::default(), LastSeen::new());
        let gate = Gate::new(store.as_ref().map_or(0, Store::folders));
        let shared =
            Shared { store, tables, figures, reads, seen, settings, gate, stop, stop_last };
        let shared = Arc::new(shared);
        let mut agent = Self { shared, threads: Vec::new(), reading: None, pool };
        // Dropped, it ends the threads that have started.
        match agent.shared.store.is_some() {
            true => agent.start_threads()?,
            false => agent.start_following()?,
        }
        Ok(agent)
    }

    /// Of an agent without drives: what an earlier agent of this node announced is withdrawn, and its
    /// requests are answered.
    fn start_following(&mut self) -> Result<(), AgentError> {
        let (tell_claimed, claimed) = bounded::<()>(1);
        self.start_thread("rackline-drives", move |shared, cache, clock| {
            let claim = cache.claim_drives()?;
            drop(tell_claimed);
            let mut follower = Follower::begin(&claim, cache)?;
            shared.figures.count(|figures| figures.is_ready = true);
            keep_table(shared, cache, clock, &claim, || follower.turn(cache, clock))
        })?;
        // As below.
        let _ = claimed.recv();
        Ok(())
    }

    fn start_threads(&mut self) -> Result<(), AgentError> {
        let reader = Arc::clone(&self.shared);
        let body = move || {
            if let Some(store) = &reader.store {
                drives::keep_reading(store, &reader.tables, &reader.stop);
            }
        };
        let reading = std::thread::Builder::new().name("rackline-tables".to_owned()).spawn(body);
        self.reading = Some(reading.map_err(AgentError::Thread)?);
        let (give_announcer, announcer) = bounded(1);
        let (give_desk, desk) = bounded(1);
        let (tell_claimed, claimed) = bounded::<()>(1);
        let (damaged, found) = unbounded();
        // The right to be the agent belongs to this thread, which ends last.
        self.start_thread("rackline-drives", move |shared, cache, clock| {
            let claim = cache.claim_drives()?;
            drop(tell_claimed);
            let announcer = DriveAnnouncer::begin(&claim, cache)?;
            // CLEAR-D8: before anybody looks for directives.
            cache.say_agent_line(&claim, &shared.figures.get().line(true))?;
            let _ = give_announcer.send(announcer);
            let _ = give_desk.send(RestoreDesk::begin(&claim));
            // The others wait for these no longer.
            drop((give_announcer, give_desk));
            keep_table(shared, cache, clock, &claim, || Ok(()))
        })?;
        // Ends when the thread has the right, or could not get it: a second agent is refused from now on.
        let _ = claimed.recv();
        let dma = HostDma::new(self.pool.attachment().region().fabric().clone());
        let restore_dma = dma.clone();
        self.start_thread("rackline-backup", move |shared, cache, clock| {
            let (Ok(announcer), Some(store)) = (announcer.recv(), &shared.store) else {
                return Ok(());
            };
            back_up(shared, store, (cache, clock), &dma, announcer, found)
        })?;
        self.start_thread("rackline-restore", move |shared, cache, clock| {
            let (Ok(desk), Some(store)) = (desk.recv(), &shared.store) else { return Ok(()) };
            restore(shared, store, (cache, clock), &restore_dma, desk, damaged)
        })
    }

    /// Starts a thread that works until the agent is stopped, or has lost its membership.
    fn start_thread(
        &mut self,
        name: &str,
        work: impl FnOnce(&Shared, &LocalCache<'_>, &SystemClock) -> Outcome + Send + 'static,
    ) -> Result<(), AgentError> {
        let shared = Arc::clone(&self.shared);
        let (tell, told) = bounded(1);
        let thread = self.pool.start_thread(name, move |cache, clock| {
            let outcome = work(&shared, cache, clock);
            // The others cannot go on without this one.
            shared.stop.store(true, Ordering::Relaxed);
            let _ = tell.send(outcome);
        })?;
        self.threads.push((thread, told));
        Ok(())
    }

    /// What the agent did.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.shared.figures.get()
    }

    /// What the agent shows, while it works and after.
    #[must_use]
    pub fn metrics(&self) -> AgentMetrics {
        AgentMetrics(Arc::clone(&self.shared))
    }

    /// Whether every block of the drives is announced that has room in the directory, and backups
    /// have begun.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared.figures.get().is_ready
    }

    /// Whether a thread has ended by itself: then [`stop`](Self::stop) says why.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(|(thread, _)| thread.is_finished())
    }

    /// Stops in order: what waits is written and made durable, requests are answered, and other hosts
    /// see that the agent is gone. It takes a few seconds at most, as far as the drives do.
    ///
    /// # Errors
    /// [`AgentError`]: why the agent had ended before.
    pub fn stop(mut self) -> Result<(), AgentError> {
        self.end_threads()
    }

    fn end_threads(&mut self) -> Result<(), AgentError> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut outcome = Ok(());
        let mut threads = std::mem::take(&mut self.threads).into_iter();
        let first = threads.next();
        for (thread, told) in threads {
            outcome = outcome.and(self.end(thread, &told));
        }
        self.shared.stop_last.store(true, Ordering::Relaxed);
        if let Some((thread, told)) = first {
            outcome = outcome.and(self.end(thread, &told));
        }
        if let Some(reading) = self.reading.take()
            && reading.join().is_err()
        {
            outcome = outcome.and(Err(AgentError::Panicked));
        }
        outcome
    }

    fn end(
        &self,
        thread: JoinHandle<LocalMember>,
        told: &Receiver<Outcome>,
    ) -> Result<(), AgentError> {
        match (thread.join(), told.try_recv()) {
            (Ok(member), Ok(ended)) => {
                self.pool.attachment().leave_thread(member);
                ended.map_err(AgentError::from)
            }
            // Its place in the registry falls to the next process that reclaims.
            _ => Err(AgentError::Panicked),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Err(error) = self.end_threads() {
            tracing::error!("the agent has ended: {error}");
        }
    }
}

/// Keeps the host's table of blocks on drives, says what the agent does, and calls `also` each time.
fn keep_table(
    shared: &Shared,
    cache: &LocalCache<'_>,
    clock: &SystemClock,
    claim: &LocalClaim<'_>,
    mut also: impl FnMut() -> Outcome,
) -> Outcome {
    let mut replica = DriveReplica::begin(claim, cache);
    let (mut line_ms, mut seen_ms) = (0, 0);
    let (mut log_ms, mut logged) = (LOG_MS, Figures::default());
    while !shared.stop_last.load(Ordering::Relaxed) {
        replica.sync(cache, clock)?;
        also()?;
        let (now_ms, figures) = (clock.now_ms(), shared.figures.get());
        if now_ms >= line_ms {
            line_ms = now_ms + LINE_MS;
            cache.say_agent_line(claim, &figures.line(true))?;
        }
        if now_ms >= seen_ms {
            seen_ms = now_ms + SEEN_MS;
            shared.seen.look(cache, clock);
        }
        if now_ms >= log_ms {
            log_ms = now_ms + LOG_MS;
            if figures != logged {
                logged = figures;
                figures.log("at work");
            }
        }
        clock.sleep_ms(SYNC_MS);
    }
    let figures = shared.figures.get();
    cache.say_agent_line(claim, &figures.line(false))?;
    replica.stop(cache);
    figures.log("stopped");
    Ok(())
}

fn back_up(
    shared: &Shared,
    store: &Store,
    (cache, clock): (&LocalCache<'_>, &SystemClock),
    dma: &HostDma,
    announcer: DriveAnnouncer,
    damaged: Receiver<BlockKey>,
) -> Outcome {
    let Shared { tables, figures, reads, settings, gate, .. } = shared;
    // There is a store, so there is a folder.
    let folder = settings.drives.first().map_or(Path::new("."), |drive| drive.path.as_path());
    let region = cache.member().superblock().uuid;
    let parts = BackupParts {
        cache,
        clock,
        dma,
        store,
        tables,
        figures,
        reads,
        folder,
        damaged,
        gate,
        region,
    };
    let mut mover = Mover::new(parts, announcer, &settings.backup);
    while !shared.stop.load(Ordering::Relaxed) {
        if !mover.turn()? {
            mover.rest();
        }
    }
    mover.stop(STOP_MS)
}

fn restore(
    shared: &Shared,
    store: &Store,
    (cache, clock): (&LocalCache<'_>, &SystemClock),
    dma: &HostDma,
    desk: RestoreDesk,
    damaged: Sender<BlockKey>,
) -> Outcome {
    let Shared { figures, reads, settings, gate, .. } = shared;
    let parts = RestoreParts { cache, clock, dma, store, figures, reads, damaged, gate };
    let mut restorer = Restorer::new(parts, desk, &settings.restore);
    let mut rests: u32 = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        if restorer.turn()? {
            rests = 0;
        } else {
            restorer.rest(if rests < RESTS { REST_US } else { LONG_REST_US });
            rests = rests.saturating_add(1);
        }
    }
    restorer.stop()
}
