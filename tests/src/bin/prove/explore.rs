//! `prove explore`: every run of small configurations of the real protocols.

use std::process::ExitCode;

use clap::Args;
use cxl_shm::fabric::explored::{Exploration, Limits, Memory, Verdict};
use cxl_shm::proof::Scenario;
use rackline_tests::exploration::{broken, scenarios};

/// Explores small configurations of the protocols exhaustively.
///
/// Each runs on memory whose caches do nothing by themselves (sticky) or anything at any time
/// (adversarial), with writes that have arrived after a fence, or only after they were read back
/// (posted). The exit code is 1, and a shortest trace is printed, when something does not hold.
#[derive(Args)]
pub(crate) struct Options {
    /// Only this scenario; it may be a long one.
    #[arg(long)]
    scenario: Option<String>,
    /// Also the scenarios that take minutes.
    #[arg(long)]
    long: bool,
    /// Most states of one exploration. One that reaches a limit is bounded: it proves nothing.
    #[arg(long, default_value_t = 30_000_000)]
    states_max: usize,
    /// Longest time of one exploration, in seconds.
    #[arg(long, default_value_t = 600)]
    seconds_max: u64,
    /// One JSON object a row, and one for the figures at the end.
    #[arg(long)]
    json: bool,
    /// Breaks one rule of a protocol at a time, and demands that the exploration that is to notice
    /// it does.
    #[arg(long, conflicts_with = "scenario")]
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
    let wanted: Vec<_> = all.iter().filter(wanted).collect();
    if wanted.is_empty() {
        eprintln!("prove: there is no such scenario; `prove explore --list` names them all");
        return ExitCode::FAILURE;
    }
    let limits = Limits { states: options.states_max, ms: options.seconds_max * 1000 };
    if options.mutants {
        return run_mutants(options, &all, limits);
    }
    let mut total = Total::default();
    if !options.json {
        println!(
            "{:28} {:20} {:>10} {:>11} {:>5} {:>7}  result",
            "scenario", "memory", "states", "transitions", "depth", "seconds"
        );
    }
    for scenario in wanted {
        for memory in Memory::ALL {
            let exploration = scenario.explore(memory, None, None, limits);
            print_row(options, scenario, memory, &exploration);
            total.add(&exploration);
        }
    }
    total.print(options);
    if total.refuted == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_mutants(options: &Options, all: &[Scenario], limits: Limits) -> ExitCode {
    let (mut tried, mut caught) = (0, 0);
    for it in broken().iter().filter(|it| options.long || !it.long) {
        let Some(scenario) = all.iter().find(|scenario| scenario.name == it.scenario) else {
            continue;
        };
        let Exploration { states, depth, ms, verdict, .. } =
            scenario.explore(it.memory, None, Some(it.mutant), limits);
        let is_caught = matches!(verdict, Verdict::Refuted(_));
        tried += 1;
        caught += usize::from(is_caught);
        let (mutant, name, memory) = (format!("{:?}", it.mutant), it.scenario, it.memory);
        if options.json {
            println!(
                "{{\"mutant\":\"{mutant}\",\"scenario\":\"{name}\",\"memory\":\"{memory}\",\
                 \"states\":{states},\"depth\":{depth},\"ms\":{ms},\"caught\":{is_caught}}}"
            );
        } else {
            let verdict = if is_caught { "caught" } else { "not caught" };
            println!(
                "{mutant:24} {name:18} {:14} {states:>9} {depth:>4}  {verdict}",
                memory.to_string()
            );
        }
    }
    if options.json {
        println!("{{\"mutants\":{tried},\"caught\":{caught}}}");
    } else {
        println!("{tried} mutants, {caught} caught, {} not", tried - caught);
    }
    if caught == tried { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_row(options: &Options, scenario: &Scenario, memory: Memory, exploration: &Exploration) {
    let Exploration { states, transitions, depth, ms, verdict, .. } = exploration;
    let result = match verdict {
        Verdict::Holds => "holds",
        Verdict::Bounded => "bounded",
        Verdict::Refuted(_) => "refuted",
    };
    if options.json {
        println!(
            "{{\"scenario\":\"{}\",\"memory\":\"{memory}\",\"states\":{states},\
             \"transitions\":{transitions},\"depth\":{depth},\"ms\":{ms},\"result\":\"{result}\"}}",
            scenario.name
        );
    } else {
        println!(
            "{:28} {:20} {states:>10} {transitions:>11} {depth:>5} {:>3}.{:03}  {result}",
            scenario.name,
            memory.to_string(),
            ms / 1000,
            ms % 1000,
        );
    }
    if let Verdict::Refuted(refutation) = verdict {
        // Beside the rows, so that these can be read by a program.
        for event in &refutation.trace {
            eprintln!("    {event}");
        }
        eprintln!("{} on {memory}: {}", scenario.name, refutation.message);
    }
}

#[derive(Default)]
struct Total {
    explorations: usize,
    states: usize,
    transitions: u64,
    ms: u64,
    bounded: usize,
    refuted: usize,
}

impl Total {
    fn add(&mut self, exploration: &Exploration) {
        self.explorations += 1;
        self.states += exploration.states;
        self.transitions += exploration.transitions;
        self.ms += exploration.ms;
        self.bounded += usize::from(exploration.verdict == Verdict::Bounded);
        self.refuted += usize::from(matches!(exploration.verdict, Verdict::Refuted(_)));
    }

    fn print(&self, options: &Options) {
        let Self { explorations, states, transitions, ms, bounded, refuted } = self;
        if options.json {
            println!(
                "{{\"explorations\":{explorations},\"states\":{states},\
                 \"transitions\":{transitions},\"ms\":{ms},\"bounded\":{bounded},\
                 \"refuted\":{refuted}}}"
            );
        } else {
            let proved = explorations - bounded - refuted;
            println!(
                "{explorations} explorations, {states} states, {transitions} transitions in \
                 {}.{:03} s: {proved} hold, {bounded} bounded, {refuted} refuted",
                ms / 1000,
                ms % 1000,
            );
        }
    }
}
