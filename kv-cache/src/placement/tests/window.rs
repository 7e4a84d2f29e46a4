//! How long a plan holds.

use super::*;

fn request(blocks_per_layer: u64, free_tokens: u32) -> Request {
    Request { free_tokens, ..Request::new(blocks_per_layer) }
}

fn steps(requests: Vec<Request>, gpu_blocks: u64, horizon: &Horizon) -> Window {
    let count = requests.len();
    let batch = Batch::new(9, Ratio::from_integer(3), gpu_blocks, requests).unwrap();
    let third = vec![offload(9, &[3, 6, 9]); count];
    window_steps(&batch, &third, Model::default(), horizon, &mut || true).unwrap()
}

#[test]
fn memory_ends_a_window_when_a_request_takes_another_block() {
    let horizon = Horizon::default();
    // Six layers are resident, and the buffer holds one: 7 blocks for each block of a layer.
    let window =
        |free_tokens, gpu_blocks| steps(vec![request(3, free_tokens)], gpu_blocks, &horizon).steps;
    assert_eq!(window(0, 20), 0);
    assert_eq!(window(0, 21), 1);
    assert_eq!(window(5, 21), 6);
    assert_eq!(window(5, 28), 22);
    assert_eq!(window(0, 1000), 100);
    let short = Horizon { block_tokens: 1, steps_max: 10, ..Horizon::default() };
    assert_eq!(steps(vec![request(3, 0)], 42, &short).steps, 4);
    assert_eq!(steps(vec![request(3, 0), request(3, 2)], 70, &short).steps, 4);
}

#[test]
fn late_tokens_end_a_window_unless_they_are_tolerated_or_deposited() {
    let slo = |numerator, denominator, deposit_tokens| Request {
        slo_layer_times: Some(Ratio::new(numerator, denominator)),
        deposit_tokens,
        ..request(6, 99)
    };
    // 9 layers without a stall: the stream has two layer times for 6 blocks.
    let tolerating = |numerator, denominator| Horizon {
        tolerated: Ratio::new(numerator, denominator),
        ..Horizon::default()
    };
    let late = |request, horizon: &Horizon| steps(vec![request], 1000, horizon);
    assert_eq!(late(slo(9, 1, 0), &tolerating(0, 1)), Window { steps: 100, late: None });
    assert_eq!(late(slo(89, 10, 0), &tolerating(0, 1)), Window { steps: 0, late: Some(1) });
    assert_eq!(late(slo(89, 10, 0), &tolerating(1, 1)), Window { steps: 100, late: None });
    // Each step takes a tenth longer than promised: a token of 8.9 lasts 89 steps.
    assert_eq!(late(slo(89, 10, 1), &tolerating(0, 1)), Window { steps: 89, late: Some(1) });
    // From then on all are late: 9 of 98 are under a tenth, 10 of 99 are over it.
    assert_eq!(late(slo(89, 10, 1), &tolerating(1, 10)).steps, 98);
}

#[test]
fn a_plan_is_made_for_the_last_step_of_its_window() {
    let batch = batch(9, 3, 70, &[3, 6]);
    let planned = |steps| {
        let horizon = Horizon { steps, ..Horizon::default() };
        plan(&batch, &Options { horizon, ..Options::default() }, &mut || true).unwrap()
    };
    let Outcome::Plan(now) = planned(1) else { panic!() };
    assert_eq!(now.window_steps, 1, "B has no room for another block of each request");
    let Outcome::Plan(longer) = planned(2) else { panic!() };
    assert!(longer.window_steps >= 17);
    assert!(longer.evaluation.stall_blocks > now.evaluation.stall_blocks);
    let Outcome::Infeasible(Infeasible::Memory { .. }) = planned(90) else { panic!() };
}

#[test]
fn a_plan_that_is_too_slow_says_which_request_waits() {
    let mut requests = vec![Request::new(3), Request::new(6)];
    requests[1].slo_layer_times = Some(Ratio::new(17, 2));
    let batch = Batch::new(9, Ratio::from_integer(3), 70, requests).unwrap();
    let outcome = plan(&batch, &Options::default(), &mut || true).unwrap();
    let Outcome::Infeasible(reason) = outcome else { panic!("{outcome:?}") };
    assert_eq!(
        reason.to_string(),
        "the best plan stalls 0 block-transfer times, and holds for 0 decode steps of 1, as \
         request 2 has too many late tokens: pause a request, shorten the window, or tolerate more \
         late tokens"
    );
}

