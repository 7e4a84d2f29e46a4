//! A rack of real processes: the role of each, which of them live, and what each said.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::crash::{Armed, CrashPoint};
use cxl_shm::layout::LockProtocol;
use cxl_shm::lifecycle::NodeDeath;
use cxl_shm::verify::Mutant;
use rackline_workers::Process;
use rustix::process::Signal;

use super::bed::Bed;
use super::child::{ChildOptions, Order, Part};
use super::event::Event;
use super::evictions::Evictions;
use super::fence::ParentsWord;
use super::ground::{COUNTERS, Memory};
use super::ledger::{Count, Ledger};
use super::process::{self, Heard};
use super::roots::Roots;

/// How long a process may get nothing done before something is wedged. Far more than any wait
/// takes on a busy machine: it ends a hang, and measures nothing.
const NO_PROGRESS_MS: u64 = 90_000;
/// The same where a rule is broken, and a rack that is wedged is what is hoped for.
const NO_PROGRESS_WITH_MUTANT_MS: u64 = 20_000;
const SIGKILL: i32 = 9;

/// What a rack is made of.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Processes that use the pool.
    pub workers: u32,
    /// Processes that may grant locks: none for locks without a manager.
    pub managers: u32,
    /// What stands for the memory.
    pub memory: Memory,
    /// How locks between hosts work.
    pub locks: LockProtocol,
    /// What the workers want follows from it.
    pub seed: u64,
    /// Whether lock managers declare hosts dead, and recover them.
    pub declare: bool,
    /// Whether chunks run out.
    pub scarce: bool,
    /// Whether processes are stopped for some time, and continue.
    pub stops: bool,
    /// The rule that the protocols do not keep, to show that it is noticed.
    pub mutant: Option<Mutant>,
}

impl Plan {
    /// Nodes of the region.
    fn nodes(&self) -> u32 {
        if self.memory.is_private() {
            self.workers + self.managers
        } else {
            self.workers.div_ceil(2).max(2)
        }
    }
}

/// What happened in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Figures {
    /// Processes that were killed, or killed themselves at a crash point.
    pub kills: u64,
    /// Of these, how many at a crash point.
    pub kills_at_points: u64,
    /// Times that a process was stopped for a while.
    pub stops: u64,
    /// Processes that were started in the place of a killed one.
    pub restarts: u64,
    /// Locks between hosts that workers held, those of the chunk table included.
    pub locks: u64,
    /// Increments of the counters.
    pub counts: u64,
    /// Half-done increments that the next holder completed.
    pub repairs: u64,
    /// Terms of lock managers after the first.
    pub takeovers: u64,
    /// Chunks taken and given back.
    pub chunks: u64,
    /// Blocks published.
    pub blocks_published: u64,
    /// Blocks that made room for others, and were missed.
    pub evicted: u64,
    /// Blocks held over some time.
    pub held: u64,
    /// Times that everybody rested, and all that was in the pool was compared with what they said.
    pub rests: u64,
    /// Blocks, roots and chunks read, whole and right.
    pub verified: u64,
    /// Objects allocated.
    pub objects: u64,
    /// Objects freed, and of these how many by another worker than the one that allocated them.
    pub frees: u64,
    /// See there.
    pub foreign_frees: u64,
    /// Named roots put.
    pub roots_named: u64,
    /// Named roots destroyed.
    pub roots_destroyed: u64,
    /// Hosts that were declared dead.
    pub declared_dead: u64,
    /// Dead hosts that another host recovered.
    pub recovered: u64,
    /// Processes that found their host declared dead, and ended.
    pub fenced: u64,
    /// Bytes that the audit accounted for.
    pub audited_bytes: u64,
}

/// A place in the rack that one process after the other takes.
#[derive(Debug)]
pub(super) struct Player {
    pub(super) part: Part,
    pub(super) node: u16,
    index: u32,
    pub(super) ledger: Ledger,
    process: Option<Process>,
    /// We killed it.
    killed: bool,
    /// It said that it ends in order.
    stopped: bool,
    /// It found its host declared dead.
    fenced: bool,
    lives: u64,
    /// Number of its life among those of all processes.
    life: u64,
    progress_at_ms: u64,
    /// What it said last.
    said: Option<Event>,
    /// What it was told last, and whether it has said that it does so.
    pub(super) order: Order,
    pub(super) obeys: bool,
    /// How often its last life visited crash points, if it ended in order.
    visits: Vec<(String, u64)>,
}

