//! The processes of a run: which of them live, and what each said.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cxl_shm::clock::{Clock as _, SystemClock};
use cxl_shm::crash::{ARM_VARIABLE, Armed};
use kv_cache::tier::Found;
use rackline::NodeId;
use rackline_workers::Process;

use super::bed::{Bed, Folders};
use super::child::{ChildOptions, Part};
use super::event::{Event, Order, hear};
use super::ground::{A, B, BLOCKS, HOSTS};
use super::shadow::Shadow;

/// How long a process may get nothing done before something is wedged. Far more than any wait takes
/// on a busy machine: it ends a hang, and measures nothing.
pub(super) const NO_PROGRESS_MS: u64 = 90_000;
/// Blocks that are looked for on drives at once.
const LOOK_AT: u32 = 256;
const SIGKILL: i32 = 9;

/// What happened in a run.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Figures {
    /// Agents that were killed, or killed themselves at a crash point.
    pub agents_killed: u64,
    /// The same of engines.
    pub engines_killed: u64,
    /// Of both, how many at a crash point.
    pub kills_at_points: u64,
    /// Faults of drives.
    pub troubles: u64,
    /// Blocks that engines read, and compared byte by byte.
    pub read: u64,
    /// Of these, blocks that came back from drives.
    pub restored: u64,
    /// Blocks that engines published.
    pub published: u64,
    /// Why blocks on drives were misses, and how often.
    pub missed: BTreeMap<String, u64>,
    /// Blocks that the drives of the first host acknowledged.
    pub acknowledged: u64,
    /// Roll calls: all acknowledged blocks were found.
    pub rolls: u64,
    /// Acknowledged blocks that a roll call restored and compared.
    pub verified: u64,
}

/// A place in the rack that one process after the other takes.
#[derive(Debug)]
pub(super) struct Player {
    pub(super) part: Part,
    pub(super) host: u16,
    process: Option<Process>,
    /// Tells its lives apart.
    life: u64,
    armed: bool,
    is_ready: bool,
    has_stopped: bool,
    heard_ms: u64,
}

impl Player {
    pub(super) fn lives(&self) -> bool {
        self.process.is_some()
    }

    /// Of an agent: all its blocks are announced.
    pub(super) fn is_ready(&self) -> bool {
        self.lives() && self.is_ready
    }
}

/// What comes from a child: `None` at its end.
type Heard = (usize, u64, Option<Event>);

pub(super) struct Rack {
    pub(super) players: Vec<Player>,
    pub(super) bed: Bed,
    pub(super) shadow: Shadow,
    pub(super) figures: Figures,
    pub(super) folders: Folders,
    program: PathBuf,
    seed: u64,
    lying: bool,
    lives: u64,
    /// Where the look at drives goes on.
    next_look: u32,
    clock: SystemClock,
    sender: Sender<Heard>,
    heard: Receiver<Heard>,
    interrupted: Arc<AtomicBool>,
}

