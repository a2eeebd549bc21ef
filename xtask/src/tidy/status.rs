//! Claims of docs/status about Xen: each row names scenarios of the rig that have its options.
//!
//! ```text
//!   |part: `--option`|yes; not `--other`|20, 41|      20-*.sh, 41-*.sh, or a script that they all use, have --option; none has --other
//! ```
//! A row whose second cell begins with "no" names none.

use super::Source;

/// The page, from the root.
const PAGE: &str = "docs/status.md";
/// The heading of its table.
const HEADING: &str = "## What was seen where";
const SCENARIOS: &str = "rig/scenarios/";
/// Folder of the files that scenarios share.
const SHARED: &str = "rig/";

/// Returns rows without a scenario, and scenarios that do not exist or lack the row's options.
pub fn check<'a>(sources: impl Iterator<Item = &'a Source>) -> Vec<String> {
    let sources: Vec<_> = sources.collect();
    let Some(page) = sources.iter().find(|source| source.path == PAGE) else { return Vec::new() };
    let section = page.text.split_once(HEADING).map_or("", |(_, below)| below);
    let section = section.split_once("\n## ").map_or(section, |(own, _)| own);
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with('|')).collect();
    // Below the head and its rule.
    let rows = rows.get(2..).unwrap_or_default();
    let mut offences = Vec::new();
    if rows.is_empty() {
        offences.push(format!("{PAGE}: there is no table below {HEADING:?}"));
    }
    offences.extend(rows.iter().flat_map(|row| of_row(row, &sources)));
    offences
}

fn of_row(row: &str, sources: &[&Source]) -> Vec<String> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [part, seen, rest @ ..] = cells.as_slice() else {
        return vec![format!("{PAGE}: a row of one cell: {row}")];
    };
    let numbers = rest.first().copied().unwrap_or_default();
    if seen.split([' ', ';']).next() == Some("no") {
        let named = (!numbers.is_empty())
            .then(|| format!("{PAGE}: {part}: \"no\", and yet a scenario plays it: {numbers}"));
        return named.into_iter().collect();
    }
    let mut offences = Vec::new();
    let mut texts = Vec::new();
    for number in numbers.split(',').map(str::trim).filter(|number| !number.is_empty()) {
        let start = format!("{SCENARIOS}{number}-");
        match sources.iter().find(|source| source.path.starts_with(&start)) {
            Some(scenario) => texts.push(scenario.text.as_str()),
            None => offences.push(format!("{PAGE}: {part}: there is no scenario {number}")),
        }
    }
    if texts.is_empty() {
        offences
            .push(format!("{PAGE}: {part}: name the scenarios of the rig that play it, in the third cell"));
        return offences;
    }
    let is_shared =
        |source: &&&Source| source.path.strip_prefix(SHARED).is_some_and(|name| !name.contains('/'));
    let shared: Vec<&str> = sources.iter().filter(is_shared).map(|source| source.text.as_str()).collect();
    let is_in = |texts: &[&str], option: &str| texts.iter().any(|text| has(text, option));
    for clause in [*part].into_iter().chain(seen.split(';')) {
        let is_denied = clause.split(' ').any(|word| word == "not");
        for option in options(clause) {
            if is_denied && is_in(&texts, option) {
                offences.push(format!(
                    "{PAGE}: {part}: scenarios {numbers} have `{option}`, which the row denies"
                ));
            } else if !is_denied && !is_in(&texts, option) && !is_in(&shared, option) {
                offences.push(format!("{PAGE}: {part}: none of the scenarios {numbers} has `{option}`"));
            }
        }
    }
    offences
}

fn options(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2).flat_map(str::split_whitespace)
}

/// Whether a text contains an option as a word of its own.
fn has(text: &str, option: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    text.match_indices(option).any(|(at, _)| {
        let (before, behind) = (&text[..at], &text[at + option.len()..]);
        !is_part(before.chars().next_back()) && !is_part(behind.chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::{HEADING, PAGE, Source, check};

    fn offences(rows: &str) -> Vec<String> {
        let source = |path: &str, text: String| Source { path: path.into(), text };
        let page =
            format!("{HEADING}\n\n|part|seen|scenarios|\n|---|---|---|\n{rows}\n\n## Limits\n|x|yes||\n");
        let sources = [
            source(PAGE, page),
            source("rig/scenarios/41-paths.sh", "front one 2 --path staging --hook tx\n".into()),
            source("rig/net.sh", "front() { pregrant front --tap eth0 \"$@\"; }\n".into()),
        ];
        check(sources.iter())
    }

    #[test]
    fn a_row_names_scenarios_that_have_its_options() {
        assert_eq!(offences("|`front --tap`, `staging`|yes, `--hook tx`; not `--match`|41|"), [""; 0]);
        assert_eq!(offences("|`foreign`|no; refused||"), [""; 0]);
        for wrong in [
            "|`staging`|yes||",
            "|`staging`|yes|42|",
            "|`--ring-pages`|yes|41|",
            "|`stag`|yes|41|",
            "|paths|yes, `--match`|41|",
            "|paths|yes; not `--hook`|41|",
            "|`foreign`|no|41|",
            "",
        ] {
            assert!(!offences(wrong).is_empty(), "{wrong}");
        }
    }
}
