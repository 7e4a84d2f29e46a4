//! `rackline lock-manager`: the program of the crate `lock-manager`, with a file of settings.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use clap::Args;
use cxl_shm::clock::{Clock as _, SystemClock};
use lock_manager::{ManagerActivity, ManagerFigures};
use rackline_metrics::{Family, Health, Source};

use crate::config::FileOptions;
use crate::metrics::MetricsOptions;
use crate::output::say;
use crate::page::Whose;

#[derive(Args, Debug)]
pub(crate) struct ManagerOptions {
    #[command(flatten)]
    manager: lock_manager::Options,

    #[command(flatten)]
    metrics: MetricsOptions,

    #[command(flatten)]
    pub(crate) log: lock_manager::LogOptions,

    #[command(flatten)]
    file: FileOptions,
}

/// What the lock manager shows.
struct Shown {
    figures: Arc<ManagerFigures>,
    /// The steps at the last look, and when they were seen to grow.
    last: Mutex<(u64, u64)>,
    clock: SystemClock,
}

/// A lock manager that has made no step for so long does not work.
const STILL_MS: u64 = 5_000;

impl Source for Shown {
    fn families(&self) -> Vec<Family> {
        let counter = |(name, help, count)| Family::counter(name, help).with(&[], count);
        let mut families: Vec<_> = self.figures.counters().into_iter().map(counter).collect();
        let mut activity =
            Family::gauge("rackline_manager_activity", "1 for what the lock manager does.");
        for each in ManagerActivity::ALL {
            let is_so = self.figures.activity() == each;
            activity.push(&[("activity", each.label())], is_so.into());
        }
        let term = Family::gauge(
            "rackline_manager_term",
            "The term that this lock manager has claimed, or that it watches.",
        );
        families.extend([activity, term.with(&[], self.figures.term())]);
        families
    }

    fn health(&self) -> Health {
        let [(_, _, steps), ..] = self.figures.counters();
        let now_ms = self.clock.now_ms();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != steps {
            *last = (steps, now_ms);
        }
        if now_ms.saturating_sub(last.1) > STILL_MS {
            return Health::Bad("the lock manager has made no step for 5 seconds".to_owned());
        }
        Health::Good
    }
}

/// The settings, from the flags of this process and from the file that they name.
fn read_again() -> Result<lock_manager::Options, String> {
    match crate::parsed_again() {
        Ok(crate::Command::LockManager(options)) => Ok(options.manager),
        Ok(_) => Err("this process is no lock manager".to_owned()),
        Err(reason) => Err(reason),
    }
}

impl ManagerOptions {
    /// The options of the lock manager.
    ///
    /// # Errors
    /// Those that do not go together.
    pub(crate) fn checked(&self) -> Result<&lock_manager::Options> {
        self.file.named(self.metrics.check())?;
        Ok(&self.manager)
    }
}

pub(crate) fn run(options: &ManagerOptions) -> Result<()> {
    let manager = options.checked()?;
    if options.file.check {
        say!("{}", options.file.checked());
        return Ok(());
    }
    let figures = Arc::new(ManagerFigures::default());
    let (clock, last) = (SystemClock::start(), Mutex::default());
    let shown = Shown { figures: Arc::clone(&figures), last, clock };
    let lock_manager::Options { region, node, .. } = manager;
    let whose = Whose { program: "lock-manager", region: region.clone(), node: *node };
    let server = options.metrics.serve(shown, whose)?;
    let outcome = lock_manager::run(manager, &figures, &read_again);
    drop(server);
    Ok(outcome?)
}
