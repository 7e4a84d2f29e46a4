//! The page of the rack as a browser shows it: its values, on a monitor and on a phone, in the light
//! and in the dark, while all is well, after a death, and when nobody answers.
//!
//! It needs Chromium, so `.ci/steps/30-demo` runs it by name. It leaves pictures in
//! `target/page`, to be looked at.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod pool;
mod served;
mod webdriver;

use std::path::Path;

use cxl_shm::clock::SystemClock;
use rustix::process::Signal;
use serde_json::Value;

use pool::Pool;
use served::{BLOCKS, LIMIT_MS, Program, lock_manager, work};
use webdriver::Browser;

/// Waits until the page shows what is wanted.
fn wait(browser: &Browser, what: &str, shown: impl Fn(&Browser) -> bool) {
    let clock = SystemClock::start();
    while !shown(browser) {
        let text = || browser.run("return document.body.innerText");
        assert!(clock.now_us() / 1000 < LIMIT_MS, "it was never shown: {what}: {:#}", text());
        clock.sleep_ms(100);
    }
}

fn keep(browser: &Browser, name: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../page");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(format!("{name}.png")), browser.picture()).unwrap();
}

/// Nothing is cut off, and the reader never scrolls sideways.
fn fits(browser: &Browser) {
    let wider = browser
        .run("const all = document.documentElement; return all.scrollWidth - all.clientWidth");
    assert_eq!(wider, 0, "the page is wider than the screen");
}

/// Bright letters on a dark ground, or the other way round.
fn is(browser: &Browser, dark: bool) {
    let colours = browser.run(
        "const style = getComputedStyle(document.body);
         const sum = (colour) => colour.match(/\\d+/g).slice(0, 3).reduce((all, part) => all + Number(part), 0);
         return [sum(style.backgroundColor), sum(style.color)]",
    );
    let [ground, letters] = [0, 1].map(|index| colours[index].as_u64().unwrap());
    assert_eq!(ground < letters, dark, "{colours}");
}

/// The value of a sample in the text of `/metrics`.
fn sample(program: &Program, series: &str) -> u64 {
    let text = program.get("/metrics");
    let found = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {series} in {text}"))
}

#[test]
fn a_browser_shows_the_values_of_the_metrics_and_what_is_wrong() {
    let (pool, folder) = (Pool::format_in("/dev/shm"), tempfile::tempdir().unwrap());
    let manager = lock_manager(&pool);
    let drive = format!("{}:64MiB", folder.path().display());
    let flags = ["--node", "0", "--drive", &drive, "--admission", "all", "--backup-age-ms", "0"];
    let agent = Program::start(pool.rackline(&["agent"]).args(flags));
    let engine = rackline::Pool::attach(pool.path(), 0).unwrap();
    work(&engine);
    let blocks = Some(u64::from(BLOCKS));
    agent.rack_with("all blocks are in the pool and on the drive", |rack| {
        let status = &rack["seen"]["status"];
        status["agents"][0]["drive_blocks"].as_u64() >= blocks
            && status["nodes"][0]["blocks"].as_u64() >= blocks
            && status["rack"]["lookup_blocks"].as_u64() > blocks
    });

    let browser = Browser::start();
    let page = format!("http://{}/", agent.address);
    browser.screen((1280, 900), "light", false);
    browser.open(&page);
    wait(&browser, "all is well", |browser| browser.text("state") == "all well");
    is(&browser, false);
    fits(&browser);
    keep(&browser, "well");
    values_are_those_of_the_metrics(&browser, &agent, &manager, &drive);
    the_map_answers_to_the_keyboard(&browser);

    browser.screen((390, 844), "dark", true);
    wait(&browser, "the map fits a phone", |browser| {
        browser.run("return document.querySelector('#map svg').clientWidth").as_u64() <= Some(390)
    });
    is(&browser, true);
    fits(&browser);
    keep(&browser, "phone-dark");

    // Everything came from the program itself, and the browser had nothing to complain of.
    let elsewhere = browser.run(
        "return performance.getEntriesByType('resource').map((it) => it.name)
            .filter((name) => !name.startsWith(location.origin))",
    );
    assert_eq!(elsewhere, Value::Array(Vec::new()));
    assert_eq!(browser.complaints(), Vec::<String>::new());

    // A death is said in words, with a link to what to do.
    manager.send(Signal::KILL);
    drop(manager);
    wait(&browser, "the death of the lock manager", |browser| {
        browser.text("findings").contains("missed its heartbeats")
    });
    assert!(browser.text("state").contains("wrong") || browser.text("state").contains("look at"));
    let links =
        browser.run("return [...document.querySelectorAll('#findings a')].map((it) => it.href)");
    for link in links.as_array().unwrap() {
        let (document, heading) = link.as_str().unwrap().split_once('#').unwrap();
        browser.open(document);
        let found = browser.run(&format!("return document.getElementById('{heading}') !== null"));
        assert_eq!(found, true, "{link}");
    }
    browser.open(&page);
    wait(&browser, "the death of the lock manager", |browser| {
        browser.text("findings").contains("missed its heartbeats")
    });
    fits(&browser);
    keep(&browser, "phone-dark-after-a-death");

    // Old figures are never shown as new ones.
    drop(agent);
    wait(&browser, "that nobody answers", |browser| browser.text("state") == "old data");
    assert!(browser.text("stale").starts_with("No answer for"));
    drop(engine);
}

fn values_are_those_of_the_metrics(
    browser: &Browser,
    agent: &Program,
    manager: &Program,
    drive: &str,
) {
    let tiers = browser.rows("tiers");
    for (row, tier) in tiers.iter().zip(["G3", "G4"]) {
        let blocks = sample(agent, &format!("tier_resident_blocks{{tier=\"{tier}\"}}"));
        assert_eq!((&row[0][..2], row[1].as_str()), (tier, blocks.to_string().as_str()));
    }
    let nodes = browser.rows("nodes");
    let states: Vec<_> = nodes.iter().map(|row| (row[0].as_str(), row[2].as_str())).collect();
    assert_eq!(states, [("0", "\u{25cf} joined"), ("1", "\u{25cf} joined")]);
    let blocks = sample(agent, "rackline_descriptors{state=\"ready\"}");
    assert_eq!(nodes[0][6], blocks.to_string());
    let hits = sample(agent, "rackline_lookup_hits_total");
    let of = sample(agent, "rackline_lookup_blocks_total");
    let (whole, tenths) = (hits * 1000 / of / 10, (hits * 10_000 / of + 5) / 10 % 10);
    assert_eq!(nodes[0][8], format!("{whole}.{tenths} %"), "{hits} of {of}");
    let (folder, _) = drive.rsplit_once(':').unwrap();
    assert!(browser.text("drives").contains(&format!("{folder} open")));
    let term = sample(manager, "rackline_manager_term");
    assert!(browser.text("locks").contains(&format!("on node 1, term {term}: works")));
    assert!(browser.text("findings").contains("Nothing that this page can see"));
}

fn the_map_answers_to_the_keyboard(browser: &Browser) {
    let press = |key: &str| {
        browser.run(&format!(
            "document.getElementById('map').dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))"
        ));
        browser.text("cell")
    };
    let first = press("ArrowRight");
    assert!(first.starts_with("Chunk 0, "), "{first}");
    let second = press("ArrowRight");
    assert!(second.starts_with("Chunk 1, "), "{second}");
    assert_eq!(press("ArrowLeft"), first);
}
