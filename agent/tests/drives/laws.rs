//! What the metrics say obeys laws of conservation: through backups, evictions, restores, removals
//! and a restart of the agent.

use rackline_metrics::{Family, Health, Source as _};

use super::*;

const SLOT_BYTES: u64 = 64 << 10;

/// The figures of an agent.
struct Shown(Vec<Family>);

impl Shown {
    fn value(&self, name: &str, labels: &[(&'static str, &str)]) -> u64 {
        let family = self.0.iter().find(|family| family.name() == name);
        let value = family.and_then(|family| family.value(labels));
        let value = value.unwrap_or_else(|| panic!("no {name} with {labels:?}"));
        assert!(value >= 0.0 && value.fract() == 0.0, "{name} is {value}");
        format!("{value}").parse().unwrap()
    }

    /// The names that the page does not have.
    fn not_documented(&self) -> Vec<&'static str> {
        let page = include_str!("../../../deploy/docs/metrics.md");
        let names = self.0.iter().map(Family::name);
        names.filter(|name| !page.contains(&format!("`{name}`"))).collect()
    }

    fn tier(&self, name: &str, tier: &str) -> u64 {
        self.value(name, &[("tier", tier)])
    }

    fn way(&self, name: &str, from: &str, to: &str) -> u64 {
        self.value(name, &[("from", from), ("to", to)])
    }

    fn total(&self, name: &str) -> u64 {
        self.value(name, &[])
    }

    /// Why a law does not hold.
    fn broken(&self) -> Option<String> {
        let came_to_pool = self.tier("tier_found_blocks_total", "G3")
            + self.way("tier_demotions_total", "G1", "G3")
            + self.way("tier_demotions_total", "G2", "G3")
            + self.way("tier_promotions_total", "G4", "G3");
        let left_pool = self.tier("tier_removed_blocks_total", "G3");
        let in_pool = self.tier("tier_resident_blocks", "G3");
        let came_to_drives = self.tier("tier_found_blocks_total", "G4")
            + self.way("tier_demotions_total", "G3", "G4");
        let left_drives = self.tier("tier_removed_blocks_total", "G4");
        let on_drives = self.tier("tier_resident_blocks", "G4");
        let bytes_on_drives = self.tier("tier_resident_bytes", "G4");
        let block_bytes = BLOCK_BYTES as u64;
        let restored = self.way("tier_promotions_total", "G4", "G3");
        let prefetched = self.total("tier_prefetched_blocks_total");
        let requests =
            |outcome| self.value("rackline_restore_requests_total", &[("outcome", outcome)]);
        let of_host = |what| self.total(&format!("rackline_prefetch_{what}_blocks_total"));
        let ended = ["restored", "late", "refused", "cancelled"].map(of_host).iter().sum::<u64>();
        let asked = of_host("asked");
        let directions = ["read", "write"].map(|direction| [("direction", direction)]);
        let moved = directions
            .each_ref()
            .map(|labels| self.value("rackline_drive_transferred_bytes_total", labels));
        let queued = directions
            .each_ref()
            .map(|labels| self.value("rackline_drive_queued_transfers", labels));
        let laws = [
            ("pool: came - left = resident", came_to_pool == left_pool + in_pool),
            (
                "pool: bytes of slots",
                self.tier("tier_resident_bytes", "G3") == in_pool * SLOT_BYTES,
            ),
            ("pool: evicted <= removed", self.total("rackline_evicted_blocks_total") <= left_pool),
            ("drives: came - left = resident", came_to_drives == left_drives + on_drives),
            ("drives: bytes of blocks", bytes_on_drives == on_drives * block_bytes),
            ("drives: by drive", self.total("rackline_drive_blocks") == on_drives),
            ("drives: announced", self.total("rackline_announced_blocks") == on_drives),
            ("drives: encoded", self.total("spill_cold_encoded_bytes") <= bytes_on_drives),
            (
                "drives: decoded is what came back or was refused by the pool",
                self.total("spill_cold_decoded_bytes_total") >= prefetched * block_bytes,
            ),
            (
                "drives: read is decoded, and what is moved",
                moved[0] >= self.total("spill_cold_decoded_bytes_total"),
            ),
            (
                "drives: written is demoted",
                moved[1] >= self.way("tier_demoted_bytes_total", "G3", "G4"),
            ),
            ("drives: nothing waits", queued == [0, 0]),
            (
                "promoted bytes",
                self.way("tier_promoted_bytes_total", "G4", "G3") == restored * block_bytes,
            ),
            ("prefetched <= promoted", prefetched <= restored),
            ("useful <= prefetched", self.total("tier_prefetch_useful_total") <= prefetched),
            ("prefetches: asked = came, late, refused or cancelled", asked == ended),
            ("prefetches: used <= came", of_host("used") <= of_host("restored")),
            ("prefetched <= answers", prefetched <= requests("restored")),
        ];
        let broken = laws.into_iter().find(|(_, holds)| !holds);
        broken.map(|(law, _)| format!("{law}: {}", rackline_metrics::text(&self.0)))
    }
}

fn shown(agent: &Agent) -> Shown {
    Shown(agent.metrics().families())
}

/// Waits until the laws hold and `reached` is true. The counts are those of a moment that nothing
/// moves, so a law that is broken stays broken.
fn quiet(what: &str, agent: &Agent, reached: impl Fn(&Shown) -> bool) -> Shown {
    let clock = SystemClock::start();
    let mut broken = Some("the first look is missing".to_owned());
    while clock.now_ms() < LIMIT_MS / 4 {
        let now = shown(agent);
        if now.0.iter().any(|family| family.name() == "tier_page_faults_total") {
            broken = now.broken();
            if broken.is_none() && reached(&now) {
                return now;
            }
        }
        clock.sleep_ms(20);
    }
    panic!("{what}: {}", broken.unwrap_or_else(|| rackline_metrics::text(&shown(agent).0)));
}

fn small(region: &ScratchRegion, folder: &Path) -> Settings {
    let mut settings = settings(region, A, folder);
    settings.drives[0].capacity_bytes = Some(24 << 20);
    settings
}

/// An agent without drives looks at its host, has nothing on drives, and is at work.
pub(super) fn follows(agent: &Agent, page_faults: u64) {
    wait_until("the look shows what lookups waited for", || {
        let now = shown(agent);
        let faults = now.0.iter().find(|family| family.name() == "tier_page_faults_total");
        faults.is_some() && now.total("tier_page_faults_total") == page_faults
    });
    let now = shown(agent);
    assert_eq!(now.tier("tier_resident_blocks", "G4"), 0);
    assert_eq!(now.total("rackline_agent_ready"), 1);
    assert!(!now.0.iter().any(|family| family.name().starts_with("rackline_drive_")));
    assert_eq!(agent.metrics().health(), Health::Good);
}

/// All prefetches of the host have ended well, and their blocks were used.
pub(super) fn prefetched(agent: &Agent, blocks: u64) {
    let of = |now: &Shown, what| now.total(&format!("rackline_prefetch_{what}_blocks_total"));
    quiet("the prefetches are counted", agent, |now| {
        ["asked", "restored", "used"].map(|what| of(now, what)) == [blocks; 3]
    });
}

/// Encoded blocks take fewer bytes than they have. What reads brought counts as it was published.
pub(super) fn encoded(agent: &Agent, decoded_bytes: u64) {
    let now = shown(agent);
    let encoded_bytes = now.total("spill_cold_encoded_bytes");
    assert!(encoded_bytes > 0);
    assert!(encoded_bytes * 4 < now.tier("tier_resident_bytes", "G4") * 3);
    assert_eq!(now.total("spill_cold_decoded_bytes_total"), decoded_bytes);
}

#[test]
fn blocks_are_conserved_in_every_tier() {
    let (region, folder) = (region(), tempfile::tempdir().unwrap());
    let agent = Agent::start(small(&region, folder.path())).unwrap();
    let (on_a, on_b) =
        (Pool::attach(region.path(), A).unwrap(), Pool::attach(region.path(), B).unwrap());
    let keys: Vec<_> = (0..8).map(key).collect();
    let start = quiet("at the start", &agent, |_| true);
    assert_eq!(start.tier("tier_resident_blocks", "G3"), 0);
    assert_eq!(start.not_documented(), Vec::<&str>::new());

    publish(&on_a, 0..8);
    let demoted = |now: &Shown| now.way("tier_demotions_total", "G3", "G4");
    let published = |now: &Shown| now.way("tier_demotions_total", "G2", "G3");
    let now = quiet("backed up", &agent, |now| (published(now), demoted(now)) == (8, 8));
    assert_eq!(now.tier("tier_resident_blocks", "G4"), 8);

    evict(&on_a, &keys, 100);
    let now = quiet("evicted", &agent, |now| now.total("rackline_evicted_blocks_total") >= 8);
    assert_eq!(now.way("tier_promotions_total", "G4", "G3"), 0);

    let requests: Vec<_> = keys.iter().map(|key| request(*key)).collect();
    assert_eq!(restore(&on_b, A, &requests), [RestoreOutcome::Restored; 8]);
    assert!((0..3).all(|number| fetch(&on_b, number).is_some()));
    // The reader tells its uses when it takes its host's heap lock next.
    on_b.cache().reap(&clock());
    let useful = |now: &Shown| now.total("tier_prefetch_useful_total");
    let now = quiet("restored", &agent, |now| useful(now) == 3);
    assert_eq!(now.way("tier_promotions_total", "G4", "G3"), 8);
    assert_eq!(now.total("tier_prefetched_blocks_total"), 8);
    assert_eq!(now.total("spill_cold_decoded_bytes_total"), 8 * BLOCK_BYTES as u64);

    let lock = |lock| now.value("rackline_lock_wait_seconds", &[("lock", lock)]);
    assert!(lock("chunk_table") > 0 && lock("heap") >= lock("chunk_table"));
    let flushed = |now: &Shown, why| now.value("rackline_flushed_lines_total", &[("why", why)]);
    let (payload_lines, refreshed) = (BLOCK_BYTES as u64 / 64, flushed(&now, "refresh"));
    assert!(flushed(&now, "publish") > 8, "each descriptor");
    assert!(fetch(&on_a, 4).is_some());
    let restored: Vec<_> =
        on_a.cache().lookup(&keys[..2]).blocks().iter().map(|it| it.handle).collect();
    assert_eq!(on_a.cache().retire(&clock(), &restored), 2);
    let before = quiet("removed", &agent, |now| {
        now.total("rackline_retired_blocks_total") == 2
            && now.way("tier_promotions_total", "G3", "G2") == 1
    });
    assert!(flushed(&before, "refresh") >= refreshed + payload_lines, "it was fetched");

    let mut next = 5000;
    wait_until("blocks leave the drive", || {
        publish(&on_a, next..next + 4);
        next += 4;
        clock().sleep_ms(20);
        shown(&agent).tier("tier_removed_blocks_total", "G4") > 0
    });
    let full = quiet("the drive is full", &agent, |now| now.total("rackline_backlog_bytes") == 0);
    assert!(full.tier("tier_removed_blocks_total", "G4") > 0);
    agent.stop().unwrap();

    // What the host has counted goes on; what the agent has counted begins anew.
    let agent = Agent::start(small(&region, folder.path())).unwrap();
    let after = quiet("started again", &agent, |now| now.total("rackline_agent_ready") == 1);
    assert!(published(&after) > published(&before));
    assert_eq!(after.way("tier_promotions_total", "G4", "G3"), 8);
    assert_eq!(after.total("tier_prefetched_blocks_total"), 0);
    assert!(after.tier("tier_found_blocks_total", "G4") > 0);
    assert_eq!(restore(&on_b, A, &requests[7..]).len(), 1);
    quiet("after one more restore", &agent, |_| true);
    agent.stop().unwrap();
}
