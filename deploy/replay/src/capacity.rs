//! How many blocks a cache holds, as people write it.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// Room of a simulated cache.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Capacity {
    /// Nothing is ever evicted.
    #[default]
    Unlimited,
    /// So many blocks.
    Blocks(NonZeroU32),
    /// A share of the different blocks of the trace, in percent; at least one block.
    PercentOfWorkingSet(f64),
}

impl Capacity {
    /// Blocks of a cache for a trace with `unique_blocks` different ones; `None` is no limit.
    #[must_use]
    pub fn blocks(self, unique_blocks: u32) -> Option<u32> {
        match self {
            Self::Unlimited => None,
            Self::Blocks(blocks) => Some(blocks.get()),
            Self::PercentOfWorkingSet(percent) => {
                let blocks = (f64::from(unique_blocks) * percent / 100.0).round();
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a cast of a float saturates, and more than all blocks is all of them"
                )]
                let blocks = blocks as u32;
                Some(blocks.max(1))
            }
        }
    }
}

/// A text is no capacity.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "\"{0}\" is not a capacity: give a number of blocks from 1 to 4294967295, a share of the \
     trace's different blocks such as 5%, or \"unlimited\""
)]
pub struct CapacityError(pub String);

impl FromStr for Capacity {
    type Err = CapacityError;

    fn from_str(text: &str) -> Result<Self, CapacityError> {
        let error = || CapacityError(text.to_owned());
        if text == "unlimited" {
            return Ok(Self::Unlimited);
        }
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().map(Self::Blocks).map_err(|_| error());
        };
        match percent.parse() {
            Ok(percent) if percent > 0.0 && f64::is_finite(percent) => {
                Ok(Self::PercentOfWorkingSet(percent))
            }
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Blocks(blocks) => write!(f, "{blocks}"),
            Self::PercentOfWorkingSet(percent) => write!(f, "{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(text: &str, unique_blocks: u32) -> Option<u32> {
        text.parse::<Capacity>().unwrap().blocks(unique_blocks)
    }

    #[test]
    fn capacities_as_people_write_them() {
        assert_eq!(blocks("unlimited", 9), None);
        assert_eq!(blocks("1828", 9), Some(1828));
        assert_eq!(blocks("1%", 182_790), Some(1828));
        assert_eq!(blocks("0.001%", 9), Some(1));
        assert_eq!(blocks("1e30%", 9), Some(u32::MAX));
        for bad in ["", "0", "-5", "4294967296", "5 %%", "%", "0%", "-1%", "nan%", "inf%", "many"] {
            let error = bad.parse::<Capacity>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{bad}\" is not a capacity")), "{error}");
        }
        for text in ["unlimited", "12", "2.5%"] {
            assert_eq!(text.parse::<Capacity>().unwrap().to_string(), text);
        }
    }
}
