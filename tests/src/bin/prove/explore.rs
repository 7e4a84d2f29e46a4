//! `prove explore`: every run of small configurations of the real protocols.

mod rows;

use std::process::ExitCode;

use clap::Args;
use cxl_shm::verify::explored::{Limits, Memory};
use cxl_shm::verify::scenarios::{Broken, Scenario};
use rackline_tests::exploration::{broken, scenarios};

use rows::{Row, Total};

/// Explores small configurations of the protocols exhaustively.
///
/// Each runs on memory whose caches do nothing by themselves (sticky) or anything at any time
/// (adversarial), with writes that have arrived after a fence, or only after they were read back
/// (posted). A row also tells the number of states at which each broken rule of its scenario is
/// refuted on the same memory. The exit code is 1 when something does not hold (a shortest trace is
/// printed), or when no scenario refutes a broken rule.
#[derive(Args)]
pub(crate) struct Options {
    /// Only this scenario; it may be a long one.
    #[arg(long)]
    scenario: Option<String>,
    /// Only this memory: `sticky`, `adversarial`, `sticky, posted` or `adversarial, posted`.
    #[arg(long)]
    memory: Option<String>,
    /// Also the scenarios that take minutes.
    #[arg(long)]
    long: bool,
    /// Most states of one exploration. One that reaches a limit is bounded: it proves nothing.
    #[arg(long, default_value_t = 30_000_000)]
    states_max: usize,
    /// Longest time of one exploration, in seconds.
    #[arg(long, default_value_t = 600)]
    seconds_max: u64,
    /// Explorations that run at a time, one a core when not given.
    #[arg(long)]
    threads: Option<usize>,
    /// One JSON object a row, and one for the figures at the end.
    #[arg(long)]
    json: bool,
    /// Breaks one rule of a protocol at a time. Fails when the scenario of that rule does not
    /// notice it. Explores nothing else.
    #[arg(long)]
    mutants: bool,
    /// Lists the scenarios and explores nothing.
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(options: &Options) -> ExitCode {
    let all = scenarios();
    if options.list {
        for Scenario { name, about, long, .. } in &all {
            println!("{name:28} {}{about}", if *long { "(long) " } else { "" });
        }
        return ExitCode::SUCCESS;
    }
    let wanted = |scenario: &&Scenario| match &options.scenario {
        Some(name) => scenario.name == name,
        None => options.long || !scenario.long,
    };
    let wanted: Vec<Scenario> = all.iter().filter(wanted).copied().collect();
    if wanted.is_empty() {
        eprintln!("prove: there is no such scenario; `prove explore --list` names them all");
        return ExitCode::FAILURE;
    }
    let is_wanted =
        |memory: &Memory| options.memory.as_ref().is_none_or(|name| *name == memory.to_string());
    let memories: Vec<Memory> = Memory::ALL.into_iter().filter(is_wanted).collect();
    if memories.is_empty() {
        eprintln!(
            "prove: there is no such memory; it is one of {}",
            Memory::ALL.map(|memory| format!("\"{memory}\"")).join(" ")
        );
        return ExitCode::FAILURE;
    }
    let limits = Limits { states: options.states_max, ms: options.seconds_max * 1000 };
    let threads = options
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let mut rows = Vec::new();
    for scenario in wanted {
        let mutants: Vec<Broken> =
            broken().into_iter().filter(|it| it.scenario == scenario.name).collect();
        rows.extend(memories.iter().map(|memory| Row::new(scenario, *memory, &mutants)));
    }
    if options.mutants {
        rows.iter_mut().for_each(Row::keep_declared_mutants);
        rows.retain(Row::has_mutants);
    }
    if !options.json {
        rows::print_head();
    }
    let mut total = Total::default();
    rows::explore_each(rows, threads, limits, !options.mutants, |row| {
        row.print(options.json);
        total.add(row);
    });
    total.print(options.json);
    if total.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
