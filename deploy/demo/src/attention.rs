//! Causal attention over the KV cache, blocked at fixed token positions.
//!
//! A query row meets the keys in chunks of [`KEY_CHUNK_TOKENS`] that start at multiples of it.
//! Within a chunk every sum runs over the whole chunk in one order, keys behind the row's own
//! position weighing an exact zero; chunks are added in order. So a row's result does not depend on
//! what lies behind it, nor on which other rows are computed with it, and a decode step gives the
//! same bits as prefill.
//!
//! The products run on candle's f32 matrix multiplication. Its inner dimension is the head (64) or
//! a chunk (256), so it is never split by a rule that looks at the number of rows; and every query
//! group has at least two rows, so it never takes the vector-only path with its other order. Models
//! with as many KV heads as query heads would break the second and are refused.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

use crate::config::ModelConfig;
use crate::kv::LayerKv;
use crate::math;

/// Keys of one chunk. Also the longest sum inside one matrix product.
pub const KEY_CHUNK_TOKENS: usize = 256;

/// Queries computed together. Larger wastes work above the diagonal, smaller wastes the matrix
/// units; it has no influence on results.
const QUERY_TILE_TOKENS: usize = 32;

/// The head counts and widths attention needs.
#[derive(Debug, Clone)]
pub(crate) struct Attention {
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    scale: f32,
}

impl Attention {
    /// `None` if the model has fewer than two query heads for a KV head.
    pub(crate) fn new(config: &ModelConfig) -> Option<Self> {
        let group = config.heads / config.kv_heads;
        (group >= 2).then(|| Self {
            kv_heads: config.kv_heads,
            group,
            head_dim: config.head_dim,
            scale: 1.0 / (config.head_dim as f32).sqrt(),
        })
    }

    /// Attends from `queries` (rows of all heads, positions applied) at `first_position` and
    /// following, over what `kv` holds, into the front of each row of `out`.
    ///
    /// `kv` must hold the keys and values of the query rows themselves.
    pub(crate) fn attend(
        &self,
        queries: &[f32],
        first_position: usize,
        kv: &LayerKv,
        out: &mut [f32],
        out_width: usize,
    ) -> Result<()> {
        let width = self.kv_heads * self.group * self.head_dim;
        let tiles = queries
            .chunks(QUERY_TILE_TOKENS * width)
            .zip(out.chunks_mut(QUERY_TILE_TOKENS * out_width))
            .enumerate();
        let tile = |(tile, (queries, out)): (usize, (&[f32], &mut [f32]))| {
            let position = first_position + tile * QUERY_TILE_TOKENS;
            self.attend_tile(queries, position, kv, out, out_width)
        };
        // Handing a single tile to another thread costs more than it saves.
        if queries.len() <= QUERY_TILE_TOKENS * width || rayon::current_num_threads() == 1 {
            return tiles.into_iter().try_for_each(tile);
        }
        tiles.collect::<Vec<_>>().into_par_iter().try_for_each(tile)
    }

