//! The fence that the options name.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use cxl_shm::lifecycle::{Attachment, CommandFence, Fence, NoFence, ProcessFence};
use rustix::fs::{Access, access};

use crate::options::{FencingMethod, Options};

/// Why a lock manager cannot fence as its options say.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// A program was given, and nothing would ever run it.
    #[error(
        "--fence-command {} is given without --fence command, so the program would never run: add \
         --fence command, or omit the program", .0.display()
    )]
    Unused(PathBuf),
    /// There is no program.
    #[error("--fence command needs a program: give it with --fence-command")]
    NoProgram,
    /// The program cannot be run.
    #[error(
        "--fence-command {} cannot be run: {reason}; a declared host could not be fenced", .program.display()
    )]
    Program {
        /// The program, as given.
        program: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The operating system does not say which machine this is.
    #[error("cannot read the identity of this machine, which --fence process needs: {0}")]
    Machine(std::io::Error),
}

/// Refuses options with which hosts could not be fenced as they say.
pub(crate) fn check(options: &Options) -> Result<(), FenceError> {
    match (options.fence, &options.fence_command) {
        (FencingMethod::Command, None) => Err(FenceError::NoProgram),
        (FencingMethod::Command, Some(program)) => check_program(program, std::env::var_os("PATH")),
        (FencingMethod::Process | FencingMethod::None, Some(program)) => {
            Err(FenceError::Unused(program.clone()))
        }
        (FencingMethod::Process | FencingMethod::None, None) => Ok(()),
    }
}

/// Looks for the program where running it would: a bare name in the folders of `path`.
fn check_program(program: &Path, path: Option<impl AsRef<OsStr>>) -> Result<(), FenceError> {
    let refused = |reason: String| FenceError::Program { program: program.to_owned(), reason };
    let is_bare = program.components().count() == 1 && !program.has_root();
    let found = match path {
        Some(path) if is_bare => std::env::split_paths(&path)
            .map(|folder| folder.join(program))
            .find(|found| found.is_file())
            .ok_or_else(|| refused("it is in no folder of PATH; give its path".to_owned()))?,
        _ => program.to_owned(),
    };
    let about = found.metadata().map_err(|error| refused(error.to_string()))?;
    if !about.is_file() {
        return Err(refused("it is no file".to_owned()));
    }
    access(&found, Access::EXEC_OK)
        .map_err(|_| refused("it is not executable; make it so with chmod +x".to_owned()))
}

/// The fence of a lock manager that runs as `options` say.
pub(crate) fn fence_of(
    options: &Options,
    attachment: &Attachment,
) -> Result<Box<dyn Fence>, FenceError> {
    let member = attachment.member();
    Ok(match (options.fence, &options.fence_command) {
        (FencingMethod::Process, _) => {
            let fabric = member.fabric().clone();
            let fence = ProcessFence::new(fabric, *member.superblock(), *member.layout());
            Box::new(fence.map_err(FenceError::Machine)?)
        }
        (FencingMethod::Command, Some(program)) => {
            Box::new(CommandFence::new(program.clone(), options.fence_timeout_ms))
        }
        (FencingMethod::Command, None) => return Err(FenceError::NoProgram),
        (FencingMethod::None, _) => Box::new(NoFence),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_where_it_would_be_run_from() {
        let path = Some("/nowhere:/bin:/usr/bin");
        for (program, is_good) in [
            ("sh", true),
            ("/bin/sh", true),
            ("no-such-program", false),
            ("/nowhere/fence", false),
            ("/etc/passwd", false),
            ("/etc", false),
            ("./sh", false),
        ] {
            let checked = check_program(Path::new(program), path);
            assert_eq!(checked.is_ok(), is_good, "{program}: {checked:?}");
        }
    }
}
