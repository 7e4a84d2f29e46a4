//! A GPU's copy engines: payload goes between its memory and the pool without passing through the
//! processor's registers.
//!
//! ```text
//! store   engine's stream --event--> copies down, in steps --event--> flush (MEM-M9), fence
//!                         --event--> checksums of the source, on a stream of low priority
//! load    refresh (MEM-M9), fence, in steps --> copies up --event--> checksums of the destination
//! by layers: the same, layer by layer; a layer of all payloads is one step
//! ```
//!
//! The driver is loaded when the first [`CudaDma`] is made. A machine without one is a normal
//! state: [`CudaError::Absent`].
//!
//! - **CUDA-V1** The checksum of a store is that of the source in GPU memory, and the checksum of a load
//!   that of the destination. The GPU computes both (`kernel/crc32c.cu`). So a byte that changes on the
//!   way, a wrong address, or a copy that was not made is a checksum that does not match.
//! - **CUDA-V2** Where the driver refuses the kernel, or the process asks for it ([`CudaOptions`]), the
//!   processor computes checksums of what the pool has. Then bytes that change between the GPU and the
//!   pool are not noticed. [`CudaDma::summing`] and [`CudaFigures::gpu_summed_bytes`] say so.
//! - **CUDA-E1** An error of the GPU is an error of the call: never of the process. A load that fails
//!   leaves the engine's memory undefined, and the pool as it was.
//! - **CUDA-E2** When the driver cannot wait for a store, the GPU may still write its payload. The block
//!   stays reserved until the process leaves the pool ([`DmaError::Unfinished`](crate::dma::DmaError::Unfinished)),
//!   also when its call panics. This engine copies nothing any more, and leaves with the driver what the
//!   GPU may still use.
//!
//! Both sides flush, whatever the platform's profile would allow (`PayloadPolicy::FlushBoth`): copies
//! of the GPU may leave lines in this host's caches, or find lines there.
//!
//! A call copies on a lane of its own (`lanes.rs`), in steps (`steps.rs`). A thread that calls keeps its
//! current context, and its engine's capture of a graph continues: see `turn.rs`. A thread that waits
//! for long sleeps.
//!
//! What copies come after is told to the handle that makes them ([`CudaDma::after`]): handles of
//! one engine share its streams, and no others' waits.
//!
//! What a GPU can reach ([`PoolReach`]): the mapping of the pool is registered with the driver in
//! pieces, when a copy first touches them, and up to a limit (CUDA-R1 to CUDA-R5, `registration`).
//! Where that is refused, payload goes through a pinned buffer and is copied once more by the
//! processor; [`CudaDma::figures`] tells how many bytes did.
//!
//! # Another kind of device
//!
//! ROCm or XPU would be a folder beside this one, and a few places that name it. Sessions, queues,
//! pieces, layers, and the calls for C and Python are generic over the engine already: a publish or a
//! fetch, whole or by layers, is written once for every kind of memory.
//!
//! What its driver has to offer:
//!
//! - copies between its memory and the mapping of the pool, registered with the driver, or a pinned
//!   buffer where that is refused;
//! - an event that is recorded on an engine's stream without waiting, and that a stream of copies waits
//!   for on the device;
//! - an event that a thread can sleep for;
//! - a way to learn that nothing is under way any more. Where it fails, the block stays reserved
//!   (CUDA-E2);
//! - a kernel that computes CRC-32C of its memory. Without one CUDA-V2 holds: the processor computes
//!   checksums, and fewer errors are noticed.
//!
//! What the folder and its neighbours have to provide:
//!
//! | what | where | for this device |
//! |---|---|---|
//! | [`DmaEngine`](crate::dma::DmaEngine), with types for parts in its memory; it writes back and refreshes host lines (MEM-M9) and says with `is_of_gpu` that its blocks are counted apart | `dma/` | [`CudaDma`], [`DeviceSource`], [`DeviceDestination`] |
//! | a way to open the device for sessions that wait | `pool.rs` | `Pool::cuda`, `Pool::cuda_session` |
//! | `Copies` and [`AsyncEngine`](crate::AsyncEngine): what copies come after, told without waiting, and the engine of a call | `asynchronous/` | `asynchronous/gpu.rs` |
//! | the engines of a process: opened once, ended when the pool is closed, left alone by a child of `fork` | `asynchronous/` | `Gpus` in `asynchronous/gpu.rs` |
//! | `layer_ready` of a publish by layers, with the stream of the layer | `asynchronous/` | `asynchronous/gpu.rs` |
//! | its errors in [`SubmitErrorKind`](crate::SubmitErrorKind) | `asynchronous/submit.rs` | [`GpuError`](crate::cuda::GpuError) |
//! | `LentEngine`: a part at an address, for C and Python | `memory/lent.rs` | `impl LentEngine for CudaDma` |
//! | a kind of `MemoryOf`, `Place` and `LentSession` | `memory/` | the variants `Gpu` |
//! | calls that open it, and that name its streams | `connector/capi`, `connector/python` | `session/gpu.rs`, `gpu.rs` |
//! | tensors that lie in its memory | `connector/python/rackline/memory.py` | `_gpu_of` |
//! | vLLM on it: its streams, positions of them, what waits for them, and the layouts it is asked for | `connector/python/rackline/vllm` | `Gpu` and `device_of` in `device.py`; `asked_layout.py` |
//! | a stand-in for its driver, and a check on a real device | `connector/gpu-check` | `tests/fake_cuda.c` |

mod bounce;
mod copies;
mod driver;
mod engine;
mod figures;
mod lanes;
mod layers;
mod memory;
mod options;
mod order;
mod reach;
mod registration;
mod runs;
mod steps;
mod sums;
mod turn;
mod whole;

pub use bounce::pinned_memory;
pub use driver::{CudaError, gpus};
pub use engine::{CudaDma, Summing};
pub use figures::CudaFigures;
pub(crate) use figures::SharedFigures;
pub use memory::{DeviceDestination, DeviceSource, EngineStream};
pub use options::CudaOptions;
pub(crate) use order::Order;
pub use reach::PoolReach;
pub(crate) use registration::AheadThreads;
