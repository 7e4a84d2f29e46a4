//! Rotary positions.

/// Sines and cosines of every position, for heads whose neighbouring values form a pair (the order
/// in which GGUF files store the rows of Q and K).
#[derive(Debug)]
pub(crate) struct Rope {
    half: usize,
    /// `[position][pair]` of (cosine, sine).
    turns: Vec<(f32, f32)>,
}

impl Rope {
    pub(crate) fn new(head_dim: usize, base: f32, positions: usize) -> Self {
        let half = head_dim / 2;
        let turns = (0..positions)
            .flat_map(|position| {
                (0..half).map(move |pair| {
                    let exponent = -2.0 * pair as f64 / head_dim as f64;
                    let angle = position as f64 * f64::from(base).powf(exponent);
                    narrow(angle)
                })
            })
            .collect();
        Self { half, turns }
    }

    /// Positions there are turns for.
    pub(crate) fn positions(&self) -> usize {
        self.turns.len() / self.half
    }

    /// Turns every head of `row` (heads side by side) to `position`.
    pub(crate) fn turn(&self, row: &mut [f32], position: usize) {
        let turns = &self.turns[position * self.half..(position + 1) * self.half];
        for head in row.chunks_exact_mut(2 * self.half) {
            for (pair, (cosine, sine)) in head.chunks_exact_mut(2).zip(turns) {
                let (a, b) = (pair[0], pair[1]);
                pair[0] = a * cosine - b * sine;
                pair[1] = a * sine + b * cosine;
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
fn narrow(angle: f64) -> (f32, f32) {
    (angle.cos() as f32, angle.sin() as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_turned_by_position_times_frequency() {
        let rope = Rope::new(4, 100.0, 8);
        assert_eq!(rope.positions(), 8);
        let mut row = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
        rope.turn(&mut row, 3);
        // Frequencies 1 and 100^(-1/2); both heads are turned alike.
        let expected = [3f32.cos(), 3f32.sin(), -(0.3f32.sin()), 0.3f32.cos()];
        for head in row.chunks_exact(4) {
            for (got, expected) in head.iter().zip(expected) {
                assert!((got - expected).abs() < 1e-6, "{row:?}");
            }
        }
        let mut row = [0.5, -0.25, 2.0, 1.0];
        rope.turn(&mut row, 0);
        assert_eq!(row, [0.5, -0.25, 2.0, 1.0]);
    }
}
