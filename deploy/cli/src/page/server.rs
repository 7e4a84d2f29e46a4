//! One thread looks at the rack every two seconds; the server answers with what it has seen.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cxl_shm::clock::{Clock as _, SystemClock};
use rackline_metrics::{Document, Family, Health, Source};
use sha2::{Digest as _, Sha256};

use super::json::{Aged, RackJson, figures};
use super::{docs, findings};
use crate::watch::events::Event;
use crate::watch::history::Rates;
use crate::watch::lookout::{LOOK_MS, Lookout, Seen};

/// How often the thread looks whether it is to end.
const STOP_LOOK_MS: u64 = 50;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const BODY: &str = include_str!("page.html");

/// The page with its style and program inside, and what a browser may do with it.
static PAGE: LazyLock<Document> = LazyLock::new(|| {
    let body = BODY.replace("/*style*/", STYLE).replace("/*script*/", SCRIPT);
    html(body, &format!("script-src '{}'; connect-src 'self'; ", hash_of(SCRIPT)))
});

fn html(body: String, allowed: &str) -> Document {
    let policy = format!(
        "default-src 'none'; {allowed}style-src '{}'; img-src data:; base-uri 'none'; form-action \
         'none'; frame-ancestors 'none'",
        hash_of(STYLE)
    );
    Document { content_type: "text/html; charset=utf-8", policy, body: body.into_bytes() }
}

fn hash_of(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

/// Whose page it is.
#[derive(Clone, Debug)]
pub(crate) struct Whose {
    /// `agent` or `lock-manager`.
    pub(crate) program: &'static str,
    pub(crate) region: PathBuf,
    pub(crate) node: u16,
}

/// What the last looks have shown.
#[derive(Debug, Default)]
struct Looks {
    looked_ms: Option<u64>,
    error: Option<String>,
    seen: Option<Arc<Seen>>,
    rates: Vec<Rates>,
    events: Vec<Event>,
}

#[derive(Debug)]
struct Shared {
    whose: Whose,
    clock: SystemClock,
    looks: Mutex<Looks>,
    stop: AtomicBool,
}

impl Shared {
    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A source of metrics with a page. Its thread looks until it is dropped.
#[derive(Debug)]
pub(crate) struct RackPage<S> {
    source: S,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Source> RackPage<S> {
    /// A page of the rack, beside the metrics of `source`.
    ///
    /// # Errors
    /// No thread could be started.
    pub(crate) fn start(source: S, whose: Whose) -> Result<Self> {
        let (looks, stop) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { whose, clock: SystemClock::start(), looks, stop });
        let looking = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("rackline-page".to_owned());
        let thread = thread.spawn(move || keep_looking(&looking));
        let thread = thread.context("cannot start the thread that looks at the rack")?;
        Ok(Self { source, shared, thread: Some(thread) })
    }

    fn json(&self) -> Result<Vec<u8>> {
        let families = self.source.families();
        let now_ms = self.shared.clock.now_ms();
        let ago = |at_ms: u64| now_ms.saturating_sub(at_ms);
        let looks = self.shared.looks();
        let mut all = findings::of(&self.source.health(), &families);
        all.extend(looks.seen.iter().flat_map(|seen| seen.status.findings.clone()));
        all.sort_by_key(|finding| finding.level);
        let history = looks.rates.iter().map(|it| Aged { ago_ms: ago(it.at_ms), what: it });
        let events = looks.events.iter().map(|it| Aged { ago_ms: ago(it.at_ms), what: it });
        let json = RackJson {
            program: self.shared.whose.program,
            node: self.shared.whose.node,
            look_every_ms: LOOK_MS,
            looked_ago_ms: looks.looked_ms.map(ago),
            error: looks.error.as_deref(),
            seen: looks.seen.as_deref(),
            findings: &all,
            history: history.collect(),
            events: events.collect(),
            figures: figures(&families),
        };
        Ok(serde_json::to_vec(&json)?)
    }
}

impl<S> Drop for RackPage<S> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // One that panicked has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl<S: Source> Source for RackPage<S> {
    fn families(&self) -> Vec<Family> {
        self.source.families()
    }

    fn health(&self) -> Health {
        self.source.health()
    }

    fn document(&self, path: &str) -> Option<Document> {
        match path {
            "/" => Some(PAGE.clone()),
            "/rack.json" => {
                let policy = "default-src 'none'".to_owned();
                // Numbers and texts only: they have a form in JSON.
                let body = self.json().ok()?;
                Some(Document { content_type: "application/json", policy, body })
            }
            path => {
                let name = path.strip_prefix("/docs/")?;
                let body = docs::body(name)?;
                let begin = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
                    <meta name=\"viewport\" content=\"width=device-width\">";
                let text = format!(
                    "{begin}<title>Rackline: {name}</title><style>{STYLE}</style>\
                     <main class=\"text\"><p><a href=\"/\">The rack</a></p>{body}</main>"
                );
                Some(html(text, ""))
            }
        }
    }
}

fn keep_looking(shared: &Shared) {
    let mut lookout = None;
    while !shared.stop.load(Ordering::Relaxed) {
        let begin_ms = shared.clock.now_ms();
        match look_once(shared, &mut lookout) {
            Ok(()) => {}
            Err(error) => {
                lookout = None;
                shared.looks().error = Some(crate::in_words(&error));
            }
        }
        while shared.clock.now_ms() < begin_ms + LOOK_MS && !shared.stop.load(Ordering::Relaxed) {
            shared.clock.sleep_ms(STOP_LOOK_MS);
        }
    }
}

fn look_once(shared: &Shared, lookout: &mut Option<Lookout>) -> Result<()> {
    let lookout = match lookout {
        Some(lookout) => lookout,
        None => lookout.insert(Lookout::open(&shared.whose.region, shared.clock)?),
    };
    // Not locked while it looks: the server answers meanwhile.
    let before = shared.looks().seen.clone();
    let seen = Arc::new(lookout.look(before.as_deref())?);
    *shared.looks() = Looks {
        looked_ms: Some(shared.clock.now_ms()),
        error: None,
        seen: Some(seen),
        rates: lookout.history.rates().copied().collect(),
        events: lookout.events.newest().cloned().collect(),
    };
    Ok(())
}
