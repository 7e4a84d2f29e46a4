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
    for sample in samples_of("rackline_drive_full").filter(|it| it.value() == 1.0) {
        let drive = sample.label("drive").unwrap_or_default();
        let (level, what, to_do) = match sample.label("reason") {
            Some("device") => (
                Level::Warning,
                format!(
                    "the device of drive {drive} has no room: other files take it, and no block is \
                     written"
                ),
                "remove the other files, or give the folder less capacity (`--drive DIR:SIZE`)",
            ),
            _ => (
                Level::Note,
                format!("drive {drive} is full: new blocks wait until others have left it"),
                "give the drive more room, or choose the admission `second-touch`",
            ),
        };
        found.push(Finding::new(level, what, to_do, "page.md#drives"));
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
            Family::gauge("rackline_drive_full", "Full.")
                .with(&[("drive", "/mnt/a"), ("reason", "device")], 1)
                .with(&[("drive", "/mnt/a"), ("reason", "capacity")], 0)
                .with(&[("drive", "/mnt/b"), ("reason", "capacity")], 1),
            Family::gauge("rackline_drive_marked", "Marked.")
                .with(&both("read"), 0)
                .with(&both("write"), 1),
        ];
        let found = of(&Health::Bad("the agent stops".to_owned()), &families);
        let what: Vec<_> = found.iter().map(|it| it.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "the agent stops",
                "drive /mnt/b is not open: its blocks are misses",
                "the device of drive /mnt/a has no room: other files take it, and no block is written",
                "drive /mnt/b is full: new blocks wait until others have left it",
                "drive /mnt/a failed a write, and is left alone for a moment",
            ]
        );
        assert_eq!(of(&Health::Good, &families[..0]), []);
    }
}
