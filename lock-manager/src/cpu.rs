//! The CPU of the thread that grants: one near the device, so that each look is short.

use core_affinity::CoreId;
use cxl_shm::region::{NearCpus, Region, Sysfs};

/// Which CPU the thread that grants is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CpuChoice {
    /// One near the memory of the region, where the kernel says which are and the process may use more
    /// than one.
    #[default]
    Near,
    /// None: the kernel chooses.
    Any,
    /// This one.
    Number(usize),
}

impl std::fmt::Display for CpuChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Near => f.write_str("near"),
            Self::Any => f.write_str("any"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

impl std::str::FromStr for CpuChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "near" => Ok(Self::Near),
            "any" => Ok(Self::Any),
            number => number.parse().map(Self::Number).map_err(|_| {
                format!("\"{number}\" is no CPU: give near, any, or the number of a CPU")
            }),
        }
    }
}

/// The CPU that was asked for cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("--cpu {number}: this process may not use that CPU; it may use {allowed}")]
pub struct CpuError {
    number: usize,
    allowed: String,
}

/// Binds the calling thread. Threads that it starts later are bound, too.
///
/// # Errors
/// [`CpuError`]: the thread stays as it is.
pub(crate) fn bind(choice: CpuChoice, region: &Region) -> Result<(), CpuError> {
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    let near = match choice {
        CpuChoice::Near => region.near_cpus(&Sysfs::default()),
        CpuChoice::Any | CpuChoice::Number(_) => None,
    };
    let Some(core) = chosen(choice, near.as_ref(), &allowed)? else {
        if choice == CpuChoice::Near {
            tracing::info!(
                "the thread that grants is bound to no CPU: the kernel says of none that it is \
                 nearest to the memory, or this process may use one alone"
            );
        }
        return Ok(());
    };
    if core_affinity::set_for_current(core) {
        tracing::info!(cpu = core.id, "the thread that grants is bound to a CPU");
    } else {
        tracing::warn!(cpu = core.id, "the system refused to bind the thread that grants to a CPU");
    }
    Ok(())
}

fn chosen(
    choice: CpuChoice,
    near: Option<&NearCpus>,
    allowed: &[CoreId],
) -> Result<Option<CoreId>, CpuError> {
    match choice {
        CpuChoice::Any => Ok(None),
        CpuChoice::Near => {
            let is_near = |core: &&CoreId| near.is_some_and(|near| near.cpus.contains(&core.id));
            // The last one: interrupts and other programs begin with the first.
            let last = allowed.iter().filter(is_near).max_by_key(|core| core.id).copied();
            Ok(last.filter(|_| allowed.len() > 1))
        }
        CpuChoice::Number(number) => {
            let found = allowed.iter().find(|core| core.id == number).copied();
            let ids = || allowed.iter().map(|core| core.id.to_string()).collect::<Vec<_>>();
            found.map(Some).ok_or_else(|| CpuError { number, allowed: ids().join(", ") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_near_cpu_that_may_be_used_is_chosen() {
        let allowed: Vec<_> = [0, 1, 4, 5].map(|id| CoreId { id }).into();
        let near = NearCpus { memory_node: 1, cpus: vec![4, 5, 6, 7] };
        let of = |choice, near: Option<&NearCpus>| {
            chosen(choice, near, &allowed).map(|core| core.map(|core| core.id))
        };
        assert_eq!(of(CpuChoice::Near, Some(&near)), Ok(Some(5)));
        assert_eq!(of(CpuChoice::Near, None), Ok(None));
        assert_eq!(of(CpuChoice::Any, Some(&near)), Ok(None));
        assert_eq!(of(CpuChoice::Number(1), None), Ok(Some(1)));
        let refused = of(CpuChoice::Number(2), None).unwrap_err().to_string();
        assert!(refused.contains("it may use 0, 1, 4, 5"), "{refused}");
        let alone = chosen(CpuChoice::Near, Some(&near), &[CoreId { id: 4 }]);
        assert_eq!(alone, Ok(None), "nothing to choose");
    }

    #[test]
    fn a_choice_is_read_as_it_is_written() {
        for choice in [CpuChoice::Near, CpuChoice::Any, CpuChoice::Number(12)] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("-1".parse::<CpuChoice>().unwrap_err().contains("near, any"));
    }
}
