//! A host with engines, a queue of restores and a drive, made up from a seed.

use std::collections::BTreeMap;

use cxl_shm::host::HolderToken;
use kv_cache::tier::{ForwardSeen, ForwardShape};

use crate::restore::{Next as NextRead, Queued, RestoreQueue, Speed};
use crate::schedule::{Engines, Event, Next, Scheduler, Shape, SlackTable, Waiting};
use crate::settings::ScheduleSettings;

/// What a drive is believed to do before it was measured, and what the drive of the model does.
pub(super) const BYTES_PER_S: u64 = 1 << 30;
pub(super) const LATENCY_US: u64 = 1_000;
/// The longest step of the clock.
pub(super) const STEP_US: u64 = 900;
pub(super) const BLOCK_MAX: u64 = 4 << 20;
/// How long new requests come.
const LOAD_US: u64 = 300_000;
/// How long everything has to be written then.
const DRAIN_US: u64 = 2_000_000;
const BACKLOG_BYTES: u64 = 24 << 20;
const READ_DEPTH: usize = 3;
/// Shapes of forwards: tokens, and how long they take.
const SHAPES: [(u64, u64); 3] = [(8, 4_000), (500, 15_000), (4_000, 45_000)];

/// What a schedule is run with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rig {
    pub(super) settings: ScheduleSettings,
}

/// What happened, in order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Log {
    /// A request asks for a block.
    ReadQueued {
        at_us: u64,
        request: u64,
    },
    ReadEnded {
        at_us: u64,
        request: u64,
    },
    /// What the agent sees of an engine: until when its forward leaves the drives alone.
    EngineBegins {
        at_us: u64,
        row: usize,
        until_us: u64,
    },
    EngineEnds {
        at_us: u64,
        row: usize,
    },
    EngineGone {
        row: usize,
    },
    WriteQueued {
        at_us: u64,
        write: u64,
        request: u64,
        bytes: u64,
    },
    Scheduler(Event),
    /// The end: so many wait that never began.
    Over {
        waiting: usize,
    },
}

/// Numbers that a seed decides.
#[derive(Debug)]
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).expect("an index of a short list")
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// An engine of the model.
#[derive(Debug)]
struct Engine {
    number: u64,
    shape: usize,
    /// When the forward that runs ends, or the next one begins.
    next_us: u64,
    runs: bool,
    /// What the agent saw last: the number of a forward, and whether it ran.
    seen: Option<(u64, bool)>,
    took_us: u64,
}

#[derive(Debug)]
struct Host {
    chance: Chance,
    now_us: u64,
    looked_us: u64,
    engines: BTreeMap<usize, Engine>,
    table: SlackTable,
    watch: Engines,
    reads: RestoreQueue<u64>,
    reading: Vec<(u64, u64, u64)>,
    read_count: usize,
    scheduler: Scheduler,
    speed: Speed,
    /// By depth and number: request and block.
    waiting: BTreeMap<(u64, u64), Waiting>,
    waiting_bytes: u64,
    writing: Vec<(u64, u64)>,
    drive_free_us: u64,
    writes: u64,
    requests: u64,
    log: Vec<Log>,
}

pub(super) fn simulate(seed: u64) -> (Rig, Vec<Log>) {
    let mut chance = Chance(seed);
    let settings = ScheduleSettings {
        depth: 1 + chance.index(6),
        idle_us: [1_000, 4_000, 10_000][chance.index(3)],
        write_wait_us: [20_000, 60_000, 150_000][chance.index(3)],
    };
    let (engines, load) = (chance.index(4), 1 + chance.below(40));
    let mut host = Host::new(chance, engines, settings);
    while host.now_us < LOAD_US {
        if host.chance.one_in(load) {
            host.request();
        }
        host.step();
    }
    while host.now_us < LOAD_US + DRAIN_US && !host.waiting.is_empty() {
        host.step();
    }
    let waiting = host.waiting.len();
    host.log.push(Log::Over { waiting });
    (Rig { settings }, host.log)
}

impl Host {
    fn new(mut chance: Chance, engines: usize, settings: ScheduleSettings) -> Self {
        let mut table = SlackTable::default();
        for (tokens, took_us) in SHAPES {
            let shape = Shape { model: 1, forward: ForwardShape::new(tokens, 0) };
            (0..20).for_each(|_| table.learn(shape, took_us));
        }
        let engine = |row| {
            let next_us = chance.below(50_000);
            (row, Engine { number: 0, shape: 0, next_us, runs: false, seen: None, took_us: 0 })
        };
        Self {
            engines: (0..engines).map(engine).collect(),
            chance,
            now_us: 0,
            looked_us: 0,
            table,
            watch: Engines::default(),
            reads: RestoreQueue::new(READ_DEPTH, 1000),
            reading: Vec::new(),
            read_count: 0,
            scheduler: Scheduler::new(settings),
            speed: Speed::default(),
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            writing: Vec::new(),
            drive_free_us: 0,
            writes: 0,
            requests: 0,
            log: Vec::new(),
        }
    }