impl Player {
    /// Number among the players of its part.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn lives(&self) -> bool {
        self.process.is_some()
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.stopped
    }
}

/// A rack of real processes.
#[derive(Debug)]
pub struct Rack {
    // First: its processes end before its files go.
    pub(super) players: Vec<Player>,
    pub(super) bed: Bed,
    pub(super) counts: Vec<Count>,
    pub(super) roots: Roots,
    /// Of each node.
    pub(super) evictions: Vec<Evictions>,
    /// So far; complete after the audit.
    pub figures: Figures,
    /// Lives of all processes so far.
    pub(super) lives: u64,
    pub(super) plan: Plan,
    program: PathBuf,
    clock: SystemClock,
    sender: Sender<(usize, Heard)>,
    heard: Receiver<(usize, Heard)>,
    newest_term: u64,
    interrupted: Arc<AtomicBool>,
}

impl Rack {
    /// A rack of which no process runs yet. `program` is `prove`; `number` tells the racks of this
    /// process apart; what waits for its processes ends with an error when it was `interrupted`.
    ///
    /// # Errors
    /// When its files cannot be made.
    pub fn new(
        plan: Plan,
        program: &Path,
        number: u64,
        interrupted: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let nodes = plan.nodes();
        let node = |place: u32| u16::try_from(place % nodes).unwrap_or(0);
        let player = |part, index, place| Player {
            part,
            node: node(place),
            index,
            ledger: Ledger::default(),
            process: None,
            killed: false,
            stopped: false,
            fenced: false,
            lives: 0,
            life: 0,
            progress_at_ms: 0,
            said: None,
            order: Order::Work,
            obeys: false,
            visits: Vec::new(),
        };
        // On private memory managers live on nodes of their own.
        let first = if plan.memory.is_private() { plan.workers } else { 0 };
        let managers = (0..plan.managers).map(|i| player(Part::Manager, i, first + i));
        let workers = (0..plan.workers).map(|i| player(Part::Worker, i, i));
        let (sender, heard) = channel();
        Ok(Self {
            players: managers.chain(workers).collect(),
            bed: Bed::make(u16::try_from(nodes)?, plan.locks, number, plan.scarce)?,
            counts: (0..COUNTERS).map(|_| Count::default()).collect(),
            roots: Roots::default(),
            evictions: vec![Evictions::default(); nodes as usize],
            figures: Figures::default(),
            lives: 0,
            plan,
            program: program.to_owned(),
            clock: SystemClock::start(),
            sender,
            heard,
            newest_term: 0,
            interrupted: Arc::clone(interrupted),
        })
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// The players of a part.
    pub(super) fn of(&self, part: Part) -> impl Iterator<Item = usize> + use<> {
        let places = self.players.iter().enumerate().filter(|(_, player)| player.part == part);
        places.map(|(place, _)| place).collect::<Vec<_>>().into_iter()
    }

    /// Starts the next life of a player: with `rounds` of everything, or until it is told to stop.
    pub(super) fn start(
        &mut self,
        place: usize,
        armed: Option<Armed>,
        rounds: Option<u32>,
    ) -> Result<()> {
        self.lives += 1;
        let now_ms = self.now_ms();
        let Self { players, bed, plan, program, sender, lives, roots, .. } = self;
        let player = &mut players[place];
        if plan.memory.is_private()
            && player.lives > 0
            && let Some(tier) = bed.own_tier(player.node)
        {
            // The host lost its power, and its DRAM with it.
            match std::fs::remove_file(&tier) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).context("the tier of a dead host stays");
                }
                Ok(()) | Err(_) => {}
            }
        }
        let list = |numbers: &std::collections::BTreeSet<u64>| numbers.iter().copied().collect();
        let options = ChildOptions {
            part: player.part,
            folder: bed.folder.clone(),
            node: player.node,
            memory: plan.memory,
            life: *lives,
            seed: plan.seed ^ (place as u64) << 32,
            declare: plan.declare,
            mutant: plan.mutant,
            index: player.index,
            workers: plan.workers,
            next_block: player.ledger.next_block,
            blocks: list(&player.ledger.blocks),
            doubtful_blocks: list(&player.ledger.doubtful_blocks),
            next_root: roots.next_number(player.index),
            roots: roots.own(player.index, true),
            doubtful_roots: roots.own(player.index, false),
            rounds,
        };
        let arguments = options.arguments();
        player.process = Some(process::start(program, &arguments, armed, place, sender)?);
        player.lives += 1;
        player.life = *lives;
        (player.killed, player.stopped, player.fenced) = (false, false, false);
        player.progress_at_ms = now_ms;
        (player.order, player.obeys) = (Order::Work, false);
        player.visits.clear();
        self.figures.restarts += u64::from(player.lives > 1);
        Ok(())
    }

    /// Kills a player's process.
    pub(super) fn kill(&mut self, place: usize) {
        let player = &mut self.players[place];
        if let Some(process) = &mut player.process {
            player.killed = true;
            process.kill();
        }
    }

    /// Kills all processes of a host. Its places in the rack are returned.
    pub(super) fn kill_host(&mut self, node: u16) -> Vec<usize> {
        let of_host = |place: &usize| self.players[*place].node == node;
        let places: Vec<usize> = (0..self.players.len()).filter(of_host).collect();
        places.iter().for_each(|place| self.kill(*place));
        places
    }

    /// Stops a player's process as long as it is not told to continue.
    pub(super) fn pause(&mut self, place: usize, paused: bool) -> Result<()> {
        match &self.players[place].process {
            Some(process) => process.signal(if paused { Signal::STOP } else { Signal::CONT }),
            None => Ok(()),
        }
    }

    /// What a player visited in its last life, if that ended in order.
    pub(super) fn visited_by(&self, place: usize) -> Vec<CrashPoint> {
        let visits = self.players[place].visits.iter();
        visits.filter_map(|(name, _)| CrashPoint::from_name(name)).collect()
    }

    /// Whether a player had more than one life.
    pub(super) fn has_died(&self, place: usize) -> bool {
        self.players[place].lives > 1
    }

    /// How the present or last life of a host stands, when it was declared dead.
    pub(super) fn death_of(&self, node: u16) -> Option<NodeDeath> {
        let node = self.bed.layout.node(node)?;
        NodeDeath::of(&self.bed.layout, self.bed.region.fabric(), node)
    }

    /// Tells a player what to do.
    pub(super) fn order(&mut self, place: usize, order: Order) {
        let player = &mut self.players[place];
        if let Some(process) = &mut player.process
            && player.order != order
        {
            (player.order, player.obeys) = (order, false);
            // It may have died, which is heard of elsewhere.
            let _ = process.write(&[order.byte()]);
        }
    }

    /// Tells a player to end in order.
    pub(super) fn tell_to_stop(&mut self, place: usize) {
        if let Some(process) = &mut self.players[place].process {
            process.close_input();
        }
    }

    /// Takes note of what is said within `wait_ms`. Returns the players that died meanwhile.
    ///
    /// # Errors
    /// What must never be.
    pub(super) fn listen(&mut self, wait_ms: u64) -> Result<Vec<usize>> {
        let until_ms = self.now_ms() + wait_ms;
        let mut dead = Vec::new();
        loop {
            let left = Duration::from_millis(until_ms.saturating_sub(self.now_ms()));
            match self.heard.recv_timeout(left) {
                Ok((place, Heard::Event(event))) => self.note(place, event)?,
                Ok((place, Heard::End)) => {
                    if self.end_of(place)? {
                        dead.push(place);
                    }
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => bail!("nobody can say anything any more"),
            }
            if self.now_ms() >= until_ms {
                break;
            }
        }
        if self.interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        self.check_progress()?;
        Ok(dead)
    }

    fn check_progress(&self) -> Result<()> {
        let now_ms = self.now_ms();
        let no_progress_ms =
            if self.plan.mutant.is_some() { NO_PROGRESS_WITH_MUTANT_MS } else { NO_PROGRESS_MS };
        let wedged = |player: &&Player| {
            player.lives()
                && player.part == Part::Worker
                && now_ms.saturating_sub(player.progress_at_ms) > no_progress_ms
        };
        match self.players.iter().find(wedged) {
            Some(player) => bail!(
                "wedged: worker {} on node {} got nothing done for {no_progress_ms} ms: it was told \
                 to {:?} and said {:?} last; up: {}; the last death of its host: {:?}",
                player.index,
                player.node,
                player.order,
                player.said,
                player.ledger.is_up(),
                self.death_of(player.node)
            ),
            None => Ok(()),
        }
    }

    fn note(&mut self, place: usize, event: Event) -> Result<()> {
        let now_ms = self.now_ms();
        let player = &mut self.players[place];
        let name = format!("{:?} {} on node {}", player.part, player.index, player.node);
        if event.is_progress() {
            player.progress_at_ms = now_ms;
        }
        player.ledger.note(&event).map_err(|what| anyhow::anyhow!("{name}: {what}"))?;
        player.said = Some(event.clone());
        self.roots.note(player.index, &event);
        match event {
            Event::Counted(counter, value) => {
                let count = &mut self.counts[counter as usize];
                count.counted(value).map_err(|what| anyhow::anyhow!("{name}: {what}"))?;
            }
            Event::Repaired(..) => self.figures.repairs += 1,
            Event::Evicted(blocks) => self.evictions[usize::from(player.node)].count(blocks),
            Event::Missing(_) => self.evictions[usize::from(player.node)].miss(),
            Event::Held => self.figures.held += 1,
            Event::Rests => player.obeys = player.order == Order::Rest,
            Event::Looked => player.obeys = player.order == Order::Census,
            Event::Serving(term) => {
                self.figures.takeovers += u64::from(self.newest_term != 0);
                self.newest_term = self.newest_term.max(term);
            }
            Event::DeclaredDead(_) => self.figures.declared_dead += 1,
            Event::Recovered(_) => self.figures.recovered += 1,
            Event::Allocated => self.figures.objects += 1,
            Event::Freed { foreign } => {
                self.figures.frees += 1;
                self.figures.foreign_frees += u64::from(foreign);
            }
            Event::Fenced => {
                player.fenced = true;
                self.figures.fenced += 1;
            }
            Event::Visited(point, count) => player.visits.push((point, count)),
            Event::Stopped => player.stopped = true,
            Event::Fault(what) => bail!("{name}: {what}"),
            _ => {}
        }
        Ok(())
    }

    /// The process of a player has ended; whether it was killed, or its host declared dead.
    fn end_of(&mut self, place: usize) -> Result<bool> {
        let player = &mut self.players[place];
        let name = format!("{:?} {} on node {}", player.part, player.index, player.node);
        let mut process = player.process.take().context("a process that ended had been started")?;
        let status = process.wait()?;
        if self.plan.memory.is_private() {
            ParentsWord::in_folder(&self.bed.folder).say_gone(player.node, player.life)?;
        }
        let in_order = player.stopped && status.success();
        if in_order && !player.fenced {
            return Ok(false);
        }
        if !in_order && status.signal() != Some(SIGKILL) {
            bail!("{name} ended by itself ({status})");
        }
        player.stopped = false;
        if let Some(blocks) = player.ledger.died_publishing() {
            self.evictions[usize::from(player.node)].died_publishing(blocks);
        }
        if let Some(counter) = player.ledger.end_of_life() {
            self.counts[counter as usize].died_counting();
        }
        if !in_order {
            self.figures.kills += 1;
            self.figures.kills_at_points += u64::from(!player.killed);
        }
        Ok(true)
    }

    /// Ends every player in order, workers first, with those that are dead started again.
    ///
    /// # Errors
    /// What must never be.
    pub(super) fn stop(&mut self) -> Result<()> {
        for part in [Part::Worker, Part::Manager] {
            for manager in self.of(Part::Manager) {
                if part == Part::Worker && !self.players[manager].lives() {
                    self.start(manager, None, None)?;
                }
            }
            for place in self.of(part) {
                let player = &self.players[place];
                // One that ended in order while others continued has nothing to look after.
                if !player.lives() && !player.stopped {
                    self.start(place, None, None)?;
                }
                self.tell_to_stop(place);
            }
            while self.of(part).any(|place| self.players[place].lives()) {
                for place in self.listen(20)? {
                    // Its last life had been armed.
                    self.start(place, None, None)?;
                    if self.players[place].part == part {
                        self.tell_to_stop(place);
                    }
                }
            }
        }
        for player in &self.players {
            let ledger = &player.ledger;
            if ledger.has_chunks() {
                bail!("worker {} ended and has chunks", player.index);
            }
            self.figures.locks += ledger.locks_taken;
            self.figures.chunks += ledger.chunks_moved;
            self.figures.blocks_published += ledger.blocks_published;
            self.figures.verified += ledger.verified;
        }
        (self.figures.roots_named, self.figures.roots_destroyed) = self.roots.count();
        self.figures.counts = self.counts.iter().map(Count::counts).sum();
        Ok(())
    }
}
