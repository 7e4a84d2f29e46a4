//! What the blocks of a session are.

use std::time::Duration;

use kv_cache::{HOLD_MS, HOLD_MS_MAX, KeySpace, ModelFingerprint, Namespace};

use super::OptionsError;

/// What the blocks of a session are: of which model, of which length, for whom.
///
/// Two sessions share blocks when model, namespace and length are equal.
///
/// # Example
/// ```
/// use std::time::Duration;
///
/// use rackline::{Attention, Dtype, KvGeometry, Namespace, SessionOptions};
///
/// let heads = Attention::Heads { kv_heads: 3, head_dim: 64 };
/// let kv = KvGeometry::new(30, heads, Dtype::F16, 16)?;
/// let options = SessionOptions::new(kv.model("SmolLM2-135M-Instruct", "1", 1), kv.rank_block_bytes())
///     .with_namespace(Namespace::new("tenant", b"salt"))
///     .with_hold(Duration::from_secs(10));
/// assert_eq!(options.block_bytes(), 368_640);
/// # Ok::<(), rackline::KvGeometryError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionOptions {
    model: ModelFingerprint,
    namespace: Namespace,
    block_bytes: u64,
    chunk_timeout: Duration,
    hold: Duration,
}

impl SessionOptions {
    /// Blocks of `block_bytes` bytes each, of a [`Model`](crate::Model) or its fingerprint, in the
    /// default namespace.
    #[must_use]
    pub fn new(model: impl Into<ModelFingerprint>, block_bytes: u64) -> Self {
        Self {
            model: model.into(),
            namespace: Namespace::default(),
            block_bytes,
            chunk_timeout: Duration::from_secs(2),
            hold: Duration::from_millis(HOLD_MS),
        }
    }

    /// Shares blocks with sessions of this namespace only.
    #[must_use]
    pub fn with_namespace(self, namespace: Namespace) -> Self {
        Self { namespace, ..self }
    }

    /// How long a publish waits for other hosts when its node needs a further chunk of memory: 2 s
    /// unless chosen.
    #[must_use]
    pub fn with_chunk_timeout(self, chunk_timeout: Duration) -> Self {
        Self { chunk_timeout, ..self }
    }

    /// How long a publish waits for a further chunk of memory.
    #[must_use]
    pub fn chunk_timeout(&self) -> Duration {
        self.chunk_timeout
    }

    /// How long held blocks stay at most, in steps of 64 ms: 30 s unless chosen, and 2,097,088 ms
    /// (a little less than 35 minutes) at most.
    #[must_use]
    pub fn with_hold(self, hold: Duration) -> Self {
        Self { hold, ..self }
    }

    /// Stands for the model.
    #[must_use]
    pub fn model(&self) -> ModelFingerprint {
        self.model
    }

    /// Which sessions share the blocks.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Length of every block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// What tells the keys of these blocks from those of other sessions, for records that describe
    /// blocks to other processes (`kv_cache::KeySpace::from_bytes`).
    #[must_use]
    pub fn key_space_bytes(&self) -> [u8; 24] {
        self.key_space().to_bytes()
    }

    /// Whether the blocks of two sessions differ in nothing but the model.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        *self == Self { model: self.model, ..*other }
    }

    /// Under which keys the blocks are found.
    pub(crate) fn key_space(&self) -> KeySpace {
        KeySpace::new(self.model, self.namespace, self.block_bytes)
    }

    pub(crate) fn chunk_timeout_ms(&self) -> u64 {
        milliseconds(self.chunk_timeout)
    }

    pub(crate) fn hold_ms(&self) -> u64 {
        milliseconds(self.hold)
    }

    /// Refuses options that opening a session would refuse, whatever the region.
    ///
    /// # Errors
    /// [`OptionsError::Hold`].
    pub fn check(&self) -> Result<(), OptionsError> {
        let hold_ms = self.hold_ms();
        if hold_ms > HOLD_MS_MAX { Err(OptionsError::Hold { hold_ms }) } else { Ok(()) }
    }
}

/// Rounded up: a wait that was asked for never becomes none.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use kv_cache::{Attention, Dtype, KvGeometry};

    use super::*;

    #[test]
    fn a_hold_that_the_pool_does_not_grant_is_refused() {
        let kv = KvGeometry::new(1, Attention::Latent { elements: 1 }, Dtype::F16, 16).unwrap();
        let options = SessionOptions::new(kv.model("tiny", "1", 1), kv.rank_block_bytes());
        options.check().unwrap();
        options.with_hold(Duration::from_millis(HOLD_MS_MAX)).check().unwrap();
        let hold_ms = HOLD_MS_MAX + 1;
        let refused = options.with_hold(Duration::from_millis(hold_ms)).check();
        assert_eq!(refused, Err(OptionsError::Hold { hold_ms }));
    }

    #[test]
    fn sessions_of_other_models_are_alike() {
        let kv = KvGeometry::new(1, Attention::Latent { elements: 1 }, Dtype::F16, 16).unwrap();
        let of = |name, bytes| SessionOptions::new(kv.model(name, "1", 1), bytes);
        let one = of("a", 1);
        assert!(one.is_like(&of("b", 1)) && one != of("b", 1));
        for other in [
            of("a", 2),
            one.with_namespace(Namespace::new("other", b"")),
            one.with_hold(Duration::from_secs(1)),
            one.with_chunk_timeout(Duration::from_secs(1)),
        ] {
            assert!(!one.is_like(&other));
        }
    }

    #[test]
    fn a_short_wait_is_a_wait() {
        assert_eq!(milliseconds(Duration::ZERO), 0);
        assert_eq!(milliseconds(Duration::from_micros(900)), 1);
        assert_eq!(milliseconds(Duration::MAX), u64::MAX);
    }
}
