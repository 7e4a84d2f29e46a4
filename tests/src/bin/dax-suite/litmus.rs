//! Whether atomic operations work between hosts: both add to one word by compare and exchange.
//! Where updates are lost, everything else that passes did so without such operations.

use std::fs::OpenOptions;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fabric::{Fabric, HostMemory, MappedHostMemory, Mapping};
use cxl_shm::region::{Region, RegionKind};
use cxl_shm::units::{LineOffset, LineRange, WordOffset};

/// Add to one word from two hosts by compare and exchange.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[arg(long)]
    region: PathBuf,

    /// Which of the two hosts this is.
    #[arg(long, value_enum)]
    role: Role,

    /// How often each adds.
    #[arg(long, default_value_t = 20_000)]
    rounds: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Role {
    A,
    B,
}

/// Lines from here on are free of the conformance suite's.
const COUNTER: u64 = 40;
const PROGRESS_OF_A: u64 = 41;
const PROGRESS_OF_B: u64 = 42;

const ARRIVED: u64 = 1;
const ADDED: u64 = 2;

const TIMEOUT_MS: u64 = 60_000;

pub(crate) fn run(options: &Options) -> Result<String> {
    let region = Region::open(&options.region, Some(RegionKind::Devdax))?;
    let file = OpenOptions::new().read(true).write(true).open(&options.region)?;
    let atomics = MappedHostMemory::new(Mapping::shared(&file, region.bytes())?);
    let index = usize::try_from(COUNTER * 8).context("a small number")?;
    let (mine, other) = match options.role {
        Role::A => (PROGRESS_OF_A, PROGRESS_OF_B),
        Role::B => (PROGRESS_OF_B, PROGRESS_OF_A),
    };
    let start = SystemClock::start();

    meet(region.fabric(), mine, other, ARRIVED)?;
    let mut retries = 0_u64;
    for _ in 0..options.rounds {
        let mut value = atomics.load(index);
        while let Err(found) = atomics.compare_exchange(index, value, value + 1) {
            value = found;
            retries += 1;
        }
    }
    meet(region.fabric(), mine, other, ADDED)?;
    let total = atomics.load(index);
    let lost = (2 * options.rounds).saturating_sub(total);
    Ok(format!("added={} lost={lost} retries={retries} us={}", 2 * options.rounds, start.now_us()))
}

/// Says that this host got to `step`, and waits until the other one has.
fn meet(fabric: &impl Fabric, mine: u64, other: u64, step: u64) -> Result<()> {
    let (mine, other) = (first_word(mine)?, first_word(other)?);
    fabric.store(mine, step);
    fabric.publish(LineRange::one(mine.line()));
    let clock = SystemClock::start();
    let mut tries = 0;
    loop {
        fabric.refresh(LineRange::one(other.line()));
        if fabric.load(other) >= step {
            return Ok(());
        }
        if clock.now_ms() > TIMEOUT_MS {
            bail!("the other host did not get to step {step} within {TIMEOUT_MS} ms");
        }
        clock.pause(tries);
        tries += 1;
    }
}

fn first_word(line: u64) -> Result<WordOffset> {
    LineOffset::new(line * 64).and_then(|line| line.word(0)).context("a multiple of 64")
}
