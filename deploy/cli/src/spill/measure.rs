//! `rackline spill measure`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use bytesize::ByteSize;
use clap::Args;
use cxl_shm::clock::SystemClock;
use kv_cache::BlockKey;
use kv_drive::Encoding;
use kv_drive::encoding::{
    Encoder, EncoderFigures, EncodingChoice, EncodingOptions, Expected, Plain, decode,
};
use kv_drive::io::Buffer;
use kv_drive::store::{Access, Store};
use kv_drive::volume::checksum;
use serde::Serialize;

use super::Io;
use crate::output::{progress_bar, say};

/// Encode the blocks in a folder in every way, and print what that saves and costs.
///
/// Nothing in the folder changes. One thread works. The speed of a plain copy in the same run stands
/// beside, for comparison.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// The folder.
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Blocks are read until they have so many bytes.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    bytes: ByteSize,

    /// What `auto` has to save of a block.
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=99))]
    percent: u8,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,

    /// How payload reaches this process.
    #[arg(long, value_enum, default_value_t = Io::Uring)]
    io: Io,
}

#[derive(Debug, Serialize)]
struct Report {
    blocks: usize,
    bytes: usize,
    /// A copy of the same blocks, in bytes a nanosecond.
    copy_gb_per_s: f64,
    encodings: Vec<Measured>,
}

#[derive(Debug, Serialize)]
struct Measured {
    encoding: String,
    /// Blocks that are encoded: the others save too little.
    encoded_blocks: u64,
    /// What is written, in whole pages of 4 KiB, for each byte of the payload in whole pages.
    written_share: f64,
    encode_gb_per_s: f64,
    /// Of the blocks that are encoded. The checksum of the payload is a part of it, as in a read.
    decode_gb_per_s: Option<f64>,
    /// Processor time of encoding a GiB, in seconds.
    encode_cpu_s_per_gib: f64,
}

const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(options: &Options) -> Result<()> {
    let store = super::open(&options.folder, options.io, Access::Read, super::UNBOUNDED, true)?;
    let blocks = read(&store, options.bytes.as_u64())?;
    ensure!(
        !blocks.is_empty(),
        "{} has no block that can be read; run an agent with it first",
        options.folder.display()
    );
    let bytes = blocks.iter().map(|(_, payload)| payload.len()).sum();
    let copy_gb_per_s = copies(&blocks, bytes);
    let bar = progress_bar(3, "encodings [{bar:30}] {pos} of {len}");
    let mut encodings = Vec::new();
    for choice in [EncodingChoice::Lz4, EncodingChoice::Lz4Planes, EncodingChoice::Auto] {
        let options = EncodingOptions { choice, least_saving_percent: options.percent };
        encodings.push(measure(&blocks, bytes, options)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    print(&Report { blocks: blocks.len(), bytes, copy_gb_per_s, encodings }, options)
}

fn read(store: &Store, bytes_max: u64) -> Result<Vec<(BlockKey, Vec<u8>)>> {
    let (mut blocks, mut bytes) = (Vec::new(), 0);
    for (_, volume) in store.volumes() {
        for key in (0..).map_while(|part| volume.keys(part)).flatten() {
            let Some(block) = volume.block(&key) else { continue };
            let buffer = Buffer::zeroed(block.buffer_bytes())?;
            let Ok((buffer, length)) = store.get(key, buffer, TIMEOUT) else { continue };
            let payload = buffer.bytes().and_then(|all| all.get(..length as usize));
            blocks.push((key, payload.unwrap_or_default().to_vec()));
            bytes += u64::from(length);
            if bytes >= bytes_max {
                return Ok(blocks);
            }
        }
    }
    Ok(blocks)
}

fn copies(blocks: &[(BlockKey, Vec<u8>)], bytes: usize) -> f64 {
    let longest = blocks.iter().map(|(_, payload)| payload.len()).max().unwrap_or(0);
    let mut into = vec![1; longest];
    let clock = SystemClock::start();
    for (_, payload) in blocks {
        into[..payload.len()].copy_from_slice(std::hint::black_box(payload));
        std::hint::black_box(&mut into);
    }
    speed(bytes, clock.now_ns())
}

/// Bytes a nanosecond are GB/s.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn speed(bytes: usize, ns: u64) -> f64 {
    bytes as f64 / ns.max(1) as f64
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn measure(
    blocks: &[(BlockKey, Vec<u8>)],
    bytes: usize,
    options: EncodingOptions,
) -> Result<Measured> {
    let mut encoder = Encoder::new(options);
    let longest = blocks.iter().map(|(_, payload)| payload.len()).max().unwrap_or(0);
    let (mut into, mut decoded) = (Buffer::zeroed(longest)?, vec![0; longest]);
    let clock = SystemClock::start();
    let (mut encode_ns, mut decode_ns, mut decoded_bytes) = (0, 0, 0);
    for (key, payload) in blocks {
        let crc = checksum(payload);
        let started_ns = clock.now_ns();
        let encoded = encoder.encode(&Plain { key: *key, payload, crc }, false, &mut into);
        let ended_ns = clock.now_ns();
        encode_ns += ended_ns - started_ns;
        if encoded.encoding == Encoding::Raw {
            continue;
        }
        let stored = into.bytes().and_then(|all| all.get(..encoded.stored_bytes as usize));
        let bytes = u32::try_from(payload.len())?;
        let expected = Expected { key: *key, encoding: encoded.encoding, bytes, crc };
        let decoded = &mut decoded[..payload.len()];
        decode(stored.unwrap_or_default(), &expected, decoded)?;
        ensure!(checksum(decoded) == crc, "a block was not the same when it was decoded");
        decode_ns += clock.now_ns() - ended_ns;
        decoded_bytes += payload.len();
    }
    let EncoderFigures { lz4_blocks, lz4_planes_blocks, bytes_before, bytes_after, cpu_ns, .. } =
        encoder.figures();
    Ok(Measured {
        encoding: options.choice.to_string(),
        encoded_blocks: lz4_blocks + lz4_planes_blocks,
        written_share: bytes_after as f64 / bytes_before.max(1) as f64,
        encode_gb_per_s: speed(bytes, encode_ns),
        decode_gb_per_s: (decoded_bytes > 0).then(|| speed(decoded_bytes, decode_ns)),
        encode_cpu_s_per_gib: cpu_ns as f64 / 1e9 / (bytes as f64 / f64::from(1 << 30)),
    })
}

fn print(report: &Report, options: &Options) -> Result<()> {
    if options.json {
        say!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    let Report { blocks, bytes, copy_gb_per_s, encodings } = report;
    say!("{blocks} blocks, {}; a plain copy: {copy_gb_per_s:.2} GB/s", ByteSize(*bytes as u64));
    for it in encodings {
        let decodes = it.decode_gb_per_s.map_or("nothing to decode".to_owned(), |speed| {
            format!("decodes at {speed:.2} GB/s, {:.2} of a copy", speed / copy_gb_per_s)
        });
        say!(
            "{:<10}  writes {:5.1} % of the pages, {} blocks encoded; encodes at {:.2} GB/s ({:.2} CPU s a \
             GiB), {decodes}",
            it.encoding,
            it.written_share * 100.0,
            it.encoded_blocks,
            it.encode_gb_per_s,
            it.encode_cpu_s_per_gib,
        );
    }
    Ok(())
}
