//! `rackline pin` and `rackline unpin`: which tenant's blocks leave last, on all nodes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use rackline::{Namespace, NodeId, Pool};

use crate::output::say;

/// Let the blocks of one tenant leave last when room is short, for a time.
///
/// Every node keeps the tenant's blocks longest, as far as they take a share of its part of the
/// pool. Pinned blocks still leave when a node has nothing else to evict, or when another node
/// needs the memory. Blocks beyond the share leave like those of other tenants.
///
/// Run it once, on any host that maps the region. With status 1 the error names the nodes that have
/// not answered. The request stays in the region: a paused node pins when it continues.
///
/// Each node measures the time from when it sees the pin. A later pin of the tenant replaces the
/// earlier one. Where the tenant has a quota on a host, the quota stays. The pin ends on a host with
/// the host's last process. `rackline status` shows pins.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  rackline pin --region /dev/dax0.0 --node 3 --tenant team-a --percent 30 --for 2h")]
pub(crate) struct PinOptions {
    #[command(flatten)]
    request: Request,

    /// How much of each node's part of the pool the pin covers: 1 to 50.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..=50))]
    percent: u16,

    /// How long the pin lasts: a number with s, m, h or d, at most 365d.
    #[arg(long = "for", value_name = "TIME", value_parser = length)]
    length: Duration,
}

/// End the pin of one tenant, whichever node asked for the pin.
///
/// With status 1 the error names the nodes that have not answered: they end the pin when they
/// continue.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  rackline unpin --region /dev/dax0.0 --node 3 --tenant team-a")]
pub(crate) struct UnpinOptions {
    #[command(flatten)]
    request: Request,
}

#[derive(Args, Debug)]
struct Request {
    /// The region: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    /// This host's node number, that of the engines on this host; on a host without engines any
    /// free one.
    #[arg(long, value_name = "N", env = "RACKLINE_NODE")]
    node: u16,

    /// The tenant, as in the engines' settings; "" for blocks without a tenant.
    #[arg(long, value_name = "NAME")]
    tenant: String,

    /// The salt of sessions that were opened with one, in text. A request's `cache_salt` is none:
    /// its blocks belong to the tenant.
    #[arg(long, value_name = "TEXT", default_value = "")]
    salt: String,

    /// How long to wait for the other nodes, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    timeout_ms: u64,
}

impl Request {
    fn namespace(&self) -> Namespace {
        Namespace::new(&self.tenant, self.salt.as_bytes())
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    fn check(&self, unanswered: &[NodeId], what: &str) -> Result<()> {
        if !unanswered.is_empty() {
            let nodes: Vec<_> = unanswered.iter().map(ToString::to_string).collect();
            bail!(
                "nodes {} have not answered within {} ms: they {what} when they continue \
                 (`rackline status`)",
                nodes.join(", "),
                self.timeout_ms
            );
        }
        Ok(())
    }
}

pub(crate) fn pin(options: &PinOptions) -> Result<()> {
    let PinOptions { request, percent, length } = options;
    let pool = Pool::attach(&request.region, request.node)?;
    let unanswered = pool.pin(&request.namespace(), *percent, *length, request.timeout())?;
    request.check(&unanswered, "pin")?;
    say!("the tenant is pinned: namespace {}", request.namespace());
    Ok(())
}

pub(crate) fn unpin(UnpinOptions { request }: &UnpinOptions) -> Result<()> {
    let pool = Pool::attach(&request.region, request.node)?;
    let unanswered = pool.unpin(&request.namespace(), request.timeout())?;
    request.check(&unanswered, "end the pin")?;
    say!("the tenant is not pinned: namespace {}", request.namespace());
    Ok(())
}

/// A time as `2h`.
fn length(text: &str) -> Result<Duration, String> {
    const DAY_S: u64 = 24 * 60 * 60;
    let wrong =
        || format!("{text:?} is no time: give a number with s, m, h or d, as 90m, at most 365d");
    let unit_s = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 60 * 60,
        Some('d') => DAY_S,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    match number.checked_mul(unit_s) {
        Some(seconds @ 1..) if seconds <= 365 * DAY_S => Ok(Duration::from_secs(seconds)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_a_unit_and_an_end() {
        for (text, seconds) in
            [("1s", 1), ("90m", 5400), ("2h", 7200), ("1d", 86400), ("365d", 31_536_000)]
        {
            assert_eq!(length(text), Ok(Duration::from_secs(seconds)));
        }
        for text in
            ["", "h", "2", "2w", "0h", "-1h", "1.5h", "366d", "99999999999999999999d", "1\u{e9}"]
        {
            assert!(length(text).is_err_and(|error| error.contains("365d")), "{text}");
        }
    }
}
