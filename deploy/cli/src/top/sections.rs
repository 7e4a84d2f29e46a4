//! The tables of a look, as text.

use bytesize::ByteSize;

use super::Look;
use crate::watch::findings::Level;

/// A table of the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Wrong,
    Nodes,
    Drives,
    Tenants,
    Prefixes,
    Locks,
    Events,
}

impl Part {
    pub(super) const ALL: [Self; 7] = [
        Self::Wrong,
        Self::Nodes,
        Self::Drives,
        Self::Tenants,
        Self::Prefixes,
        Self::Locks,
        Self::Events,
    ];

    /// The key that shows it on the whole screen.
    pub(super) const fn key(self) -> char {
        match self {
            Self::Wrong => 'w',
            Self::Nodes => 'n',
            Self::Drives => 'd',
            Self::Tenants => 't',
            Self::Prefixes => 'p',
            Self::Locks => 'l',
            Self::Events => 'e',
        }
    }

    /// The part that has a key.
    pub(super) fn of(key: char) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.key() == key)
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Wrong => "What is wrong",
            Self::Nodes => "Nodes",
            Self::Drives => "Drives",
            Self::Tenants => "Tenants",
            Self::Prefixes => "Hottest first blocks of prompts",
            Self::Locks => "Locks wanted or held for over a second",
            Self::Events => "Lately",
        }
    }
}

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// Cells; 0 for the rest of the line.
    pub(super) width: u16,
    pub(super) is_number: bool,
}

const fn text(name: &'static str, width: u16) -> Column {
    Column { name, width, is_number: false }
}

const fn number(name: &'static str, width: u16) -> Column {
    Column { name, width, is_number: true }
}

/// A row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Row {
    pub(super) level: Option<Level>,
    pub(super) cells: Vec<String>,
}

impl Row {
    fn new(level: Option<Level>, cells: impl Into<Vec<String>>) -> Self {
        Self { level, cells: cells.into() }
    }
}

/// A table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Section {
    pub(super) title: String,
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Row>,
    /// In place of rows, when there are none.
    pub(super) none: &'static str,
}

/// The table of a part.
pub(super) fn section(part: Part, look: &Look, now_ms: u64) -> Section {
    let (columns, rows, none): (&'static [Column], _, _) = match part {
        Part::Wrong => (WRONG, wrong(look), "Nothing."),
        Part::Nodes => (NODES, nodes(look), "No node has joined yet."),
        Part::Drives => (DRIVES, drives(look), "No agent has served drives."),
        Part::Tenants => (TENANTS, tenants(look), "No block is in the pool."),
        Part::Prefixes => (PREFIXES, prefixes(look), "No first block of a prompt has been used."),
        Part::Locks => {
            let none = match look.seen.waits {
                Some(_) => "None.",
                None => "Not known: locks of this region need no lock manager.",
            };
            (LOCKS, locks(look), none)
        }
        Part::Events => (EVENTS, events(look, now_ms), "Nothing has changed."),
    };
    Section { title: format!("{} ({})", part.title(), part.key()), columns, rows, none }
}

const WRONG: &[Column] = &[text("", 7), text("", 0)];

fn wrong(look: &Look) -> Vec<Row> {
    let row = |finding: &crate::watch::findings::Finding| {
        let words = format!("{}; {}", finding.what, finding.to_do);
        Row::new(Some(finding.level), [finding.level.label().to_owned(), words])
    };
    look.seen.status.findings.iter().map(row).collect()
}

const NODES: &[Column] = &[
    number("node", 4),
    text("host", 16),
    text("state", 11),
    number("beat", 6),
    number("chunks", 6),
    number("blocks", 9),
    number("bytes", 10),
    number("hits", 6),
    number("fetch/s", 10),
    number("publish/s", 10),
    number("holds", 5),
];

