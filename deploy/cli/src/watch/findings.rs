//! What is wrong in a rack, in plain words: the cause, what to do, and where the operator's pages say
//! more. Nothing here reads memory or clocks, so all who show findings say the same.

use serde::Serialize;

use crate::agents::AgentStatus;
use crate::directives::DirectiveStatus;
use crate::output::say;
use crate::status::{FailedChunk, LockManagerStatus, NodeStatus, Status};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// Somebody has to act.
    Bad,
    /// Something is lost or slower until somebody acts, or is on its way to be repaired.
    Warning,
    /// Worth knowing.
    Note,
}

impl Level {
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// Something that is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// What, with the cause and the effect.
    pub(crate) what: String,
    /// What to do.
    pub(crate) to_do: String,
    /// The page and the heading that say more: a file of `deploy/docs`.
    pub(crate) page: &'static str,
}

impl Finding {
    pub(crate) fn new(
        level: Level,
        what: impl Into<String>,
        to_do: impl Into<String>,
        page: &'static str,
    ) -> Self {
        Self { level, what: what.into(), to_do: to_do.into(), page }
    }
}

/// All that is wrong in a rack, the worst first.
pub(crate) fn of(status: &Status) -> Vec<Finding> {
    let mut found: Vec<_> = of_manager(status).into_iter().collect();
    found.extend(status.nodes.iter().flat_map(of_node));
    found.extend(status.agents.iter().flat_map(of_agent));
    found.extend(status.directives.iter().flat_map(of_directive));
    found.extend(of_memory(status));
    found.extend(status.numbers_ending.iter().map(|number| {
        let what = format!("ends soon: {}", number.advice);
        let to_do = "follow the advice before the number ends";
        Finding::new(Level::Warning, what, to_do, "limits.md#numbers-that-end")
    }));
    found.sort_by_key(|finding| finding.level);
    found
}

/// For `rackline status`.
pub(crate) fn print(findings: &[Finding]) {
    for Finding { level, what, to_do, page } in findings {
        say!("{what}; {to_do} ({}; deploy/docs/{page})", level.label());
    }
}

fn of_manager(status: &Status) -> Option<Finding> {
    const PAGE: &str = "operations.md#lock-managers";
    let granted = status.locks_are_granted();
    let effect = if granted { "no host gets new chunks" } else { "no dead host is detected" };
    let finding = |what: String, to_do: &str| Some(Finding::new(Level::Bad, what, to_do, PAGE));
    let Some(LockManagerStatus { node, term, serving, alive, waiting_for }) = status.lock_manager
    else {
        let level = if status.nodes.is_empty() { Level::Note } else { Level::Bad };
        let what = format!("lock manager: none has run yet: {effect}");
        return Some(Finding::new(level, what, "start one: `rackline lock-manager --help`", PAGE));
    };
    let manager = format!("lock manager: node {node}, term {term}");
    match (serving, alive, waiting_for) {
        (true, true, Some(other)) if granted => {
            let to_do = format!("start a process of node {other}");
            finding(format!("{manager}, waits for node {other} to acknowledge it"), &to_do)
        }
        (true, true, _) => None,
        (true, false, _) => {
            let what = format!("{manager}, missed its heartbeats: {effect}");
            finding(what, "start another lock manager, it takes over")
        }
        (false, ..) => finding(
            format!("{manager}, stopped: {effect} until one runs"),
            "start one: `rackline lock-manager --help`",
        ),
    }
}

