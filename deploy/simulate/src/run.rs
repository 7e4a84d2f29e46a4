//! One run: requests through a policy, in virtual time.

use std::collections::{HashMap, VecDeque};

use kv_cache::placement::{Measured, Placement, PlanError};

use crate::figures::{Collected, Figures};
use crate::machine::{Machine, Running};
use crate::policy::{Aim, Decided, PolicyKind};
use crate::profile::{Profile, whole};
use crate::workload::{Lengths, Order, Request, Workload};

/// What is simulated.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// GPU, model and link.
    pub profile: Profile,
    /// GPUs over which each layer is divided; at least 1.
    pub ranks: u16,
    /// Requests that are in the batch or paused at most; at least 1.
    pub batch_max: usize,
    /// Which waiting request is next.
    pub order: Order,
    /// The promised time between two tokens, in times of an iteration of a full batch of mean
    /// requests without stalls.
    pub slo_scale: f64,
    /// Arrivals, as a share of what full batches without stalls would serve.
    pub load: f64,
    /// How many requests.
    pub requests: u64,
    /// How long they are.
    pub lengths: Lengths,
    /// Coefficient of variation of the time between arrivals.
    pub arrival_cv: f64,
    /// From which number the random numbers grow.
    pub seed: u64,
}

/// Why nothing was simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// A setting is none.
    #[error("{what} is {value}: give {range}")]
    Setting {
        /// What it is.
        what: &'static str,
        /// What was given.
        value: f64,
        /// What may be given.
        range: &'static str,
    },
    /// The requests are beyond what can be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Settings {
    /// The usual settings for a profile.
    #[must_use]
    pub const fn new(profile: Profile) -> Self {
        Self {
            profile,
            ranks: 1,
            batch_max: 8,
            order: Order::Arrival,
            slo_scale: 1.5,
            load: 0.7,
            requests: 200,
            lengths: Lengths::Drawn { prompt_tokens: 24_000, output_tokens: 256 },
            arrival_cv: 1.0,
            seed: 1,
        }
    }

    fn check(&self) -> Result<(), SimulateError> {
        let small = |what, value: f64, range, fits: bool| match fits {
            true => Ok(()),
            false => Err(SimulateError::Setting { what, value, range }),
        };
        let of = |value: f64, least: f64, most: f64| (least..=most).contains(&value);
        let batch = self.batch_max as f64;
        small("the largest batch", batch, "1 to 256", of(batch, 1.0, 256.0))?;
        let ranks = f64::from(self.ranks);
        small("the number of GPUs", ranks, "1 to 64", of(ranks, 1.0, 64.0))?;
        small(
            "the scale of the SLO",
            self.slo_scale,
            "0.01 to 1000",
            of(self.slo_scale, 0.01, 1e3),
        )?;
        small("the load", self.load, "0.01 to 100", of(self.load, 0.01, 100.0))?;
        let cv = self.arrival_cv;
        small("the variation of arrivals", cv, "0.01 to 20", of(cv, 0.01, 20.0))?;
        let requests = self.requests as f64;
        small("the number of requests", requests, "1 to 1000000", of(requests, 1.0, 1e6))
    }

    fn mean_tokens(&self) -> u64 {
        let (prompt, output) = self.lengths.means();
        prompt + output / 2
    }

    /// An iteration of a full batch of mean requests without stalls.
    #[must_use]
    pub fn iteration_ns(&self) -> u64 {
        let context = self.mean_tokens() * self.batch_max as u64;
        self.profile.layer_ns(context, self.ranks) * u64::from(self.profile.layers)
    }

    /// The promised time between two tokens.
    #[must_use]
    pub fn slo_ns(&self) -> u64 {
        whole(self.iteration_ns() as f64 * self.slo_scale).max(1)
    }

    fn workload(&self) -> Workload {
        let (_, output) = self.lengths.means();
        let alone_ns = self.iteration_ns() as f64 * output as f64 / self.batch_max as f64;
        Workload {
            requests: self.requests,
            lengths: self.lengths.clone(),
            interval_ns: whole(alone_ns / self.load).max(1),
            arrival_cv: self.arrival_cv,
            seed: self.seed,
        }
    }
}

/// A request in the batch, or paused.
#[derive(Debug)]
struct Live {
    request: Request,
    computed: u64,
    first_ns: u64,
    released_ns: u64,
    /// Layers on the GPU, ascending; `None` before it ran.
    resident: Option<Vec<u16>>,
}

struct Run<'a> {
    settings: &'a Settings,
    machine: Machine,
    slo_ns: u64,
    deposits: bool,
    now_ns: u64,
    queue: VecDeque<Request>,
    live: HashMap<u64, Live>,
    collected: Collected,
}

