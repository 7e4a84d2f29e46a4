//! What a bench prints.

use anyhow::Result;
use bytesize::ByteSize;
use rackline_serving::{Served, Spread, Summary, Times};
use serde::Serialize;

use super::run::Outcome;
use crate::output::{counted, say};

/// What was run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Conditions {
    pub(super) trace: String,
    pub(super) requests: usize,
    pub(super) reuse: bool,
    pub(super) nodes: u16,
    pub(super) prefill_workers: u16,
    pub(super) decode_workers: u16,
    pub(super) profile: String,
    pub(super) profile_source: String,
    pub(super) block_tokens: u64,
    pub(super) model_block_bytes: u64,
    pub(super) block_bytes: u64,
    /// As the pool has it: in whole chunks, and one for each node at least.
    pub(super) capacity_blocks: Option<u64>,
    pub(super) unique_blocks: u32,
    pub(super) device_gb_per_s: Option<f64>,
    pub(super) device_latency_ns: Option<u64>,
    pub(super) speed: f64,
    /// Where drives were, behind the pool.
    pub(super) drive: Option<String>,
    /// The node whose workers were killed, and after how many seconds.
    pub(super) killed: Option<(u16, u64)>,
}

/// A run, measured or simulated.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Part {
    #[serde(flatten)]
    pub(super) summary: Summary,
    /// Transfers that this machine moved slower than the imposed device would, and by how much together.
    late_transfers: u64,
    late_transfers_ms: f64,
    /// Prompts whose bytes this machine made slower than they are computed, and by how much together.
    late_prompts: u64,
    late_prompts_ms: f64,
    /// Blocks that left the pool before a prefill worker could hold them for its decode worker.
    not_held: u64,
    /// Why the first block was refused that was refused.
    why_refused: Option<String>,
    /// Each request, by its number.
    pub(super) served: Vec<Served>,
}

impl Part {
    /// `None` of no requests.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(super) fn of(outcome: Outcome) -> Option<Self> {
        let Outcome { served, late, why_refused, not_held } = outcome;
        Some(Self {
            summary: Summary::of(&served)?,
            late_transfers: late.transfers,
            late_transfers_ms: late.transfers_ns as f64 / 1e6,
            late_prompts: late.prompts,
            late_prompts_ms: late.prompts_ns as f64 / 1e6,
            not_held,
            why_refused,
            served,
        })
    }
}

/// All that is printed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) conditions: Conditions,
    pub(super) measured: Option<Part>,
    pub(super) simulated: Option<Part>,
}

impl Report {
    pub(super) fn print(&self, json: bool) -> Result<()> {
        if json {
            say!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        self.conditions.print();
        self.print_table();
        for (part, name) in self.parts() {
            part.print(name, self.conditions.block_bytes);
        }
        Ok(())
    }

    /// The parts that there are, with their names.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&Part, &'static str)> {
        let parts = [(self.measured.as_ref(), "measured"), (self.simulated.as_ref(), "simulated")];
        parts.into_iter().filter_map(|(part, name)| Some((part?, name)))
    }

    fn print_table(&self) {
        let names: Vec<_> = self.parts().map(|(_, name)| format!("{name:>12}")).collect();
        say!("\n{:<24}{}", "ms", names.concat());
        for (name, of) in ROWS {
            self.row(name, &|part| of(&part.summary.ttft), "");
        }
        if self.parts().all(|(part, _)| part.summary.token.is_some()) {
            let token = |of: fn(&Spread) -> f64| {
                move |part: &Part| part.summary.token.as_ref().map_or(0.0, of)
            };
            self.row("token to token, mean", &token(|it| it.mean_ms), "");
            self.row("               99 %", &token(|it| it.p99_ms), "");
        }
        say!("up to the first token, mean of each stage:");
        let stages = self.parts().next().map_or(0, |(part, _)| part.summary.stages_ms.len());
        for stage in 0..stages {
            let name = self.parts().next().map_or("", |(part, _)| part.summary.stages_ms[stage].0);
            // With real bytes a lookup waits for drives.
            if name == Times::RESTORE {
                continue;
            }
            self.row(name, &|part| part.summary.stages_ms[stage].1, "  ");
        }
        say!("");
        self.row("requests a second", &|part| part.summary.requests_per_s, "");
        self.row("output tokens a second", &|part| part.summary.output_tokens_per_s, "");
        self.row("blocks hit, %", &|part| 100.0 * part.summary.hit_rate(), "");
    }

