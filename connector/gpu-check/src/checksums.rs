//! Who computes checksums, and that the GPU's are right.

use anyhow::{Result, bail, ensure};
use cudarc::driver::CudaSlice;
use rackline::cuda::Summing;
use rackline::dma::{Checksum, DmaError};

use crate::content::content;
use crate::device::Device;

/// Lengths of parts around those of words, lanes, rows and pieces.
const LENGTHS: [usize; 14] =
    [1, 3, 16, 17, 511, 512, 513, 4096, 8191, 8192, 8193, 65_536, 100_001, 1 << 20];
/// More than one call of the driver takes.
const MANY_PARTS: usize = 2500;
const SHORT_BYTES: usize = 4096;

/// A GPU that computes no checksums is served, but not verified: this check is for that.
pub(crate) fn check(device: &Device) -> Result<String> {
    for (seed, bytes) in (1000..).zip(LENGTHS) {
        sum(device, seed, &[bytes])?;
        sum(device, seed, &[bytes, 7, bytes])?;
    }
    sum(device, 1100, &[SHORT_BYTES; MANY_PARTS])?;
    match device.dma.summing() {
        Summing::ByGpu => {
            Ok("by the GPU, of its own memory; those of odd lengths are right".into())
        }
        by_cpu => bail!(
            "by the CPU: bytes that change between the GPU and the pool are not noticed ({})",
            by_cpu.cpu_because().unwrap_or_default()
        ),
    }
}

/// Stores and loads one payload of parts of these lengths.
fn sum(device: &Device, seed: u64, lengths: &[usize]) -> Result<()> {
    let bytes = lengths.iter().sum();
    let all = content(seed, bytes);
    let mut rest = &all[..];
    let parts = lengths.iter().map(|length| {
        let (part, behind) = rest.split_at(*length);
        rest = behind;
        device.stream.clone_htod(part)
    });
    let mut parts = parts.collect::<Result<Vec<CudaSlice<u8>>, _>>()?;
    let payload = device.payload(1, (bytes as u64).next_multiple_of(64))?;
    let payload = payload.part(0, bytes as u64).expect("it is not longer");
    let expected = Ok::<_, DmaError>(Checksum::of(&[&all]));
    let stored = device.store(payload, &parts)?;
    let what = || format!("{bytes} bytes in {} parts", lengths.len());
    ensure!(stored == expected, "{}: {stored:?} instead of {expected:?} of the source", what());
    let loaded = device.load(payload, &mut parts)?;
    ensure!(
        loaded == expected,
        "{}: {loaded:?} instead of {expected:?} of the destination",
        what()
    );
    Ok(())
}
