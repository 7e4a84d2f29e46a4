//! The pool as routers see it.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rackline::{Index as RackIndex, IndexError, IndexedModel, Namespace, SessionOptions};

use crate::error::{Forked, error, number};
use crate::model::Model;
use crate::records::Hashes;

/// A read-only view of a pool.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct Index {
    index: RackIndex,
}

/// The blocks of one rank of a model, in an index.
#[pyclass(frozen, module = "rackline")]
pub(crate) struct IndexModel {
    model: IndexedModel,
}

/// How long a prefix the pool has, and where.
#[pyclass(frozen, get_all, module = "rackline")]
pub(crate) struct IndexPrefix {
    blocks: usize,
    nodes: Py<PyDict>,
}

#[pymethods]
impl Index {
    #[new]
    fn new(py: Python<'_>, region: PathBuf) -> PyResult<Self> {
        py.import("rackline.log")?.call_method0("start")?;
        let index = py.detach(|| RackIndex::open(&region)).map_err(no_answer)?;
        Ok(Self { index })
    }

    /// Blocks as sessions with the same arguments store them.
    #[staticmethod]
    #[pyo3(signature = (model, block_bytes, *, tenant = "", salt = b"".as_slice()))]
    fn model(
        model: &Model,
        block_bytes: &Bound<'_, PyAny>,
        tenant: &str,
        salt: &[u8],
    ) -> PyResult<IndexModel> {
        let block_bytes = number("block_bytes", block_bytes)?;
        let options = SessionOptions::new(model.model(), block_bytes)
            .with_namespace(Namespace::new(tenant, salt));
        Ok(IndexModel { model: IndexedModel::new(&options) })
    }

    /// Takes in what all nodes announced before the call.
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.index.refresh()).map_err(no_answer)
    }

    #[pyo3(signature = (hashes, *models, refresh = true))]
    fn prefix(
        &self,
        py: Python<'_>,
        hashes: Hashes,
        models: Vec<PyRef<'_, IndexModel>>,
        refresh: bool,
    ) -> PyResult<IndexPrefix> {
        if models.is_empty() {
            return Err(error("no model was given: pass the model of each rank (Index.model)"));
        }
        let models: Vec<_> = models.iter().map(|model| model.model.clone()).collect();
        let found = py.detach(|| {
            if refresh {
                self.index.prefix(&models, hashes.as_ref())
            } else {
                self.index.prefix_as_refreshed(&models, hashes.as_ref())
            }
        });
        let found = found.map_err(no_answer)?;
        let nodes = PyDict::new(py);
        for (node, parts) in found.parts() {
            nodes.set_item(node.0, parts)?;
        }
        Ok(IndexPrefix { blocks: found.blocks(), nodes: nodes.unbind() })
    }

    /// Blocks of all models in the pool, as of the last refresh.
    #[getter]
    fn blocks(&self) -> PyResult<usize> {
        self.index.blocks().map_err(no_answer)
    }
}

#[pymethods]
impl IndexPrefix {
    fn __len__(&self) -> usize {
        self.blocks
    }

    fn __repr__(&self) -> String {
        format!("IndexPrefix(blocks={}, nodes={})", self.blocks, self.nodes)
    }
}

fn no_answer(failure: IndexError) -> PyErr {
    match failure {
        IndexError::Forked => Forked::new_err(failure.to_string()),
        _ => error(failure),
    }
}
