//! The placement planner: evaluating a choice of placements, and finding the best one.
//!
//! `cargo bench -p rackline-benches --bench placement`. The criterion groups watch each operation
//! over time; the table at the end gives microseconds, and the share of a decode step of 30 ms.

use std::error::Error;
use std::hint::black_box;
use std::time::Duration;

use criterion::Criterion;
use cxl_shm::clock::SystemClock;
use kv_cache::placement::{
    Batch, Discipline, MemoryModel, Model, Options, Outcome, Placement, Ratio, Request, evaluate,
    plan,
};
use rackline_benches::median;

const ROUNDS: usize = 41;
const STEP_US: f64 = 30_000.0;
const DISCIPLINES: [Discipline; 2] = [Discipline::Edf, Discipline::EqualShare];

/// A batch that a planner meets.
struct Case {
    name: &'static str,
    batch: Batch,
    limit_us: u64,
}

/// Requests of different lengths that need `percent` of all their blocks on the GPU at most, with
/// a link that brings `link` blocks a layer time.
fn case(
    name: &'static str,
    layers: u16,
    sizes: &[u64],
    (percent, link, limit_us): (u64, u64, u64),
) -> Result<Case, Box<dyn Error>> {
    let requests = sizes.iter().map(|&blocks| Request::new(blocks)).collect();
    let all: u64 = sizes.iter().sum::<u64>() * u64::from(layers);
    let room = all * percent / 100;
    let batch = Batch::new(layers.into(), Ratio::from_integer(link), room, requests)?;
    Ok(Case { name, batch, limit_us })
}

/// Lengths of 8K to 128K tokens, in blocks of 16: 4 and 16 requests, with little and much missing.
fn cases() -> Result<Vec<Case>, Box<dyn Error>> {
    let four = [512, 2048, 4096, 8192];
    let sixteen: Vec<u64> = (1..=16).map(|number| 512 * number).collect();
    let like: Vec<u64> = (0..16).map(|number| 4096 + number % 3).collect();
    Ok(vec![
        case("32 x 4, 10 % missing", 32, &four, (90, 1500, 100))?,
        case("32 x 4, 30 % missing", 32, &four, (70, 3000, 100))?,
        case("32 x 4, 30 % missing, slow link", 32, &four, (70, 800, 100))?,
        case("80 x 16, 10 % missing", 80, &sixteen, (90, 8000, 5000))?,
        case("80 x 16, 30 % missing", 80, &sixteen, (70, 20_000, 5000))?,
        case("80 x 16, 30 % missing, slow link", 80, &sixteen, (70, 8000, 5000))?,
        case("80 x 16, 20 % missing, like sizes", 80, &like, (80, 12_000, 5000))?,
    ])
}

fn main() -> Result<(), Box<dyn Error>> {
    let cases = cases()?;
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for case in &cases {
        let placements = some_placements(&case.batch);
        criterion.bench_function(&format!("evaluate {}", case.name), |bencher| {
            bencher.iter(|| evaluate(black_box(&case.batch), &placements, Model::default()));
        });
    }
    criterion.final_summary();
    println!("\none placement for each request, evaluated");
    for case in &cases {
        for discipline in DISCIPLINES {
            print_evaluation(case, discipline)?;
        }
    }
    println!("\nthe best placements, stopped at the limit");
    for case in &cases {
        for discipline in DISCIPLINES {
            print_plan(case, discipline)?;
        }
    }
    Ok(())
}

/// Every third, fourth, ... layer of the requests offloaded.
fn some_placements(batch: &Batch) -> Vec<Placement> {
    (3..)
        .map(|distance| Placement::every(distance, batch.layers()))
        .take(batch.requests().len())
        .collect()
}

fn print_evaluation(case: &Case, discipline: Discipline) -> Result<(), Box<dyn Error>> {
    let placements = some_placements(&case.batch);
    let clock = SystemClock::start();
    let model = Model { discipline, memory: MemoryModel::Paper };
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let start = clock.now_us();
        for _ in 0..100 {
            black_box(evaluate(black_box(&case.batch), &placements, model)?);
        }
        rounds.push((clock.now_us() - start) as f64 / 100.0);
    }
    let us = median(rounds);
    println!(
        "{:<36} {:<11} {us:>9.2} us {:>9.4} % of a step",
        case.name,
        name(discipline),
        share(us)
    );
    Ok(())
}

fn print_plan(case: &Case, discipline: Discipline) -> Result<(), Box<dyn Error>> {
    let options =
        Options { model: Model { discipline, memory: MemoryModel::Paper }, ..Options::default() };
    let clock = SystemClock::start();
    let mut rounds = Vec::new();
    let mut found = None;
    for _ in 0..ROUNDS {
        let start = clock.now_us();
        found = Some(plan(&case.batch, &options, &mut || clock.now_us() - start < case.limit_us)?);
        rounds.push((clock.now_us() - start) as f64);
    }
    let us = median(rounds);
    let result = match found {
        Some(Outcome::Plan(plan)) if plan.complete => {
            format!("optimal, stall {}", plan.evaluation.stall_blocks)
        }
        Some(Outcome::Plan(plan)) => {
            let (stall, bound) = (plan.evaluation.stall_blocks, plan.bound_blocks);
            format!("stall {stall}, not under {bound}")
        }
        Some(Outcome::Infeasible(reason)) => format!("infeasible: {reason}"),
        _ => "stopped before a plan".to_owned(),
    };
    println!(
        "{:<36} {:<11} {us:>9.0} us {:>9.2} % of a step  {result}",
        case.name,
        name(discipline),
        share(us)
    );
    Ok(())
}

fn name(discipline: Discipline) -> &'static str {
    match discipline {
        Discipline::Edf => "edf",
        Discipline::EqualShare => "equal-share",
    }
}

fn share(us: f64) -> f64 {
    100.0 * us / STEP_US
}
