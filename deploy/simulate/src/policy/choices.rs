//! Policies that choose placements for a batch and know nothing of time.

use kv_cache::placement::{Options, Outcome, Placement, PlanError, Space, distance_driven, plan};

use super::Aim;
use crate::machine::{Machine, Running};

/// Steps of a search after which its best plan is taken.
const SEARCH_STEPS: u64 = 5_000;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    /// This distance for all; 0 offloads nothing.
    Distance(u16),
    /// One distance for all: the fewest offloaded layers that fit.
    Fewest,
    /// One distance for all: the most offloaded layers with which an iteration takes no longer.
    Promise { slo_ns: u64 },
    /// From nothing offloaded, one more layer of the request with the most resident blocks.
    Largest,
    /// The planner's.
    Planned(Space),
}

impl Choice {
    /// The distance that a full batch needs of requests that are twice as long as the mean. Where none
    /// suffices, every second layer is offloaded, and requests wait.
    pub(super) fn fixed(aim: &Aim) -> Self {
        let machine = &aim.machine;
        let long = Running { id: 0, tokens: aim.mean_tokens * 2 };
        let full = vec![long; aim.batch_max.max(1)];
        let fits = |distance: &u16| fits_all(machine, &full, &same(machine, &full, *distance));
        let distances = distances(machine);
        let distance = distances.iter().copied().find(fits).or(distances.last().copied());
        Self::Distance(distance.unwrap_or(0))
    }

    /// Placements with which `running` fits; `None` when there are none.
    pub(super) fn choose(
        &self,
        machine: &Machine,
        running: &[Running],
    ) -> Result<Option<Vec<Placement>>, PlanError> {
        let all = |distance: u16| same(machine, running, distance);
        Ok(match self {
            Self::Distance(distance) => {
                Some(all(*distance)).filter(|it| fits_all(machine, running, it))
            }
            Self::Fewest => {
                let mut candidates = distances(machine).into_iter().map(all);
                candidates.find(|it| fits_all(machine, running, it))
            }
            Self::Promise { slo_ns } => promise(machine, running, *slo_ns)?,
            Self::Largest => largest(machine, running),
            Self::Planned(space) => {
                let options = Options { space: *space, ..Options::default() };
                let mut steps = 0;
                let mut proceed = || {
                    steps += 1;
                    steps < SEARCH_STEPS
                };
                match plan(&machine.batch(running)?, &options, &mut proceed)? {
                    Outcome::Plan(plan) => Some(plan.placements),
                    _ => None,
                }
            }
        })
    }
}

/// 0, and the distances of the planner: from few offloaded layers to many.
fn distances(machine: &Machine) -> Vec<u16> {
    let first = |placement: &Placement| placement.offloaded().first().copied();
    let driven = distance_driven(machine.layers());
    std::iter::once(0).chain(driven.iter().filter_map(first)).collect()
}

fn same(machine: &Machine, running: &[Running], distance: u16) -> Vec<Placement> {
    vec![Placement::every(distance, machine.layers()); running.len()]
}

fn fits_all(machine: &Machine, running: &[Running], placements: &[Placement]) -> bool {
    machine.iteration(running, placements).is_ok_and(|iteration| iteration.fits)
}

fn promise(
    machine: &Machine,
    running: &[Running],
    slo_ns: u64,
) -> Result<Option<Vec<Placement>>, PlanError> {
    let (mut kept, mut fastest) = (None, None);
    for distance in distances(machine) {
        let placements = same(machine, running, distance);
        let iteration = machine.iteration(running, &placements)?;
        let total_ns = iteration.total_ns(machine.layers());
        if !iteration.fits {
            continue;
        }
        if total_ns <= slo_ns {
            kept = Some(placements.clone());
        }
        if fastest.as_ref().is_none_or(|(least_ns, _)| total_ns < *least_ns) {
            fastest = Some((total_ns, placements));
        }
    }
    Ok(kept.or(fastest.map(|(_, placements)| placements)))
}

fn largest(machine: &Machine, running: &[Running]) -> Option<Vec<Placement>> {
    let choices: Vec<_> =
        distances(machine).iter().map(|it| Placement::every(*it, machine.layers())).collect();
    let mut chosen = vec![0; running.len()];
    loop {
        let placements: Vec<_> = chosen.iter().map(|at: &usize| choices[*at].clone()).collect();
        if fits_all(machine, running, &placements) {
            return Some(placements);
        }
        let resident = |(at, request): (&usize, &Running)| {
            let layers = usize::from(machine.layers()) - choices[*at].offloaded().len();
            request.blocks() * layers as u64
        };
        let may_grow = |at: &usize| *at + 1 < choices.len();
        let sizes = chosen.iter().zip(running).enumerate().filter(|(_, (at, _))| may_grow(at));
        let (next, _) = sizes.max_by_key(|(number, it)| (resident(*it), *number))?;
        chosen[next] += 1;
    }
}