#[test]
fn a_horizon_that_is_none_says_why() {
    let mut batch = batch(9, 3, 70, &[3, 6]);
    let error = |batch: &Batch, horizon| {
        let options = Options { horizon, ..Options::default() };
        plan(batch, &options, &mut || true).unwrap_err().to_string()
    };
    let normal = Horizon::default();
    for (horizon, said) in [
        (
            Horizon { steps: 0, ..normal.clone() },
            "the window has 0 steps: it can have 1 to 100, the most",
        ),
        (Horizon { steps: 101, ..normal.clone() }, "the window has 101 steps"),
        (Horizon { block_tokens: 0, ..normal.clone() }, "a block has 0 tokens"),
        (
            Horizon { tolerated: Ratio::new(3, 2), ..normal.clone() },
            "3/2 of the tokens may be late",
        ),
    ] {
        let found = error(&batch, horizon);
        assert!(found.contains(said), "{found}");
    }
    let mut requests = batch.requests().to_vec();
    requests[1].slo_layer_times = Some(Ratio::from_integer(0));
    batch = Batch::new(9, batch.link(), 70, requests).unwrap();
    assert!(error(&batch, normal).contains("the SLO of request 2 is 0 layer times"));
}

/// Step after step, reader after reader (PLAN-W1, PLAN-D2).
fn window_by_steps(batch: &Batch, placements: &[Placement], horizon: &Horizon) -> Window {
    let big = |ratio: Ratio<u64>| fraction_of(*ratio.numer(), *ratio.denom());
    let whole = |number: u32| fraction_of(number.into(), 1);
    let requests = batch.requests();
    let deposited = |request: &Request| {
        big(request.slo_layer_times.unwrap_or_default()) * whole(request.deposit_tokens)
    };
    let mut released: Vec<_> = requests.iter().map(deposited).collect();
    let mut late = vec![0; requests.len()];
    let (mut time, mut window) = (whole(0), Window { steps: 0, late: None });
    for step in 1..=horizon.steps_max {
        let grown = horizon.grown(batch, step).unwrap();
        let cost = evaluate(&grown, placements, Model::default()).unwrap();
        if !cost.feasible {
            break;
        }
        time += cost.stall_blocks / big(batch.link()) + whole(batch.layers().into());
        let mut too_many = None;
        for (number, request) in requests.iter().enumerate() {
            let Some(slo) = request.slo_layer_times else { continue };
            let on_time = &released[number] + big(slo);
            late[number] += u32::from(time > on_time);
            released[number] = on_time.max(time.clone());
            if whole(late[number]) > big(horizon.tolerated) * whole(step) {
                too_many = too_many.or(Some(number + 1));
            }
        }
        match too_many {
            None => window = Window { steps: step, late: None },
            Some(_) => window.late = too_many,
        }
    }
    window
}

fn fraction_of(numerator: u64, denominator: u64) -> BigRational {
    BigRational::new(numerator.into(), denominator.into())
}

#[test]
fn many_steps_at_once_are_as_late_as_each_of_them() {
    let mut numbers = Numbers(9);
    let (mut ended, mut whole, mut short) = (0, 0, 0);
    for _ in 0..2000 {
        let small = |numbers: &mut Numbers, most| u32::try_from(numbers.next(0, most)).unwrap();
        let mut request = |layers: u64| Request {
            free_tokens: small(&mut numbers, 20),
            slo_layer_times: (numbers.next(0, 3) > 0)
                .then(|| Ratio::new(layers * 8 + numbers.next(0, 20), numbers.next(7, 9))),
            deposit_tokens: small(&mut numbers, 12),
            ..Request::new(numbers.next(1, 8))
        };
        let requests = vec![request(9), request(9)];
        let gpu_blocks = numbers.next(60, 400);
        let batch = Batch::new(9, Ratio::from_integer(3), gpu_blocks, requests).unwrap();
        let horizon = Horizon {
            steps: 1,
            steps_max: 1 + small(&mut numbers, 70),
            block_tokens: 1 + small(&mut numbers, 16),
            tolerated: Ratio::new(numbers.next(0, 10), 10),
        };
        let third = vec![offload(9, &[3, 6, 9]); 2];
        let found = window_steps(&batch, &third, Model::default(), &horizon, &mut || true).unwrap();
        let expected = window_by_steps(&batch, &third, &horizon);
        assert_eq!(found, expected, "{batch:?} {horizon:?}");
        ended += usize::from(found.late.is_some());
        whole += usize::from(found.steps == horizon.steps_max);
        short += usize::from(found.late.is_none() && found.steps < horizon.steps_max);
    }
    assert!(ended.min(whole).min(short) > 100, "{ended} {whole} {short}");
}

#[test]
fn numbers_at_the_end_of_their_type_end_at_once() {
    let slo_layer_times = Some(Ratio::new(1, 1_000_000));
    let waits = Request { slo_layer_times, deposit_tokens: u32::MAX, ..request(1, u32::MAX) };
    let longest = Horizon {
        steps_max: u32::MAX,
        block_tokens: u32::MAX,
        tolerated: Ratio::from_integer(1),
        ..Horizon::default()
    };
    assert_eq!(steps(vec![waits.clone()], 1000, &longest).steps, 1_000_000);
    let grows = Horizon { block_tokens: 1, ..longest };
    assert_eq!(steps(vec![Request { free_tokens: 10, ..waits }], 1000, &grows).steps, 152);
}
