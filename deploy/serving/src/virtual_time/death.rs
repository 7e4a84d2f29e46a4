//! A node is killed (RACK-S8).

use super::Run;
use super::events::Event;
use crate::rack::Rack;

/// Which worker has a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Worker {
    /// None: it has not arrived, waits, or is answered.
    Nobody,
    /// A prefill worker.
    Prefill(u16),
    /// A decode worker.
    Decode(u16),
}

/// The node and the workers that have died, and which worker has each request.
#[derive(Debug)]
pub(super) struct Deaths {
    dead_node: Option<u16>,
    dead_prefill: Vec<u16>,
    dead_decode: Vec<u16>,
    /// The worker that has each request.
    at: Vec<Worker>,
}

impl Deaths {
    pub(super) fn new(requests: usize) -> Self {
        let at = vec![Worker::Nobody; requests];
        Self { dead_node: None, dead_prefill: Vec::new(), dead_decode: Vec::new(), at }
    }

    /// From now on a worker has a request.
    pub(super) fn is_at(&mut self, request: usize, worker: Worker) {
        self.at[request] = worker;
    }

    pub(super) fn prefill_is_dead(&self, worker: u16) -> bool {
        self.dead_prefill.contains(&worker)
    }

    /// The node that has the part of a store that was on `node`: the next one, where it has died.
    pub(super) fn heir_of(&self, node: u16, rack: &Rack) -> u16 {
        if self.dead_node == Some(node) { (node + 1) % rack.nodes() } else { node }
    }

    /// The requests of a worker, in order.
    fn requests_of(&self, worker: Worker) -> Vec<usize> {
        let all = self.at.iter().enumerate();
        all.filter(|(_, at)| **at == worker).map(|(request, _)| request).collect()
    }
}

impl Run<'_> {
    /// Whether the event belongs to a worker or an agent that has died.
    pub(super) fn is_of_the_dead(&self, event: Event) -> bool {
        let Deaths { dead_node, dead_prefill, dead_decode, .. } = &self.deaths;
        match event {
            Event::Arrives { .. } | Event::Killed { .. } => false,
            Event::PrefillBegins { worker, .. }
            | Event::LookedUp { worker, .. }
            | Event::Restored { worker, .. }
            | Event::Read { worker, .. }
            | Event::Computed { worker, .. }
            | Event::Written { worker, .. } => dead_prefill.contains(&worker),
            Event::DecodeBegins { worker, .. }
            | Event::DecodeLookedUp { worker, .. }
            | Event::DecodeRead { worker, .. }
            | Event::Iterated { worker } => dead_decode.contains(&worker),
            Event::BacksUp { node } | Event::BackedUp { node } => *dead_node == Some(node),
        }
    }

    pub(super) fn killed(&mut self, now_ns: u64, node: u16) {
        let rack = &self.settings.rack;
        self.deaths.dead_node = Some(node);
        let (prefill, decode) = (rack.prefill_of(node), rack.decode_of(node));
        // Only a node that publishes makes room among blocks of the pool.
        let heir = (node + 1) % rack.prefill_nodes();
        self.drives.node_died(node);
        self.kept.node_died(node, heir, &self.held.concat());
        self.scheduler.killed(&prefill, &decode);
        (self.deaths.dead_prefill, self.deaths.dead_decode) = (prefill.clone(), decode.clone());
        for worker in prefill {
            let had = self.deaths.requests_of(Worker::Prefill(worker));
            for request in &had {
                // The worker had not told the scheduler yet what it found.
                let served = &mut self.served[*request];
                if served.restarts == 0 {
                    (served.hits, served.from_drives) = (0, 0);
                }
                self.lose(*request);
            }
            let action = self.scheduler.lost_prefill(worker, had.first().copied());
            self.carry_out(now_ns, action);
        }
        for worker in decode {
            let had = self.deaths.requests_of(Worker::Decode(worker));
            for request in &had {
                self.lose(*request);
            }
            let actions = self.scheduler.lost_decode(worker, &had);
            self.carry_out(now_ns, actions);
        }
    }

    /// A worker has lost a request, which begins again.
    pub(super) fn lose(&mut self, request: usize) {
        self.deaths.is_at(request, Worker::Nobody);
        self.served[request].restarts += 1;
        self.drives.give_up(request);
        self.release(request);
    }

    /// The blocks of a request need not be held any more.
    pub(super) fn release(&mut self, request: usize) {
        let held = std::mem::take(&mut self.held[request]);
        let place = self.place(self.prefill[request]);
        self.kept.release(place, &held);
    }
}
