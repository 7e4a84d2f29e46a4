//! Dying on command: what crash points do in programs built to be killed.

use std::env;
use std::sync::{Mutex, PoisonError};

use rustix::process::{Signal, getpid, kill_process};

use super::CrashPoint;

/// Environment variable that arms a process: `<name>:<nth>`, such as `IntentOpen:3`.
pub const ARM_VARIABLE: &str = "RACKLINE_CRASH_AT";

/// When this process dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Armed {
    /// Where.
    pub point: CrashPoint,
    /// At which visit, counted from 1 and from the start of the process.
    pub nth: u64,
}

/// Why a process was not armed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArmError {
    /// Not a point and a number.
    #[error(
        "{ARM_VARIABLE}={found}: write it as the name of a crash point, a colon and a number from \
         1, such as IntentOpen:3"
    )]
    Malformed {
        /// What was found.
        found: String,
    },
    /// There is no such point.
    #[error("there is no crash point {name:?}; cxl_shm::crash lists them")]
    Unknown {
        /// The name asked for.
        name: String,
    },
}

struct State {
    armed: Option<Armed>,
    visits: [u64; CrashPoint::ALL.len()],
}

static STATE: Mutex<State> = Mutex::new(State { armed: None, visits: [0; CrashPoint::ALL.len()] });

fn with<T>(act: impl FnOnce(&mut State) -> T) -> T {
    // Counters are right after a panic too.
    act(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Arms this process, or disarms it.
pub fn arm(armed: Option<Armed>) {
    with(|state| state.armed = armed);
}

/// Arms this process as [`ARM_VARIABLE`] says; does nothing when that is not set.
///
/// # Errors
/// [`ArmError`].
pub fn arm_from_environment() -> Result<Option<Armed>, ArmError> {
    let Some(text) = env::var_os(ARM_VARIABLE) else {
        return Ok(None);
    };
    let armed = parse(&text.to_string_lossy())?;
    arm(Some(armed));
    Ok(Some(armed))
}

fn parse(text: &str) -> Result<Armed, ArmError> {
    let malformed = || ArmError::Malformed { found: text.to_owned() };
    let (name, nth) = text.split_once(':').ok_or_else(malformed)?;
    let nth = nth.parse().ok().filter(|nth| *nth > 0).ok_or_else(malformed)?;
    let point =
        CrashPoint::from_name(name).ok_or_else(|| ArmError::Unknown { name: name.to_owned() })?;
    Ok(Armed { point, nth })
}

/// How often this process has visited each point.
#[must_use]
pub fn visits() -> Vec<(CrashPoint, u64)> {
    with(|state| CrashPoint::ALL.iter().copied().zip(state.visits).collect())
}

pub(super) fn visit(point: CrashPoint) {
    let dies = with(|state| {
        let count = &mut state.visits[point as usize];
        *count += 1;
        state.armed == Some(Armed { point, nth: *count })
    });
    if dies {
        die();
    }
}

/// Ends the process as `kill -9` does: no destructor runs, nothing is flushed.
fn die() -> ! {
    // Cannot be refused: the signal is sent to ourselves. Should it ever be, the process stops
    // here all the same.
    let _ = kill_process(getpid(), Signal::KILL);
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_armed_by_name_and_number() {
        let point = CrashPoint::IntentWritten;
        assert_eq!(parse("IntentWritten:2"), Ok(Armed { point, nth: 2 }));
        for text in ["IntentWritten", "IntentWritten:", "IntentWritten:0", "IntentWritten:x", ""] {
            assert!(matches!(parse(text), Err(ArmError::Malformed { .. })), "{text}");
        }
        let error = parse("Nowhere:1").unwrap_err();
        assert_eq!(error, ArmError::Unknown { name: "Nowhere".to_owned() });
    }

    #[test]
    fn names_are_unique_and_lead_back() {
        for point in CrashPoint::ALL {
            assert_eq!(CrashPoint::from_name(point.name()), Some(*point));
        }
    }

    #[test]
    fn visits_are_counted() {
        let count = || visits().into_iter().find(|(point, _)| *point == CrashPoint::IntentOpen);
        let (_, before) = count().unwrap();
        arm(Some(Armed { point: CrashPoint::IntentOpen, nth: u64::MAX }));
        visit(CrashPoint::IntentOpen);
        arm(None);
        // Other tests of this process visit points too.
        assert!(count().unwrap().1 > before);
    }
}
