//! The conformance suite of the mapped fabric, on the device itself: with two mappings in one
//! process, and with one half on each of two hosts.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use cxl_shm::clock::SystemClock;
use cxl_shm::region::{Region, RegionKind};
use rackline_tests::fabric_conformance::{ROUNDS, one_thread, receive, send, two_threads};

/// Run the conformance suite of fabrics on a blank device.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[arg(long)]
    region: PathBuf,

    /// Only one half of the conversation; the other runs on another host.
    #[arg(long, value_enum)]
    half: Option<Half>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Half {
    Send,
    Receive,
}

pub(crate) fn run(options: &Options) -> Result<String> {
    let open = || Region::open(&options.region, Some(RegionKind::Devdax));
    let region = open()?;
    let fabric = region.fabric().clone();
    let start = SystemClock::start();
    match options.half {
        None => {
            let other = open()?.fabric().clone();
            one_thread(&fabric, &other);
            two_threads(fabric, other);
        }
        Some(Half::Send) => send(&fabric),
        Some(Half::Receive) => receive(&fabric),
    }
    let flush = region.fabric().flush_kind();
    Ok(format!("rounds={ROUNDS} us={} flush={flush:?}", start.now_us()))
}
