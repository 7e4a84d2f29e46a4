//! How fast a drive wears out.

const DAY_MS: f64 = 86_400_000.0;

/// How many times `capacity_bytes` were written for each day of `elapsed_ms`: what makers of drives
/// call DWPD, and promise for some years.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub fn drive_writes_per_day(written_bytes: u64, capacity_bytes: u64, elapsed_ms: u64) -> f64 {
    let rounds = written_bytes as f64 / capacity_bytes.max(1) as f64;
    rounds / (elapsed_ms.max(1) as f64 / DAY_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_drive_in_an_hour_is_twelve_writes_a_day() {
        let writes = drive_writes_per_day(500, 1000, 3_600_000);
        assert!((writes - 12.0).abs() < 1e-9, "{writes}");
        assert!(drive_writes_per_day(1, 0, 0).is_finite());
    }
}
