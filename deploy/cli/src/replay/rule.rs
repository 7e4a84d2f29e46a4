//! Which block leaves when a replayed cache is full: a policy of the pool, or the optimum.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use kv_cache::evict::policy::PolicyKind;

/// What `--policy` names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// A policy that the pool could use.
    Policy(PolicyKind),
    /// What leaves if the whole trace is known beforehand: the most hits there can be.
    Optimum,
}

impl Rule {
    /// All rules.
    pub(super) const ALL: [Self; 4] = [
        Self::Policy(PolicyKind::Clock),
        Self::Policy(PolicyKind::Lru),
        Self::Policy(PolicyKind::S3Fifo),
        Self::Optimum,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Policy(policy) => policy.name(),
            Self::Optimum => "optimum",
        }
    }

    /// The policy, for `what`, which cannot know the trace beforehand.
    pub(super) fn policy_of(self, what: &str) -> Result<PolicyKind> {
        match self {
            Self::Policy(policy) => Ok(policy),
            Self::Optimum => bail!(
                "the optimum knows the whole trace beforehand, which {what} does not: give \
                 --policy clock, lru or s3-fifo"
            ),
        }
    }
}

impl Default for Rule {
    fn default() -> Self {
        Self::Policy(PolicyKind::default())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no such rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no eviction policy \"{0}\"; there are clock, lru and s3-fifo, and optimum")]
pub(super) struct UnknownRule(String);

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<Self, UnknownRule> {
        let known = Self::ALL.into_iter().find(|rule| rule.name() == name);
        known.ok_or_else(|| UnknownRule(name.to_owned()))
    }
}
