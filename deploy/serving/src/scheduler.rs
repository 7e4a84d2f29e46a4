//! Which worker serves which request: a state machine without a clock. What runs on real time and what
//! runs in virtual time tell it the same, and do as it says.

use std::collections::VecDeque;

use crate::profile::Decode;
use crate::rack::Rack;
use crate::workload::Workload;

/// What is to be done now. Requests and workers are counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A prefill worker computes a prompt.
    Prefill {
        /// The worker.
        worker: u16,
        /// The request.
        request: usize,
    },
    /// A decode worker answers a request.
    Decode {
        /// The worker.
        worker: u16,
        /// The request.
        request: usize,
    },
}

/// Assigns requests to workers (RACK-R2, RACK-R3).
#[derive(Clone, Debug)]
pub struct Scheduler {
    waiting: VecDeque<usize>,
    /// Prefill workers without a request, the one that has waited longest first.
    idle: VecDeque<u16>,
    /// Prefill workers that have died.
    lost: Vec<bool>,
    computed: VecDeque<usize>,
    /// Of each decode worker; `None` when it has died.
    decoding: Vec<Option<Load>>,
    most: Load,
    /// Tokens of each request, those of its answer among them.
    tokens: Vec<u64>,
}

/// What a decode worker has, or may have.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    requests: u32,
    tokens: u64,
}

impl Scheduler {
    /// A scheduler of idle workers, for requests of a workload. A decode worker has so many requests at
    /// most as `decode` says, and their tokens fit; one request fits in any case.
    #[must_use]
    pub fn new(rack: &Rack, decode: &Decode, workload: &Workload) -> Self {
        let tokens = workload.requests.iter().map(|it| it.prompt_tokens + it.output_tokens);
        Self {
            waiting: VecDeque::new(),
            idle: (0..rack.prefill()).collect(),
            lost: vec![false; rack.prefill().into()],
            computed: VecDeque::new(),
            decoding: vec![Some(Load::default()); rack.decode().into()],
            most: Load { requests: decode.batch_max.max(1), tokens: decode.kv_tokens_max },
            tokens: tokens.collect(),
        }
    }

    /// A request arrives.
    #[must_use]
    pub fn arrive(&mut self, request: usize) -> Option<Action> {
        self.waiting.push_back(request);
        self.prefill()
    }

    /// A prefill worker has computed and published a prompt.
    #[must_use]
    pub fn computed(&mut self, worker: u16, request: usize) -> Vec<Action> {
        if !self.lost[usize::from(worker)] {
            self.idle.push_back(worker);
        }
        self.computed.push_back(request);
        self.decode().into_iter().chain(self.prefill()).collect()
    }

    /// A decode worker has answered a request.
    #[must_use]
    pub fn answered(&mut self, worker: u16, request: usize) -> Vec<Action> {
        if let Some(load) = &mut self.decoding[usize::from(worker)] {
            load.requests = load.requests.saturating_sub(1);
            load.tokens = load.tokens.saturating_sub(self.tokens[request]);
        }
        std::iter::from_fn(|| self.decode()).collect()
    }

    /// Workers have been killed: from now on they get nothing. Of each, [`Scheduler::lost_prefill`] or
    /// [`Scheduler::lost_decode`] says later what it had.
    pub fn killed(&mut self, prefill: &[u16], decode: &[u16]) {
        self.idle.retain(|idle| !prefill.contains(idle));
        for worker in prefill {
            self.lost[usize::from(*worker)] = true;
        }
        for worker in decode {
            self.decoding[usize::from(*worker)] = None;
        }
    }

    /// A prefill worker has died, with the request that it had. The request is the next to be computed.
    #[must_use]
    pub fn lost_prefill(&mut self, worker: u16, request: Option<usize>) -> Option<Action> {
        self.killed(&[worker], &[]);
        if let Some(request) = request {
            self.waiting.push_front(request);
        }
        self.prefill()
    }

    /// A decode worker has died, with the requests that it had. They are the next to be computed: what
    /// they had in the pool is found.
    #[must_use]
    pub fn lost_decode(&mut self, worker: u16, requests: &[usize]) -> Vec<Action> {
        self.killed(&[], &[worker]);
        for request in requests.iter().rev() {
            self.waiting.push_front(*request);
        }
        // The first that waits may fit on another worker, though not on the one that had the fewest.
        let mut actions: Vec<_> = std::iter::from_fn(|| self.decode()).collect();
        actions.extend(std::iter::from_fn(|| self.prefill()));
        actions
    }

    /// A decode worker cannot have the KV of a request, as the node of its prefill worker has died. The
    /// request is the next to be computed.
    #[must_use]
    pub fn lost_prompt(&mut self, worker: u16, request: usize) -> Vec<Action> {
        self.waiting.push_front(request);
        let mut actions = self.answered(worker, request);
        actions.extend(self.prefill());
        actions
    }

    fn prefill(&mut self) -> Option<Action> {
        let request = *self.waiting.front()?;
        let worker = self.idle.pop_front()?;
        self.waiting.pop_front();
        Some(Action::Prefill { worker, request })
    }

    fn decode(&mut self) -> Option<Action> {
        let request = *self.computed.front()?;
        let (most, tokens) = (self.most, self.tokens[request]);
        let alive = (0..).zip(&mut self.decoding);
        let alive = alive.filter_map(|(worker, load)| Some((worker, load.as_mut()?)));
        let (worker, load) = alive.min_by_key(|(worker, load)| (load.requests, *worker))?;
        let fits = load.requests < most.requests && load.tokens + tokens <= most.tokens;
        if !fits && load.requests > 0 {
            return None;
        }
        load.requests += 1;
        load.tokens += tokens;
        self.computed.pop_front();
        Some(Action::Decode { worker, request })
    }
}
