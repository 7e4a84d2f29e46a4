//! One open GGUF file: its metadata by key, its tensors by name.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use candle_core::Device;
use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{Content, Value};

/// Why a GGUF file could not be opened or does not hold what the engine needs.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file could not be opened.
    #[error("cannot open the model file {path}: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The header or a tensor could not be read.
    #[error("cannot read {what} of the model file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Which part.
        what: String,
        /// What the reader said.
        source: Box<candle_core::Error>,
    },
    /// A metadata key is missing or has another type.
    #[error("the model file {path} has no {expected} under {key:?}; it is not the expected model")]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The type the engine needs.
        expected: &'static str,
    },
}

/// An open GGUF file. Tensors are read on demand, so the file is never held in memory whole.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    file: BufReader<File>,
    content: Content,
}

impl Gguf {
    /// Opens `path` and reads its header. Does not verify a checksum: see
    /// [`model_file::verify`](crate::model_file::verify).
    ///
    /// # Errors
    /// The file cannot be opened, or is no GGUF file.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let file = File::open(path)
            .map_err(|source| GgufError::Open { path: path.to_path_buf(), source })?;
        let mut file = BufReader::new(file);
        let content = Content::read(&mut file).map_err(|source| GgufError::Read {
            path: path.to_path_buf(),
            what: "the header".to_owned(),
            source: Box::new(source),
        })?;
        Ok(Self { path: path.to_path_buf(), file, content })
    }

    /// The file this was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn usize(&self, key: &str) -> Result<usize, GgufError> {
        let value = match self.content.metadata.get(key) {
            Some(Value::U32(value)) => usize::try_from(*value).ok(),
            Some(Value::U64(value)) => usize::try_from(*value).ok(),
            _ => None,
        };
        value.ok_or_else(|| self.missing(key, "whole number"))
    }

    pub(crate) fn token_id(&self, key: &str) -> Result<u32, GgufError> {
        match self.content.metadata.get(key) {
            Some(Value::U32(value)) => Ok(*value),
            _ => Err(self.missing(key, "token id")),
        }
    }

    pub(crate) fn f32(&self, key: &str) -> Result<f32, GgufError> {
        match self.content.metadata.get(key) {
            Some(Value::F32(value)) => Ok(*value),
            _ => Err(self.missing(key, "f32")),
        }
    }

    pub(crate) fn string(&self, key: &str) -> Result<&str, GgufError> {
        match self.content.metadata.get(key) {
            Some(Value::String(value)) => Ok(value),
            _ => Err(self.missing(key, "string")),
        }
    }

    /// The strings of an array, in order.
    pub(crate) fn strings(&self, key: &str) -> Result<Vec<&str>, GgufError> {
        let strings = match self.content.metadata.get(key) {
            Some(Value::Array(values)) => values
                .iter()
                .map(|value| match value {
                    Value::String(value) => Some(value.as_str()),
                    _ => None,
                })
                .collect::<Option<Vec<_>>>(),
            _ => None,
        };
        strings.ok_or_else(|| self.missing(key, "array of strings"))
    }

    /// The whole numbers of an array, in order.
    pub(crate) fn i32s(&self, key: &str) -> Result<Vec<i32>, GgufError> {
        let numbers = match self.content.metadata.get(key) {
            Some(Value::Array(values)) => values
                .iter()
                .map(|value| match value {
                    Value::I32(value) => Some(*value),
                    _ => None,
                })
                .collect::<Option<Vec<_>>>(),
            _ => None,
        };
        numbers.ok_or_else(|| self.missing(key, "array of i32"))
    }

    /// Reads one tensor as it is stored.
    pub(crate) fn tensor(&mut self, name: &str) -> Result<QTensor, GgufError> {
        self.content.tensor(&mut self.file, name, &Device::Cpu).map_err(|source| GgufError::Read {
            path: self.path.clone(),
            what: format!("tensor {name:?}"),
            source: Box::new(source),
        })
    }

    pub(crate) fn missing(&self, key: &str, expected: &'static str) -> GgufError {
        GgufError::Metadata { path: self.path.clone(), key: key.to_owned(), expected }
    }
}
