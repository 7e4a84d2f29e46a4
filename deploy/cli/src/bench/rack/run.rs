//! A run with real bytes: requests arrive by the clock, the scheduler assigns them, workers serve them.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cxl_shm::clock::SystemClock;
use indicatif::ProgressBar;
use rackline_serving::{Action, Decode, Kill, Rack, Scheduler, Served, Workload};

use super::fleet::{Fleet, News, Who};
use super::protocol::{Event, Late, Prompt, Task};
use super::time::machine_ns;
use super::worker::Role;
use crate::bench::kill::too_late;

/// What came of a run.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Outcome {
    /// By the number of the request.
    pub(super) served: Vec<Served>,
    /// Blocks that left the pool before they could be held.
    pub(super) not_held: u64,
    pub(super) late: Late,
    /// Why the first block was refused that was refused.
    pub(super) why_refused: Option<String>,
}

/// A request under way.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    /// Who has it.
    at: Option<Who>,
    /// Its prefill worker.
    prefill: u16,
    /// Whether that worker holds its blocks, as far as this process knows.
    is_held: bool,
    /// When its blocks were in the pool.
    computed_ns: u64,
    /// When its first token came.
    first_token_ns: u64,
}

/// A run under way.
struct Run<'r, 'f> {
    fleet: &'r mut Fleet<'f>,
    rack: &'r Rack,
    workload: &'r Workload,
    clock: SystemClock,
    speed: f64,
    scheduler: Scheduler,
    open: Vec<Open>,
    outcome: Outcome,
    bar: &'r ProgressBar,
    arrived: usize,
    answered: usize,
    kill: Option<Kill>,
}

/// Serves `workload`, whose time passes `speed` times as fast as the machine's.
pub(super) fn serve(
    fleet: &mut Fleet<'_>,
    rack: &Rack,
    decode: &Decode,
    workload: &Workload,
    speed: f64,
    kill: Option<Kill>,
    bar: &ProgressBar,
) -> Result<Outcome> {
    let requests = &workload.requests;
    let mut run = Run {
        fleet,
        rack,
        workload,
        clock: SystemClock::start(),
        speed,
        scheduler: Scheduler::new(rack, decode, workload),
        open: vec![Open::default(); requests.len()],
        outcome: Outcome { served: workload.unserved(), ..Outcome::default() },
        bar,
        arrived: 0,
        answered: 0,
        kill,
    };
    while run.answered < requests.len() {
        run.step()?;
    }
    if let Some(kill) = run.kill {
        bail!(too_late(kill.node));
    }
    Ok(run.outcome)
}

impl Run<'_, '_> {
    /// Lets arrive what is due, or carries out what a worker says.
    fn step(&mut self) -> Result<()> {
        let now_ns = self.now_ns();
        if let Some(kill) = self.kill.take_if(|kill| kill.at_ns <= now_ns) {
            let Kill { node, .. } = kill;
            self.fleet.kill(node)?;
            // What they had begins again when all that they have said before is heard.
            self.scheduler.killed(&self.rack.prefill_of(node), &self.rack.decode_of(node));
        }
        let mut within = self.kill.map(|kill| self.on_machine(kill.at_ns - now_ns));
        if let Some(next) = self.workload.requests.get(self.arrived) {
            if next.at_ns <= now_ns {
                let action = self.scheduler.arrive(self.arrived);
                self.arrived += 1;
                return self.carry_out(action);
            }
            let until = self.on_machine(next.at_ns - now_ns);
            within = Some(within.map_or(until, |within| within.min(until)));
        }
        match self.fleet.next(within)? {
            Some((who, News::Said(event))) => self.heard(who, event),
            Some((who, News::Died)) => self.died(who),
            None => Ok(()),
        }
    }

