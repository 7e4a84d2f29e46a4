//! Text to token ids and back, from the vocabulary in the model file.

use std::collections::HashMap;

use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;

use crate::gguf::{Gguf, GgufError};

/// The `tokenizer.ggml.token_type` of tokens that are no text.
const CONTROL: i32 = 3;

/// Why the tokenizer could not be built, or a text not encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The model file could not be read, or has another kind of tokenizer.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The vocabulary of the file contradicts itself.
    #[error("the vocabulary of the model file is damaged: {0}")]
    Vocabulary(String),
    /// The tokenizer refused a text.
    #[error("cannot encode a text of {bytes} bytes: {source}")]
    Encode {
        /// Bytes of the text.
        bytes: usize,
        /// What it said.
        source: tokenizers::Error,
    },
}

/// The model's tokenizer: byte-level BPE in which each digit is a token of its own.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    ids: HashMap<String, u32>,
    /// The bytes of each token; none for control tokens.
    bytes: Vec<Vec<u8>>,
    end_of_text: u32,
}

impl Tokenizer {
    /// Builds the tokenizer from the vocabulary and merges in `gguf`.
    ///
    /// # Errors
    /// The file has no SmolLM tokenizer.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        if gguf.string("tokenizer.ggml.pre")? != "smollm" {
            return Err(gguf.missing("tokenizer.ggml.pre", "value \"smollm\"").into());
        }
        let tokens = gguf.strings("tokenizer.ggml.tokens")?;
        let types = gguf.i32s("tokenizer.ggml.token_type")?;
        let merges = gguf
            .strings("tokenizer.ggml.merges")?
            .into_iter()
            .map(|merge| {
                let (left, right) = merge.split_once(' ').ok_or_else(|| damaged("merge", merge))?;
                Ok((left.to_owned(), right.to_owned()))
            })
            .collect::<Result<Vec<_>, TokenizerError>>()?;

        let ids: HashMap<String, u32> =
            tokens.iter().zip(0u32..).map(|(token, id)| ((*token).to_owned(), id)).collect();
        let vocabulary: Vocab = ids.iter().map(|(token, id)| (token.clone(), *id)).collect();
        let bpe = BPE::builder()
            .vocab_and_merges(vocabulary, merges)
            .build()
            .map_err(|error| TokenizerError::Vocabulary(error.to_string()))?;
        let mut inner = tokenizers::Tokenizer::new(bpe);
        let steps: Vec<PreTokenizerWrapper> =
            vec![Digits::new(true).into(), ByteLevel::new(false, true, true).into()];
        inner.with_pre_tokenizer(Some(Sequence::new(steps)));

        let from_char = byte_of_char();
        let mut bytes = Vec::with_capacity(tokens.len());
        let mut control = Vec::new();
        for (token, kind) in tokens.iter().zip(&types) {
            if *kind == CONTROL {
                control.push(AddedToken::from((*token).to_owned(), true));
                bytes.push(Vec::new());
                continue;
            }
            let text = token.chars().map(|char| from_char.get(&char).copied());
            bytes.push(text.collect::<Option<_>>().ok_or_else(|| damaged("token", token))?);
        }
        inner
            .add_special_tokens(control)
            .map_err(|error| TokenizerError::Vocabulary(error.to_string()))?;
        // A document may contain the text of a control token; it must not act as one.
        inner.set_encode_special_tokens(true);
        let end_of_text = gguf.token_id("tokenizer.ggml.eos_token_id")?;
        Ok(Self { inner, ids, bytes, end_of_text })
    }

    /// The tokens of `text`. Control tokens in it are read as plain text.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(|source| TokenizerError::Encode { bytes: text.len(), source })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `tokens`; control tokens have none, and broken UTF-8 becomes U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut stream = self.stream();
        let mut text: String = tokens.iter().map(|&token| stream.push(token)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// Starts decoding token by token.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, pending: Vec::new() }
    }

    /// The id of a token by its text in the vocabulary, for example `<|im_start|>`.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// The token that ends an answer.
    pub fn end_of_text(&self) -> u32 {
        self.end_of_text
    }
}

/// Decodes a stream of tokens into text that is always whole characters.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The start of a character whose other bytes are in later tokens.
    pending: Vec<u8>,
}

impl TextStream<'_> {
    /// Takes the next token and returns the text that is complete now, which may be empty.
    pub fn push(&mut self, token: u32) -> String {
        if let Some(bytes) = self.tokenizer.bytes.get(token as usize) {
            self.pending.extend_from_slice(bytes);
        }
        take_characters(&mut self.pending)
    }

    /// The rest: U+FFFD if the stream ended within a character.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// Removes the whole characters at the front of `pending`; bytes that can never become one are
/// replaced.
fn take_characters(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut taken = 0;
    for chunk in pending.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let invalid = chunk.invalid();
        let unfinished = taken + invalid.len() == pending.len() && is_start(invalid);
        if invalid.is_empty() || unfinished {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        taken += invalid.len();
    }
    pending.drain(..taken);
    text
}

/// Whether `bytes` could be the start of a character.
fn is_start(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

fn damaged(what: &str, text: &str) -> TokenizerError {
    TokenizerError::Vocabulary(format!("{what} {text:?}"))
}

/// The byte behind each character of a byte-level vocabulary: printable Latin-1 stands for itself,
/// the other bytes, in order, for the characters from U+0100.
fn byte_of_char() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = (0x100u32..).filter_map(char::from_u32);
    (0..=u8::MAX)
        .filter_map(|byte| {
            let char = if printable(byte) { Some(char::from(byte)) } else { next.next() };
            char.map(|char| (char, byte))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character() {
        let map = byte_of_char();
        assert_eq!(map.len(), 256);
        assert_eq!(map[&'A'], b'A');
        assert_eq!(map[&'\u{120}'], b' ');
        assert_eq!(map[&'\u{10A}'], b'\n');
    }

    #[test]
    fn characters_are_held_back_until_they_are_whole() {
        let mut pending = Vec::new();
        let mut pieces = Vec::new();
        for byte in "a\u{e9}\u{1f600}b".bytes() {
            pending.push(byte);
            pieces.push(take_characters(&mut pending));
        }
        assert_eq!(pieces, ["a", "", "\u{e9}", "", "", "", "\u{1f600}", "b"]);
        assert!(pending.is_empty());
    }

    #[test]
    fn bytes_that_never_become_a_character_are_replaced() {
        let mut pending = vec![0xE2, 0x82, b'x', 0xFF, 0xC3];
        assert_eq!(take_characters(&mut pending), "\u{FFFD}x\u{FFFD}");
        assert_eq!(pending, [0xC3]);
    }
}