/// Simulates all requests under `policy`. `served` is told how many are over.
///
/// # Errors
/// [`SimulateError`].
pub fn simulate(
    settings: &Settings,
    policy: PolicyKind,
    mut served: impl FnMut(u64),
) -> Result<Figures, SimulateError> {
    settings.check()?;
    let machine = Machine::new(settings.profile.clone(), settings.ranks);
    let (slo_ns, batch_max) = (settings.slo_ns(), settings.batch_max);
    let mean_tokens = settings.mean_tokens();
    let mut decides =
        policy.start(Aim { machine: machine.clone(), slo_ns, batch_max, mean_tokens });
    let mut run = Run {
        settings,
        machine,
        slo_ns,
        deposits: policy.deposits(),
        now_ns: 0,
        queue: VecDeque::new(),
        live: HashMap::new(),
        collected: Collected::default(),
    };
    let mut arrivals = settings.workload().requests().into_iter().peekable();
    run.collected.begin_ns = arrivals.peek().map_or(0, |first| first.arrival_ns);
    loop {
        while let Some(next) = arrivals.next_if(|next| next.arrival_ns <= run.now_ns) {
            run.queue.push_back(next);
        }
        // SIM-D4.
        while run.live.len() < batch_max
            && let Some(request) = run.next_waiting()
        {
            let Request { id, prompt_tokens: tokens, .. } = request;
            decides.arrive(Running { id, tokens });
            let (first_ns, released_ns) = (0, 0);
            let live = Live { request, computed: 0, first_ns, released_ns, resident: None };
            run.live.insert(id, live);
        }
        if run.live.is_empty() {
            let Some(next) = arrivals.peek() else { break };
            run.now_ns = next.arrival_ns;
            continue;
        }
        let decided = decides.decide()?;
        for id in &decided.rejected {
            decides.finish(*id);
            run.collected.rejected += 1;
            // A token has a time to the token before it, but for the first of an answer.
            let times = |it: Live| it.request.output_tokens - it.computed.max(1);
            run.collected.rejected_times += run.live.remove(id).map_or(0, times);
        }
        if !decided.batch.is_empty() {
            let (measured, finished) = run.iteration(&decided)?;
            decides.stepped(run.now_ns, measured);
            finished.into_iter().for_each(|id| decides.finish(id));
        }
        served(run.collected.tpot_ns.len() as u64 + run.collected.rejected);
    }
    run.collected.end_ns = run.now_ns;
    Ok(run.collected.figures(slo_ns))
}

impl Run<'_> {
    fn next_waiting(&mut self) -> Option<Request> {
        let place = match self.settings.order {
            Order::Arrival => 0,
            Order::ShortestFirst => {
                let left = |(at, request): &(usize, &Request)| (request.output_tokens, *at);
                self.queue.iter().enumerate().min_by_key(left)?.0
            }
        };
        self.queue.remove(place)
    }

    /// Carries out an iteration. Says what was measured, and which requests are over.
    fn iteration(&mut self, decided: &Decided) -> Result<(Measured, Vec<u64>), PlanError> {
        self.collected.pauses += decided.paused.len() as u64;
        for (id, layers) in &decided.evicted {
            if let Some(resident) = self.live.get_mut(id).and_then(|it| it.resident.as_mut()) {
                resident.retain(|layer| !layers.contains(layer));
            }
        }
        let mut brought_blocks = 0;
        for (running, placement) in &decided.batch {
            brought_blocks += self.install(*running, placement);
        }
        let running: Vec<_> = decided.batch.iter().map(|(running, _)| *running).collect();
        let placements: Vec<_> = decided.batch.iter().map(|(_, it)| it.clone()).collect();
        let iteration = self.machine.iteration(&running, &placements)?;
        let brought_ns = brought_blocks.saturating_mul(self.machine.block_ns);
        let stall_ns = iteration.stall_ns.saturating_add(brought_ns);
        let total_ns = iteration.total_ns(self.machine.layers()).saturating_add(brought_ns);
        let collected = &mut self.collected;
        collected.stall_ns = collected.stall_ns.saturating_add(stall_ns);
        collected.iteration_ns = collected.iteration_ns.saturating_add(total_ns);
        self.now_ns = self.now_ns.saturating_add(total_ns);
        let finished = running.iter().filter(|it| self.computed_one(it.id)).map(|it| it.id);
        let finished = finished.collect::<Vec<_>>();
        let moves = iteration.moved_blocks > 0;
        let block_ns = moves.then_some(self.machine.block_ns);
        Ok((Measured { layer_ns: iteration.layer_ns, block_ns }, finished))
    }

    /// Says how many blocks have to come to the GPU, to stay there (SIM-D2, SIM-D3).
    fn install(&mut self, running: Running, placement: &Placement) -> u64 {
        let Some(live) = self.live.get_mut(&running.id) else { return 0 };
        let offloaded = placement.offloaded();
        let is_resident = |layer: &u16| offloaded.binary_search(layer).is_err();
        let stay: Vec<_> = (1..=self.machine.layers()).filter(is_resident).collect();
        let new = live.resident.as_ref().map_or(0, |before| {
            stay.iter().filter(|layer| before.binary_search(layer).is_err()).count()
        });
        live.resident = Some(stay);
        new as u64 * running.blocks()
    }

    /// A token of the request is ready now. Says whether it was the last.
    fn computed_one(&mut self, id: u64) -> bool {
        let Some(live) = self.live.get_mut(&id) else { return false };
        let (request, now_ns) = (live.request, self.now_ns);
        live.computed += 1;
        self.collected.tokens += 1;
        if live.computed == 1 {
            live.first_ns = now_ns;
            live.released_ns = now_ns;
            self.collected.waits_ns.push(now_ns - request.arrival_ns);
        } else {
            let due_ns = live.released_ns.saturating_add(self.slo_ns);
            let released_ns = if self.deposits { now_ns.max(due_ns) } else { now_ns };
            self.collected.gaps_ns.push(released_ns - live.released_ns);
            live.released_ns = released_ns;
        }
        if live.computed < request.output_tokens {
            return false;
        }
        let gaps = (request.output_tokens - 1).max(1);
        self.collected.tpot_ns.push((live.released_ns - live.first_ns).div_ceil(gaps));
        self.live.remove(&id);
        true
    }
}
