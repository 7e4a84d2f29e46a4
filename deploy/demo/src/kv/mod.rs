//! The KV cache as a value: preallocated, exported and imported in blocks of bytes.
//!
//! # Payload of a block
//!
//! By layer, so that a layer can be loaded or saved while the model computes another one:
//!
//! ```text
//! layer 0:  K [block_tokens][kv_heads][head_dim]   then V, same shape
//! layer 1:  ...
//! ```
//! Every value is an IEEE 754 binary16, little-endian. Keys are stored with their rotary position
//! applied, so a block belongs to its position in the prompt (a chained prefix hash says the same).

mod geometry;
mod layer;

use std::ops::Range;

pub use geometry::KvGeometry;
pub(crate) use layer::LayerKv;

/// Why a block could not be exported or imported.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KvError {
    /// The caller's buffer does not have the size of a block or of a layer's part.
    #[error("the buffer has {got} bytes, the payload {expected}")]
    WrongLength {
        /// Bytes of the payload.
        expected: usize,
        /// Bytes of the buffer.
        got: usize,
    },
    /// The cache has no such layer.
    #[error("there is no layer {layer}: the model has {layers}")]
    NoSuchLayer {
        /// The layer asked for.
        layer: usize,
        /// Layers there are.
        layers: usize,
    },
    /// An export of a block that is not complete.
    #[error("block {block} is not complete in layer {layer}: {held} tokens are held")]
    NotFilled {
        /// The block.
        block: usize,
        /// The first layer in which tokens are missing.
        layer: usize,
        /// Tokens held in that layer.
        held: usize,
    },
    /// An import that does not continue what is held: blocks come in order, each once.
    #[error("block {block} starts at token {start}, but layer {layer} holds {held} tokens")]
    NotNext {
        /// The block.
        block: usize,
        /// The layer.
        layer: usize,
        /// First token of the block.
        start: usize,
        /// Tokens held in that layer.
        held: usize,
    },
    /// An import behind the end of the cache.
    #[error("block {block} ends behind the {capacity_tokens} tokens this cache was made for")]
    BeyondCapacity {
        /// The block.
        block: usize,
        /// Tokens the cache can hold.
        capacity_tokens: usize,
    },
}

/// Keys and values of one sequence in all layers, in storage allocated once.
///
/// Each layer counts its own tokens, so that layers may be imported one after the other while the
/// model computes.
#[derive(Debug, Clone)]
pub struct KvCache {
    geometry: KvGeometry,
    capacity_tokens: usize,
    layers: Vec<LayerKv>,
}

impl KvCache {
    /// An empty cache with room for `capacity_tokens` tokens. The memory is touched as it is used.
    pub fn new(geometry: KvGeometry, capacity_tokens: usize) -> Self {
        let layers = (0..geometry.layers)
            .map(|_| LayerKv::new(capacity_tokens, geometry.row_values()))
            .collect();
        Self { geometry, capacity_tokens, layers }
    }

    /// The shape of the cache.
    pub fn geometry(&self) -> KvGeometry {
        self.geometry
    }

    /// Tokens there is room for.
    pub fn capacity_tokens(&self) -> usize {
        self.capacity_tokens
    }

    /// Tokens held in every layer.
    pub fn tokens(&self) -> usize {
        self.layers.iter().map(LayerKv::tokens).min().unwrap_or(0)
    }

    /// Blocks held completely in every layer.
    pub fn full_blocks(&self) -> usize {
        self.tokens() / self.geometry.block_tokens
    }

    /// Forgets every token behind the first `tokens`.
    pub fn truncate(&mut self, tokens: usize) {
        for layer in &mut self.layers {
            layer.truncate(tokens);
        }
    }

    /// Copies the payload of `block` into `payload`.
    ///
    /// # Errors
    /// `payload` is not [`KvGeometry::block_bytes`] long, or the block is not complete.
    pub fn export_block(&self, block: usize, payload: &mut [u8]) -> Result<(), KvError> {
        expect_length(payload.len(), self.geometry.block_bytes())?;
        for (layer, part) in payload.chunks_exact_mut(self.geometry.layer_bytes()).enumerate() {
            self.export_layer(block, layer, part)?;
        }
        Ok(())
    }

