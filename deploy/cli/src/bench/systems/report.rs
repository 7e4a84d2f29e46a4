//! What a comparison of systems prints.

use anyhow::Result;
use bytesize::ByteSize;
use rackline_serving::{Kill, Served, Software, Spread, Summary, System};
use serde::Serialize;

use crate::bench::kill::check_in_time;
use crate::output::{counted, say};

/// What was run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Conditions {
    pub(super) trace: String,
    pub(super) requests: usize,
    pub(super) nodes: u16,
    pub(super) prefill_workers: u16,
    pub(super) decode_workers: u16,
    pub(super) profile: String,
    pub(super) profile_source: String,
    pub(super) links: String,
    pub(super) links_source: String,
    pub(super) block_bytes: u64,
    pub(super) capacity_blocks: Option<u32>,
    /// Room of the drives of `rackline-drives`.
    pub(super) drive_blocks: Option<u32>,
    pub(super) unique_blocks: u32,
    /// The node whose workers were killed, and after how many seconds.
    pub(super) killed: Option<(u16, u64)>,
}

/// A system at a load.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Point {
    pub(super) system: System,
    /// Requests that arrive in a second.
    pub(super) rate: f64,
    #[serde(flatten)]
    pub(super) summary: Summary,
    /// Blocks that were written to drives.
    pub(super) written_to_drives: u64,
    /// Where a node was killed.
    pub(super) around_kill: Option<AroundKill>,
    /// Each request, by its number.
    pub(super) served: Vec<Served>,
}

/// Times to the first token of requests that arrived before a node was killed, and after it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct AroundKill {
    /// `None` where none arrived.
    before: Option<Spread>,
    after: Option<Spread>,
}

impl AroundKill {
    pub(super) fn of(kill: &Kill, served: &[Served]) -> Result<Self> {
        check_in_time(kill, served)?;
        let of = |is_before: bool| {
            let those = served.iter().filter(|it| (it.arrived_ns < kill.at_ns) == is_before);
            Spread::of(those.map(|it| it.ttft_ns).collect())
        };
        Ok(Self { before: of(true), after: of(false) })
    }
}

/// All that is printed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) conditions: Conditions,
    /// By load, and then by system.
    pub(super) points: Vec<Point>,
}

impl Report {
    pub(super) fn print(&self, json: bool) -> Result<()> {
        if json {
            say!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        self.conditions.print();
        say!(
            "\n{:>10}  {:<16}{:>11}{:>10}{:>10}{:>8}{:>10}{:>9}{:>9}",
            "requests/s",
            "system",
            "TTFT mean",
            "50 %",
            "99 % ms",
            "ratio",
            "served/s",
            "hits %",
            "lost"
        );
        let mut last = f64::NAN;
        for point in &self.points {
            let Summary { ttft, requests_per_s, lost, .. } = &point.summary;
            #[expect(clippy::float_cmp, reason = "the same number again")]
            let is_new = point.rate != last;
            last = point.rate;
            let rate = if is_new { point.rate.to_string() } else { String::new() };
            say!(
                "{rate:>10}  {:<16}{:>11.1}{:>10.1}{:>10.1}{:>8.2}{:>10.3}{:>9.1}{:>9}",
                point.system.name(),
                ttft.mean_ms,
                ttft.p50_ms,
                ttft.p99_ms,
                self.ratio(point),
                requests_per_s,
                100.0 * point.summary.hit_rate(),
                lost
            );
        }
        for point in self.points.iter().filter(|it| it.system == System::RacklineDrives) {
            say!(
                "{} at {} requests/s: {} from drives, {} written to them",
                point.system,
                point.rate,
                counted(point.summary.from_drives, "block"),
                counted(point.written_to_drives, "block")
            );
        }
        for point in &self.points {
            let Some(around) = &point.around_kill else { continue };
            let mean = |it: Option<Spread>| {
                it.map_or("-".to_owned(), |it| format!("{:.1} ms", it.mean_ms))
            };
            say!(
                "{} at {} requests/s: {} began again, and found {} again; TTFT mean {} before, {} after",
                point.system,
                point.rate,
                counted(point.summary.restarted, "request"),
                counted(point.summary.found_again, "block"),
                mean(around.before),
                mean(around.after)
            );
        }
        say!(
            "\nTTFT: from the arrival of a request to its first token. ratio: its mean, of the first system's\n\
             served/s: answered, from the first arrival to the last token. hits: blocks that prefill workers \
             found\nlost: blocks that the pool had no more, or no room for, when a decode worker wanted them"
        );
        Ok(())
    }

    /// The mean time to the first token, of that of the first system at the same load.
    fn ratio(&self, point: &Point) -> f64 {
        let same = |other: &&Point| other.rate.total_cmp(&point.rate).is_eq();
        let first = self.points.iter().find(same).unwrap_or(point);
        point.summary.ttft.mean_ms / first.summary.ttft.mean_ms
    }

    /// The systems, in order, each with its points by load.
    pub(super) fn curves(&self) -> Vec<(System, Vec<&Point>)> {
        let mut curves: Vec<(System, Vec<&Point>)> = Vec::new();
        for point in &self.points {
            match curves.iter_mut().find(|(system, _)| *system == point.system) {
                Some((_, points)) => points.push(point),
                None => curves.push((point.system, vec![point])),
            }
        }
        curves
    }
}

impl Conditions {
    fn print(&self) {
        say!(
            "simulated: {} of {}, on {} with {} and {}",
            counted(self.requests as u64, "request"),
            self.trace,
            counted(self.nodes.into(), "node"),
            counted(self.prefill_workers.into(), "prefill worker"),
            counted(self.decode_workers.into(), "decode worker")
        );
        say!("computing: {} ({})", self.profile, self.profile_source);
        say!("links: {} ({})", self.links, self.links_source);
        let room = match self.capacity_blocks {
            None => "unlimited".to_owned(),
            Some(blocks) => format!("{blocks} of {} different blocks", self.unique_blocks),
        };
        let Software { lookup_ns, lookup_block_ns, message_ns } = Software::MEASURED;
        say!(
            "software of each system, as measured of rackline: {} us for a lookup and {} us for each block, \
             {} us for a message",
            lookup_ns / 1000,
            lookup_block_ns / 1000,
            message_ns / 1000
        );
        say!("room: {room}; blocks of {}", ByteSize(self.block_bytes));
        if let Some((node, at_s)) = self.killed {
            say!("node {node} is killed after {at_s} s");
        }
    }
}
