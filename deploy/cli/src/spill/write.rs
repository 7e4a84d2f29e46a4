//! `rackline spill write`.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use bytesize::ByteSize;
use clap::Args;
use kv_cache::{BlockHash, BlockKey, KeySpace, Model, Namespace};
use kv_drive::encoding::{Encoder, EncodingChoice, EncodingOptions, Plain};
use kv_drive::io::Buffer;
use kv_drive::store::{Access, PutError};
use kv_drive::volume::{BlockSpec, ReserveError, checksum};
use kv_drive::{ALL_LAYERS, Encoding, Page};

use super::{Hex, Io};
use crate::output::say;

/// Write blocks with bytes that a seed determines, and print `ACK <key>` for each when it is durable.
///
/// A block that is acknowledged survives the death of this process and of the machine. A block that
/// the folder has already is acknowledged again.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// The folder. A new store is made in an empty one.
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// How many blocks.
    #[arg(long, value_name = "N")]
    count: u64,

    /// Determines keys and bytes.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    /// How payload reaches the drive.
    #[arg(long, value_enum, default_value_t = Io::Uring)]
    io: Io,

    /// Bytes of a block.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    block: ByteSize,

    /// Bytes that the folder may have allocated.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    size: ByteSize,

    /// Blocks that become durable together.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    group: u64,

    /// How blocks are written: raw, lz4, lz4-planes or auto. Other bytes are written with any but raw:
    /// those of bfloat16 numbers, of which an encoding saves something.
    #[arg(long, value_name = "ENCODING", default_value_t = EncodingChoice::default())]
    encoding: EncodingChoice,

    /// Use the folder although another host has written it. That host must have given it up.
    #[arg(long)]
    take_over: bool,
}

const TOKENS: u32 = 16;

pub(super) fn run(options: &Options) -> Result<()> {
    let capacity_bytes = options.size.as_u64();
    let store =
        super::open(&options.folder, options.io, Access::Write, capacity_bytes, options.take_over)?;
    let block_bytes = u32::try_from(options.block.as_u64()).context("a block is too long")?;
    let model = model();
    let keys = KeySpace::new(model.fingerprint(), Namespace::default(), block_bytes.into());
    let mut acknowledged = 0;
    let mut buffer = Buffer::zeroed(block_bytes as usize)?;
    let mut encoded_buffer = Buffer::zeroed(block_bytes as usize)?;
    let mut encoder =
        Encoder::new(EncodingOptions { choice: options.encoding, least_saving_percent: 10 });
    for number in 0..options.count {
        let key = key_of(&keys, options.seed, number);
        let Some(payload) =
            buffer.bytes_mut().and_then(|bytes| bytes.get_mut(..block_bytes as usize))
        else {
            bail!("a buffer has no bytes");
        };
        fill(payload, options.seed, number);
        if encoder.encodes() {
            be_numbers(payload);
        }
        let crc = checksum(payload);
        let plain = Plain { key, payload, crc };
        let encoded = encoder.encode(&plain, false, &mut encoded_buffer);
        let first_token = u32::try_from(number % 1024).unwrap_or(0) * TOKENS;
        let page = Page {
            fingerprint: model.fingerprint().get(),
            layout_version: model.layout_version,
            layer: ALL_LAYERS,
            first_token,
            last_token: first_token + TOKENS - 1,
            encoding: encoded.encoding,
            offset_bytes: 0,
            bytes: block_bytes,
            crc,
        };
        let depth = u16::try_from(number % 1024).unwrap_or(0);
        let tag = Namespace::default().tag();
        let stored_bytes = encoded.stored_bytes;
        let spec =
            BlockSpec { key, tag, depth, bytes: block_bytes, stored_bytes, crc, pages: &[page] };
        if encoded.encoding != Encoding::Raw {
            std::mem::swap(&mut buffer, &mut encoded_buffer);
        }
        let (back, outcome) = store.put(&spec, buffer);
        match outcome {
            Ok(()) => {}
            Err(PutError::Reserve(ReserveError::Exists)) => {
                say!("ACK {}", Hex(&key));
                acknowledged += 1;
            }
            Err(error) => {
                acknowledged += commit(&store)?;
                bail!("wrote {acknowledged} of {} blocks: {error}", options.count);
            }
        }
        buffer = match back {
            Some(buffer) => buffer,
            None => Buffer::zeroed(block_bytes as usize)?,
        };
        if (number + 1) % options.group == 0 {
            acknowledged += commit(&store)?;
        }
    }
    commit(&store)?;
    Ok(())
}

/// Makes durable what was written, and says so.
fn commit(store: &kv_drive::store::Store) -> Result<u64> {
    let (keys, errors) = store.commit();
    keys.iter().for_each(|key| say!("ACK {}", Hex(key)));
    match errors.into_iter().next() {
        Some(error) => Err(error.into()),
        None => Ok(keys.len() as u64),
    }
}

const fn model() -> Model<'static> {
    Model {
        name: "rackline spill write",
        revision: "1",
        dtype: "u8",
        layout_version: 1,
        block_tokens: TOKENS,
        tensor_parallel_rank: 0,
        tensor_parallel_size: 1,
        layers: 1,
        kv_heads: 1,
        head_dim: 1,
    }
}

fn key_of(keys: &KeySpace, seed: u64, number: u64) -> BlockKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    hash[8..16].copy_from_slice(&seed.to_le_bytes());
    keys.key(&BlockHash::new(hash))
}

/// Makes bytes those of bfloat16 numbers: their high bytes have few values.
fn be_numbers(payload: &mut [u8]) {
    for high in payload.iter_mut().skip(1).step_by(2) {
        *high = 0x3c | *high & 3;
    }
}

/// Fills a payload with bytes that differ from block to block and from page to page.
fn fill(payload: &mut [u8], seed: u64, number: u64) {
    let mut word = seed.rotate_left(32) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for part in payload.chunks_mut(8) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
    }
}
