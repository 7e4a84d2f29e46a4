//! Transfers of lent blocks: one call for each, whichever engine copies the memory.
//!
//! An [`AsyncSession`] is of one kind of memory, which its type names. Another language names it when
//! it runs: a [`LentSession`] is of the kind that a [`Place`] says. What a refused call was given is
//! dropped, which gives the memory back to its lender.

use std::sync::Arc;

use kv_cache::MatchedBlock;

use super::{LentDestination, LentSource, MemoryOf};
use crate::asynchronous::Opener;
use crate::cuda::{CudaDma, CudaError, EngineStream};
use crate::{
    AsyncSession, Completion, Fetched, LayeredFetch, LayeredPublished, Layers, NewBlock, Published,
    SubmitErrorKind,
};

/// Where the blocks of a transfer are, and what its copies come after.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// In memory of this process.
    Process,
    /// In memory of a GPU.
    Gpu {
        /// Its number, as CUDA counts in this process.
        gpu: usize,
        /// What the copies come after. None for a publish by layers: each layer comes with its stream.
        stream: Option<EngineStream<'static>>,
    },
}

impl Place {
    /// Whose memory it is.
    #[must_use]
    pub fn memory(&self) -> MemoryOf {
        match self {
            Self::Process => MemoryOf::Process,
            Self::Gpu { .. } => MemoryOf::Gpu,
        }
    }
}

/// Something for each kind of memory.
#[derive(Debug)]
enum Of<P, G> {
    Process(P),
    Gpu(G),
}

/// The same call for either.
macro_rules! either {
    ($of:expr, $it:ident => $call:expr) => {
        match &$of {
            Of::Process($it) => $call,
            Of::Gpu($it) => $call,
        }
    };
}

/// A session for lent blocks in one place.
#[derive(Debug)]
pub struct LentSession(Of<AsyncSession, AsyncSession<CudaDma>>);

impl LentSession {
    /// `session`, for blocks in that place. Does not wait.
    ///
    /// # Errors
    /// [`SubmitErrorKind`], of a GPU.
    pub fn new(session: &AsyncSession, place: Place) -> Result<Self, SubmitErrorKind> {
        Ok(Self(match place {
            Place::Process => Of::Process(session.clone()),
            Place::Gpu { gpu, stream: Some(stream) } => Of::Gpu(session.on_gpu(gpu, stream)?),
            Place::Gpu { gpu, stream: None } => Of::Gpu(session.on_gpu_by_layers(gpu)?),
        }))
    }

    /// [`AsyncSession::publish`].
    ///
    /// # Errors
    /// [`SubmitErrorKind`].
    pub fn publish<K: Send + Sync + 'static>(
        &self,
        blocks: Vec<NewBlock<LentSource<K>>>,
    ) -> Result<Completion<Published<LentSource<K>>>, SubmitErrorKind> {
        Ok(either!(self.0, session => session.publish(blocks)?))
    }

    /// [`AsyncSession::fetch`].
    ///
    /// # Errors
    /// [`SubmitErrorKind`].
    pub fn fetch<K: Send + Sync + 'static>(
        &self,
        blocks: Vec<MatchedBlock>,
        to: Vec<LentDestination<K>>,
    ) -> Result<Completion<Fetched<LentDestination<K>>>, SubmitErrorKind> {
        Ok(either!(self.0, session => session.fetch(blocks, to)?))
    }

    /// [`AsyncSession::fetch_by_layers`].
    ///
    /// # Errors
    /// [`SubmitErrorKind`].
    pub fn fetch_by_layers<K: Send + Sync + 'static>(
        &self,
        blocks: Vec<MatchedBlock>,
        to: Vec<LentDestination<K>>,
        layers: Layers,
    ) -> Result<LayeredFetch<LentDestination<K>>, SubmitErrorKind> {
        Ok(either!(self.0, session => session.fetch_by_layers(blocks, to, Arc::new(layers))?))
    }

    /// [`AsyncSession::publish_by_layers`]. `P` is what waits for the result.
    ///
    /// # Errors
    /// [`SubmitErrorKind`].
    pub fn publish_by_layers<K, P>(
        &self,
        blocks: Vec<NewBlock<LentSource<K>>>,
        layers: Layers,
    ) -> Result<LentPublish<P>, SubmitErrorKind>
    where
        K: Send + Sync + 'static,
        P: From<Completion<LayeredPublished<LentSource<K>>>>,
    {
        let (count, layers) = (layers.count(), Arc::new(layers));
        let (opener, completion) = match &self.0 {
            Of::Process(session) => {
                let begun = session.publish_by_layers(blocks, layers)?;
                (Of::Process(begun.opener), begun.completion)
            }
            Of::Gpu(session) => {
                let begun = session.publish_by_layers(blocks, layers)?;
                (Of::Gpu(begun.opener), begun.completion)
            }
        };
        Ok(LentPublish { opener, pending: completion.into(), layers: count })
    }
}

/// A publish by layers of lent blocks, for any thread. What is said of one that has ended is without
/// effect. Dropping it aborts it.
#[derive(Debug)]
pub struct LentPublish<P> {
    opener: Of<Opener, Opener<CudaDma>>,
    pending: P,
    layers: usize,
}

