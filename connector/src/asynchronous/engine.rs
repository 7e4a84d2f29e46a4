//! The engines that a session which does not wait may have copy.

use std::fmt::Debug;

use super::{Running, SubmitErrorKind};
use crate::dma::{DmaEngine, HostDma};

/// A [`DmaEngine`] that an [`AsyncSession`](super::AsyncSession) may have copy: [`HostDma`], and
/// with the feature `cuda` `CudaDma`. No other crate implements it. What another device has to provide:
/// the module `dma::cuda`.
pub trait AsyncEngine: DmaEngine + Copies {}

/// How an engine is found for a call, and what its copies come after.
pub trait Copies: Sized + Send {
    /// What copies come after. It is told without waiting, and does not keep the engine.
    type Order: Clone + Debug + Send + Sync + 'static;

    /// Whether the thread that waits for a copy may do parts of it, besides the threads of the pool.
    const BY_WAITER: bool;

    /// Whether the end of a publish by layers says that all its layers are ready. Where it does
    /// not, a layer of which nobody said so aborts the publish.
    const FINISHED_IS_READY: bool;

    /// The engine for one call, whose copies come after `order`, and after what it is told itself.
    fn of(running: &Running, order: &Self::Order) -> Result<Self, SubmitErrorKind>;

    /// What its copies come after.
    fn order(&self) -> Self::Order;

    /// From now on copies also come after what was told of `layer`.
    fn take_up(&self, layer: usize);
}

impl AsyncEngine for HostDma {}

/// What the CPU copies is there when the call is made, or when a layer is said to be ready.
impl Copies for HostDma {
    type Order = ();

    const BY_WAITER: bool = true;

    const FINISHED_IS_READY: bool = true;

    fn of(running: &Running, (): &()) -> Result<Self, SubmitErrorKind> {
        running.host_dma()
    }

    fn order(&self) {}

    fn take_up(&self, _: usize) {}
}
