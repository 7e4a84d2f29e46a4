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
