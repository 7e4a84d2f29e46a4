//! Hashes of blocks.
#![expect(unsafe_code, reason = "a function that C calls")]

use rackline::{BlockHash, ChainHasher};

use super::arguments::{optional, place, places, values};
use super::error::{Failure, RacklineError, code};

/// The engine's hash of a block and of all blocks before it: same prefix, same hash. Engines
/// without hashes of their own make them with `rackline_chain_hashes`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineBlockHash {
    /// Its bytes.
    pub bytes: [u8; 32],
}

/// The `count` hashes at `hashes`.
///
/// # Safety
/// `hashes` is null or points to `count` hashes that stay unchanged during the call.
pub(super) unsafe fn hashes_at(
    hashes: *const RacklineBlockHash,
    count: usize,
) -> Result<Vec<BlockHash>, Failure> {
    // SAFETY: by the caller's promise.
    let hashes = unsafe { values(hashes, count, "the block hashes") }?;
    Ok(hashes.iter().map(|hash| BlockHash::new(hash.bytes)).collect())
}

/// Hashes the full blocks of `block_tokens` tokens that the `token_count` tokens at `tokens` make,
/// each with everything before it; the tokens of a block that is not full are left out. The blocks
/// follow the one with the hash `parent`, or are the first of a prompt when that is null. Another
/// `seed` (of `seed_bytes` bytes; null with 0) gives other hashes for the same tokens; with a
/// parent the seed does not matter.
///
/// The hashes are SHA-256: of `rackline chain 1` and the seed for what is before the first block,
/// and of the hash before and the tokens, 4 bytes each, little-endian, for each block. They are
/// written to `hashes`, of which there is room for `capacity`, and their number to `count`.
///
/// # Safety
/// `seed` is null or points to `seed_bytes` bytes, `parent` is null or points to a hash, `tokens`
/// is null or points to `token_count` tokens; `hashes` is null or points to room for `capacity`
/// hashes, and `count` is null or points to a number, that nothing else uses during the call.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackline_chain_hashes(
    seed: *const u8,
    seed_bytes: usize,
    parent: *const RacklineBlockHash,
    block_tokens: u32,
    tokens: *const u32,
    token_count: usize,
    hashes: *mut RacklineBlockHash,
    capacity: usize,
    count: *mut usize,
) -> RacklineError {
    code(|| {
        // SAFETY: by the caller's promise.
        let count = unsafe { place(count, "the place for the number of hashes") }?;
        count.write(0);
        // SAFETY: by the caller's promise.
        let seed = unsafe { values(seed, seed_bytes, "the seed") }?;
        // SAFETY: by the caller's promise.
        let parent = unsafe { optional(parent, "the hash before the first block") }?;
        // SAFETY: by the caller's promise.
        let tokens = unsafe { values(tokens, token_count, "the tokens") }?;
        // SAFETY: by the caller's promise.
        let places = unsafe { places(hashes, capacity, "the place for the hashes") }?;
        let block_tokens = block_tokens as usize;
        if block_tokens == 0 {
            return Err(Failure::bad_argument("blocks of 0 tokens"));
        }
        let blocks = tokens.len() / block_tokens;
        if blocks > capacity {
            let message = format!("{blocks} full blocks, and room for {capacity} hashes");
            return Err(Failure::bad_argument(message));
        }
        let hasher = ChainHasher::new(seed, block_tokens);
        let mut before = parent.map(|hash| BlockHash::new(hash.bytes));
        for (place, block) in places.iter_mut().zip(tokens.chunks_exact(block_tokens)) {
            let hash = hasher.next(before.as_ref(), block);
            place.write(RacklineBlockHash { bytes: *hash.as_bytes() });
            before = Some(hash);
        }
        count.write(blocks);
        Ok(())
    })
}
