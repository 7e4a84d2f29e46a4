//! What is wrong with the program that serves the page, by its own figures.

use rackline_metrics::{Family, Health};

use crate::watch::findings::{Finding, Level};

/// All that the program itself knows.
pub(super) fn of(health: &Health, families: &[Family]) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Health::Bad(why) = health {
        let to_do = "read its log, and start it again if it does not recover";
        found.push(Finding::new(Level::Bad, why.clone(), to_do, "page.md#the-program-itself"));
    }
    let samples_of = |name: &str| {
        let family = families.iter().find(|family| family.name() == name);
        family.into_iter().flat_map(Family::samples)
    };
    for sample in samples_of("rackline_drive_up").filter(|it| it.value() == 0.0) {
        let drive = sample.label("drive").unwrap_or_default();
        found.push(Finding::new(
            Level::Bad,
            format!("drive {drive} is not open: its blocks are misses"),
            "look at the device and the folder; the agent tries again by itself",
            "page.md#drives",
        ));
    }
    for sample in samples_of("rackline_drive_marked").filter(|it| it.value() == 1.0) {
        let drive = sample.label("drive").unwrap_or_default();
        let direction = sample.label("direction").unwrap_or_default();
        found.push(Finding::new(
            Level::Warning,
            format!("drive {drive} failed a {direction}, and is left alone for a moment"),
            "look for errors of the device in the log of the kernel when that comes again",
            "page.md#drives",
        ));
    }
    let total = |name: &str| samples_of(name).map(rackline_metrics::Sample::value).sum::<f64>();
    let pages = total("rackline_memory_faults_total");
    if pages > 0.0 {
        let chunks = total("rackline_failed_chunks_total");
        found.push(Finding::new(
            Level::Note,
            format!(
                "processes of this host met {pages} pages of blocks that the device could not read, \
                 and noted {chunks} chunks for that: these blocks are misses"
            ),
            "look for the cause: `dmesg`, `cxl list --media-errors`",
            "operations.md#memory-errors",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_that_fail_are_findings() {
        let both = |direction| [("drive", "/mnt/a"), ("direction", direction)];
        let families = [
            Family::gauge("rackline_drive_up", "Up.")
                .with(&[("drive", "/mnt/a")], 1)
                .with(&[("drive", "/mnt/b")], 0),
            Family::gauge("rackline_drive_marked", "Marked.")
                .with(&both("read"), 0)
                .with(&both("write"), 1),
            Family::counter("rackline_memory_faults_total", "Pages.").with(&[], 3),
            Family::counter("rackline_failed_chunks_total", "Chunks.").with(&[], 1),
        ];
        let found = of(&Health::Bad("the agent stops".to_owned()), &families);
        let what: Vec<_> = found.iter().map(|it| it.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "the agent stops",
                "drive /mnt/b is not open: its blocks are misses",
                "drive /mnt/a failed a write, and is left alone for a moment",
                "processes of this host met 3 pages of blocks that the device could not read, and \
                 noted 1 chunks for that: these blocks are misses",
            ]
        );
        assert_eq!(of(&Health::Good, &families[..0]), []);
    }
}
