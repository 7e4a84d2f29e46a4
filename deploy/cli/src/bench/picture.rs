//! The file of a picture.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Fails where a picture could not be written, before anything runs for long. A picture that is there stays
/// until there is a new one, and an empty file is not left.
pub(super) fn check_writable(path: &Path) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => std::fs::remove_file(path).with_context(cannot),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            OpenOptions::new().append(true).create(true).open(path).with_context(cannot)?;
            Ok(())
        }
        Err(error) => Err(error).with_context(cannot),
    }
}
