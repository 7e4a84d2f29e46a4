//! How long a plan holds.

use super::*;

fn request(blocks_per_layer: u64, free_tokens: u32) -> Request {
    Request { free_tokens, ..Request::new(blocks_per_layer) }
}

fn steps(requests: Vec<Request>, gpu_blocks: u64, horizon: &Horizon) -> Window {
    let count = requests.len();
    let batch = Batch::new(9, Ratio::from_integer(3), gpu_blocks, requests).unwrap();
    let third = vec![offload(9, &[3, 6, 9]); count];
    window_steps(&batch, &third, Model::default(), horizon).unwrap()
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
        (Horizon { steps: 0, ..normal.clone() }, "the window has 0 steps: it can have 1 to 100"),
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