    /// Copies the part of `block` that belongs to `layer` into `part`.
    ///
    /// # Errors
    /// `part` is not [`KvGeometry::layer_bytes`] long, or that part is not complete.
    pub fn export_layer(&self, block: usize, layer: usize, part: &mut [u8]) -> Result<(), KvError> {
        expect_length(part.len(), self.geometry.layer_bytes())?;
        let held = self.layers.get(layer).ok_or_else(|| self.no_such_layer(layer))?;
        let tokens = self.block_tokens(block);
        if held.tokens() < tokens.end {
            return Err(KvError::NotFilled { block, layer, held: held.tokens() });
        }
        held.export(tokens, part);
        Ok(())
    }

    /// Appends a block: copies `payload` behind the tokens held, which must end where it starts.
    ///
    /// # Errors
    /// `payload` is not [`KvGeometry::block_bytes`] long, does not continue what is held, or does
    /// not fit. Nothing is appended then.
    pub fn import_block(&mut self, block: usize, payload: &[u8]) -> Result<(), KvError> {
        expect_length(payload.len(), self.geometry.block_bytes())?;
        for layer in 0..self.geometry.layers {
            self.check_import(block, layer)?;
        }
        for (layer, part) in payload.chunks_exact(self.geometry.layer_bytes()).enumerate() {
            self.import_layer(block, layer, part)?;
        }
        Ok(())
    }

    /// Appends the part of a block that belongs to `layer`.
    ///
    /// # Errors
    /// `part` is not [`KvGeometry::layer_bytes`] long, does not continue what this layer holds, or
    /// does not fit. Nothing is appended then.
    pub fn import_layer(&mut self, block: usize, layer: usize, part: &[u8]) -> Result<(), KvError> {
        expect_length(part.len(), self.geometry.layer_bytes())?;
        self.check_import(block, layer)?;
        self.layers[layer].import(part);
        Ok(())
    }

    /// Frees the memory of the first `blocks` of a layer, which can be read. Tokens behind them
    /// stay. The layer computes again after [`take_in`](Self::take_in).
    ///
    /// # Errors
    /// There is no such layer, or so many blocks are not complete in it. Nothing is freed then.
    pub fn take_out(&mut self, layer: usize, blocks: usize) -> Result<(), KvError> {
        let held = self.layers.get(layer).ok_or_else(|| self.no_such_layer(layer))?.tokens();
        let tokens = blocks.saturating_mul(self.geometry.block_tokens);
        if tokens > held {
            return Err(KvError::NotFilled { block: blocks - 1, layer, held });
        }
        self.layers[layer].take_out(tokens);
        Ok(())
    }

    /// Leaves the first `blocks` of an empty layer out, as if [`take_out`](Self::take_out) had freed
    /// them.
    ///
    /// # Errors
    /// There is no such layer, it is not empty, or the cache has no room for so many blocks. Nothing
    /// is changed then.
    pub fn leave_out(&mut self, layer: usize, blocks: usize) -> Result<(), KvError> {
        if let Some(last) = blocks.checked_sub(1) {
            self.check_import(0, layer)?;
            let tokens = self.block_tokens(last).end;
            if tokens > self.capacity_tokens {
                let capacity_tokens = self.capacity_tokens;
                return Err(KvError::BeyondCapacity { block: last, capacity_tokens });
            }
            self.layers[layer].leave_out(tokens);
        }
        Ok(())
    }

    /// Takes the blocks of a layer in again that are out: its part of each block, from the first
    /// one on.
    ///
    /// # Errors
    /// There is no such layer, a part is not [`KvGeometry::layer_bytes`] long, or there are not as
    /// many parts as blocks that were taken out. Nothing is changed then.
    pub fn take_in<P: AsRef<[u8]>>(&mut self, layer: usize, parts: &[P]) -> Result<(), KvError> {
        let absent = self.layers.get(layer).ok_or_else(|| self.no_such_layer(layer))?.absent();
        for part in parts {
            expect_length(part.as_ref().len(), self.geometry.layer_bytes())?;
        }
        let expected = absent * self.geometry.layer_bytes() / self.geometry.block_tokens;
        expect_length(parts.len() * self.geometry.layer_bytes(), expected)?;
        let parts = parts.iter().map(AsRef::as_ref);
        self.layers[layer].take_in(self.capacity_tokens, parts);
        Ok(())
    }

