//! Broken rules that a storm notices, and what it does so that they matter.
//!
//! A storm shows orders that a kernel and a kill bring about. What takes a moment between two
//! operations of one thread, or two lock managers of which one sleeps in the middle of a round, it
//! meets once in hours; that is for the explorations.

use cxl_shm::crash::CrashPoint;
use cxl_shm::verify::Mutant;

use crate::exploration::broken;

/// Rules that a storm notices within seconds when they are broken.
const NOTICED: [Mutant; 7] = [
    Mutant::ReusesTicket,
    Mutant::PublishesAfterRelease,
    Mutant::LastGranteeOnly,
    Mutant::AcknowledgesNoHolder,
    Mutant::GrantsUnacknowledged,
    Mutant::KeepsDeadHolds,
    Mutant::StaysEvicting,
];

/// The broken rule of that name, when a storm notices it.
///
/// # Errors
/// Where it is noticed instead, or which there are.
pub fn mutant_noticed(name: &str) -> Result<Mutant, String> {
    let noticed = NOTICED.map(|mutant| format!("{mutant:?}")).join(", ");
    match Mutant::from_name(name) {
        Some(mutant) if NOTICED.contains(&mutant) => Ok(mutant),
        Some(mutant) => {
            let places = broken();
            let place = places.iter().find(|it| it.mutant == mutant);
            let scenario = place.map_or("no scenario", |it| it.scenario);
            let long = if place.is_some_and(|it| it.long) { " --long" } else { "" };
            Err(format!(
                "a storm does not notice it, the exploration of {scenario} does (`prove explore \
                 --mutants{long}`); a storm notices {noticed}"
            ))
        }
        None => Err(format!("there are {noticed}")),
    }
}

/// Whether it matters only where a lock is held while one lock manager follows another: then that
/// is what a storm is about.
pub(super) fn needs_take_overs(mutant: Mutant) -> bool {
    matches!(
        mutant,
        Mutant::LastGranteeOnly | Mutant::AcknowledgesNoHolder | Mutant::GrantsUnacknowledged
    )
}

/// Whether it matters only where blocks are held, and make room for others: then chunks are scarce.
#[must_use]
pub fn needs_scarce_chunks(mutant: Mutant) -> bool {
    matches!(mutant, Mutant::KeepsDeadHolds | Mutant::StaysEvicting)
}

/// Where a process has to die for it to matter; anywhere when there are none.
pub(super) fn points_of(mutant: Mutant) -> &'static [CrashPoint] {
    match mutant {
        Mutant::StaysEvicting => &[CrashPoint::EvictAnnounced],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_noticed_is_refused_with_the_place_where_it_is() {
        assert_eq!(mutant_noticed("ReusesTicket"), Ok(Mutant::ReusesTicket));
        let refusal = mutant_noticed("EntersByStore").unwrap_err();
        assert!(refusal.contains("next-term-granted"), "{refusal}");
        for mutant in Mutant::ALL {
            let refusal = mutant_noticed(&format!("{mutant:?}")).err().unwrap_or_default();
            assert!(!refusal.contains("no scenario"), "{refusal}");
        }
        assert!(mutant_noticed("Nothing").is_err());
    }
}
