//! A job that cannot be done says so, changes nothing, and leaves nothing behind.

use anyhow::{Result, ensure};
use cxl_shm::fabric::{MappedFabric, Mapping};
use cxl_shm::units::Extent;
use rackline::cuda::CudaDma;
use rackline::dma::{Checksum, DmaError};

use crate::content::content;
use crate::device::Device;

/// Payloads that do not fit, a GPU that is not there, and after each a payload that is copied.
pub(crate) fn check(device: &Device) -> Result<String> {
    let bytes = content(7, 1 << 20);
    let memory = [device.stream.clone_htod(&bytes)?];
    let payload = device.payload(3, 1 << 20)?;
    let works = || -> Result<()> {
        let stored = device.store(payload, &memory)??;
        ensure!(stored == Checksum::of(&[&bytes]), "a copy after an error is wrong");
        Ok(())
    };
    works()?;

    let outside = Extent::new(device.bytes, 1 << 20).expect("offsets are far from their end");
    let refused = device.store(outside, &memory)?;
    ensure!(matches!(refused, Err(DmaError::OutOfRange { .. })), "outside the pool: {refused:?}");
    works()?;

    let longer = device.payload(1, 2 << 20)?;
    let refused = device.store(longer, &memory)?;
    ensure!(matches!(refused, Err(DmaError::LengthMismatch { .. })), "too few bytes: {refused:?}");
    works()?;

    let fabric = MappedFabric::new(Mapping::shared(&device.file, device.bytes)?)?;
    let refused = CudaDma::new(fabric, usize::from(u16::MAX));
    ensure!(refused.is_err(), "there is a GPU number 65535");
    works()?;
    Ok("3 refused, each with its reason; copies go on".into())
}
