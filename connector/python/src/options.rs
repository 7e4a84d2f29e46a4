//! How the process of a pool works, as Python says it.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;
use rackline::{AsyncOptions, Namespace, PoolOptions, Quota, Watermarks};

use crate::error::{error, number};
use crate::listed::Listed;

/// A number that was given: any, so that one out of range is told by its name.
pub(crate) type GivenNumber<'py> = Option<Bound<'py, PyAny>>;

/// The options that were given; what was not has its default.
pub(crate) struct Given<'py> {
    pub(crate) copy_threads: GivenNumber<'py>,
    pub(crate) fetch_threads: GivenNumber<'py>,
    pub(crate) queue_depth: GivenNumber<'py>,
    pub(crate) high_watermark_percent: GivenNumber<'py>,
    pub(crate) low_watermark_percent: GivenNumber<'py>,
    pub(crate) quotas: Listed<GivenQuota>,
    pub(crate) bind_threads: bool,
}

impl Given<'_> {
    /// The options, checked.
    pub(crate) fn checked(&self) -> PyResult<AsyncOptions> {
        let high = within("high_watermark_percent", &self.high_watermark_percent)?;
        let low = within("low_watermark_percent", &self.low_watermark_percent)?;
        let watermarks = Watermarks::of_chosen(high, low).map_err(error)?;
        let mut pool = PoolOptions::new().with_watermarks(watermarks);
        for GivenQuota(namespace, quota) in &*self.quotas {
            pool = pool.with_quota(*namespace, *quota);
        }
        let mut options = AsyncOptions::new().with_pool(pool).with_bound_threads(self.bind_threads);
        if let Some(threads) = within("copy_threads", &self.copy_threads)? {
            options = options.with_copy_threads(threads);
        }
        if let Some(threads) = within("fetch_threads", &self.fetch_threads)? {
            options = options.with_fetch_threads(threads);
        }
        if let Some(depth) = within("queue_depth", &self.queue_depth)? {
            options = options.with_queue_depth(depth);
        }
        options.check().map_err(error)?;
        Ok(options)
    }
}

/// The number as one of the type that it is wanted in.
fn within<T>(name: &str, given: &GivenNumber<'_>) -> PyResult<Option<T>>
where
    T: for<'a, 'py> FromPyObject<'a, 'py>,
{
    given.as_ref().map(|given| number(name, given)).transpose()
}

/// A quota, and whose: `{"tenant": "a", "salt": b"", "bytes": 1 << 30}`, or `"percent"` for bytes.
pub(crate) struct GivenQuota(Namespace, Quota);

impl FromPyObject<'_, '_> for GivenQuota {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let Ok(dict) = given.cast::<PyDict>() else {
            return Err(error(format!("a quota is {}: no dict", &*given)));
        };
        // A copy: a value may compute its number by code that changes the dict.
        let dict = dict.copy()?;
        let (mut tenant, mut salt) = (String::new(), None);
        let (mut bytes, mut percent) = (None, None);
        for (name, value) in dict.iter() {
            let wrong = |what: &str| error(format!("{what} of a quota is {value}"));
            match name.extract::<String>().unwrap_or_default().as_str() {
                "tenant" => tenant = value.extract().map_err(|_| wrong("the tenant"))?,
                "salt" => {
                    let given = value.extract::<PyBackedBytes>();
                    salt = Some(given.map_err(|_| wrong("the salt"))?);
                }
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
        let salt = salt.as_deref().unwrap_or_default();
        Ok(Self(Namespace::new(&tenant, salt), quota))
    }
}

/// Refuses impossible options of a pool, as attaching does.
#[pyfunction]
#[pyo3(signature = (
    *, copy_threads = None, fetch_threads = None, queue_depth = None,
    high_watermark_percent = None, low_watermark_percent = None, quotas = Listed::default(),
    bind_threads = true,
))]
pub(crate) fn check_pool_options(
    copy_threads: GivenNumber<'_>,
    fetch_threads: GivenNumber<'_>,
    queue_depth: GivenNumber<'_>,
    high_watermark_percent: GivenNumber<'_>,
    low_watermark_percent: GivenNumber<'_>,
    quotas: Listed<GivenQuota>,
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