fn nodes(look: &Look) -> Vec<Row> {
    let status = &look.seen.status;
    let row = |node: &crate::status::NodeStatus| {
        let level = match node.state {
            "quarantined" | "unreadable" => Some(Level::Bad),
            "suspected" | "recovering" => Some(Level::Warning),
            _ => None,
        };
        let beat = look.seen.beats.iter().find(|beat| beat.node == node.node);
        let rate = look.nodes.of(node.node);
        let of_rate = |part: fn(&super::rates::NodeRate) -> f64| {
            rate.map_or_else(String::new, |rate| size_of(part(rate)))
        };
        let cells = [
            node.node.to_string(),
            node.host.clone(),
            node.state.to_owned(),
            beat.map_or_else(String::new, |beat| age(beat.age_ms)),
            node.chunks.to_string(),
            node.blocks.to_string(),
            ByteSize(node.block_bytes).to_string(),
            percent(rate.and_then(|rate| rate.hit_rate)),
            of_rate(|rate| rate.fetched_bytes),
            of_rate(|rate| rate.published_bytes),
            node.summary.counted.holds.to_string(),
        ];
        Row::new(level, cells)
    };
    status.nodes.iter().map(row).collect()
}

const DRIVES: &[Column] = &[
    number("node", 4),
    text("agent", 8),
    number("used", 10),
    number("of", 10),
    number("blocks", 9),
    number("announced", 9),
    number("waiting", 10),
    number("written", 10),
    number("restored", 10),
    text("not backed up", 0),
];

fn drives(look: &Look) -> Vec<Row> {
    let with_drives = look.seen.status.agents.iter().filter(|agent| !agent.has_no_drives());
    let row = |agent: &crate::agents::AgentStatus| {
        let level = match agent.state {
            "silent" => Some(Level::Bad),
            _ if agent.tables_unread || !agent.owing_drives.is_empty() => Some(Level::Warning),
            _ => None,
        };
        let size = |bytes| ByteSize(bytes).to_string();
        let cells = [
            agent.node.to_string(),
            agent.state.to_owned(),
            size(agent.drive_used_bytes),
            size(agent.drive_capacity_bytes),
            agent.drive_blocks.to_string(),
            agent.announced_blocks.to_string(),
            size(agent.backlog_bytes),
            size(agent.backed_up_bytes),
            size(agent.restored_bytes),
            agent.dropped.text(),
        ];
        Row::new(level, cells)
    };
    with_drives.map(row).collect()
}

const TENANTS: &[Column] = &[text("namespace", 12), number("blocks", 9), number("bytes", 10)];

fn tenants(look: &Look) -> Vec<Row> {
    let tenants = &look.seen.tenants;
    let row = |name: String, its: crate::watch::tenants::TenantBlocks| {
        Row::new(None, [name, its.blocks.to_string(), ByteSize(its.bytes).to_string()])
    };
    let listed = tenants.largest.iter().map(|it| row(it.namespace.to_string(), it.blocks));
    let others = (tenants.others > 0)
        .then(|| row(format!("{} others", tenants.others), tenants.others_blocks));
    listed.chain(others).collect()
}

const PREFIXES: &[Column] =
    &[text("key", 16), number("namespace", 9), number("in node", 7), number("used by", 7)];

fn prefixes(look: &Look) -> Vec<Row> {
    let row = |it: &crate::watch::blocks::HotPrefix| {
        let [namespace, owner, nodes] =
            [it.namespace, it.owner, it.nodes].map(|number| number.to_string());
        Row::new(None, [it.key.clone(), namespace, owner, nodes])
    };
    look.seen.prefixes.iter().map(row).collect()
}

const LOCKS: &[Column] = &[number("lock", 6), number("node", 4), number("for", 6)];

fn locks(look: &Look) -> Vec<Row> {
    let row = |wait: &crate::watch::waits::LockWait| {
        let cells = [wait.lock.to_string(), wait.node.to_string(), age(wait.for_ms)];
        Row::new(Some(Level::Warning), cells)
    };
    look.seen.waits.iter().flatten().map(row).collect()
}

const EVENTS: &[Column] = &[number("ago", 6), text("", 0)];

fn events(look: &Look, now_ms: u64) -> Vec<Row> {
    let row = |event: &crate::watch::events::Event| {
        let ago = age(now_ms.saturating_sub(event.at_ms));
        let level = (event.level != Level::Note).then_some(event.level);
        Row::new(level, [ago, event.what.clone()])
    };
    look.events.iter().map(row).collect()
}

/// A length of time in few letters.
pub(super) fn age(ms: u64) -> String {
    match ms {
        0..120_000 => format!("{} s", ms / 1000),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}

pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

/// Of a rate in bytes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are never below 0"
)]
pub(super) fn size_of(rate: f64) -> String {
    ByteSize(rate as u64).to_string()
}
