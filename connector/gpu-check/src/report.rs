//! What is printed.

use std::process::ExitCode;

use anyhow::Result;
use bytesize::ByteSize;
use rackline::cuda::CudaFigures;
use serde::Serialize;

use crate::registration_cost::Cost;
use crate::speed::{COPY_ONLY, Way};

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    /// What is special about it.
    pub(crate) name: &'static str,
    pub(crate) way: Way,
    pub(crate) payload_bytes: u64,
    /// Of GPU memory, with gaps between them.
    pub(crate) part_bytes: u64,
    /// Payloads of a call, of one thread.
    pub(crate) batch: u64,
    pub(crate) threads: u64,
    pub(crate) gib_per_s: f64,
    /// The same bytes to or from pinned memory, payload by payload, in the same run.
    pub(crate) plain_gib_per_s: f64,
    pub(crate) ratio: f64,
    /// `None` for a part of a transfer alone.
    pub(crate) target: Option<f64>,
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
    registration: Option<Cost>,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, checks: Vec::new(), figures: Vec::new(), registration: None }
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
    pub(crate) fn speed(&mut self, measured: Result<Vec<Figure>>) {
        let outcome = measured.map(|figures| {
            let targets =
                figures.iter().filter_map(|it| it.target.map(|target| it.ratio >= target));
            let (reached, all) =
                (targets.clone().filter(|reached| *reached).count(), targets.count());
            let has_copies = figures.iter().any(|figure| figure.name == COPY_ONLY);
            self.figures = figures;
            let left_out =
                if has_copies { "" } else { "; copies alone are left out: not all is registered" };
            format!("{reached} of {all} targets reached{left_out}")
        });
        self.check("speed", outcome);
    }

    /// What it takes to register a pool; `None` where it is not registered.
    pub(crate) fn registration_cost(&mut self, measured: Result<Option<Cost>>) {
        let outcome = measured.map(|cost| {
            let told = cost.as_ref().map(ToString::to_string);
            self.registration = cost;
            told.unwrap_or_else(|| "not measured: the file is not registered".into())
        });
        self.check("cost of it", outcome);
    }

    /// Prints the rest.
    pub(crate) fn finish(self, engine: CudaFigures) -> ExitCode {
        let failed = self.checks.iter().filter(|check| !check.passed).count();
        if self.json {
            let report = serde_json::json!({
                "checks": self.checks,
                "speed": self.figures,
                "registration": self.registration,
                "stored_bytes": engine.stored_bytes,
                "loaded_bytes": engine.loaded_bytes,
                "bounced_bytes": engine.bounced_bytes,
                "gpu_summed_bytes": engine.gpu_summed_bytes,
                "failed_payloads": engine.failed_payloads,
                "registered_bytes": engine.registered_bytes,
                "registrations": engine.registrations,
                "unregistrations": engine.unregistrations,
                "refused_registrations": engine.refused_registrations,
                "registrations_over_limit": engine.registrations_over_limit,
                "registering_ns": engine.registering_ns,
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
        println!(
            "{:<10} {:<6} {:>8} {:>9} {:>8} {:>7} {:>7} {:>12} {:>5} {:>6}",
            "",
            "way",
            "payload",
            "parts of",
            "a call",
            "threads",
            "GiB/s",
            "plain GiB/s",
            "ratio",
            "target"
        );
        for figure in &self.figures {
            println!(
                "{:<10} {:<6} {:>8} {:>9} {:>8} {:>7} {:>7.2} {:>12.2} {:>5.2} {:>6}",
                figure.name,
                format!("{:?}", figure.way).to_lowercase(),
                ByteSize(figure.payload_bytes).to_string(),
                ByteSize(figure.part_bytes).to_string(),
                figure.batch,
                figure.threads,
                figure.gib_per_s,
                figure.plain_gib_per_s,
                figure.ratio,
                figure.target.map_or_else(String::new, |target| format!("{target:.2}")),
            );
        }
        println!();
    }
}
