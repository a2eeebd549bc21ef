//! Links of the pages: each leads to a file, and to a heading of it; and each page of `docs` is
//! listed in its summary. Decision 0050 says which programs do the first, and why they are not
//! used.

use super::Source;
use crate::markdown::{anchors, links};
use std::collections::BTreeMap;
use std::path::Path;

/// The list of the site's pages, from the root.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// Returns links that lead nowhere, and pages of `docs` that the summary lists neither by
/// themselves nor by their folder.
pub fn check<'a>(root: &Path, texts: impl Iterator<Item = &'a Source> + Clone) -> Vec<String> {
    let pages = || texts.clone().filter(|source| source.path.ends_with(".md"));
    let headings: BTreeMap<&str, Vec<String>> =
        pages().map(|page| (page.path.as_str(), anchors(&page.text))).collect();
    let mut offences = Vec::new();
    let mut listed = Vec::new();
    for Source { path, text } in pages() {
        for link in links(text) {
            let Some((file, heading)) = link.file_and_heading() else { continue };
            let line = text[..link.start].lines().count().max(1);
            let found = if file.is_empty() { path.clone() } else { resolve(path, file) };
            let there = headings.get(found.as_str());
            if there.is_none() && !root.join(&found).exists() {
                offences.push(format!("{path}:{line}: there is no {found}"));
            }
            let is_missing =
                |heading: &&str| there.is_some_and(|there| there.iter().all(|one| one != heading));
            if let Some(heading) = heading.filter(is_missing) {
                offences.push(format!("{path}:{line}: {found} has no heading #{heading}"));
            }
            if path == SUMMARY {
                listed.push(found);
            }
        }
    }
    let unlisted = pages().filter(|page| page.path.starts_with("docs/") && page.path != SUMMARY);
    let is_listed = |path: &str| {
        listed.iter().any(|one| path.strip_prefix(one).is_some_and(|p| p.is_empty() || p.starts_with('/')))
    };
    let unlisted = unlisted.filter(|page| !is_listed(&page.path));
    offences.extend(unlisted.map(|page| format!("{}: {SUMMARY} lists neither it nor its folder", page.path)));
    offences
}

/// The file that a page's link names, from the root.
pub fn resolve(page: &str, file: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/').filter(|part| !matches!(*part, "" | ".")) {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::{SUMMARY, Source, check, resolve};
    use crate::workspace::Workspace;

    fn offences(pages: &[(&str, &str)]) -> usize {
        let source = |(path, text): &(&str, &str)| Source { path: (*path).into(), text: (*text).into() };
        let pages: Vec<_> = pages.iter().map(source).collect();
        check(Workspace::find().root(), pages.iter()).len()
    }

    #[test]
    fn a_link_leads_to_a_file_and_its_heading() {
        let licence = ("docs/x.md", "[a](../LICENSE-MIT), [b](https://x.org/#y), [c](#d)\n# D");
        let summary = (SUMMARY, "[x](x.md)");
        assert_eq!(offences(&[licence, (SUMMARY, "")]), 1);
        assert_eq!(offences(&[licence, summary]), 0);
        assert_eq!(offences(&[("a.md", "[a](LICENSE-MIT)\n[b](LICENCE), [c](#d)"), (SUMMARY, "")]), 2);
    }

    #[test]
    fn targets_are_relative_to_their_page() {
        assert_eq!(resolve("docs/decisions/0001.md", "../protocol/ring.md"), "docs/protocol/ring.md");
        assert_eq!(resolve("README.md", "./docs/"), "docs");
    }
}
