//! How the payload of a block is written where that takes fewer bytes. Every encoding here gives back
//! the bytes that were published.
//!
//! - **DRIVE-E1**: A decoder believes no length. Each is checked against the record of the block and
//!   against the memory at hand before it is used, and no page decides how much memory is taken.
//! - **DRIVE-E2**: Encoded bytes have a checksum of their own, over key, lengths and bytes: what is
//!   torn or belongs to another block is not decoded. What is decoded has to have the checksum of its
//!   publication (DRIVE-D6).
//! - **DRIVE-E3**: A block is encoded only where that saves whole pages of 4 KiB, as many as the caller
//!   asks for. A reader learns the encoding from the page table, never from the payload.
//! - **DRIVE-E4**: Compaction moves a block of an encoding that this program does not know as it is. A
//!   program that knows the encoding checks its bytes.
//!
//! The extent of an encoded block begins with 32 bytes:
//!
//! ```text
//! 0    "RDKE" | encoding u32 | bytes from here to the end u32 | bytes of the payload u32
//! 16   CRC-32C of the payload u32 | CRC-32C of all these bytes, with zeros here u32
//! 24   first 8 bytes of the key
//! 32   chunks
//! ```
//!
//! A chunk has 60 KiB of the payload (`lz4`) or 120 KiB (`lz4-planes`: 60 KiB of low bytes and 60 KiB
//! of high bytes, of elements of 2 bytes). Each part is one word, then bytes: the word has their number,
//! and its highest bit says that they are stored as they are.

mod chunks;
mod encoder;
mod frame;

pub use chunks::ChunkError;
pub use encoder::{
    Encoded, Encoder, EncoderFigures, EncodingChoice, EncodingOptions, Plain, UnknownEncodingChoice,
};
pub(crate) use frame::check;
pub use frame::{DecodeError, Expected, decode};

/// Nanoseconds that this thread has computed.
pub(crate) fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

#[cfg(test)]
mod tests;
