//! `rackline plan`: which layers' KV of which request stays on the GPU.

mod input;
mod picture;
mod release;
mod words;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use cxl_shm::clock::{Clock as _, SystemClock};
use kv_cache::placement::{
    self, Batch, BigRational, Discipline, Infeasible, MemoryModel, Model, Outcome, Placement,
    Space, Timeline, evaluate, timeline, window_steps,
};
use serde::{Serialize, Serializer};

use self::input::Task;
use self::release::Released;
use crate::output::{complain, say};

/// Plan which layers' KV of which request stays on the GPU while it decodes.
///
/// The KV of long requests does not fit on a GPU. Layers that are offloaded lie in the pool, and
/// are brought to the GPU in each decode iteration before they execute. The command finds the
/// placements with the least stall that fit; of these, those that move the fewest blocks. With
/// "placements" in the input it evaluates these instead. The input is a JSON object:
///
///   {"layers": 9, "link_blocks_per_layer": 3, "gpu_blocks": 70,
///    "requests": [{"blocks_per_layer": 3}, {"blocks_per_layer": 6}]}
///
/// link_blocks_per_layer  blocks that the link brings in the time of one layer: 3, 2.5 or "5/2"
/// gpu_blocks             blocks for which the GPU has room
/// requests               blocks_per_layer of each, and optionally:
///   free_tokens          tokens for which its last block still has room (0)
///   slo_layer_times      promised time between two tokens, in layer times (no promise)
///   deposit_tokens       tokens that are computed and not released (0)
/// placements             for each request the layers offloaded, counted from 1, to evaluate them
/// decode_window          decode steps for which the plan has to hold (1)
/// window_max             most steps of which it is asked whether the plan holds (100)
/// block_tokens           tokens in a block (16)
/// alpha                  share of the tokens that may be later than promised (0)
///
/// Stalls are counted in times in which the link brings one block, exactly: "4" or "7/2". No plan
/// at all is an answer, too: the command says why, and ends with exit status 0.
///
///   rackline plan batch.json
///   rackline plan batch.json --discipline equal-share --memory safe --svg plan.svg
///   rackline plan batch.json --deposit 20
///   rackline plan - --json < batch.json
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Options {
    /// The input; "-" reads standard input.
    #[arg(value_name = "INPUT.json")]
    input: PathBuf,

    /// How the link serves several streams.
    #[arg(long, value_enum, default_value_t = LinkDiscipline::Edf)]
    discipline: LinkDiscipline,

    /// How memory on the GPU is counted.
    #[arg(long, value_enum, default_value_t = Memory::Paper)]
    memory: Memory,

    /// Search every set of layers, and not only every k-th layer: for at most 12 layers.
    #[arg(long)]
    full: bool,

    /// Stop the search after that long, with the best plan found and a bound for better ones.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    limit_ms: u64,

    /// Show when the tokens of so many decode steps are ready, and when they are released.
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    deposit: Option<u32>,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,

    /// Draw the iteration, layer by layer, into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum LinkDiscipline {
    /// One stream at a time, the one whose layer executes soonest.
    Edf,
    /// All streams at once, each at an equal share.
    EqualShare,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Memory {
    /// The largest buffer of a layer: Eq. 1 of the paper. Streams that fetch ahead take more.
    Paper,
    /// The most that streams have brought and layers have not yet used, at any time.
    Safe,
    /// Two buffers of a layer for each request: what the executor takes. Streams wait for a buffer.
    Buffers,
}

impl Options {
    fn model(&self) -> Model {
        Model {
            discipline: match self.discipline {
                LinkDiscipline::Edf => Discipline::Edf,
                LinkDiscipline::EqualShare => Discipline::EqualShare,
            },
            memory: match self.memory {
                Memory::Paper => MemoryModel::Paper,
                Memory::Safe => MemoryModel::Safe,
                Memory::Buffers => MemoryModel::Buffers,
            },
        }
    }
}

/// What the command prints.
#[derive(Debug, Serialize)]
struct Answer {
    feasible: bool,
    /// Exact: "4" or "7/2".
    #[serde(serialize_with = "in_full")]
    stall_blocks: Option<BigRational>,
    moved_blocks: Option<u64>,
    memory_blocks: Option<u64>,
    /// Layers offloaded, by request.
    placements: Vec<Vec<u16>>,
    window_steps: u32,
    /// No choice stalls less; only where the command has searched.
    #[serde(serialize_with = "in_full", skip_serializing_if = "Option::is_none")]
    bound_blocks: Option<BigRational>,
    /// Whether the search came to its end: no choice stalls less, or equally long with fewer blocks
    /// moved. Only where the command has searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    optimal: Option<bool>,
    /// Why it is not feasible.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// With --deposit: the tokens of requests with an SLO.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    released: Option<Released>,
    #[serde(skip)]
    timeline: Option<Timeline>,
}

fn in_full<S: Serializer>(ratio: &Option<BigRational>, serializer: S) -> Result<S::Ok, S::Error> {
    match ratio {
        Some(ratio) => serializer.collect_str(ratio),
        None => serializer.serialize_none(),
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let task = input::read(&options.input)?;
    let mut answer = match &task.placements {
        Some(placements) => evaluated(&task, placements, options)?,
        None => planned(&task, options)?,
    };
    if let Some(steps) = options.deposit
        && answer.stall_blocks.is_some()
    {
        let placements = task.placements.clone().map_or_else(|| placements(&task, &answer), Ok)?;
        answer.released = Released::of(&task, &placements, options.model(), steps)?;
        if answer.released.is_none() {
            complain!(
                "no deposit is shown: no request of the input has slo_layer_times, and without a \
                 promise each token is released when it is ready"
            );
        }
    }
    match (&options.svg, &answer.timeline) {
        (Some(path), Some(timeline)) => {
            let picture = picture::draw(&task.batch, timeline, &answer);
            let written = std::fs::write(path, picture);
            written.with_context(|| format!("{} cannot be written", path.display()))?;
        }
        (Some(path), None) => complain!(
            "{} is not written: there is no plan to draw; give \"placements\" to draw these",
            path.display()
        ),
        (None, _) => {}
    }
    if options.json {
        say!("{}", serde_json::to_string(&answer)?);
    } else {
        words::print(&task.batch, &answer);
    }
    Ok(())
}

/// What the given placements cost.
fn evaluated(task: &Task, placements: &[Placement], options: &Options) -> Result<Answer> {
    let (batch, model) = (&task.batch, options.model());
    let cost = evaluate(batch, placements, model)?;
    let window = window_steps(batch, placements, model, &task.horizon, &mut in_time(options))?;
    let (memory, room) = (cost.memory_blocks, batch.gpu_blocks());
    let feasible = window.steps >= task.horizon.steps;
    let reason = if !cost.feasible {
        Some(format!(
            "these placements need {memory} blocks, and the GPU has room for {room}: offload more \
             layers, or pause a request"
        ))
    } else if !feasible {
        let (steps, wanted) = (window.steps, task.horizon.steps);
        let why = window.late.map_or_else(
            || "the requests grow out of the memory".to_owned(),
            |request| format!("request {request} has too many late tokens"),
        );
        Some(format!("these placements hold for {steps} decode steps of {wanted}: {why}"))
    } else {
        None
    };
    Ok(Answer {
        feasible,
        stall_blocks: Some(cost.stall_blocks),
        moved_blocks: Some(cost.moved_blocks),
        memory_blocks: Some(memory),
        placements: layers(placements),
        window_steps: window.steps,
        bound_blocks: None,
        optimal: None,
        reason,
        released: None,
        timeline: Some(timeline(batch, placements, model)?),
    })
}

/// The best placements.
fn planned(task: &Task, options: &Options) -> Result<Answer> {
    let space = if options.full { Space::Full } else { Space::DistanceDriven };
    let model = options.model();
    let goal = placement::Options { model, space, horizon: task.horizon.clone() };
    let outcome = placement::plan(&task.batch, &goal, &mut in_time(options))?;
    let none = |window_steps, reason: String| Answer {
        feasible: false,
        stall_blocks: None,
        moved_blocks: None,
        memory_blocks: None,
        placements: Vec::new(),
        window_steps,
        bound_blocks: None,
        optimal: None,
        reason: Some(reason),
        released: None,
        timeline: None,
    };
    Ok(match outcome {
        Outcome::Plan(plan) => Answer {
            feasible: true,
            stall_blocks: Some(plan.evaluation.stall_blocks),
            moved_blocks: Some(plan.evaluation.moved_blocks),
            memory_blocks: Some(plan.evaluation.memory_blocks),
            placements: layers(&plan.placements),
            window_steps: plan.window_steps,
            bound_blocks: Some(plan.bound_blocks),
            optimal: Some(plan.complete),
            reason: None,
            released: None,
            timeline: Some(timeline(&grown(task)?, &plan.placements, model)?),
        },
        Outcome::Infeasible(reason) => {
            let window_steps = match reason {
                Infeasible::Window { window_steps, .. } => window_steps,
                _ => 0,
            };
            none(window_steps, reason.to_string())
        }
        _ => none(
            0,
            format!(
                "the search was stopped after {} ms without a plan that holds: give it more time \
                 with --limit-ms",
                options.limit_ms
            ),
        ),
    })
}

/// Says whether there is time left, from now on.
fn in_time(options: &Options) -> impl FnMut() -> bool {
    let clock = SystemClock::start();
    let end_ms = clock.now_ms().saturating_add(options.limit_ms);
    move || clock.now_ms() < end_ms
}

/// The batch for which the plan was made: that of the last step of its window.
fn grown(task: &Task) -> Result<Batch> {
    Ok(task.horizon.grown(&task.batch, task.horizon.steps)?)
}

fn layers(placements: &[Placement]) -> Vec<Vec<u16>> {
    placements.iter().map(|placement| placement.offloaded().to_vec()).collect()
}

/// The placements of an answer, as they were found.
fn placements(task: &Task, answer: &Answer) -> Result<Vec<Placement>> {
    let placement = |layers: &Vec<u16>| {
        let layers: Vec<_> = layers.iter().copied().map(u64::from).collect();
        Ok(Placement::new(&layers, task.batch.layers())?)
    };
    answer.placements.iter().map(placement).collect()
}
