//! Greedy decoding.

use std::ops::ControlFlow;

use crate::error::ForwardError;
use crate::kv::KvCache;
use crate::model::Logits;
use crate::tokenizer::Tokenizer;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended it.
    EndOfText,
    /// It reached the number of tokens allowed.
    MaxTokens,
    /// The caller ended it.
    Caller,
}

/// A generated answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its tokens, without the one that ended it.
    pub tokens: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Why it ended.
    pub stop: StopReason,
}

/// Generates the answer to a prompt: always the token with the highest score.
///
/// `kv` holds the prompt and `logits` are the scores behind it, both from
/// [`Model::forward`](crate::Model::forward). `next` computes one token more.
/// `on_text` is called once for every token with the text it completed, which is empty while a
/// character is split over tokens; it may end the answer.
///
/// Afterwards `kv` holds the prompt and every token of the answer but possibly the last, which is
/// computed only when another one follows.
///
/// # Errors
/// A forward pass failed, for example because the cache is full.
pub fn answer(
    tokenizer: &Tokenizer,
    logits: Logits,
    kv: &mut KvCache,
    max_tokens: usize,
    next: &mut dyn FnMut(u32, &mut KvCache) -> Result<Logits, ForwardError>,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Answer, ForwardError> {
    let mut answer =
        Answer { tokens: Vec::new(), text: String::new(), stop: StopReason::MaxTokens };
    let mut stream = tokenizer.stream();
    let mut logits = logits;
    while answer.tokens.len() < max_tokens {
        let token = logits.best();
        if token == tokenizer.end_of_text() {
            answer.stop = StopReason::EndOfText;
            break;
        }
        answer.tokens.push(token);
        let text = stream.push(token);
        answer.text.push_str(&text);
        if on_text(&text).is_break() {
            answer.stop = StopReason::Caller;
            break;
        }
        if answer.tokens.len() < max_tokens {
            logits = next(token, kv)?;
        }
    }
    let rest = stream.finish();
    if !rest.is_empty() {
        answer.text.push_str(&rest);
        // The answer has ended; there is nothing left to break off.
        let _ = on_text(&rest);
    }
    Ok(answer)
}
