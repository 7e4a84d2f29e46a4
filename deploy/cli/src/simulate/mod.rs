//! `rackline simulate`: policies of offloading side by side, in virtual time.

mod chart;
mod words;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rackline_simulate::{
    Figure, Figures, Lengths, Order, PolicyKind, Profile, Series, Settings, simulate,
};
use serde::Serialize;

use crate::output::{progress_bar, say};

/// Simulate decoding with KV of layers in the pool: which policy keeps its promise to readers?
///
/// Requests arrive, decode in batches and leave, in virtual time. Each policy decides which layers'
/// KV of which request is offloaded, and which request waits. `ours` is the planner and the
/// controller of `rackline plan`; the others are as in the papers that they are named after.
/// `no-offload` offloads nothing: requests wait until they fit. The same seed gives the same figures.
///
///   rackline simulate
///   rackline simulate --profile h100-llama-8b --prompt-tokens 48000 --batch 16
///   rackline simulate --figure slo --svg slo.svg
///   rackline simulate --trace trace.jsonl --load 0.9 --json
///   rackline simulate --all figures
///
/// A profile says what a layer, a token of KV and the link take: a name, or a file with the form of
/// those in deploy/simulate/profiles. a6000-llama-8b (the default), a6000-cxl-llama-8b and
/// h100-llama-8b are built in; their times are rooflines, and real GPUs are slower.
///
/// TBT is the time between two tokens as the reader sees them, TPOT its mean over a request. "kept"
/// is the share that is no longer than the promise (--slo-scale). Requests that fit no GPU are
/// rejected; their tokens are not kept.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Options {
    /// GPU, model and link: a name, or a file that ends with .toml.
    #[arg(long, default_value = Profile::NAMES[0], value_name = "NAME|FILE.toml")]
    profile: String,

    /// Repeat the runs over the values of one setting.
    #[arg(long, value_enum, conflicts_with = "all")]
    figure: Option<FigureName>,

    /// Make every figure, as tables, and as NAME.svg and NAME.json in this folder.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "svg"])]
    all: Option<PathBuf>,

    /// How many requests arrive.
    #[arg(long, default_value_t = 200, value_name = "N")]
    requests: u64,

    /// Mean tokens of a prompt. Lengths are log-normal, with a deviation of the mean, and cut at 131,072:
    /// the mean of 48,000 becomes 44,800, and that of 131,072 becomes 89,000.
    #[arg(long, default_value_t = 24_000, value_name = "TOKENS",
          value_parser = clap::value_parser!(u64).range(64..=131_072))]
    prompt_tokens: u64,

    /// Mean tokens of an answer. Lengths are log-normal, with a deviation of half of the mean, and cut
    /// at 4,096.
    #[arg(long, default_value_t = 256, value_name = "TOKENS",
          value_parser = clap::value_parser!(u64).range(2..=4096))]
    output_tokens: u64,

    /// Take the lengths from a trace: JSON lines with "input_length" and "output_length".
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt_tokens", "output_tokens"])]
    trace: Option<PathBuf>,

    /// Requests that are in the batch or paused at most.
    #[arg(long, default_value_t = 8, value_name = "N")]
    batch: usize,

    /// Arrivals, as a share of what full batches without stalls would serve.
    #[arg(long, default_value_t = 0.7)]
    load: f64,

    /// Variation of the time between arrivals: 1 is a Poisson process, more is bursty.
    #[arg(long, default_value_t = 1.0, value_name = "CV")]
    arrival_cv: f64,

    /// The promised time between two tokens, in times of an iteration of a full batch of mean requests
    /// without stalls.
    #[arg(long, default_value_t = 1.5, value_name = "SCALE")]
    slo_scale: f64,

    /// GPUs over which each layer is divided (tensor parallelism).
    #[arg(long, default_value_t = 1, value_name = "N")]
    gpus: u16,

    /// Serve the waiting request with the shortest answer next, and not the first that arrived.
    #[arg(long)]
    shortest_first: bool,

    /// From which number the random numbers grow.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,

    /// Draw the figure into this file.
    #[arg(long, value_name = "FILE", requires = "figure")]
    svg: Option<PathBuf>,
}

/// What differs from run to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FigureName {
    /// The promise.
    Slo,
    /// The mean length of prompts.
    Context,
    /// How bursty arrivals are.
    Arrivals,
    /// The largest batch.
    Batch,
    /// How many arrive.
    Load,
    /// Over how many GPUs each layer is divided.
    Tensor,
    /// First come or shortest answer.
    Order,
    /// Which parts of `ours` work.
    Ablation,
    /// Every k-th layer against all sets of layers, on a model of 6 layers.
    Search,
}

impl FigureName {
    const fn figure(self) -> Figure {
        match self {
            Self::Slo => Figure::Slo,
            Self::Context => Figure::Context,
            Self::Arrivals => Figure::Arrivals,
            Self::Batch => Figure::Batch,
            Self::Load => Figure::Load,
            Self::Tensor => Figure::Tensor,
            Self::Order => Figure::Order,
            Self::Ablation => Figure::Ablation,
            Self::Search => Figure::Search,
        }
    }
}

