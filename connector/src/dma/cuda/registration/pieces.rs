//! Pieces of a pool: what is registered at a time.

use cxl_shm::units::Extent;

/// Pieces are no shorter: a huge page of the CPU, and a large page of a GPU.
const PIECE_BYTES_MIN: u64 = 2 << 20;
/// Nor longer: one registration of 512 GiB fails on recent drivers.
const PIECE_BYTES_MAX: u64 = 32 << 30;

/// How a pool is divided into pieces of one length, the last of which may be shorter. They start at
/// multiples of it, which is a power of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    pool_bytes: u64,
    piece_bytes: u64,
}

impl Pieces {
    /// Of about `piece_bytes` bytes each.
    pub(super) fn new(pool_bytes: u64, piece_bytes: u64) -> Self {
        let piece_bytes = piece_bytes.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX).next_power_of_two();
        Self { pool_bytes, piece_bytes }
    }

    /// How many there are.
    pub(super) fn count(self) -> u64 {
        self.pool_bytes.div_ceil(self.piece_bytes)
    }

    /// How many of them have `bytes` bytes together at most.
    pub(super) fn count_within(self, bytes: u64) -> u64 {
        if bytes >= self.pool_bytes { self.count() } else { bytes / self.piece_bytes }
    }

    /// Where piece number `piece` lies in the pool.
    ///
    /// # Panics
    /// When there is no such piece.
    pub(super) fn extent(self, piece: u64) -> Extent {
        let offset = piece.checked_mul(self.piece_bytes).filter(|offset| *offset < self.pool_bytes);
        let offset = offset.expect("a piece lies in the pool");
        let bytes = self.piece_bytes.min(self.pool_bytes - offset);
        Extent::new(offset, bytes).expect("a mapping does not reach the end of all addresses")
    }

    /// The number of the piece in which `offset` lies.
    pub(super) fn at(self, offset: u64) -> u64 {
        offset / self.piece_bytes
    }

    /// The numbers of the pieces in which `extent` lies.
    pub(super) fn under(self, extent: Extent) -> std::ops::Range<u64> {
        let first = self.at(extent.offset());
        first..extent.end().div_ceil(self.piece_bytes).max(first)
    }

    /// The runs of `bytes` bytes from `offset` on that lie in one piece each: offset and length.
    pub(super) fn runs(self, offset: u64, bytes: usize) -> impl Iterator<Item = (u64, usize)> {
        let (mut offset, mut left) = (offset, bytes);
        std::iter::from_fn(move || {
            let in_piece = self.piece_bytes - offset % self.piece_bytes;
            let run = (offset, usize::try_from(in_piece).unwrap_or(usize::MAX).min(left));
            offset += run.1 as u64;
            left -= run.1;
            (run.1 > 0).then_some(run)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = PIECE_BYTES_MIN;

    #[test]
    fn pieces_cover_the_pool_once() {
        for (bytes, expected) in [(1, 1), (PIECE, 1), (PIECE + 1, 2), (3 * PIECE, 3)] {
            let pieces = Pieces::new(bytes, PIECE);
            assert_eq!(pieces.count(), expected);
            let mut end = 0;
            for piece in 0..pieces.count() {
                assert_eq!(pieces.extent(piece).offset(), end);
                end = pieces.extent(piece).end();
            }
            assert_eq!(end, bytes);
        }
    }

    #[test]
    fn as_many_pieces_are_within_a_limit_as_fit() {
        let pieces = Pieces::new(2 * PIECE + 1, PIECE);
        let within = |bytes| pieces.count_within(bytes);
        let found = [0, PIECE - 1, PIECE, 2 * PIECE, 2 * PIECE + 1, u64::MAX].map(within);
        assert_eq!(found, [0, 0, 1, 2, 3, 3]);
    }

    #[test]
    fn pieces_are_powers_of_two_within_bounds() {
        let of = |asked| Pieces::new(1 << 40, asked).piece_bytes;
        let found = [0, (2 << 20) + 1, 64 << 20, u64::MAX].map(of);
        assert_eq!(found, [2 << 20, 4 << 20, 64 << 20, 32 << 30]);
    }

    #[test]
    fn an_extent_lies_in_the_pieces_that_it_touches() {
        let pieces = Pieces::new(8 * PIECE, PIECE);
        let under = |offset, bytes| pieces.under(Extent::new(offset, bytes).unwrap());
        assert_eq!(under(0, PIECE), 0..1);
        assert_eq!(under(PIECE - 1, 1), 0..1);
        assert_eq!(under(PIECE - 1, 2), 0..2);
        assert_eq!(under(PIECE, 2 * PIECE + 1), 1..4);
        assert!(under(PIECE, 0).is_empty() && under(0, 0).is_empty());
        assert_eq!([0, PIECE - 1, PIECE].map(|offset| pieces.at(offset)), [0, 0, 1]);
    }

    #[test]
    fn a_copy_is_split_where_a_piece_ends() {
        let pieces = Pieces::new(8 * PIECE, PIECE);
        let split = |offset, bytes| pieces.runs(offset, bytes).collect::<Vec<_>>();
        let piece = usize::try_from(PIECE).unwrap();
        assert_eq!(split(0, piece), [(0, piece)]);
        assert_eq!(split(PIECE - 96, 96), [(PIECE - 96, 96)]);
        assert_eq!(split(PIECE - 96, 97), [(PIECE - 96, 96), (PIECE, 1)]);
        let long = split(PIECE - 96, 96 + piece + 5);
        assert_eq!(long, [(PIECE - 96, 96), (PIECE, piece), (2 * PIECE, 5)]);
        assert_eq!(split(PIECE, 0), []);
    }
}
