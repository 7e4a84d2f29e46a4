//! What both disciplines have in common, and what memory they take.

use num_bigint::BigUint;

use super::super::evaluation::shared;
use super::super::timeline::Unwatched;
use super::*;

/// A second implementation, step by step with fractions: slow, and written without the first.
fn stall_by_steps(batch: &Batch, placements: &[Placement], model: Model) -> BigRational {
    let buffers = if model.memory == MemoryModel::Buffers { 2 } else { usize::MAX };
    let link = BigRational::new((*batch.link().numer()).into(), (*batch.link().denom()).into());
    let zero = fraction(0, 1);
    let blocks = |request: usize| {
        BigRational::from_integer(batch.requests()[request].blocks_per_layer.into())
    };
    let mut queues: Vec<Vec<(u16, BigRational)>> = (0..placements.len())
        .map(|request| {
            placements[request].offloaded().iter().map(|&l| (l, blocks(request))).collect()
        })
        .collect();
    let mut stall = zero.clone();
    for layer in 1..=batch.layers() {
        // Blocks that the link can bring while the layer executes; without limit while it waits.
        let mut waits = true;
        let mut left = link.clone();
        loop {
            let due = |queue: &Vec<(u16, BigRational)>| queue.first().map(|(due, _)| *due);
            if waits && !queues.iter().any(|queue| due(queue) == Some(layer)) {
                waits = false;
            }
            let ready = |request: &usize| {
                let rests = !waits && placements[*request].offloaded().contains(&layer);
                let offloaded = placements[*request].offloaded();
                let used = offloaded.iter().filter(|used| **used < layer).count();
                let fetched = offloaded.len() - queues[*request].len();
                !queues[*request].is_empty() && !rests && fetched - used < buffers
            };
            let mut served: Vec<_> = (0..queues.len()).filter(ready).collect();
            if model.discipline == Discipline::Edf {
                served.sort_by_key(|&request| (queues[request][0].0, request));
                served.truncate(1);
            }
            if served.is_empty() || (!waits && left == zero) {
                break;
            }
            let count = fraction(i64::try_from(served.len()).unwrap(), 1);
            let mut share = served.iter().map(|&r| queues[r][0].1.clone()).min().unwrap();
            if waits {
                stall += &share * &count;
            } else {
                share = share.min(&left / &count);
                left -= &share * &count;
            }
            for request in served {
                queues[request][0].1 -= &share;
                if queues[request][0].1 == zero {
                    queues[request].remove(0);
                }
            }
        }
    }
    stall
}

#[test]
fn two_implementations_agree() {
    let mut numbers = Numbers(17);
    let mut waits = 0;
    for case in 0..1500 {
        let layers = u16::try_from(numbers.next(1, 12)).unwrap();
        let requests: Vec<_> = (0..numbers.next(1, 4)).map(|_| numbers.next(1, 9)).collect();
        let link = Ratio::new(numbers.next(1, 12), numbers.next(1, 3));
        let given = requests.iter().map(|&blocks| Request::new(blocks)).collect();
        let batch = Batch::new(layers.into(), link, 1, given).unwrap();
        let placements: Vec<_> = requests.iter().map(|_| numbers.placement(layers)).collect();
        for discipline in [Discipline::Edf, Discipline::EqualShare] {
            let model = Model { discipline, memory: MemoryModel::Safe };
            let found = evaluate(&batch, &placements, model).unwrap();
            let expected = stall_by_steps(&batch, &placements, model);
            assert_eq!(found.stall_blocks, expected, "case {case}: {batch:?} {placements:?}");
            let paper = Model { discipline, memory: MemoryModel::Paper };
            let paper = evaluate(&batch, &placements, paper).unwrap();
            assert!(paper.memory_blocks <= found.memory_blocks, "case {case}");
            assert!(found.memory_blocks <= batch.all_blocks(), "case {case}");
            let buffers = Model { discipline, memory: MemoryModel::Buffers };
            let of_buffers = evaluate(&batch, &placements, buffers).unwrap();
            let expected = stall_by_steps(&batch, &placements, buffers);
            assert_eq!(of_buffers.stall_blocks, expected, "case {case}: {batch:?} {placements:?}");
            waits += usize::from(of_buffers.stall_blocks > found.stall_blocks);
            assert!(of_buffers.memory_blocks >= paper.memory_blocks, "case {case}");
            let timeline = timeline(&batch, &placements, model).unwrap();
            let blocks = (timeline.length() - f64::from(layers)) * *link.numer() as f64;
            let stall = blocks / *link.denom() as f64;
            let exact = rounded(&found.stall_blocks);
            assert!((stall - exact).abs() < 1e-3, "case {case}: {stall} {exact}");
        }
    }
    // Streams that wait for a buffer come later.
    assert!(waits > 50, "{waits}");
}

