//! Work around each layer of a forward pass.

use std::error::Error;

use crate::kv::KvCache;

/// What to do around each layer of a forward pass: load a layer's blocks just before it computes,
/// save them just after.
pub trait LayerSteps {
    /// Called before `layer` computes. The tokens before the first one must be in that layer of
    /// `kv` when this returns.
    ///
    /// # Errors
    /// Any error ends the forward pass as [`ForwardError::Step`](crate::ForwardError::Step).
    fn before(
        &mut self,
        layer: usize,
        kv: &mut KvCache,
    ) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Called after `layer` computed; its keys and values are final.
    ///
    /// # Errors
    /// Any error ends the forward pass as [`ForwardError::Step`](crate::ForwardError::Step).
    fn after(&mut self, layer: usize, kv: &KvCache) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// Nothing to do around layers.
#[derive(Debug, Clone, Copy)]
pub struct NoSteps;

impl LayerSteps for NoSteps {
    fn before(&mut self, _: usize, _: &mut KvCache) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }

    fn after(&mut self, _: usize, _: &KvCache) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

/// Tokens that a forward pass computes behind those that a cache holds.
#[derive(Debug)]
pub struct Sequence<'s> {
    /// The tokens, one at least.
    pub tokens: &'s [u32],
    /// Position of the first of them: `kv` holds as many tokens before it.
    pub start_pos: usize,
    /// Keys and values of the sequence.
    pub kv: &'s mut KvCache,
}

/// What to do around each layer of a forward pass of several sequences: [`LayerSteps`] for a batch.
pub trait BatchSteps {
    /// Called before `layer` computes. The tokens before the first one of each sequence must be in
    /// that layer of its cache when this returns.
    ///
    /// # Errors
    /// Any error ends the forward pass as [`ForwardError::Step`](crate::ForwardError::Step).
    fn before(
        &mut self,
        layer: usize,
        batch: &mut [Sequence<'_>],
    ) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Called after `layer` computed for all sequences.
    ///
    /// # Errors
    /// Any error ends the forward pass as [`ForwardError::Step`](crate::ForwardError::Step).
    fn after(
        &mut self,
        layer: usize,
        batch: &mut [Sequence<'_>],
    ) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// The steps of a batch of one sequence.
pub(crate) struct OfOne<'s>(pub(crate) &'s mut dyn LayerSteps);

impl BatchSteps for OfOne<'_> {
    fn before(
        &mut self,
        layer: usize,
        batch: &mut [Sequence<'_>],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        batch.iter_mut().try_for_each(|sequence| self.0.before(layer, sequence.kv))
    }

    fn after(
        &mut self,
        layer: usize,
        batch: &mut [Sequence<'_>],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        batch.iter().try_for_each(|sequence| self.0.after(layer, sequence.kv))
    }
}
