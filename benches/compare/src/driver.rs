//! Has all contenders take turns.

use std::io::IsTerminal;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::Options;
use crate::contender::Contender;
use crate::peer_process::Pair;
use crate::protocol::{Blocks, Order, Reply};
use crate::rounds::{Case, Measured, Plan, Results, Round};

const GIB: f64 = (1u64 << 30) as f64;

/// Measures everything. A contender other than the ceilings and Rackline that cannot take part is
/// left out, and said.
pub(crate) fn run(options: &Options, plan: &Plan) -> Result<Results> {
    let orders = plan.cases.len() as u64 * u64::from(plan.rounds + 1);
    let bar = progress_bar(orders + u64::from(plan.lookups));
    let (mut measured, mut lookups_us, mut absent) = (Vec::new(), Vec::new(), Vec::new());
    let smallest = plan.cases.iter().map(|case| case.block_bytes).min().context("no sizes")?;
    let mut order = 0;
    for cases in plan.sizes() {
        let mut pairs = start(options, plan, &mut absent)?;
        for case in cases {
            let mut rounds = vec![Vec::new(); pairs.len()];
            for round in 0..=plan.rounds {
                order += 1;
                bar.set_message(format!("{} KiB, {} a call", case.block_bytes / 1024, case.batch));
                let results = one_round(&mut pairs, plan.blocks(*case, order)?)?;
                // The first warms up.
                if round > 0 {
                    rounds.iter_mut().zip(results).for_each(|(rounds, result)| rounds.push(result));
                }
                bar.inc(1);
            }
            for (pair, rounds) in pairs.iter().zip(rounds) {
                measured.push(Measured { contender: pair.contender, case: *case, rounds });
            }
        }
        if lookups_us.is_empty() && cases.iter().any(|case| case.block_bytes == smallest) {
            order += 1;
            lookups_us = lookups(&mut pairs, plan, smallest, order, &bar)?;
        }
    }
    bar.finish_and_clear();
    Ok(Results {
        rounds: plan.rounds,
        round_bytes: plan.round_bytes,
        measured,
        lookups_us,
        lookup_keys: plan.lookup_keys,
        absent,
    })
}

/// Starts all that have not been found to be absent.
fn start(
    options: &Options,
    plan: &Plan,
    absent: &mut Vec<(Contender, String)>,
) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for contender in &plan.contenders {
        if absent.iter().any(|(known, _)| known == contender) {
            continue;
        }
        match Pair::start(*contender, plan, &options.folder) {
            Ok(pair) => pairs.push(pair),
            Err(error) if must_run(*contender) => return Err(error),
            Err(error) => {
                eprintln!("!!! {contender} does not take part: {error:#}");
                absent.push((*contender, format!("{error:#}")));
            }
        }
    }
    Ok(pairs)
}

fn must_run(contender: Contender) -> bool {
    contender == Contender::Rackline || Contender::CEILINGS.contains(&contender)
}

/// Everybody writes, then everybody reads: between the two sides of a contender the others' bytes
/// have gone through the caches.
fn one_round(pairs: &mut [Pair], blocks: Blocks) -> Result<Vec<Round>> {
    for pair in &mut *pairs {
        pair.writer.order(Order::Reset)?;
        pair.writer.order(Order::Prepare(blocks))?;
    }
    let puts: Vec<Reply> = pairs
        .iter_mut()
        .map(|pair| complete(pair.writer.order(Order::Put(blocks))?, blocks))
        .collect::<Result<_>>()?;
    let gets: Vec<Reply> = pairs
        .iter_mut()
        .map(|pair| complete(pair.reader.order(Order::Get(blocks))?, blocks))
        .collect::<Result<_>>()?;
    let bytes = blocks.total_bytes() as f64;
    let speed = |reply: &Reply| bytes / reply.wall_ns.max(1) as f64;
    let cpu = |reply: &Reply| reply.cpu_ns as f64 / 1e9 / (bytes / GIB);
    let rounds = puts.iter().zip(&gets).map(|(put, get)| Round {
        put_gb_per_s: speed(put),
        get_gb_per_s: speed(get),
        put_cpu_s_per_gib: cpu(put),
        get_cpu_s_per_gib: cpu(get),
    });
    Ok(rounds.collect())
}

fn complete(reply: Reply, blocks: Blocks) -> Result<Reply> {
    if reply.blocks != blocks.count {
        bail!("{} blocks of {} were moved", reply.blocks, blocks.count);
    }
    Ok(reply)
}

/// Microseconds of lookups of blocks that are there, where a store has an index.
fn lookups(
    pairs: &mut [Pair],
    plan: &Plan,
    block_bytes: u32,
    order: u64,
    bar: &ProgressBar,
) -> Result<Vec<(Contender, Vec<f64>)>> {
    bar.set_message("lookups");
    let case = Case { block_bytes, batch: 32 };
    let blocks = plan.blocks(case, order)?;
    // So that every index has these blocks, and every reader has used it.
    one_round(pairs, blocks)?;
    let keys = Blocks { count: plan.lookup_keys, ..blocks };
    let mut lookups_us = vec![Vec::new(); pairs.len()];
    for _ in 0..plan.lookups {
        for (pair, lookups_us) in pairs.iter_mut().zip(&mut lookups_us) {
            let reply = pair.reader.order(Order::Lookup(keys))?;
            if reply.blocks == keys.count {
                lookups_us.push(reply.wall_ns as f64 / 1e3);
            } else if !Contender::CEILINGS.contains(&pair.contender) {
                bail!("{} found {} of {} blocks", pair.contender, reply.blocks, keys.count);
            }
        }
        bar.inc(1);
    }
    let named = pairs.iter().map(|pair| pair.contender).zip(lookups_us);
    Ok(named.filter(|(_, lookups_us)| !lookups_us.is_empty()).collect())
}

/// A bar on standard error; hidden when that is no terminal.
fn progress_bar(length: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}