fn of_node(node: &NodeStatus) -> Vec<Finding> {
    const DEATHS: &str = "operations.md#deaths";
    let (number, mut found) = (node.node, Vec::new());
    let mut find = |level, what, to_do: String, page| {
        found.push(Finding::new(level, what, to_do, page));
    };
    if let Some(death) = &node.death {
        let what = format!("node {number}: {}: {}", death.dead_host, death.progress);
        if death.quarantined {
            let to_do = format!(
                "make sure that the host is off, then confirm it on node {}: `rackline fence --node \
                 {number} --confirm-off`",
                death.recoverer
            );
            find(Level::Bad, what, to_do, "operations.md#quarantine");
        } else if death.recovered {
            find(Level::Note, what, "start its processes again".to_owned(), DEATHS);
        } else {
            let to_do = "wait: its blocks stay readable; while no lock manager runs, start one";
            find(Level::Warning, what, to_do.to_owned(), DEATHS);
        }
    } else if node.state == "suspected" {
        let what = format!("node {number}: host \"{}\" sends no heartbeat", node.host);
        let to_do = "look after that host: when this lasts, a lock manager declares the node dead";
        find(Level::Warning, what, to_do.to_owned(), DEATHS);
    } else if node.state == "unreadable" {
        let what = format!("node {number}: its line in the region cannot be read");
        let to_do = "stop its processes and start them again";
        find(Level::Bad, what, to_do.to_owned(), "page.md#damaged-memory");
    }
    if node.damaged > 0 {
        let what = match node.damaged {
            1 => format!("node {number}: 1 damaged descriptor: its block is a miss"),
            many => format!("node {number}: {many} damaged descriptors: their blocks are misses"),
        };
        let to_do = "look for errors of the memory device in the log of the kernel";
        find(Level::Warning, what, to_do.to_owned(), "page.md#damaged-memory");
    }
    let counted = &node.summary.counted;
    // Of a host that has left, or died as a whole, nothing is to be started again for that.
    if counted.ended_processes > 0 && !matches!(node.state, "left" | "dead") {
        let (ended, they, them, logs) = match counted.ended_processes {
            1 => ("1 process".to_owned(), "it", "it", "its log"),
            many => (format!("{many} processes"), "they", "them", "their logs"),
        };
        let what = format!(
            "node {number}: {ended} of this host ended without leaving since it joined: the others have \
             freed what {they} held"
        );
        let to_do = format!("start {them} again; look for why in {logs} and in that of the kernel");
        find(Level::Note, what, to_do, "operations.md#stopping-an-engine");
    }
    if counted.damaged_blocks > 0 {
        let what = match counted.damaged_blocks {
            1 => "1 block was damaged in memory when this host read it: it was a miss".to_owned(),
            many => format!(
                "{many} blocks were damaged in memory when this host read them: they were misses"
            ),
        };
        let what = format!("node {number}: {what}");
        let to_do = "`rackline fsck --all` names what is still damaged; look for errors of the \
                     memory device in the log of the kernel";
        find(Level::Note, what, to_do.to_owned(), "page.md#damaged-memory");
    }
    if counted.memory_faults > 0 {
        let what = format!(
            "node {number}: processes of this host met {} of blocks that the device could not read: \
             these blocks are misses",
            count_of(counted.memory_faults, "page", "pages")
        );
        let to_do = "look for the cause: `dmesg`, `cxl list --media-errors`";
        find(Level::Note, what, to_do.to_owned(), "operations.md#memory-errors");
    }
    // Nothing is short of descriptors before nearly all are in use.
    if node.descriptors.saturating_mul(100) >= node.descriptors_max.saturating_mul(98) {
        let what = format!(
            "node {number}: {} of {} descriptors in use: blocks leave for want of descriptors",
            node.descriptors, node.descriptors_max
        );
        let to_do = "format the region with a smaller --block when blocks leave too early";
        find(Level::Note, what, to_do.to_owned(), "sizing.md#descriptors");
    }
    found
}

/// Above this share an agent may look for blocks that are to leave a drive.
const NEARLY_FULL_PERCENT: u128 = 90;

fn of_agent(agent: &AgentStatus) -> Vec<Finding> {
    const PAGE: &str = "agent.md#start-one";
    let (node, mut found) = (agent.node, Vec::new());
    if agent.state != "serves" {
        let (level, does) = match agent.state {
            "silent" => (Level::Bad, "is silent"),
            _ => (Level::Warning, "stopped"),
        };
        let what = if agent.has_no_drives() {
            format!(
                "node {node} has no drives: its agent {does}: engines of this host find nothing on \
                 drives"
            )
        } else {
            format!("drives of node {node}: the agent {does}: their blocks are misses")
        };
        found.push(Finding::new(level, what, "start the agent again", PAGE));
    }
    if agent.unannounced_blocks > 0 {
        let what = match agent.unannounced_blocks {
            1 => "1 block is not announced, so no host finds it".to_owned(),
            many => format!("{many} blocks are not announced, so no host finds them"),
        };
        let what = format!("drives of node {node}: {what}: the directory is full");
        let to_do = "format the region with a larger --drive-bytes";
        let page = "sizing.md#drives-behind-the-pool";
        found.push(Finding::new(Level::Warning, what, to_do, page));
    }
    let refused = agent.dropped.refused_by_drives;
    let is_nearly_full = u128::from(agent.drive_used_bytes) * 100
        >= u128::from(agent.drive_capacity_bytes) * NEARLY_FULL_PERCENT;
    if refused > 0 && is_nearly_full && agent.state == "serves" {
        let what = format!(
            "drives of node {node}: nearly full: {} not written since the agent started",
            count_of(refused, "block was", "blocks were")
        );
        let to_do = "give the drives more room, or choose the admission `second-touch`";
        let page = "sizing.md#drives-behind-the-pool";
        found.push(Finding::new(Level::Note, what, to_do, page));
    }
    if !agent.owing_drives.is_empty() && agent.state == "serves" {
        let owe = if agent.owing_drives.len() == 1 { "owes" } else { "owe" };
        let what = format!(
            "drives of node {node}: {} (in the order of --drive) {owe} a clear: bytes of cleared blocks \
             are still there, and no host finds them",
            named("drive", &agent.owing_drives)
        );
        let to_do = "look in the log of the agent for the reason; take a drive that is dead out of \
                     the settings, and start the agent again";
        found.push(Finding::new(Level::Warning, what, to_do, "operations.md#clearing-a-tenant"));
    }
    if agent.tables_unread && agent.state == "serves" {
        let what = format!(
            "drives of node {node}: not all tables are read: the blocks of the others are misses"
        );
        let to_do = "wait while the agent reads them; if that lasts, look in the log of the agent";
        found.push(Finding::new(Level::Note, what, to_do, "page.md#drives"));
    }
    found
}

