//! Keys and values of one layer, and their bytes.

use std::ops::Range;

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::geometry::VALUE_BYTES;

/// Keys and values of one layer, `tokens` rows of them valid.
///
/// Held as the bits of f16: zeroed integers come from the system untouched, so a cache for a long
/// context costs nothing until it is filled.
#[derive(Debug, Clone)]
pub(crate) struct LayerKv {
    keys: Vec<u16>,
    values: Vec<u16>,
    row_values: usize,
    tokens: usize,
    /// Tokens of the front that are elsewhere. Then only the rows behind them are stored, and
    /// nothing can be read or appended.
    absent: usize,
}

impl LayerKv {
    pub(super) fn new(capacity_tokens: usize, row_values: usize) -> Self {
        let zeros = || vec![0; capacity_tokens * row_values];
        Self { keys: zeros(), values: zeros(), row_values, tokens: 0, absent: 0 }
    }

    /// Frees the memory of the first `tokens`, which must be held. Those behind them stay.
    pub(super) fn take_out(&mut self, tokens: usize) {
        let rest = self.values_of(tokens..self.tokens);
        self.keys = self.keys[rest.clone()].to_vec();
        self.values = self.values[rest].to_vec();
        self.absent = tokens;
    }

    /// Leaves out the first `tokens`, of which none is held yet.
    pub(super) fn leave_out(&mut self, tokens: usize) {
        *self = Self { tokens, absent: tokens, ..Self::new(0, self.row_values) };
    }

    /// Takes the tokens in again that were taken out, each part keys, then values. There is room
    /// for `capacity_tokens` afterwards.
    pub(super) fn take_in<'p>(
        &mut self,
        capacity_tokens: usize,
        parts: impl Iterator<Item = &'p [u8]>,
    ) {
        let mut whole = Self::new(capacity_tokens, self.row_values);
        parts.for_each(|part| whole.import(part));
        let rest = whole.values_of(whole.tokens..self.tokens);
        whole.keys[rest.clone()].copy_from_slice(&self.keys);
        whole.values[rest].copy_from_slice(&self.values);
        whole.tokens = self.tokens;
        *self = whole;
    }

    /// Tokens that were taken out.
    pub(super) fn absent(&self) -> usize {
        self.absent
    }

    /// Bytes of the tokens that are stored.
    pub(super) fn held_bytes(&self) -> usize {
        2 * VALUE_BYTES * self.row_values * (self.tokens - self.absent)
    }

    /// Appends rows, rounded to f16.
    pub(crate) fn append(&mut self, keys: &[f32], values: &[f32]) {
        let rows = keys.len() / self.row_values;
        let at = self.values_of(self.tokens..self.tokens + rows);
        let narrow = |from: &[f32], to: &mut [u16]| {
            to.reinterpret_cast_mut::<f16>().convert_from_f32_slice(from);
        };
        narrow(keys, &mut self.keys[at.clone()]);
        narrow(values, &mut self.values[at]);
        self.tokens += rows;
    }

    /// Copies the rows of `tokens`, which must be held, into `part`: keys, then values.
    pub(super) fn export(&self, tokens: Range<usize>, part: &mut [u8]) {
        let at = self.values_of(tokens);
        let (keys, values) = part.split_at_mut(part.len() / 2);
        to_bytes(&self.keys[at.clone()], keys);
        to_bytes(&self.values[at], values);
    }

    /// Appends the rows of `part`: keys, then values.
    pub(super) fn import(&mut self, part: &[u8]) {
        let rows = part.len() / (2 * VALUE_BYTES * self.row_values);
        let at = self.values_of(self.tokens..self.tokens + rows);
        let (keys, values) = part.split_at(part.len() / 2);
        from_bytes(keys, &mut self.keys[at.clone()]);
        from_bytes(values, &mut self.values[at]);
        self.tokens += rows;
    }

    /// Tokens from the first one on that can be read: none while some are taken out.
    pub(crate) fn tokens(&self) -> usize {
        if self.absent == 0 { self.tokens } else { 0 }
    }

    /// Forgets every token behind the first `tokens`, but none that was taken out.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(tokens.max(self.absent));
        if self.absent > 0 {
            let stored = (self.tokens - self.absent) * self.row_values;
            self.keys.truncate(stored);
            self.values.truncate(stored);
        }
    }

    /// Widens the keys of `tokens` into the front of `out`.
    pub(crate) fn widen_keys(&self, tokens: Range<usize>, out: &mut [f32]) {
        widen(&self.keys[self.values_of(tokens)], out);
    }

    /// Widens the values of `tokens` into the front of `out`.
    pub(crate) fn widen_values(&self, tokens: Range<usize>, out: &mut [f32]) {
        widen(&self.values[self.values_of(tokens)], out);
    }

    /// Where the rows of `tokens` lie in the keys, and in the values.
    fn values_of(&self, tokens: Range<usize>) -> Range<usize> {
        tokens.start * self.row_values..tokens.end * self.row_values
    }
}

fn widen(from: &[u16], out: &mut [f32]) {
    let out = &mut out[..from.len()];
    from.reinterpret_cast::<f16>().convert_to_f32_slice(out);
}

// Compiles to a plain copy on a little-endian machine.
fn to_bytes(values: &[u16], bytes: &mut [u8]) {
    for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(VALUE_BYTES)) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

fn from_bytes(bytes: &[u8], values: &mut [u16]) {
    for (bytes, value) in bytes.chunks_exact(VALUE_BYTES).zip(values) {
        *value = u16::from_le_bytes([bytes[0], bytes[1]]);
    }
}
