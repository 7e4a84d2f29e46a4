//! A child: its command line, and its life from start to end.

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use cxl_shm::crash;
use cxl_shm::lifecycle::Fence;
use cxl_shm::node::{Backend, Member};
use cxl_shm::verify::{Mutant, as_mutant};

use super::event::{Event, tell};
use super::ground::Memory;
use super::life::live;
use super::{manager, worker};

/// What a child is to be. Used by the parent, not by people.
#[derive(Args, Clone, Debug)]
pub struct ChildOptions {
    /// What it does.
    #[arg(long, value_enum)]
    pub(super) part: Part,
    /// Folder of the region and, on shadowed memory, of the host tiers.
    #[arg(long)]
    pub(super) folder: PathBuf,
    /// Its node.
    #[arg(long)]
    pub(super) node: u16,
    /// What stands for the memory.
    #[arg(long, value_enum)]
    pub(super) memory: Memory,
    /// How many lives of any process of this run came before, plus one.
    #[arg(long)]
    pub(super) life: u64,
    /// What it wants follows from it.
    #[arg(long)]
    pub(super) seed: u64,
    /// Whether lock managers declare hosts dead.
    #[arg(long)]
    pub(super) declare: bool,
    /// The rule that the protocols of this run do not keep.
    #[arg(long, value_parser = mutant_named)]
    pub(super) mutant: Option<Mutant>,
    /// Number of the worker.
    #[arg(long, default_value_t = 0)]
    pub(super) index: u32,
    /// Number of workers.
    #[arg(long, default_value_t = 0)]
    pub(super) workers: u32,
    /// Number of its next block.
    #[arg(long, default_value_t = 0)]
    pub(super) next_block: u64,
    /// Blocks of earlier lives that are certainly there.
    #[arg(long, value_delimiter = ',')]
    pub(super) blocks: Vec<u64>,
    /// Blocks of earlier lives that may be there.
    #[arg(long, value_delimiter = ',')]
    pub(super) doubtful_blocks: Vec<u64>,
    /// Number of its next root.
    #[arg(long, default_value_t = 0)]
    pub(super) next_root: u64,
    /// Roots of earlier lives that are certainly there, of those that it alone destroys.
    #[arg(long, value_delimiter = ',')]
    pub(super) roots: Vec<u64>,
    /// Of these, roots that may be there.
    #[arg(long, value_delimiter = ',')]
    pub(super) doubtful_roots: Vec<u64>,
    /// Rounds of everything, one after another, and then the end; without, anything until the
    /// standard input ends.
    #[arg(long)]
    pub(super) rounds: Option<u32>,
}

impl ChildOptions {
    /// The arguments from which a child makes these options.
    pub(super) fn arguments(&self) -> Vec<String> {
        let list = |numbers: &[u64]| {
            let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
            (!numbers.is_empty()).then(|| numbers.join(","))
        };
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.map(|value| value.get_name().to_owned())
        };
        let values = [
            ("--part", name(self.part.to_possible_value())),
            ("--folder", Some(self.folder.display().to_string())),
            ("--node", Some(self.node.to_string())),
            ("--memory", name(self.memory.to_possible_value())),
            ("--life", Some(self.life.to_string())),
            ("--seed", Some(self.seed.to_string())),
            ("--mutant", self.mutant.map(|mutant| format!("{mutant:?}"))),
            ("--index", Some(self.index.to_string())),
            ("--workers", Some(self.workers.to_string())),
            ("--next-block", Some(self.next_block.to_string())),
            ("--blocks", list(&self.blocks)),
            ("--doubtful-blocks", list(&self.doubtful_blocks)),
            ("--next-root", Some(self.next_root.to_string())),
            ("--roots", list(&self.roots)),
            ("--doubtful-roots", list(&self.doubtful_roots)),
            ("--rounds", self.rounds.map(|rounds| rounds.to_string())),
        ];
        let mut arguments = vec!["torture-child".to_owned()];
        for (flag, value) in values {
            if let Some(value) = value {
                arguments.extend([flag.to_owned(), value]);
            }
        }
        arguments.extend(self.declare.then(|| "--declare".to_owned()));
        arguments
    }
}

/// The mutant of that name.
fn mutant_named(name: &str) -> Result<Mutant, String> {
    Mutant::from_name(name).ok_or_else(|| "there is no such mutant".to_owned())
}

/// What a child does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Part {
    /// Uses the pool.
    Worker,
    /// Grants locks.
    Manager,
}

/// What the parent wants of this child.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Order {
    /// To go on with its work.
    #[default]
    Work,
    /// To let everything go, and do nothing.
    Rest,
    /// To look whether its blocks are there: everybody rests.
    Census,
    /// To end in order.
    Stop,
}

impl Order {
    const ALL: [Self; 4] = [Self::Work, Self::Rest, Self::Census, Self::Stop];

    /// On the standard input, whose end means to stop.
    pub(super) fn byte(self) -> u8 {
        match self {
            Self::Work => 0,
            Self::Rest => 1,
            Self::Census => 2,
            Self::Stop => 3,
        }
    }

    fn from_byte(byte: u8) -> Self {
        Self::ALL.into_iter().find(|order| order.byte() == byte).unwrap_or(Self::Stop)
    }
}

/// The last order of the parent, and how often it was to rest: who looks now and then may miss that
/// it was to work in between.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders(Arc<Mutex<(Order, u64)>>);

impl Orders {
    pub(super) fn last(&self) -> Order {
        self.last_and_rests().0
    }

    /// The last order, and how many were to rest.
    pub(super) fn last_and_rests(&self) -> (Order, u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, order: Order) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last = (order, last.1 + u64::from(order == Order::Rest));
    }

    pub(super) fn stops(&self) -> bool {
        self.last() == Order::Stop
    }
}

/// Runs a child until it is told to end, or killed.
///
/// # Errors
/// When it cannot attach, or the parent does not listen any more. What must never be is said on
/// the pipe.
pub fn run_child(options: &ChildOptions) -> Result<()> {
    crash::arm_from_environment()?;
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("cannot ask to die with the parent")?;
    anyhow::ensure!(rustix::process::getppid() == parent, "the parent has ended already");
    let orders = Orders::default();
    let told = orders.clone();
    std::thread::Builder::new()
        .name("standard-input".to_owned())
        .spawn(move || {
            let mut stdin = std::io::stdin();
            let mut byte = [0];
            while let Ok(1) = stdin.read(&mut byte) {
                told.give(Order::from_byte(byte[0]));
            }
            // Whatever ended it, an error too: the parent does not hold it any more.
            told.give(Order::Stop);
        })
        .context("cannot start a thread")?;
    as_mutant(options.mutant, || live(options, &orders))?;
    for (point, count) in crash::visits() {
        if count > 0 {
            tell(&Event::Visited(point.name().to_owned(), count))?;
        }
    }
    tell(&Event::Stopped)
}

/// The work of a child that is a member. One that finds its host declared dead ends, whatever it
/// was at.
pub(super) fn work<B: Backend>(
    options: &ChildOptions,
    member: &Member<B>,
    fence: &mut impl Fence,
    orders: &Orders,
) -> Result<()> {
    let outcome = match options.part {
        Part::Worker => worker::run(options, member, orders),
        Part::Manager => manager::run(member, options.declare, fence, orders),
    };
    if member.check_member().is_err() { tell(&Event::Fenced) } else { outcome }
}