/// Numbers beside each other.
fn listed<N: ToString>(numbers: &[N]) -> String {
    numbers.iter().map(N::to_string).collect::<Vec<_>>().join(", ")
}

/// So many things: the number, and the word for one or for several.
fn count_of(number: u64, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// Things with numbers: `node 3`, or `nodes 3, 5`.
fn named<N: ToString>(thing: &str, numbers: &[N]) -> String {
    let ending = if numbers.len() == 1 { "" } else { "s" };
    format!("{thing}{ending} {}", listed(numbers))
}

fn of_directive(status: &DirectiveStatus) -> Vec<Finding> {
    let DirectiveStatus { directive, asked_by, unanswered, refused, .. } = status;
    let page = match *directive {
        "clear" | "damaged" => "operations.md#clearing-a-tenant",
        "drain" | "undrain" => "operations.md#draining-a-host",
        _ => "operations.md#pinning-a-tenant",
    };
    if *directive == "damaged" {
        let what = format!(
            "a request of node {asked_by} is damaged in memory, and keeps its later ones waiting"
        );
        let to_do = "the next clear or pin that this node asks for replaces the request";
        return vec![Finding::new(Level::Warning, what, to_do, page)];
    }
    let mut found = Vec::new();
    if let ("drain", Some(node)) = (*directive, status.drained) {
        let what = format!("node {node} is drained: it publishes no new blocks");
        let to_do = format!("when its host serves again: `rackline drain --node {node} --undo`");
        found.push(Finding::new(Level::Note, what, to_do, page));
    }
    let what = status.in_words();
    if !unanswered.is_empty() {
        let what = format!("{what}: not answered by {}", named("node", unanswered));
        let these = if unanswered.len() == 1 { "this node" } else { "these nodes" };
        let to_do =
            format!("start or continue the processes of {these}, then run the command again");
        found.push(Finding::new(Level::Warning, what, to_do, page));
    }
    if !refused.is_empty() {
        let what = format!("{what}: not set by {}", named("node", refused));
        let to_do = match refused.len() {
            1 => "look at the quotas and pins of this node",
            _ => "look at the quotas and pins of these nodes",
        };
        found.push(Finding::new(Level::Warning, what, to_do, page));
    }
    found
}

/// Chunks that a finding names: there may be thousands.
const CHUNKS_NAMED: usize = 8;

fn of_memory(status: &Status) -> Vec<Finding> {
    let mut found: Vec<_> = of_failed_chunks(&status.chunks_failed).into_iter().collect();
    if status.chunks_unreadable > 0 {
        let what = match status.chunks_unreadable {
            1 => "1 chunk out of use: its entry is damaged".to_owned(),
            many => format!("{many} chunks out of use: their entries are damaged"),
        };
        let to_do = "plan a stop of all hosts, and format the region again";
        found.push(Finding::new(Level::Warning, what, to_do, "page.md#damaged-memory"));
    }
    if let Some(words) = status.identities.differ_by_mistake() {
        let what = format!("engines of one model share nothing: their blocks differ in {words}");
        let to_do = "start them with equal settings";
        let page = "operations.md#engines-that-share-nothing";
        found.push(Finding::new(Level::Note, what, to_do, page));
    }
    found
}

fn of_failed_chunks(failed: &[FailedChunk]) -> Option<Finding> {
    let named: Vec<_> = failed.iter().take(CHUNKS_NAMED).map(|it| it.chunk).collect();
    let more = match failed.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let full = failed.iter().filter(|it| it.node.is_some()).count();
    let state = match (full, failed.len()) {
        (0, 1) => "it is out of use".to_owned(),
        (0, _) => "all are out of use".to_owned(),
        (_, 1) => "it still has blocks, and its node empties it".to_owned(),
        (1, _) => "1 of them still has blocks, and its node empties it".to_owned(),
        _ => format!("{full} of them still have blocks, and their nodes empty them"),
    };
    let chunks = count_of(failed.len() as u64, "chunk", "chunks");
    let what = format!(
        "memory of the device failed in {chunks} ({}{more}): blocks there are misses; {state}",
        listed(&named)
    );
    let to_do = "look for the cause: `dmesg`, `cxl list --media-errors`";
    let page = "operations.md#memory-errors";
    (!failed.is_empty()).then(|| Finding::new(Level::Warning, what, to_do, page))
}

#[cfg(test)]
mod tests {
    use cxl_shm::units::NodeId;
    use kv_cache::{AgentLine, AgentSeen};

    use super::*;
    use crate::summaries::{Counted, SummaryStatus};

    #[test]
    fn failed_memory_is_a_finding_of_bounded_length() {
        assert_eq!(of_failed_chunks(&[]), None);
        let failed = |chunk, node| FailedChunk { chunk, offset: 0, bytes: 4096, node };
        let what = |failed: &[FailedChunk]| of_failed_chunks(failed).unwrap().what;
        assert_eq!(
            what(&[failed(3, None), failed(5, Some(1))]),
            "memory of the device failed in 2 chunks (3, 5): blocks there are misses; 1 of them still \
             has blocks, and its node empties it"
        );
        let one = "memory of the device failed in 1 chunk (3): blocks there are misses; it ";
        assert_eq!(what(&[failed(3, None)]), format!("{one}is out of use"));
        let emptied = "still has blocks, and its node empties it";
        assert_eq!(what(&[failed(3, Some(1))]), format!("{one}{emptied}"));
        let both = what(&[failed(3, Some(0)), failed(5, Some(1))]);
        assert!(
            both.ends_with("2 of them still have blocks, and their nodes empty them"),
            "{both}"
        );
        let many: Vec<_> = (0..1000).map(|chunk| failed(chunk, None)).collect();
        assert!(what(&many).contains("(0, 1, 2, 3, 4, 5, 6, 7 and 992 more)"), "{}", what(&many));
        assert!(what(&many).ends_with("all are out of use"));
    }

    fn node_of(damaged: u64, counted: Counted) -> NodeStatus {
        let summary = SummaryStatus { state: "current", age_ms: 0, counted };
        NodeStatus {
            node: 2,
            host: "h".to_owned(),
            state: "joined",
            incarnation: 1,
            alive: true,
            death: None,
            chunks: 0,
            blocks: 0,
            block_bytes: 0,
            descriptors: 0,
            descriptors_max: 1,
            damaged,
            summary,
        }
    }

    #[test]
    fn one_thing_is_not_told_of_as_several() {
        let what = |number| {
            let mut counted = Counted::default();
            (counted.damaged_blocks, counted.memory_faults) = (number, number);
            counted.ended_processes = number;
            let found = of_node(&node_of(number, counted)).into_iter();
            found.map(|it| format!("{}; {}", it.what, it.to_do)).collect::<Vec<_>>()
        };
        let starts = |number, starts: [&str; 4]| {
            let found = what(number);
            assert_eq!(found.len(), starts.len(), "{found:?}");
            for (found, start) in found.iter().zip(starts) {
                assert!(found.starts_with(&format!("node 2: {start}")), "{found}");
            }
        };
        starts(
            1,
            [
                "1 damaged descriptor: its block is a miss; ",
                "1 process of this host ended without leaving since it joined: the others have freed \
                 what it held; start it again; ",
                "1 block was damaged in memory when this host read it: it was a miss; ",
                "processes of this host met 1 page of blocks that",
            ],
        );
        starts(
            2,
            [
                "2 damaged descriptors: their blocks are misses; ",
                "2 processes of this host ended without leaving since it joined: the others have \
                 freed what they held; start them again; ",
                "2 blocks were damaged in memory when this host read them: they were misses; ",
                "processes of this host met 2 pages of blocks that",
            ],
        );
        for state in ["left", "dead"] {
            let mut counted = Counted::default();
            counted.ended_processes = 1;
            let gone = NodeStatus { state, ..node_of(0, counted) };
            assert_eq!(of_node(&gone), [], "{state}");
        }
        let named_two = named("node", &[1, 3]);
        assert_eq!((named("node", &[3]), named_two), ("node 3".into(), "nodes 1, 3".into()));
    }

    #[test]
    fn drives_that_owe_a_clear_are_named_while_their_agent_serves() {
        let line = AgentLine {
            runs: true,
            capacity_bytes: 1,
            owing_drives: 0b110,
            is_unread: true,
            ..Default::default()
        };
        let found = |beats| {
            of_agent(&AgentStatus::new(NodeId(3), &AgentSeen { life: 1, beat: 5, line }, beats))
        };
        let owing = found(true);
        let what = "drives of node 3: drives 2, 3 (in the order of --drive) owe a clear";
        assert!(owing[0].what.starts_with(what), "{owing:?}");
        assert!(owing[1].what.contains("not all tables are read"), "{owing:?}");
        let silent = found(false);
        assert_eq!((silent.len(), silent[0].level), (1, Level::Bad));
    }
}
