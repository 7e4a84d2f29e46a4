//! The planner against trying all choices.

use super::*;

/// The least stall, and the fewest blocks moved with it, of all choices that fit.
fn best(batch: &Batch, space: &[Placement], model: Model) -> Option<(BigRational, u64)> {
    let requests = batch.requests().len();
    let choices = (space.len() + 1).pow(u32::try_from(requests).unwrap());
    let mut best = None;
    for choice in 0..choices {
        let mut rest = choice;
        let mut next = || {
            let number = rest % (space.len() + 1);
            rest /= space.len() + 1;
            number.checked_sub(1).map_or_else(Placement::default, |number| space[number].clone())
        };
        let placements: Vec<_> = (0..requests).map(|_| next()).collect();
        let found = evaluate(batch, &placements, model).unwrap();
        let cost = (found.stall_blocks, found.moved_blocks);
        if found.feasible && best.as_ref().is_none_or(|best| cost < *best) {
            best = Some(cost);
        }
    }
    best
}

fn check(batch: &Batch, options: &Options, space: &[Placement]) -> bool {
    let outcome = plan(batch, options, &mut || true).unwrap();
    match (best(batch, space, options.model), outcome) {
        (Some(best), Outcome::Plan(plan)) => {
            let found = evaluate(batch, &plan.placements, options.model).unwrap();
            assert_eq!(found, plan.evaluation);
            assert_eq!((found.stall_blocks, found.moved_blocks), best, "{batch:?} {options:?}");
            assert!(plan.is_optimal() && found.feasible);
            true
        }
        (None, Outcome::Infeasible(Infeasible::Memory { least_blocks, gpu_blocks })) => {
            assert!(least_blocks > gpu_blocks);
            false
        }
        (best, outcome) => panic!("{batch:?} {options:?}: {best:?} {outcome:?}"),
    }
}

const MODELS: [Model; 4] = [
    Model { discipline: Discipline::Edf, memory: MemoryModel::Paper },
    Model { discipline: Discipline::Edf, memory: MemoryModel::Safe },
    Model { discipline: Discipline::EqualShare, memory: MemoryModel::Paper },
    Model { discipline: Discipline::EqualShare, memory: MemoryModel::Safe },
];

fn random_batch(numbers: &mut Numbers, layers_max: u64, requests_max: u64) -> Batch {
    let layers = u16::try_from(numbers.next(1, layers_max)).unwrap();
    let sizes: Vec<_> = (0..numbers.next(1, requests_max)).map(|_| numbers.next(1, 8)).collect();
    let all = sizes.iter().sum::<u64>() * u64::from(layers);
    let gpu_blocks = numbers.next((all / 2).max(1), all + 2);
    let link = Ratio::new(numbers.next(1, 16), numbers.next(1, 2));
    let requests = sizes.iter().map(|&blocks| Request::new(blocks)).collect();
    Batch::new(layers.into(), link, gpu_blocks, requests).unwrap()
}

#[test]
fn no_distance_driven_choice_is_better() {
    let mut numbers = Numbers(5);
    let (mut found, cases) = (0, 4000);
    for case in 0..cases {
        let batch = random_batch(&mut numbers, 14, 3);
        let options = Options { model: MODELS[case % 4], ..Options::default() };
        found += usize::from(check(&batch, &options, &distance_driven(batch.layers())));
    }
    assert!(cases / 2 < found && found < cases, "{found}");
}

#[test]
fn no_choice_at_all_is_better() {
    let mut numbers = Numbers(6);
    let mut found = 0;
    for case in 0..400 {
        let batch = random_batch(&mut numbers, 4, 2);
        let options = Options { model: MODELS[case % 4], space: Space::Full, ..Options::default() };
        let layers = u64::from(batch.layers());
        let sets = (1_u64..1 << layers).map(|set| {
            let chosen: Vec<_> = (1..=layers).filter(|layer| set >> (layer - 1) & 1 == 1).collect();
            offload(batch.layers(), &chosen)
        });
        found += usize::from(check(&batch, &options, &sets.collect::<Vec<_>>()));
    }
    assert!(found > 200, "{found}");
}

#[test]
fn a_full_search_is_for_few_layers() {
    let options = Options { space: Space::Full, ..Options::default() };
    let error = plan(&batch(13, 3, 70, &[3]), &options, &mut || true).unwrap_err();
    assert!(error.to_string().contains("up to 12 layers, and this has 13"), "{error}");
}

/// A search that is stopped at any moment gives a choice that fits, with a bound that holds.
#[test]
fn a_search_that_is_stopped_says_what_it_knows() {
    let mut numbers = Numbers(7);
    let mut unproven = 0;
    for _ in 0..60 {
        let batch = random_batch(&mut numbers, 14, 4);
        let options = Options::default();
        let Outcome::Plan(whole) = plan(&batch, &options, &mut || true).unwrap() else { continue };
        for steps in 0..40_u32 {
            let mut left = steps;
            let mut proceed = || {
                let proceeds = left > 0;
                left = left.saturating_sub(1);
                proceeds
            };
            match plan(&batch, &options, &mut proceed).unwrap() {
                Outcome::Plan(plan) => {
                    assert!(plan.evaluation.feasible);
                    assert!(plan.bound_blocks <= whole.evaluation.stall_blocks, "{batch:?}");
                    assert!(plan.evaluation.stall_blocks >= whole.evaluation.stall_blocks);
                    unproven += usize::from(!plan.is_optimal());
                }
                outcome => assert_eq!(outcome, Outcome::Stopped),
            }
        }
    }
    assert!(unproven > 0);
}
