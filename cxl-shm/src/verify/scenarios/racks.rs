//! Scenarios on simulated racks that need what is private to this crate: death between a store and
//! its publish. `prove mutate` runs them with one flush or fence removed, as it does the public
//! ones.

use std::cell::OnceCell;

use super::double_buffers::double_buffers_are_never_forgotten;
use super::intents::{holders_and_hosts_die, holders_are_redone};
use super::passing::{a_recovery_passes_on, the_killed_leave_nothing};
use super::profiles::{profiles_are_flushed, profiles_change_hands};
use crate::layout::{Geometry, Layout, Superblock, format_superblock};
use crate::verify::simulated::{DeviceImage, Settings, SimulatedRack};

/// A scenario by its name.
#[derive(Clone, Copy, Debug)]
pub struct RackScenario {
    /// Its name.
    pub name: &'static str,
    run: fn(&Racks<'_>),
}

impl RackScenario {
    /// Runs it under `seed`; `made` hears of every rack before anything happens on it.
    ///
    /// # Panics
    /// When something does not hold.
    pub fn run(&self, seed: u64, made: &dyn Fn(&SimulatedRack)) {
        (self.run)(&Racks { seed, made, image: OnceCell::new() });
    }
}

/// All of them.
#[must_use]
pub fn rack_scenarios() -> [RackScenario; 7] {
    [
        RackScenario {
            name: "double_buffers_are_never_forgotten",
            run: double_buffers_are_never_forgotten,
        },
        RackScenario { name: "holders_are_redone", run: holders_are_redone },
        RackScenario { name: "holders_and_hosts_die", run: holders_and_hosts_die },
        RackScenario { name: "profiles_change_hands", run: profiles_change_hands },
        RackScenario { name: "profiles_are_flushed", run: profiles_are_flushed },
        RackScenario { name: "a_recovery_passes_on", run: a_recovery_passes_on },
        RackScenario { name: "the_killed_leave_nothing", run: the_killed_leave_nothing },
    ]
}

/// Where the racks of a scenario come from.
pub(super) struct Racks<'a> {
    seed: u64,
    made: &'a dyn Fn(&SimulatedRack),
    image: OnceCell<DeviceImage>,
}

/// Hosts of a rack: two that take part, and one that looks on.
pub(super) const HOSTS: usize = 3;
/// The one that looks on: nothing is in its caches before it looks.
pub(super) const OBSERVER: usize = 2;

impl Racks<'_> {
    /// A rack with a formatted region; `run` tells those of a scenario apart.
    ///
    /// Even seeds have caches that do nothing by themselves and writes that stay on their way until
    /// they are read back; odd ones busy caches, where a sound protocol has to come through too.
    pub(super) fn formatted(&self, run: u64) -> SimulatedRack {
        let geometry = geometry();
        let bytes = geometry.region_bytes;
        let image = self.image.get_or_init(|| {
            let rack = SimulatedRack::sticky(1, bytes);
            format_superblock(&rack.host(0), &Superblock::new([1, 2], geometry, [3; 6]), |_, _| ())
                .expect("the region fits");
            rack.image()
        });
        let seed = self.seed.wrapping_mul(1 << 32).wrapping_add(run);
        let settings = if self.seed.is_multiple_of(2) {
            Settings { seed, ..Settings::sticky(HOSTS, bytes) }
        } else {
            Settings::adversarial(HOSTS, bytes, seed)
        };
        let rack = SimulatedRack::with_image(settings, image);
        (self.made)(&rack);
        rack
    }
}

fn geometry() -> Geometry {
    Geometry {
        region_bytes: 1 << 20,
        nodes: 2,
        locks: 8,
        chunk_bytes: 64 << 10,
        area_lines: 1,
        host_words: 0,
    }
}

/// How the regions of all racks are laid out.
pub(super) fn layout() -> Layout {
    Layout::new(geometry()).expect("the geometry is a valid one")
}
