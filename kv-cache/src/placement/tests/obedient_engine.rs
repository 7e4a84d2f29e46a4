//! An engine that does as the controller says, and looks whether that can be done: only what runs is
//! paused, only layers leave that are there, what is rejected does not fit alone, memory suffices in
//! each iteration, and nobody waits for ever.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const PAUSE_STEPS_MAX: u32 = 6;
/// Requests at one time.
const REQUESTS: u64 = 6;

/// A request, as the engine knows it.
#[derive(Debug, Default)]
struct Known {
    tokens: u64,
    on_gpu: BTreeSet<u16>,
    placement: Placement,
    runs: bool,
    /// Iterations since it ran.
    waits: u32,
}

struct Engine {
    layers: u16,
    gpu_blocks: u64,
    block_tokens: u64,
    link: Ratio<u64>,
    model: Model,
    requests: BTreeMap<u64, Known>,
}

impl Engine {
    fn blocks(&self, known: &Known) -> u64 {
        known.tokens / self.block_tokens + 1
    }

    fn evaluated(&self, requests: Vec<Request>, placements: &[Placement]) -> Evaluation {
        let batch = Batch::new(self.layers.into(), self.link, self.gpu_blocks, requests).unwrap();
        evaluate(&batch, placements, self.model).unwrap()
    }

    fn carry_out(&mut self, action: &Action) {
        match action {
            Action::Pause(id) => {
                let known = self.requests.get_mut(id).unwrap();
                assert!(std::mem::take(&mut known.runs), "{action:?} of what does not run");
            }
            Action::Resume(id) => self.requests.get_mut(id).unwrap().runs = true,
            Action::Evict { id, layers } => {
                let known = self.requests.get_mut(id).unwrap();
                assert!(!known.runs, "{action:?} of what runs");
                for layer in layers {
                    assert!(known.on_gpu.remove(layer), "{action:?}: the layer is not there");
                }
            }
            Action::Place { id, placement } => {
                let known = self.requests.get_mut(id).unwrap();
                known.runs = true;
                known.placement = placement.clone();
            }
            Action::Reject { id, .. } => {
                let known = self.requests.remove(id).unwrap();
                let mut space = distance_driven(self.layers);
                space.extend([Placement::default(), Placement::every(1, self.layers)]);
                let fits = |placement: Placement| {
                    self.evaluated(vec![Request::new(self.blocks(&known))], &[placement]).feasible
                };
                assert!(!space.into_iter().any(fits), "{action:?}, and it fits alone: {known:?}");
            }
        }
    }

    /// One iteration of these requests. Of two layers that are due at the same time, the layer of the
    /// first one comes first: the peak of PLAN-M2 depends on it.
    fn run(&mut self, batch: &[u64]) {
        let layers = self.layers;
        let (mut requests, mut placements) = (Vec::new(), Vec::new());
        for id in batch {
            let known = self.requests.get_mut(id).unwrap();
            let stays = |layer: &u16| !known.placement.offloaded().contains(layer);
            known.on_gpu = (1..=layers).filter(stays).collect();
            requests.push(Request::new(known.tokens / self.block_tokens + 1));
            placements.push(known.placement.clone());
        }
        let needed = self.evaluated(requests, &placements).memory_blocks;
        let paused = self.requests.values().filter(|known| !known.runs);
        let kept: u64 = paused.map(|known| known.on_gpu.len() as u64 * self.blocks(known)).sum();
        assert!(needed + kept <= self.gpu_blocks, "{needed} and {kept} of {}", self.gpu_blocks);
        for (id, known) in &mut self.requests {
            known.waits = if known.runs { 0 } else { known.waits + 1 };
            known.tokens += u64::from(known.runs);
            // All others run in turn before it, each for a while.
            let most = PAUSE_STEPS_MAX + 8 * u32::try_from(REQUESTS - 1).unwrap();
            assert!(known.waits <= most, "request {id} waits for {}", known.waits);
        }
    }
}

fn any_engine(numbers: &mut Numbers) -> (Engine, Controller, Measured) {
    let layers = u16::try_from(numbers.next(2, 9)).unwrap();
    let gpu_blocks = numbers.next(20, 90);
    let block_tokens = [1, 4, 100][usize::try_from(numbers.next(0, 2)).unwrap()];
    let memory = [MemoryModel::Paper, MemoryModel::Safe, MemoryModel::Buffers];
    let memory = memory[usize::try_from(numbers.next(0, 2)).unwrap()];
    let model = Model { memory, ..Model::default() };
    let horizon = Horizon {
        block_tokens,
        steps: u32::try_from(numbers.next(1, 3)).unwrap(),
        tolerated: Ratio::from_integer(numbers.next(0, 1)),
        ..Horizon::default()
    };
    let run_steps_min = u32::try_from(numbers.next(0, 3)).unwrap();
    let usual = Policy::new(layers, gpu_blocks);
    let policy =
        Policy { horizon, model, pause_steps_max: PAUSE_STEPS_MAX, run_steps_min, ..usual };
    let block_ns = 300 + numbers.next(0, 3) * 300;
    let times = Measured { layer_ns: 1000, block_ns: Some(block_ns) };
    let (link, requests) = (Ratio::new(1000, block_ns), BTreeMap::new());
    let block_tokens = block_tokens.into();
    let engine = Engine { layers, gpu_blocks, block_tokens, link, model, requests };
    (engine, Controller::new(policy, times), times)
}

#[test]
fn what_the_controller_says_can_be_done() {
    let mut numbers = Numbers(5);
    for _ in 0..240 {
        let (mut engine, mut controller, times) = any_engine(&mut numbers);
        let (mut next, mut now_ns) = (0, 0);
        for _ in 0..150 {
            if (engine.requests.len() as u64) < REQUESTS && numbers.next(0, 5) == 0 {
                let rest = numbers.next(0, engine.block_tokens - 1);
                let tokens = numbers.next(0, 7) * engine.block_tokens + rest;
                let shortest_ns = u64::from(engine.layers) * 1000;
                let promised = numbers.next(0, 1) == 0;
                let slo_ns = promised.then(|| shortest_ns + numbers.next(0, 4000));
                controller.arrive(Job { id: next, tokens, slo_ns });
                engine.requests.insert(next, Known { tokens, ..Known::default() });
                next += 1;
            }
            if !engine.requests.is_empty() && numbers.next(0, 20) == 0 {
                let at = numbers.next(0, engine.requests.len() as u64 - 1);
                let id = engine.requests.keys().nth(usize::try_from(at).unwrap()).copied().unwrap();
                controller.finish(id);
                engine.requests.remove(&id);
            }
            // Some searches are stopped.
            let stop = numbers.next(0, 3) * numbers.next(0, 60);
            let mut asked = 0;
            let mut proceed = || {
                asked += 1;
                stop == 0 || asked < stop
            };
            let decision = controller.decide(&mut proceed).unwrap();
            decision.actions.iter().for_each(|action| engine.carry_out(action));
            let running: BTreeSet<_> = controller.running().collect();
            let runs = engine.requests.iter().filter(|(_, known)| known.runs);
            assert_eq!(running, runs.map(|(id, _)| *id).collect(), "{decision:?}");
            assert_eq!(running.len() + controller.paused().count(), engine.requests.len());
            if running.is_empty() {
                assert!(engine.requests.is_empty(), "nothing runs: {decision:?}");
                continue;
            }
            engine.run(&controller.running().collect::<Vec<_>>());
            now_ns += 1000 * u64::from(engine.layers);
            controller.stepped(now_ns, times);
            controller.release(now_ns);
        }
    }
}