/// What is printed of a figure.
#[derive(Debug, Serialize)]
struct Made<'a> {
    profile: &'a str,
    figure: &'static str,
    axis: &'static str,
    points: Vec<String>,
    series: Vec<Series>,
}

/// What is printed of single runs.
#[derive(Debug, Serialize)]
struct Runs<'a> {
    profile: &'a str,
    slo_ms: f64,
    policies: Vec<(&'static str, Figures)>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let settings = settings(options)?;
    if let Some(folder) = &options.all {
        return all(folder, &settings);
    }
    let Some(name) = options.figure else { return single(options, &settings) };
    if name == FigureName::Context && options.trace.is_some() {
        bail!(
            "--figure context varies how long prompts are, and --trace says how long they are: give \
             one of both"
        );
    }
    let made = make(name.figure(), &settings)?;
    if let Some(path) = &options.svg {
        write(path, &chart::draw(&made)?)?;
    }
    if options.json {
        say!("{}", serde_json::to_string(&made)?);
    } else {
        words::figure(&made);
    }
    Ok(())
}

fn single(options: &Options, settings: &Settings) -> Result<()> {
    let bar = progress_bar(
        settings.requests * PolicyKind::COMPARED.len() as u64,
        "{msg} [{bar:30}] {pos} of {len} requests, {eta} left",
    );
    let mut policies = Vec::new();
    for (number, policy) in PolicyKind::COMPARED.into_iter().enumerate() {
        bar.set_message(policy.name());
        let before = number as u64 * settings.requests;
        let figures = simulate(settings, policy, |served| bar.set_position(before + served))?;
        policies.push((policy.name(), figures));
    }
    bar.finish_and_clear();
    let slo_ms = settings.slo_ns() as f64 / 1e6;
    let runs = Runs { profile: &settings.profile.name, slo_ms, policies };
    if options.json {
        say!("{}", serde_json::to_string(&runs)?);
    } else {
        words::runs(&runs, settings);
    }
    Ok(())
}

fn all(folder: &Path, settings: &Settings) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("{} cannot be made", folder.display()))?;
    for figure in Figure::ALL {
        // A trace says how long prompts are.
        if figure == Figure::Context && matches!(settings.lengths, Lengths::Traced(_)) {
            say!("context: left out, as the trace says how long prompts are\n");
            continue;
        }
        let made = make(figure, settings)?;
        words::figure(&made);
        say!("");
        let file = |end: &str| folder.join(format!("{}.{end}", figure.name()));
        write(&file("svg"), &chart::draw(&made)?)?;
        write(&file("json"), &format!("{}\n", serde_json::to_string_pretty(&made)?))?;
    }
    Ok(())
}

fn make(figure: Figure, settings: &Settings) -> Result<Made<'_>> {
    let points: Vec<_> = figure.points(settings).into_iter().map(|point| point.label).collect();
    let runs = points.len() * figure.policies().len();
    let bar = progress_bar(runs as u64, "{msg} [{bar:30}] {pos} of {len} runs, {eta} left");
    bar.set_message(figure.name());
    let series = figure.run(settings, || bar.inc(1))?;
    bar.finish_and_clear();
    let (profile, axis) = (settings.profile.name.as_str(), figure.axis());
    Ok(Made { profile, figure: figure.name(), axis, points, series })
}

fn settings(options: &Options) -> Result<Settings> {
    let lengths = match &options.trace {
        None => Lengths::Drawn {
            prompt_tokens: options.prompt_tokens,
            output_tokens: options.output_tokens,
        },
        Some(path) => {
            let file = File::open(path);
            let file = file.with_context(|| format!("{} cannot be read", path.display()))?;
            let read = Lengths::read(BufReader::new(file));
            let (lengths, passed_over) = read.with_context(|| path.display().to_string())?;
            if passed_over > 0 {
                tracing::warn!(
                    requests = passed_over,
                    "answers of fewer than two tokens have no time between tokens: passed over"
                );
            }
            lengths
        }
    };
    let order = if options.shortest_first { Order::ShortestFirst } else { Order::Arrival };
    Ok(Settings {
        ranks: options.gpus,
        batch_max: options.batch,
        order,
        slo_scale: options.slo_scale,
        load: options.load,
        requests: options.requests,
        lengths,
        arrival_cv: options.arrival_cv,
        seed: options.seed,
        ..Settings::new(profile(&options.profile)?)
    })
}

fn profile(name: &str) -> Result<Profile> {
    let path = Path::new(name);
    if path.extension().is_none_or(|end| end != "toml") {
        return Ok(Profile::named(name)?);
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("{name} cannot be read"))?;
    Profile::read(&text).with_context(|| name.to_owned())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}
