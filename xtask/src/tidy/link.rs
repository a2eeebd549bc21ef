//! Links between pages: the file is there, and so is the heading. Pages of the web are not asked.

use super::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path};

/// Links of these pages that lead nowhere.
pub fn check<'a>(root: &Path, pages: impl Iterator<Item = &'a Source>) -> Vec<String> {
    let pages: Vec<_> = pages.filter(|page| page.path.ends_with(".md")).collect();
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let mut headings = BTreeMap::new();
    let mut offences = Vec::new();
    for Source { path, text } in pages {
        for (number, link) in links(text) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { beside(path, file) };
            if !root.join(&target).exists() {
                offences.push(format!("{path}:{number}: links to {target}, which is not there"));
            } else if !heading.is_empty() && target.ends_with(".md") {
                let there = headings
                    .entry(target.clone())
                    .or_insert_with(|| anchors(&read(&target).unwrap_or_default()));
                if !there.contains(heading) {
                    offences.push(format!("{path}:{number}: {target} has no heading #{heading}"));
                }
            }
        }
    }
    offences
}

/// The targets within the tree, with their lines.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let mut links = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        is_code ^= line.trim_start().starts_with("```");
        if is_code {
            continue;
        }
        // What stands between backticks is no link.
        for prose in line.split('`').step_by(2) {
            let targets = prose.match_indices("](").map(|(at, mark)| &prose[at + mark.len()..]);
            let targets = targets.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
            links.extend(targets.filter(|target| !target.contains("://")).map(|target| (number, target)));
        }
    }
    links
}

/// A path as seen from a page's folder, from the root.
fn beside(page: &str, file: &str) -> String {
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let mut parts = Vec::new();
    for part in folder.join(file).components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            _ => {}
        }
    }
    parts.join("/")
}

/// The names of a page's headings: small letters, hyphens for spaces, no marks.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let headings = text.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#')
    });
    let name = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::{Source, anchors, beside, check, links};
    use crate::workspace::Workspace;

    #[test]
    fn links_to_files_and_headings_are_followed() {
        let offences = |text: &str| {
            let page = Source { path: "docs/decisions/README.md".into(), text: text.into() };
            check(Workspace::find().root(), [page].iter())
        };
        assert_eq!(offences("[a](../../README.md), [b](https://x.org/y.md), `[c](d.md)`"), [""; 0]);
        assert_eq!(offences("[a](../none.md) and [b](../../README.md#no-such-heading)").len(), 2);
        assert_eq!(offences("```\n[a](none.md)\n```\n[b](#none)").len(), 1);
    }

    #[test]
    fn targets_are_seen_from_their_page() {
        assert_eq!(beside("docs/decisions/0001-a.md", "../b.md"), "docs/b.md");
        assert_eq!(beside("README.md", "docs/c.md"), "docs/c.md");
        assert_eq!(links("a\n[b](c.md#d), [e](f)\n"), [(2, "c.md#d"), (2, "f")]);
    }

    #[test]
    fn headings_have_names() {
        let names = anchors("# A vif's *frames*, `TX`\ntext\n## 3.2 The list\n```\n# no\n```\n");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["32-the-list", "a-vifs-frames-tx"]);
    }
}
