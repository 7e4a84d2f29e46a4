//! Serving in virtual time: the scheduler and the pool's own policy, with what stages take computed.
//!
//! - **RACK-V1** Equal settings and workloads give equal figures, on every machine.
//! - **RACK-V2** A block can be found when all blocks of its write are written.
//! - **RACK-V3** A prompt is held from its lookup on until its decode worker has read it: none of its
//!   blocks that are there leaves in between.

mod death;
mod decode;
mod drives;
mod events;
mod kept;
mod network;
mod prefill;

use rackline_replay::{PoolShape, TierOptions};

use self::death::{Deaths, Worker};
use self::decode::Decoding;
use self::drives::Drives;
use self::events::{Event, Events};
use self::kept::Kept;
use self::network::Network;
use crate::links::Links;
use crate::profile::Profile;
use crate::rack::Rack;
use crate::scheduler::{Action, Scheduler};
use crate::served::{Served, Times};
use crate::system::System;
use crate::workload::Workload;

/// What the software takes besides, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Software {
    /// A lookup with its hold, whatever its length.
    pub lookup_ns: u64,
    /// For each block of the prompt.
    pub lookup_block_ns: u64,
    /// A message between a worker and the scheduler.
    pub message_ns: u64,
}

impl Software {
    /// What the software of this project took on a machine with two busy cores: a lookup with its hold,
    /// and a line of JSON through a pipe.
    pub const MEASURED: Self =
        Self { lookup_ns: 100_000, lookup_block_ns: 2_000, message_ns: 100_000 };
}

/// What is simulated.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The workers.
    pub rack: Rack,
    /// The pool. A cache of each host has its part of the room.
    pub pool: PoolShape,
    /// What computing takes.
    pub profile: Profile,
    /// The links of each host.
    pub links: Links,
    /// What is kept, and how KV moves.
    pub system: System,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// What the software takes.
    pub software: Software,
    /// The drives of all hosts together, which [`System::RacklineDrives`] needs (RACK-S7).
    pub drives: Option<TierOptions>,
    /// A node that is killed (RACK-S8). Some prefill and decode workers have to be left
    /// ([`Rack::survives`]).
    pub kill: Option<Kill>,
}

/// A node is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kill {
    /// The node.
    pub node: u16,
    /// When, after the first request, in nanoseconds.
    pub at_ns: u64,
}

/// What became of requests, and of drives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Simulated {
    /// Each request, by its number.
    pub served: Vec<Served>,
    /// Blocks that were written to drives.
    pub written_to_drives: u64,
}

/// Serves a workload.
#[must_use]
pub fn simulate(settings: &Settings, workload: &Workload) -> Simulated {
    let mut run = Run::new(settings, workload);
    while let Some((now_ns, event)) = run.events.next() {
        run.happens(now_ns, event);
    }
    Simulated { served: run.served, written_to_drives: run.drives.written_blocks() }
}

/// A run under way.
struct Run<'s> {
    settings: &'s Settings,
    workload: &'s Workload,
    scheduler: Scheduler,
    kept: Kept,
    drives: Drives,
    network: Network<'s>,
    deaths: Deaths,
    /// The prefill worker of each request.
    prefill: Vec<u16>,
    /// Of each decode worker.
    decoding: Vec<Decoding>,
    /// Blocks that are held for each request.
    held: Vec<Vec<u32>>,
    /// When the stage began that each request is in.
    since_ns: Vec<u64>,
    served: Vec<Served>,
    /// Stages of requests that began again behind their first token. No figure has them.
    untold: Times,
    events: Events,
}

impl<'s> Run<'s> {
    fn new(settings: &'s Settings, workload: &'s Workload) -> Self {
        let Settings { rack, profile, .. } = settings;
        let requests = &workload.requests;
        let mut events = Events::default();
        // Before what arrives at the same time, as with real workers.
        if let Some(Kill { node, at_ns }) = settings.kill {
            events.at(at_ns, Event::Killed { node });
        }
        // RACK-R1.
        for (number, request) in requests.iter().enumerate() {
            events.at(request.at_ns, Event::Arrives { request: number });
        }
        Self {
            settings,
            workload,
            scheduler: Scheduler::new(rack, &profile.decode, workload),
            kept: Kept::new(settings, workload.unique_blocks),
            drives: Drives::new(settings, workload),
            network: Network::new(&settings.links, rack.nodes()),
            deaths: Deaths::new(requests.len()),
            prefill: vec![0; requests.len()],
            decoding: (0..rack.decode()).map(|_| Decoding::default()).collect(),
            held: vec![Vec::new(); requests.len()],
            since_ns: requests.iter().map(|request| request.at_ns).collect(),
            served: workload.unserved(),
            untold: Times::default(),
            events,
        }
    }

