//! `prove simulate`: racks of 4 to 16 hosts under many seeded schedules, with crashes and pauses.

use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use cxl_shm::verify::Mutant;
use rackline_tests::scenario::{ALL, Scenario};
use rackline_tests::simulation::{self, Plan, Tally};

/// Of these more than 100,000 are on the hosts that were asked for.
const SCHEDULES: u64 = 104_000;

/// Runs seeded schedules of all scenarios, a share of them for each family, and prints the seed of
/// each schedule that fails.
#[derive(Args)]
pub(crate) struct Options {
    /// Schedules to run; 104,000 when neither this nor `--seconds` is given.
    #[arg(long)]
    schedules: Option<u64>,
    /// Begin schedules for this long.
    #[arg(long)]
    seconds: Option<u64>,
    /// Seed of the first.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Fewest and most hosts, for instance 4..16.
    #[arg(long, default_value = "4..16")]
    hosts: Hosts,
    /// Only this scenario.
    #[arg(long)]
    scenario: Option<String>,
    /// Threads, one a core when not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Breaks this rule of the protocols. `prove explore --mutants` prints the names. Schedules
    /// then have to fail, and the exit code is 1.
    #[arg(long, value_parser = mutant)]
    mutant: Option<Mutant>,
    /// Print one JSON object instead of lines.
    #[arg(long)]
    json: bool,
}

fn mutant(name: &str) -> Result<Mutant, String> {
    let names = || Mutant::ALL.map(|mutant| format!("{mutant:?}")).join(", ");
    Mutant::from_name(name).ok_or_else(|| format!("no such mutant; there are {}", names()))
}

/// Fewest and most hosts.
#[derive(Clone, Copy)]
struct Hosts(usize, usize);

impl FromStr for Hosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (fewest, most) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| text.parse().map_err(|_| format!("{text}: not a number"));
        let (fewest, most) = (number(fewest)?, number(most)?);
        // Three hosts are the fewest of which one can die while two go on.
        if (3..=most).contains(&fewest) && most <= 16 {
            Ok(Self(fewest, most))
        } else {
            Err(format!("{text}: give a range of hosts between 3 and 16"))
        }
    }
}

pub(crate) fn run(options: &Options) -> ExitCode {
    let scenarios: Vec<Scenario> = match &options.scenario {
        Some(name) => ALL.iter().filter(|scenario| scenario.name == name).copied().collect(),
        None => ALL.iter().filter(|scenario| scenario.family.turns() > 0).copied().collect(),
    };
    if scenarios.is_empty() {
        let names: Vec<_> = ALL.iter().map(|scenario| scenario.name).collect();
        eprintln!("prove: there is no such scenario; there are {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    let Hosts(fewest, most) = options.hosts;
    let bounded = options.schedules.is_some() || options.seconds.is_some();
    let one = options.schedules == Some(1);
    if !one {
        // Told below, once, with the command that replays it.
        std::panic::set_hook(Box::new(|_| ()));
    }
    let tally = simulation::run(&Plan {
        scenarios: &scenarios,
        first_seed: options.seed,
        schedules: if bounded { options.schedules } else { Some(SCHEDULES) },
        seconds: options.seconds,
        hosts: (fewest, most),
        threads: options.threads.unwrap_or_else(crate::cores),
        broken: options.mutant,
    });
    report(options, &scenarios, &tally);
    if tally.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(options: &Options, scenarios: &[Scenario], tally: &Tally) {
    let Hosts(fewest, most) = options.hosts;
    let replay = |scenario: &str, seed: u64| {
        format!(
            "cargo run --release -p rackline-tests --bin prove -- simulate --scenario {scenario} \
             --seed {seed} --schedules 1 --hosts {fewest}..{most}{}",
            options.mutant.map(|mutant| format!(" --mutant {mutant:?}")).unwrap_or_default(),
        )
    };
    let any_hosts: u64 = scenarios
        .iter()
        .filter(|scenario| scenario.family.takes_any_hosts())
        .filter_map(|scenario| tally.schedules.get(scenario.name))
        .sum();
    let mutant = options.mutant.map(|mutant| format!("{mutant:?}"));
    let a_second = tally.total() * 1000 / tally.elapsed_ms.max(1);
    if options.json {
        let failures = tally.failures.iter().map(|failure| {
            serde_json::json!({
                "scenario": failure.scenario,
                "seed": failure.seed,
                "message": failure.message,
                "replay": replay(failure.scenario, failure.seed),
            })
        });
        let object = serde_json::json!({
            "schedules": tally.total(),
            "on_these_hosts": any_hosts,
            "mutant": mutant,
            "by_scenario": tally.schedules,
            "operations": tally.steps,
            "elapsed_ms": tally.elapsed_ms,
            "schedules_a_second": a_second,
            "first_seed": options.seed,
            "hosts": [fewest, most],
            "failures": failures.collect::<Vec<_>>(),
        });
        println!("{object}");
        return;
    }
    for scenario in scenarios {
        let count = tally.schedules.get(scenario.name).copied().unwrap_or(0);
        println!("{:>8} of {} ({})", count, scenario.name, scenario.family.name());
    }
    for failure in &tally.failures {
        println!("FAILED: {} with seed {}: {}", failure.scenario, failure.seed, failure.message);
        println!("  replay: {}", replay(failure.scenario, failure.seed));
    }
    println!(
        "{} schedules of {} scenarios{}, {any_hosts} of them on {fewest} to {most} hosts and the \
         others on 2 to 5, seeds from {}, {} operations in {} ms ({a_second} a second): {} failed",
        tally.total(),
        scenarios.len(),
        mutant.map(|mutant| format!(" of {mutant}")).unwrap_or_default(),
        options.seed,
        tally.steps,
        tally.elapsed_ms,
        tally.failures.len(),
    );
}
