//! An engine: a process that serves prompts through the pool, and checks every byte that it reads.

use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use cxl_shm::clock::SystemClock;
use cxl_shm::units::Extent;
use cxl_shm::verify::poison::poison;
use kv_cache::Wanted;
use rackline::{NewBlock, Pool, PublishOutcome, RestoreOptions, Session};
use rackline_workers::{tasks, tell};
use serde::{Deserialize, Serialize};

use super::blocks::{BLOCK_BYTES, content, hash, of_prompt, options};

/// How long a lookup waits for drives while the engine serves, and while it is asked what is there.
const SERVES_WAIT: Duration = Duration::from_millis(50);
const FIND_WAIT: Duration = Duration::from_secs(30);
/// How long an engine thinks after a prompt.
const THINKS_MS: u64 = 4;

/// What an engine is told. It serves until it is told something else.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Serve prompts, number `from` first, then those behind it. After `below - 1` comes 0.
    Serve { from: u32, below: u32 },
    /// Serve nothing, once all prompts were served, and say so.
    Rest,
    /// Read these prompts, and compute nothing.
    Find { prompts: Vec<u32> },
    /// Where the pool has the bytes of a prompt.
    Locate { prompt: u32 },
    /// Let the device fail at these places, as this process sees it, and read the prompt.
    Poison { prompt: u32, places: Vec<u64> },
}

/// What an engine says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", content = "of")]
pub(crate) enum Event {
    /// It is attached.
    Up,
    /// It has stored these blocks.
    Stored(Vec<u32>),
    /// It rests.
    Rests,
    /// The blocks that were read, all of them right.
    Found(Vec<u32>),
    /// The places of the payload, in bytes from the start of the region.
    Located(Vec<u64>),
    /// Whether memory can be poisoned here; the error when not.
    Poisoned(Option<String>),
    /// Something that must never be.
    Fault(String),
}

/// Serves until its standard input ends.
pub(crate) fn run(region: &Path, node: u16) {
    let pool = Pool::attach(region, node).unwrap();
    let session = pool.session(options()).unwrap();
    let (give, told) = channel();
    std::thread::spawn(move || tasks::<Task>().try_for_each(|task| give.send(task.unwrap())));
    tell(&Event::Up).unwrap();
    let engine = Engine { pool: &pool, session: &session, region };
    while let Ok(task) = told.recv() {
        engine.carry_out(task, &told);
    }
}

struct Engine<'e> {
    pool: &'e Pool,
    session: &'e Session<'e>,
    region: &'e Path,
}

impl Engine<'_> {
    fn carry_out(&self, task: Task, told: &Receiver<Task>) {
        let answer = match task {
            Task::Serve { from, below } => {
                if let Some(next) = self.serve_until_told(from, below, told) {
                    self.carry_out(next, told);
                }
                return;
            }
            Task::Rest => Event::Rests,
            Task::Find { prompts } => {
                Event::Found(prompts.iter().flat_map(|it| self.read(*it, FIND_WAIT)).collect())
            }
            Task::Locate { prompt } => Event::Located(self.locate(prompt)),
            Task::Poison { prompt, places } => Event::Poisoned(self.poison(prompt, &places)),
        };
        tell(&answer).unwrap();
    }

    /// Returns what it was told then, and nothing at the end of its input.
    fn serve_until_told(&self, from: u32, below: u32, told: &Receiver<Task>) -> Option<Task> {
        let (mut next, clock, mut prompts) = (from, SystemClock::start(), 0);
        let mut is_to_rest = false;
        loop {
            let found = self.read(next, SERVES_WAIT);
            prompts += 1;
            let stored = self.store(of_prompt(next).skip(found.len()).collect());
            if !stored.is_empty() {
                tell(&Event::Stored(stored)).unwrap();
            }
            next = (next + 1) % below;
            clock.sleep_ms(THINKS_MS);
            match told.try_recv() {
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return None,
                Ok(Task::Rest) => is_to_rest = true,
                Ok(task) => return Some(task),
            }
            if is_to_rest && prompts >= below {
                tell(&Event::Rests).unwrap();
                return told.recv().ok();
            }
        }
    }

    /// The first blocks of a prompt: those that the pool or a drive has. All of them are right.
    fn read(&self, prompt: u32, wait: Duration) -> Vec<u32> {
        let blocks: Vec<_> = of_prompt(prompt).collect();
        let hashes: Vec<_> = blocks.iter().map(|block| hash(*block)).collect();
        let report = self.session.lookup_and_restore(&hashes, RestoreOptions::new(wait)).unwrap();
        let held = report.into_held();
        let found = held.blocks();
        let mut bytes = vec![vec![0; BLOCK_BYTES]; found.len()];
        let places = bytes.iter_mut().map(|bytes| vec![bytes.as_mut_slice()]).collect();
        let valid = self.session.fetch(&found, places).unwrap().valid_blocks();
        self.session.release(held);
        for (block, bytes) in blocks.iter().zip(&bytes[..valid]) {
            if *bytes != content(*block) {
                tell(&Event::Fault(format!("block {block} was read with wrong bytes"))).unwrap();
            }
        }
        blocks[..valid].to_vec()
    }

    /// What an engine computed. Returns the blocks that are in the pool then.
    fn store(&self, blocks: Vec<u32>) -> Vec<u32> {
        let contents: Vec<_> = blocks.iter().map(|block| content(*block)).collect();
        let new = blocks.iter().zip(&contents).map(|(block, bytes)| NewBlock {
            hash: hash(*block),
            depth: block % super::blocks::PROMPT_BLOCKS,
            bytes: [bytes.as_slice()],
        });
        let report = self.session.publish(&new.collect::<Vec<_>>()).unwrap();
        let is_stored = |outcome: &PublishOutcome| {
            matches!(outcome, PublishOutcome::Published | PublishOutcome::AlreadyThere)
        };
        let outcomes = blocks.iter().zip(report.outcomes());
        outcomes.filter(|(_, outcome)| is_stored(outcome)).map(|(block, _)| *block).collect()
    }

    fn locate(&self, prompt: u32) -> Vec<u64> {
        let hashes: Vec<_> = of_prompt(prompt).map(hash).collect();
        let found = self.session.lookup(&hashes).unwrap();
        let wanted = found.blocks().iter().map(|block| Wanted {
            handle: block.handle,
            key: block.key,
            bytes: BLOCK_BYTES as u64,
        });
        let opened = self.pool.cache().open(&wanted.collect::<Vec<_>>());
        opened.iter().flatten().map(|ticket| ticket.payload().offset()).collect()
    }

    fn poison(&self, prompt: u32, places: &[u64]) -> Option<String> {
        for place in places {
            if let Err(error) = poison(self.region, Extent::new(*place, 64).unwrap()) {
                return Some(error.to_string());
            }
        }
        self.read(prompt, SERVES_WAIT);
        None
    }
}
