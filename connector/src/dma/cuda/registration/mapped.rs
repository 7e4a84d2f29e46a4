//! The driver, as it registers pieces of the mapping of the pool.
#![expect(unsafe_code, reason = "the driver pins memory of this process")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, sys};
use cxl_shm::fabric::Mapping;
use cxl_shm::units::Extent;

use super::Registrar;
use crate::dma::cuda::driver::reason;
use crate::dma::cuda::turn::Turn;

/// The mapping, and how it is registered: for all GPUs of the process.
#[derive(Debug)]
pub(in crate::dma::cuda) struct MappedPool {
    context: Arc<CudaContext>,
    mapping: Arc<Mapping>,
    flags: u32,
}

impl MappedPool {
    pub(super) fn new(context: &Arc<CudaContext>, mapping: &Arc<Mapping>, is_device: bool) -> Self {
        let memory = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let device = memory | sys::CU_MEMHOSTREGISTER_IOMEMORY;
        Self {
            context: Arc::clone(context),
            mapping: Arc::clone(mapping),
            flags: if is_device { device } else { memory },
        }
    }

    fn address(&self, piece: Extent) -> *mut u8 {
        self.mapping.address(piece).expect("a piece lies in the mapping")
    }

    fn pin_pages(&self, piece: Extent) -> Result<(), DriverError> {
        let bytes = usize::try_from(piece.bytes()).expect("it is mapped");
        let address = self.address(piece);
        let _turn = Turn::begin(&self.context)?;
        // SAFETY: the piece is mapped while `self.mapping` lives. That goes after this, when all
        // pieces are unregistered, and stays when one could not be.
        unsafe { sys::cuMemHostRegister_v2(address.cast(), bytes, self.flags) }.result()
    }

    fn unpin_pages(&self, piece: Extent) -> Result<(), DriverError> {
        let address = self.address(piece);
        // Without it this fails, and the mapping stays.
        let _turn = Turn::begin(&self.context)?;
        // SAFETY: it was registered at this address, and no copy is under way (CUDA-R2).
        unsafe { sys::cuMemHostUnregister(address.cast()) }.result()
    }
}

impl Registrar for MappedPool {
    fn register(&self, piece: Extent) -> Result<(), String> {
        // Pages get their memory before the driver takes its locks, which kernels of the engine need.
        // Where they get none the driver says so.
        let _touched = self.mapping.prefault(piece);
        self.pin_pages(piece).map_err(reason)
    }

    fn unregister(&self, piece: Extent) -> Result<(), String> {
        self.unpin_pages(piece).map_err(|error| {
            // CUDA-R5: pages that the driver may still have pinned stay mapped rather than be given to
            // somebody else.
            std::mem::forget(Arc::clone(&self.mapping));
            reason(error)
        })
    }
}
