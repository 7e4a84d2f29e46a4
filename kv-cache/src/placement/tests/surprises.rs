//! What an engine may do with the controller at any time, and requests that no plan can have.

use super::*;

const EXPECTED: Measured = Measured { layer_ns: 1000, block_ns: Some(1000) };

fn decide(controller: &mut Controller) -> Decision {
    controller.decide(&mut || true).unwrap()
}

#[test]
fn a_request_that_comes_during_an_iteration_gets_no_token_of_it() {
    let mut controller = Controller::new(Policy::new(9, 1000), EXPECTED);
    controller.arrive(Job { id: 1, tokens: 10, slo_ns: None });
    decide(&mut controller);
    controller.arrive(Job { id: 2, tokens: 10, slo_ns: None });
    controller.stepped(10, EXPECTED);
    assert_eq!(controller.release(10), [(1, 1)]);
    decide(&mut controller);
    controller.stepped(20, EXPECTED);
    assert_eq!(controller.release(20), [(1, 1), (2, 1)]);
}

#[test]
fn a_request_that_waits_for_a_place_in_the_batch_gets_one() {
    let horizon = Horizon { block_tokens: 100_000, ..Horizon::default() };
    let policy = Policy { horizon, ..Policy::new(2, 1 << 20) };
    let mut controller = Controller::new(policy, EXPECTED);
    let last = REQUESTS_MAX as u64;
    (0..=last).for_each(|id| controller.arrive(Job { id, tokens: 1, slo_ns: None }));
    for _ in 0..64 {
        decide(&mut controller);
        assert!(controller.running().all(|id| id != last));
        controller.stepped(0, EXPECTED);
    }
    let decision = decide(&mut controller);
    assert!(controller.running().any(|id| id == last), "{decision:?}");
    assert_eq!(controller.running().count(), REQUESTS_MAX);
    assert!(matches!(decision.actions[..2], [Action::Pause(_), Action::Resume(_)]), "{decision:?}");
}

#[test]
fn a_promise_that_nothing_keeps_pauses_nobody() {
    let mut controller = Controller::new(Policy::new(9, 1000), EXPECTED);
    controller.arrive(Job { id: 1, tokens: 10, slo_ns: Some(1) });
    (2..9).for_each(|id| controller.arrive(Job { id, tokens: 100, slo_ns: None }));
    let decision = decide(&mut controller);
    assert_eq!(controller.paused().count(), 0, "{decision:?}");
}

#[test]
fn a_search_that_was_stopped_takes_what_fits_and_pauses_nobody() {
    let horizon = Horizon { block_tokens: 1000, ..Horizon::default() };
    let expected = Measured { layer_ns: 3000, block_ns: Some(1000) };
    let mut controller = Controller::new(Policy { horizon, ..Policy::new(9, 70) }, expected);
    // Without stalls 27,000 ns: only some placements keep it.
    controller.arrive(Job { id: 1, tokens: 2999, slo_ns: None });
    controller.arrive(Job { id: 2, tokens: 5999, slo_ns: Some(30_000) });
    let decision = controller.decide(&mut || false).unwrap();
    assert_eq!(controller.running().count(), 2, "{decision:?}");
    controller.stepped(0, expected);
    assert_eq!(decide(&mut controller).trigger, Some(Trigger::WindowEnd), "it is searched again");
}

/// Eight long requests of which every choice makes a token late: a search of few steps knows it, and a
/// request is paused (PLAN-S5). Before, the search was stopped, and all of them ran late.
#[test]
fn a_batch_that_keeps_no_promise_is_made_smaller_by_a_short_search() {
    let expected = Measured { layer_ns: 150_000, block_ns: Some(1000) };
    let mut controller = Controller::new(Policy::new(32, 84_480), expected);
    for id in 0..8 {
        let tokens = (300 + 40 * id) * 16 - 9;
        controller.arrive(Job { id, tokens, slo_ns: Some(40 * 150_000) });
    }
    let decide = |controller: &mut Controller| {
        let mut steps = 0;
        let mut proceed = || {
            steps += 1;
            steps < 5_000
        };
        controller.decide(&mut proceed).unwrap();
    };
    // The first token of a request is never late.
    decide(&mut controller);
    assert_eq!(controller.running().count(), 8);
    controller.stepped(9_000_000, expected);
    controller.release(9_000_000);
    decide(&mut controller);
    assert!(controller.paused().count() > 0);
}

