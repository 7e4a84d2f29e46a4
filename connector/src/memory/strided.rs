//! Blocks whose parts lie at regular distances, as in the caches of an engine.
//!
//! A *cut* is what one session stores of each block, such as some of its heads. A *row* is a stretch of
//! memory that several blocks share: each block begins one *step* behind the block before it.

use std::ops::Range;
use std::sync::Arc;

use super::{LentPart, LentParts, Span};

/// A part of every block. Block `n`, in rows of `steps` blocks, has the `bytes` bytes at
/// `address + (n / steps) * stride + (n % steps) * step`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StridedPart {
    /// Where it starts in block 0.
    pub address: usize,
    /// From a row to the next, in bytes.
    pub stride: usize,
    /// From a block to the next in its row, in bytes. Does not matter where a row has one block.
    pub step: usize,
    /// Its length in bytes.
    pub bytes: usize,
}

/// How the parts make up blocks.
#[derive(Clone, Debug)]
pub struct Shape {
    /// How many blocks there are.
    pub blocks: u32,
    /// Blocks of a row.
    pub steps: u32,
    /// How many cuts a block has.
    pub cuts: usize,
    /// How many parts each layer has: the layers of the first cut, then those of the second. Without
    /// it a cut is one layer, and all cuts have equally many parts.
    pub layers: Option<Vec<usize>>,
    /// The memory that the blocks must lie in; any memory without it.
    pub within: Option<Vec<Span>>,
}

/// Why parts make up no blocks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StridedError {
    /// Nothing is there.
    #[error("memory without parts or without blocks")]
    Empty,
    /// A list of them would take too much memory.
    #[error("a row has {pieces} pieces of memory: {PIECES_MAX} at most")]
    Pieces {
        /// The parts of all blocks of a row.
        pieces: usize,
    },
    /// A number is 0.
    #[error("memory of 0 cuts, or with rows of 0 blocks: pass 1 or more of each")]
    Zero,
    /// The last row is not whole.
    #[error("{blocks} blocks in rows of {steps}: pass a multiple of {steps}")]
    Rows {
        /// How many blocks there are.
        blocks: u32,
        /// Blocks of a row.
        steps: u32,
    },
    /// The cuts have different numbers of layers.
    #[error("{given} {what} for {cuts} cuts: pass equally many for each cut")]
    Cuts {
        /// How many there are of them.
        given: usize,
        /// Layers or parts.
        what: &'static str,
        /// How many cuts a block has.
        cuts: usize,
    },
    /// The layers do not have these parts.
    #[error("the layers must have one part at least each, and {parts} in all")]
    Layers {
        /// How many parts there are.
        parts: usize,
    },
    /// A part cannot be.
    #[error("a part of a block has no address or no bytes")]
    NoPart,
    /// Two blocks have the same bytes.
    #[error("blocks of {bytes} bytes every {distance} bytes lie one over the other")]
    Over {
        /// Length of a part, or of a row of them.
        bytes: usize,
        /// From one to the next.
        distance: usize,
    },
    /// Longer than half of the address space.
    #[error("the blocks reach beyond what can be addressed")]
    Beyond,
    /// A session has blocks of one length.
    #[error("layer {layer} has {bytes} bytes in cut {cut} and {of_first} in cut 0: cut it evenly")]
    Uneven {
        /// The number of the layer.
        layer: usize,
        /// The number of the cut.
        cut: usize,
        /// Its length there.
        bytes: u64,
        /// Its length in the first cut.
        of_first: u64,
    },
    /// The owner's memory ends before the blocks.
    #[error(
        "the blocks have the bytes {start:#x} to {end:#x}, which are not in the memory of their owner"
    )]
    Outside {
        /// Where they start.
        start: usize,
        /// Where they end.
        end: usize,
    },
}

/// Most parts of all blocks of a row.
const PIECES_MAX: usize = 1 << 24;

/// The blocks of one memory.
#[derive(Clone, Debug)]
pub struct StridedBlocks {
    cuts: Vec<Cut>,
    /// All parts of a row, united where they touch.
    rows: Vec<Row>,
    /// Length of each layer of a cut in bytes.
    layer_bytes: Vec<u64>,
    block_bytes: u64,
    blocks: u32,
    steps: u32,
}

#[derive(Clone, Debug)]
struct Cut {
    parts: Arc<[StridedPart]>,
    layers: Arc<[Range<usize>]>,
}

