//! Records: what an engine publishes about the blocks that it has saved, as a block of its own.
//!
//! A record is a MessagePack array, padded to [`RECORD_BYTES`]: the version, the hash under which the
//! record is published, the time, the key spaces of the engine's ranks, and *runs*. A run is the block
//! hashes of consecutive blocks, 32 bytes each, and the event `BlockStored` of vLLM for them.
//! `connector/python/rackline/vllm/event_records.py` writes them.

use kv_cache::{BlockHash, KeySpace, Model, Namespace};
use rmpv::Value;

/// Length of a record as a block.
pub(super) const RECORD_BYTES: u64 = 16 << 10;
/// Version of the content.
const VERSION: u64 = 1;
const HASH_BYTES: usize = 32;

/// What an engine saved.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Record {
    /// Under which the record is published. It begins with eight zeros.
    pub(super) hash: BlockHash,
    /// When the engine wrote it.
    pub(super) since_epoch_s: f64,
    pub(super) runs: Vec<Run>,
}

/// Consecutive blocks of a prompt, and what routers are told of them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Run {
    /// Those of the engine's ranks: a block is there when it is there in each.
    pub(super) spaces: Vec<KeySpace>,
    pub(super) hashes: Vec<BlockHash>,
    /// What the events call the blocks.
    pub(super) names: Vec<Name>,
    /// What the event calls the block before the first.
    pub(super) parent: Option<Name>,
    pub(super) token_ids: Vec<u32>,
    pub(super) block_tokens: usize,
    /// One for each block, where there are any.
    pub(super) extra_keys: Option<Vec<Value>>,
    /// The other fields of the event.
    pub(super) others: Vec<(Value, Value)>,
}

/// What the events call a block: vLLM's hash of it, whole or in part.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Name {
    /// An integer from 0 on.
    Number(u64),
    /// A negative integer.
    Negative(i64),
    /// The bytes of the hash.
    Bytes(Box<[u8]>),
}

impl Name {
    fn decode(value: &Value) -> Option<Self> {
        match value {
            Value::Integer(number) => match number.as_u64() {
                Some(number) => Some(Self::Number(number)),
                None => number.as_i64().map(Self::Negative),
            },
            Value::Binary(bytes) => Some(Self::Bytes(bytes.as_slice().into())),
            _ => None,
        }
    }

    pub(super) fn value(&self) -> Value {
        match self {
            Self::Number(number) => Value::from(*number),
            Self::Negative(number) => Value::from(*number),
            Self::Bytes(bytes) => Value::Binary(bytes.to_vec()),
        }
    }
}

/// The key space of records, the same in every engine.
pub(super) fn key_space() -> KeySpace {
    let model = Model {
        name: "rackline events",
        revision: "1",
        dtype: "messagepack",
        layout_version: 1,
        block_tokens: 1,
        tensor_parallel_rank: 0,
        tensor_parallel_size: 1,
        layers: 1,
        kv_heads: 1,
        head_dim: 1,
    };
    KeySpace::new(model.fingerprint(), Namespace::default(), RECORD_BYTES)
}

impl Record {
    /// The record in the bytes of a block; `None` when it is malformed, or of another version.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let Ok(Value::Array(fields)) = rmpv::decode::read_value(&mut bytes) else { return None };
        let [version, hash, time, spaces, runs] = <[Value; 5]>::try_from(fields).ok()?;
        if version.as_u64() != Some(VERSION) {
            return None;
        }
        let space = |bytes: &Value| Some(KeySpace::from_bytes(bytes.as_slice()?.try_into().ok()?));
        let spaces: Option<Vec<_>> = spaces.as_array()?.iter().map(space).collect();
        let spaces = spaces.filter(|spaces| !spaces.is_empty())?;
        let Value::Array(runs) = runs else { return None };
        let runs = runs.into_iter().map(|run| Run::decode(run, &spaces)).collect::<Option<_>>()?;
        let hash = BlockHash::new(hash.as_slice()?.try_into().ok()?);
        Some(Self { hash, since_epoch_s: time.as_f64()?, runs })
    }
}

