//! `rackline clear`: removes the blocks of a tenant, on all nodes and their drives.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use rackline::{Namespace, NodeId, Pool};

use crate::output::say;

/// Remove the blocks of one tenant from the pool and from drives, or all blocks.
///
/// Use it when a tenant leaves, or when its blocks must not be found any more. The engines keep
/// running: what they have in memory of their own stays, so reset their caches too.
///
/// Run it once, on any host that maps the region. Every process that has joined the pool looks for
/// requests about 50 times a second and removes the blocks of its own node. The command itself
/// removes the blocks of nodes that died or left. When it ends with status 0, no block of the
/// tenant is found any more that was published before the command began. Blocks that engines
/// publish meanwhile may stay: stop the tenant's traffic first.
///
/// With status 1 the error names the nodes that have not answered. The request stays in the region:
/// a paused node removes its blocks when it continues. Run the command again when such a node was
/// declared dead.
///
/// Every agent (`rackline agent`) removes the blocks from its drives, too. An agent that was down
/// removes them when it starts, and a drive that did not answer when it answers again, before a host
/// finds one of them. The error names the drives that still owe the clear. Clear again after `rackline format`: a request that an agent has not carried
/// out is lost with the region.
///
/// Other tenants keep their blocks, unless their 16-bit tags are equal. Held blocks are removed too,
/// and a fetch that is under way becomes a miss.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  rackline clear --region /dev/dax0.0 --node 3 --tenant team-a")]
pub(crate) struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    /// This host's node number, that of the engines on this host; on a host without engines any
    /// free one.
    #[arg(long, value_name = "N", env = "RACKLINE_NODE")]
    node: u16,

    /// The tenant, as in the engines' settings; "" for blocks without a tenant.
    #[arg(long, value_name = "NAME", required_unless_present = "all")]
    tenant: Option<String>,

    /// The salt of sessions that were opened with one, in text. A request's `cache_salt` is none:
    /// its blocks belong to the tenant.
    #[arg(
        long,
        value_name = "TEXT",
        requires = "tenant",
        conflicts_with = "all",
        default_value = ""
    )]
    salt: String,

    /// All blocks of all tenants.
    #[arg(long, conflicts_with = "tenant")]
    all: bool,

    /// Leave the blocks on drives: they come back when engines ask for them.
    #[arg(long)]
    pool_only: bool,

    /// How long to wait for the other nodes, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    timeout_ms: u64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let namespace =
        options.tenant.as_ref().map(|tenant| Namespace::new(tenant, options.salt.as_bytes()));
    let pool = Pool::attach(&options.region, options.node)?;
    let timeout = Duration::from_millis(options.timeout_ms);
    let cleared = match options.pool_only {
        true => pool.clear_pool(namespace.as_ref(), timeout)?,
        false => pool.clear(namespace.as_ref(), timeout)?,
    };
    if !cleared.unanswered.is_empty() {
        let nodes = names(&cleared.unanswered);
        bail!(
            "nodes {} have not answered within {} ms and may still have blocks: they clear them when \
             they continue; when a node is declared dead (`rackline status`), clear again; where a \
             node runs nothing but a lock manager, clear again on that host with its node number",
            nodes,
            options.timeout_ms
        );
    }
    if !cleared.drives_unanswered.is_empty() {
        bail!(
            "no block is left in the pool, and the agents of nodes {} have not answered within {} ms: \
             their drives may still have blocks, which no host finds; an agent that is down removes \
             them when it starts (`rackline agent`); clear again to see that it has{}",
            names(&cleared.drives_unanswered),
            options.timeout_ms,
            owing(&cleared.drives_owing)
        );
    }
    let places = if options.pool_only { "in the pool" } else { "in the pool or on drives" };
    match &options.tenant {
        Some(tenant) => say!("no block of tenant {tenant:?} is left {places}"),
        None => say!("no block is left {places} that was there before"),
    }
    if cleared.orphaned_blocks > 0 {
        say!("removed for nodes that died or left: {}", cleared.orphaned_blocks);
    }
    Ok(())
}

/// Which drives still owe the clear, in words.
fn owing(drives: &[(NodeId, Vec<u32>)]) -> String {
    let each = drives.iter().map(|(node, drives)| {
        let drives: Vec<_> = drives.iter().map(ToString::to_string).collect();
        format!("drive {} of node {node}", drives.join(", "))
    });
    let each: Vec<_> = each.collect();
    if each.is_empty() {
        return String::new();
    }
    format!(
        "; still owed by {} (counted in the order of --drive): the device does not answer, or a table \
         of it cannot be read; the log of the agent says why",
        each.join(" and ")
    )
}

fn names(nodes: &[NodeId]) -> String {
    let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
    nodes.join(", ")
}
