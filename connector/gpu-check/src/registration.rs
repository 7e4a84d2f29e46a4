//! How the GPU reaches the pool.

use anyhow::anyhow;
use bytesize::ByteSize;

use crate::device::Device;
use crate::report::Report;

/// A pool that is not reached straight is not an error of the engine, which continues through its
/// buffer; but it is what this check is for.
pub(crate) fn check(report: &mut Report, device: &Device) {
    let size = ByteSize(device.bytes);
    let reach = device.dma.reach();
    let outcome = match reach.bounced_because() {
        None => Ok(format!(
            "{size} {}, piece by piece; the GPU and the first piece after {:.2} s",
            reach.label(),
            device.open_s
        )),
        Some(reason) => {
            Err(anyhow!("the driver registers no {size} of this file ({reason}): payload bounces"))
        }
    };
    report.check("registration", outcome);
}
