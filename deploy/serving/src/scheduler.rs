//! Which worker serves which request: a state machine without a clock. What runs on real time and what
//! runs in virtual time tell it the same, and do as it says.

use std::collections::VecDeque;

use crate::rack::Rack;

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
    computed: VecDeque<usize>,
    /// Requests of each decode worker.
    decoding: Vec<u32>,
    slots: u32,
}

impl Scheduler {
    /// A scheduler of idle workers. A decode worker has `slots` requests at most, and at least one.
    #[must_use]
    pub fn new(rack: &Rack, slots: u32) -> Self {
        Self {
            waiting: VecDeque::new(),
            idle: (0..rack.prefill()).collect(),
            computed: VecDeque::new(),
            decoding: vec![0; rack.decode().into()],
            slots: slots.max(1),
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
        self.idle.push_back(worker);
        self.computed.push_back(request);
        self.decode().into_iter().chain(self.prefill()).collect()
    }

    /// A decode worker has answered a request.
    #[must_use]
    pub fn answered(&mut self, worker: u16) -> Option<Action> {
        let count = &mut self.decoding[usize::from(worker)];
        *count = count.saturating_sub(1);
        self.decode()
    }

    fn prefill(&mut self) -> Option<Action> {
        let request = *self.waiting.front()?;
        let worker = self.idle.pop_front()?;
        self.waiting.pop_front();
        Some(Action::Prefill { worker, request })
    }

    fn decode(&mut self) -> Option<Action> {
        let request = *self.computed.front()?;
        let fewest = (0..).zip(&mut self.decoding).min_by_key(|(worker, count)| (**count, *worker));
        let (worker, count) = fewest.filter(|(_, count)| **count < self.slots)?;
        *count += 1;
        self.computed.pop_front();
        Some(Action::Decode { worker, request })
    }
}