impl Run {
    fn decode(value: Value, spaces: &[KeySpace]) -> Option<Self> {
        let Value::Array(fields) = value else { return None };
        let [hashes, Value::Map(event)] = <[Value; 2]>::try_from(fields).ok()? else {
            return None;
        };
        let (hashes, rest) = hashes.as_slice()?.as_chunks::<HASH_BYTES>();
        let mut run = Self {
            spaces: spaces.to_vec(),
            hashes: hashes.iter().map(|hash| BlockHash::new(*hash)).collect(),
            names: Vec::new(),
            parent: None,
            token_ids: Vec::new(),
            block_tokens: 0,
            extra_keys: None,
            others: Vec::new(),
        };
        for (name, value) in event {
            run.take_field(name, value)?;
        }
        let blocks = run.hashes.len();
        let is_whole = rest.is_empty()
            && blocks > 0
            && run.names.len() == blocks
            && run.block_tokens > 0
            && Some(run.token_ids.len()) == blocks.checked_mul(run.block_tokens)
            && run.extra_keys.as_ref().is_none_or(|keys| keys.len() == blocks);
        is_whole.then_some(run)
    }

    /// Takes in a field of the event; `None` when it is of another type.
    fn take_field(&mut self, name: Value, value: Value) -> Option<()> {
        match (name.as_str()?, value) {
            ("type", kind) => return (kind.as_str() == Some("BlockStored")).then_some(()),
            ("block_hashes", Value::Array(names)) => {
                self.names = names.iter().map(Name::decode).collect::<Option<_>>()?;
            }
            ("parent_block_hash", Value::Nil) => self.parent = None,
            ("parent_block_hash", parent) => self.parent = Some(Name::decode(&parent)?),
            ("token_ids", Value::Array(tokens)) => {
                let token = |token: &Value| u32::try_from(token.as_u64()?).ok();
                self.token_ids = tokens.iter().map(token).collect::<Option<_>>()?;
            }
            ("block_size", size) => self.block_tokens = usize::try_from(size.as_u64()?).ok()?,
            ("extra_keys", Value::Array(keys)) => {
                let is_right = |keys: &Value| keys.is_nil() || keys.is_array();
                self.extra_keys = Some(keys).filter(|keys| keys.iter().all(is_right));
                return self.extra_keys.as_ref().map(|_| ());
            }
            ("extra_keys", Value::Nil) => {}
            ("block_hashes" | "token_ids" | "extra_keys", _) => return None,
            (_, value) if is_other(&name, &value) => self.others.push((name, value)),
            _ => return None,
        }
        Some(())
    }
}