impl Rack {
    /// A rack of an agent and some engines a host, of which none lives yet.
    pub(super) fn new(
        (engines, seed, lying): (u32, u64, bool),
        program: &Path,
        interrupted: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let player = |part, host| Player {
            part,
            host,
            process: None,
            life: 0,
            armed: false,
            is_ready: false,
            has_stopped: false,
            heard_ms: 0,
        };
        let agents = [A, B].map(|host| player(Part::Agent, host));
        let engines = (0..engines).zip([A, B].into_iter().cycle());
        let engines = engines.map(|(_, host)| player(Part::Engine, host));
        let (sender, heard) = channel();
        Ok(Self {
            players: agents.into_iter().chain(engines).collect(),
            bed: Bed::make()?,
            shadow: Shadow::default(),
            figures: Figures::default(),
            folders: Folders::make()?,
            program: program.to_owned(),
            seed,
            lying,
            lives: 0,
            next_look: 0,
            clock: SystemClock::start(),
            sender,
            heard,
            interrupted: Arc::clone(interrupted),
        })
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Where the agent of `host` is among the players.
    pub(super) fn agent_of(host: u16) -> usize {
        usize::from(host)
    }

    /// The places of all engines.
    pub(super) fn engines(&self) -> std::ops::Range<usize> {
        usize::from(HOSTS)..self.players.len()
    }

    /// Starts the next process of a place, if none lives there.
    pub(super) fn start(&mut self, place: usize, armed: Option<Armed>) -> Result<()> {
        if self.players[place].lives() {
            return Ok(());
        }
        self.lives += 1;
        let (life, player) = (self.lives, &self.players[place]);
        let options = ChildOptions {
            part: player.part,
            region: self.bed.region.path().to_owned(),
            folder: self.folders.path().to_owned(),
            host: player.host,
            seed: self.seed ^ life << 20,
            lying: self.lying && player.part == Part::Agent && player.host == A,
        };
        let mut command = Command::new(&self.program);
        command.args(options.arguments()).env_remove(ARM_VARIABLE);
        if let Some(Armed { point, nth }) = armed {
            command.env(ARM_VARIABLE, format!("{}:{nth}", point.name()));
        }
        let sender = self.sender.clone();
        let tell = move |line: Option<std::io::Result<String>>| {
            let event = line.map(|line| {
                let event = line.map_err(anyhow::Error::from).and_then(|line| hear(&line));
                event.unwrap_or_else(|error| Event::Fault(format!("{error:#}")))
            });
            // Nobody listens when the run is over.
            sender.send((place, life, event)).is_ok()
        };
        let name = format!("child of player {place}");
        let process = Process::start_with_pipes(&mut command, name, 0, tell)?;
        let heard_ms = self.now_ms();
        let player = &mut self.players[place];
        *player = Player {
            process: Some(process),
            life,
            armed: armed.is_some(),
            is_ready: false,
            has_stopped: false,
            heard_ms,
            ..*player
        };
        Ok(())
    }

    /// Kills the process of a place.
    pub(super) fn kill(&mut self, place: usize) {
        if let Some(process) = &mut self.players[place].process {
            process.kill();
            self.players[place].armed = false;
        }
    }

    /// Tells an agent something, if it lives.
    pub(super) fn order(&mut self, place: usize, order: Order) -> Result<()> {
        let mut line = serde_json::to_vec(&order)?;
        line.push(b'\n');
        if let Some(process) = &mut self.players[place].process {
            // One that died meanwhile has no use for it.
            let _ = process.write(&line);
        }
        Ok(())
    }

    /// Hears what the children say for `ms` milliseconds at most, and looks at some drives. Returns
    /// the places whose process died.
    pub(super) fn listen(&mut self, ms: u64) -> Result<Vec<usize>> {
        if self.interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        let mut dead = Vec::new();
        let mut next = match self.heard.recv_timeout(Duration::from_millis(ms)) {
            Ok(heard) => Some(heard),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => bail!("the parent's own channel has ended"),
        };
        while let Some((place, life, event)) = next {
            if self.players[place].life == life {
                match event {
                    Some(event) => self.note(place, event)?,
                    None => dead.extend(self.ended(place)?),
                }
            }
            next = self.heard.try_recv().ok();
        }
        self.look_at_drives();
        self.check_progress()?;
        Ok(dead)
    }

    fn note(&mut self, place: usize, event: Event) -> Result<()> {
        let now_ms = self.now_ms();
        let player = &mut self.players[place];
        player.heard_ms = now_ms;
        match event {
            Event::Up => {}
            Event::Ready => player.is_ready = true,
            Event::Stopped => player.has_stopped = true,
            Event::Missed(why) => *self.figures.missed.entry(why).or_default() += 1,
            Event::Served { read, restored, published } => {
                self.figures.read += read;
                self.figures.restored += restored;
                self.figures.published += published;
            }
            Event::Fault(what) => bail!("{:?} of host {}: {what}", player.part, player.host),
        }
        Ok(())
    }

    /// A process has ended. The place, if it was killed.
    fn ended(&mut self, place: usize) -> Result<Option<usize>> {
        let player = &mut self.players[place];
        let mut process = player.process.take().context("a process ends once")?;
        let status = process.wait()?;
        if player.has_stopped && status.success() {
            return Ok(None);
        }
        if status.signal() != Some(SIGKILL) {
            bail!("{:?} of host {} ended by itself: {status}", player.part, player.host);
        }
        self.figures.kills_at_points += u64::from(player.armed);
        match player.part {
            Part::Agent => self.figures.agents_killed += 1,
            Part::Engine => self.figures.engines_killed += 1,
        }
        Ok(Some(place))
    }

    /// Notes which blocks are on drives of A, for some blocks each time.
    fn look_at_drives(&mut self) {
        for number in (self.next_look..).take(LOOK_AT as usize).map(|it| it % BLOCKS) {
            if let Some(Found::OnDrive { node: NodeId(A), .. }) = self.bed.find(A, number) {
                self.shadow.acknowledge(number);
            }
        }
        self.next_look = (self.next_look + LOOK_AT) % BLOCKS;
        self.figures.acknowledged = self.shadow.len() as u64;
    }

    fn check_progress(&self) -> Result<()> {
        let now_ms = self.now_ms();
        for player in self.players.iter().filter(|it| it.lives() && !it.is_ready) {
            if now_ms > player.heard_ms + NO_PROGRESS_MS {
                bail!("{:?} of host {} is wedged", player.part, player.host);
            }
        }
        Ok(())
    }

    /// Waits until `reached`. Those who die meanwhile live again.
    pub(super) fn wait_until(
        &mut self,
        what: &str,
        mut reached: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let until_ms = self.now_ms() + NO_PROGRESS_MS;
        while !reached(self)? {
            if self.now_ms() > until_ms {
                bail!("it never got there: {what}");
            }
            for place in self.listen(5)? {
                self.start(place, None)?;
            }
        }
        Ok(())
    }

    /// Ends the processes of these places in order.
    pub(super) fn end(&mut self, places: impl Iterator<Item = usize> + Clone) -> Result<()> {
        for place in places.clone() {
            // One that is dead leaves nothing to tell.
            if let Some(process) = &mut self.players[place].process {
                process.close_input();
            }
        }
        let until_ms = self.now_ms() + NO_PROGRESS_MS;
        while let Some(place) = places.clone().find(|place| self.players[*place].lives()) {
            self.listen(5)?;
            if self.now_ms() > until_ms {
                let Player { part, host, .. } = self.players[place];
                bail!("{part:?} of host {host} does not end");
            }
        }
        Ok(())
    }
}