/// A piece of each row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Row {
    stride: usize,
    address: usize,
    bytes: usize,
}

impl StridedPart {
    /// This part of block `number`, in rows of `steps`.
    pub(super) fn of(&self, number: u32, steps: u32) -> LentPart {
        let (row, place) = ((number / steps) as usize, (number % steps) as usize);
        LentPart {
            address: self.address + row * self.stride + place * self.step,
            bytes: self.bytes,
        }
    }

    /// Refuses a part of which two blocks have the same bytes, or one has bytes that cannot be.
    fn check(&self, rows: usize, steps: usize) -> Result<(), StridedError> {
        let Self { address, stride, step, bytes } = *self;
        if address == 0 || bytes == 0 {
            return Err(StridedError::NoPart);
        }
        if steps > 1 && step < bytes {
            return Err(StridedError::Over { bytes, distance: step });
        }
        let end = |count: usize, distance: usize, last: usize| {
            (count - 1).checked_mul(distance).and_then(|at| at.checked_add(last))
        };
        let row = end(steps, step, bytes).ok_or(StridedError::Beyond)?;
        if rows > 1 && stride < row {
            return Err(StridedError::Over { bytes: row, distance: stride });
        }
        let end = end(rows, stride, row).and_then(|bytes| address.checked_add(bytes));
        let fits = end.is_some_and(|end| end <= isize::MAX.unsigned_abs());
        fits.then_some(()).ok_or(StridedError::Beyond)
    }
}

impl Row {
    fn span(&self, row: u32) -> Span {
        let address = self.address + row as usize * self.stride;
        address..address + self.bytes
    }
}

impl StridedBlocks {
    /// Blocks of these parts: those of the first cut, then those of the second.
    ///
    /// # Errors
    /// [`StridedError`].
    pub fn new(parts: &[StridedPart], shape: &Shape) -> Result<Self, StridedError> {
        let Shape { blocks, steps, cuts, ref layers, ref within } = *shape;
        if steps == 0 || cuts == 0 {
            return Err(StridedError::Zero);
        }
        // First: no list of cuts is made for parts that are not there.
        if parts.is_empty() || blocks == 0 {
            return Err(StridedError::Empty);
        }
        let cuts = cut(parts, cuts, layers.as_deref())?;
        if !blocks.is_multiple_of(steps) {
            return Err(StridedError::Rows { blocks, steps });
        }
        let pieces = parts.len().saturating_mul(steps as usize);
        if pieces > PIECES_MAX {
            return Err(StridedError::Pieces { pieces });
        }
        let rows = blocks / steps;
        parts.iter().try_for_each(|part| part.check(rows as usize, steps as usize))?;
        let layer_bytes = layer_bytes(&cuts)?;
        let block_bytes = layer_bytes.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes));
        let block_bytes = block_bytes.ok_or(StridedError::Beyond)?;
        let of_rows = rows_of(parts, steps as usize);
        if let Some(within) = within {
            check_within(&of_rows, rows, within)?;
        }
        Ok(Self { cuts, rows: of_rows, layer_bytes, block_bytes, blocks, steps })
    }

    /// How many blocks there are.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Blocks of a row.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// How many cuts a block has.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.cuts.len()
    }

    /// Length of a cut of a block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Length of each layer of a cut in bytes.
    #[must_use]
    pub fn layer_bytes(&self) -> &[u64] {
        &self.layer_bytes
    }

    /// What has to be lent so that a transfer may use blocks of these numbers, all of their cuts: the
    /// rows of the blocks. Each number is less than [`blocks`](Self::blocks).
    #[must_use]
    pub fn spans(&self, numbers: &[u32]) -> Vec<Span> {
        let mut rows: Vec<_> = numbers.iter().map(|number| number / self.steps).collect();
        if self.steps > 1 {
            rows.sort_unstable();
            rows.dedup();
        }
        // Row by row of one array: in order, as the numbers usually are.
        let of_rows = |part: &Row| rows.iter().map(|row| part.span(*row)).collect::<Vec<_>>();
        self.rows.iter().flat_map(of_rows).collect()
    }

    /// Which of `numbers` has the byte at `address` in its row.
    #[must_use]
    pub fn block_at(&self, address: usize, numbers: &[u32]) -> Option<u32> {
        let has_it = |number: &&u32| {
            let row = **number / self.steps;
            self.rows.iter().any(|part| part.span(row).contains(&address))
        };
        numbers.iter().find(has_it).copied()
    }

    /// The parts and the layers of a cut of blocks of these numbers, each less than
    /// [`blocks`](Self::blocks). `None` when there is no such cut.
    #[must_use]
    pub fn cut(&self, cut: usize, numbers: Arc<[u32]>) -> Option<(LentParts, Arc<[Range<usize>]>)> {
        let Cut { parts, layers } = self.cuts.get(cut)?.clone();
        let (steps, bytes) = (self.steps, self.block_bytes);
        Some((LentParts::Strided { parts, steps, bytes, numbers }, layers))
    }
}

