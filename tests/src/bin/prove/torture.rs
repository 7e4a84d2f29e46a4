//! `prove torture`: real processes over one file, killed with SIGKILL at any moment.

mod drives;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::Args;
use cxl_shm::crash::CrashPoint;
use cxl_shm::layout::LockProtocol;
use cxl_shm::verify::Mutant;
use rackline_tests::drive_torture;
use rackline_tests::torture::coverage;
use rackline_tests::torture::storm::{self, Figures, Plan};
use rackline_tests::torture::{
    ChildOptions, Memory, WORKERS_MAX, mutant_noticed, needs_scarce_chunks, run_child,
};

/// Kills real processes with SIGKILL while they use one region, and checks that nothing that was
/// acknowledged is lost, half done, doubled or leaked, and that nothing is wedged.
#[derive(Args)]
pub(crate) struct Options {
    /// How long processes are killed.
    #[arg(long, default_value_t = 20)]
    seconds: u64,

    /// Decides which process is killed when, and what each process does. The kernel's scheduling
    /// does not follow from it: a failure may need several runs of its seed to appear again.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Processes that use the pool. Two lock managers run besides, one of them as a standby.
    #[arg(long, default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    processes: u32,

    /// What stands for the memory between hosts.
    #[arg(long, value_enum, default_value_t = Memory::Shadowed)]
    fabric: Memory,

    /// How locks between hosts work.
    #[arg(long, value_enum, default_value_t = Locks::Arbitrated)]
    lock: Locks,

    /// Whole hosts die too, and stay away: the lock managers declare them dead and recover them.
    #[arg(long)]
    declare: bool,

    /// Chunks run out: blocks make room for others all the time, some of them are held meanwhile,
    /// and processes die there more often than anywhere else.
    #[arg(long)]
    scarce: bool,

    /// Processes are also stopped for up to 4 s, whatever locks they hold, and then continue.
    #[arg(long)]
    stops: bool,

    /// Break a rule of the protocols, to show that the checks notice it. The command succeeds when
    /// a check fails within the given seconds. Works with arbitrated locks, for rules that random
    /// kills can notice; `prove explore --mutants --long` and `prove simulate --mutant` test all.
    #[arg(long, value_name = "RULE", value_parser = mutant_noticed, conflicts_with = "points")]
    mutant: Option<Mutant>,

    /// Instead of killing at random, let a process die once at each named crash point, on mapped
    /// and on shadowed memory.
    #[arg(long)]
    points: bool,

    /// Instead, torture two hosts with drives: agents and engines are killed, and drives fail. What a
    /// drive has acknowledged must be found again. On mapped memory.
    #[arg(long, conflicts_with_all = ["fabric", "lock", "declare", "scarce", "stops", "mutant", "points"])]
    drives: bool,