/// Whether another field of the event has a type that routers take: one of a wrong type would cost
/// them the whole batch.
fn is_other(name: &Value, value: &Value) -> bool {
    let is_right = match name.as_str() {
        Some("medium" | "locality" | "ownership" | "lora_name" | "session_id") => value.is_str(),
        Some("lora_id" | "group_idx") => value.is_i64() || value.is_u64(),
        _ => !(value.is_array() || value.is_map() || value.is_ext()),
    };
    value.is_nil() || is_right
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A record with one run of `blocks` blocks of two tokens, with hashes from `first` on.
    pub(in crate::events) fn sample(first: u8, blocks: u8) -> Value {
        let numbers = first..first + blocks;
        let hashes: Vec<u8> = numbers.clone().flat_map(|number| [number; HASH_BYTES]).collect();
        let event = vec![
            ("type", "BlockStored".into()),
            ("block_hashes", numbers.clone().map(Value::from).collect::<Vec<_>>().into()),
            ("parent_block_hash", Value::Nil),
            (
                "token_ids",
                numbers.flat_map(|number| [number, 7]).map(Value::from).collect::<Vec<_>>().into(),
            ),
            ("block_size", 2.into()),
            ("medium", "CPU".into()),
            ("group_idx", 0.into()),
        ];
        let event = event.into_iter().map(|(name, value)| (Value::from(name), value)).collect();
        let run = Value::Array(vec![Value::Binary(hashes), Value::Map(event)]);
        let spaces = Value::Array(vec![Value::Binary(key_space().to_bytes().to_vec())]);
        let hash = Value::Binary(vec![0; HASH_BYTES]);
        Value::Array(vec![VERSION.into(), hash, 1.5.into(), spaces, Value::Array(vec![run])])
    }

    pub(in crate::events) fn encoded(record: &Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, record).unwrap();
        bytes.resize(usize::try_from(RECORD_BYTES).unwrap(), 0);
        bytes
    }

    #[test]
    fn a_record_is_decoded_whatever_pads_it() {
        let record = Record::decode(&encoded(&sample(1, 3))).unwrap();
        assert_eq!((record.since_epoch_s, record.runs.len()), (1.5, 1));
        let run = &record.runs[0];
        assert_eq!(run.hashes, [1, 2, 3].map(|number| BlockHash::new([number; 32])));
        assert_eq!(run.token_ids, [1, 7, 2, 7, 3, 7]);
        assert_eq!((run.block_tokens, run.others.len()), (2, 2));
    }

    #[test]
    fn what_is_malformed_is_none() {
        let good = sample(1, 3);
        for (place, wrong) in [
            (0, Value::from(2)),
            (1, Value::Binary(vec![0; 31])),
            (3, Value::Array(vec![])),
            (3, Value::Array(vec![Value::Binary(vec![0; 23])])),
            (4, Value::Array(vec![Value::Nil])),
        ] {
            let Value::Array(mut fields) = good.clone() else { unreachable!() };
            fields[place] = wrong;
            assert_eq!(Record::decode(&encoded(&Value::Array(fields))), None, "field {place}");
        }
        assert_eq!(Record::decode(&[]), None);
        assert_eq!(Record::decode(&encoded(&Value::Nil)), None);
        assert_eq!(Record::decode(&encoded(&good)[..40]), None);
    }

    /// A record that nests arrays as deep as it is long is read without its stack.
    #[test]
    fn what_is_nested_deep_is_malformed() {
        for byte in [0x91, 0x81, 0xdd, 0xdf, 0xc6, 0xc9] {
            let bytes = vec![byte; usize::try_from(RECORD_BYTES).unwrap()];
            assert_eq!(Record::decode(&bytes), None, "{byte:#x}");
        }
    }

    #[test]
    fn a_run_whose_numbers_do_not_fit_is_malformed() {
        for (name, wrong) in [
            ("block_hashes", Value::Array(vec![1.into()])),
            ("token_ids", Value::Array(vec![1.into()])),
            ("token_ids", Value::from("text")),
            ("block_size", Value::from(0)),
            ("extra_keys", Value::Array(vec![Value::Nil])),
            ("extra_keys", Value::Array(vec![1.into(); 3])),
            ("block_hashes", Value::Array(vec![Value::from("name"); 3])),
            ("block_hashes", Value::Array(vec![Value::Array(vec![]); 3])),
            ("parent_block_hash", Value::from(1.5)),
            ("medium", Value::from(5)),
            ("lora_name", Value::Map(vec![])),
            ("group_idx", Value::from("0")),
            ("some_field_of_tomorrow", Value::Array(vec![Value::Nil; 9])),
            ("type", Value::from("BlockRemoved")),
        ] {
            let Value::Array(mut fields) = sample(1, 3) else { unreachable!() };
            let run = fields[4].as_array().unwrap()[0].as_array().unwrap();
            let mut event = run[1].as_map().unwrap().clone();
            event.retain(|(field, _)| field.as_str() != Some(name));
            event.push((name.into(), wrong));
            let run = Value::Array(vec![run[0].clone(), Value::Map(event)]);
            fields[4] = Value::Array(vec![run]);
            assert_eq!(Record::decode(&encoded(&Value::Array(fields))), None, "{name}");
        }
    }
}