    fn attend_tile(
        &self,
        queries: &[f32],
        first_position: usize,
        kv: &LayerKv,
        out: &mut [f32],
        out_width: usize,
    ) -> Result<()> {
        let head_width = self.kv_heads * self.group * self.head_dim;
        let rows = queries.len() / head_width;
        let keys = first_position + rows;

        let mut heads = (0..self.kv_heads)
            .map(|head| self.head_queries(queries, head))
            .map(|queries| Ok(HeadTile { queries: queries?, scores: Vec::new() }))
            .collect::<Result<Vec<_>>>()?;
        for chunk in chunks(keys) {
            let chunk_keys = self.chunk(chunk, |tokens, rows| kv.widen_keys(tokens, rows))?;
            for (index, head) in heads.iter_mut().enumerate() {
                let chunk_keys = self.head_columns(&chunk_keys, index)?.t()?;
                head.scores.push(head.queries.matmul(&chunk_keys)?.flatten_all()?.to_vec1()?);
            }
        }

        let mut sums = Vec::with_capacity(self.kv_heads);
        for head in &mut heads {
            sums.push(self.weigh(&mut head.scores, first_position));
        }

        let values = rows * self.group * self.head_dim;
        let mut outputs = vec![vec![0.0f32; values]; self.kv_heads];
        for (at, chunk) in chunks(keys).enumerate() {
            let chunk_values = self.chunk(chunk, |tokens, rows| kv.widen_values(tokens, rows))?;
            for (index, head) in heads.iter_mut().enumerate() {
                let weights = std::mem::take(&mut head.scores[at]);
                let shape = (rows * self.group, KEY_CHUNK_TOKENS);
                let weights = Tensor::from_vec(weights, shape, &Device::Cpu)?;
                let part = weights.matmul(&self.head_columns(&chunk_values, index)?)?;
                math::add(&mut outputs[index], &part.flatten_all()?.to_vec1::<f32>()?);
            }
        }

        for (index, (output, sums)) in outputs.iter().zip(&sums).enumerate() {
            let group_width = self.group * self.head_dim;
            for (row, from) in output.chunks_exact(group_width).enumerate() {
                let at = row * out_width + index * group_width;
                let heads = out[at..at + group_width].chunks_exact_mut(self.head_dim);
                for ((to, from), sum) in
                    heads.zip(from.chunks_exact(self.head_dim)).zip(&sums[row * self.group..])
                {
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = from / sum;
                    }
                }
            }
        }
        Ok(())
    }

    /// The queries that share KV head `head`: `[token][query head of the group][head_dim]`.
    fn head_queries(&self, queries: &[f32], head: usize) -> Result<Tensor> {
        let group_width = self.group * self.head_dim;
        let rows: Vec<f32> = queries
            .chunks_exact(self.kv_heads * group_width)
            .flat_map(|row| &row[head * group_width..(head + 1) * group_width])
            .copied()
            .collect();
        let count = rows.len() / self.head_dim;
        Tensor::from_vec(rows, (count, self.head_dim), &Device::Cpu)
    }

    /// A whole chunk of keys or values as f32; what lies behind `tokens` is zero, never stale.
    fn chunk(
        &self,
        tokens: Range<usize>,
        widen: impl Fn(Range<usize>, &mut [f32]),
    ) -> Result<Tensor> {
        let width = self.kv_heads * self.head_dim;
        let mut rows = vec![0.0f32; KEY_CHUNK_TOKENS * width];
        widen(tokens, &mut rows);
        Tensor::from_vec(rows, (KEY_CHUNK_TOKENS, width), &Device::Cpu)
    }

    fn head_columns(&self, chunk: &Tensor, head: usize) -> Result<Tensor> {
        chunk.narrow(1, head * self.head_dim, self.head_dim)
    }

    /// Turns scores into weights that are not yet divided by their sum, and returns the sums.
    fn weigh(&self, chunks: &mut [Vec<f32>], first_position: usize) -> Vec<f32> {
        let rows = chunks.first().map_or(0, |chunk| chunk.len() / KEY_CHUNK_TOKENS);
        let mut sums = Vec::with_capacity(rows);
        for row in 0..rows {
            let visible_keys = first_position + row / self.group + 1;
            let at = row * KEY_CHUNK_TOKENS..(row + 1) * KEY_CHUNK_TOKENS;
            let visible = |chunk: usize| {
                visible_keys.saturating_sub(chunk * KEY_CHUNK_TOKENS).min(KEY_CHUNK_TOKENS)
            };
            let mut max = f32::NEG_INFINITY;
            for (chunk, scores) in chunks.iter().enumerate() {
                max = max.max(math::max(&scores[at.clone()][..visible(chunk)]));
            }
            let mut sum = 0.0;
            for (chunk, scores) in chunks.iter_mut().enumerate() {
                let (scores, visible) = (&mut scores[at.clone()], visible(chunk));
                if visible == 0 {
                    scores.fill(0.0);
                } else {
                    scores[visible..].fill(f32::NEG_INFINITY);
                    sum += math::exp_scores(scores, max, self.scale);
                }
            }
            sums.push(sum);
        }
        sums
    }
}

