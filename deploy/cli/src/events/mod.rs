//! `rackline events`: tells routers which blocks the pool has, in vLLM's wire format.
//!
//! ```text
//! engines   publish blocks, and records that describe them      (into the pool)
//! events    source   follows the logs, reads the records        (loads only)
//!           told     knows which blocks were told as stored
//!           sockets  PUB, and ROUTER for replays
//!           zmtp     ZeroMQ's protocol between them and routers
//! routers   subscribe
//! ```

mod kept;
mod record;
mod sockets;
mod source;
mod told;
mod wire;
mod zmtp;

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use cxl_shm::clock::{Clock, SystemClock};

use crate::rack::Interrupt;
use sockets::{Sockets, StateWanted};
use source::{Source, SourceError};
use told::Told;
use wire::{Batch, Event};

/// How often the logs are followed.
const POLL: Duration = Duration::from_millis(20);
/// After so long without an event an empty batch is sent: by its number a subscriber that starts sees
/// that it lacks the batches before.
const IDLE_MS: u64 = 1000;
/// How long to wait before a region that went away is opened again.
const REOPEN_MS: u64 = 1000;
/// Events in a batch.
const BATCH_EVENTS: usize = 1024;

/// Tell routers which blocks the pool has, as vLLM's KV events.
///
/// One process a rack is enough: it tells BlockStored and BlockRemoved for the blocks of all engines
/// that describe their blocks in the pool ("event_records" in the settings of vLLM's connector). The
/// command only reads the region, is no member, and may be started again at any time. The events
/// contain the tokens of prompts: bind the sockets to a network that may see them.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    /// Where subscribers connect (a ZMQ PUB socket), for example tcp://127.0.0.1:5557 or tcp://*:5557.
    #[arg(long, value_name = "ADDR")]
    zmq: String,

    /// Where subscribers ask for batches that they lack (a ZMQ ROUTER socket).
    #[arg(long, value_name = "ADDR")]
    replay: Option<String>,

    /// The topic of all messages.
    #[arg(long, value_name = "TEXT", default_value = "kv-events")]
    topic: String,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let interrupt = Interrupt::install()?;
    // Refused before any socket is open.
    let source = Source::open(&options.region)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the threads of the sockets")?;
    runtime.block_on(async {
        // In microseconds, so that no number of an earlier process is given again: a subscriber that
        // knew one sees that it lacks batches, and asks.
        let first = u64::try_from(since_epoch().as_micros()).unwrap_or(0);
        let replay = options.replay.as_deref();
        let sockets = Sockets::bind(&options.zmq, replay, &options.topic, first).await?;
        tracing::info!(
            events = %sockets.events,
            replays = %sockets.replays.map_or_else(|| "none".to_owned(), |at| at.to_string()),
            "subscribers may connect"
        );
        Publisher::new(options.region.clone(), source, sockets).publish(&interrupt).await;
        Ok(())
    })
}

/// Follows a region, and publishes what changes.
struct Publisher {
    region: PathBuf,
    /// `None` while there is no region.
    source: Option<Source>,
    sockets: Sockets,
    told: Told,
    clock: SystemClock,
    quiet_since_ms: u64,
}

impl Publisher {
    fn new(region: PathBuf, source: Source, sockets: Sockets) -> Self {
        let told = Told::default();
        let (clock, quiet_since_ms) = (SystemClock::start(), 0);
        Self { region, source: Some(source), sockets, told, clock, quiet_since_ms }
    }

    async fn publish(&mut self, interrupt: &Interrupt) {
        // Subscribers may know blocks of an earlier process.
        self.send(vec![Event::AllBlocksCleared]);
        let mut polls = tokio::time::interval(POLL);
        polls.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !interrupt.is_set() {
            tokio::select! {
                _ = polls.tick() => self.follow(),
                Some(wanted) = self.sockets.state_wanted() => self.tell_state(wanted),
            }
        }
    }

    /// Takes in what the logs say, and tells it.
    fn follow(&mut self) {
        let Some(source) = &mut self.source else {
            return self.open_again();
        };
        let events = match source.follow() {
            Ok(news) => self.told.take_in(&news, |key| source.has(key)),
            Err(error) => return self.give_up(&error),
        };
        if !events.is_empty() || self.quiet_ms() >= IDLE_MS {
            self.send(events);
        }
    }

    /// The region went away, and its blocks with it.
    fn give_up(&mut self, error: &SourceError) {
        tracing::warn!(region = %self.region.display(), "{error}; every block is told as gone");
        self.source = None;
        self.told = Told::default();
        self.send(vec![Event::AllBlocksCleared]);
    }

    fn open_again(&mut self) {
        if self.quiet_ms() < REOPEN_MS {
            return;
        }
        match Source::open(&self.region) {
            Ok(source) => {
                tracing::info!(region = %self.region.display(), "opened the region again");
                self.source = Some(source);
            }
            Err(error) => tracing::debug!("the region cannot be opened yet: {error}"),
        }
        self.send(Vec::new());
    }

    fn quiet_ms(&self) -> u64 {
        self.clock.now_ms() - self.quiet_since_ms
    }

    /// Sends events in batches; no events are an empty batch.
    fn send(&mut self, mut events: Vec<Event>) {
        self.quiet_since_ms = self.clock.now_ms();
        loop {
            let rest = events.split_off(events.len().min(BATCH_EVENTS));
            self.sockets.send(Batch { since_epoch_s: since_epoch_s(), events }.encode());
            if rest.is_empty() {
                return;
            }
            events = rest;
        }
    }

    /// Tells a subscriber the present state, that asked for batches which are not kept any more:
    /// everything is cleared, and then stored.
    fn tell_state(&self, wanted: StateWanted) {
        let mut events = vec![Event::AllBlocksCleared];
        events.extend(self.told.stored());
        let chunks = events.chunks(BATCH_EVENTS);
        let payloads = chunks.map(|events| {
            Batch { since_epoch_s: since_epoch_s(), events: events.to_vec() }.encode()
        });
        // The subscriber may have gone.
        let _ = wanted.send(self.sockets.numbered_to_the_last(payloads.collect()));
    }
}

fn since_epoch_s() -> f64 {
    since_epoch().as_secs_f64()
}

#[expect(clippy::disallowed_methods, reason = "subscribers are told the time of day")]
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
