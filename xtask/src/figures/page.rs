//! `docs/results.md`: the files of `docs/results` as one page.
//!
//! ```text
//!   docs/results/*.jsonl, by name --> section --> heading, origin, note, tables --> docs/results.md
//! ```
//! Invariant: the page depends on these files alone, so that `tidy` can compare it with them.

use super::result::{Section, Table};
use crate::workspace::Workspace;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The page, from the root.
pub const PAGE: &str = "docs/results.md";
/// The folder of the files, from the root.
pub const FOLDER: &str = "docs/results";

const HEAD: &str = "# Results\n\n\
    <!-- Made from docs/results/*.jsonl by `cargo xtask figures --page`: change those. -->\n\n\
    How these figures are measured, and how to read them, is in [benchmarks](benchmarks.md); for Xen in\n\
    [real-xen-figures](real-xen-figures.md). Compare rows of one table, and nothing else. *a (b..c)* is a median\n\
    with the least and the greatest value. A ratio is the median of the ratios within each repeat.\n";

/// Returns the page that these files result in.
pub fn page(w: &Workspace) -> Result<String, String> {
    let mut files = Vec::new();
    let folder = w.root().join(FOLDER);
    for entry in fs::read_dir(&folder).map_err(|e| format!("{FOLDER}: {e}"))? {
        let path = entry.map_err(|e| format!("{FOLDER}: {e}"))?.path();
        if path.extension().is_some_and(|e| e == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
    let sections: Result<Vec<_>, String> = files.iter().map(|path| read(path)).collect();
    Ok(sections?.iter().fold(HEAD.to_string(), |page, section| page + &markdown(section)))
}

/// The error in the page in the tree, if there is one.
pub fn check(w: &Workspace) -> Option<String> {
    let found = fs::read_to_string(w.root().join(PAGE)).map_err(|e| format!("{PAGE}: {e}"));
    match found.and_then(|found| Ok((found, page(w)?))) {
        Ok((found, made)) if found == made => None,
        Ok(_) => Some(format!("{PAGE}: not what {FOLDER} gives; run `cargo xtask figures --page`")),
        Err(why) => Some(why),
    }
}

fn read(path: &Path) -> Result<Section, String> {
    let text = fs::read_to_string(path).map_err(|e| e.to_string());
    text.and_then(|text| Section::parse(&text)).map_err(|e| format!("{}: {e}", path.display()))
}

fn markdown(section: &Section) -> String {
    let mut text = format!("\n## {}\n", section.title);
    paragraphs(&mut text, &section.origin, &section.note);
    for table in &section.tables {
        let _ = write!(text, "\n### {}\n", table.title);
        paragraphs(&mut text, &table.origin, &table.note);
        rows(&mut text, table);
    }
    text
}

fn paragraphs(text: &mut String, origin: &[String], note: &str) {
    if !origin.is_empty() {
        let _ = write!(text, "\n{}.\n", capital(&origin.join("; ")));
    }
    if !note.is_empty() {
        let _ = write!(text, "\n{note}\n");
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn rows(text: &mut String, table: &Table) {
    let heads: Vec<&str> = table.columns.iter().map(|(_, head)| head.as_str()).collect();
    let _ = write!(text, "\n|{}|\n|{}\n", heads.join("|"), "---|".repeat(heads.len()));
    for row in &table.rows {
        let cells: Vec<String> = table.columns.iter().map(|(key, _)| cell(row.get(key))).collect();
        let _ = writeln!(text, "|{}|", cells.join("|"));
    }
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::Number(n)) => n.to_string().trim_end_matches(".0").into(),
        Some(Value::Array(three)) if three.len() == 3 => {
            let [middle, least, most] = [0, 1, 2].map(|i| cell(three.get(i)));
            format!("{middle} ({least}..{most})")
        }
        Some(Value::String(text)) => text.replace('|', "\\|"),
        Some(other) => other.to_string().replace('|', "\\|"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Section, check, markdown};
    use crate::workspace::Workspace;

    #[test]
    fn a_section_is_headings_and_tables() {
        let lines = [
            r#"{"section": "Disks", "machine": "two cores", "note": "Of all."}"#,
            r#"{"table": "t", "title": "Reads", "commit": "abc", "command": "bench blk", "columns": [["k", "path"], ["v", "k/s"], ["n", "n"]]}"#,
            r#"{"of": "t", "k": "a|b", "v": [1.05, 0.5, 120], "n": 1650}"#,
            r#"{"of": "t", "k": "map", "v": 0.0, "hidden": 1}"#,
        ];
        let text = markdown(&Section::parse(&lines.join("\n")).unwrap());
        assert_eq!(
            text,
            "\n## Disks\n\nTwo cores.\n\nOf all.\n\n### Reads\n\nCommit abc; `bench blk`.\n\n|path|k/s|n|\n|---|---|---|\n\
             |a\\|b|1.05 (0.5..120)|1650|\n|map|0||\n"
        );
    }

    #[test]
    fn the_page_in_the_tree_is_what_the_files_give() {
        assert_eq!(check(&Workspace::find()), None);
    }
}
