//! How the process of a pool works.
#![expect(unsafe_code, reason = "options that C passes")]

use std::ffi::c_char;

use rackline::{AsyncOptions, Namespace, PoolOptions, Quota, Watermarks};

use super::arguments::{optional, text, values};
use super::error::Failure;

/// How much of this node's payload a namespace may keep when room is short. While there is room
/// nobody is kept from using it. For all processes of the host, until another one says otherwise.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklineQuota {
    /// The tenant; null is the one without a name.
    pub tenant: *const c_char,
    /// The salt of the tenant's cache: `salt_bytes` bytes.
    pub salt: *const u8,
    /// Length of the salt in bytes.
    pub salt_bytes: usize,
    /// So many bytes, from 1 to 2^63 - 1, when `percent` is 0; else 0.
    pub bytes: u64,
    /// So many percent of the node's payload, from 1 to 100, when `bytes` is 0; else 0.
    pub percent: u16,
}

/// How a process transfers, and keeps its node's part of the pool. What is zero has its default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RacklinePoolOptions {
    /// Threads that copy, 64 at most. One fills most of what a processor can copy, and is the
    /// default.
    pub copy_threads: u32,
    /// Transfers that wait in each queue at most, 1048576 at most; by default 256.
    pub queue_depth: u32,
    /// Above how many percent of use this process begins to evict in the background; by default
    /// 95, 100 at most. Of payload only when the region has no free memory left.
    pub high_watermark_percent: u16,
    /// Down to how many percent it evicts then; by default 90, below the high one.
    pub low_watermark_percent: u16,
    // Programs that were compiled before these two were there have padding here, or four bytes for
    // the first: every field is where it was.
    /// Threads beside them that take fetches only, 64 at most; by default one. A publish may wait,
    /// for other hosts when its node needs memory, or for the work of a GPU's stream, and fetches
    /// need not wait behind it.
    pub fetch_threads: u16,
    /// 1: threads that copy use all CPUs of the process. 0: they are bound to the CPUs nearest to the
    /// pool's memory, as far as the process may use these, and the log says which.
    pub unbound_threads: u8,
    // Programs that were compiled before it was there have the high byte of `unbound_threads` here,
    // a number of 16 bits then: 0 for each value that it could have.
    /// 1: publishes by layers are possible (`rackline_publish_by_layers`), by a thread for them. 0:
    /// they are refused.
    pub publishes_by_layers: u8,
    /// Quotas of namespaces: `quota_count` of them, 64 at most, each for another namespace.
    pub quotas: *const RacklineQuota,
    /// How many there are.
    pub quota_count: usize,
}

/// The options that C chose at `options`, or the default ones.
///
/// # Safety
/// `options` is null or points to options, whose quotas are null or `quota_count`, each with a
/// tenant that is null or ends with a NUL, and a salt that is null or has its length. All stay
/// unchanged during the call.
pub(super) unsafe fn options_at(
    options: *const RacklinePoolOptions,
) -> Result<AsyncOptions, Failure> {
    let mut chosen = AsyncOptions::new();
    // SAFETY: by the caller's promise.
    let Some(options) = unsafe { optional(options, "the options") }? else { return Ok(chosen) };
    let (high, low) = (options.high_watermark_percent, options.low_watermark_percent);
    let watermarks = Watermarks::of_chosen((high != 0).then_some(high), (low != 0).then_some(low));
    let mut pool = PoolOptions::new().with_watermarks(watermarks.map_err(Failure::bad_argument)?);
    // SAFETY: by the caller's promise.
    for quota in unsafe { values(options.quotas, options.quota_count, "the quotas") }? {
        // SAFETY: by the caller's promise.
        let (namespace, quota) = unsafe { quota_of(quota) }?;
        pool = pool.with_quota(namespace, quota);
    }
    chosen = chosen.with_pool(pool);
    if options.copy_threads != 0 {
        chosen = chosen.with_copy_threads(options.copy_threads as usize);
    }
    if options.fetch_threads != 0 {
        chosen = chosen.with_fetch_threads(options.fetch_threads.into());
    }
    if options.queue_depth != 0 {
        chosen = chosen.with_queue_depth(options.queue_depth as usize);
    }
    let unbound = is_set("unbound_threads", options.unbound_threads)?;
    let by_layers = is_set("publishes_by_layers", options.publishes_by_layers)?;
    chosen = chosen.with_bound_threads(!unbound).with_publishes_by_layers(by_layers);
    chosen.check().map_err(Failure::bad_argument)?;
    Ok(chosen)
}

/// What a field says that is 0 or 1.
fn is_set(name: &str, value: u8) -> Result<bool, Failure> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        wrong => Err(Failure::bad_argument(format!("{name} is {wrong}: must be 0 or 1"))),
    }
}

/// A quota, and whose.
///
/// # Safety
/// The tenant is null or ends with a NUL, and the salt is null or has its length.
unsafe fn quota_of(quota: &RacklineQuota) -> Result<(Namespace, Quota), Failure> {
    // SAFETY: by the caller's promise.
    let namespace = unsafe { namespace_at(quota.tenant, quota.salt, quota.salt_bytes) }?;
    match (quota.bytes, quota.percent) {
        // One that is not filled in would have all of the tenant's blocks evicted first.
        (0, 0) => Err(Failure::bad_argument(
            "a quota has neither bytes nor percent: set bytes, or percent, to at least 1",
        )),
        (bytes, 0) => Ok((namespace, Quota::Bytes(bytes))),
        (0, percent) => Ok((namespace, Quota::Percent(percent))),
        (bytes, percent) => Err(Failure::bad_argument(format!(
            "a quota of {bytes} bytes and of {percent} percent: set one, and the other to 0"
        ))),
    }
}

/// The namespace that C names by tenant and salt.
///
/// # Safety
/// `tenant` is null or ends with a NUL, and `salt` is null or has `salt_bytes` bytes.
pub(super) unsafe fn namespace_at(
    tenant: *const c_char,
    salt: *const u8,
    salt_bytes: usize,
) -> Result<Namespace, Failure> {
    let tenant = if tenant.is_null() {
        ""
    } else {
        // SAFETY: by the caller's promise.
        unsafe { text(tenant, "the tenant") }?
    };
    // SAFETY: by the caller's promise.
    let salt = unsafe { values(salt, salt_bytes, "the salt") }?;
    Ok(Namespace::new(tenant, salt))
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Fields stay where they were. Watermarks and shares are percent, and were thousandths before
    /// the first release.
    #[test]
    fn options_are_where_programs_have_them_that_know_fewer() {
        assert_eq!(size_of::<RacklinePoolOptions>(), 32);
        assert_eq!(offset_of!(RacklinePoolOptions, copy_threads), 0);
        assert_eq!(offset_of!(RacklinePoolOptions, queue_depth), 4);
        assert_eq!(offset_of!(RacklinePoolOptions, high_watermark_percent), 8);
        assert_eq!(offset_of!(RacklinePoolOptions, low_watermark_percent), 10);
        assert_eq!(offset_of!(RacklinePoolOptions, fetch_threads), 12);
        assert_eq!(offset_of!(RacklinePoolOptions, unbound_threads), 14);
        // The high byte of what was a number of 16 bits: regions need a host that puts it behind
        // the low one.
        assert_eq!(offset_of!(RacklinePoolOptions, publishes_by_layers), 15);
        assert_eq!(offset_of!(RacklinePoolOptions, quotas), 16);
        assert_eq!(offset_of!(RacklinePoolOptions, quota_count), 24);
    }
}
