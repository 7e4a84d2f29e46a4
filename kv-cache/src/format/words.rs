//! Words that hold two numbers.

/// The low and the high half of a word.
#[expect(clippy::cast_possible_truncation, reason = "takes the word apart into its halves")]
pub(crate) fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