    /// Whether blocks of the layer are taken out.
    pub fn is_out(&self, layer: usize) -> bool {
        self.layers.get(layer).is_some_and(|layer| layer.absent() > 0)
    }

    /// Bytes of keys and values that are in memory.
    pub fn held_bytes(&self) -> usize {
        self.layers.iter().map(LayerKv::held_bytes).sum()
    }

    pub(crate) fn layer(&self, layer: usize) -> &LayerKv {
        &self.layers[layer]
    }

    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut LayerKv {
        &mut self.layers[layer]
    }

    fn check_import(&self, block: usize, layer: usize) -> Result<(), KvError> {
        let held = self.layers.get(layer).ok_or_else(|| self.no_such_layer(layer))?.tokens();
        let start = self.block_tokens(block).start;
        if start != held || self.is_out(layer) {
            return Err(KvError::NotNext { block, layer, start, held });
        }
        if start + self.geometry.block_tokens > self.capacity_tokens {
            let capacity_tokens = self.capacity_tokens;
            return Err(KvError::BeyondCapacity { block, capacity_tokens });
        }
        Ok(())
    }

    fn no_such_layer(&self, layer: usize) -> KvError {
        KvError::NoSuchLayer { layer, layers: self.geometry.layers }
    }

    /// The tokens of `block`; a number beyond any cache gives a range beyond any cache.
    fn block_tokens(&self, block: usize) -> Range<usize> {
        let start = block.saturating_mul(self.geometry.block_tokens);
        start..start.saturating_add(self.geometry.block_tokens)
    }
}

