//! The link of a host to the device, as slow as asked for. All workers of the host share it: a file
//! says until when it is in use.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use rackline_serving::{Device, free_at};

use super::super::protocol::Late;
use super::super::time::{Speed, machine_ns, sleep_until};

/// The link, or none: then bytes move as fast as the machine moves them.
#[derive(Debug)]
pub(super) struct Link {
    imposed: Option<(Device, File)>,
    speed: Speed,
}

impl Link {
    /// The link whose use is in the file at `path`.
    pub(super) fn open(imposed: Option<(Device, &Path)>, speed: Speed) -> Result<Self> {
        let open = |(device, path): (Device, &Path)| -> Result<_> {
            let file = File::options().read(true).write(true).open(path);
            Ok((device, file.with_context(|| format!("cannot open {}", path.display()))?))
        };
        Ok(Self { imposed: imposed.map(open).transpose()?, speed })
    }

    /// Moves `bytes` by `transfer`. It takes as long as on the link, or longer where the machine is
    /// slower.
    pub(super) fn pass<T>(
        &self,
        bytes: u64,
        late: &mut Late,
        transfer: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some((device, file)) = self.imposed.as_ref().filter(|_| bytes > 0) else {
            return transfer();
        };
        let free_ns = reserve(device, file, bytes).context("cannot use the link of the host")?;
        let moved = transfer()?;
        let due_ns = free_ns + device.latency_ns();
        let now_ns = machine_ns();
        if now_ns > due_ns {
            late.transfers += 1;
            late.transfers_ns += self.speed.in_bench(now_ns - due_ns);
        } else {
            sleep_until(due_ns);
        }
        Ok(moved)
    }
}

/// Queues `bytes` behind what passes already (RACK-R5). Returns when they have passed.
fn reserve(device: &Device, file: &File, bytes: u64) -> Result<u64> {
    file.lock()?;
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 0)?;
    let free_ns = free_at(device, u64::from_le_bytes(word), machine_ns(), bytes);
    file.write_all_at(&free_ns.to_le_bytes(), 0)?;
    file.unlock()?;
    Ok(free_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_of_two_processes_queue_on_the_link_of_their_host() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&[0; 8], 0).unwrap();
        let device = Device::new(1.0, 0).unwrap();
        let other = File::options().read(true).write(true).open(file.path()).unwrap();
        let before_ns = machine_ns();
        let first_ns = reserve(&device, file.as_file(), 3_000_000).unwrap();
        let second_ns = reserve(&device, &other, 5_000_000).unwrap();
        assert!(first_ns >= before_ns + 3_000_000);
        // It began before the first had passed, unless this process slept for 3 ms.
        assert!(second_ns == first_ns + 5_000_000 || machine_ns() > first_ns);
    }

    #[test]
    fn a_transfer_that_is_slower_than_the_device_is_counted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&[0; 8], 0).unwrap();
        let device = Device::new(1.0, 0).unwrap();
        let link = Link::open(Some((device, file.path())), Speed(2.0)).unwrap();
        let mut late = Late::default();
        let slow = || {
            sleep_until(machine_ns() + 2_000_000);
            Ok(7)
        };
        assert_eq!(link.pass(1, &mut late, slow).unwrap(), 7);
        assert_eq!(late.transfers, 1);
        // Two milliseconds of the machine are four of the bench.
        assert!(late.transfers_ns > 3_000_000, "{late:?}");
        assert_eq!(link.pass(0, &mut late, || Ok(8)).unwrap(), 8);
        assert_eq!(late.transfers, 1);
    }
}