    fn row(&self, name: &str, of: &dyn Fn(&Part) -> f64, indent: &str) {
        let figures: Vec<f64> = self.parts().map(|(part, _)| of(part)).collect();
        let texts: Vec<_> = figures.iter().map(|figure| format!("{figure:>12.2}")).collect();
        let ratio = match figures[..] {
            [measured, simulated] if measured > 0.0 => format!("{:>9.3}", simulated / measured),
            _ => String::new(),
        };
        say!("{:<24}{}{ratio}", format!("{indent}{name}"), texts.concat());
    }
}

type Row = (&'static str, fn(&Spread) -> f64);

const ROWS: [Row; 5] = [
    ("first token, mean", |it| it.mean_ms),
    ("             50 %", |it| it.p50_ms),
    ("             90 %", |it| it.p90_ms),
    ("             99 %", |it| it.p99_ms),
    ("             longest", |it| it.max_ms),
];

impl Conditions {
    fn print(&self) {
        let reuse = if self.reuse { "" } else { ", without reuse" };
        say!(
            "{} of {}{reuse}, on {} with {} and {}",
            counted(self.requests as u64, "request"),
            self.trace,
            counted(self.nodes.into(), "node"),
            counted(self.prefill_workers.into(), "prefill worker"),
            counted(self.decode_workers.into(), "decode worker")
        );
        say!("computing: {} ({})", self.profile, self.profile_source);
        let room = match self.capacity_blocks {
            None => "unlimited".to_owned(),
            Some(blocks) => format!("{blocks} of {} different blocks", self.unique_blocks),
        };
        say!("room of the pool: {room}");
        say!(
            "blocks of {} tokens: {} in the model, {} here",
            self.block_tokens,
            ByteSize(self.model_block_bytes),
            ByteSize(self.block_bytes)
        );
        match (self.device_gb_per_s, self.device_latency_ns) {
            (Some(rate), Some(latency_ns)) => say!(
                "link of each node: {rate} GB/s of the model's blocks and {latency_ns} ns a transfer, imposed"
            ),
            _ => say!("link of each node: as fast as this machine moves the blocks that are here"),
        }
        if let Some(drive) = &self.drive {
            say!("drives behind the pool, in {drive}");
        }
        if let Some((node, at_s)) = self.killed {
            say!("the workers of node {node} were killed after {at_s} s");
        }
        #[expect(clippy::float_cmp, reason = "as given")]
        if self.speed != 1.0 {
            say!(
                "time passes {} times as fast as the clock, and is printed as if it did not",
                self.speed
            );
        }
    }
}

impl Part {
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn print(&self, name: &str, block_bytes: u64) {
        let Summary { requests, blocks, hits, published, refused, lost, cpu_ms, .. } = self.summary;
        say!(
            "{name}: {requests} answered; of {blocks} blocks {hits} were found, {published} written, \
             {refused} refused, {lost} not found by decode workers"
        );
        if cpu_ms > 0.0 {
            // Decode workers read what is not lost.
            let read = (hits + blocks - lost) as f64 / requests as f64;
            let written = published as f64 / requests as f64;
            let mib = |blocks: f64| blocks * block_bytes as f64 / f64::from(1 << 20);
            say!(
                "  a request: {read:.1} blocks ({:.2} MiB) read and {written:.1} ({:.2} MiB) written here, with \
                 {cpu_ms:.2} ms of processor time in calls of the pool",
                mib(read),
                mib(written)
            );
        }
        if self.summary.restarted > 0 {
            say!(
                "  {} began again because a worker died, and found {} again, which are no hits",
                counted(self.summary.restarted, "request"),
                counted(self.summary.found_again, "block")
            );
        }
        if let Some(why) = &self.why_refused {
            say!("  refused: {why}");
        }
        if self.summary.from_drives > 0 {
            say!("  {} came back from drives", counted(self.summary.from_drives, "block"));
        }
        if self.not_held > 0 {
            say!(
                "  {} left the pool before they could be held for a decode worker: give more room",
                counted(self.not_held, "block")
            );
        }
        if self.late_transfers > 0 {
            say!(
                "  {} were slower here than on the imposed device, by {:.1} ms together",
                counted(self.late_transfers, "transfer"),
                self.late_transfers_ms
            );
        }
        if self.late_prompts > 0 {
            say!(
                "  the bytes of {} were made slower than the prompts are computed, by {:.1} ms together",
                counted(self.late_prompts, "prompt"),
                self.late_prompts_ms
            );
        }
    }
}
