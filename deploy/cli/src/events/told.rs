//! What routers were told, and have to be told next.
//!
//! - A block is told as stored when a record describes it and every rank's part is in the pool. What
//!   the record says alone is not enough: the block may be gone by then, or was never completed.
//! - A block that was told is told as removed when no node has the part of some rank any more, and no
//!   other block with its name is told: events do not tell models apart, and two models have equal names
//!   for equal tokens.
//! - A router may forget the blocks behind one that is removed. When that one is told as stored again,
//!   so are those behind it in its record.
//! - Only blocks that were told and are in the pool are kept: their number is bounded by the
//!   descriptors of the region.

use std::collections::{BTreeMap, HashMap, HashSet};

use kv_cache::IndexKey;
use rmpv::Value;

use super::record::{Name, Run};
use super::source::News;
use super::wire::Event;

/// The blocks that were told as stored.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// In the order in which they were told, so that a block comes after the block before it.
    runs: BTreeMap<u64, ToldRun>,
    next_run: u64,
    /// The block of each key.
    blocks: HashMap<IndexKey, Place>,
    /// How many told blocks have a name.
    names: HashMap<Name, u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    run: u64,
    block: usize,
}

#[derive(Debug)]
struct ToldRun {
    run: Run,
    /// Which of its blocks are told, and how many.
    is_told: Vec<bool>,
    told: usize,
}

impl Told {
    /// The events of what changed. `has` says whether a node has a block now.
    pub(super) fn take_in(&mut self, news: &News, has: impl Fn(IndexKey) -> bool) -> Vec<Event> {
        let mut events = self.removed(news.removed.iter().filter(|key| !has(**key)));
        let mut stored = HashSet::new();
        for run in news.records.iter().flat_map(|record| &record.runs) {
            self.store(run, &has, &mut stored, &mut events);
        }
        events
    }

    /// Everything that is told, for a subscriber that knows nothing.
    pub(super) fn stored(&self) -> impl Iterator<Item = Event> {
        self.runs.values().flat_map(|told| told.run.stored(&told.is_told))
    }

    fn removed<'a>(&mut self, keys: impl Iterator<Item = &'a IndexKey>) -> Vec<Event> {
        let mut names: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
        let mut fields = HashMap::new();
        for key in keys {
            let Some(place) = self.blocks.get(key).copied() else { continue };
            let Some(told) = self.runs.get_mut(&place.run) else { continue };
            for key in told.run.keys(place.block) {
                self.blocks.remove(&key);
            }
            told.is_told[place.block] = false;
            told.told -= 1;
            let name = &told.run.names[place.block];
            if forget(&mut self.names, name) {
                names.entry(place.run).or_default().push(name.value());
                fields.entry(place.run).or_insert_with(|| told.run.fields_of_removal());
            }
            if told.told == 0 {
                self.runs.remove(&place.run);
            }
        }
        let event = |(run, names): (u64, Vec<Value>)| {
            let mut event = vec![("block_hashes".into(), Value::Array(names))];
            event.extend(fields.remove(&run).unwrap_or_default());
            Event::BlockRemoved(event)
        };
        names.into_iter().map(event).collect()
    }

    /// Tells those blocks of a run that are there and were not told yet, and those behind them.
    /// `stored` are the names that were told just now.
    fn store<'a>(
        &mut self,
        run: &'a Run,
        has: &impl Fn(IndexKey) -> bool,
        stored: &mut HashSet<&'a Name>,
        events: &mut Vec<Event>,
    ) {
        let number = self.next_run;
        let (mut is_new, mut tells) =
            (vec![false; run.hashes.len()], vec![false; run.hashes.len()]);
        let mut before = run.parent.as_ref();
        for (block, name) in run.names.iter().enumerate() {
            let keys: Vec<_> = run.keys(block).collect();
            let is_known = keys.iter().any(|key| self.blocks.contains_key(key));
            is_new[block] = !is_known && keys.iter().all(|key| has(*key));
            let again = is_known && before.is_some_and(|before| stored.contains(before));
            tells[block] = is_new[block] || again;
            if tells[block] {
                stored.insert(name);
            }
            if is_new[block] {
                *self.names.entry(name.clone()).or_default() += 1;
                self.blocks.extend(keys.into_iter().map(|key| (key, Place { run: number, block })));
            }
            before = Some(name);
        }
        events.extend(run.stored(&tells));
        let told = is_new.iter().filter(|is_new| **is_new).count();
        if told > 0 {
            self.runs.insert(number, ToldRun { run: run.clone(), is_told: is_new, told });
            self.next_run += 1;
        }
    }
}

