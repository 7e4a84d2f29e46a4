//! `rackline trace`: makes traces of requests, for `rackline replay` and other programs.

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use rackline_replay::tract::{BLOCK_TOKENS, Compared, Tract, TractOptions, Workload};

use crate::output::{complain, say};

/// Make a trace of requests, in the form that `rackline replay` reads.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand, Debug)]
enum Kind {
    Tract(TractArguments),
}

/// Prompts that share prefixes, as in TraCT's evaluation.
///
/// Lengths have the means and deviations of the paper's Table 1: prompts of 4449 (2424) tokens, answers of
/// 215 (263), and so many tokens of a prompt are in no other: 1073 (1549) in workload A, 1215 (1693) in B,
/// 1631 (2027) in C. Blocks have 64 tokens. The rest of a prompt is the beginning of a document. Documents
/// are drawn by Zipf's law, and are the leaves of a tree of common beginnings.
///
/// The paper does not say how many documents there are, nor how often each is used: --documents and --zipf
/// are assumptions. Standard error gets what a cache without bounds would hit.
///
///   rackline trace tract --workload A --seed 1 >a.jsonl
///   rackline replay a.jsonl --capacity-blocks 10%
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
struct TractArguments {
    /// The workload of the paper's Table 1.
    #[arg(long, value_enum, ignore_case = true)]
    workload: WorkloadName,

    /// Equal seeds make equal traces.
    #[arg(long)]
    seed: u64,

    /// Requests.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    requests: usize,

    /// Different documents.
    #[arg(long, value_name = "N", default_value_t = 200)]
    documents: u64,

    /// Exponent of Zipf's law: 0 for documents that are used equally often.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    zipf: f64,

    /// Requests a second: they arrive as a Poisson process.
    #[arg(long, value_name = "PER_SECOND", default_value_t = 2.0)]
    rate: f64,
}

/// A workload of the paper's Table 1.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WorkloadName {
    A,
    B,
    C,
}

impl WorkloadName {
    pub(crate) const fn workload(self) -> Workload {
        match self {
            Self::A => Workload::A,
            Self::B => Workload::B,
            Self::C => Workload::C,
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let Kind::Tract(arguments) = &options.kind;
    let TractArguments { seed, requests, documents, zipf, rate, .. } = *arguments;
    let workload = arguments.workload.workload();
    let options = TractOptions { workload, seed, requests, documents, zipf, rate };
    let trace = Tract::new(&options)?;
    let Tract { requests, blocks, hits } = &trace;
    for request in requests {
        say!("{}", serde_json::to_string(request)?);
    }
    complain!(
        "{} requests with {blocks} blocks of {BLOCK_TOKENS} tokens; a cache without bounds has {hits} of \
         them ({} %)",
        requests.len(),
        hits * 100 / blocks.max(&1)
    );
    for Compared { of, found, wanted } in trace.compared().iter().filter(|it| !it.is_near()) {
        complain!(
            "rackline: {of} have {:.0} ({:.0}) tokens instead of {:.0} ({:.0}): ask for more requests and \
             documents",
            found.0,
            found.1,
            wanted.0,
            wanted.1
        );
    }
    Ok(())
}
