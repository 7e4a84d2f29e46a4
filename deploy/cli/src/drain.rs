//! `rackline drain`: a node publishes no new blocks, so that its host can be stopped.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytesize::ByteSize;
use clap::Args;
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::layout::{Layout, Superblock, read_superblock};
use cxl_shm::region::Region;
use cxl_shm::units::NodeId;
use indicatif::{ProgressBar, ProgressStyle};
use kv_cache::{AgentLine, agent_of};
use rackline::Pool;
use serde::Serialize;

use crate::directives;
use crate::output::say;
use crate::watch::blocks::NodeBlocks;

/// Between two looks at the node.
const LOOK_MS: u64 = 250;
/// Of an agent that does not beat for so long nobody waits for backups.
const SILENT_MS: u64 = 5000;

/// Prepare a host for a stop: its node publishes no new blocks.
///
/// The blocks of the node stay in the pool, and all hosts read them, also when the host is off: the
/// memory is not the host's. When the pool is full, other nodes take that memory first. Blocks on the drives of the host cannot be read while its agent is
/// stopped. The command waits until the agent has written what waits for the drives, and shows how
/// much that is. Then stop the engines and the agent of the host. With --until-left the command ends
/// when they have stopped.
///
/// Engines of the host go on, read the pool, and count what they could not publish as `drained`. That
/// stays so when they are started again, until the command runs with --undo.
///
/// Run it on any host that maps the region. With status 1 the error says what did not happen in time.
/// The request stays in the region: a paused node sees it when it continues. `rackline status` shows
/// nodes that are drained.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  rackline drain --region /dev/dax0.0 --node 3               on the host of node 3
  rackline drain --region /dev/dax0.0 --node 3 --from 0      on the host of node 0
  rackline drain --region /dev/dax0.0 --node 3 --until-left
  rackline drain --region /dev/dax0.0 --node 3 --undo")]
pub(crate) struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    /// The node to drain.
    #[arg(long, value_name = "N", env = "RACKLINE_NODE")]
    node: u16,

    /// The node number of this host, when another node is drained.
    #[arg(long, value_name = "N")]
    from: Option<u16>,

    /// Let the node publish again.
    #[arg(long, conflicts_with = "until_left")]
    undo: bool,

    /// Wait until all processes of the node have stopped, too.
    #[arg(long)]
    until_left: bool,

    /// How long to wait in all, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 600_000)]
    timeout_ms: u64,

    /// Print the outcome as JSON.
    #[arg(long)]
    json: bool,
}

/// What is so when the command ends.
#[derive(Debug, Serialize)]
struct Outcome {
    node: u16,
    drained: bool,
    /// All processes of the node have stopped.
    left: bool,
    /// Blocks of the node in the pool, which stay readable.
    blocks: u64,
    block_bytes: u64,
    /// Blocks on the drives of the node, which are misses while its agent is stopped.
    drive_blocks: u64,
    drive_bytes: u64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let clock = SystemClock::start();
    let region = Region::open_read_only(&options.region)?;
    let (superblock, layout) =
        read_superblock(region.fabric()).with_context(|| region.path().display().to_string())?;
    let Some(node) = layout.node(options.node) else {
        bail!("node {} does not exist: this region has {}", options.node, layout.geometry().nodes);
    };
    ask(options, node)?;
    let watched = Watched { options, region: &region, superblock, layout, node, clock: &clock };
    if !options.undo {
        watched.wait_for_backups()?;
        if options.until_left {
            watched.wait_until_left()?;
        }
    }
    watched.check_in_force()?;
    watched.tell()
}

/// Asks the node, and waits for its answer. The process takes part for no longer than that: it does
/// not keep its host from leaving.
fn ask(options: &Options, node: NodeId) -> Result<()> {
    let pool = Pool::attach(&options.region, options.from.unwrap_or(options.node))?;
    let timeout = Duration::from_millis(options.timeout_ms);
    let (is_answered, what) = match options.undo {
        false => (pool.drain(node, timeout)?, "publishes no new blocks"),
        true => (pool.undrain(node, timeout)?, "publishes blocks again"),
    };
    if !is_answered {
        bail!(
            "node {node} has not answered within {} ms: it {what} when it continues (`rackline \
             status`)",
            options.timeout_ms
        );
    }
    Ok(())
}

/// A node that is drained, as any host sees it.
struct Watched<'r> {
    options: &'r Options,
    region: &'r Region,
    superblock: Superblock,
    layout: Layout,
    node: NodeId,
    clock: &'r SystemClock,
}

