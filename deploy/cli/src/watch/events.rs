//! What has happened lately: differences between two looks at a rack, in a bounded list. What comes and
//! goes between two looks is not seen.

use std::collections::VecDeque;

use serde::Serialize;

use super::findings::Level;
use crate::directives::DirectiveStatus;
use crate::status::{LockManagerStatus, NodeStatus, Status};

/// Events that are kept.
pub(crate) const EVENTS_MAX: usize = 200;

/// Something that has happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Event {
    /// When it was seen, by the clock of this process.
    pub(crate) at_ms: u64,
    pub(crate) level: Level,
    pub(crate) what: String,
}

/// The last events.
#[derive(Debug, Default)]
pub(crate) struct Events(VecDeque<Event>);

impl Events {
    pub(crate) fn push(&mut self, at_ms: u64, level: Level, what: String) {
        if self.0.len() == EVENTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Event { at_ms, level, what });
    }

    /// What has changed from one look to the next.
    pub(crate) fn compare(&mut self, at_ms: u64, before: &Status, now: &Status) {
        let mut say = |level, what| self.push(at_ms, level, what);
        for node in &now.nodes {
            let earlier = before.nodes.iter().find(|it| it.node == node.node);
            compare_nodes(earlier, node, &mut say);
        }
        compare_managers(before.lock_manager.as_ref(), now.lock_manager.as_ref(), &mut say);
        for agent in &now.agents {
            let earlier = before.agents.iter().find(|it| it.node == agent.node);
            let (node, state) = (agent.node, agent.state);
            if earlier.is_none_or(|it| it.state != state) {
                let level = if state == "serves" { Level::Note } else { Level::Warning };
                say(level, format!("the agent of node {node} {}", agent.in_words()));
            } else if earlier.is_some_and(|it| it.agents != agent.agents) {
                say(Level::Note, format!("another agent of node {node} has started"));
            }
        }
        let same = |it: &&DirectiveStatus, all: &Status| {
            let is = |other: &DirectiveStatus| {
                other.asked_by == it.asked_by
                    && other.directive == it.directive
                    && other.namespace == it.namespace
            };
            all.directives.iter().any(is)
        };
        for directive in now.directives.iter().filter(|it| !same(it, before)) {
            say(Level::Note, directive.in_words());
        }
        for directive in before.directives.iter().filter(|it| !same(it, now)) {
            say(Level::Note, format!("{}: over", directive.in_words()));
        }
    }

    /// The newest first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = &Event> {
        self.0.iter().rev()
    }
}

fn compare_nodes(
    before: Option<&NodeStatus>,
    now: &NodeStatus,
    say: &mut impl FnMut(Level, String),
) {
    let NodeStatus { node, host, state, incarnation, .. } = now;
    let step = |it: &NodeStatus| it.death.as_ref().map(|death| death.progress.clone());
    let is_new_life = before.is_none_or(|it| it.incarnation != *incarnation);
    let was_silent = !is_new_life && before.is_some_and(|it| it.state == "suspected");
    if is_new_life || before.is_none_or(|it| it.state != *state) {
        let level = match *state {
            "quarantined" | "unreadable" => Level::Bad,
            "suspected" | "recovering" => Level::Warning,
            _ => Level::Note,
        };
        let what = match *state {
            "joined" if was_silent => "sends heartbeats again",
            "joined" => "has joined",
            "joining" => "has a host that joins",
            "left" => "has left in order",
            "suspected" => "sends no heartbeat",
            "quarantined" => "was declared dead, and is quarantined",
            "recovering" => "was declared dead, and is being recovered",
            "dead" => "is dead and recovered: its number is free",
            other => other,
        };
        // A host that joins has not said its name yet.
        let whose = if *state == "joining" { String::new() } else { format!(" (host \"{host}\")") };
        say(level, format!("node {node}{whose} {what}"));
    } else if let (Some(progress), true) = (step(now), before.map(step) != Some(step(now))) {
        say(Level::Note, format!("node {node}: {progress}"));
    }
}

fn compare_managers(
    before: Option<&LockManagerStatus>,
    now: Option<&LockManagerStatus>,
    say: &mut impl FnMut(Level, String),
) {
    let Some(LockManagerStatus { node, term, serving, alive, .. }) = now else { return };
    let works = |it: &LockManagerStatus| it.serving && it.alive;
    match before {
        Some(it) if it.term == *term && works(it) == (*serving && *alive) => {}
        Some(it) if it.term == *term && *serving && *alive => {
            say(Level::Note, format!("the lock manager on node {node} sends heartbeats again"));
        }
        _ if *serving && *alive => {
            say(Level::Note, format!("the lock manager on node {node} has begun term {term}"));
        }
        _ if *serving => {
            say(Level::Bad, format!("the lock manager on node {node} sends no heartbeat"));
        }
        _ => say(Level::Bad, format!("the lock manager on node {node} has stopped")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summaries::{Counted, SummaryStatus};

    fn node(state: &'static str, incarnation: u32) -> NodeStatus {
        NodeStatus {
            node: 2,
            host: "h".to_owned(),
            state,
            incarnation,
            alive: true,
            death: None,
            chunks: 0,
            blocks: 0,
            block_bytes: 0,
            descriptors: 0,
            descriptors_max: 1,
            damaged: 0,
            summary: SummaryStatus { state: "current", age_ms: 0, counted: Counted::default() },
        }
    }

    /// What is told when a node goes through these states.
    fn told(lives: &[(&'static str, u32)]) -> Vec<String> {
        let (mut said, mut before) = (Vec::new(), None);
        for (state, incarnation) in lives {
            let now = node(state, *incarnation);
            compare_nodes(before.as_ref(), &now, &mut |_, what| said.push(what));
            before = Some(now);
        }
        said.iter().map(|what| what.replace("node 2 (host \"h\") ", "")).collect()
    }

    #[test]
    fn only_a_node_that_was_silent_sends_heartbeats_again() {
        assert_eq!(
            told(&[("joining", 1), ("joined", 1)]),
            ["node 2 has a host that joins", "has joined"]
        );
        let lives = [("joined", 1), ("suspected", 1), ("joined", 1), ("left", 1), ("joined", 2)];
        assert_eq!(
            told(&lives),
            [
                "has joined",
                "sends no heartbeat",
                "sends heartbeats again",
                "has left in order",
                "has joined",
            ]
        );
    }

    #[test]
    fn a_lock_manager_is_told_of_when_it_changes() {
        let manager = |term, serving, alive| {
            Some(LockManagerStatus { node: 1, term, serving, alive, waiting_for: None })
        };
        let told = |before: Option<LockManagerStatus>, now: Option<LockManagerStatus>| {
            let mut said = Vec::new();
            compare_managers(before.as_ref(), now.as_ref(), &mut |level, _| said.push(level));
            said
        };
        assert_eq!(told(None, manager(1, true, true)), [Level::Note]);
        assert_eq!(told(manager(1, true, true), manager(1, true, true)), []);
        assert_eq!(told(manager(1, true, true), manager(1, true, false)), [Level::Bad]);
        assert_eq!(told(manager(1, true, false), manager(1, true, true)), [Level::Note]);
        assert_eq!(told(manager(1, true, true), manager(1, false, false)), [Level::Bad]);
        assert_eq!(told(manager(1, true, false), manager(2, true, true)), [Level::Note]);
    }
}
