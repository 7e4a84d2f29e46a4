//! How a GPU reaches the pool.

/// How a GPU reaches the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PoolReach {
    /// Straight: the mapping is registered as memory.
    Registered,
    /// Straight: the mapping is registered as memory of a device, which some drivers may want for
    /// device DAX. The GPU does not look into the caches of processors then, which changes nothing:
    /// lines are refreshed before a load, and flushed after a store.
    RegisteredAsDevice,
    /// Through a pinned buffer, with a copy more by the processor.
    Bounced {
        /// Why the mapping could not be registered.
        reason: String,
    },
}

impl PoolReach {
    /// A short name, for people and for other languages.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::RegisteredAsDevice => "registered as memory of a device",
            Self::Bounced { .. } => "bounced",
        }
    }

    /// Why the GPU reaches the pool only through a buffer; `None` where it needs none.
    #[must_use]
    pub fn bounced_because(&self) -> Option<&str> {
        match self {
            Self::Bounced { reason } => Some(reason),
            Self::Registered | Self::RegisteredAsDevice => None,
        }
    }
}
