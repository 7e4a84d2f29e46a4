//! What a prefill worker does: look up, read, compute, write.

use super::Run;
use super::events::Event;

impl Run<'_> {
    pub(super) fn prefill_begins(&mut self, now_ns: u64, worker: u16, request: usize) {
        self.served[request].times.queue_ns = self.stage(now_ns, request);
        let blocks = self.workload.requests[request].blocks.len();
        let at_ns = now_ns + self.settings.lookup_ns(blocks);
        self.events.at(at_ns, Event::LookedUp { worker, request });
    }

    pub(super) fn looked_up(&mut self, now_ns: u64, worker: u16, request: usize) {
        self.served[request].times.lookup_ns = self.stage(now_ns, request);
        let blocks = &self.workload.requests[request].blocks;
        let found = &blocks[..self.pool.look_up(blocks)];
        self.hold(request, found);
        let hits = found.len() as u64;
        self.served[request].hits = hits;
        let (node, _) = self.prefill_place(worker);
        let at_ns = self.transfer(now_ns, node, hits);
        self.events.at(at_ns, Event::Read { worker, request });
    }

    pub(super) fn read(&mut self, now_ns: u64, worker: u16, request: usize) {
        self.served[request].times.read_ns = self.stage(now_ns, request);
        let prompt = &self.workload.requests[request];
        let found = prompt.tokens_of(self.held[request].len(), self.workload.block_tokens);
        let at_ns = now_ns + self.settings.profile.prefill_ns(prompt.prompt_tokens, found);
        self.events.at(at_ns, Event::Computed { worker, request });
    }

    pub(super) fn computed(&mut self, now_ns: u64, worker: u16, request: usize) {
        self.served[request].times.compute_ns = self.stage(now_ns, request);
        let blocks = &self.workload.requests[request].blocks;
        let missing = blocks.iter().filter(|block| !self.pool.has(**block)).count() as u64;
        let (node, _) = self.prefill_place(worker);
        let at_ns = self.transfer(now_ns, node, missing);
        self.events.at(at_ns, Event::Written { worker, request, blocks: missing });
    }

    /// So many blocks were written (RACK-V2). Those that another worker has published meanwhile are not new.
    pub(super) fn written(&mut self, now_ns: u64, worker: u16, request: usize, blocks: u64) {
        self.served[request].times.write_ns = self.stage(now_ns, request);
        let prompt = &self.workload.requests[request].blocks;
        let place = self.prefill_place(worker);
        let first = self.held[request].len();
        let outcome = self.pool.publish(place, prompt, first);
        self.served[request].published = outcome.published.min(blocks);
        self.served[request].refused = outcome.refused;
        let there = prompt[first..].iter().take_while(|block| self.pool.has(**block)).count();
        self.hold(request, &prompt[first..first + there]);
        self.pool.follow(place);
        let actions = self.scheduler.computed(worker, request);
        self.carry_out(now_ns, actions);
    }

    /// RACK-V3.
    fn hold(&mut self, request: usize, blocks: &[u32]) {
        self.pool.hold(blocks);
        self.held[request].extend_from_slice(blocks);
    }
}
