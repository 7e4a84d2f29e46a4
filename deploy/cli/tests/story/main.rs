//! The story that `deploy/docs/story.md` tells: its commands are carried out on one region, in its order,
//! and show what it says. After each section engines find all that they have stored, with every byte
//! right.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on says where")]

mod blocks;
mod engine;
mod engines;
mod page;
mod shell;

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use cxl_shm::clock::{Clock as _, SystemClock};
use cxl_shm::host::{HOST_TIER_FOLDER, HostTierFile};
use cxl_shm::layout::{FORMAT_VERSION, pretend_format_version, read_superblock};
use cxl_shm::region::Region;
use tempfile::TempDir;

use engines::Engines;
use page::Section;
use shell::Shell;

/// Far longer than it takes: to end a hang, and not to measure.
const LIMIT_MS: u64 = 120_000;
const LOOK_MS: u64 = 100;

struct Story {
    engines: Engines,
    shell: Shell,
    folder: TempDir,
    /// What was damaged in this section: its blocks are misses first.
    is_damaged: bool,
}

impl Story {
    fn begin() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let (mut shell, engines) = (Shell::default(), Engines::none());
        shell.set("STORY", folder.path().display());
        shell.set("ANOTHER", FORMAT_VERSION + 1);
        shell.set("VERSION", FORMAT_VERSION);
        Self { engines, shell, folder, is_damaged: false }
    }

    fn pool(&self) -> PathBuf {
        self.folder.path().join("pool")
    }

    /// False when memory cannot fail here, so that the rest of the section shows nothing.
    fn carry_out(&mut self, line: &str) -> bool {
        let command = self.shell.command(line);
        let words: Vec<_> = command.split_whitespace().collect();
        match words.as_slice() {
            ["start-engine", node, "&", name] => {
                let (name, _) = name.split_once('=').unwrap();
                let process = self.engines.start(name, &self.pool(), node);
                self.shell.adopt(name, process);
            }
            ["serve-prompts", count] => {
                self.is_damaged |= self.engines.serve(count.parse().unwrap());
            }
            ["flip-bits", prompt] => self.flip_bits(prompt.parse().unwrap()),
            ["fail-memory", prompt] => return self.fail_memory(prompt.parse().unwrap()),
            ["pretend-version", version] => {
                self.keep_what_drives_have();
                let region = Region::open(&self.pool(), None).unwrap();
                pretend_format_version(region.fabric(), version.parse().unwrap());
            }
            ["kill", processes @ ..] if self.engines.end(processes) => self.shell.wait(processes),
            _ => {
                let said = self.shell.run(line);
                assert!(said.success, "{line}: {}", said.text);
            }
        }
        true
    }

    /// In the payload of each block of a prompt.
    fn flip_bits(&mut self, prompt: u32) {
        let places = self.engines.locate("ENGINE0", prompt);
        assert!(!places.is_empty(), "prompt {prompt} is in the pool");
        let file = std::fs::File::options().read(true).write(true).open(self.pool()).unwrap();
        for place in places {
            let mut byte = [0];
            file.read_exact_at(&mut byte, place + 77).unwrap();
            file.write_all_at(&[byte[0] ^ 4], place + 77).unwrap();
        }
        self.is_damaged = true;
    }

    /// The region is about to be formatted: what is on no drive is lost.
    fn keep_what_drives_have(&mut self) {
        let mut list = |drive| self.shell.run(&format!("rackline spill list $STORY/{drive}"));
        let keys = ["drive0", "drive1"].map(|drive| list(drive).text);
        self.engines.keep(|block| keys.iter().any(|keys| keys.contains(&blocks::key(block))));
        self.is_damaged = true;
    }

    fn fail_memory(&mut self, prompt: u32) -> bool {
        self.is_damaged = true;
        let Some(error) = self.engines.poison("ENGINE0", prompt) else { return true };
        let skipped = format!("SKIPPED: the memory of the story cannot fail here: {error}\n");
        std::io::stderr().write_all(skipped.as_bytes()).unwrap();
        false
    }

    fn tell(&mut self, section: &Section) {
        self.is_damaged = false;
        for step in &section.steps {
            let (last, first) = step.commands.split_last().unwrap();
            let is_told = first.iter().all(|line| self.carry_out(line));
            if !is_told || (step.shows.is_empty() && !self.carry_out(last)) {
                break;
            }
            self.wait_until_shown(last, &step.shows, &section.heading);
        }
    }

    fn wait_until_shown(&mut self, line: &str, shows: &[String], when: &str) {
        let shows: Vec<_> = shows.iter().map(|line| self.shell.expand(line)).collect();
        let clock = SystemClock::start();
        while !shows.is_empty() {
            let said = self.shell.run(line).text;
            let Some(missing) = page::missing(&shows, &said) else { return };
            assert!(
                clock.now_ms() < LIMIT_MS,
                "{when}\n{line}\nnever shows\n{missing}\nbut\n{said}"
            );
            clock.sleep_ms(LOOK_MS);
        }
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        // What killed processes left.
        let region = Region::open(&self.pool(), None);
        let Some((superblock, layout)) =
            region.ok().and_then(|it| read_superblock(it.fabric()).ok())
        else {
            return;
        };
        let _ = HostTierFile::remove_all(Path::new(HOST_TIER_FOLDER), &superblock, &layout);
    }
}

#[test]
fn the_page_tells_what_happens() {
    let mut story = Story::begin();
    for section in page::sections() {
        let clock = SystemClock::start();
        story.tell(&section);
        let heading = &section.heading;
        if story.engines.are_there() {
            story.engines.answers_are_right(heading, story.is_damaged);
        }
        println!("{heading}: {} ms", clock.now_ms());
    }
}

/// An engine, where the story starts one.
#[test]
fn an_engine() {
    let (region, node) = (std::env::var_os(engines::REGION), std::env::var(engines::NODE));
    if let (Some(region), Ok(node)) = (region, node) {
        engine::run(Path::new(&region), node.parse().unwrap());
    }
}
