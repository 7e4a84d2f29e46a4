//! The codes of the header are those of the library's enums: a new variant fails here.
//!
//! The library's enums may grow, so no match of another crate can demand that it is complete. This
//! test reads their sources.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use syn::Item;

/// What becomes of a variant of an enum in C.
#[derive(Clone, Copy)]
enum Code {
    /// The code with the name of the variant, after this prefix.
    Same(&'static str),
    /// The code with this name.
    Named(&'static str),
    /// It has no code of its own: those of the value in it.
    Inner,
}

use Code::{Inner, Named, Same};

const REASON: Code = Same("RACKLINE_REASON_");
const OUTCOME: Code = Same("RACKLINE_OUTCOME_");
const ERROR: Code = Same("RACKLINE_ERROR_");
const REACH: Code = Same("RACKLINE_GPU_REACH_");
const BAD_ARGUMENT: Code = Named("RACKLINE_ERROR_BAD_ARGUMENT");
const OTHER_GPU: Code = Named("RACKLINE_ERROR_GPU");

/// The variants of the enum `name` in the file at `path`, from the root of the repository.
fn variants(path: &str, name: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join(path)).unwrap();
    let items = syn::parse_file(&text).unwrap().items;
    let found = items.into_iter().find_map(|item| match item {
        Item::Enum(found) if found.ident == name => Some(found),
        _ => None,
    });
    let found = found.unwrap_or_else(|| panic!("{path} has no enum {name}"));
    found.variants.iter().map(|variant| variant.ident.to_string()).collect()
}

/// `AlreadyThere` as `ALREADY_THERE`.
fn in_capitals(variant: &str) -> String {
    let mut name = String::new();
    for letter in variant.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

fn check(path: &str, name: &str, codes: &[(&str, Code)]) {
    let found = variants(path, name);
    let known: Vec<_> = codes.iter().map(|(variant, _)| *variant).collect();
    assert_eq!(found, known, "{name} has changed: give each variant its code in the header");
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/rackline.h");
    let header = std::fs::read_to_string(header).unwrap();
    for (variant, code) in codes {
        let code = match code {
            Same(prefix) => format!("{prefix}{}", in_capitals(variant)),
            Named(code) => (*code).to_owned(),
            Inner => continue,
        };
        assert!(header.contains(&format!("  {code} = ")), "{name}::{variant} has no {code}");
    }
}

#[test]
fn every_reason_of_a_missing_block_has_a_code() {
    let misses = variants("kv-cache/src/replica/miss.rs", "Miss");
    let misses: Vec<_> = misses.iter().map(|miss| (miss.as_str(), REASON)).collect();
    check("kv-cache/src/replica/miss.rs", "Miss", &misses);
    let stops = [("Miss", Inner), ("Failed", Named("RACKLINE_REASON_COPY"))];
    check("connector/src/session/fetch.rs", "FetchStop", &stops);
    let refused = [
        ("Miss", Inner),
        ("TooMany", Named("RACKLINE_REASON_TOO_MANY_HELD")),
        ("MembershipLost", Named("RACKLINE_REASON_DECLARED_DEAD")),
    ];
    check("kv-cache/src/hold/take.rs", "HoldError", &refused);
}

#[test]
fn every_outcome_of_a_publish_has_a_code() {
    let outcomes = [
        ("Published", OUTCOME),
        ("AlreadyThere", OUTCOME),
        ("Refused", Inner),
        ("Failed", Named("RACKLINE_OUTCOME_COPY")),
        ("TakenAway", OUTCOME),
        ("MemoryFailed", OUTCOME),
    ];
    check("connector/src/session/publish.rs", "PublishOutcome", &outcomes);
    let refusals = [
        ("Length", Named("RACKLINE_OUTCOME_LONGER_THAN_CHUNK")),
        ("SegmentFull", OUTCOME),
        ("NoChunk", OUTCOME),
        ("MembershipLost", Named("RACKLINE_OUTCOME_DECLARED_DEAD")),
        ("Drained", OUTCOME),
        ("Outrun", OUTCOME),
    ];
    check("kv-cache/src/publish/mod.rs", "Refusal", &refusals);
}

#[test]
fn every_error_of_a_call_has_a_code() {
    let opening =
        [("Length", BAD_ARGUMENT), ("Options", BAD_ARGUMENT), ("Forked", ERROR), ("Closed", ERROR)];
    check("connector/src/session/error.rs", "OpenError", &opening);
    let using = [
        ("Length", BAD_ARGUMENT),
        ("Layers", BAD_ARGUMENT),
        ("OneLayer", BAD_ARGUMENT),
        ("Destinations", BAD_ARGUMENT),
        ("MembershipLost", ERROR),
    ];
    check("connector/src/session/error.rs", "SessionError", &using);
    let submitting = [
        ("Busy", ERROR),
        ("Forked", ERROR),
        ("Closed", ERROR),
        ("NoLayers", Named("RACKLINE_ERROR_POOL")),
        ("Gpu", Inner),
    ];
    check("connector/src/asynchronous/submit.rs", "SubmitErrorKind", &submitting);
    let of_gpus = [
        ("Cuda", OTHER_GPU),
        ("Forked", ERROR),
        ("Closed", ERROR),
        ("NotOpen", OTHER_GPU),
        ("Stream", OTHER_GPU),
    ];
    check("connector/src/asynchronous/gpu.rs", "GpuError", &of_gpus);
}

#[test]
fn every_way_of_a_gpu_to_the_pool_has_a_code() {
    let reaches = [("Registered", REACH), ("RegisteredAsDevice", REACH), ("Bounced", REACH)];
    check("connector/src/dma/cuda/reach.rs", "PoolReach", &reaches);
}
