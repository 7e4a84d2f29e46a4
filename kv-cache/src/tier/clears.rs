//! Clears, as the agent of a node carries them out for its drives.

use std::collections::BTreeSet;

use cxl_shm::fabric::{PublishBatch, refresh_all};
use cxl_shm::node::Backend;
use cxl_shm::units::{NODES_MAX, NodeId};

use super::{DriveAnnouncer, DriveError};
use crate::format::{DIRECTIVES, Directive};
use crate::identity::NamespaceTag;
use crate::process::Cache;

/// By asking node, the number of a directive.
pub type ClearNumbers = [u64; NODES_MAX as usize];

/// Namespaces whose blocks are to go.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClearSet {
    all: bool,
    tags: BTreeSet<NamespaceTag>,
}

impl ClearSet {
    /// Whether blocks of this namespace are to go.
    #[must_use]
    pub fn has(&self, tag: NamespaceTag) -> bool {
        self.all || self.tags.contains(&tag)
    }

    /// Whether no block is to go.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.all && self.tags.is_empty()
    }

    /// Adds the namespaces of `others`.
    pub fn extend(&mut self, others: &Self) {
        self.all |= others.all;
        self.tags.extend(&others.tags);
    }

    fn add(&mut self, directive: &Directive) {
        match directive {
            Directive::Clear(Some(namespace)) => _ = self.tags.insert(namespace.tag()),
            Directive::Clear(None) => self.all = true,
            Directive::ClearPool(_)
            | Directive::Pin(..)
            | Directive::Unpin { .. }
            | Directive::Drain(_)
            | Directive::Undrain(_)
            | Directive::Drained(_)
            | Directive::NotDrained(_)
            | Directive::Void => {}
        }
    }
}

/// What nodes asked an agent to clear.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AskedClears {
    /// What is to go.
    pub clears: ClearSet,
    /// The last directive of each node that is in it.
    pub numbers: ClearNumbers,
    /// The nodes of which a clear was missed whose line is lost: so everything is to go (CLEAR-D9).
    pub missed: Vec<NodeId>,
}

impl<B: Backend> Cache<'_, B> {
    /// What nodes asked to clear since directive `carried_out` of each, freshly read. A line that is
    /// damaged is waited for (CLEAR-D6): the directives behind it come later.
    ///
    /// # Errors
    /// [`DriveError::MembershipLost`].
    pub fn clears_since(&self, carried_out: &ClearNumbers) -> Result<AskedClears, DriveError> {
        self.check_member()?;
        let (areas, fabric, me) = (self.areas(), self.member().fabric(), self.member().node());
        let others = areas.layout().nodes().filter(|node| *node != me);
        refresh_all(fabric, others.map(|node| areas.directive_count(node).range()));
        let mut asked =
            AskedClears { clears: ClearSet::default(), numbers: *carried_out, missed: Vec::new() };
        let mut new = Vec::new();
        for node in areas.layout().nodes() {
            let since = carried_out[node.index()];
            let count = areas.directive_count(node).cached(fabric);
            let lost = areas.lost_directives(node).map(|word| word.cached(fabric));
            // No line is lost of a directive that was never asked for: such words are damaged.
            let [lost_clear, lost] = if lost.iter().all(|it| *it <= count) { lost } else { [0; 2] };
            if lost_clear > since {
                asked.missed.push(node);
                asked.clears.all = true;
            }
            // A count that is damaged names no line that can be read.
            asked.numbers[node.index()] = since.max(lost);
            let first = since.max(lost).saturating_add(1);
            let lines = usize::try_from(DIRECTIVES).unwrap_or(usize::MAX);
            new.extend((first..=count).take(lines).map(|number| (node, number)));
        }
        // MEM-M4: the counts were seen, now the lines.
        let line = |(node, number): &(NodeId, u64)| areas.directives(*node).line(*number);
        refresh_all(fabric, new.iter().filter(|it| it.0 != me).map(|it| line(it).range()));
        for it in &new {
            let said = line(it).cached(fabric).ok().and_then(|line| line.directive(it.1));
            let last = &mut asked.numbers[it.0.index()];
            if let Some(directive) = said.filter(|_| *last + 1 == it.1) {
                *last = it.1;
                asked.clears.add(&directive);
            }
        }
        Ok(asked)
    }
}

impl DriveAnnouncer {
    /// Answers the nodes that this node's drives have nothing any more of what they asked to clear, up
    /// to these directives (CLEAR-D8). An answer never goes back.
    ///
    /// # Errors
    /// [`DriveError::MembershipLost`].
    pub fn answer_clears<B: Backend>(
        &self,
        cache: &Cache<'_, B>,
        numbers: &ClearNumbers,
    ) -> Result<(), DriveError> {
        cache.check_member()?;
        let fabric = cache.member().fabric();
        let own = cache.own_drives(self.drives);
        let mut batch = PublishBatch::new(fabric);
        for node in self.drives.nodes() {
            let word = own.cleared(node);
            if word.own(fabric) < numbers[node.index()] {
                batch.word(word, numbers[node.index()]);
            }
        }
        batch.publish();
        Ok(())
    }
}
