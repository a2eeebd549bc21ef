//! Where `unsafe` may stand. docs/architecture.md has the same places in a table, each with its
//! reason: the page and the list are compared in both directions, and a place without `unsafe` is
//! none.

use super::Source;
use super::token::tokens;
use std::collections::BTreeSet;

/// The page, from the root.
pub const PAGE: &str = "docs/architecture.md";

/// The table's heading there.
const HEADING: &str = "## Where `unsafe` is";

/// Memory that a peer can write, the rings, platforms, what talks to the kernel; and the bare
/// measurements of `bench limit`, which use what the platforms are made of without the platforms. A
/// file, or a folder with `/`, below `crates/` or the root.
const PLACES: &[&str] = &[
    "pregrant/src/shm.rs",
    "pregrant/src/ring/",
    "pregrant/src/burst_buffer.rs",
    "pregrant/src/platform/",
    "pregrant-host/src/mapping.rs",
    "pregrant-host/src/loopback/",
    "pregrant-host/src/linux/",
    "pregrant-host/src/disks/device.rs",
    "pregrant-host/src/disks/transfer.rs",
    "pregrant-host/src/disks/uring.rs",
    "pregrant-host/src/disks/writeback.rs",
    "pregrant-host/src/ports/netdev_ioctl.rs",
    "pregrant-host/src/ports/switch/lent_burst.rs",
    "pregrant-host/src/ports/tap/",
    "pregrant-lab/src/bench/blk/vhost_user.rs",
    "pregrant-lab/src/limit/lines.rs",
    "pregrant-lab/src/limit/pool.rs",
    "pregrant-lab/src/limit/remote.rs",
    "linux/core/src/",
];

/// Tests may use it too; the table has no row for them.
const TESTS: &[&str] = &["pregrant/tests/", "pregrant-host/tests/", "pregrant-cli/tests/"];

/// `unsafe` in a file that is no place for it.
pub fn check(source: &Source) -> Option<String> {
    let allowed = PLACES.iter().chain(TESTS).any(|place| is_below(&source.path, place));
    let line = line_of_unsafe(source).filter(|_| !allowed)?;
    Some(format!(
        "{}:{line}: `unsafe` is only allowed in {}, and in tests; a new place is a decision",
        source.path,
        PLACES.join(", ")
    ))
}

/// Where the page's table and the list differ, and places in both where there is no `unsafe`.
pub fn check_table(page: &str, sources: &[Source]) -> Vec<String> {
    let shown_rows: BTreeSet<&str> = rows(page).collect();
    let places: BTreeSet<&str> = PLACES.iter().copied().collect();
    let mut offences = Vec::new();
    for place in places.difference(&shown_rows) {
        offences.push(format!("{PAGE}: the table below {HEADING:?} has no row for `{place}`"));
    }
    for row in shown_rows.difference(&places) {
        offences.push(format!(
            "{PAGE}: `{row}` is in the table below {HEADING:?} and is no place for `unsafe`; see xtask/src/tidy/unsafety.rs"
        ));
    }
    for place in places {
        if !sources.iter().any(|s| is_below(&s.path, place) && line_of_unsafe(s).is_some()) {
            offences.push(format!(
                "{place}: there is no `unsafe` any more; take it out of the list and the table"
            ));
        }
    }
    offences
}

/// The places in backticks in the first column of the table.
fn rows(page: &str) -> impl Iterator<Item = &str> {
    let section = page.split_once(HEADING).map_or("", |(_, below)| below);
    let section = section.split_once("\n## ").map_or(section, |(own, _)| own);
    let first = section.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    first.flat_map(|cell| cell.split('`').skip(1).step_by(2))
}

fn is_below(path: &str, place: &str) -> bool {
    path.strip_prefix("crates/").unwrap_or(path).starts_with(place)
}

fn line_of_unsafe(source: &Source) -> Option<usize> {
    tokens(&source.text).iter().find(|t| t.is_ident("unsafe")).map(|t| t.line)
}

#[cfg(test)]
mod tests {
    use super::{HEADING, PLACES, Source, check, check_table};

    const UNSAFE: &str = "fn f(p: *const u8) -> u8 { unsafe { *p } }\n";

    fn source(path: &str) -> Source {
        Source { path: path.into(), text: UNSAFE.into() }
    }

    fn page(places: &[&str]) -> String {
        let rows: String = places.iter().map(|place| format!("| `{place}` | `why` |\n")).collect();
        format!(
            "# Page\n\n{HEADING}, and why\n\n| place | why |\n|---|---|\n{rows}\n## Next\n\n| `other` | |\n"
        )
    }

    /// A file with `unsafe` in each place.
    fn sources() -> Vec<Source> {
        let file = |place: &&str| {
            let name = if place.ends_with('/') { "x.rs" } else { "" };
            source(&format!("crates/{place}{name}"))
        };
        PLACES.iter().map(file).collect()
    }

    #[test]
    fn unsafe_is_found_only_outside_of_its_places() {
        assert!(check(&source("crates/pregrant/src/net/front/tx.rs")).is_some());
        assert!(check(&source("xtask/src/pregrant/src/shm.rs")).is_some());
        assert!(check(&source("crates/pregrant/src/shm.rs")).is_none());
        assert!(check(&source("crates/pregrant/tests/no_alloc.rs")).is_none());
    }

    #[test]
    fn a_table_with_each_place_is_true() {
        assert_eq!(check_table(&page(PLACES), &sources()), [""; 0]);
    }

    #[test]
    fn a_row_too_few_or_too_many_is_an_offence() {
        assert_eq!(check_table(&page(&PLACES[1..]), &sources()).len(), 1);
        assert_eq!(check_table(&page(&[PLACES, &["pregrant/src/net/"]].concat()), &sources()).len(), 1);
        assert_eq!(check_table("", &sources()).len(), PLACES.len());
    }

    #[test]
    fn a_place_without_unsafe_is_an_offence() {
        let mut sources = sources();
        sources[0].text.clear();
        assert_eq!(check_table(&page(PLACES), &sources).len(), 1);
    }
}