/// Why a layer was not said to be ready.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayerError {
    /// There is no such layer.
    #[error("there is no layer {layer}: a block has {layers}")]
    NoLayer {
        /// The layer named, counted from 0.
        layer: usize,
        /// Layers of a block.
        layers: usize,
    },
    /// A stream was named, and the memory is that of this process.
    #[error("a stream is for memory of a GPU, and this is not")]
    OfProcess,
    /// No stream was named, and the memory is that of a GPU.
    #[error("memory of a GPU is ready with a stream: name it")]
    NoStream,
    /// The copies cannot come after the stream. The publish is aborted.
    #[error(transparent)]
    Stream(CudaError),
}

impl<P> LentPublish<P> {
    /// Says that `layer` is ready in all blocks; of memory of a GPU, once `stream` has done what it was
    /// given so far. Does not wait.
    ///
    /// # Errors
    /// [`LayerError`].
    pub fn layer_ready(
        &self,
        layer: usize,
        stream: Option<EngineStream<'_>>,
    ) -> Result<(), LayerError> {
        let layers = self.layers;
        if layer >= layers {
            return Err(LayerError::NoLayer { layer, layers });
        }
        match (&self.opener, stream) {
            _ if self.is_ended() => Ok(()),
            (Of::Process(opener), None) => {
                opener.layer_ready(layer);
                Ok(())
            }
            (Of::Gpu(opener), Some(stream)) => {
                opener.layer_ready(layer, stream).map_err(LayerError::Stream)
            }
            (Of::Process(_), Some(_)) => Err(LayerError::OfProcess),
            (Of::Gpu(_), None) => Err(LayerError::NoStream),
        }
    }

    /// [`LayeredPublish::finish`](crate::LayeredPublish::finish).
    pub fn finish(&self) {
        either!(self.opener, opener => opener.finish());
    }

    /// [`LayeredPublish::abort`](crate::LayeredPublish::abort).
    pub fn abort(&self) {
        either!(self.opener, opener => opener.abort());
    }

    /// Whether it was finished or aborted; by the library, too: the pool was closed, or the copies of a
    /// layer cannot come after its stream.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        either!(self.opener, opener => opener.is_ended())
    }

    /// What waits for the result, which comes after the end.
    pub fn pending(&self) -> &P {
        &self.pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::cuda::GpuError;
    use crate::{
        AsyncOptions, AsyncPool, Attention, Dtype, KvGeometry, ScratchRegion, SessionOptions,
    };

    fn attach(options: &AsyncOptions) -> (ScratchRegion, AsyncPool, AsyncSession) {
        let region = ScratchRegion::create(16 << 20, 2, 4096).unwrap();
        let pool = AsyncPool::attach(region.path(), 0, options).unwrap();
        let heads = Attention::Heads { kv_heads: 2, head_dim: 16 };
        let kv = KvGeometry::new(4, heads, Dtype::F16, 8).unwrap();
        let options = SessionOptions::new(kv.model("tiny", "1", 1), kv.rank_block_bytes());
        let session = pool.session(options).unwrap();
        (region, pool, session)
    }

    type Waits = Mutex<Completion<LayeredPublished<LentSource<()>>>>;

    #[test]
    fn one_error_tells_why_any_transfer_is_refused() {
        let (_region, pool, session) = attach(&AsyncOptions::new());
        let process = LentSession::new(&session, Place::Process).unwrap();
        let layers = || Layers::new([4000, 96]);
        let by_layers =
            || process.publish_by_layers::<(), Waits>(Vec::new(), layers()).unwrap_err();
        let on_gpu = || {
            let place = Place::Gpu { gpu: 0, stream: None };
            LentSession::new(&session, place).unwrap_err()
        };
        assert_eq!(by_layers(), SubmitErrorKind::NoLayers);
        assert_eq!(on_gpu(), SubmitErrorKind::Gpu(Box::new(GpuError::NotOpen { gpu: 0 })));
        pool.close();
        let whole = process.publish::<()>(Vec::new()).unwrap_err();
        let fetch = process.fetch::<()>(Vec::new(), Vec::new()).unwrap_err();
        let fetch_by_layers =
            process.fetch_by_layers::<()>(Vec::new(), Vec::new(), layers()).unwrap_err();
        let all = [whole, fetch, by_layers(), fetch_by_layers, on_gpu()];
        assert_eq!(all, [const { SubmitErrorKind::Closed }; 5]);
    }

    #[test]
    fn a_publish_by_layers_ends_once() {
        let (_region, _pool, session) = attach(&AsyncOptions::new().with_publishes_by_layers(true));
        let session = LentSession::new(&session, Place::Process).unwrap();
        let begin = || {
            let layers = Layers::new([4000, 96]);
            session.publish_by_layers::<(), Waits>(Vec::new(), layers).unwrap()
        };
        let report = |publish: &LentPublish<Waits>| {
            let mut waits = publish.pending().lock().unwrap();
            waits.wait_timeout(Duration::MAX).unwrap().unwrap().report.unwrap()
        };
        let (finished, aborted) = (begin(), begin());
        let beyond = LayerError::NoLayer { layer: 2, layers: 2 };
        for publish in [&finished, &aborted] {
            assert_eq!(publish.layer_ready(1, None), Ok(()));
            assert_eq!(publish.layer_ready(2, None), Err(beyond.clone()));
            assert!(!publish.is_ended());
        }
        finished.finish();
        finished.abort();
        aborted.abort();
        aborted.finish();
        assert!(finished.is_ended() && aborted.is_ended());
        assert_eq!(report(&finished).map(|report| report.published()), Some(0));
        assert_eq!(report(&aborted), None);
        assert_eq!(aborted.layer_ready(0, None), Ok(()), "too late, and without effect");
        assert_eq!(aborted.layer_ready(2, None), Err(beyond));
    }
}
