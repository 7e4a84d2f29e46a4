//! Which requests arrive.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use rackline_replay::Trace;
use rackline_replay::tract::{Tract, TractOptions};
use rackline_serving::Workload;

use crate::trace::WorkloadName;

/// Fewest requests that a workload of the paper is made of.
const TRACT_MIN: usize = 100;
const DOCUMENTS: u64 = 200;
const ZIPF: f64 = 1.0;
/// Requests a second where nobody says how many.
pub(super) const RATE: f64 = 0.5;

#[derive(Args, Debug)]
pub(super) struct WorkloadArguments {
    /// The trace, in JSON lines; see `rackline replay`. [default: a workload of the paper, see `rackline
    /// trace tract`]
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,

    /// The workload of the paper's Table 1.
    #[arg(long, value_enum, ignore_case = true, default_value = "a", conflicts_with = "trace")]
    workload: WorkloadName,

    /// Equal seeds make equal workloads.
    #[arg(long, default_value_t = 1, conflicts_with = "trace")]
    seed: u64,

    /// Requests, the first ones of the trace.
    #[arg(long, value_name = "N", default_value_t = 100)]
    requests: usize,

    /// Tokens of a block of the trace; with Mooncake's traces 512.
    #[arg(long, value_name = "N", default_value_t = 64, requires = "trace", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    block_tokens: u64,
}

impl WorkloadArguments {
    /// The trace.
    pub(super) fn trace(&self) -> Result<Trace> {
        ensure!(self.requests > 0, "there is nothing to serve: give --requests 1 or more");
        let Some(path) = &self.trace else { return self.tract() };
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Trace::read(BufReader::new(file)).with_context(|| path.display().to_string())
    }

    /// Its first requests, of which so many arrive in a second; `None` when the trace says so.
    pub(super) fn of(&self, trace: &Trace, rate: Option<f64>) -> Result<Workload> {
        if let Some(rate) = rate {
            ensure!(
                rate > 0.0 && rate.is_finite(),
                "{rate} requests a second cannot arrive: give a rate above 0"
            );
        }
        Ok(Workload::of(trace, self.block_tokens, self.requests, rate)?)
    }

    /// Whether the trace is one of the paper's workloads, which has no times of its own.
    pub(super) const fn is_made(&self) -> bool {
        self.trace.is_none()
    }

    fn tract(&self) -> Result<Trace> {
        let options = TractOptions {
            workload: self.workload.workload(),
            seed: self.seed,
            requests: self.requests.max(TRACT_MIN),
            documents: DOCUMENTS,
            zipf: ZIPF,
            rate: RATE,
        };
        let mut lines = Vec::new();
        for request in Tract::new(&options)?.requests {
            serde_json::to_writer(&mut lines, &request)?;
            lines.push(b'\n');
        }
        Ok(Trace::read(&lines[..])?)
    }

    /// What people call it.
    pub(super) fn name(&self) -> String {
        match &self.trace {
            Some(path) => path.display().to_string(),
            None => format!("TraCT {:?}, seed {}", self.workload, self.seed),
        }
    }
}