impl Watched<'_> {
    /// Waits until nothing waits for the drives of the node any more.
    fn wait_for_backups(&self) -> Result<()> {
        let Some((_, AgentLine { backlog_bytes: first, .. })) = self.agent()? else {
            return Ok(());
        };
        let bar = ProgressBar::new(first).with_style(style());
        let (mut last_beat, mut beat_ms) = (None, self.clock.now_ms());
        loop {
            let Some((beat, line)) = self.agent()? else { return Ok(()) };
            let now_ms = self.clock.now_ms();
            if last_beat.replace(beat) != Some(beat) {
                beat_ms = now_ms;
            }
            let waiting = line.backlog_bytes;
            bar.set_length(first.max(waiting));
            bar.set_position(first.max(waiting) - waiting);
            if !line.runs || waiting == 0 {
                bar.finish_and_clear();
                return Ok(());
            }
            let waiting = ByteSize(waiting);
            if now_ms - beat_ms >= SILENT_MS {
                bail!(
                    "node {} is drained, and its agent is silent: {waiting} were not written to its \
                     drives; these blocks stay in the pool",
                    self.node
                );
            }
            self.check_time(&format!("{waiting} wait for its drives"))?;
            self.clock.sleep_ms(LOOK_MS);
        }
    }

    /// Waits until no process of the node takes part.
    fn wait_until_left(&self) -> Result<()> {
        let bar = ProgressBar::new_spinner();
        bar.set_message(format!("node {}: stop its engines and its agent", self.node));
        while !self.has_left() {
            bar.tick();
            self.check_time("its processes have not stopped")?;
            self.clock.sleep_ms(LOOK_MS);
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn check_time(&self, what: &str) -> Result<()> {
        if self.clock.now_ms() >= self.options.timeout_ms {
            bail!(
                "node {} is drained, and after {} ms {what}; run the command again to wait longer",
                self.node,
                self.options.timeout_ms
            );
        }
        Ok(())
    }

    /// Somebody else may have asked for the opposite while this command waited.
    fn check_in_force(&self) -> Result<()> {
        let (fabric, node) = (self.region.fabric(), self.node);
        let directives = directives::in_force(fabric, &self.superblock, &self.layout, &[], &[])?;
        let is_drained =
            directives.iter().any(|it| it.directive == "drain" && it.drained == Some(node.0));
        match (self.options.undo, is_drained) {
            (false, false) => {
                bail!("node {node} is not drained any more: another request ended that meanwhile")
            }
            (true, true) => {
                bail!("node {node} is drained again: another request asked for that meanwhile")
            }
            (false, true) | (true, false) => Ok(()),
        }
    }

    fn has_left(&self) -> bool {
        cxl_shm::lifecycle::is_vacant(&self.layout, self.region.fabric(), self.node)
    }

    /// The beat of the agent, and what it says; `None` when none ever ran.
    fn agent(&self) -> Result<Option<(u64, AgentLine)>> {
        let (fabric, node) = (self.region.fabric(), self.node);
        let seen = agent_of(fabric, &self.superblock, &self.layout, node)?;
        Ok(seen.map(|seen| (seen.beat, seen.line)))
    }

    fn tell(&self) -> Result<()> {
        let (fabric, node, undo) = (self.region.fabric(), self.node, self.options.undo);
        let blocks = NodeBlocks::scan(fabric, &self.superblock, &self.layout, node, &[])?;
        let line = self.agent()?.map_or_else(AgentLine::default, |(_, line)| line);
        let outcome = Outcome {
            node: node.0,
            drained: !undo,
            left: self.has_left(),
            blocks: blocks.readable,
            block_bytes: blocks.bytes,
            drive_blocks: line.blocks,
            drive_bytes: line.used_bytes,
        };
        if self.options.json {
            say!("{}", serde_json::to_string(&outcome)?);
            return Ok(());
        }
        let Outcome { blocks, block_bytes, drive_blocks, drive_bytes, left, .. } = outcome;
        if undo {
            say!("node {node} is not drained: it publishes blocks again");
            return Ok(());
        }
        say!("node {node} is drained: it publishes no new blocks");
        say!("  {blocks} blocks ({}) stay in the pool, for all hosts", ByteSize(block_bytes));
        if drive_blocks > 0 {
            let bytes = ByteSize(drive_bytes);
            say!(
                "  {drive_blocks} blocks ({bytes}) on its drives are misses while its agent is stopped"
            );
        }
        if left {
            say!("  all its processes have stopped: its host may be switched off");
        } else {
            say!("  stop its engines and its agent now");
        }
        say!("  when it serves again: rackline drain --node {node} --undo");
        Ok(())
    }
}

fn style() -> ProgressStyle {
    let template = "writing to the drives [{bar:30}] {bytes} of {total_bytes}, {eta} left";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
