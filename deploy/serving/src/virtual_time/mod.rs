//! Serving in virtual time: the scheduler and the pool's own policy, with what stages take computed.
//!
//! - **RACK-V1** Equal settings and workloads give equal figures, on every machine.
//! - **RACK-V2** A block can be found when all blocks of its write are written.
//! - **RACK-V3** A prompt is held from its lookup on until its decode worker has read it: none of its
//!   blocks that are there leaves in between.

mod decode;
mod events;
mod network;
mod prefill;

use std::num::NonZeroU16;

use rackline_replay::{PoolModel, PoolShape};

use self::decode::Decoding;
use self::events::{Event, Events};
use self::network::Network;
use crate::links::Links;
use crate::profile::Profile;
use crate::rack::Rack;
use crate::scheduler::{Action, Scheduler};
use crate::served::Served;
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
}

impl Settings {
    /// A pool of each host (RACK-S3), or one for all.
    fn pools(&self, unique_blocks: u32) -> Vec<PoolModel> {
        if self.system != System::HostCache {
            return vec![PoolModel::new(self.pool, unique_blocks)];
        }
        let hosts = self.rack.prefill_nodes();
        let chunks = (self.pool.chunks / u32::from(hosts)).max(1);
        let shape = PoolShape { chunks, nodes: NonZeroU16::MIN, ..self.pool };
        (0..hosts).map(|_| PoolModel::new(shape, unique_blocks)).collect()
    }
}

/// Serves a workload. What became of each request, by its number.
#[must_use]
pub fn simulate(settings: &Settings, workload: &Workload) -> Vec<Served> {
    let mut run = Run::new(settings, workload);
    while let Some((now_ns, event)) = run.events.next() {
        run.happens(now_ns, event);
    }
    run.served
}

/// A run under way.
struct Run<'s> {
    settings: &'s Settings,
    workload: &'s Workload,
    scheduler: Scheduler,
    pools: Vec<PoolModel>,
    network: Network<'s>,
    /// The prefill worker of each request.
    prefill: Vec<u16>,
    /// Of each decode worker.
    decoding: Vec<Decoding>,
    /// Blocks that are held for each request.
    held: Vec<Vec<u32>>,
    /// When the stage began that each request is in.
    since_ns: Vec<u64>,
    served: Vec<Served>,
    events: Events,
}

impl<'s> Run<'s> {
    fn new(settings: &'s Settings, workload: &'s Workload) -> Self {
        let Settings { rack, profile, .. } = settings;
        let requests = &workload.requests;
        let mut events = Events::default();
        // RACK-R1.
        for (number, request) in requests.iter().enumerate() {
            events.at(request.at_ns, Event::Arrives { request: number });
        }
        let served = requests.iter().enumerate().map(|(number, request)| Served {
            request: number,
            arrived_ns: request.at_ns,
            prompt_tokens: request.prompt_tokens,
            output_tokens: request.output_tokens,
            blocks: request.blocks.len() as u64,
            ..Served::default()
        });
        Self {
            settings,
            workload,
            scheduler: Scheduler::new(rack, profile.decode.batch_max),
            pools: settings.pools(workload.unique_blocks),
            network: Network::new(&settings.links, rack.nodes(), settings.block_bytes),
            prefill: vec![0; requests.len()],
            decoding: (0..rack.decode()).map(|_| Decoding::default()).collect(),
            held: vec![Vec::new(); requests.len()],
            since_ns: requests.iter().map(|request| request.at_ns).collect(),
            served: served.collect(),
            events,
        }
    }

    fn happens(&mut self, now_ns: u64, event: Event) {
        match event {
            Event::Arrives { request } => {
                let action = self.scheduler.arrive(request);
                self.carry_out(now_ns, action);
            }
            Event::PrefillBegins { worker, request } => {
                self.prefill_begins(now_ns, worker, request)
            }
            Event::LookedUp { worker, request } => self.looked_up(now_ns, worker, request),
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
            Event::Ready { worker, request } => self.ready(now_ns, worker, request),
            Event::Iterated { worker } => self.iterated(now_ns, worker),
        }
    }

    /// Workers are told a message later.
    fn carry_out(&mut self, now_ns: u64, actions: impl IntoIterator<Item = Action>) {
        let at_ns = now_ns + self.settings.software.message_ns;
        for action in actions {
            let event = match action {
                Action::Prefill { worker, request } => Event::PrefillBegins { worker, request },
                Action::Decode { worker, request } => Event::DecodeBegins { worker, request },
            };
            self.events.at(at_ns, event);
        }
    }

    /// How long the stage took that ends now. The next one begins.
    fn stage(&mut self, now_ns: u64, request: usize) -> u64 {
        let since_ns = std::mem::replace(&mut self.since_ns[request], now_ns);
        now_ns - since_ns
    }

    /// How long a worker takes to look a prompt up.
    fn lookup_ns(&self, request: usize) -> u64 {
        let Settings { software, system, .. } = self.settings;
        let blocks = self.workload.requests[request].blocks.len() as u64;
        software.lookup_ns + software.lookup_block_ns * blocks + self.network.ask_ns(*system)
    }

    /// The pool that a prefill worker uses.
    fn pool_of(&self, worker: u16) -> usize {
        let own = usize::from(self.settings.rack.prefill_node(worker));
        if self.settings.system == System::HostCache { own } else { 0 }
    }

    /// The node of a prefill worker in its pool, and which of the node's workers it is.
    fn prefill_place(&self, worker: u16) -> (u16, u16) {
        let rack = &self.settings.rack;
        let node = rack.prefill_node(worker);
        let is_own = self.settings.system == System::HostCache;
        (if is_own { 0 } else { node }, worker / rack.nodes())
    }
}
