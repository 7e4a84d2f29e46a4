//! The model against known numbers, and the planner against trying all choices.

mod brute_force;
mod controller;
mod disciplines;
mod install;
mod known_case;
mod late_windows;
mod obedient_engine;
mod ranks;
mod surprises;
mod window;

use super::*;

/// A batch of requests of so many blocks a layer, without SLOs.
fn batch(layers: u16, link: u64, gpu_blocks: u64, requests: &[u64]) -> Batch {
    let requests = requests.iter().map(|&blocks| Request::new(blocks)).collect();
    Batch::new(layers.into(), Ratio::from_integer(link), gpu_blocks, requests).unwrap()
}

fn offload(layers: u16, offloaded: &[u64]) -> Placement {
    Placement::new(offloaded, layers).unwrap()
}

fn fraction(numerator: i64, denominator: i64) -> BigRational {
    BigRational::new(numerator.into(), denominator.into())
}

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    /// A number from `least` to `most`.
    fn next(&mut self, least: u64, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        least + (self.0 >> 33) % (most - least + 1)
    }

    /// A random set of layers.
    fn placement(&mut self, layers: u16) -> Placement {
        let offloaded: Vec<_> = (1..=u64::from(layers)).filter(|_| self.next(0, 2) == 0).collect();
        offload(layers, &offloaded)
    }
}