#[test]
fn a_bad_request_is_rejected_and_the_others_run() {
    for bad in [
        Job { id: 2, tokens: 10, slo_ns: Some(0) },
        Job { id: 2, tokens: 1 << 40, slo_ns: None },
        Job { id: 2, tokens: u64::MAX, slo_ns: None },
    ] {
        let mut controller = Controller::new(Policy::new(9, 1000), EXPECTED);
        controller.arrive(Job { id: 1, tokens: 10, slo_ns: None });
        decide(&mut controller);
        controller.arrive(bad);
        let decision = decide(&mut controller);
        let reason = |action: &Action| match action {
            Action::Reject { id: 2, reason } => Some(reason.to_string()),
            _ => None,
        };
        let reason = decision.actions.iter().find_map(reason).unwrap();
        assert!(reason.contains("promise") || reason.contains("blocks per layer"), "{reason}");
        assert_eq!(controller.running().collect::<Vec<_>>(), [1]);
    }
}

#[test]
fn requests_that_cannot_be_counted_together_run_one_after_the_other() {
    // The denominator of the link rate is close to 2^32.
    let expected = Measured { layer_ns: 4_294_967_291, block_ns: Some(4_294_967_279) };
    let horizon = Horizon { block_tokens: 1, ..Horizon::default() };
    let policy = Policy { horizon, ..Policy::new(9, 1 << 32) };
    let mut controller = Controller::new(policy, expected);
    (1..=2).for_each(|id| controller.arrive(Job { id, tokens: 80_000_000, slo_ns: None }));
    decide(&mut controller);
    assert_eq!(controller.running().collect::<Vec<_>>(), [1]);
    assert_eq!(controller.paused().collect::<Vec<_>>(), [2]);
}

#[test]
fn the_time_since_the_last_release_is_part_of_a_plan() {
    let mut bad = Vec::new();
    for gpu in 9..=18 {
        for block_ns in [100, 200, 300, 400, 500] {
            if let Some(found) = late_after_arrival(gpu, block_ns) {
                bad.push(found);
            }
        }
    }
    assert!(bad.is_empty(), "{} of 50: {}", bad.len(), bad[0]);
}

fn late_after_arrival(gpu: u64, block_ns: u64) -> Option<String> {
    // 9 layers of 100 ns: 900 ns alone; the promise is 1000 ns.
    let expected = Measured { layer_ns: 100, block_ns: Some(block_ns) };
    let horizon = Horizon { block_tokens: 1_000_000, ..Horizon::default() };
    let mut controller = Controller::new(Policy { horizon, ..Policy::new(9, gpu) }, expected);
    let mut reader = Deposit::new(1000_u64);
    controller.arrive(Job { id: 1, tokens: 1, slo_ns: Some(1000) });
    let mut now = 0;
    decide(&mut controller);
    for _ in 0..2 {
        now += 900;
        controller.stepped(now, expected);
        reader.put(now);
        controller.release(now);
        reader.release(&now);
        decide(&mut controller);
    }
    // Token 1 was released at 900, token 2 is ready at 1800, and due at 1900: deposited.
    assert_eq!(controller.deposited(1), 1);
    controller.arrive(Job { id: 2, tokens: 1, slo_ns: None });
    let d = decide(&mut controller);
    let running: Vec<_> = controller.running().collect();
    if running.len() < 2 {
        return None;
    }
    // What the iteration takes, by the model.
    let mut placements = vec![Placement::default(); 2];
    for a in &d.actions {
        if let Action::Place { id, placement } = a {
            placements[running.iter().position(|r| r == id).unwrap()] = placement.clone();
        }
    }
    let b = Batch::new(9, Ratio::new(100, block_ns), gpu, vec![Request::new(1); 2]).unwrap();
    let cost = evaluate(&b, &placements, Model::default()).unwrap();
    assert!(cost.feasible);
    let took = 900 + u64::try_from(cost.stall_blocks.to_integer()).unwrap() * block_ns;
    now += took;
    reader.put(now);
    while let Some(at) = reader.next_release() {
        reader.release(&at);
    }
    (reader.late() > 0).then(|| {
        format!("gpu {gpu}, block {block_ns} ns: the iteration takes {took} ns, alpha is 0: {d:?}")
    })
}

