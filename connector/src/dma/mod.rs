//! Moving payload between an engine's memory and the pool.
//!
//! A [`DmaEngine`] copies whole payloads: gathered from parts on the way down ([`StoreJob`]),
//! scattered into parts on the way up ([`LoadJob`]). It is also where rule MEM-M9 is kept, so that
//! its callers cannot forget half of it: a store returns when the payload is on the device, a load
//! drops this host's cached lines before it reads the first byte.
//!
//! Each engine takes parts in the memory it can reach: slices of this process ([`HostDma`]), or,
//! with the feature `cuda`, memory of a GPU (`CudaDma`). What another kind of device has to provide is
//! in the documentation of the module `cuda`.
//!
//! Both go by layers, too, for engines that compute one layer while the next is copied: a load says
//! when a layer of all its payloads is there ([`DmaEngine::load_by_layers`]), a store takes each as
//! it becomes ready ([`DmaEngine::store_by_layers`]). The checksum is the same: over the whole
//! payload, in its order. So what a layered load has said to be there is not checked before its
//! end.
//!
//! What an engine does not do: decide whether the payload may be written or is still the one that
//! was looked up. The descriptor says so, before and after (see `kv_cache`); the engine returns
//! the checksum that goes into the descriptor or is compared with it.

#[cfg(target_arch = "x86_64")]
mod checked_copy_x86_64;
mod checksum;
#[cfg(feature = "cuda")]
pub mod cuda;
mod host;
#[cfg(target_arch = "aarch64")]
mod host_copy_aarch64;
#[cfg(target_arch = "x86_64")]
mod host_copy_x86_64;
mod job;
mod layers;
mod part;
mod refresh_ahead;
#[cfg(feature = "sim")]
mod simulated;

pub use checksum::Checksum;
pub use host::{Arrival, HostDma};
pub use job::{LoadJob, StoreJob};
pub use layers::{CopyLayer, LayeredSource, Layers};
pub use part::Part;
#[cfg(feature = "sim")]
pub use simulated::SimulatedDma;

#[cfg(feature = "cuda")]
use std::sync::{Mutex, MutexGuard, PoisonError};

use cxl_shm::units::Extent;