    fn happens(&mut self, now_ns: u64, event: Event) {
        if self.is_of_the_dead(event) {
            return;
        }
        match event {
            Event::Killed { node } => self.killed(now_ns, node),
            Event::Arrives { request } => {
                let action = self.scheduler.arrive(request);
                self.carry_out(now_ns, action);
            }
            Event::PrefillBegins { worker, request } => {
                self.prefill_begins(now_ns, worker, request)
            }
            Event::LookedUp { worker, request } => self.looked_up(now_ns, worker, request),
            Event::Restored { worker, request } => self.restored(now_ns, worker, request),
            Event::Read { worker, request } => self.read(now_ns, worker, request),
            Event::Computed { worker, request } => self.computed(now_ns, worker, request),
            Event::Written { worker, request, blocks } => {
                self.written(now_ns, worker, request, blocks);
            }
            Event::DecodeBegins { worker, request } => self.decode_begins(now_ns, worker, request),
            Event::DecodeLookedUp { worker, request } => {
                self.decode_looked_up(now_ns, worker, request);
            }
            Event::DecodeRead { worker, request, found } => {
                self.decode_read(now_ns, worker, request, found);
            }
            Event::Iterated { worker } => self.iterated(now_ns, worker),
            Event::BacksUp { node } => self.backs_up(now_ns, node),
            Event::BackedUp { node } => self.backed_up(now_ns, node),
        }
    }

    /// Workers are told a message later.
    fn carry_out(&mut self, now_ns: u64, actions: impl IntoIterator<Item = Action>) {
        let at_ns = now_ns + self.settings.software.message_ns;
        for action in actions {
            let (event, request, worker) = match action {
                Action::Prefill { worker, request } => {
                    (Event::PrefillBegins { worker, request }, request, Worker::Prefill(worker))
                }
                Action::Decode { worker, request } => {
                    (Event::DecodeBegins { worker, request }, request, Worker::Decode(worker))
                }
            };
            self.deaths.is_at(request, worker);
            self.events.at(at_ns, event);
        }
    }

    /// How long the stage took that ends now. The next one begins.
    fn stage(&mut self, now_ns: u64, request: usize) -> u64 {
        let since_ns = std::mem::replace(&mut self.since_ns[request], now_ns);
        now_ns - since_ns
    }

    /// Where the stages up to the first token of a request are noted. The reader has had the first token of
    /// some requests that begin again: their stages stay as they were.
    fn times(&mut self, request: usize) -> &mut Times {
        let served = &mut self.served[request];
        if served.ttft_ns == 0 { &mut served.times } else { &mut self.untold }
    }

    /// How long a worker takes to look a prompt up. A store asks its server (RACK-S4).
    fn lookup_ns(&self, request: usize) -> u64 {
        let Settings { software, system, links, .. } = self.settings;
        let blocks = self.workload.requests[request].blocks.len() as u64;
        let asking_ns = if *system == System::Store { links.rpc_ns } else { 0 };
        software.lookup_ns + software.lookup_block_ns * blocks + asking_ns
    }

    /// Blocks of a store move between a node and their hosts (RACK-S4).
    fn move_store(&mut self, now_ns: u64, node: u16, blocks: &[u32], writes: bool) -> u64 {
        let mut of_host = vec![0; self.settings.rack.nodes().into()];
        for block in blocks {
            of_host[self.kept.home_of(*block)] += 1;
        }
        let mut end_ns = now_ns;
        for (host, count) in (0..).zip(of_host) {
            let host = self.deaths.heir_of(host, &self.settings.rack);
            let (from, to) = if writes { (node, host) } else { (host, node) };
            let bytes = self.bytes_of(count);
            end_ns = end_ns.max(self.network.send(now_ns, from, to, bytes));
        }
        end_ns
    }

    fn bytes_of(&self, blocks: usize) -> u64 {
        blocks as u64 * self.settings.block_bytes
    }

    /// Bytes of a prompt, with what is behind its last whole block.
    fn bytes_of_tokens(&self, tokens: u64) -> u64 {
        tokens * self.settings.block_bytes / self.workload.block_tokens
    }

    /// The node of a prefill worker, and which of the node's workers it is.
    fn place(&self, worker: u16) -> (u16, u16) {
        let rack = &self.settings.rack;
        (rack.prefill_node(worker), worker / rack.nodes())
    }

    /// The same of a decode worker.
    fn decode_place(&self, worker: u16) -> (u16, u16) {
        (self.settings.rack.decode_node(worker), 0)
    }
}
