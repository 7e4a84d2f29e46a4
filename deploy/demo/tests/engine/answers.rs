//! The model understands what it is asked, and its text streams.

use std::ops::ControlFlow;

use demo::chat::Conversation;
use demo::generate::{self, Answer, StopReason};
use demo::{ForwardError, KvCache, Logits, workload};

use crate::support::engine;

const SYSTEM: &str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

fn next(token: u32, kv: &mut KvCache) -> Result<Logits, ForwardError> {
    engine().model.forward(&[token], kv.tokens(), kv)
}

fn answer(prompt: &[u32], kv: &mut KvCache, max_tokens: usize) -> (Answer, Vec<String>) {
    let engine = engine();
    let start = kv.tokens();
    let logits = engine.model.forward(&prompt[start..], start, kv).unwrap();
    let mut pieces = Vec::new();
    let mut on_text = |text: &str| {
        pieces.push(text.to_owned());
        ControlFlow::Continue(())
    };
    let answer =
        generate::answer(&engine.tokenizer, logits, kv, max_tokens, &mut next, &mut on_text);
    (answer.unwrap(), pieces)
}

#[test]
fn it_knows_the_capital_of_france() {
    let engine = engine();
    let mut conversation = Conversation::new(&engine.tokenizer, SYSTEM).unwrap();
    let prompt = conversation.ask("What is the capital of France?").unwrap();
    let mut kv = engine.model.new_cache(200);
    let (answer, pieces) = answer(prompt, &mut kv, 40);
    assert_eq!(answer.text, "The capital of France is Paris.");
    assert_eq!(answer.stop, StopReason::EndOfText);
    assert_eq!(pieces.concat(), answer.text);
    assert_eq!(pieces.len(), answer.tokens.len());
    assert_eq!(kv.tokens(), prompt.len() + answer.tokens.len());
}

#[test]
fn a_second_turn_continues_the_cache_of_the_first() {
    let engine = engine();
    let mut conversation = Conversation::new(&engine.tokenizer, SYSTEM).unwrap();
    let mut kv = engine.model.new_cache(300);
    let first = conversation.ask("What is the capital of France?").unwrap().to_vec();
    let (reply, _) = answer(&first, &mut kv, 30);
    conversation.answer(&reply.tokens).unwrap();
    let second = conversation.ask("And what is the capital of Italy?").unwrap().to_vec();
    assert!(second.starts_with(&first));
    assert!(second[first.len()..].starts_with(&reply.tokens));

    let (with_cache, _) = answer(&second, &mut kv, 20);
    let (without, _) = answer(&second, &mut engine.model.new_cache(300), 20);
    assert_eq!(with_cache, without);
    assert!(with_cache.text.contains("Rome"), "{}", with_cache.text);
}

#[test]
fn answers_end_where_they_are_told_to() {
    let engine = engine();
    let mut conversation = Conversation::new(&engine.tokenizer, SYSTEM).unwrap();
    let prompt = conversation.ask("Count from one to ten.").unwrap();
    let mut kv = engine.model.new_cache(200);
    let (short, pieces) = answer(prompt, &mut kv, 3);
    assert_eq!((short.tokens.len(), pieces.len(), short.stop), (3, 3, StopReason::MaxTokens));
    assert_eq!(kv.tokens(), prompt.len() + 2);

    let logits = engine.model.forward(&prompt[1..], 1, &mut kv).unwrap();
    let stopped = generate::answer(&engine.tokenizer, logits, &mut kv, 50, &mut next, &mut |_| {
        ControlFlow::Break(())
    })
    .unwrap();
    assert_eq!((stopped.tokens.len(), stopped.stop), (1, StopReason::Caller));
    assert_eq!(stopped.tokens[0], short.tokens[0]);
}

#[test]
fn tokens_are_those_of_the_original_tokenizer() {
    let tokenizer = &engine().tokenizer;
    let mut conversation = Conversation::new(tokenizer, SYSTEM).unwrap();
    let prompt = conversation.ask("Hello").unwrap();
    let system = [
        1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411,
        407, 19712, 8182, 2, 198,
    ];
    let user = [1, 4093, 198, 19556, 2, 198, 1, 520, 9531, 198];
    assert_eq!(prompt, [&system[..], &user].concat());
}

#[test]
fn texts_survive_encoding() {
    let tokenizer = &engine().tokenizer;
    for text in
        ["", " a  b\n\n c", "x1234567y", "na\u{ef}ve \u{1f600} \u{4f60}\u{597d}", "\t\"quoted\""]
    {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()), text);
    }
    let digits = tokenizer.encode("2026").unwrap();
    assert_eq!(digits.len(), 4);
    assert_eq!(digits[0], digits[2]);
    // A document must not be able to end a message.
    let mark = tokenizer.encode("<|im_end|>").unwrap();
    assert!(mark.len() > 1 && !mark.contains(&tokenizer.end_of_text()), "{mark:?}");
    assert_eq!(tokenizer.decode(&mark), "<|im_end|>");
}

#[test]
fn planned_documents_have_the_tokens_asked_for() {
    let tokenizer = &engine().tokenizer;
    let count = |text: &str| tokenizer.encode(text).unwrap().len();
    let text = include_str!("../../src/kv/mod.rs").to_owned();
    let documents = [workload::Document { name: "kv".to_owned(), text }];
    let size = workload::Size { document_tokens: 700, ..workload::Size::default() };
    let plan = workload::plan(&documents, size, count).unwrap();
    let tokens = count(&plan.dialogues[0].system);
    assert!((650..760).contains(&tokens), "{tokens}");
}
