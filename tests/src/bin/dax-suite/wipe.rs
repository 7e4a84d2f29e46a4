//! Makes a device blank again where the checks of an unformatted one wrote.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use cxl_shm::fabric::Fabric;
use cxl_shm::region::{Region, RegionKind};
use cxl_shm::units::{LineOffset, LineRange};
use rackline_tests::fabric_conformance::LINES_USED;

/// Clear what `conform` and `litmus` wrote.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[arg(long)]
    region: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<String> {
    let region = Region::open(&options.region, Some(RegionKind::Devdax))?;
    let fabric = region.fabric();
    let last = region.bytes() / 64 - 1;
    for number in (0..LINES_USED).chain([last]) {
        let line = LineOffset::new(number * 64).context("a multiple of 64")?;
        fabric.write_line(line, &[0; 8]);
        fabric.publish(LineRange::one(line));
    }
    Ok(format!("lines={}", LINES_USED + 1))
}