/// Whether no told block has the name any more, now that one less has it.
fn forget(names: &mut HashMap<Name, u32>, name: &Name) -> bool {
    match names.get_mut(name) {
        Some(count) if *count > 1 => {
            *count -= 1;
            false
        }
        _ => names.remove(name).is_some(),
    }
}

impl Run {
    /// The keys of a block, one of each rank.
    fn keys(&self, block: usize) -> impl Iterator<Item = IndexKey> {
        self.spaces.iter().map(move |space| space.key(&self.hashes[block]).index())
    }

    /// An event for each range of blocks that are told.
    fn stored(&self, is_told: &[bool]) -> Vec<Event> {
        let mut events = Vec::new();
        let mut first = 0;
        while let Some(skipped) = is_told[first..].iter().position(|is_told| *is_told) {
            first += skipped;
            let rest = &is_told[first..];
            let end = first + rest.iter().position(|is_told| !is_told).unwrap_or(rest.len());
            events.push(self.stored_range(first..end));
            first = end;
        }
        events
    }

    fn stored_range(&self, blocks: std::ops::Range<usize>) -> Event {
        let tokens = blocks.start * self.block_tokens..blocks.end * self.block_tokens;
        let tokens = self.token_ids[tokens].iter().map(|token| Value::from(*token)).collect();
        let parent = match blocks.start.checked_sub(1) {
            Some(before) => Some(&self.names[before]),
            None => self.parent.as_ref(),
        };
        let names = self.names[blocks.clone()].iter().map(Name::value).collect();
        let mut event = vec![
            ("block_hashes".into(), Value::Array(names)),
            ("parent_block_hash".into(), parent.map_or(Value::Nil, Name::value)),
            ("token_ids".into(), Value::Array(tokens)),
            ("block_size".into(), self.block_tokens.into()),
        ];
        if let Some(keys) = &self.extra_keys {
            event.push(("extra_keys".into(), Value::Array(keys[blocks].to_vec())));
        }
        event.extend(self.others.iter().cloned());
        Event::BlockStored(event)
    }

