//! `cargo xtask book`: the pages as one site, by mdBook.
//!
//! ```text
//!   docs/SUMMARY.md lists --> pages of the tree --> target/book/src --mdbook--> target/book/html
//! ```
//! A folder in the list stands for its pages, by name and with their own titles. Pages keep their
//! places in the tree, so that their links hold. A link to what is no page (code, a folder) becomes
//! its text: such files are not on the site. `cargo xtask ci tidy` checks the links and the list.

use crate::markdown::{links, relinked};
use crate::tidy::{SUMMARY, resolve};
use crate::tool;
use crate::workspace::{self, Workspace, run};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// mdBook's settings, by their path from the root.
const SETTINGS: &str = "docs/book.toml";

/// Builds the site. If mdBook is missing outside of CI, prints how to install it.
pub fn layer(w: &Workspace) -> Result<(), String> {
    match tool::mdbook(w, tool::in_ci())? {
        Some(mdbook) => build(w, &mdbook),
        None => Ok(()),
    }
}

/// The command `cargo xtask book`, which installs mdBook if it is missing.
pub fn make(w: &Workspace) -> Result<(), String> {
    let mdbook = tool::mdbook(w, true)?.ok_or("there is no mdbook")?;
    build(w, &mdbook)?;
    println!("{}", w.target().join("book/html/index.html").display());
    Ok(())
}

fn build(w: &Workspace, mdbook: &str) -> Result<(), String> {
    let read = |path: &str| fs::read_to_string(w.root().join(path)).map_err(|e| format!("{path}: {e}"));
    let book = w.target().join("book");
    workspace::empty_dir(&book)?;
    let put = |path: &str, bytes: &[u8]| write_new(&book.join(path), bytes);
    let summary = from_the_root(&read(SUMMARY)?, |folder| pages_of(w.root(), folder))?;
    put("book.toml", read(SETTINGS)?.as_bytes())?;
    put("src/SUMMARY.md", relinked(&summary, |link| Some(staged(link.target))).as_bytes())?;
    let listed = links(&summary).into_iter().map(|link| link.target.to_string());
    let pages: BTreeSet<String> = listed.filter(|page| !page.is_empty()).collect();
    for page in &pages {
        let text = read(page)?;
        for picture in targets(page, &text).filter(|file| is_picture(file)) {
            put(&format!("src/{picture}"), read(&picture)?.as_bytes())?;
        }
        let text = relinked(&text, |link| {
            let Some((file, _)) = link.file_and_heading() else { return Some(link.target.into()) };
            let is_there = file.is_empty() || is_picture(file) || pages.contains(&resolve(page, file));
            is_there.then(|| staged(link.target))
        });
        put(&format!("src/{}", staged(page)), text.as_bytes())?;
    }
    run(w.program(mdbook).arg("build").arg(&book))
}

/// A page, or a link to it, by its name on the site: mdBook uses `index.md` for a folder's own
/// page.
fn staged(page: &str) -> String {
    page.replace("README.md", "index.md")
}

fn is_picture(file: &str) -> bool {
    file.ends_with(".svg")
}

/// The files that a page links to, from the root.
fn targets<'a>(page: &'a str, text: &'a str) -> impl Iterator<Item = String> + 'a {
    let files = links(text).into_iter().filter_map(|link| {
        let (file, _) = link.file_and_heading()?;
        Some(file.to_string())
    });
    files.filter(|file| !file.is_empty()).map(move |file| resolve(page, &file))
}

/// Returns the summary with the targets of its links as seen from the root, and with the pages of
/// its folders, each by path and title.
fn from_the_root(
    summary: &str,
    pages_of: impl Fn(&str) -> Result<Vec<(String, String)>, String>,
) -> Result<String, String> {
    let mut out = String::new();
    for line in summary.lines() {
        let Some(link) = links(line).pop() else {
            out += &format!("{line}\n");
            continue;
        };
        let (text, target) = (&line[..link.text_end], resolve(SUMMARY, link.target));
        if target.ends_with(".md") {
            out += &format!("{text}]({target})\n");
            continue;
        }
        out += &format!("{text}]()\n");
        let indent = " ".repeat(line.len() - line.trim_start().len() + 2);
        for (page, title) in pages_of(&target)? {
            out += &format!("{indent}- [{title}]({page})\n");
        }
    }
    Ok(out)
}

/// The pages of a folder, by name: the path from the root and the title of each.
fn pages_of(root: &Path, folder: &str) -> Result<Vec<(String, String)>, String> {
    let failed = |e: std::io::Error| format!("{folder}: {e}");
    let mut pages = Vec::new();
    for entry in fs::read_dir(root.join(folder)).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            let text = fs::read_to_string(root.join(folder).join(&name)).map_err(failed)?;
            let title = text.lines().next().unwrap_or_default().trim_start_matches('#').trim();
            pages.push((format!("{folder}/{name}"), title.to_string()));
        }
    }
    pages.sort();
    Ok(pages)
}

/// Writes a file, and makes its folder.
fn write_new(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let dir = path.parent().unwrap_or(path);
    fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    workspace::write(path, bytes)
}

#[cfg(test)]
mod tests {
    use super::from_the_root;

    #[test]
    fn the_summary_s_links_are_those_of_the_tree() {
        let pages_of = |folder: &str| Ok(vec![(format!("{folder}/1.md"), "One".to_string())]);
        assert_eq!(
            from_the_root("# S\n[A](../README.md)\n- [B](b.md)\n- [C](c)\n", pages_of).unwrap(),
            "# S\n[A](README.md)\n- [B](docs/b.md)\n- [C]()\n  - [One](docs/c/1.md)\n"
        );
    }
}
