//! The table.

use crate::contender::Contender;
use crate::rounds::{Results, Round, median, quantile};

/// Prints what came out, as Markdown.
pub(crate) fn print(results: &Results) {
    println!(
        "Medians of {} rounds of {} MiB, in brackets the middle half; writer and reader are two \
         processes, every byte is checked.\n",
        results.rounds,
        results.round_bytes >> 20
    );
    println!("### Put, GB/s (of the non-temporal copy)\n");
    table(results, Contender::Stream, |round| round.put_gb_per_s);
    println!("\n### Get, GB/s (of memcpy)\n");
    table(results, Contender::Memcpy, |round| round.get_gb_per_s);
    cpu(results);
    println!("\n### Lookup of {} keys, all there\n", results.lookup_keys);
    println!("| contender | us |\n|---|---|");
    for (contender, us) in &results.lookups_us {
        println!("| {contender} | {} |", spread(us.iter().copied()));
    }
    for (contender, why) in &results.absent {
        println!("\n{contender} did not take part: {why}");
    }
}

fn table(results: &Results, ceiling: Contender, figure: impl Fn(&Round) -> f64 + Copy) {
    let contenders = results.contenders();
    let names: Vec<_> = contenders.iter().map(|contender| contender.name()).collect();
    println!("| block | a call | {} |", names.join(" | "));
    println!("|---|---|{}", "---|".repeat(names.len()));
    for case in results.cases() {
        let cell = |contender: &Contender| {
            let rounds = results.of(*contender, case).unwrap_or_default();
            let ratio = results.ratio([*contender, ceiling], case, figure).unwrap_or(f64::NAN);
            format!("{} x{ratio:.2}", spread(rounds.iter().map(figure)))
        };
        let cells: Vec<_> = contenders.iter().map(cell).collect();
        println!("| {} KiB | {} | {} |", case.block_bytes / 1024, case.batch, cells.join(" | "));
    }
}

/// CPU time as a ratio: the clock rate of a machine is nobody's merit.
fn cpu(results: &Results) {
    println!("\n### CPU time of the process a byte, of the same ceilings\n");
    let contenders = results.contenders();
    let own = contenders.into_iter().filter(|contender| contender.works_in_process());
    let own: Vec<_> = own.collect();
    let names: Vec<_> = own.iter().map(|one| format!("{one} put | {one} get")).collect();
    println!("| block | a call | {} |", names.join(" | "));
    println!("|---|---|{}", "---|---|".repeat(own.len()));
    for case in results.cases() {
        let cell = |contender: &Contender| {
            let put = results
                .ratio([*contender, Contender::Stream], case, |round| round.put_cpu_s_per_gib);
            let get = results
                .ratio([*contender, Contender::Memcpy], case, |round| round.get_cpu_s_per_gib);
            format!("x{:.2} | x{:.2}", put.unwrap_or(f64::NAN), get.unwrap_or(f64::NAN))
        };
        let cells: Vec<_> = own.iter().map(cell).collect();
        println!("| {} KiB | {} | {} |", case.block_bytes / 1024, case.batch, cells.join(" | "));
    }
}

fn spread(values: impl Iterator<Item = f64> + Clone) -> String {
    let [low, middle, high] =
        [quantile(values.clone(), 0.25), median(values.clone()), quantile(values, 0.75)];
    format!("{middle:.2} ({low:.2} to {high:.2})")
}
