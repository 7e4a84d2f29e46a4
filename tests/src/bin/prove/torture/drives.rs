//! `prove torture --drives`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use rackline_tests::drive_torture::storm::{self, Figures, Plan};

use super::Options;

pub(super) fn run(options: &Options) -> ExitCode {
    match (torture(options), options.lying) {
        (Ok(figures), false) => {
            print(options, &figures);
            ExitCode::SUCCESS
        }
        (Ok(figures), true) => {
            print(options, &figures);
            eprintln!("prove torture: drives have lied, and nothing was noticed");
            ExitCode::FAILURE
        }
        (Err(error), true) => {
            println!("drives that lie were noticed: {error:#}");
            ExitCode::SUCCESS
        }
        (Err(error), false) => {
            eprintln!("prove torture: {error:#}");
            eprintln!(
                "again: prove torture --drives --seconds {} --seed {} --processes {} (the kills are the \
                 same; how the kernel runs the processes is not)",
                options.seconds, options.seed, options.processes
            );
            ExitCode::FAILURE
        }
    }
}

fn torture(options: &Options) -> Result<Figures> {
    let interrupted = super::interrupted()?;
    let plan = Plan { engines: options.processes, seed: options.seed, lying: options.lying };
    let program = std::env::current_exe().context("cannot find this program's file")?;
    storm::run(plan, options.seconds, &program, &interrupted)
}

fn print(options: &Options, figures: &Figures) {
    if options.json {
        println!("{}", serde_json::json!({ "seed": options.seed, "figures": figures }));
        return;
    }
    let Figures { agents_killed, engines_killed, kills_at_points, troubles, .. } = figures;
    let Figures { read, restored, published, missed, .. } = figures;
    let Figures { acknowledged, rolls, verified, .. } = figures;
    println!(
        "{agents_killed} agents and {engines_killed} engines killed ({kills_at_points} at crash \
         points), {troubles} faults of drives, {read} blocks read by engines, {restored} of them \
         from drives, {published} published, {acknowledged} acknowledged by drives, {rolls} roll \
         calls, {verified} acknowledged blocks compared; misses: {missed:?}"
    );
}
