//! What a prefill worker does: look up, wait for drives, read, compute, write.

use super::Run;
use super::death::Worker;
use super::events::Event;
use crate::system::System;

impl Run<'_> {
    pub(super) fn prefill_begins(&mut self, now_ns: u64, worker: u16, request: usize) {
        self.stage(now_ns, request);
        self.times(request).queue_ns = now_ns - self.workload.requests[request].at_ns;
        // An earlier attempt may have waited for drives.
        self.times(request).restore_ns = 0;
        self.prefill[request] = worker;
        let at_ns = match self.settings.system {
            System::Direct => now_ns,
            _ => now_ns + self.lookup_ns(request),
        };
        self.events.at(at_ns, Event::LookedUp { worker, request });
    }

    pub(super) fn looked_up(&mut self, now_ns: u64, worker: u16, request: usize) {
        let took_ns = self.stage(now_ns, request);
        self.times(request).lookup_ns = took_ns;
        let place = self.place(worker);
        let blocks = &self.workload.requests[request].blocks;
        let found = &blocks[..self.kept.look_up(place, blocks)];
        self.hold(request, found);
        match self.restore(now_ns, request, found.len()) {
            Some(at_ns) => self.events.at(at_ns, Event::Restored { worker, request }),
            None => self.read_found(now_ns, worker, request),
        }
    }

    /// Reads what is held of a prompt.
    pub(super) fn read_found(&mut self, now_ns: u64, worker: u16, request: usize) {
        let node = self.settings.rack.prefill_node(worker);
        let found = &self.workload.requests[request].blocks[..self.held[request].len()];
        let served = &mut self.served[request];
        // What it has written itself is no hit.
        match served.restarts {
            0 => served.hits = found.len() as u64,
            _ => served.found_again += found.len() as u64,
        }
        let bytes = self.bytes_of(found.len());
        let at_ns = match self.settings.system {
            System::Rackline | System::RacklineDrives => self.network.shared(now_ns, node, bytes),
            System::Direct => now_ns,
            System::HostCache => self.network.local(now_ns, node, bytes),
            System::Store => self.move_store(now_ns, node, found, false),
        };
        self.events.at(at_ns, Event::Read { worker, request });
    }

    pub(super) fn read(&mut self, now_ns: u64, worker: u16, request: usize) {
        let took_ns = self.stage(now_ns, request);
        self.times(request).read_ns = took_ns;
        let prompt = &self.workload.requests[request];
        let found = prompt.tokens_of(self.held[request].len(), self.workload.block_tokens);
        let at_ns = now_ns + self.settings.profile.prefill_ns(prompt.prompt_tokens, found);
        self.events.at(at_ns, Event::Computed { worker, request });
    }

    pub(super) fn computed(&mut self, now_ns: u64, worker: u16, request: usize) {
        let took_ns = self.stage(now_ns, request);
        self.times(request).compute_ns = took_ns;
        let (place, node) = (self.place(worker), self.settings.rack.prefill_node(worker));
        let blocks = &self.workload.requests[request].blocks;
        // What it has read is not written: a store may have lost it meanwhile (RACK-S8).
        let behind = &blocks[self.held[request].len()..];
        let is_missing = |block: &u32| !self.kept.has(place, *block);
        let missing: Vec<u32> = behind.iter().copied().filter(is_missing).collect();
        let at_ns = match self.settings.system {
            System::Rackline | System::RacklineDrives => {
                self.network.shared(now_ns, node, self.bytes_of(missing.len()))
            }
            // RACK-S6.
            System::Direct | System::HostCache => now_ns,
            System::Store if missing.is_empty() => now_ns,
            System::Store => {
                let asked_ns = self.settings.links.rpc_ns;
                self.move_store(now_ns + asked_ns, node, &missing, true) + asked_ns
            }
        };
        let blocks = missing.len() as u64;
        self.events.at(at_ns, Event::Written { worker, request, blocks });
    }

    /// So many blocks were written (RACK-V2). Those that another worker has published meanwhile are not
    /// new.
    pub(super) fn written(&mut self, now_ns: u64, worker: u16, request: usize, blocks: u64) {
        let took_ns = self.stage(now_ns, request);
        self.times(request).write_ns = took_ns;
        let (place, prompt) = (self.place(worker), &self.workload.requests[request].blocks);
        if self.settings.system != System::Direct {
            let first = self.held[request].len();
            let outcome = self.kept.publish(place, prompt, first);
            self.served[request].published += outcome.published.min(blocks);
            self.served[request].refused += outcome.refused;
            let is_there = |block: &&u32| self.kept.has(place, **block);
            let there = prompt[first..].iter().take_while(is_there).count();
            self.hold(request, &prompt[first..first + there]);
            self.await_backup(now_ns, prompt);
        }
        self.deaths.is_at(request, Worker::Nobody);
        let actions = self.scheduler.computed(worker, request);
        self.carry_out(now_ns, actions);
    }

    /// RACK-V3.
    pub(super) fn hold(&mut self, request: usize, blocks: &[u32]) {
        let place = self.place(self.prefill[request]);
        self.kept.hold(place, blocks);
        self.held[request].extend_from_slice(blocks);
    }
}
