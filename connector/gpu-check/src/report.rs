//! What is printed.

use std::process::ExitCode;

use anyhow::Result;
use bytesize::ByteSize;
use rackline::cuda::CudaFigures;
use serde::Serialize;

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) way: &'static str,
    pub(crate) payload_bytes: u64,
    pub(crate) batch: usize,
    pub(crate) gib_per_s: f64,
    /// The same bytes to or from pinned memory, in the same run.
    pub(crate) plain_gib_per_s: f64,
    pub(crate) ratio: f64,
    pub(crate) target: f64,
}

/// The outcome of one check.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    passed: bool,
    detail: String,
}

/// The checks so far. Without `--json` each is printed as it ends.
#[derive(Debug)]
pub(crate) struct Report {
    json: bool,
    checks: Vec<Check>,
    figures: Vec<Figure>,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, checks: Vec::new(), figures: Vec::new() }
    }

    pub(crate) fn check(&mut self, name: &'static str, outcome: Result<String>) {
        let passed = outcome.is_ok();
        let detail = outcome.unwrap_or_else(|error| format!("{error:#}"));
        if !self.json {
            println!("{:<16} {}  {detail}", name, if passed { "passed" } else { "FAILED" });
        }
        self.checks.push(Check { name, passed, detail });
    }

    /// Measurements that came to their end. A target that is missed is no failure.
    pub(crate) fn bandwidth(&mut self, measured: Result<Vec<Figure>>) {
        let outcome = measured.map(|figures| {
            let reached = figures.iter().filter(|figure| figure.ratio >= figure.target).count();
            self.figures = figures;
            format!("{reached} of {} targets reached", self.figures.len())
        });
        self.check("bandwidth", outcome);
    }

    /// Prints the rest.
    pub(crate) fn finish(self, engine: CudaFigures) -> ExitCode {
        let failed = self.checks.iter().filter(|check| !check.passed).count();
        if self.json {
            let report = serde_json::json!({
                "checks": self.checks,
                "bandwidth": self.figures,
                "stored_bytes": engine.stored_bytes,
                "loaded_bytes": engine.loaded_bytes,
                "bounced_bytes": engine.bounced_bytes,
                "failed_payloads": engine.failed_payloads,
            });
            println!("{report}");
        } else {
            self.table();
            println!(
                "{} checks passed, {failed} failed; {} stored, {} loaded, {} of them bounced",
                self.checks.len() - failed,
                ByteSize(engine.stored_bytes),
                ByteSize(engine.loaded_bytes),
                ByteSize(engine.bounced_bytes),
            );
        }
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn table(&self) {
        if self.figures.is_empty() {
            return;
        }
        println!();
        println!("       payload  at a time      GiB/s  pinned GiB/s  ratio  target");
        for figure in &self.figures {
            println!(
                "{:<5} {:>8} {:>10} {:>10.2} {:>13.2} {:>6.2} {:>7.2}",
                figure.way,
                ByteSize(figure.payload_bytes).to_string(),
                figure.batch,
                figure.gib_per_s,
                figure.plain_gib_per_s,
                figure.ratio,
                figure.target,
            );
        }
        println!();
    }
}