    /// Reads of a request, and writes of what it computes.
    fn request(&mut self) {
        self.requests += 1;
        let (request, at_us) = (self.requests, self.now_us);
        for _ in 0..self.chance.below(4) {
            let deadline_us = at_us + 10_000_000;
            let read = Queued {
                restore: request,
                bytes: 1 << 16,
                deadline_us,
                recompute_us: None,
                ahead: false,
            };
            self.reads.offer(at_us, read).expect("the queue has room");
            self.read_count += 1;
            self.log.push(Log::ReadQueued { at_us, request });
        }
        for _ in 0..self.chance.below(6) {
            let bytes = [64 << 10, 512 << 10, 2 << 20, BLOCK_MAX][self.chance.index(4)];
            // As the backlog of an agent: what is beyond the bound is dropped.
            if self.waiting_bytes + bytes > BACKLOG_BYTES {
                continue;
            }
            self.writes += 1;
            let (write, depth) = (self.writes, self.chance.below(50));
            self.waiting.insert((depth, write), Waiting { write, bytes, since_us: at_us });
            self.waiting_bytes += bytes;
            self.log.push(Log::WriteQueued { at_us, write, request, bytes });
        }
    }

    fn step(&mut self) {
        self.now_us += 100 + self.chance.below(STEP_US - 100);
        self.move_engines();
        self.move_reads();
        let now_us = self.now_us;
        let ended: Vec<_> =
            self.writing.extract_if(.., |(ends_us, _)| *ends_us <= now_us).collect();
        ended.into_iter().for_each(|(_, write)| self.scheduler.ended(now_us, write));
        self.look();
        self.scheduler.reads(now_us, self.read_count, false);
        self.scheduler.phase(now_us, self.watch.phase(now_us, self.quiet_us()));
        self.begin_writes();
        let events = self.scheduler.take_events();
        self.log.extend(events.into_iter().map(Log::Scheduler));
    }

    fn quiet_us(&self) -> u64 {
        self.scheduler.settings().idle_us
    }

    fn begin_writes(&mut self) {
        while let Some(next) = self.next() {
            let Some(Waiting { write, bytes, .. }) =
                self.scheduler.next(self.now_us, &self.speed, next)
            else {
                return;
            };
            self.waiting.retain(|(_, other), _| *other != write);
            self.waiting_bytes -= bytes;
            self.drive_free_us =
                self.drive_free_us.max(self.now_us) + bytes * 1_000_000 / BYTES_PER_S;
            self.writing.push((self.drive_free_us + LATENCY_US / 2, write));
        }
    }

    fn next(&self) -> Option<Next> {
        let first = *self.waiting.first_key_value()?.1;
        let oldest = *self.waiting.values().min_by_key(|it| it.write)?;
        Some(Next { first, oldest })
    }

    fn move_reads(&mut self) {
        let now_us = self.now_us;
        let ended: Vec<_> =
            self.reading.extract_if(.., |(ends_us, ..)| *ends_us <= now_us).collect();
        for (_, number, request) in ended {
            self.reads.ended(now_us, number, false);
            self.read_count -= 1;
            self.log.push(Log::ReadEnded { at_us: now_us, request });
        }
        while let Some(next) = self.reads.next(now_us) {
            let NextRead::Begin(number, request) = next else { continue };
            let ends_us = now_us + 300 + self.chance.below(4_000);
            self.reading.push((ends_us, number, request));
        }
    }

    fn move_engines(&mut self) {
        let now_us = self.now_us;
        if self.chance.one_in(3_000)
            && let Some((row, _)) = self.engines.pop_first()
        {
            self.log.push(Log::EngineGone { row });
        }
        for engine in self.engines.values_mut() {
            if engine.next_us > now_us {
                continue;
            }
            engine.runs = !engine.runs;
            if !engine.runs {
                let gap_us = if self.chance.one_in(20) { 60_000 } else { 1_500 };
                engine.next_us = now_us + self.chance.below(gap_us);
                continue;
            }
            engine.number += 1;
            engine.shape = self.chance.index(SHAPES.len());
            let usual_us = SHAPES[engine.shape].1;
            engine.took_us = match self.chance.below(10) {
                0 => usual_us / 4,
                1 => usual_us * 2,
                _ => usual_us * (95 + self.chance.below(11)) / 100,
            };
            engine.next_us = now_us + engine.took_us;
        }
    }

    /// The agent looks at the words of the engines. These say that every forward took as long as
    /// usual, so that a check can tell the slack of each shape.
    fn look(&mut self) {
        let mut seen = Vec::new();
        for (row, engine) in &mut self.engines {
            let (tokens, took_us) = SHAPES[engine.shape];
            let forward = ForwardShape::new(tokens, 0);
            let took_us = u32::try_from(took_us).expect("a forward takes less than an hour");
            let last = if engine.runs { engine.number.saturating_sub(1) } else { engine.number };
            seen.push(ForwardSeen {
                row: *row,
                owner: HolderToken::from_word(*row as u64 + 1),
                model: 1,
                runs: engine.runs.then_some((engine.number, forward)),
                ended: (last > 0).then_some((last, forward, took_us)),
            });
            let (at_us, row) = (self.now_us, *row);
            let now = Some((engine.number, engine.runs));
            if now == engine.seen {
                continue;
            }
            engine.seen = now;
            if engine.runs {
                let until_us = self.looked_us + SHAPES[engine.shape].1;
                self.log.push(Log::EngineBegins { at_us, row, until_us });
            } else {
                self.log.push(Log::EngineEnds { at_us, row });
            }
        }
        self.watch.look(self.now_us, &seen, &mut self.table);
        self.looked_us = self.now_us;
    }
}
