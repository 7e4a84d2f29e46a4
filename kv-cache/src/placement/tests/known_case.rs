//! Numbers computed by hand: 9 layers, a link of 3 blocks a layer time, 70 blocks on the GPU.

use super::*;

/// A: both requests offload every third layer. B: only the second. C: the first every fourth.
fn choices() -> [Vec<Placement>; 3] {
    let (third, fourth, none) = (offload(9, &[3, 6, 9]), offload(9, &[4, 8]), Placement::default());
    [vec![third.clone(), third.clone()], vec![none, third.clone()], vec![fourth, third]]
}

fn evaluations(batch: &Batch, discipline: Discipline) -> [Evaluation; 3] {
    let model = Model { discipline, memory: MemoryModel::Paper };
    choices().map(|placements| evaluate(batch, &placements, model).unwrap())
}

#[test]
fn a_link_that_serves_the_soonest_first() {
    let found = evaluations(&batch(9, 3, 70, &[3, 6]), Discipline::Edf);
    let stalls = found.each_ref().map(|evaluation| evaluation.stall_blocks.clone());
    assert_eq!(stalls, [9, 0, 0].map(|stall| fraction(stall, 1)));
    assert_eq!(found.each_ref().map(|evaluation| evaluation.memory_blocks), [63, 69, 63]);
    assert_eq!(found.each_ref().map(|evaluation| evaluation.moved_blocks), [27, 18, 24]);
    assert!(found.iter().all(|evaluation| evaluation.feasible));
}

#[test]
fn the_same_when_the_first_request_has_grown() {
    let found = evaluations(&batch(9, 3, 70, &[4, 6]), Discipline::Edf);
    assert_eq!(found[0].stall_blocks, fraction(12, 1));
    assert_eq!((found[1].memory_blocks, found[1].feasible), (78, false));
    assert_eq!((&found[2].stall_blocks, found[2].feasible), (&fraction(2, 1), true));
}

#[test]
fn a_link_that_serves_all_equally() {
    for requests in [[3, 6], [4, 6]] {
        let found = evaluations(&batch(9, 3, 70, &requests), Discipline::EqualShare);
        assert_eq!(found[2].stall_blocks, fraction(6, 1), "{requests:?}");
    }
}

#[test]
fn the_number_of_distance_driven_placements() {
    let counts = [9, 32, 80].map(|layers| distance_driven(layers).len());
    assert_eq!(counts, [4, 9, 15]);
    assert_eq!(distance_driven(1), []);
    let of_nine = distance_driven(9);
    let layers: Vec<_> = of_nine.iter().map(Placement::offloaded).collect();
    assert_eq!(layers, [&[9][..], &[4, 8], &[3, 6, 9], &[2, 4, 6, 8]]);
}

#[test]
fn the_planner_finds_a_choice_without_stall() {
    let outcome = plan(&batch(9, 3, 70, &[3, 6]), &Options::default(), &mut || true).unwrap();
    let Outcome::Plan(plan) = outcome else { panic!("{outcome:?}") };
    assert_eq!(plan.evaluation.stall_blocks, fraction(0, 1));
    assert_eq!((plan.evaluation.moved_blocks, plan.evaluation.memory_blocks), (18, 69));
    assert!(plan.complete);
}

#[test]
fn after_the_growth_c_is_the_best_of_its_kind() {
    let outcome = plan(&batch(9, 3, 70, &[4, 6]), &Options::default(), &mut || true).unwrap();
    let Outcome::Plan(plan) = outcome else { panic!("{outcome:?}") };
    assert!(plan.evaluation.stall_blocks <= fraction(2, 1));
    assert!(plan.evaluation.memory_blocks <= 70);
}