fn rounded(ratio: &BigRational) -> f64 {
    let millionths = (ratio * fraction(1_000_000, 1)).to_integer();
    i64::try_from(millionths).unwrap() as f64 / 1e6
}

/// Many streams divide a tick into so many parts that 128 bits cannot count them.
#[test]
fn shares_of_many_streams_stay_exact() {
    let (mut numbers, mut overflows) = (Numbers(3), 0);
    for _ in 0..10 {
        let blocks: Vec<_> = (0..61).map(|_| numbers.next(1, 99)).collect();
        let batch = batch(1000, numbers.next(1000, 2000), 1, &blocks);
        let placements: Vec<_> = blocks.iter().map(|_| numbers.placement(1000)).collect();
        let offloaded: Vec<_> = placements.iter().map(Placement::offloaded).collect();
        let paper = MemoryModel::Paper;
        let large = shared::<BigUint, _>(&batch, &offloaded, paper, &mut Unwatched).unwrap();
        match shared::<u128, _>(&batch, &offloaded, paper, &mut Unwatched) {
            Some(small) => assert_eq!(small, large),
            None => overflows += 1,
        }
        let model = Model { discipline: Discipline::EqualShare, memory: paper };
        let found = evaluate(&batch, &placements, model).unwrap();
        let expected = BigRational::new(large.stall.into(), large.parts.into());
        assert_eq!(found.stall_blocks, expected);
    }
    assert!(overflows > 0);
}

#[test]
fn equation_one_counts_less_than_what_streams_bring() {
    let batch = batch(9, 3, 70, &[3, 6]);
    let placements = [offload(9, &[4, 8]), offload(9, &[3, 6, 9])];
    let memory = |memory| {
        let model = Model { discipline: Discipline::Edf, memory };
        evaluate(&batch, &placements, model).unwrap().memory_blocks
    };
    // While layer 3 executes, its 6 blocks and 3 blocks of layer 4 are there.
    assert_eq!((memory(MemoryModel::Paper), memory(MemoryModel::Safe)), (63, 66));
    // 57 blocks stay, and each request has two buffers of its own.
    assert_eq!(memory(MemoryModel::Buffers), 57 + 2 * (3 + 6));
}

#[test]
fn what_cannot_be_evaluated_says_why() {
    let two = batch(9, 3, 70, &[3, 6]);
    let model = Model::default();
    let error =
        |placements: &[Placement]| evaluate(&two, placements, model).unwrap_err().to_string();
    assert_eq!(
        error(&[Placement::default()]),
        "there are 1 placements for 2 requests: give one for each request"
    );
    assert_eq!(
        error(&[Placement::default(), offload(10, &[10])]),
        "placement of request 2: there is no layer 10: layers are counted from 1 to 9"
    );
    let error = |layers: &[u64]| Placement::new(layers, 9).unwrap_err().to_string();
    assert_eq!(error(&[0]), "there is no layer 0: layers are counted from 1 to 9");
    assert_eq!(error(&[70_000]), "there is no layer 70000: layers are counted from 1 to 9");
    assert_eq!(error(&[3, 5, 3]), "layer 3 is given twice: name each offloaded layer once");
}

#[test]
fn what_cannot_be_a_batch_says_why() {
    let error = |layers, link: (u64, u64), gpu_blocks, requests: &[u64]| {
        let requests = requests.iter().map(|&blocks| Request::new(blocks)).collect();
        let link = Ratio::new_raw(link.0, link.1);
        Batch::new(layers, link, gpu_blocks, requests).unwrap_err().to_string()
    };
    for (found, expected) in [
        (error(0, (3, 1), 70, &[3]), "the number of layers is 0"),
        (error(1025, (3, 1), 70, &[3]), "the number of layers is 1025: at most 1024"),
        (error(9, (0, 1), 70, &[3]), "the blocks of the link in a layer time is 0"),
        (error(9, (3, 0), 70, &[3]), "the denominator of the link rate is 0"),
        (error(9, (3, 1), 0, &[3]), "the number of blocks of the GPU is 0"),
        (error(9, (3, 1), 70, &[]), "the number of requests is 0"),
        (error(9, (3, 1), 70, &[3, 0]), "the number of blocks per layer of request 2 is 0"),
        (error(9, (3, 1), 70, &[u64::MAX]), "at most 4294967296 can be planned; check the unit"),
        (error(1024, (3, (1 << 32) - 1), 70, &[1 << 32]), "too many blocks together"),
    ] {
        assert!(found.contains(expected), "{found}");
    }
}
