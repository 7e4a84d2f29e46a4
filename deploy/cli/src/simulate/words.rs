//! Tables of a simulation.

use rackline_simulate::{Figures, Lengths, Settings};

use super::{Made, Runs};
use crate::output::{say, show};

/// What a table of a figure shows: its title, and how a number is printed.
type Measure = (&'static str, fn(&Figures) -> String);

const MEASURES: [Measure; 5] = [
    ("TBT kept, %", |it| format!("{:.1}", it.tbt_attainment_percent)),
    ("TPOT kept, %", |it| format!("{:.1}", it.tpot_attainment_percent)),
    ("99 of 100 TBT within, ms", |it| ms(it.tbt_p99_ms, 0)),
    ("tokens a second", |it| format!("{:.1}", it.tokens_per_s)),
    ("mean wait for the first token, s", |it| format!("{:.1}", it.mean_wait_ms / 1000.0)),
];

/// A time, or "never" for tokens that did not come.
fn ms(ms: Option<f64>, digits: usize) -> String {
    ms.map_or_else(|| "never".to_owned(), |ms| format!("{ms:.digits$}"))
}

pub(super) fn runs(runs: &Runs<'_>, settings: &Settings) {
    let (prompt, output) = settings.lengths.means();
    say!(
        "{}: {} requests of {prompt} + {output} tokens on average{}, load {}, batches of up to {}",
        runs.profile,
        settings.requests,
        match settings.lengths {
            Lengths::Drawn { .. } => " before long ones are cut",
            Lengths::Traced(_) => "",
        },
        settings.load,
        settings.batch_max,
    );
    say!("promise: a token every {:.1} ms\n", runs.slo_ms);
    say!(
        "{:16} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7} {:>7} {:>8}",
        "policy",
        "TBT kept",
        "TPOT",
        "P50 ms",
        "P95 ms",
        "P99 ms",
        "tokens/s",
        "wait s",
        "stalls",
        "pauses",
        "rejected",
    );
    for (policy, it) in &runs.policies {
        say!(
            "{policy:16} {:>7.1}% {:>7.1}% {:>9} {:>9} {:>9} {:>9.1} {:>8.1} {:>6.1}% {:>7} {:>8}",
            it.tbt_attainment_percent,
            it.tpot_attainment_percent,
            ms(it.tbt_p50_ms, 1),
            ms(it.tbt_p95_ms, 1),
            ms(it.tbt_p99_ms, 1),
            it.tokens_per_s,
            it.mean_wait_ms / 1000.0,
            it.stall_percent,
            it.pauses,
            it.rejected,
        );
    }
}

pub(super) fn figure(made: &Made<'_>) {
    say!("{}: {}", made.figure, made.profile);
    for (title, number) in MEASURES {
        say!("\n  {title}, by {}", made.axis);
        show!("  {:16}", "");
        made.points.iter().for_each(|point| show!(" {point:>10}"));
        say!("");
        for series in &made.series {
            show!("  {:16}", series.policy);
            series.figures.iter().for_each(|figures| show!(" {:>10}", number(figures)));
            say!("");
        }
    }
}
