//! Between engines and the pool: sessions and DMA engines.

pub mod dma;