/// The parts of each cut and of each of its layers.
fn cut(
    parts: &[StridedPart],
    cuts: usize,
    counts: Option<&[usize]>,
) -> Result<Vec<Cut>, StridedError> {
    let refused = |given, what| StridedError::Cuts { given, what, cuts };
    let counts = match counts {
        Some(counts) if !counts.len().is_multiple_of(cuts) => {
            return Err(refused(counts.len(), "layers"));
        }
        Some(counts) => counts.to_vec(),
        None if !parts.len().is_multiple_of(cuts) => return Err(refused(parts.len(), "parts")),
        None => vec![parts.len() / cuts; cuts],
    };
    let sum = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
    if counts.is_empty() || counts.contains(&0) || sum != Some(parts.len()) {
        return Err(StridedError::Layers { parts: parts.len() });
    }
    let mut rest = parts;
    let cut = |counts: &[usize]| {
        let (parts, behind) = rest.split_at(counts.iter().sum());
        rest = behind;
        let starts =
            counts.iter().scan(0, |next, count| Some(std::mem::replace(next, *next + count)));
        let layers = starts.zip(counts).map(|(start, count)| start..start + count).collect();
        Cut { parts: parts.into(), layers }
    };
    Ok(counts.chunks(counts.len() / cuts).map(cut).collect())
}

/// The length of each layer, which is that in every cut.
fn layer_bytes(cuts: &[Cut]) -> Result<Vec<u64>, StridedError> {
    let mut of_first: Option<Vec<u64>> = None;
    for (number, Cut { parts, layers }) in cuts.iter().enumerate() {
        let length = |layer: &Range<usize>| {
            let mut lengths = parts[layer.clone()].iter().map(|part| part.bytes as u64);
            lengths.try_fold(0u64, u64::checked_add).ok_or(StridedError::Beyond)
        };
        let lengths = layers.iter().map(length).collect::<Result<Vec<_>, _>>()?;
        let first = of_first.get_or_insert_with(|| lengths.clone());
        let pairs = first.iter().zip(&lengths).enumerate();
        for (layer, (of_first, bytes)) in pairs {
            if of_first != bytes {
                let (cut, bytes, of_first) = (number, *bytes, *of_first);
                return Err(StridedError::Uneven { layer, cut, bytes, of_first });
            }
        }
    }
    Ok(of_first.unwrap_or_default())
}

/// All bytes of a row. Parts that touch are one: the heads of a layer, say. Parts that overlap stay
/// two, so that a transfer which would write both is refused.
fn rows_of(parts: &[StridedPart], steps: usize) -> Vec<Row> {
    let each = parts.iter().flat_map(|part| {
        let StridedPart { address, stride, step, bytes } = *part;
        let places = (0..steps).map(move |place| address + place * step);
        places.map(move |address| Row { stride, address, bytes })
    });
    let mut rows: Vec<_> = each.collect();
    rows.sort_unstable();
    rows.dedup_by(|next, row| {
        let touches = next.stride == row.stride && next.address == row.address + row.bytes;
        if touches {
            row.bytes += next.bytes;
        }
        touches
    });
    rows.sort_unstable_by_key(|row| row.address);
    rows
}

