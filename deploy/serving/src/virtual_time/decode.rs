//! What a decode worker does: read the KV of prompts, one after the other, and decode them together.

use std::collections::VecDeque;

use super::death::Worker;
use super::events::Event;
use super::{Run, Settings};
use crate::system::System;

/// A request in the batch.
#[derive(Clone, Copy, Debug)]
struct Running {
    request: usize,
    /// Tokens of its answer.
    tokens: u64,
}

/// A decode worker.
#[derive(Debug, Default)]
pub(super) struct Decoding {
    /// Prompts to be read. The first is being read.
    to_read: VecDeque<usize>,
    /// Prompts that are read, and join at the next iteration; with the time to compute what is missing.
    ready: Vec<(usize, u64)>,
    batch: Vec<Running>,
}

impl Run<'_> {
    pub(super) fn decode_begins(&mut self, now_ns: u64, worker: u16, request: usize) {
        let took_ns = self.stage(now_ns, request);
        self.times(request).decode_queue_ns = took_ns;
        let to_read = &mut self.decoding[usize::from(worker)].to_read;
        to_read.push_back(request);
        if to_read.len() == 1 {
            self.look_up(now_ns, worker, request);
        }
    }

    fn look_up(&mut self, now_ns: u64, worker: u16, request: usize) {
        // A worker that pulls asks the prefill worker.
        let takes_ns = if self.settings.system.is_shared() {
            self.lookup_ns(request)
        } else {
            2 * self.settings.software.message_ns
        };
        self.events.at(now_ns + takes_ns, Event::DecodeLookedUp { worker, request });
    }

    pub(super) fn decode_looked_up(&mut self, now_ns: u64, worker: u16, request: usize) {
        if self.prompt_is_lost(now_ns, worker, request) {
            return;
        }
        let took_ns = self.stage(now_ns, request);
        self.times(request).decode_lookup_ns = took_ns;
        let prompt = &self.workload.requests[request];
        let Settings { system, rack, .. } = self.settings;
        let node = rack.decode_node(worker);
        let found = if system.is_shared() {
            self.kept.look_up(self.decode_place(worker), &prompt.blocks)
        } else {
            prompt.blocks.len()
        };
        self.served[request].lost = (prompt.blocks.len() - found) as u64;
        let at_ns = match system {
            System::Rackline | System::RacklineDrives => {
                self.network.shared(now_ns, node, self.bytes_of(found))
            }
            System::Store => self.move_store(now_ns, node, &prompt.blocks[..found], false),
            System::Direct | System::HostCache => {
                let from = rack.prefill_node(self.prefill[request]);
                let bytes = self.bytes_of_tokens(prompt.prompt_tokens);
                self.network.send(now_ns, from, node, bytes)
            }
        };
        self.events.at(at_ns, Event::DecodeRead { worker, request, found });
    }

    /// The prompt is there, as far as it was found. The next one is read.
    pub(super) fn decode_read(&mut self, now_ns: u64, worker: u16, request: usize, found: usize) {
        if self.prompt_is_lost(now_ns, worker, request) {
            return;
        }
        let took_ns = self.stage(now_ns, request);
        self.times(request).decode_read_ns = took_ns;
        self.release(request);
        let prompt = &self.workload.requests[request];
        let tokens = prompt.tokens_of(found, self.workload.block_tokens);
        // The last token is computed by the iteration.
        let is_whole = !self.settings.system.is_shared() || tokens + 1 >= prompt.prompt_tokens;
        let computing_ns = match is_whole {
            true => 0,
            false => self.settings.profile.prefill_ns(prompt.prompt_tokens, tokens),
        };
        self.times(request).decode_compute_ns = computing_ns;
        let decoding = &mut self.decoding[usize::from(worker)];
        decoding.ready.push((request, computing_ns));
        if decoding.batch.is_empty() {
            self.iterate(now_ns, worker);
        }
        self.look_up_next(now_ns, worker);
    }

    /// The worker has done with the first of the prompts to be read.
    fn look_up_next(&mut self, now_ns: u64, worker: u16) {
        let to_read = &mut self.decoding[usize::from(worker)].to_read;
        to_read.pop_front();
        if let Some(next) = to_read.front().copied() {
            self.look_up(now_ns, worker, next);
        }
    }

    /// What a prefill worker of a dead node was to send is gone (RACK-S8). The request begins again.
    fn prompt_is_lost(&mut self, now_ns: u64, worker: u16, request: usize) -> bool {
        let is_sent = !self.settings.system.is_shared();
        let is_lost = is_sent && self.deaths.prefill_is_dead(self.prefill[request]);
        if is_lost {
            self.lose(request);
            let actions = self.scheduler.lost_prompt(worker, request);
            self.carry_out(now_ns, actions);
            self.look_up_next(now_ns, worker);
        }
        is_lost
    }

    /// Begins an iteration of all that is ready. What is missing of their prompts is computed in it
    /// (RACK-R4).
    fn iterate(&mut self, now_ns: u64, worker: u16) {
        let decoding = &mut self.decoding[usize::from(worker)];
        let mut takes_ns = 0;
        for (request, computing_ns) in decoding.ready.drain(..) {
            takes_ns += computing_ns;
            decoding.batch.push(Running { request, tokens: 0 });
        }
        if decoding.batch.is_empty() {
            return;
        }
        let requests = &self.workload.requests;
        let context =
            decoding.batch.iter().map(|it| requests[it.request].prompt_tokens + it.tokens);
        takes_ns += self.settings.profile.iteration_ns(decoding.batch.len(), context.sum());
        self.events.at(now_ns + takes_ns, Event::Iterated { worker });
    }

    pub(super) fn iterated(&mut self, now_ns: u64, worker: u16) {
        let mut batch = std::mem::take(&mut self.decoding[usize::from(worker)].batch);
        for running in &mut batch {
            running.tokens += 1;
            // RACK-R6.
            if running.tokens == 1 {
                let took_ns = self.stage(now_ns, running.request);
                let served = &mut self.served[running.request];
                if served.ttft_ns == 0 {
                    served.times.first_token_ns = took_ns - served.times.decode_compute_ns;
                    served.ttft_ns = now_ns - served.arrived_ns;
                }
            }
        }
        let (answered, going_on): (Vec<_>, Vec<_>) = batch.into_iter().partition(|running| {
            running.tokens >= self.workload.requests[running.request].output_tokens
        });
        self.decoding[usize::from(worker)].batch = going_on;
        for Running { request, .. } in answered {
            self.deaths.is_at(request, Worker::Nobody);
            let served = &mut self.served[request];
            served.latency_ns = now_ns - served.arrived_ns;
            served.times.decode_ns = served.latency_ns - served.ttft_ns;
            let actions = self.scheduler.answered(worker, request);
            self.carry_out(now_ns, actions);
        }
        self.iterate(now_ns, worker);
    }
}
