//! The fence that the options name.

use cxl_shm::member::{Attachment, CommandFence, Fence, NoFence, ProcessFence};

use crate::options::{FenceKind, Options};

/// The fence of a lock manager that runs as `options` say.
pub(crate) fn fence_of(
    options: &Options,
    attachment: &Attachment,
) -> std::io::Result<Box<dyn Fence>> {
    let member = attachment.member();
    Ok(match (options.fence, &options.fence_command) {
        (FenceKind::Process, _) => {
            let fabric = member.fabric().clone();
            Box::new(ProcessFence::new(fabric, *member.superblock(), *member.layout())?)
        }
        (FenceKind::Command, Some(program)) => {
            Box::new(CommandFence::new(program.clone(), options.fence_timeout_ms))
        }
        // The command line demands the program; without one nothing can be cut off.
        (FenceKind::Command, None) | (FenceKind::None, _) => Box::new(NoFence),
    })
}