    /// The time of the bench.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "times are far below 2^52 ns, and not negative"
    )]
    fn now_ns(&self) -> u64 {
        (self.clock.now_ns() as f64 * self.speed) as u64
    }

    #[expect(clippy::cast_precision_loss, reason = "times are far below 2^52 ns")]
    fn on_machine(&self, bench_ns: u64) -> Duration {
        Duration::from_secs_f64(bench_ns as f64 / self.speed / 1e9)
    }

    fn carry_out(&mut self, actions: impl IntoIterator<Item = Action>) -> Result<()> {
        for action in actions {
            let now_ns = self.now_ns();
            let (who, request) = match action {
                Action::Prefill { worker, request } => {
                    self.open[request].prefill = worker;
                    let served = &mut self.outcome.served[request];
                    if served.ttft_ns == 0 {
                        served.times.queue_ns = now_ns.saturating_sub(served.arrived_ns);
                    }
                    (Who { role: Role::Prefill, worker }, request)
                }
                Action::Decode { worker, request } => {
                    let waited_ns = now_ns.saturating_sub(self.open[request].computed_ns);
                    let served = &mut self.outcome.served[request];
                    if served.ttft_ns == 0 {
                        served.times.decode_queue_ns = waited_ns;
                    }
                    (Who { role: Role::Decode, worker }, request)
                }
            };
            self.open[request].at = Some(who);
            let asked = &self.workload.requests[request];
            let (tokens, blocks) = (asked.prompt_tokens, asked.blocks.clone());
            let prompt = Prompt { request, tokens, blocks };
            let output_tokens = asked.output_tokens;
            let task = match who.role {
                Role::Prefill => Task::Prefill(prompt),
                Role::Decode => Task::Decode { prompt, output_tokens, told_ns: machine_ns() },
            };
            self.fleet.give(who, &task)?;
        }
        Ok(())
    }

    /// What a dead worker had begins again.
    fn died(&mut self, who: Who) -> Result<()> {
        let open = self.open.iter().enumerate();
        let had: Vec<usize> =
            open.filter(|(_, open)| open.at == Some(who)).map(|(request, _)| request).collect();
        for request in &had {
            // The next prefill worker may be another one.
            self.release(*request)?;
            self.open[*request].at = None;
            self.outcome.served[*request].restarts += 1;
        }
        let actions = match who.role {
            Role::Prefill => {
                let first = self.scheduler.lost_prefill(who.worker, had.first().copied());
                first.into_iter().collect()
            }
            Role::Decode => self.scheduler.lost_decode(who.worker, &had),
        };
        self.carry_out(actions)
    }

    /// The blocks of a request need not be held any more.
    fn release(&mut self, request: usize) -> Result<()> {
        let open = &mut self.open[request];
        if !std::mem::take(&mut open.is_held) {
            return Ok(());
        }
        let prefill = Who { role: Role::Prefill, worker: open.prefill };
        self.fleet.give(prefill, &Task::Release { request })?;
        Ok(())
    }

    fn heard(&mut self, who: Who, event: Event) -> Result<()> {
        let now_ns = self.now_ns();
        match event {
            Event::Ready => bail!("a worker was ready twice"),
            Event::Prefilled(done) => {
                let served = self.served(done.request)?;
                if served.ttft_ns == 0 {
                    served.times.lookup_ns = done.lookup_ns;
                    served.times.read_ns = done.read_ns;
                    served.times.compute_ns = done.compute_ns;
                    served.times.write_ns = done.write_ns;
                }
                // What it has written itself is no hit.
                match served.restarts {
                    0 => served.hits = done.hits,
                    _ => served.found_again += done.hits,
                }
                served.published += done.published;
                served.refused += done.refused;
                served.from_drives += done.from_drives;
                served.cpu_ns += done.cpu_ns;
                let open = &mut self.open[done.request];
                (open.computed_ns, open.at, open.is_held) = (now_ns, None, true);
                self.outcome.late.add(done.late);
                self.outcome.not_held += done.not_held;
                self.outcome.why_refused = self.outcome.why_refused.take().or(done.why_refused);
                let actions = self.scheduler.computed(who.worker, done.request);
                self.carry_out(actions)
            }
            Event::Fetched(done) => {
                let served = self.served(done.request)?;
                if served.ttft_ns == 0 {
                    served.times.decode_lookup_ns = done.lookup_ns;
                    served.times.decode_read_ns = done.read_ns;
                    served.times.decode_compute_ns = done.compute_ns;
                }
                served.lost = done.lost;
                served.from_drives += done.from_drives;
                served.cpu_ns += done.cpu_ns;
                self.outcome.late.add(done.late);
                self.release(done.request)
            }
            Event::FirstToken { request, waited_ns } => {
                let served = self.served(request)?;
                // The reader has had the first token of a request that began again.
                if served.ttft_ns == 0 {
                    served.times.first_token_ns = waited_ns;
                    served.ttft_ns = now_ns.saturating_sub(served.arrived_ns);
                    self.open[request].first_token_ns = now_ns;
                }
                Ok(())
            }
            Event::Answered { request } => {
                let first_ns = self.open.get(request).map_or(now_ns, |open| open.first_token_ns);
                let served = self.served(request)?;
                served.times.decode_ns = now_ns.saturating_sub(first_ns);
                served.latency_ns = now_ns.saturating_sub(served.arrived_ns);
                self.open[request].at = None;
                self.answered += 1;
                self.bar.set_position(self.answered as u64);
                self.bar.set_message(format!("{} under way", self.arrived - self.answered));
                let actions = self.scheduler.answered(who.worker, request);
                self.carry_out(actions)
            }
        }
    }

    fn served(&mut self, request: usize) -> Result<&mut Served> {
        self.outcome.served.get_mut(request).context("a worker named a request that is none")
    }
}
