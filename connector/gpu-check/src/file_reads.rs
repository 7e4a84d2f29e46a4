//! Whether NVIDIA's cuFile moves bytes of a drive into the memory of the GPU, past the memory of the host.
//!
//! Nothing of Rackline needs cuFile: an agent restores a block into the pool, where every host finds it, and
//! engines fetch it from there. This check says what a machine has.

#![expect(unsafe_code, reason = "a library is looked for by loading it")]

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cudarc::cufile::{self, Cufile};
use cxl_shm::clock::SystemClock;

use crate::content::{content, difference};
use crate::device::Device;

const BYTES: usize = 64 << 20;
const A_READ_BYTES: usize = 2 << 20;

/// Reads a file of `folder` into GPU memory with cuFile, byte for byte. Without the library, or where it
/// refuses, says why; that is no failure.
pub(crate) fn check(device: &Device, folder: &Path) -> Result<String> {
    // SAFETY: loads the library by its name, and runs what a library runs when it is loaded.
    if !unsafe { cufile::sys::is_culib_present() } {
        return Ok("libcufile is not installed: drives are read through memory of the host".into());
    }
    let driver = match Cufile::new() {
        Ok(driver) => driver,
        Err(error) => return Ok(format!("cuFile refuses to start: {error:?}")),
    };
    let properties = driver.get_properties().context("the properties of cuFile")?;
    let way = if properties.nvfs.major_version == 0 {
        "without nvidia-fs, through memory of the host".to_owned()
    } else {
        format!("nvidia-fs {}.{}", properties.nvfs.major_version, properties.nvfs.minor_version)
    };
    let us = read(device, &driver, folder)?;
    let gib_per_s = BYTES as f64 / f64::from(1 << 30) / (us.max(1) as f64 / 1e6);
    Ok(format!(
        "{way}; {BYTES} bytes in reads of {A_READ_BYTES}, one at a time: {gib_per_s:.2} GiB/s"
    ))
}

/// Microseconds that the reads took.
fn read(device: &Device, driver: &Arc<Cufile>, folder: &Path) -> Result<u64> {
    let written =
        tempfile::NamedTempFile::new_in(folder).context("a file in the --drive folder")?;
    let expected = content(77, BYTES);
    std::fs::write(written.path(), &expected)?;
    written.as_file().sync_all()?;
    let opened = File::options().read(true).custom_flags(libc::O_DIRECT).open(written.path());
    let file = driver.register(opened.context("the file with O_DIRECT")?)?;
    let mut memory = device.stream.alloc_zeros::<u8>(A_READ_BYTES)?;
    let clock = SystemClock::start();
    let mut took_us = 0;
    for (number, expected) in expected.chunks(A_READ_BYTES).enumerate() {
        let began_us = clock.now_us();
        let moved = file.sync_read(i64::try_from(number * A_READ_BYTES)?, &mut memory)?;
        took_us += clock.now_us() - began_us;
        ensure!(usize::try_from(moved)? == A_READ_BYTES, "a read of cuFile moved {moved} bytes");
        let found = device.stream.clone_dtoh(&memory)?;
        if let Some(difference) = difference(&found, expected) {
            anyhow::bail!("read {number} of cuFile: {difference}");
        }
    }
    Ok(took_us)
}
