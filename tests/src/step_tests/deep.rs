//! Scenarios that need what is private to `cxl-shm`: it has them, here they are run.

use cxl_shm::verify::scenarios::rack_scenarios;

use crate::rack::{Mutant, adopt};

fn run(name: &str, mutant: Mutant, seed: u64) {
    let scenarios = rack_scenarios();
    let scenario = scenarios.iter().find(|scenario| scenario.name == name);
    let scenario = scenario.unwrap_or_else(|| panic!("cxl-shm has no scenario {name}"));
    scenario.run(seed, &|rack| adopt(rack, mutant));
}

macro_rules! scenarios {
    ($($(#[$about:meta])+ $name:ident;)+) => {
        $($(#[$about])+
        ///
        /// # Panics
        /// When that is not so.
        pub fn $name(mutant: Mutant, seed: u64) {
            run(stringify!($name), mutant, seed);
        })+
    };
}

scenarios! {
    /// A process dies between the two lines of what it promised, then its host: what had reached
    /// the device is still there.
    double_buffers_are_never_forgotten;
    /// A host dies at each operation of an update of several lines: another redoes it, or finds
    /// that nothing was changed.
    holders_are_redone;
    /// A process dies at each operation of an update, and its host at each operation of the redo.
    holders_and_hosts_die;
    /// The platform profile is replaced by two hosts in turn.
    profiles_change_hands;
    /// A process dies at each operation of replacing the profile.
    profiles_are_flushed;
    /// A recoverer's process dies at each operation, and its host gives the recovery up: the next
    /// recoverer is the only one that writes.
    a_recovery_passes_on;
    /// The processes of a node are killed: nothing that they had stored comes after what others
    /// write.
    the_killed_leave_nothing;
}
