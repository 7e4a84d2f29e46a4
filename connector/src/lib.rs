//! Between engines and the pool: sessions and DMA engines.

pub use cxl_shm::fork::ProcessMark;

pub mod dma;
pub mod log;
pub mod pool;
pub mod session;
pub mod transfer;
