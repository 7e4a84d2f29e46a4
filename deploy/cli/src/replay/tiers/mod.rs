//! `rackline replay --tiers`: a drive behind the pool.

mod chart;
mod report;

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use kv_drive::policy::{AdmissionKind, usual_watermarks};
use rackline_replay::{
    Capacity, CapacityError, PoolSimulation, Simulation, TierOptions, TierOutcome, TierPool,
    TierSimulation, Trace,
};

use self::report::{Admission, Report};
use super::{Options, live, progress};
use crate::output::say;

/// Room of the pool and of the drive behind it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Rooms {
    pool: Capacity,
    drive: Capacity,
}

/// A text is no room of two tiers.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum RoomsError {
    /// There are not two.
    #[error(
        "\"{0}\" does not name two tiers: give room of the pool and of the drive, as in 5%,50%"
    )]
    NotTwo(String),
    /// One of them is none.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
}

impl FromStr for Rooms {
    type Err = RoomsError;

    fn from_str(text: &str) -> Result<Self, RoomsError> {
        let not_two = || RoomsError::NotTwo(text.to_owned());
        let (pool, drive) = text.split_once(',').ok_or_else(not_two)?;
        Ok(Self { pool: pool.parse()?, drive: drive.parse()? })
    }
}

impl fmt::Display for Rooms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.pool, self.drive)
    }
}

/// Replays, prints and draws.
pub(super) fn run(options: &Options, rooms: Rooms, trace: &Trace) -> Result<()> {
    let policy = options.policy.policy_of("--tiers")?;
    let block_bytes = options.block_bytes.as_u64();
    // No drive has longer blocks.
    let longest = (1 << 26) - 1;
    ensure!(
        (1..=longest).contains(&block_bytes),
        "blocks of {block_bytes} bytes: a drive keeps blocks of 1 to {longest} bytes; give another \
         --block-bytes"
    );
    let chosen = |admission: AdmissionKind| {
        let drive = rooms.drive.blocks(trace.unique_blocks());
        let mut tiers = TierOptions {
            admission,
            backup_age_ms: options.backup_age_ms,
            block_bytes,
            room_bytes: None,
            watermarks: usual_watermarks(),
        };
        tiers.room_bytes = drive.map(|blocks| u64::from(blocks) * tiers.extent_bytes());
        tiers
    };
    let report = if options.live || options.nodes.is_some() || options.workers_per_node.is_some() {
        through_pool(options, rooms, trace, chosen)?
    } else {
        let capacity = rooms.pool.blocks(trace.unique_blocks());
        let mut report = Report::new(trace, capacity.map(u64::from), &chosen(KINDS[0]), options);
        for admission in kinds(options) {
            let tiers = chosen(*admission);
            let pool = Simulation::new(trace, capacity, policy, options.touch);
            report.push(&tiers, replay(trace, pool, &tiers), trace);
        }
        report
    };
    if options.json {
        say!("{}", serde_json::to_string(&report)?);
    } else {
        report.print();
    }
    if let Some(path) = &options.svg {
        chart::draw(path, options, rooms, trace, chosen)?;
        if !options.json {
            say!("hits by room of the pool are drawn in {}", path.display());
        }
    }
    Ok(())
}

const KINDS: [AdmissionKind; 3] = AdmissionKind::ALL;

/// The rules that are replayed.
fn kinds(options: &Options) -> &[AdmissionKind] {
    options.admission.as_ref().map_or(&KINDS, std::slice::from_ref)
}

/// Through a pool with chunks, simulated or real.
fn through_pool(
    options: &Options,
    rooms: Rooms,
    trace: &Trace,
    chosen: impl Fn(AdmissionKind) -> TierOptions,
) -> Result<Report> {
    let more = |number: Option<u16>| number.is_some_and(|number| number > 1);
    if more(options.nodes) || more(options.workers_per_node) {
        bail!("a drive belongs to one host: --tiers replays one node with one process");
    }
    let wish = live::Wish { nodes: std::num::NonZeroU16::MIN, ..options.wish(trace, rooms.pool)? };
    let shape = wish.shape(trace)?;
    let with_room = |admission| {
        let mut tiers = chosen(admission);
        tiers.room_bytes = Some(live::folder_room(&tiers, trace));
        tiers
    };
    let capacity = wish.capacity.map(|_| shape.blocks());
    let mut report = Report::new(trace, capacity, &with_room(KINDS[0]), options);
    if options.live {
        let tiers = with_room(options.admission.unwrap_or_default());
        let (outcome, live) = live::run_tiers(&wish, trace, &tiers)?;
        report.push(&tiers, outcome, trace);
        report.live = Some(live);
        return Ok(report);
    }
    for admission in kinds(options) {
        let tiers = with_room(*admission);
        report.push(&tiers, replay(trace, PoolSimulation::new(trace, shape), &tiers), trace);
    }
    Ok(report)
}

fn replay(trace: &Trace, pool: impl TierPool, tiers: &TierOptions) -> TierOutcome {
    let bar = progress::tiers(trace.requests().len(), tiers.admission);
    let mut simulation = TierSimulation::new(trace, pool, tiers);
    while simulation.step() {
        bar.inc(1);
    }
    bar.finish_and_clear();
    simulation.outcome()
}

impl Report {
    fn push(&mut self, tiers: &TierOptions, outcome: TierOutcome, trace: &Trace) {
        self.pool_alone_hits = outcome.pool_alone.hits;
        self.pool_evictions = outcome.pool_alone.evictions;
        self.admissions.push(Admission::new(tiers, &outcome, trace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_read_and_written() {
        for text in ["5%,50%", "100,unlimited"] {
            assert_eq!(text.parse::<Rooms>().unwrap().to_string(), text);
        }
        let error = |text: &str| text.parse::<Rooms>().unwrap_err().to_string();
        assert!(error("5%").contains("does not name two tiers"), "{}", error("5%"));
        assert!(error("5%,0").contains("\"0\" is not a capacity"), "{}", error("5%,0"));
        assert!(error("1,2,3").contains("\"2,3\" is not a capacity"), "{}", error("1,2,3"));
    }
}
