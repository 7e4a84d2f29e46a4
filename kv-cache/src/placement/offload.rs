//! Placements: which layers of a request are offloaded.

/// Which layers' KV of a request lies in the pool, and is fetched in each iteration.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Placement {
    offloaded: Vec<u16>,
}

/// Why layers are no placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The model has no such layer.
    #[error("there is no layer {layer}: layers are counted from 1 to {layers}")]
    NoSuchLayer {
        /// The number given.
        layer: u64,
        /// Layers of the model.
        layers: u16,
    },
    /// A layer is given twice.
    #[error("layer {layer} is given twice: name each offloaded layer once")]
    Twice {
        /// The layer.
        layer: u16,
    },
}

impl Placement {
    /// A placement that offloads these layers of a model with `layers` layers, counted from 1, in
    /// any order.
    ///
    /// # Errors
    /// A layer does not exist, or is given twice.
    pub fn new(offloaded: &[u64], layers: u16) -> Result<Self, PlacementError> {
        let mut sorted = Vec::with_capacity(offloaded.len());
        for &layer in offloaded {
            match u16::try_from(layer) {
                Ok(known) if (1..=layers).contains(&known) => sorted.push(known),
                _ => return Err(PlacementError::NoSuchLayer { layer, layers }),
            }
        }
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(PlacementError::Twice { layer: pair[0] }),
            None => Ok(Self { offloaded: sorted }),
        }
    }

    /// Every `distance`-th layer is offloaded. 0 is no distance: nothing is offloaded then.
    #[must_use]
    pub fn every(distance: u16, layers: u16) -> Self {
        let multiples = (1..=layers).filter(|layer| distance > 0 && layer % distance == 0);
        Self { offloaded: multiples.collect() }
    }

    /// A placement of layers that are ascending already.
    pub(super) const fn of_ascending(offloaded: Vec<u16>) -> Self {
        Self { offloaded }
    }

    /// The offloaded layers, ascending, counted from 1.
    #[must_use]
    pub fn offloaded(&self) -> &[u16] {
        &self.offloaded
    }
}

/// The distance-driven placements of a model, from few offloaded layers to many, without the
/// placement that offloads nothing.
///
/// Every `k`-th layer is offloaded, for a `k` of at least 2: with a distance of 1 a stream would
/// never be allowed to fetch (PLAN-L2). Several distances offload equally many layers. Of these
/// only the greatest is here, because it leaves each transfer the most time.
#[must_use]
pub fn distance_driven(layers: u16) -> Vec<Placement> {
    let mut found = Vec::new();
    let mut distance = layers;
    while distance >= 2 {
        found.push(Placement::every(distance, layers));
        // The next smaller distance with one layer more.
        distance = layers / (layers / distance + 1);
    }
    found
}
