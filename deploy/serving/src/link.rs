//! The link of a host to the device: its bandwidth and latency, which all workers of the host share
//! (RACK-R5).

use crate::numbers::{ns, whole};

/// What a host's link to the device reaches.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Device {
    /// Bytes a second.
    bytes_per_s: f64,
    /// How long a transfer takes besides.
    latency_ns: u64,
}

/// Why figures are not those of a link.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[error("{0} * 10^9 bytes a second is no bandwidth of a link: give 0.001 to 100000")]
pub struct DeviceError(pub f64);

impl Device {
    /// A link of so many 10^9 bytes a second.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn new(gb_per_s: f64, latency_ns: u64) -> Result<Self, DeviceError> {
        if !(0.001..=1e5).contains(&gb_per_s) {
            return Err(DeviceError(gb_per_s));
        }
        Ok(Self { bytes_per_s: gb_per_s * 1e9, latency_ns })
    }

    /// A link of so many bytes a second, whatever these are.
    #[must_use]
    pub const fn of_bytes(bytes_per_s: f64, latency_ns: u64) -> Self {
        Self { bytes_per_s: bytes_per_s.max(1e-3), latency_ns }
    }

    /// The link for blocks of another size: each block takes as long as before.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "blocks have less than 2^52 bytes")]
    pub fn scaled(self, from_bytes: u64, to_bytes: u64) -> Self {
        let bytes_per_s = self.bytes_per_s * to_bytes.max(1) as f64 / from_bytes.max(1) as f64;
        Self { bytes_per_s, ..self }
    }

    /// The link in a run whose time passes `speed` times as fast.
    #[must_use]
    pub fn faster(self, speed: f64) -> Self {
        let latency_ns = whole(ns(self.latency_ns) / speed);
        Self { bytes_per_s: self.bytes_per_s * speed, latency_ns }
    }

    /// Bytes a second.
    #[must_use]
    pub const fn bytes_per_s(&self) -> f64 {
        self.bytes_per_s
    }

    /// How long a transfer takes by itself, without its latency.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a transfer has less than 2^52 bytes")]
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        whole(bytes as f64 * 1e9 / self.bytes_per_s)
    }

    /// How long a transfer takes besides.
    #[must_use]
    pub const fn latency_ns(&self) -> u64 {
        self.latency_ns
    }
}

/// When a link that is in use until `busy_until_ns` has passed `bytes` that come at `now_ns`. The
/// receiver has them a latency later.
#[must_use]
pub fn free_at(device: &Device, busy_until_ns: u64, now_ns: u64, bytes: u64) -> u64 {
    busy_until_ns.max(now_ns).saturating_add(device.transfer_ns(bytes))
}
