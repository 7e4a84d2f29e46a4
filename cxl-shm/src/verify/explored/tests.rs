//! The explorer finds what is known to be broken, passes what is known to be sound, and counts.

use std::rc::Rc;

use super::*;
use crate::fabric::Fabric;
use crate::units::{LineOffset, LineRange, WordOffset};
use crate::verify::simulated::CacheMode;

const LIMITS: Limits = Limits { states: 1_000_000, ms: 60_000 };

/// Toys, each with a sound form and broken ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Toy {
    Pauses(u64),
    Write,
    ReadOnce,
    SendMessage { publishes_data: bool, publishes_flag: bool },
    ReceiveMessage { refreshes_data: RefreshesData },
    Enter { me: u64, publishes: bool, refreshes: bool },
    WriteWord(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum RefreshesData {
    AfterTheFlag,
    WithTheFlag,
    Never,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Toys {
    toy: Toy,
    phase: u64,
    answer: u64,
}

fn line(index: u64) -> LineRange {
    LineRange::one(LineOffset::new(index * 64).unwrap())
}

fn word(index: u64) -> WordOffset {
    line(index).start().word(0).unwrap()
}

impl Toys {
    fn new(toy: Toy) -> Self {
        Self { toy, phase: 0, answer: 0 }
    }
}

impl Task for Toys {
    fn step(&mut self, world: World) -> Step {
        let fabric = world.fabric();
        let publish = |index, value, publishes| {
            fabric.store(word(index), value);
            if publishes {
                fabric.publish(line(index));
            }
        };
        self.phase += 1;
        match self.toy {
            Toy::Pauses(most) => {
                world.pause();
                return if self.phase == most { Step::Ends } else { Step::Goes };
            }
            Toy::Write => publish(0, 1, true),
            Toy::ReadOnce => {
                fabric.refresh(line(0));
                self.answer = fabric.load(word(0));
            }
            Toy::SendMessage { publishes_data, publishes_flag } => {
                publish(0, 1, publishes_data);
                publish(1, 1, publishes_flag);
            }
            Toy::ReceiveMessage { refreshes_data } => {
                if refreshes_data == RefreshesData::Never {
                    // So that there is something stale.
                    let _ = fabric.load(word(0));
                }
                fabric.refresh(line(1));
                if refreshes_data == RefreshesData::WithTheFlag {
                    fabric.refresh(line(0));
                }
                if fabric.load(word(1)) == 0 {
                    // Else the number of rounds would be part of the state.
                    self.phase = 0;
                    return Step::Goes;
                }
                if refreshes_data == RefreshesData::AfterTheFlag {
                    fabric.refresh(line(0));
                }
                if fabric.load(word(0)) != 1 {
                    world.refute("the flag was seen, the data was not");
                }
            }
            Toy::Enter { me, publishes, refreshes } => {
                if self.phase == 1 {
                    let _ = fabric.load(word(1 - me));
                    publish(me, 1, publishes);
                    if refreshes {
                        fabric.refresh(line(1 - me));
                    }
                    self.answer = 1 - fabric.load(word(1 - me));
                    return Step::Goes;
                }
                world.pause();
            }
            Toy::WriteWord(index) => {
                fabric.store(line(0).start().word(index).unwrap(), 1);
                fabric.publish(line(0));
            }
        }
        Step::Ends
    }

    fn view(&self) -> u64 {
        match self.toy {
            Toy::Enter { .. } => self.phase << 1 | self.answer,
            _ => self.phase,
        }
    }
}

fn model(toys: &[Toy]) -> Model<Toys> {
    let mut model = Model::new(toys.len(), 4096);
    for (host, toy) in toys.iter().enumerate() {
        model.run(format!("{toy:?}"), host, Toys::new(*toy));
    }
    let toys = toys.to_vec();
    model.ended = Rc::new(move |views| {
        views.iter().zip(&toys).all(|(view, toy)| match toy {
            Toy::Pauses(most) => view == most,
            Toy::Enter { .. } => view >> 1 == 2,
            _ => *view >= 1,
        })
    });
    model
}

fn holds_on(model: &Model<Toys>) -> Vec<bool> {
    let explore = |memory| explore(model, memory, None, LIMITS).verdict;
    Memory::ALL.map(explore).iter().map(|verdict| *verdict == Verdict::Holds).collect()
}

fn states_on(model: &Model<Toys>) -> [(usize, u64); 4] {
    Memory::ALL.map(|memory| {
        let exploration = explore(model, memory, None, LIMITS);
        assert_eq!(exploration.verdict, Verdict::Holds, "{memory}");
        (exploration.states, exploration.transitions)
    })
}

#[test]
fn interleavings_are_counted() {
    // 4 x 3 positions; 3 x 3 steps of the first, 4 x 2 of the second.
    assert_eq!(states_on(&model(&[Toy::Pauses(3), Toy::Pauses(2)])), [(12, 17); 4]);
}

#[test]
fn a_register_has_the_states_of_a_register() {
    // The write is not begun, at the device and not yet read back, or done; the read is not done,
    // or answered 0 or 1, and 1 only if the write had arrived: 2 + 3 + 3.
    // Where writes are posted the read-back is what makes it arrive: 2 + 2 + 3. Where they may
    // also arrive by themselves both are there: 2 + 2 + 3 + 3.
    let states = states_on(&model(&[Toy::Write, Toy::ReadOnce])).map(|(states, _)| states);
    assert_eq!(states, [8, 7, 8, 10]);
}

#[test]
fn a_message_is_received() {
    let send = Toy::SendMessage { publishes_data: true, publishes_flag: true };
    let receive = Toy::ReceiveMessage { refreshes_data: RefreshesData::AfterTheFlag };
    assert_eq!(holds_on(&model(&[send, receive])), [true; 4]);
}

#[test]
fn a_missing_publish_is_found_in_every_memory() {
    for (publishes_data, publishes_flag) in [(false, true), (true, false)] {
        let send = Toy::SendMessage { publishes_data, publishes_flag };
        let receive = Toy::ReceiveMessage { refreshes_data: RefreshesData::AfterTheFlag };
        let found = holds_on(&model(&[send, receive])).iter().filter(|holds| !**holds).count();
        // A flag that is not published arrives by itself where caches are busy, in time.
        assert_eq!(found, if publishes_flag { 4 } else { 2 });
    }
}

#[test]
fn payload_refreshed_together_with_its_flag_is_found_where_caches_are_busy() {
    let send = Toy::SendMessage { publishes_data: true, publishes_flag: true };
    let receive = Toy::ReceiveMessage { refreshes_data: RefreshesData::WithTheFlag };
    assert_eq!(holds_on(&model(&[send, receive])), [true, true, false, false]);
    let receive = Toy::ReceiveMessage { refreshes_data: RefreshesData::Never };
    assert_eq!(holds_on(&model(&[send, receive])), [false; 4]);
}

fn entering(publishes: bool, refreshes: bool) -> Model<Toys> {
    let mut model = model(&[0, 1].map(|me| Toy::Enter { me, publishes, refreshes }));
    model.always = Rc::new(|views| {
        let inside = views.iter().filter(|view| **view == 0b11).count();
        if inside < 2 { Ok(()) } else { Err("two are inside".to_owned()) }
    });
    model
}

#[test]
fn of_two_that_announce_themselves_first_at_most_one_enters() {
    assert_eq!(holds_on(&entering(true, true)), [true; 4]);
    assert_eq!(holds_on(&entering(false, true)), [false; 4]);
    assert_eq!(holds_on(&entering(true, false)), [false; 4]);
}

#[test]
fn two_hosts_that_write_one_line_lose_words_and_two_tasks_of_one_host_do_not() {
    for hosts in [1, 2] {
        let mut model = Model::new(hosts, 4096);
        for index in 0..2 {
            model.run(format!("writer {index}"), index % hosts, Toys::new(Toy::WriteWord(index)));
        }
        model.ended = Rc::new(|views| views == [1, 1]);
        model.at_end = Rc::new(|_, device| {
            let is_lost = |index| device(line(0).start().word(index).unwrap()) != 1;
            if is_lost(0) || is_lost(1) { Err("a word is lost".to_owned()) } else { Ok(()) }
        });
        assert_eq!(holds_on(&model), [hosts == 1; 4], "{hosts} hosts");
    }
}

/// A message with each of its flushes and fences removed in turn, and with none removed.
#[test]
fn what_is_left_out_by_the_reduction_makes_no_difference() {
    let send = Toy::SendMessage { publishes_data: true, publishes_flag: true };
    let receive = Toy::ReceiveMessage { refreshes_data: RefreshesData::AfterTheFlag };
    let models =
        [model(&[send, receive]), entering(true, true), model(&[Toy::Write, Toy::ReadOnce])];
    let mut refuted = 0;
    for (model, memory) in models.iter().flat_map(|m| Memory::ALL.map(|memory| (m, memory))) {
        let all = explore(model, memory, None, LIMITS).sites;
        for removed in all.iter().copied().map(Some).chain([None]) {
            let reduced = explore(model, memory, removed, LIMITS);
            let whole = search::explore_unreduced(model, memory, removed, LIMITS);
            let holds = |it: &Exploration| it.verdict == Verdict::Holds;
            assert_eq!(holds(&reduced), holds(&whole), "{model:?} on {memory} without {removed:?}");
            assert!(reduced.states <= whole.states || !holds(&whole));
            refuted += usize::from(!holds(&whole));
        }
    }
    assert!(refuted > 10, "only {refuted} removals were noticed");
}

#[test]
fn the_trace_is_a_shortest_one_and_says_what_happened() {
    let memory = Memory { caches: CacheMode::Sticky, posted_writes: false };
    let Verdict::Refuted(found) = explore(&entering(false, true), memory, None, LIMITS).verdict
    else {
        panic!("two enter");
    };
    assert_eq!(found.message, "two are inside");
    let events = found.trace.iter().filter(|note| !note.starts_with(' ')).count();
    assert!(events >= 2, "{:#?}", found.trace);
}