/// Copies payload into and out of the pool, in batches.
///
/// The result of job `i` is at index `i`. A job that fails does not stop the others. Payloads of
/// one batch do not overlap: which bytes win is not specified.
///
/// The caller owns the space it stores to (its descriptor says WRITING, published: rule EVICT-H2),
/// and looks at the descriptor again, and compares the checksum, before it believes a loaded byte:
/// another host may rewrite the space during the load. (The checksum alone may be that of another
/// read than the one that filled the parts: a GPU's copy is not the CPU's.)
pub trait DmaEngine: 'static {
    /// Memory that a payload is gathered from. Nobody writes it during the call.
    type Source<'a>: Part + Copy;
    /// Memory that a payload is scattered into. Nobody else touches it during the call.
    type Destination<'a>: Part;

    /// Whether sources and destinations lie in memory of a GPU: for the metrics alone.
    fn is_of_gpu(&self) -> bool {
        false
    }

    /// Whether the device may write payloads of stores that are over, now or later: it could not be
    /// waited for. Their space must not be given to anything else (CUDA-E2).
    fn may_still_write(&self) -> bool {
        false
    }

    /// Stores each payload.
    ///
    /// After return every host that refreshes a stored payload (as [`load`](Self::load) does) reads
    /// these bytes: the writer's half of MEM-M9, its fence included. A descriptor that announces
    /// the payload may be published at once. Before return other hosts may see any mix of old and
    /// new lines. Where the payload ends inside a line, the rest of that line becomes undefined; no
    /// other byte of the region changes.
    ///
    /// The batch is fenced once, not once a job.
    ///
    /// # Errors
    /// Per job: [`DmaError::LengthMismatch`], [`DmaError::Misaligned`], [`DmaError::OutOfRange`]
    /// before a byte is written; [`DmaError::Device`] with the payload in an undefined state.
    fn store(&self, jobs: &[StoreJob<'_, Self::Source<'_>>]) -> Vec<Result<Checksum, DmaError>>;

    /// Loads each payload.
    ///
    /// The bytes are at least as new as what had been stored (by any host, with
    /// [`store`](Self::store)) before the call: no line is read before this host's copy of it was
    /// dropped and the drop fenced (the reader's half of MEM-M9, MEM-M4). Call it after the
    /// descriptor was seen, never before. All reads are complete at return, so a second look at the
    /// descriptor after it covers every byte. Nothing becomes visible to other hosts.
    ///
    /// # Errors
    /// Per job: [`DmaError::LengthMismatch`], [`DmaError::Misaligned`], [`DmaError::OutOfRange`]
    /// before a byte of the parts is changed; [`DmaError::Device`] with the parts in an undefined
    /// state.
    fn load(&self, jobs: &mut [LoadJob<Self::Destination<'_>>]) -> Vec<Result<Checksum, DmaError>>;

    /// Loads each payload as [`load`](Self::load) does, layer by layer: the first of all payloads,
    /// then the next.
    ///
    /// `arrived` is called once for each layer, in order, when the parts that lie in it have the
    /// bytes of it, of every payload that did not fail: other threads of this process (on a GPU:
    /// other streams) may use that layer from then on, and the engine neither touches it any more
    /// nor borrows it. Bytes of later layers may be there, too. Whether they are the right ones is
    /// known at the end. `arrived` must not load with this engine: others that do may wait for this
    /// load.
    ///
    /// # Errors
    /// As for `load`; [`DmaError::LengthMismatch`], too, when the layers are not as long as a
    /// payload.
    fn load_by_layers(
        &self,
        jobs: Vec<LoadJob<Self::Destination<'_>>>,
        layers: &Layers,
        arrived: &mut dyn FnMut(usize),
    ) -> Vec<Result<Checksum, DmaError>>;

    /// Stores each payload as [`store`](Self::store) does, layer by layer, each as soon as `source`
    /// says that it is ready. `None` when it broke off: what is in the space of the payloads is
    /// undefined then.
    ///
    /// # Panics
    /// When `source` says that it continues and did not have the layer copied, once and with an
    /// entry for each payload. What is in the space of the payloads is undefined then, too.
    ///
    /// # Errors
    /// As for `store`; [`DmaError::LengthMismatch`], too, when the layers are not as long as a
    /// payload, or parts not as long as their layer (then the payload is in an undefined state).
    fn store_by_layers(
        &self,
        payloads: &[Extent],
        layers: &Layers,
        source: &mut dyn LayeredSource<Self>,
    ) -> Option<Vec<Result<Checksum, DmaError>>>;
}

/// Why a payload was not copied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DmaError {
    /// The payload does not lie in the region: a descriptor that was not validated.
    #[error(
        "payload of {} bytes at {:#x} is outside the region of {region_bytes} bytes: \
         check the descriptor before the copy",
        .payload.bytes(), .payload.offset()
    )]
    OutOfRange {
        /// The payload asked for.
        payload: Extent,
        /// Size of the region in bytes.
        region_bytes: u64,
    },
    /// The payload does not start on a line.
    #[error("payload at {:#x} does not start on a line of 64 bytes", .payload.offset())]
    Misaligned {
        /// The payload asked for.
        payload: Extent,
    },
    /// The parts, or the layers, are longer or shorter than the payload (or the layer).
    #[error("the parts hold {parts_bytes} bytes, the payload {payload_bytes}: they must be equal")]
    LengthMismatch {
        /// Length of the payload in bytes.
        payload_bytes: u64,
        /// Sum of the lengths of the parts in bytes.
        parts_bytes: u64,
    },
    /// The device cannot be waited for: it may write the payload now or later. A session leaves the space
    /// reserved until its process leaves the pool (CUDA-E2).
    #[error(
        "the DMA device cannot be waited for, and may still write payload {:#x}: {reason}",
        .payload.offset()
    )]
    Unfinished {
        /// The payload asked for.
        payload: Extent,
        /// What the device said.
        reason: String,
    },
    /// The device that copies failed. The payload (store) or the parts (load) are undefined.
    #[error("the DMA device failed at payload {:#x}: {reason}", .payload.offset())]
    Device {
        /// The payload asked for.
        payload: Extent,
        /// What the device said.
        reason: String,
    },
}

/// A lock whose holder panicked is as good as before.
#[cfg(feature = "cuda")]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
