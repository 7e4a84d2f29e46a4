//! vLLM's wire format of KV events: a batch is an array, an event a map with its type.

use rmpv::Value;

/// An event.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Event {
    /// Blocks are in the pool.
    BlockStored(Vec<(Value, Value)>),
    /// Blocks are not in the pool any more.
    BlockRemoved(Vec<(Value, Value)>),
    /// Every block that was told is gone.
    AllBlocksCleared,
}

/// Events with one number.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Batch {
    pub(super) since_epoch_s: f64,
    pub(super) events: Vec<Event>,
}

impl Batch {
    /// The payload of a message.
    pub(super) fn encode(self) -> Vec<u8> {
        let events = self.events.into_iter().map(Event::into_value).collect();
        // The pool has no ranks of data parallelism: it is rank 0.
        let batch = Value::Array(vec![self.since_epoch_s.into(), Value::Array(events), 0.into()]);
        let mut payload = Vec::new();
        rmpv::encode::write_value(&mut payload, &batch).expect("a vector takes all bytes");
        payload
    }
}

impl Event {
    fn into_value(self) -> Value {
        let (kind, mut fields) = match self {
            Self::BlockStored(fields) => ("BlockStored", fields),
            Self::BlockRemoved(fields) => ("BlockRemoved", fields),
            Self::AllBlocksCleared => ("AllBlocksCleared", Vec::new()),
        };
        fields.insert(0, ("type".into(), kind.into()));
        Value::Map(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_what_vllm_encodes() {
        let events = vec![
            Event::AllBlocksCleared,
            Event::BlockRemoved(vec![("block_hashes".into(), Value::Array(vec![3.into()]))]),
        ];
        let payload = Batch { since_epoch_s: 0.5, events }.encode();
        // msgspec.msgpack.encode([0.5, [{"type": "AllBlocksCleared"}, {...}], 0])
        let mut expected = vec![0x93, 0xcb, 0x3f, 0xe0, 0, 0, 0, 0, 0, 0, 0x92];
        expected.extend(b"\x81\xa4type\xb0AllBlocksCleared");
        expected.extend(b"\x82\xa4type\xacBlockRemoved\xacblock_hashes\x91\x03");
        expected.push(0);
        assert_eq!(payload, expected);
    }
}
