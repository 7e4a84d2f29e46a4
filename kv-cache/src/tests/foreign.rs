//! Areas that hold anything at all: nothing in them makes a reader panic, loop or reach outside
//! the region.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Words that a line may hold, near what it ought to.
fn line_words() -> impl Strategy<Value = [u64; 8]> {
    let small =
        prop_oneof![Just(0), 0u64..8, any::<u64>(), (0u64..1 << 20).prop_map(|at| at & !4095)];
    prop::array::uniform8(small)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_area_harms_its_readers(
        raw in vec((0u64..64, line_words()), 0..24),
        sealed in vec((0u32..32, line_words(), 0u8..7), 0..24),
        head: u64,
        near_head in 0u64..40,
        near: bool,
    ) {
        let rig = Rig::new(2, 32, 16);
        on_two_hosts(&rig, |a, b, clock| {
            publish(a, clock, 1);
            let (member, fabric) = (a.member(), a.member().fabric());
            let areas = Areas::new(*member.layout(), a.geometry());
            let own = areas.own_segment(member.node(), member.area());
            for (line, words) in &raw {
                let lines = member.area().range();
                let at = lines.iter().nth(usize::try_from(line % lines.lines()).unwrap()).unwrap();
                fabric.write_line(at, words);
                fabric.publish(LineRange::one(at));
            }
            for (slot, words, state) in &sealed {
                // Sealed as a descriptor, whatever it says.
                let mut bytes = [0; 56];
                for (eight, word) in bytes.chunks_exact_mut(8).zip(words) {
                    eight.copy_from_slice(&word.to_le_bytes());
                }
                bytes[4] = *state;
                let line: DescriptorLine = bytemuck::pod_read_unaligned(&bytes);
                own.line(*slot).publish(fabric, &line);
            }
            let head = if near { near_head } else { head };
            member.area().word(0).unwrap().publish(fabric, head);

            let payloads = member.layout().payload();
            for number in 0..4 {
                let handle = find(b, number);
                if let Some(Ok(ticket)) = handle.map(|handle| open(b, number, handle)) {
                    assert!(payloads.contains(ticket.payload()));
                }
            }
            let segment = b.segment(member.node()).unwrap();
            for slot in 0..32 {
                for generation in 0..4 {
                    let handle = Handle::new(member.node(), slot, generation);
                    if let Ok(ticket) = open(b, 1, handle) {
                        assert!(payloads.contains(ticket.payload()));
                    }
                }
            }
            if let Some(block) = segment.probe(b.member().fabric(), key(1)) {
                assert!(payloads.contains(block.payload));
            }

            // The owner sorts it out when it comes back, and can work again.
            rig.kill(member);
            rig.rack.crash(0);
            let again = rig.join(0);
            let a = Cache::attach(&again, clock).unwrap();
            assert!(a.heap_use(clock).blocks <= 24);
            for slot in 0..32 {
                let content = a.segment(again.node()).unwrap().cached(again.fabric(), slot);
                assert!(content.is_ok(), "slot {slot}: {content:?}");
            }
        });
    }
}