fn expect_length(got: usize, expected: usize) -> Result<(), KvError> {
    if got == expected { Ok(()) } else { Err(KvError::WrongLength { expected, got }) }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::geometry::VALUE_BYTES;
    use super::*;

    fn small() -> KvGeometry {
        KvGeometry::with_block_tokens(2, 1, 4, 2).unwrap()
    }

    /// A cache whose values say where they lie: layer, key or value, token, column.
    fn filled(tokens: usize) -> KvCache {
        let mut kv = KvCache::new(small(), 8);
        for layer in 0..small().layers {
            let row = |kind: usize| -> Vec<f32> {
                (0..tokens * small().row_values())
                    .map(|at| (layer * 1000 + kind * 500 + at) as f32)
                    .collect()
            };
            let (keys, values) = (row(0), row(1));
            kv.layer_mut(layer).append(&keys, &values);
        }
        kv
    }

    #[test]
    fn the_geometry_of_the_model() {
        let geometry = KvGeometry::new(30, 3, 64).unwrap();
        assert_eq!(geometry.pool().token_bytes(), 23_040);
        assert_eq!((geometry.block_bytes(), geometry.layer_bytes()), (368_640, 12_288));
        assert_eq!(geometry.row_values() * 2 * VALUE_BYTES * 16, geometry.layer_bytes());
        assert_eq!(geometry.layer_range(29).end, geometry.block_bytes());
    }

    #[test]
    fn a_block_is_laid_out_by_layer_keys_first() {
        let kv = filled(4);
        let mut payload = vec![0; small().block_bytes()];
        kv.export_block(1, &mut payload).unwrap();
        let values: Vec<f32> = payload
            .chunks_exact(2)
            .map(|bytes| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32())
            .collect();
        let expected: Vec<f32> = [8.0, 508.0, 1008.0, 1508.0]
            .iter()
            .flat_map(|first| (0..8).map(move |at| first + at as f32))
            .collect();
        assert_eq!(values, expected);
    }

    #[test]
    fn a_block_survives_export_and_import() {
        let kv = filled(5);
        assert_eq!(kv.full_blocks(), 2);
        let mut copy = KvCache::new(small(), 8);
        let mut payload = vec![0; small().block_bytes()];
        for block in 0..2 {
            kv.export_block(block, &mut payload).unwrap();
            copy.import_block(block, &payload).unwrap();
        }
        assert_eq!(copy.tokens(), 4);
        for layer in 0..small().layers {
            let (mut got, mut expected) = ([0.0; 16], [0.0; 16]);
            copy.layer(layer).widen_values(0..4, &mut got);
            kv.layer(layer).widen_values(0..4, &mut expected);
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn layers_are_imported_one_by_one_in_any_order() {
        let kv = filled(2);
        let mut payload = vec![0; small().block_bytes()];
        kv.export_block(0, &mut payload).unwrap();
        let mut copy = KvCache::new(small(), 8);
        copy.import_layer(0, 1, &payload[small().layer_range(1)]).unwrap();
        assert_eq!((copy.tokens(), copy.layer(1).tokens()), (0, 2));
        copy.import_layer(0, 0, &payload[small().layer_range(0)]).unwrap();
        let mut again = vec![0; small().block_bytes()];
        copy.export_block(0, &mut again).unwrap();
        assert_eq!(again, payload);
    }

    #[test]
    fn a_layer_is_taken_out_and_in_again() {
        let mut kv = filled(5);
        let whole_bytes = kv.held_bytes();
        let mut parts = vec![vec![0; small().layer_bytes()]; 2];
        for (block, part) in parts.iter_mut().enumerate() {
            kv.export_layer(block, 1, part).unwrap();
        }
        kv.take_out(1, 2).unwrap();
        assert!(kv.is_out(1) && !kv.is_out(0));
        assert_eq!(kv.held_bytes(), whole_bytes - 2 * small().layer_bytes());
        assert_eq!((kv.layer(1).tokens(), kv.tokens()), (0, 0));

        // The token behind the blocks was never away.
        let short = KvError::WrongLength {
            expected: 2 * small().layer_bytes(),
            got: small().layer_bytes(),
        };
        assert_eq!(kv.take_in(1, &parts[..1]), Err(short));
        assert!(kv.is_out(1));
        kv.take_in(1, &parts).unwrap();
        assert_eq!((kv.held_bytes(), kv.tokens()), (whole_bytes, 5));
        let (mut got, mut expected) = ([0.0; 20], [0.0; 20]);
        kv.layer(1).widen_keys(0..5, &mut got);
        filled(5).layer(1).widen_keys(0..5, &mut expected);
        assert_eq!(got, expected);

        let mut other = KvCache::new(small(), 8);
        other.leave_out(1, 2).unwrap();
        assert_eq!((other.held_bytes(), other.is_out(1)), (0, true));
        assert!(other.leave_out(0, 5).is_err() && other.leave_out(1, 1).is_err());
        other.take_in(1, &parts).unwrap();
        let mut got = [0.0; 16];
        other.layer(1).widen_keys(0..4, &mut got);
        assert_eq!(got, expected[..16]);

        let not_filled = KvError::NotFilled { block: 2, layer: 0, held: 5 };
        assert_eq!(kv.take_out(0, 3), Err(not_filled));
        assert!(kv.take_out(2, 1).is_err());
        kv.take_out(0, 1).unwrap();
        kv.truncate(3);
        assert_eq!(kv.held_bytes(), 4 * small().layer_bytes() / 2);
    }

    #[test]
    fn wrong_calls_are_refused_and_change_nothing() {
        let mut kv = filled(2);
        let mut payload = vec![0; small().block_bytes()];
        let short = KvError::WrongLength { expected: small().block_bytes(), got: 3 };
        assert_eq!(kv.import_block(1, &[0; 3]), Err(short));
        assert_eq!(
            kv.export_block(1, &mut payload),
            Err(KvError::NotFilled { block: 1, layer: 0, held: 2 })
        );
        let not_next = KvError::NotNext { block: 0, layer: 0, start: 0, held: 2 };
        assert_eq!(kv.import_block(0, &payload), Err(not_next));
        let no_layer = KvError::NoSuchLayer { layer: 2, layers: 2 };
        assert_eq!(kv.import_layer(1, 2, &payload[..small().layer_bytes()]), Err(no_layer));
        assert!(kv.export_block(usize::MAX, &mut payload).is_err());
        assert!(kv.import_block(usize::MAX, &payload).is_err());
        assert_eq!(kv.tokens(), 2);

        kv.import_block(1, &payload).unwrap();
        kv.import_block(2, &payload).unwrap();
        kv.import_block(3, &payload).unwrap();
        let full = KvError::BeyondCapacity { block: 4, capacity_tokens: 8 };
        assert_eq!(kv.import_block(4, &payload), Err(full));
        kv.truncate(3);
        assert_eq!((kv.tokens(), kv.full_blocks()), (3, 1));
    }
}
