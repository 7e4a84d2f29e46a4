//! Every byte comes back.

use anyhow::{Result, ensure};
use rackline::dma::Checksum;

use crate::content::{content, difference};
use crate::device::Device;

/// From the smallest piece of a block that is worth a copy to a large block.
const SIZES_KIB: [u64; 7] = [16, 64, 256, 1024, 4096, 16_384, 65_536];

/// Stores and loads payloads of each size, whole and in parts.
pub(crate) fn check(device: &Device) -> Result<String> {
    let mut trips = 0;
    for (seed, kib) in (1..).zip(SIZES_KIB) {
        for parts in [1, 2, 32] {
            trip(device, seed * 100 + parts, kib * 1024, parts)?;
            trips += 1;
        }
    }
    Ok(format!("{trips} of 16 KiB to 64 MiB, in 1, 2 and 32 parts, byte for byte"))
}

fn trip(device: &Device, seed: u64, bytes: u64, parts: u64) -> Result<()> {
    let expected = content(seed, usize::try_from(bytes)?);
    let part_bytes = usize::try_from(bytes / parts)?;
    let payload = device.payload(seed % 4, bytes)?;
    let from: Vec<_> = expected
        .chunks(part_bytes)
        .map(|part| device.stream.clone_htod(part))
        .collect::<Result<_, _>>()?;
    let stored = device.store(payload, &from)??;
    ensure!(
        stored == Checksum::of(&[&expected]),
        "{bytes} bytes in {parts} parts: what arrived in the pool is not what was stored"
    );
    let mut to: Vec<_> = from
        .iter()
        .map(|part| device.stream.alloc_zeros::<u8>(part.len()))
        .collect::<Result<_, _>>()?;
    let loaded = device.load(payload, &mut to)??;
    ensure!(loaded == stored, "{bytes} bytes in {parts} parts: another checksum on the way back");
    for (to, expected) in to.iter().zip(expected.chunks(part_bytes)) {
        let found = device.stream.clone_dtoh(to)?;
        if let Some(difference) = difference(&found, expected) {
            anyhow::bail!("{bytes} bytes in {parts} parts: {difference}");
        }
    }
    Ok(())
}
