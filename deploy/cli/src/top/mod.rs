//! `rackline top`: the rack on a terminal, drawn anew after each look.
//!
//! ```text
//! keys      what the reader of the screen chose to see
//! rates     what each node moved between two looks
//! sections  the tables of a look, as text
//! screen    how they are laid out
//! ```

mod keys;
mod rates;
mod screen;
mod sections;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use cxl_shm::clock::{Clock as _, SystemClock};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event;

use self::keys::{Choice, Next};
use self::rates::NodeRates;
use self::screen::Screen;
use crate::rack::Interrupt;
use crate::watch::events::Event;
use crate::watch::history::Rates;
use crate::watch::lookout::{LOOK_MS, Lookout, Seen};

/// Watch the rack on a terminal: what is wrong, nodes, hit rate, bandwidth, drives, tenants, hottest
/// prefixes, locks.
///
/// The command looks at the region every two seconds. It only reads, and joins nothing. Rates and
/// events begin when it starts. `rackline status` prints one look; the page of an agent or a lock
/// manager shows the same in a browser.
///
/// Keys: q quits; w, n, d, t, p, l and e show one table on the whole screen, with all its rows; o or
/// Esc shows all tables again; arrows and page keys scroll.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,
}

/// How often the keyboard and the looks are looked at.
const TURN_MS: u64 = 100;
/// The age of a look on the screen moves so often.
const REDRAW_MS: u64 = 1_000;

/// One look, with what was kept of those before.
#[derive(Debug)]
struct Look {
    at_ms: u64,
    seen: Arc<Seen>,
    history: Vec<Rates>,
    nodes: NodeRates,
    /// The newest first.
    events: Vec<Event>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        bail!("standard input and output are no terminal; `rackline status` prints one look");
    }
    let clock = SystemClock::start();
    // Its errors are said before the screen changes.
    let lookout = Lookout::open(&options.region, clock)?;
    let interrupt = Interrupt::install()?;
    let (tell, told) = mpsc::sync_channel(1);
    let looker =
        Looker { path: options.region.clone(), lookout: Some(lookout), before: None, clock };
    // It only reads, and ends with the process.
    std::thread::Builder::new()
        .name("rackline-top".to_owned())
        .spawn(move || looker.keep_looking(&tell))
        .context("cannot start the thread that looks at the rack")?;
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal")?;
    let outcome = show(&mut terminal, &told, &options.region, clock, &interrupt);
    let restored = ratatui::try_restore().context("cannot restore this terminal");
    outcome.and(restored)
}

/// Looks at the rack, on a thread of its own: a look takes up to two seconds.
struct Looker {
    path: PathBuf,
    lookout: Option<Lookout>,
    before: Option<(u64, Arc<Seen>)>,
    clock: SystemClock,
}

impl Looker {
    fn keep_looking(mut self, tell: &SyncSender<Result<Look>>) {
        loop {
            let begin_ms = self.clock.now_ms();
            let look = self.look();
            if look.is_err() {
                // The next look opens the region anew.
                (self.lookout, self.before) = (None, None);
            }
            if tell.send(look).is_err() {
                return;
            }
            self.clock.sleep_ms((begin_ms + LOOK_MS).saturating_sub(self.clock.now_ms()));
        }
    }

    fn look(&mut self) -> Result<Look> {
        let lookout = match &mut self.lookout {
            Some(lookout) => lookout,
            none => none.insert(Lookout::open(&self.path, self.clock)?),
        };
        let seen = lookout.look(self.before.as_ref().map(|(_, seen)| &**seen))?;
        let at_ms = self.clock.now_ms();
        let nodes = self.before.as_ref().map_or_else(NodeRates::default, |(then_ms, before)| {
            NodeRates::between(&before.status, &seen.status, at_ms - then_ms)
        });
        let seen = Arc::new(seen);
        self.before = Some((at_ms, Arc::clone(&seen)));
        Ok(Look {
            at_ms,
            seen,
            nodes,
            history: lookout.history.rates().copied().collect(),
            events: lookout.events.newest().cloned().collect(),
        })
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    told: &Receiver<Result<Look>>,
    region: &Path,
    clock: SystemClock,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut choice = Choice::default();
    let (mut look, mut error): (Option<Look>, Option<String>) = (None, None);
    let mut due_ms = 0;
    while !interrupt.is_set() {
        match told.try_recv() {
            Ok(Ok(new)) => (look, error, due_ms) = (Some(new), None, 0),
            Ok(Err(new)) => (error, due_ms) = (Some(crate::in_words(&new)), 0),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => bail!("the thread that looks at the rack has ended"),
        }
        let now_ms = clock.now_ms();
        if now_ms >= due_ms {
            due_ms = now_ms + REDRAW_MS;
            let screen = Screen { region, now_ms, look: look.as_ref(), error: error.as_deref() };
            let drawn = terminal.draw(|frame| screen.draw(frame, &mut choice));
            drawn.context("cannot draw on this terminal")?;
        }
        if event::poll(Duration::from_millis(TURN_MS)).context("cannot read the keyboard")? {
            match choice.take(&event::read().context("cannot read the keyboard")?) {
                Next::Quit => break,
                Next::Draw => due_ms = 0,
                Next::Nothing => {}
            }
        }
    }
    Ok(())
}
