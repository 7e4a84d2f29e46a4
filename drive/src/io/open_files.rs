//! How many files this process may have open: each segment of a folder is one.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that everything else in the process may open meanwhile.
const SPARE: u64 = 128;

/// The system lets a process open fewer files than it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the folders have up to {files} segments, each an open file, and this process may open {limit} \
     files: raise the limit (`ulimit -Hn`, or LimitNOFILE= of the service) to {needed}, give the \
     folders less capacity, or begin new folders: segments stay as long as a folder was made with"
)]
pub struct TooFewOpenFiles {
    /// Files of the folders.
    pub files: u64,
    /// What the process needs.
    pub needed: u64,
    /// What the system allows.
    pub limit: u64,
}

/// Makes room for `files` more open files. The soft limit of the process is raised where it is too
/// low, as far as the hard one.
///
/// # Errors
/// [`TooFewOpenFiles`]: nothing has changed then.
pub(crate) fn allow(files: u64) -> Result<(), TooFewOpenFiles> {
    let limits = getrlimit(Resource::Nofile);
    let needed = open_now().saturating_add(files).saturating_add(SPARE);
    let (soft, hard) = (limits.current.unwrap_or(u64::MAX), limits.maximum.unwrap_or(u64::MAX));
    match raised(needed, soft, hard) {
        Ok(None) => Ok(()),
        Ok(Some(soft)) => {
            let limits = Rlimit { current: Some(soft), maximum: limits.maximum };
            setrlimit(Resource::Nofile, limits).map_err(|_| TooFewOpenFiles {
                files,
                needed,
                limit: soft,
            })?;
            tracing::info!(open_files = soft, "the limit of open files is raised");
            Ok(())
        }
        Err(limit) => Err(TooFewOpenFiles { files, needed, limit }),
    }
}

/// The soft limit that a process gets; `None` when it has enough.
fn raised(needed: u64, soft: u64, hard: u64) -> Result<Option<u64>, u64> {
    match (needed <= soft, needed <= hard) {
        (true, _) => Ok(None),
        (false, true) => Ok(Some(needed)),
        (false, false) => Err(hard),
    }
}

/// Files that the process has open.
fn open_now() -> u64 {
    let count = || io::Result::Ok(std::fs::read_dir("/proc/self/fd")?.count() as u64);
    count().unwrap_or(SPARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_as_far_as_it_may_be() {
        assert_eq!(raised(1000, 1024, 4096), Ok(None));
        assert_eq!(raised(3200, 1024, 4096), Ok(Some(3200)));
        assert_eq!(raised(5000, 1024, 4096), Err(4096));
        assert_eq!(allow(0), Ok(()));
        let refused = allow(u64::MAX / 2).unwrap_err().to_string();
        assert!(refused.contains("LimitNOFILE="), "{refused}");
    }
}
