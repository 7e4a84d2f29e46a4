//! `rackline qualify`: measures what the memory of a region does on this platform, and keeps it.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use clap::Args;
use cxl_shm::clock::SystemClock;
use cxl_shm::layout::{FenceEvidence, PayloadPolicy, PlatformProfile};
use cxl_shm::lifecycle::{Attachment, LocalMember};
use cxl_shm::region::Region;
use cxl_shm::region::{Visibility, platform_of};
use cxl_shm::units::NodeId;
use rackline_qualify::{
    EVIDENCE_TRIALS_MIN, Expect, Finding, Measured, Partner, ROUNDS_MAX, Timing, alone, pair,
    store_profile, trials_of,
};
use serde_json::{Value, json};

use crate::output::{say, show};

/// Measure what the memory does on this platform, and keep the result in the region.
///
/// Runs small programs that show whether flushes, fences and words behave as Rackline needs. They
/// run on two cores of this host, or, with --pair-with, on this host and another host. They work in
/// a chunk of their own, so the region may be in use. A lock manager has to run.
///
/// Exit code 0: the platform is fit. 2: the platform lacks something that Rackline needs, and the
/// region keeps no profile. 1: nothing was measured.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    /// Number of this host's node.
    #[arg(long, value_name = "N", env = "RACKLINE_NODE")]
    node: u16,

    /// Measure together with this node, where the same command runs with this node's number. The
    /// two may be started in any order.
    #[arg(long, value_name = "N")]
    pair_with: Option<u16>,

    /// You guarantee that the two hosts of a pair are two machines. Needed when one of them is a
    /// virtual machine: two virtual machines on one machine share its caches, and show nothing
    /// about memory fences.
    #[arg(long, requires = "pair_with")]
    hosts_are_separate: bool,

    /// Rounds of each program, of 64 trials each. In a pair the smaller of the two numbers counts.
    #[arg(long, value_name = "N", default_value_t = 500,
        value_parser = clap::value_parser!(u64).range(1..=ROUNDS_MAX))]
    rounds: u64,

    /// How long to wait for the other host, or for a lock, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout_s: u64,

    /// You guarantee that a memory fence waits for this memory, so that publishes need not read
    /// back. True for ordinary memory that a single host uses. For a shared device, measure with a
    /// pair.
    #[arg(long, conflicts_with = "pair_with")]
    assume_fence_waits: bool,

    /// From now on, refuse hosts whose platform differs from this one. Without the flag such hosts
    /// run in the conservative mode.
    #[arg(long)]
    strict: bool,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Whether the platform is fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Fit,
    Unfit,
}

pub(crate) fn run(options: &Options) -> Result<Verdict> {
    if options.pair_with == Some(options.node) {
        bail!(
            "--pair-with {} is this node itself: give the number of the other host's node",
            options.node
        );
    }
    let attachment = Attachment::attach_to_measure(&options.region, options.node)?;
    let member = attachment.member();
    let timeout_ms = options.timeout_s * 1000;
    let (measured, partner) = measure(options, member, timeout_ms)?;
    let fence = if options.assume_fence_waits { FenceEvidence::Assumed } else { measured.fence() };
    let profile = measured.is_fit().then(|| PlatformProfile {
        platform: platform_of(attachment.region()),
        fence,
        // No DMA engine but the processor has been measured.
        payload: PayloadPolicy::FlushBoth,
        strict: options.strict,
        measured_unix_s: unix_s(),
    });
    // One of a pair is enough, and the other's region may be gone by then.
    let doubtful = profile.is_some() && is_doubtful(partner, options.hosts_are_separate);
    let stores = partner.is_none_or(|partner| options.node < partner.node.0) && !doubtful;
    if stores {
        store_profile(member, profile, &SystemClock::start(), timeout_ms)?;
    }
    let region = attachment.region();
    let result = Outcome { region, measured, partner, profile, stores, doubtful };
    if options.json {
        say!("{}", result.json());
    } else {
        show!("{}", result.text());
    }
    Ok(if result.measured.is_fit() { Verdict::Fit } else { Verdict::Unfit })
}

