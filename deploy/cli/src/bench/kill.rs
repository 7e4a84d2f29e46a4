//! A node that is killed in the middle of a bench.

use anyhow::{Result, bail, ensure};
use clap::Args;
use rackline_serving::{Kill, Rack, Served};

#[derive(Args, Debug)]
pub(super) struct KillArguments {
    /// Kill all workers of this node, and the agent of its drive, as kill -9 does. What the workers had begins
    /// again on others.
    #[arg(long, value_name = "NODE", requires = "kill_at_s")]
    kill_node: Option<u16>,

    /// When, in seconds of the run.
    #[arg(long, value_name = "SECONDS", requires = "kill_node")]
    kill_at_s: Option<u32>,
}

impl KillArguments {
    pub(super) fn kill(&self, rack: &Rack) -> Result<Option<Kill>> {
        let Some((node, at_s)) = self.kill_node.zip(self.kill_at_s) else { return Ok(None) };
        ensure!(
            rack.survives(node),
            "without node {node} there are no prefill and decode workers left, or there is no such node: \
             give another --kill-node, or more workers"
        );
        Ok(Some(Kill { node, at_ns: u64::from(at_s) * 1_000_000_000 }))
    }
}

/// Fails where all requests were answered before.
pub(super) fn check_in_time(kill: &Kill, served: &[Served]) -> Result<()> {
    if served.iter().all(|it| it.arrived_ns + it.latency_ns < kill.at_ns) {
        bail!(too_late(kill.node));
    }
    Ok(())
}

pub(super) fn too_late(node: u16) -> String {
    format!(
        "all requests were answered before node {node} was to be killed: give a smaller --kill-at-s, or more \
         --requests"
    )
}

/// What a picture says of it.
pub(super) fn in_title(killed: Option<(u16, u64)>) -> String {
    killed.map_or(String::new(), |(node, at_s)| format!(", node {node} killed after {at_s} s"))
}