#[test]
fn a_name_that_is_used_again_is_another_request() {
    let horizon = Horizon { block_tokens: 1, ..Horizon::default() };
    let expected = Measured { layer_ns: 3000, block_ns: Some(1000) };
    let controller = Controller::new(Policy { horizon, ..Policy::new(9, 50) }, expected);
    let (mut lead, mut rank) = (Lead::new(controller, 9), Rank::new(9));
    let job = Job { id: 1, tokens: 6, slo_ns: None };
    lead.arrive(job);
    let (_, message) = lead.decide(&mut || true).unwrap();
    let moves = rank.install(&message.unwrap().encode()).unwrap();
    assert!(!moves.is_empty());
    // It is given up and comes again: all its layers are in the engine's memory.
    lead.finish(1);
    lead.arrive(job);
    let (_, message) = lead.decide(&mut || true).unwrap();
    assert_eq!(rank.install(&message.unwrap().encode()).unwrap(), moves);
    assert_eq!(lead.decide(&mut || true).unwrap().1, None);
}

#[test]
fn a_request_that_fits_with_all_layers_offloaded_runs() {
    let mut controller = Controller::new(Policy::new(4, 15), EXPECTED);
    controller.arrive(Job { id: 1, tokens: 159, slo_ns: None });
    let decision = decide(&mut controller);
    let placement = Placement::every(1, 4);
    assert_eq!(decision.actions, [Action::Place { id: 1, placement }]);
    // Every second layer of 10 blocks: 20 stay, and 10 pass through the buffer.
    let reason = plan(&batch(4, 3, 15, &[10]), &Options::default(), &mut || true).unwrap();
    let memory = Infeasible::Memory { step: 1, least_blocks: 30, gpu_blocks: 15 };
    assert_eq!(reason, Outcome::Infeasible(memory));
}

#[test]
fn an_iteration_of_which_no_rank_tells_has_a_token() {
    let mut lead = Lead::new(Controller::new(Policy::new(9, 70), EXPECTED), 9);
    lead.arrive(Job { id: 1, tokens: 6, slo_ns: None });
    lead.decide(&mut || true).unwrap();
    lead.stepped(10, &[]);
    assert_eq!(lead.release(10), [(1, 1)]);
}

#[test]
fn requests_that_wait_and_cannot_run_cause_no_plan_in_each_iteration() {
    let horizon = Horizon { block_tokens: 100_000, ..Horizon::default() };
    let policy = Policy { horizon, pause_steps_max: 3, run_steps_min: 40, ..Policy::new(9, 60) };
    let mut controller = Controller::new(policy, EXPECTED);
    (0..3).for_each(|id| controller.arrive(Job { id, tokens: 600_000, slo_ns: None }));
    let mut plans = 0;
    for _ in 0..200 {
        plans += usize::from(decide(&mut controller).trigger.is_some());
        controller.stepped(0, EXPECTED);
    }
    assert!(plans < 40, "{plans} plans in 200 iterations");
}

#[test]
fn a_name_that_comes_twice_is_one_request() {
    let mut controller = Controller::new(Policy::new(9, 1000), EXPECTED);
    controller.arrive(Job { id: 1, tokens: 10, slo_ns: None });
    controller.arrive(Job { id: 1, tokens: 20, slo_ns: None });
    let decision = decide(&mut controller);
    assert_eq!(decision.actions.len(), 1, "{decision:?}");
    assert_eq!(controller.running().count(), 1);
}

#[test]
fn the_first_token_of_a_request_is_not_late() {
    let horizon = Horizon { block_tokens: 100_000, ..Horizon::default() };
    let slow = Measured { layer_ns: 100, block_ns: Some(1000) };
    let mut controller = Controller::new(Policy { horizon, ..Policy::new(9, 15) }, slow);
    // Together they take longer than promised. Alone they do not.
    (1..3).for_each(|id| controller.arrive(Job { id, tokens: 1, slo_ns: Some(1000) }));
    let decision = decide(&mut controller);
    assert_eq!(controller.running().count(), 2, "{decision:?}");
}

#[test]
fn ranks_take_a_plan_of_any_number_of_requests() {
    let mut installed = Installed::default();
    for id in 0..(1 << 16) + 1 {
        installed.apply(&Action::Place { id, placement: Placement::default() });
    }
    installed.number(1);
    let message = PlanMessage { version: 1, layers: 9, installed };
    let decoded = PlanMessage::decode(&message.encode());
    assert!(decoded.as_ref() == Ok(&message), "{:?}", decoded.err());
}