    /// With `--drives`: the drives of the first host lose writes and do not say so, to show that the
    /// checks notice it. The command succeeds when a check fails within the given seconds.
    #[arg(long, requires = "drives")]
    lying: bool,

    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Locks {
    /// A lock manager grants.
    Arbitrated,
    /// Numbers, and no manager.
    Bakery,
}

pub(crate) fn run(options: &Options) -> ExitCode {
    if options.points {
        return cover(options);
    }
    if options.drives {
        return drives::run(options);
    }
    match (torture(options), options.mutant) {
        (Ok(figures), None) => {
            print(options, &figures);
            ExitCode::SUCCESS
        }
        (Ok(figures), Some(mutant)) => {
            print(options, &figures);
            eprintln!("prove torture: {mutant:?} is broken, and nothing was noticed");
            ExitCode::FAILURE
        }
        (Err(error), Some(mutant)) => {
            println!("{mutant:?} was noticed: {error:#}");
            ExitCode::SUCCESS
        }
        (Err(error), None) => {
            eprintln!("prove torture: {error:#}");
            eprintln!(
                "again: prove torture --seconds {} --seed {} --processes {} --fabric {} --lock {}{}{}{} \
                 (the kills are the same; how the kernel runs the processes is not)",
                options.seconds,
                options.seed,
                options.processes,
                name(options.fabric),
                name(options.lock),
                if options.declare { " --declare" } else { "" },
                if options.scarce { " --scarce" } else { "" },
                if options.stops { " --stops" } else { "" },
            );
            ExitCode::FAILURE
        }
    }
}

/// A death at every crash point.
fn cover(options: &Options) -> ExitCode {
    let covered = std::env::current_exe()
        .context("cannot find this program's file")
        .and_then(|program| coverage::run(&program, &interrupted()?));
    let covered = match covered {
        Ok(covered) => covered,
        Err(error) => {
            eprintln!("prove torture --points: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let names = |points: &[CrashPoint]| points.iter().map(|point| point.name()).collect::<Vec<_>>();
    let (unreached, missing) = (names(&covered.unreached), names(&covered.missing()));
    if options.json {
        println!("{}", serde_json::json!({ "survived": covered.deaths, "unreached": unreached }));
    } else {
        println!(
            "{} deaths at {} named crash points survived; points that nobody reaches: {unreached:?}",
            covered.deaths,
            CrashPoint::ALL.len() - unreached.len(),
        );
        for (point, why) in coverage::ELSEWHERE {
            println!("{}: {why}", point.name());
        }
    }
    let stale = names(&covered.stale());
    if !missing.is_empty() || !stale.is_empty() {
        eprintln!(
            "prove torture --points: no process comes to {missing:?}; processes do come to \
             {stale:?}, which are listed as not reached"
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// A child of a run. For `prove torture` itself.
#[derive(Args)]
pub(crate) struct Child {
    #[command(flatten)]
    options: ChildOptions,
}

pub(crate) fn run_one(child: &Child) -> ExitCode {
    match run_child(&child.options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("prove torture-child: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A child of a run with drives. For `prove torture --drives` itself.
#[derive(Args)]
pub(crate) struct DrivesChild {
    #[command(flatten)]
    options: drive_torture::ChildOptions,
}

pub(crate) fn run_one_with_drives(child: &DrivesChild) -> ExitCode {
    match drive_torture::run_child(&child.options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("prove torture-drives-child: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Set by SIGINT and SIGTERM: processes and files go before this one does.
fn interrupted() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .context("cannot handle signals")?;
    }
    Ok(interrupted)
}

fn torture(options: &Options) -> Result<Figures> {
    let interrupted = interrupted()?;
    let (locks, managers) = match options.lock {
        Locks::Arbitrated => (LockProtocol::Arbitrated, 2),
        // Locks need none; deaths do.
        Locks::Bakery => (LockProtocol::Bakery, if options.declare { 2 } else { 0 }),
    };
    let plan = Plan {
        workers: options.processes,
        managers,
        memory: options.fabric,
        locks,
        seed: options.seed,
        declare: options.declare,
        scarce: options.scarce || options.mutant.is_some_and(needs_scarce_chunks),
        stops: options.stops,
        mutant: options.mutant,
    };
    let program = std::env::current_exe().context("cannot find this program's file")?;
    storm::run(plan, options.seconds, &program, &interrupted)
}

fn print(options: &Options, figures: &Figures) {
    if options.json {
        println!("{}", serde_json::json!({ "seed": options.seed, "figures": figures }));
        return;
    }
    let Figures { kills, kills_at_points, stops, restarts, locks, counts, repairs, .. } = figures;
    let Figures { takeovers, declared_dead, recovered, fenced, .. } = figures;
    let Figures { chunks, blocks_published, evicted, held, rests, .. } = figures;
    let Figures { objects, frees, foreign_frees, .. } = figures;
    let Figures { roots_named, roots_destroyed, verified, audited_bytes, .. } = figures;
    println!(
        "{kills} kills ({kills_at_points} at crash points), {stops} stops, {restarts} restarts, {locks} lock \
         acquisitions, {counts} counts ({repairs} completed for the dead), {takeovers} take-overs, \
         {declared_dead} hosts declared dead, {recovered} recovered by others, {fenced} processes \
         fenced themselves, {chunks} chunks taken or given back, {blocks_published} blocks \
         published, {evicted} of them made room for others, {held} held, {objects} objects allocated, {frees} freed ({foreign_frees} by another \
         worker), {roots_named} roots named, {roots_destroyed} destroyed, {verified} blocks, roots \
         and chunks verified, {rests} rests, {audited_bytes} bytes accounted for"
    );
}

fn name(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
