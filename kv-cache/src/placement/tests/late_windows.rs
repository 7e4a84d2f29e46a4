//! Plans that have to hold for several steps, against trying all choices (PLAN-S4).

use super::*;

#[test]
fn where_no_plan_holds_none_of_all_choices_does() {
    let mut numbers = Numbers(77);
    let mut infeasible = 0;
    for case in 0..5_000 {
        let layers = u16::try_from(numbers.next(2, 9)).unwrap();
        let count = numbers.next(1, 3);
        let sizes: Vec<_> = (0..count).map(|_| numbers.next(1, 6)).collect();
        let all = sizes.iter().sum::<u64>() * u64::from(layers);
        let gpu_blocks = numbers.next(all / 2 + 1, all + 12);
        let request = |&blocks: &u64| Request {
            free_tokens: u32::try_from(numbers.next(0, 6)).unwrap(),
            slo_layer_times: (numbers.next(0, 1) == 0)
                .then(|| Ratio::new(u64::from(layers) * 4 + numbers.next(0, 24), 4)),
            deposit_tokens: u32::try_from(numbers.next(0, 2)).unwrap(),
            since_release: numbers.next(0, 4).checked_sub(1).map(|halves| Ratio::new(halves, 2)),
            ..Request::new(blocks)
        };
        let requests: Vec<_> = sizes.iter().map(request).collect();
        let link = Ratio::new(numbers.next(1, 12), numbers.next(1, 2));
        let batch = Batch::new(layers.into(), link, gpu_blocks, requests).unwrap();
        let steps = u32::try_from(numbers.next(1, 6)).unwrap();
        let horizon = Horizon {
            steps,
            steps_max: 20,
            block_tokens: u32::try_from(numbers.next(1, 4)).unwrap(),
            tolerated: Ratio::new(numbers.next(0, 2), 4),
        };
        let options = Options { horizon: horizon.clone(), ..Options::default() };
        let outcome = plan(&batch, &options, &mut || true).unwrap();
        let Outcome::Infeasible(Infeasible::Window { tried_all, .. }) = outcome else { continue };
        assert!(tried_all);
        infeasible += 1;
        let mut space = vec![Placement::default()];
        space.extend(distance_driven(layers));
        let choices = (0..count).map(|_| space.len()).product();
        for choice in 0..choices {
            let mut rest: usize = choice;
            let mut next = || {
                let placement = space[rest % space.len()].clone();
                rest /= space.len();
                placement
            };
            let placements: Vec<_> = (0..count).map(|_| next()).collect();
            let model = Model::default();
            let window = window_steps(&batch, &placements, model, &horizon, &mut || true).unwrap();
            assert!(
                window.steps < steps,
                "case {case}: {placements:?} holds: {batch:?} {horizon:?}"
            );
        }
    }
    assert!(infeasible > 200, "{infeasible}");
}

/// Many requests of which no choice holds, though none is hopeless alone: the search ends.
#[test]
fn after_many_plans_that_do_not_hold_the_search_says_that_it_did_not_try_all() {
    let request = |number: u64| Request {
        slo_layer_times: (number == 0).then(|| Ratio::new(3201, 100)),
        free_tokens: 4,
        ..Request::new(20 + number)
    };
    let requests: Vec<_> = (0..12).map(request).collect();
    let batch = Batch::new(32, Ratio::from_integer(40), 7000, requests).unwrap();
    let horizon = Horizon { steps: 8, ..Horizon::default() };
    let options = Options { horizon, ..Options::default() };
    let outcome = plan(&batch, &options, &mut || true).unwrap();
    let Outcome::Infeasible(reason) = outcome else { panic!("{outcome:?}") };
    assert!(matches!(reason, Infeasible::Window { tried_all: false, .. }), "{reason:?}");
    assert!(reason.to_string().contains("not all plans were tried"), "{reason}");
}

/// A search that is stopped does not say that there is no plan (PLAN-S3).
#[test]
fn a_stopped_search_is_not_infeasible() {
    let mut requests = vec![Request::new(3), Request::new(6)];
    // B stalls 0: 9 layer times. A stalls 9 blocks: 3 layer times.
    requests[1].slo_layer_times = Some(Ratio::from_integer(10));
    let batch = Batch::new(9, Ratio::from_integer(3), 70, requests).unwrap();
    let full = plan(&batch, &Options::default(), &mut || true).unwrap();
    assert!(matches!(full, Outcome::Plan(_)), "{full:?}");
    for stop in 0..40 {
        let mut asked = 0;
        let mut proceed = || {
            asked += 1;
            asked <= stop
        };
        let outcome = plan(&batch, &Options::default(), &mut proceed).unwrap();
        assert!(!matches!(outcome, Outcome::Infeasible(_)), "stopped after {stop}: {outcome:?}");
    }
}

/// A batch as a controller has it: some layers have to be offloaded, and each choice makes the next
/// token late. This is known before many choices are completed (PLAN-S5).
#[test]
fn one_step_that_is_too_long_is_known_soon() {
    let request = |number: u64| Request {
        slo_layer_times: Some(Ratio::from_integer(40)),
        since_release: Some(Ratio::from_integer(0)),
        ..Request::new(300 + 40 * number)
    };
    let requests: Vec<_> = (0..8).map(request).collect();
    let batch = Batch::new(32, Ratio::from_integer(150), 84_480, requests).unwrap();
    let (outcome, steps) = planned_in_steps(&batch);
    let Outcome::Infeasible(Infeasible::Window { tried_all, late, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(tried_all && late.is_some());
    // Most of them are for the stall that is named.
    assert!(steps < 12_000, "{steps}");
}

/// A deposit and a promise whose product is beyond 64 bits leave no choice out (PLAN-S5).
#[test]
fn a_promise_far_beyond_every_stall_changes_no_search() {
    let batch = |link, slo: Option<u64>| {
        let request = |number: u64| Request {
            slo_layer_times: slo.map(Ratio::from_integer),
            since_release: Some(Ratio::from_integer(0)),
            deposit_tokens: u32::MAX,
            ..Request::new(30 + number)
        };
        let requests = (0..4).map(request).collect();
        Batch::new(32, Ratio::from_integer(link), 3_200, requests).unwrap()
    };
    for link in 5..40 {
        let (free, free_steps) = planned_in_steps(&batch(link, None));
        let (promised, promised_steps) = planned_in_steps(&batch(link, Some(1 << 40)));
        let (Outcome::Plan(free), Outcome::Plan(promised)) = (free, promised) else {
            panic!("link {link}")
        };
        assert_eq!(promised.placements, free.placements, "link {link}");
        assert_eq!(promised_steps, free_steps, "link {link}");
    }
}

/// What comes of planning for one step, and the steps of the search.
fn planned_in_steps(batch: &Batch) -> (Outcome, u32) {
    let mut steps = 0;
    let mut proceed = || {
        steps += 1;
        true
    };
    let horizon = Horizon { steps_max: 1, ..Horizon::default() };
    let options = Options { horizon, ..Options::default() };
    let outcome = plan(batch, &options, &mut proceed).unwrap();
    (outcome, steps)
}