/// What one KV head has computed of a tile.
struct HeadTile {
    queries: Tensor,
    /// `[chunk]` of `[row][key]`.
    scores: Vec<Vec<f32>>,
}

/// The tokens `0..keys` in chunks.
fn chunks(keys: usize) -> impl Iterator<Item = Range<usize>> {
    (0..keys).step_by(KEY_CHUNK_TOKENS).map(move |start| start..keys.min(start + KEY_CHUNK_TOKENS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{KvCache, KvGeometry};

    fn geometry() -> KvGeometry {
        KvGeometry::new(1, 3, 64).unwrap()
    }

    const TOKENS: usize = 600;

    fn attention() -> Attention {
        Attention { kv_heads: 3, group: 3, head_dim: 64, scale: 0.125 }
    }

    fn values(count: usize, seed: f32) -> Vec<f32> {
        (0..count)
            .map(|at| ((at as f32 * 1.37 + seed).sin() * 3.0).tan().clamp(-4.0, 4.0))
            .collect()
    }

    fn cache(tokens: usize) -> KvCache {
        let mut kv = KvCache::new(geometry(), TOKENS);
        let width = geometry().row_values();
        let (keys, rows) = (values(TOKENS * width, 0.0), values(TOKENS * width, 1.0));
        kv.layer_mut(0).append(&keys[..tokens * width], &rows[..tokens * width]);
        kv
    }

    fn attend(queries: &[f32], tokens: Range<usize>) -> Vec<f32> {
        let kv = cache(tokens.end);
        let mut out = vec![0.0; tokens.len() * 576];
        let queries = &queries[tokens.start * 576..tokens.end * 576];
        attention().attend(queries, tokens.start, kv.layer(0), &mut out, 576).unwrap();
        out
    }

    #[test]
    fn a_row_does_not_depend_on_how_the_prompt_was_split() {
        let queries = values(TOKENS * 576, 2.0);
        let whole = attend(&queries, 0..TOKENS);
        for tokens in [0..1, 5..6, 0..31, 16..49, 240..272, 255..258, 480..600, 511..512, 599..600]
        {
            let part = attend(&queries, tokens.clone());
            assert!(part == whole[tokens.start * 576..tokens.end * 576], "tokens {tokens:?}");
        }
    }

    #[test]
    fn attention_is_softmax_of_scaled_dot_products() {
        let queries = values(TOKENS * 576, 2.0);
        let position = 299;
        let got = attend(&queries, position..position + 1);
        let kv = cache(TOKENS);
        let mut keys = vec![0.0; TOKENS * 192];
        let mut rows = keys.clone();
        kv.layer(0).widen_keys(0..TOKENS, &mut keys);
        kv.layer(0).widen_values(0..TOKENS, &mut rows);
        for head in 0..9 {
            let column = head / 3 * 64;
            let query = &queries[position * 576 + head * 64..][..64];
            let weights: Vec<f64> = (0..=position)
                .map(|key| {
                    let key = &keys[key * 192 + column..][..64];
                    let dot: f64 =
                        query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    (dot * 0.125).exp()
                })
                .collect();
            let total: f64 = weights.iter().sum();
            for at in 0..64 {
                let exact: f64 = (0..=position)
                    .map(|key| weights[key] * f64::from(rows[key * 192 + column + at]))
                    .sum::<f64>()
                    / total;
                let error = (f64::from(got[head * 64 + at]) - exact).abs();
                assert!(error < 1e-4, "head {head}, value {at}: off by {error}");
            }
        }
    }
}