/// Refuses blocks that are not all in `memory`.
fn check_within(of_rows: &[Row], rows: u32, memory: &[Span]) -> Result<(), StridedError> {
    let outside = |row: &&Row| {
        let (start, end) = (row.span(0).start, row.span(rows - 1).end);
        !memory.iter().any(|memory| memory.start <= start && end <= memory.end)
    };
    match of_rows.iter().find(outside) {
        None => Ok(()),
        Some(row) => {
            let (start, end) = (row.span(0).start, row.span(rows - 1).end);
            Err(StridedError::Outside { start, end })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(address: usize, stride: usize, step: usize, bytes: usize) -> StridedPart {
        StridedPart { address, stride, step, bytes }
    }

    fn shape(blocks: u32, steps: u32, cuts: usize, layers: Option<&[usize]>) -> Shape {
        Shape { blocks, steps, cuts, layers: layers.map(<[usize]>::to_vec), within: None }
    }

    fn refused(parts: &[StridedPart], shape: &Shape) -> StridedError {
        StridedBlocks::new(parts, shape).unwrap_err()
    }

    #[test]
    fn heads_that_touch_are_one_span_of_each_layer() {
        // Two layers, 8 heads of 10 bytes each, every head a cut.
        let head = |layer: usize, head: usize| part(1000 + 5000 * layer + 10 * head, 100, 0, 10);
        let parts: Vec<_> = (0..8).flat_map(|cut| [head(0, cut), head(1, cut)]).collect();
        let blocks = StridedBlocks::new(&parts, &shape(9, 1, 8, Some(&[1; 16]))).unwrap();
        assert_eq!((blocks.block_bytes(), blocks.layer_bytes()), (20, &[10, 10][..]));
        assert_eq!(blocks.spans(&[4, 0]), [1400..1480, 1000..1080, 6400..6480, 6000..6080]);
        assert_eq!(blocks.block_at(6479, &[4, 0]), Some(4));
        assert_eq!(blocks.block_at(6480, &[4, 0]), None);
    }

    #[test]
    fn a_row_is_lent_whole_and_once() {
        // Rows of 4 blocks of 10 bytes, of two heads.
        let parts = [part(1000, 80, 10, 10), part(1040, 80, 10, 10)];
        let blocks = StridedBlocks::new(&parts, &shape(12, 4, 2, None)).unwrap();
        assert_eq!(blocks.spans(&[11, 5, 6, 8]), [1080..1160, 1160..1240]);
        assert_eq!(blocks.block_at(1240 - 1, &[5, 8]), Some(8));
    }

    #[test]
    fn no_list_is_made_for_what_is_not_there() {
        for cuts in [1, 1 << 36, usize::MAX] {
            assert_eq!(refused(&[], &shape(1, 1, cuts, None)), StridedError::Empty);
        }
        let steps = 1 << 31;
        let refused = refused(&[part(4096, 1 << 32, 1, 1)], &shape(steps, steps, 1, None));
        assert_eq!(refused, StridedError::Pieces { pieces: 1 << 31 });
    }

    #[test]
    fn parts_that_overlap_stay_apart() {
        let parts = [part(1000, 100, 0, 10), part(1005, 100, 0, 10), part(1010, 100, 0, 10)];
        let blocks = StridedBlocks::new(&parts, &shape(2, 1, 1, None)).unwrap();
        assert_eq!(blocks.spans(&[1]), [1100..1110, 1105..1115, 1110..1120]);
    }

    #[test]
    fn what_cannot_be_blocks_is_refused() {
        let good = part(4096, 20, 10, 10);
        StridedBlocks::new(&[good], &shape(4, 2, 1, None)).unwrap();
        for (parts, shape, expected) in [
            (vec![], shape(1, 1, 1, None), StridedError::Empty),
            (vec![good], shape(0, 1, 1, None), StridedError::Empty),
            (vec![good], shape(1, 0, 1, None), StridedError::Zero),
            (vec![good], shape(1, 1, 0, None), StridedError::Zero),
            (vec![good], shape(5, 2, 1, None), StridedError::Rows { blocks: 5, steps: 2 }),
            (
                vec![good; 3],
                shape(4, 2, 2, None),
                StridedError::Cuts { given: 3, what: "parts", cuts: 2 },
            ),
            (
                vec![good; 3],
                shape(4, 2, 2, Some(&[1, 1, 1])),
                StridedError::Cuts { given: 3, what: "layers", cuts: 2 },
            ),
            (vec![good], shape(4, 2, 1, Some(&[])), StridedError::Layers { parts: 1 }),
            (vec![good], shape(4, 2, 1, Some(&[2])), StridedError::Layers { parts: 1 }),
            (vec![good], shape(4, 2, 1, Some(&[1, 0])), StridedError::Layers { parts: 1 }),
            (vec![part(0, 20, 10, 10)], shape(4, 2, 1, None), StridedError::NoPart),
            (vec![part(1, 20, 10, 0)], shape(4, 2, 1, None), StridedError::NoPart),
            (
                vec![part(1, 20, 9, 10)],
                shape(4, 2, 1, None),
                StridedError::Over { bytes: 10, distance: 9 },
            ),
            (
                vec![part(1, 19, 10, 10)],
                shape(4, 2, 1, None),
                StridedError::Over { bytes: 20, distance: 19 },
            ),
            (vec![part(1, 1 << 62, 10, 10)], shape(6, 2, 1, None), StridedError::Beyond),
            (vec![part(1, 20, 1 << 63, 10)], shape(3, 3, 1, None), StridedError::Beyond),
            (
                vec![good, part(4196, 20, 10, 9)],
                shape(4, 2, 2, None),
                StridedError::Uneven { layer: 0, cut: 1, bytes: 9, of_first: 10 },
            ),
        ] {
            assert_eq!(refused(&parts, &shape), expected);
        }
    }

    #[test]
    fn blocks_lie_in_the_memory_of_their_owner() {
        let parts = [part(1000, 100, 0, 10), part(1050, 100, 0, 10)];
        let within = |within: &[(usize, usize)]| {
            let within = within.iter().map(|(start, end)| *start..*end).collect();
            let shape = Shape { within: Some(within), ..shape(3, 1, 1, None) };
            StridedBlocks::new(&parts, &shape).map(|_| ())
        };
        within(&[(1000, 1210), (1050, 1260)]).unwrap();
        within(&[(900, 1260)]).unwrap();
        let outside = |start, end| Err(StridedError::Outside { start, end });
        assert_eq!(within(&[(1000, 1259)]), outside(1050, 1260));
        assert_eq!(within(&[(1001, 1260)]), outside(1000, 1210));
        assert_eq!(within(&[(1000, 1200), (1200, 1300)]), outside(1000, 1210));
        assert_eq!(within(&[]), outside(1000, 1210));
    }

    proptest! {
        /// Byte by byte: the spans of blocks have the bytes of all cuts of their rows, each once, and the
        /// parts of the cuts share none.
        #[test]
        fn spans_have_what_the_cuts_have(
            cuts in 1usize..4,
            layers in 1usize..4,
            steps in 1u32..4,
            rows in 1u32..4,
            bytes in 1usize..5,
            gap in 0usize..3,
            which in prop::collection::btree_set(0u32..12, 0..5),
        ) {
            let of_head = steps as usize * bytes;
            let of_row = cuts * of_head + gap;
            let of_layer = rows as usize * of_row;
            let part = |cut: usize, layer: usize| {
                part(1000 + layer * of_layer + cut * of_head, of_row, bytes, bytes)
            };
            let parts: Vec<_> = (0..cuts)
                .flat_map(|cut| (0..layers).map(move |layer| (cut, layer)))
                .map(|(cut, layer)| part(cut, layer))
                .collect();
            let counts = vec![1; cuts * layers];
            let shape = shape(rows * steps, steps, cuts, Some(&counts));
            let blocks = StridedBlocks::new(&parts, &shape).unwrap();
            let numbers: Vec<_> = which.into_iter().filter(|number| *number < rows * steps).collect();
            let whole_rows: std::collections::BTreeSet<_> = numbers
                .iter()
                .flat_map(|number| (0..steps).map(move |step| number / steps * steps + step))
                .collect();
            let whole_rows: Arc<[u32]> = whole_rows.into_iter().collect();
            let mut of_cuts = Vec::new();
            for cut in 0..cuts {
                let (parts, of_layers) = blocks.cut(cut, Arc::clone(&whole_rows)).unwrap();
                prop_assert_eq!(of_layers.len(), layers);
                for block in 0..whole_rows.len() {
                    let before = of_cuts.len();
                    for layer in of_layers.iter().flat_map(Clone::clone) {
                        let LentPart { address, bytes } = parts.part(block, layer);
                        of_cuts.extend(address..address + bytes);
                    }
                    prop_assert_eq!((of_cuts.len() - before) as u64, blocks.block_bytes());
                }
            }
            let mut lent: Vec<_> = blocks.spans(&numbers).into_iter().flatten().collect();
            of_cuts.sort_unstable();
            lent.sort_unstable();
            prop_assert_eq!(of_cuts, lent);
        }
    }
}
