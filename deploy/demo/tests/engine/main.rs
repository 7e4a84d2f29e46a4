//! The engine with the real model. The first run fetches the model file through
//! [`demo::model_file`]; all tests share it and one loaded model.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod answers;
mod bit_exact;
mod support;
