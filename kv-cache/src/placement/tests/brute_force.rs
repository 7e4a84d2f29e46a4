//! The planner against trying all choices.

use super::*;

/// The least stall, and the fewest blocks moved with it, of all choices that fit.
fn best(batch: &Batch, space: &[Placement], model: Model) -> Option<(BigRational, u64)> {
    best_of(batch, space, model, &|_| true)
}

/// The same, of choices that are `allowed`.
fn best_of(
    batch: &Batch,
    space: &[Placement],
    model: Model,
    allowed: &dyn Fn(&[Placement]) -> bool,
) -> Option<(BigRational, u64)> {
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
        let better = || best.as_ref().is_none_or(|best| cost < *best);
        if found.feasible && better() && allowed(&placements) {
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
            assert!(plan.complete && found.feasible);
            true
        }
        (None, Outcome::Infeasible(Infeasible::Memory { least_blocks, gpu_blocks, .. })) => {
            assert!(least_blocks > gpu_blocks);
            false
        }
        (best, outcome) => panic!("{batch:?} {options:?}: {best:?} {outcome:?}"),
    }
}

const MODELS: [Model; 6] = [
    Model { discipline: Discipline::Edf, memory: MemoryModel::Paper },
    Model { discipline: Discipline::Edf, memory: MemoryModel::Safe },
    Model { discipline: Discipline::EqualShare, memory: MemoryModel::Paper },
    Model { discipline: Discipline::EqualShare, memory: MemoryModel::Safe },
    Model { discipline: Discipline::Edf, memory: MemoryModel::Buffers },
    Model { discipline: Discipline::EqualShare, memory: MemoryModel::Buffers },
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
        let options = Options { model: MODELS[case % 6], ..Options::default() };
        found += usize::from(check(&batch, &options, &distance_driven(batch.layers())));
    }
    assert!(cases / 2 < found && found < cases, "{found}");
}

/// Few layers, and a small request that grows beside large ones: what streams bring ahead of time is
/// much of the memory, and less when the small one has grown.
fn growing_batch(numbers: &mut Numbers, steps: u32) -> Batch {
    let layers = numbers.next(3, 4);
    let mut request = |most| Request {
        free_tokens: u32::try_from(numbers.next(0, u64::from(steps))).unwrap(),
        ..Request::new(numbers.next(1, most))
    };
    let requests = vec![request(4), request(60), request(60)];
    let most: u64 = requests.iter().map(|request| request.blocks_per_layer + 2).sum();
    let gpu_blocks = numbers.next(most * layers / 2, most * layers);
    let link = Ratio::from_integer(numbers.next(1, 120));
    Batch::new(layers, link, gpu_blocks, requests).unwrap()
}

/// Where the best choice for the last step of a window has no room in a step before it, the plan is
/// the best of the choices that have room in each step. The cases are found by search: one of 2,000.
#[test]
fn no_choice_that_fits_the_whole_window_is_better() {
    for seed in [3725, 5137, 5177] {
        let mut numbers = Numbers(seed);
        let steps = u32::try_from(numbers.next(2, 40)).unwrap();
        let batch = growing_batch(&mut numbers, steps);
        let horizon = Horizon { steps, block_tokens: 1, ..Horizon::default() };
        // All of them are of the model with the link that serves all equally.
        let options = Options { model: MODELS[3], horizon, space: Space::Full };
        let in_step = |step| options.horizon.grown(&batch, step).unwrap();
        let last = in_step(steps);
        let fits = |placements: &[Placement]| {
            let evaluated = |step| evaluate(&in_step(step), placements, options.model).unwrap();
            (1..steps).all(|step| evaluated(step).feasible)
        };
        let space = all_sets(batch.layers());
        let best = best_of(&last, &space, options.model, &fits);
        assert_ne!(best, best_of(&last, &space, options.model, &|_| true), "{seed}");
        match (best, plan(&batch, &options, &mut || true).unwrap()) {
            (Some(best), Outcome::Plan(plan)) => {
                let cost = (plan.evaluation.stall_blocks, plan.evaluation.moved_blocks);
                assert_eq!(cost, best, "{seed}");
                assert!(fits(&plan.placements) && plan.window_steps >= steps);
            }
            (None, Outcome::Infeasible(Infeasible::Memory { step, .. })) => assert_eq!(step, steps),
            (best, outcome) => panic!("{seed}: {best:?} {outcome:?}"),
        }
    }
}

/// Every set of layers but the empty one.
fn all_sets(layers: u16) -> Vec<Placement> {
    let set = |set: u64| {
        let chosen: Vec<_> =
            (1..=u64::from(layers)).filter(|layer| set >> (layer - 1) & 1 == 1).collect();
        offload(layers, &chosen)
    };
    (1..1 << layers).map(set).collect()
}

/// 256 requests: more choices than any search sees in the time of a decode step.
#[test]
fn a_search_that_is_stopped_at_once_gives_one_distance_for_all() {
    let sizes: Vec<u64> = (0..256).map(|number| 100 + number % 50).collect();
    let all = sizes.iter().sum::<u64>() * 80;
    let batch = batch(80, 3000, all * 9 / 10, &sizes);
    let outcome = plan(&batch, &Options::default(), &mut || false).unwrap();
    let Outcome::Plan(plan) = outcome else { panic!("{outcome:?}") };
    assert!(plan.evaluation.feasible && !plan.complete);
    assert!(plan.placements.iter().all(|placement| *placement == plan.placements[0]));
}

#[test]
fn no_choice_at_all_is_better() {
    let mut numbers = Numbers(6);
    let mut found = 0;
    for case in 0..400 {
        let batch = random_batch(&mut numbers, 4, 2);
        let options = Options { model: MODELS[case % 6], space: Space::Full, ..Options::default() };
        found += usize::from(check(&batch, &options, &all_sets(batch.layers())));
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
                    unproven += usize::from(!plan.complete);
                }
                outcome => assert_eq!(outcome, Outcome::Stopped),
            }
        }
    }
    assert!(unproven > 0);
}

/// That the requests have no room is known before any choice is looked at (PLAN-S6), and the room
/// that is named is enough.
#[test]
fn a_search_that_may_not_begin_says_that_there_is_no_room() {
    let mut numbers = Numbers(8);
    let mut refused = 0;
    for case in 0..600 {
        let (space, layers_max) = [(Space::Full, 6), (Space::DistanceDriven, 30)][case % 2];
        let batch = random_batch(&mut numbers, layers_max, 4);
        let options = Options { model: MODELS[case % 6], space, ..Options::default() };
        let room = |gpu_blocks| {
            let layers = u64::from(batch.layers());
            let link = Ratio::new(batch.layer_ticks(), batch.block_ticks());
            Batch::new(layers, link, gpu_blocks, batch.requests().to_vec()).unwrap()
        };
        let outcome = plan(&room(1), &options, &mut || false).unwrap();
        let Outcome::Infeasible(Infeasible::Memory { least_blocks, .. }) = outcome else {
            continue;
        };
        refused += 1;
        let one_less = plan(&room(least_blocks - 1), &options, &mut || true).unwrap();
        let gpu_blocks = least_blocks - 1;
        let memory = Infeasible::Memory { step: 1, least_blocks, gpu_blocks };
        assert_eq!(one_less, Outcome::Infeasible(memory));
        if options.model.memory != MemoryModel::Safe {
            let enough = plan(&room(least_blocks), &options, &mut || false).unwrap();
            assert!(matches!(enough, Outcome::Plan(_)), "{batch:?} {options:?}: {enough:?}");
        }
    }
    assert!(refused > 500, "{refused}");
}
