//! Figures: runs side by side, over values of one setting.

use serde::Serialize;

use crate::figures::Figures;
use crate::policy::PolicyKind;
use crate::run::{Settings, SimulateError, simulate};
use crate::workload::{Lengths, Order};

/// What differs from run to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// The promise: attainment over scales of the SLO.
    Slo,
    /// The mean length of prompts.
    Context,
    /// How bursty arrivals are.
    Arrivals,
    /// The largest batch.
    Batch,
    /// How many arrive.
    Load,
    /// Over how many GPUs each layer is divided.
    Tensor,
    /// Which waiting request is next.
    Order,
    /// Which parts of `ours` work.
    Ablation,
    /// Every k-th layer against all sets of layers, on a model of 6 layers.
    Search,
}

/// A value of a figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// What is written at the axis.
    pub label: String,
    settings: Settings,
}

/// The figures of one policy, one for each point.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Series {
    /// The name of the policy.
    pub policy: &'static str,
    /// In the order of the points.
    pub figures: Vec<Figures>,
}

impl Figure {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Slo,
        Self::Context,
        Self::Arrivals,
        Self::Batch,
        Self::Load,
        Self::Tensor,
        Self::Order,
        Self::Ablation,
        Self::Search,
    ];

    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slo => "slo",
            Self::Context => "context",
            Self::Arrivals => "arrivals",
            Self::Batch => "batch",
            Self::Load => "load",
            Self::Tensor => "tensor",
            Self::Order => "order",
            Self::Ablation => "ablation",
            Self::Search => "search",
        }
    }

    /// What is written under the axis.
    #[must_use]
    pub const fn axis(self) -> &'static str {
        match self {
            Self::Slo | Self::Ablation | Self::Search => "scale of the SLO",
            Self::Context => "mean tokens of a prompt",
            Self::Arrivals => "variation of the time between arrivals",
            Self::Batch => "requests of the largest batch",
            Self::Load => "load",
            Self::Tensor => "GPUs a layer",
            Self::Order => "next request",
        }
    }

    /// The policies that stand side by side.
    #[must_use]
    pub const fn policies(self) -> &'static [PolicyKind] {
        match self {
            Self::Ablation => &PolicyKind::ABLATION,
            Self::Search => &[PolicyKind::PlannerOnly, PolicyKind::FullSearch],
            _ => &PolicyKind::COMPARED,
        }
    }

    /// The values, each with the settings of its runs.
    #[must_use]
    pub fn points(self, settings: &Settings) -> Vec<Point> {
        let with = |label: String, change: &dyn Fn(&mut Settings)| {
            let mut settings = settings.clone();
            change(&mut settings);
            Point { label, settings }
        };
        match self {
            Self::Slo | Self::Ablation => [1.0, 1.25, 1.5, 2.0, 3.0, 5.0]
                .map(|scale| with(format!("{scale}"), &|it| it.slo_scale = scale))
                .into(),
            Self::Context => [8_000, 16_000, 24_000, 32_000, 48_000]
                .map(|tokens| {
                    let (_, output_tokens) = settings.lengths.means();
                    let lengths = Lengths::Drawn { prompt_tokens: tokens, output_tokens };
                    with(format!("{tokens}"), &|it| it.lengths = lengths.clone())
                })
                .into(),
            Self::Arrivals => [0.5, 1.0, 2.0, 4.0]
                .map(|cv| with(format!("{cv}"), &|it| it.arrival_cv = cv))
                .into(),
            Self::Batch => {
                [2, 4, 8, 12].map(|most| with(format!("{most}"), &|it| it.batch_max = most)).into()
            }
            Self::Load => [0.3, 0.5, 0.7, 0.9, 1.1]
                .map(|load| with(format!("{load}"), &|it| it.load = load))
                .into(),
            Self::Tensor => {
                [1, 2, 4].map(|ranks| with(format!("{ranks}"), &|it| it.ranks = ranks)).into()
            }
            Self::Order => [(Order::Arrival, "first come"), (Order::ShortestFirst, "shortest")]
                .map(|(order, label)| with(label.to_owned(), &|it| it.order = order))
                .into(),
            Self::Search => [1.0, 1.5, 2.0]
                .map(|scale| {
                    with(format!("{scale}"), &|it| {
                        it.slo_scale = scale;
                        it.profile.gpu_kv_bytes =
                            it.profile.gpu_kv_bytes * 6 / u64::from(it.profile.layers);
                        it.profile.layers = 6;
                        it.batch_max = it.batch_max.min(4);
                        it.requests = it.requests.min(50);
                    })
                })
                .into(),
        }
    }

    /// Runs all policies over all points. `done` is told after each run.
    ///
    /// # Errors
    /// The first of a run.
    pub fn run(
        self,
        settings: &Settings,
        mut done: impl FnMut(),
    ) -> Result<Vec<Series>, SimulateError> {
        let points = self.points(settings);
        let mut series = Vec::new();
        for policy in self.policies() {
            let mut figures = Vec::new();
            for point in &points {
                figures.push(simulate(&point.settings, *policy, |_| {})?);
                done();
            }
            series.push(Series { policy: policy.name(), figures });
        }
        Ok(series)
    }
}