fn measure(
    options: &Options,
    member: &LocalMember,
    timeout_ms: u64,
) -> Result<(Measured, Option<Partner>)> {
    match options.pair_with {
        None => Ok((alone(member, options.rounds, timeout_ms)?, None)),
        Some(other) => {
            let nodes = member.layout().geometry().nodes;
            let Some(other) = member.layout().node(other) else {
                bail!("--pair-with {other}: this region has nodes 0 to {}", nodes - 1);
            };
            let (measured, partner) = pair(member, other, options.rounds, timeout_ms)?;
            Ok((measured, Some(partner)))
        }
    }
}

/// For people who read the profile; nothing compares it.
#[expect(clippy::disallowed_methods, reason = "the date of a measurement is for people only")]
fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

struct Outcome<'r> {
    region: &'r Region,
    measured: Measured,
    partner: Option<Partner>,
    profile: Option<PlatformProfile>,
    stores: bool,
    /// Nobody says that the two hosts are two machines.
    doubtful: bool,
}

/// Whether the two hosts of a pair may be one machine, and so show nothing about fences. What they
/// find broken is broken all the same.
fn is_doubtful(partner: Option<Partner>, separate: bool) -> bool {
    partner.is_some_and(|partner| partner.other_host && partner.virtual_machine) && !separate
}

const DOUBTFUL: &str = "NOT STORED: one of the two hosts is a virtual machine, and both may run on one \
    machine, whose caches are coherent; then nothing late is ever seen. If they are two machines, run \
    both commands again with --hosts-are-separate";

const GPU: &str = "skipped: this build has no GPU engine; payload is flushed on both hosts";

impl Outcome<'_> {
    fn text(&self) -> String {
        let Self { region, measured, .. } = self;
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_head(&mut text);
        let _ = write_findings(&mut text, measured);
        let _ = writeln!(text, "{:<22}  {GPU}", "GPU visibility");
        let _ = write_timing(&mut text, &measured.timing);
        let _ = self.write_verdict(&mut text);
        let _ = writeln!(text, "region: {}", region.path().display());
        text
    }

    fn write_head(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "platform: {}", platform_of(self.region))?;
        match (self.partner, self.measured.cores) {
            (Some(Partner { node, other_host: true, .. }), _) => {
                writeln!(text, "measured with node {node}, on another host")
            }
            (Some(Partner { node, .. }), _) => writeln!(
                text,
                "measured with node {node}, on THIS host: it shows that a pair works, and no more \
                 about the memory than one host can"
            ),
            (None, Some([a, b])) => writeln!(text, "measured by two threads, on cores {a} and {b}"),
            (None, None) => writeln!(
                text,
                "measured by two threads on ONE core: they hardly overlap, so this shows little"
            ),
        }
    }

    fn write_verdict(&self, text: &mut String) -> std::fmt::Result {
        let Some(profile) = &self.profile else {
            writeln!(
                text,
                "verdict: NOT FIT. {} The region's profile was taken away: hosts run in the \
                 conservative mode, which cannot mend this. Do not use Rackline on this memory; \
                 check the device's firmware, and that its range is mapped write-back.",
                violated(&self.measured)
            )?;
            return Ok(());
        };
        writeln!(text, "verdict: fit. A fence {}; DMA: {}.", profile.fence, profile.payload)?;
        if self.doubtful {
            writeln!(text, "{DOUBTFUL}")?;
            return Ok(());
        }
        let visibility = self.visibility();
        writeln!(text, "from now on, on hosts like this: {visibility}")?;
        let few = self.partner.is_some_and(|partner| {
            partner.other_host && trials_of(partner.rounds) < EVIDENCE_TRIALS_MIN
        });
        if few {
            writeln!(text, "for evidence about fences give both more --rounds")?;
        }
        if self.partner.is_none() && profile.fence == FenceEvidence::Unproven {
            writeln!(
                text,
                "one host cannot show whether a fence waits for a device that others map too: \
                 for that run it on two hosts, with --pair-with"
            )?;
        }
        if !self.stores {
            writeln!(text, "the node with the smaller number keeps the profile")?;
        }
        writeln!(text, "processes that are attached go on as they are until they start again")
    }

    /// How a host of this platform will publish.
    fn visibility(&self) -> Visibility {
        Visibility::decide(
            &platform_of(self.region),
            self.region.is_own_memory(),
            self.profile.as_ref(),
        )
    }

    fn json(&self) -> Value {
        let Timing { publish_ns, publish_read_back_ns, refresh_ns, loads_passing_flush } =
            self.measured.timing;
        let findings: Vec<_> = self
            .measured
            .findings
            .iter()
            .map(|found| {
                json!({
                    "litmus": found.litmus,
                    "tried": found.tried,
                    "counted": found.counted,
                    "trials": found.trials,
                    "seen": found.seen,
                    "required_zero": found.expect == Expect::Never,
                    "violated": found.is_violated(),
                    "meaning": found.meaning(self.measured.hosts),
                })
            })
            .collect();
        let partner = self.partner.map(|partner| partner.node);
        json!({
            "region": self.region.path(),
            "platform": platform_of(self.region).to_string(),
            "hosts": self.measured.hosts,
            "partner": partner.map(|NodeId(node)| node),
            "cores": self.measured.cores,
            "findings": findings,
            "gpu": GPU,
            "publish_ns": publish_ns,
            "publish_read_back_ns": publish_read_back_ns,
            "refresh_ns": refresh_ns,
            "loads_passing_flush_percent": {
                "no_fence": loads_passing_flush[0],
                "store_fence": loads_passing_flush[1],
                "load_fence": loads_passing_flush[2],
                "full_fence": loads_passing_flush[3],
            },
            "fit": self.measured.is_fit(),
            "fence": self.profile.map(|profile| profile.fence.to_string()),
            "visibility": self.visibility().to_string(),
            "stored_by_this_node": self.stores,
            "not_stored_because": self.doubtful.then_some(DOUBTFUL),
        })
    }
}

