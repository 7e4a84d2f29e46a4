//! A plan as bytes, for the broadcast of an engine.

use std::collections::BTreeSet;

use minicbor::{Decoder, Encoder};

use super::moves::{Installed, Whereabouts};

/// The first number of a message. Another form of the message has another one.
const FORM: u8 = 2;

/// A plan for all ranks: it says of every request where its layers are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanMessage {
    /// Its number: the first plan is 1.
    pub version: u64,
    /// Layers of the model.
    pub layers: u16,
    /// Where the KV of the requests is to be.
    pub installed: Installed,
}

/// Why bytes are no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The bytes end early, or something else stands where a number is expected.
    #[error("the plan cannot be read ({reason}): broadcast it as it was encoded, with its length")]
    Unreadable {
        /// What was found.
        reason: String,
    },
    /// Bytes follow the plan.
    #[error("{bytes} bytes follow the plan: broadcast it with its length, without padding")]
    TooLong {
        /// How many.
        bytes: usize,
    },
    /// It was encoded by another version of this library.
    #[error(
        "the plan has form {form}, this process reads form {FORM}: run one version on all ranks"
    )]
    Form {
        /// What was found.
        form: u8,
    },
    /// Something in it is beyond what can be planned, or is not in order.
    #[error("the plan is none of this library ({what}): do not change what was encoded")]
    Invalid {
        /// What is wrong.
        what: String,
    },
}

impl From<minicbor::decode::Error> for MessageError {
    fn from(error: minicbor::decode::Error) -> Self {
        Self::Unreadable { reason: error.to_string() }
    }
}

impl PlanMessage {
    /// The bytes, for [`decode`](Self::decode).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::new(Vec::new());
        self.write(&mut encoder).expect("numbers go into a vector");
        encoder.into_writer()
    }

    fn write(
        &self,
        to: &mut Encoder<Vec<u8>>,
    ) -> Result<(), minicbor::encode::Error<std::convert::Infallible>> {
        let requests = &self.installed.requests;
        to.u8(FORM)?.u64(self.version)?.u16(self.layers)?.array(requests.len() as u64)?;
        for (id, at) in requests {
            to.u64(*id)?.u64(at.since)?.bool(at.running)?.array(at.offloaded.len() as u64)?;
            for layer in &at.offloaded {
                to.u16(*layer)?;
            }
        }
        Ok(())
    }

    /// The plan in `bytes`, all of which it takes.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut from = Decoder::new(bytes);
        let form = from.u8()?;
        if form != FORM {
            return Err(MessageError::Form { form });
        }
        let (version, layers) = (from.u64()?, from.u16()?);
        let mut installed = Installed::default();
        let mut last = None;
        // Each takes more than a byte.
        for _ in 0..length(&mut from, bytes.len())? {
            let id = from.u64()?;
            if last.is_some_and(|last| last >= id) {
                return Err(invalid(format!("request {id} is not in order")));
            }
            last = Some(id);
            let at = whereabouts(&mut from, layers)?;
            if !(1..=version).contains(&at.since) {
                return Err(invalid(format!("plan {} told of request {id} first", at.since)));
            }
            installed.requests.insert(id, at);
        }
        match bytes.len() - from.position() {
            0 => Ok(Self { version, layers, installed }),
            bytes => Err(MessageError::TooLong { bytes }),
        }
    }
}

fn whereabouts(from: &mut Decoder<'_>, layers: u16) -> Result<Whereabouts, MessageError> {
    let since = from.u64()?;
    let running = from.bool()?;
    let mut offloaded = BTreeSet::new();
    for _ in 0..length(from, layers.into())? {
        let layer = from.u16()?;
        let in_order = offloaded.last().is_none_or(|last| *last < layer);
        if !(1..=layers).contains(&layer) || !in_order {
            return Err(invalid(format!("layer {layer} of {layers} is not in order")));
        }
        offloaded.insert(layer);
    }
    Ok(Whereabouts { since, running, offloaded })
}

/// The length of a list, which has at most `most` entries.
fn length(from: &mut Decoder<'_>, most: usize) -> Result<u64, MessageError> {
    match from.array()? {
        Some(length) if length <= most as u64 => Ok(length),
        Some(length) => Err(invalid(format!("a list has {length} entries, {most} at most"))),
        None => Err(invalid("a list has no length".to_owned())),
    }
}

fn invalid(what: String) -> MessageError {
    MessageError::Invalid { what }
}
