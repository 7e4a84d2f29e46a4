//! The decoder's forward pass, with the KV cache as an argument.

use rayon::prelude::*;

use crate::attention::Attention;
use crate::config::ModelConfig;
use crate::error::{ForwardError, LoadError};
use crate::gguf::Gguf;
use crate::kv::{KvCache, KvGeometry};
use crate::linear::{self, Kernels};
use crate::math;
use crate::rope::Rope;
use crate::steps::{BatchSteps, LayerSteps, NoSteps, OfOne, Sequence};
use crate::weights::{LayerWeights, Weights};

/// Rows that go through a layer together, so that what lies between two matrix products stays in
/// the caches. It has no influence on results.
const ROWS: usize = 128;

/// A score for every token of the vocabulary as the next one.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits(Vec<f32>);

impl Logits {
    /// The token with the highest score; the first one if several share it.
    pub fn best(&self) -> u32 {
        let mut best = 0;
        for (token, score) in (0u32..).zip(&self.0) {
            if *score > self.0[best as usize] {
                best = token;
            }
        }
        best
    }

    /// The scores by token id.
    pub fn scores(&self) -> &[f32] {
        &self.0
    }
}

/// A loaded model. Immutable; threads may share it, each with its own [`KvCache`].
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    kv_geometry: KvGeometry,
    kernels: Kernels,
    attention: Attention,
    rope: Rope,
    weights: Weights,
}

impl Model {
    /// Reads the weights (about a second) and computes one token, which prepares the kernels, so
    /// that the first prompt is not slower than the second.
    ///
    /// # Errors
    /// The file is not the expected model.
    pub fn load(gguf: &mut Gguf, kernels: Kernels) -> Result<Self, LoadError> {
        let config = ModelConfig::from_gguf(gguf)?;
        let kv_geometry = config.kv_geometry()?;
        let attention = Attention::new(&config)
            .ok_or(LoadError::Heads { heads: config.heads, kv_heads: config.kv_heads })?;
        let rope = Rope::new(config.head_dim, config.rope_base, config.context_tokens);
        let weights = Weights::read(gguf, &config, kernels)?;
        let model = Self { config, kv_geometry, kernels, attention, rope, weights };
        model
            .forward(&[0], 0, &mut model.new_cache(1))
            .map_err(|source| LoadError::WarmUp(Box::new(source)))?;
        Ok(model)
    }

    /// The sizes of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The shape of its KV cache.
    pub fn kv_geometry(&self) -> &KvGeometry {
        &self.kv_geometry
    }

    /// The kernels it computes with.
    pub fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// An empty cache of the model's shape with room for `capacity_tokens`.
    pub fn new_cache(&self, capacity_tokens: usize) -> KvCache {
        KvCache::new(self.kv_geometry, capacity_tokens)
    }

    /// Computes `tokens` at positions `start_pos` and following, and returns the scores behind the
    /// last one. Prefill and decode are the same call.
    ///
    /// `kv` must hold the `start_pos` tokens before; what it holds beyond them is forgotten, and
    /// the keys and values of `tokens` are appended.
    ///
    /// # Errors
    /// See [`ForwardError`]. On an error the tokens of `kv` before `start_pos` are still valid.
    pub fn forward(
        &self,
        tokens: &[u32],
        start_pos: usize,
        kv: &mut KvCache,
    ) -> Result<Logits, ForwardError> {
        self.forward_with(tokens, start_pos, kv, &mut NoSteps)
    }

    /// [`forward`](Self::forward), with `steps` around each layer.
    ///
    /// # Errors
    /// See [`ForwardError`].
    pub fn forward_with(
        &self,
        tokens: &[u32],
        start_pos: usize,
        kv: &mut KvCache,
        steps: &mut dyn LayerSteps,
    ) -> Result<Logits, ForwardError> {
        let mut one = [Sequence { tokens, start_pos, kv }];
        let logits = self.forward_batch(&mut one, &mut OfOne(steps))?;
        Ok(logits.into_iter().next().expect("one for each sequence"))
    }

