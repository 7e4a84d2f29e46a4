//! Conversations as token ids, in the model's chat format (ChatML).
//!
//! ```text
//! <|im_start|>system\n...<|im_end|>\n<|im_start|>user\n...<|im_end|>\n<|im_start|>assistant\n
//! ```
//! A conversation only ever grows: the prompt of a turn is the prompt before, the tokens that were
//! generated for it, and the next question. So all turns, and all conversations with the same
//! system text, share their prefix token for token.

use crate::tokenizer::{Tokenizer, TokenizerError};

/// A conversation so far.
#[derive(Debug, Clone)]
pub struct Conversation<'a> {
    tokenizer: &'a Tokenizer,
    marks: Marks,
    tokens: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Marks {
    start: u32,
    end: u32,
}

impl<'a> Conversation<'a> {
    /// Starts a conversation with a system text.
    ///
    /// # Errors
    /// The vocabulary has no chat marks, or the text cannot be encoded.
    pub fn new(tokenizer: &'a Tokenizer, system: &str) -> Result<Self, TokenizerError> {
        let mark = |token: &str| {
            let id = tokenizer.id(token);
            id.ok_or_else(|| TokenizerError::Vocabulary(format!("there is no token {token:?}")))
        };
        let marks = Marks { start: mark("<|im_start|>")?, end: mark("<|im_end|>")? };
        let mut conversation = Self { tokenizer, marks, tokens: Vec::new() };
        conversation.message("system", system)?;
        Ok(conversation)
    }

    /// Adds a question and the start of the assistant's answer; returns the prompt so far.
    ///
    /// # Errors
    /// The text cannot be encoded.
    pub fn ask(&mut self, question: &str) -> Result<&[u32], TokenizerError> {
        self.message("user", question)?;
        self.tokens.push(self.marks.start);
        self.tokens.extend(self.tokenizer.encode("assistant\n")?);
        Ok(&self.tokens)
    }

    /// Adds the answer as it was generated, without its end mark.
    ///
    /// # Errors
    /// The line break behind it cannot be encoded.
    pub fn answer(&mut self, generated: &[u32]) -> Result<(), TokenizerError> {
        self.tokens.extend_from_slice(generated);
        self.end_message()
    }

    /// The tokens so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    fn message(&mut self, role: &str, content: &str) -> Result<(), TokenizerError> {
        self.tokens.push(self.marks.start);
        self.tokens.extend(self.tokenizer.encode(&format!("{role}\n{content}"))?);
        self.end_message()
    }

    fn end_message(&mut self) -> Result<(), TokenizerError> {
        self.tokens.push(self.marks.end);
        self.tokens.extend(self.tokenizer.encode("\n")?);
        Ok(())
    }
}
