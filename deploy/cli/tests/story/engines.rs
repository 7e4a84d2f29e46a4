//! The engines of the story, as their parent has them: what they have stored, and that all of it is
//! found again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use cxl_shm::clock::SystemClock;

use super::blocks::{PROMPT_BLOCKS, of_prompt};
use super::engine::{Event, Task};

/// In the environment of an engine.
pub(crate) const REGION: &str = "RACKLINE_STORY_REGION";
pub(crate) const NODE: &str = "RACKLINE_STORY_NODE";
/// The test that is an engine when these are there.
const TEST: &str = "an_engine";
/// How often engines serve all prompts again until all blocks are found: a block that was damaged is
/// a miss first, for each process.
const ROUNDS: usize = 50;
const ROUND_MS: u64 = 200;

struct Engine {
    process: u32,
    stdin: ChildStdin,
    events: Receiver<Event>,
}

impl Engine {
    /// False when it has ended.
    fn tell(&mut self, task: &Task) -> bool {
        let line = serde_json::to_string(task).unwrap() + "\n";
        self.stdin.write_all(line.as_bytes()).and_then(|()| self.stdin.flush()).is_ok()
    }
}

pub(crate) struct Engines {
    running: BTreeMap<String, Engine>,
    /// Blocks that some engine was told are in the pool.
    stored: BTreeSet<u32>,
    /// Prompts that are served.
    prompts: u32,
    /// Prompts that have always been served: the others may have left pool and drives.
    always: u32,
}

impl Engines {
    pub(crate) fn none() -> Self {
        let (running, stored) = (BTreeMap::new(), BTreeSet::new());
        Self { running, stored, prompts: 0, always: u32::MAX }
    }

    /// Lets those of these processes end in order. Whether all of them are engines.
    pub(crate) fn end(&mut self, processes: &[&str]) -> bool {
        let is_one = |engine: &Engine| processes.contains(&&*engine.process.to_string());
        let before = self.running.len();
        self.running.retain(|_, engine| !is_one(engine));
        before - self.running.len() == processes.len()
    }

    pub(crate) fn start(&mut self, name: &str, region: &Path, node: &str) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", TEST, "--nocapture"]).env(REGION, region).env(NODE, node);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (heard, events) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            // The test harness says something, too, and may do so on the same line.
            let said = lines.filter_map(|line| Some(line[line.find("{\"event\"")?..].to_owned()));
            let mut events = said.filter_map(|said| serde_json::from_str(&said).ok());
            events.try_for_each(|event| heard.send(event))
        });
        let engine = Engine { process: process.id(), stdin, events };
        assert_eq!(engine.events.recv(), Ok(Event::Up));
        self.running.insert(name.to_owned(), engine);
        if self.prompts > 0 {
            self.serve(self.prompts);
        }
        process
    }

    pub(crate) fn are_there(&self) -> bool {
        !self.running.is_empty()
    }

    /// From now on they serve so many prompts. Whether they served another number of them.
    pub(crate) fn serve(&mut self, prompts: u32) -> bool {
        let before = std::mem::replace(&mut self.prompts, prompts);
        self.always = self.always.min(prompts);
        let count = u32::try_from(self.running.len()).unwrap();
        let engines = self.running.values_mut().zip(0..);
        for (engine, number) in engines {
            engine.tell(&Task::Serve { from: prompts / count * number, below: prompts });
        }
        before != 0 && before != prompts
    }

    /// The answer of one engine, the others go on.
    fn ask(&mut self, name: &str, task: &Task) -> Option<Event> {
        let engine = self.running.get_mut(name)?;
        engine.tell(task);
        loop {
            match engine.events.recv().ok()? {
                Event::Stored(blocks) => self.stored.extend(blocks),
                Event::Fault(fault) => panic!("{name}: {fault}"),
                answer => return Some(answer),
            }
        }
    }

    /// Where the pool has a prompt, as an engine sees it. It rests then.
    pub(crate) fn locate(&mut self, name: &str, prompt: u32) -> Vec<u64> {
        self.ask(name, &Task::Rest);
        match self.ask(name, &Task::Locate { prompt }) {
            Some(Event::Located(places)) => places,
            other => panic!("{other:?}"),
        }
    }

    /// Lets memory of a prompt fail in an engine. Why that cannot be done here, if it cannot.
    pub(crate) fn poison(&mut self, name: &str, prompt: u32) -> Option<String> {
        let places = self.locate(name, prompt);
        assert!(!places.is_empty(), "prompt {prompt} is in the pool");
        match self.ask(name, &Task::Poison { prompt, places }) {
            Some(Event::Poisoned(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    /// Of what was stored, the blocks for which `is_there` are left. Nothing is served until
    /// [`Self::serve`] says so.
    pub(crate) fn keep(&mut self, is_there: impl Fn(u32) -> bool) {
        self.stored.retain(|block| is_there(*block));
        (self.prompts, self.always) = (0, u32::MAX);
    }

    /// Every engine has served, and finds every block that one of them has stored. With
    /// `may_miss` a block may be computed anew in between.
    pub(crate) fn answers_are_right(&mut self, when: &str, may_miss: bool) {
        let mut missing = BTreeMap::new();
        for _ in 0..if may_miss { ROUNDS } else { 1 } {
            self.rest(when);
            missing = self.missing();
            if self.prompts > 0 {
                self.serve(self.prompts);
            }
            if missing.is_empty() {
                return;
            }
            SystemClock::start().sleep_ms(ROUND_MS);
        }
        panic!("{when}: engines find these blocks nowhere: {missing:?}");
    }

    /// Waits until each has served all prompts once at least, and lets all of them rest.
    fn rest(&mut self, when: &str) {
        let names: Vec<_> = self.running.keys().cloned().collect();
        for name in names {
            match self.ask(&name, &Task::Rest) {
                Some(Event::Rests) => {}
                None => drop(self.running.remove(&name)),
                other => panic!("{when}: {name} said {other:?}"),
            }
        }
        assert!(!self.running.is_empty(), "{when}: no engine runs");
    }

    /// What each engine does not find.
    fn missing(&mut self) -> BTreeMap<String, Vec<u32>> {
        // A prompt is found up to its first block that is not.
        let is_whole = |prompt: &u32| of_prompt(*prompt).all(|block| self.stored.contains(&block));
        let stored: BTreeSet<_> = self.stored.iter().map(|block| block / PROMPT_BLOCKS).collect();
        let prompts = stored.range(..self.always).copied().filter(is_whole);
        let prompts: Vec<_> = prompts.collect();
        assert!(!prompts.is_empty(), "something was stored");
        let mut missing = BTreeMap::new();
        for name in self.running.keys().cloned().collect::<Vec<_>>() {
            let found = self.ask(&name, &Task::Find { prompts: prompts.clone() });
            let Some(Event::Found(found)) = found else { panic!("{name} said {found:?}") };
            let found: BTreeSet<_> = found.into_iter().collect();
            let all = prompts.iter().flat_map(|prompt| of_prompt(*prompt));
            let its: Vec<_> = all.filter(|block| !found.contains(block)).collect();
            if !its.is_empty() {
                missing.insert(name, its);
            }
        }
        missing
    }
}