fn violated(measured: &Measured) -> String {
    let violated = measured.findings.iter().filter(|found| found.is_violated());
    violated
        .map(|found| {
            format!("{} ({}): {} of {}.", found.litmus, found.tried, found.seen, found.trials)
        })
        .collect::<Vec<_>>()
        .join(" ")
}

fn write_findings(text: &mut String, measured: &Measured) -> std::fmt::Result {
    writeln!(
        text,
        "{:<22}  {:<39}  {:>9}  {:>9}  {:<22}  meaning",
        "program", "what was done", "trials", "seen", "of what"
    )?;
    let mut last = "";
    for found in &measured.findings {
        let Finding { litmus, tried, counted, trials, seen, .. } = found;
        let name = if *litmus == last { "" } else { litmus };
        last = litmus;
        let meaning = found.meaning(measured.hosts);
        writeln!(
            text,
            "{name:<22}  {tried:<39}  {trials:>9}  {seen:>9}  {counted:<22}  {meaning}"
        )?;
    }
    Ok(())
}

fn write_timing(text: &mut String, timing: &Timing) -> std::fmt::Result {
    let Timing { publish_ns, publish_read_back_ns, refresh_ns, loads_passing_flush } = timing;
    let [none, stores, loads, full] = loads_passing_flush;
    writeln!(
        text,
        "a publish takes {publish_ns:.0} ns, with read-back {publish_read_back_ns:.0} ns ({:.1} \
         times); a refresh and load {refresh_ns:.0} ns",
        publish_read_back_ns / publish_ns
    )?;
    writeln!(
        text,
        "by the clock, loads too fast to have come from the memory after a flush: {none:.1} % \
         without a fence, {stores:.1} % with a store fence, {loads:.1} % with a load fence, \
         {full:.1} % with a full fence"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_machines_are_no_evidence_unless_told() {
        let partner = |other_host, virtual_machine| {
            Some(Partner { node: NodeId(1), other_host, virtual_machine, rounds: 1 })
        };
        assert!(is_doubtful(partner(true, true), false));
        assert!(!is_doubtful(partner(true, true), true), "somebody vouches for it");
        assert!(!is_doubtful(partner(true, false), false));
        assert!(!is_doubtful(partner(false, true), false), "one host says so itself");
        assert!(!is_doubtful(None, false));
    }
}
