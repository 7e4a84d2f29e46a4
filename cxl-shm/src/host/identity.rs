//! Which host a process runs on.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::tier_file::HOST_TIER_FOLDER;

/// The host a process runs on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostIdentity {
    /// Its name, for people.
    pub name: String,
    /// The kernel's id of the present boot.
    pub boot_id: [u64; 2],
    /// The installation's id (machine-id(5)), zeros when it has none: the same over reboots.
    pub machine_id: [u64; 2],
    /// The pid namespace that this process is in.
    pub pid_namespace: u64,
    /// The number of the file system that host tiers lie in: where it is the same, in one boot,
    /// their locks keep processes from joining beside each other, in whatever pid namespaces.
    pub tier_device: u64,
}

impl HostIdentity {
    /// The host this process runs on.
    ///
    /// # Errors
    /// When `/proc` or the folder of host tiers cannot be read.
    pub fn current() -> std::io::Result<Self> {
        let boot_id = id_of(&fs::read_to_string("/proc/sys/kernel/random/boot_id")?)
            .ok_or_else(|| std::io::Error::other("the kernel's boot id is malformed"))?;
        let machine_id = fs::read_to_string("/etc/machine-id").ok();
        let machine_id = machine_id.and_then(|text| id_of(&text)).unwrap_or([0; 2]);
        let pid_namespace = fs::metadata("/proc/self/ns/pid")?.ino();
        let tier_device = fs::metadata(HOST_TIER_FOLDER)?.dev();
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(Self { name, boot_id, machine_id, pid_namespace, tier_device })
    }

    /// Host `index` of a simulated rack.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn simulated(index: u64) -> Self {
        let id = [index + 1, 0];
        let name = format!("host-{index}");
        Self { name, boot_id: id, machine_id: id, pid_namespace: 1, tier_device: 1 }
    }
}

/// An id of 128 bits in hexadecimal, with or without dashes.
fn id_of(text: &str) -> Option<[u64; 2]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let half = |part: Option<&str>| part.and_then(|part| u64::from_str_radix(part, 16).ok());
    Some([half(digits.get(..16))?, half(digits.get(16..32))?])
}
