//! The fence of hosts that are processes: their parent's word.
//!
//! A killed process writes no more, and no dirty line of its outlives it. The parent says so in a
//! file once it has seen the process end, as a program that cuts the power returns when it is off.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cxl_shm::lifecycle::{Fence, FenceOrder, FenceState};

/// Asks the parent's files.
#[derive(Clone, Debug)]
pub(super) struct ParentsWord {
    folder: PathBuf,
}

impl ParentsWord {
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// The parent says that life `life` of the host of `node` is over.
    pub(super) fn say_gone(&self, node: u16, life: u64) -> Result<()> {
        let path = self.path(node, life);
        std::fs::write(&path, []).with_context(|| format!("cannot write {}", path.display()))
    }

    fn path(&self, node: u16, life: u64) -> PathBuf {
        self.folder.join(format!("gone-{node}-{life}"))
    }
}

impl Fence for ParentsWord {
    fn poll(&mut self, order: &FenceOrder, _: u64) -> FenceState {
        // A life of a host is a boot of its machine.
        let Some(machine) = order.machine else {
            return FenceState::NotFenced("which life of the host it is nobody knows".to_owned());
        };
        let [life, _] = machine.boot_id;
        if self.path(order.victim.0, life).exists() {
            FenceState::Fenced
        } else {
            FenceState::NotFenced("its process lives".to_owned())
        }
    }
}