    /// Computes tokens of several sequences together, layer by layer, with `steps` around each
    /// layer. The scores behind the last token of each sequence are those of
    /// [`forward`](Self::forward), bit by bit.
    ///
    /// # Errors
    /// See [`ForwardError`]. On an error the tokens before `start_pos` are still valid, in each
    /// sequence; what lies behind them is not, and is forgotten by the next call.
    pub fn forward_batch(
        &self,
        batch: &mut [Sequence<'_>],
        steps: &mut dyn BatchSteps,
    ) -> Result<Vec<Logits>, ForwardError> {
        for sequence in &*batch {
            self.check(sequence)?;
        }
        let embed =
            |sequence: &Sequence<'_>| linear::embed(&self.weights.embedding, sequence.tokens);
        let mut streams = batch.iter().map(embed).collect::<Result<Vec<_>, _>>()?;
        for (layer, weights) in self.weights.layers.iter().enumerate() {
            let failed = |source| ForwardError::Step { layer, source };
            steps.before(layer, batch).map_err(failed)?;
            for (Sequence { start_pos, kv, .. }, stream) in batch.iter_mut().zip(&mut streams) {
                let held = kv.layer(layer).tokens();
                if held < *start_pos {
                    return Err(ForwardError::Missing { layer, held, start: *start_pos });
                }
                kv.layer_mut(layer).truncate(*start_pos);
                for (chunk, rows) in stream.chunks_mut(ROWS * self.config.hidden).enumerate() {
                    let position = *start_pos + chunk * ROWS;
                    self.attention_part(weights, layer, rows, position, kv)?;
                    self.feed_forward_part(weights, rows)?;
                }
            }
            steps.after(layer, batch).map_err(failed)?;
        }
        streams.iter().map(|stream| self.scores(stream)).collect()
    }

    /// The scores behind the last row.
    fn scores(&self, stream: &[f32]) -> Result<Logits, ForwardError> {
        let last = &stream[stream.len() - self.config.hidden..];
        let mut input = self.weights.output.input(1);
        math::rms_norm(last, &self.weights.output_norm, self.config.rms_epsilon, &mut input);
        Ok(Logits(self.weights.output.apply(input)?))
    }

    fn check(&self, Sequence { tokens, start_pos, kv }: &Sequence<'_>) -> Result<(), ForwardError> {
        if tokens.is_empty() {
            return Err(ForwardError::NoTokens);
        }
        if kv.geometry() != self.kv_geometry {
            return Err(ForwardError::Geometry);
        }
        let needed = start_pos.saturating_add(tokens.len());
        let (cache, context) = (kv.capacity_tokens(), self.rope.positions());
        if needed > cache.min(context) {
            return Err(ForwardError::TooLong { needed, cache, context });
        }
        Ok(())
    }

    /// `rows += output(attention(norm(rows)))`, appending keys and values to the cache.
    fn attention_part(
        &self,
        weights: &LayerWeights,
        layer: usize,
        rows: &mut [f32],
        position: usize,
        kv: &mut KvCache,
    ) -> Result<(), ForwardError> {
        let config = &self.config;
        let count = rows.len() / config.hidden;
        let mut input = weights.query_key_value.input(count);
        self.normalise(rows, &weights.attention_norm, &mut input);
        let projected = weights.query_key_value.apply(input)?;

        let (query_width, kv_width) = (config.query_width(), config.kv_width());
        let mut queries = vec![0.0; count * query_width];
        let mut keys = vec![0.0; count * kv_width];
        let mut values = vec![0.0; count * kv_width];
        for (row, projected) in projected.chunks_exact(query_width + 2 * kv_width).enumerate() {
            let (query, key_value) = projected.split_at(query_width);
            let (key, value) = key_value.split_at(kv_width);
            let to = &mut queries[row * query_width..(row + 1) * query_width];
            to.copy_from_slice(query);
            self.rope.turn(to, position + row);
            let to = &mut keys[row * kv_width..(row + 1) * kv_width];
            to.copy_from_slice(key);
            self.rope.turn(to, position + row);
            values[row * kv_width..(row + 1) * kv_width].copy_from_slice(value);
        }
        // Attention reads them back as f16: exactly what another process will import.
        kv.layer_mut(layer).append(&keys, &values);

        let mut attended = weights.attention_output.input(count);
        let width = weights.attention_output.input_width();
        self.attention.attend(&queries, position, kv.layer(layer), &mut attended, width)?;
        math::add(rows, &weights.attention_output.apply(attended)?);
        Ok(())
    }

    /// `rows += down(silu(gate(norm(rows))) * up(norm(rows)))`.
    fn feed_forward_part(
        &self,
        weights: &LayerWeights,
        rows: &mut [f32],
    ) -> Result<(), ForwardError> {
        let count = rows.len() / self.config.hidden;
        let mut input = weights.gate_up.input(count);
        self.normalise(rows, &weights.feed_forward_norm, &mut input);
        let gate_up = weights.gate_up.apply(input)?;

        let mut inner = weights.down.input(count);
        let gate_row = |(inner, gate_up): (&mut [f32], &[f32])| {
            let (gate, up) = gate_up.split_at(self.config.feed_forward);
            math::silu_mul(gate, up, inner);
        };
        let (width, gate_up_width) = (weights.down.input_width(), weights.gate_up.outputs());
        // Handing a few rows to another thread costs more than it saves.
        if count < ROWS / 2 || rayon::current_num_threads() == 1 {
            inner.chunks_mut(width).zip(gate_up.chunks(gate_up_width)).for_each(gate_row);
        } else {
            inner.par_chunks_mut(width).zip(gate_up.par_chunks(gate_up_width)).for_each(gate_row);
        }
        math::add(rows, &weights.down.apply(inner)?);
        Ok(())
    }

    fn normalise(&self, rows: &[f32], weight: &[f32], input: &mut [f32]) {
        let padded = input.len() / (rows.len() / self.config.hidden);
        for (row, out) in rows.chunks_exact(self.config.hidden).zip(input.chunks_exact_mut(padded))
        {
            math::rms_norm(row, weight, self.config.rms_epsilon, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_token_is_the_first_of_the_highest() {
        assert_eq!(Logits(vec![-1.0, 3.0, 2.0, 3.0]).best(), 1);
        assert_eq!(Logits(vec![0.5]).best(), 0);
    }
}
