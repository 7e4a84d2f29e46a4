//! How the process of a pool works, as Python says it.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rackline::{AsyncOptions, Namespace, PoolOptions, Quota, Watermarks};

use crate::error::error;

/// The options that were given; what was not has its default. Numbers may be any, so that one out
/// of range is told by its name.
pub(crate) struct Given<'py> {
    pub(crate) copy_threads: Option<i64>,
    pub(crate) fetch_threads: Option<i64>,
    pub(crate) queue_depth: Option<i64>,
    pub(crate) high_watermark_percent: Option<i64>,
    pub(crate) low_watermark_percent: Option<i64>,
    pub(crate) quotas: Vec<Bound<'py, PyAny>>,
    pub(crate) bind_threads: bool,
}

impl Given<'_> {
    /// The options, checked.
    pub(crate) fn checked(&self) -> PyResult<AsyncOptions> {
        let high = within("high_watermark_percent", self.high_watermark_percent)?;
        let low = within("low_watermark_percent", self.low_watermark_percent)?;
        let watermarks = Watermarks::of_chosen(high, low).map_err(error)?;
        let mut pool = PoolOptions::new().with_watermarks(watermarks);
        for given in &self.quotas {
            let (namespace, quota) = quota(given)?;
            pool = pool.with_quota(namespace, quota);
        }
        let mut options = AsyncOptions::new().with_pool(pool).with_bound_threads(self.bind_threads);
        if let Some(threads) = within("copy_threads", self.copy_threads)? {
            options = options.with_copy_threads(threads);
        }
        if let Some(threads) = within("fetch_threads", self.fetch_threads)? {
            options = options.with_fetch_threads(threads);
        }
        if let Some(depth) = within("queue_depth", self.queue_depth)? {
            options = options.with_queue_depth(depth);
        }
        options.check().map_err(error)?;
        Ok(options)
    }
}

/// The number as one of the type that it is wanted in.
fn within<T: TryFrom<i64>>(name: &str, given: Option<i64>) -> PyResult<Option<T>> {
    let Some(given) = given else { return Ok(None) };
    let number = T::try_from(given);
    number.map(Some).map_err(|_| error(format!("{name} is {given}: out of range")))
}

/// A quota, and whose: `{"tenant": "a", "salt": b"", "bytes": 1 << 30}`, or `"percent"` for bytes.
fn quota(given: &Bound<'_, PyAny>) -> PyResult<(Namespace, Quota)> {
    let given =
        given.cast::<PyDict>().map_err(|_| error(format!("a quota is {given}: no dict")))?;
    let (mut tenant, mut salt) = (String::new(), Vec::<u8>::new());
    let (mut bytes, mut percent) = (None, None);
    for (name, value) in given.iter() {
        let wrong = |what: &str| error(format!("{what} of a quota is {value}"));
        match name.extract::<String>().unwrap_or_default().as_str() {
            "tenant" => tenant = value.extract().map_err(|_| wrong("the tenant"))?,
            "salt" => salt = value.extract().map_err(|_| wrong("the salt"))?,
            "bytes" => bytes = Some(value.extract::<u64>().map_err(|_| wrong("bytes"))?),
            "percent" => {
                percent = Some(value.extract::<u16>().map_err(|_| wrong("percent"))?);
            }
            _ => {
                return Err(error(format!(
                    "a quota has no {name}, but tenant, salt, and bytes or percent"
                )));
            }
        }
    }
    let quota = match (bytes, percent) {
        (Some(bytes), None) => Quota::Bytes(bytes),
        (None, Some(percent)) => Quota::Percent(percent),
        _ => {
            return Err(error(format!("the quota of {tenant:?} must have bytes, or percent")));
        }
    };
    Ok((Namespace::new(&tenant, &salt), quota))
}

/// Refuses impossible options of a pool, as attaching does.
#[pyfunction]
#[pyo3(signature = (
    *, copy_threads = None, fetch_threads = None, queue_depth = None,
    high_watermark_percent = None, low_watermark_percent = None, quotas = Vec::new(),
    bind_threads = true,
))]
pub(crate) fn check_pool_options(
    copy_threads: Option<i64>,
    fetch_threads: Option<i64>,
    queue_depth: Option<i64>,
    high_watermark_percent: Option<i64>,
    low_watermark_percent: Option<i64>,
    quotas: Vec<Bound<'_, PyAny>>,
    bind_threads: bool,
) -> PyResult<()> {
    let given = Given {
        copy_threads,
        fetch_threads,
        queue_depth,
        high_watermark_percent,
        low_watermark_percent,
        quotas,
        bind_threads,
    };
    given.checked().map(|_| ())
}