    /// The fields that a removal has of its store.
    fn fields_of_removal(&self) -> Vec<(Value, Value)> {
        const FIELDS: [&str; 4] = ["medium", "group_idx", "locality", "ownership"];
        let is_of_both =
            |(name, _): &&(Value, Value)| name.as_str().is_some_and(|name| FIELDS.contains(&name));
        self.others.iter().filter(is_of_both).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::record::tests::{encoded, sample};
    use super::super::record::{self, Record};
    use super::*;
    use kv_cache::{BlockHash, KeySpace, Namespace};

    /// The key of a block of `sample`.
    fn key(number: u8) -> IndexKey {
        record::key_space().key(&BlockHash::new([number; 32])).index()
    }

    fn pool(numbers: impl IntoIterator<Item = u8>) -> HashSet<IndexKey> {
        numbers.into_iter().map(key).collect()
    }

    fn records(first: u8, blocks: u8) -> News {
        let record = Record::decode(&encoded(&sample(first, blocks))).unwrap();
        News { records: vec![record], ..News::default() }
    }

    fn removed(numbers: impl IntoIterator<Item = u8>) -> News {
        News { removed: numbers.into_iter().map(key).collect(), ..News::default() }
    }

    /// Kind, blocks and parent of each event.
    fn said(events: &[Event]) -> Vec<(&'static str, Vec<u64>, Option<u64>)> {
        let field = |fields: &[(Value, Value)], wanted: &str| {
            let found = fields.iter().find(|(name, _)| name.as_str() == Some(wanted));
            found.map(|(_, value)| value.clone()).unwrap_or(Value::Nil)
        };
        let names = |fields: &[(Value, Value)]| {
            let names = field(fields, "block_hashes");
            names.as_array().unwrap().iter().map(|name| name.as_u64().unwrap()).collect()
        };
        let event = |event: &Event| match event {
            Event::BlockStored(fields) => {
                ("stored", names(fields), field(fields, "parent_block_hash").as_u64())
            }
            Event::BlockRemoved(fields) => {
                assert_eq!(field(fields, "medium").as_str(), Some("CPU"));
                ("removed", names(fields), None)
            }
            Event::AllBlocksCleared => ("cleared", vec![], None),
        };
        events.iter().map(event).collect()
    }

    #[test]
    fn what_is_described_and_there_is_told_once() {
        let mut told = Told::default();
        let there = pool(1..=4);
        let events = told.take_in(&records(1, 4), |key| there.contains(&key));
        assert_eq!(said(&events), [("stored", vec![1, 2, 3, 4], None)]);
        assert_eq!(told.take_in(&records(1, 4), |key| there.contains(&key)), []);
        assert_eq!(said(&told.stored().collect::<Vec<_>>()), [("stored", vec![1, 2, 3, 4], None)]);
    }

    #[test]
    fn what_is_not_there_is_not_told() {
        let mut told = Told::default();
        let there = pool([1, 3, 4]);
        let events = told.take_in(&records(1, 5), |key| there.contains(&key));
        assert_eq!(said(&events), [("stored", vec![1], None), ("stored", vec![3, 4], Some(2))]);
        assert_eq!(told.take_in(&removed([2, 5]), |_| false), []);
        assert_eq!(told.take_in(&records(9, 1), |_| false), []);
        assert_eq!((told.runs.len(), told.blocks.len()), (1, 3), "nothing else is kept");
    }

    #[test]
    fn what_goes_is_told_when_no_copy_is_left() {
        let mut told = Told::default();
        told.take_in(&records(1, 3), |_| true);
        assert_eq!(told.take_in(&removed([2]), |_| true), [], "another node has it");
        let events = told.take_in(&removed([2, 3]), |_| false);
        assert_eq!(said(&events), [("removed", vec![2, 3], None)]);
        assert_eq!(told.take_in(&removed([2, 3]), |_| false), []);
        assert_eq!(said(&told.stored().collect::<Vec<_>>()), [("stored", vec![1], None)]);
        // Saved again later.
        let events = told.take_in(&records(1, 3), |_| true);
        assert_eq!(said(&events), [("stored", vec![2, 3], Some(1))]);
        told.take_in(&removed([1, 2, 3]), |_| false);
        assert_eq!((told.runs.len(), told.blocks.len()), (0, 0));
    }
    /// One block of another model, with the same name: a router cannot tell them apart.
    #[test]
    fn a_name_is_told_as_removed_when_no_model_has_it() {
        let other = KeySpace::new(record::key_space().fingerprint(), Namespace::new("b", b""), 1);
        let Value::Array(mut fields) = sample(1, 2) else { unreachable!() };
        fields[3] = Value::Array(vec![Value::Binary(other.to_bytes().to_vec())]);
        let record = Record::decode(&encoded(&Value::Array(fields))).unwrap();
        let of_other = News { records: vec![record], ..News::default() };
        let mut told = Told::default();
        told.take_in(&records(1, 2), |_| true);
        let events = told.take_in(&of_other, |_| true);
        assert_eq!(said(&events), [("stored", vec![1, 2], None)]);
        assert_eq!(told.take_in(&removed([1, 2]), |_| false), [], "the other model has them");
        let key = |number: u8| other.key(&BlockHash::new([number; 32])).index();
        let gone = News { removed: vec![key(1), key(2)], ..News::default() };
        assert_eq!(said(&told.take_in(&gone, |_| false)), [("removed", vec![1, 2], None)]);
        assert_eq!((told.runs.len(), told.blocks.len(), told.names.len()), (0, 0, 0));
    }

    /// A router's tree drops what is behind a removed block; those blocks are in the pool.
    #[test]
    fn what_is_behind_a_block_that_comes_back_is_told_again() {
        let mut told = Told::default();
        told.take_in(&records(1, 5), |_| true);
        told.take_in(&removed([2]), |_| false);
        let events = told.take_in(&records(1, 5), |key| pool([1, 2, 3, 5]).contains(&key));
        assert_eq!(said(&events), [("stored", vec![2, 3, 4, 5], Some(1))]);
        // Also where the record ends between them.
        told.take_in(&removed([3]), |_| false);
        let mut both = records(1, 3);
        both.records.extend(records(4, 2).records);
        both.records[1].runs[0].parent = Some(Name::Number(3));
        let events = told.take_in(&both, |_| true);
        assert_eq!(said(&events), [("stored", vec![3], Some(2)), ("stored", vec![4, 5], Some(3))]);
        let kept = said(&told.stored().collect::<Vec<_>>());
        let names: usize = kept.iter().map(|(_, names, _)| names.len()).sum();
        assert_eq!((names, told.blocks.len(), told.names.len()), (5, 5, 5));
    }
}
