//! Why an agent does not work.

use std::path::PathBuf;

use kv_cache::tier::DriveError;
use kv_drive::store::OpenStoreError;
use rackline::PoolError;

/// Why an agent did not start, or ended otherwise than by being stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The region cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// This process may not be the agent of its node, or is not any more.
    #[error(transparent)]
    Drives(#[from] DriveError),
    /// The folders cannot be used.
    #[error(transparent)]
    Store(#[from] OpenStoreError),
    /// A folder cannot be looked at.
    #[error("{}: {source}; check that the folder exists and belongs to this user", .folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Two folders are one.
    #[error(
        "{} and {} are the same folder: give it once", .first.display(), .second.display()
    )]
    SameFolder {
        /// As it was given first.
        first: PathBuf,
        /// As it was given again.
        second: PathBuf,
    },
    /// This host has no identity.
    #[error("cannot identify this host: {0}")]
    Host(std::io::Error),
    /// A thread panicked.
    #[error("a thread of the agent failed; its message is above")]
    Panicked,
    /// No thread could be started.
    #[error("cannot start a thread of the agent: {0}")]
    Thread(std::io::Error),
}
