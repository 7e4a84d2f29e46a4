//! The links of a host, from a file.

use serde::Deserialize;

use crate::link::{Device, DeviceError};

/// The links of each host of a rack.
#[derive(Clone, PartialEq, Debug)]
pub struct Links {
    /// What they are.
    pub name: String,
    /// Where their figures are from.
    pub source: String,
    /// To the shared memory.
    pub device: Device,
    /// The shared memory itself, which all hosts share; `None` where it is as fast as their links
    /// together.
    pub memory: Option<Device>,
    /// To the network, in each direction.
    pub network: Device,
    /// Between the host's own memory and its GPUs.
    pub local: Device,
    /// A request to a metadata server, with its answer.
    pub rpc_ns: u64,
    /// The drives of a host; `None` where it has none.
    pub drives: Option<DriveLinks>,
}

/// What the drives of a host reach together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DriveLinks {
    /// Reading.
    pub read: Device,
    /// Writing.
    pub write: Device,
}

/// Why a file is none of links.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinksError {
    /// It does not have the form.
    #[error("{0}; copy deploy/serving/profiles/links-tract.toml and change its figures")]
    Form(#[from] toml::de::Error),
    /// A bandwidth is none.
    #[error("{name}: {error}")]
    Device {
        /// The name of the figure.
        name: &'static str,
        /// What is wrong.
        error: DeviceError,
    },
    /// A part of the figures of a drive is missing.
    #[error(
        "a drive needs drive_read_gb_per_s and drive_write_gb_per_s: give both, or leave all figures of \
         drives out"
    )]
    HalfDrive,
    /// Nobody has put such links in here.
    #[error("there are no links \"{0}\": give tract or pcie5, or a file that ends with .toml")]
    Unknown(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    source: String,
    device_gb_per_s: f64,
    device_latency_ns: u64,
    memory_gb_per_s: Option<f64>,
    network_gb_per_s: f64,
    network_latency_ns: u64,
    local_gb_per_s: f64,
    rpc_ns: u64,
    drive_read_gb_per_s: Option<f64>,
    drive_write_gb_per_s: Option<f64>,
    drive_latency_ns: Option<u64>,
}

impl Links {
    /// Links that are built in: `tract` and `pcie5`.
    ///
    /// # Errors
    /// [`LinksError::Unknown`].
    pub fn named(name: &str) -> Result<Self, LinksError> {
        match name {
            "tract" => Self::read(include_str!("../profiles/links-tract.toml")),
            "pcie5" => Self::read(include_str!("../profiles/links-pcie5.toml")),
            _ => Err(LinksError::Unknown(name.to_owned())),
        }
    }

    /// Reads links.
    ///
    /// # Errors
    /// [`LinksError`], with what to change.
    pub fn read(text: &str) -> Result<Self, LinksError> {
        let file: File = toml::from_str(text)?;
        let device = |name, rate, latency_ns| {
            Device::new(rate, latency_ns).map_err(|error| LinksError::Device { name, error })
        };
        let memory = file.memory_gb_per_s.map(|rate| device("memory_gb_per_s", rate, 0));
        let drives = [
            ("drive_read_gb_per_s", file.drive_read_gb_per_s),
            ("drive_write_gb_per_s", file.drive_write_gb_per_s),
        ];
        let latency_ns = file.drive_latency_ns.unwrap_or(0);
        let drives =
            match drives.map(|(name, rate)| rate.map(|rate| device(name, rate, latency_ns))) {
                [Some(read), Some(write)] => Some(DriveLinks { read: read?, write: write? }),
                [None, None] if file.drive_latency_ns.is_none() => None,
                _ => return Err(LinksError::HalfDrive),
            };
        Ok(Self {
            drives,
            memory: memory.transpose()?,
            device: device("device_gb_per_s", file.device_gb_per_s, file.device_latency_ns)?,
            network: device("network_gb_per_s", file.network_gb_per_s, file.network_latency_ns)?,
            local: device("local_gb_per_s", file.local_gb_per_s, 0)?,
            rpc_ns: file.rpc_ns,
            name: file.name,
            source: file.source,
        })
    }
}
