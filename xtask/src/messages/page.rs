//! docs/messages.md: a table of lines in the log, and one of errors.

use super::message::{Kind, Message};
use super::table::Table;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const HEAD: &str = "# Warnings and errors\n\n\
    <!-- made by `cargo xtask messages` from the source and from docs/messages.toml -->\n\n\
    A word in braces stands for a value. A line of a device begins with its name, as `vif 0 of domain 5: `; errors\n\
    stand behind it, or end a command. `{id}` is a device, `{domid}` a domain; `{e}`, `{errno}` and `{why}` are the cause,\n\
    as the kernel or another row says it. The third column says which source file writes the text.\n";

pub fn text(messages: &[Message], table: &Table) -> String {
    let mut page = HEAD.to_string();
    for (kind, title, what) in
        [(Kind::Line, "Lines in the log", "line"), (Kind::Error, "What errors say", "error")]
    {
        let mut rows: BTreeMap<String, (Vec<String>, String)> = BTreeMap::new();
        for message in messages.iter().filter(|message| message.kind == kind) {
            let remedy = table.remedy(message).unwrap_or_default();
            let (places, _) = rows.entry(table.seen(message)).or_insert((Vec::new(), remedy));
            if !places.contains(&message.place()) {
                places.push(message.place());
            }
        }
        let _ = write!(page, "\n## {title}\n\n| {what} | what to do | from |\n|---|---|---|\n");
        for (text, (places, remedy)) in rows {
            let _ = writeln!(page, "| {} | {} | {} |", code(&text), cell(&remedy), places.join(", "));
        }
    }
    page
}

/// Whether a page has a text, which may be gone from the source, for a message's file. `seen` is
/// the text as it was shown.
pub fn has(page: &str, seen: &str, message: &Message) -> bool {
    let row = format!("| {} | ", code(seen));
    let places =
        page.lines().filter(|line| line.starts_with(&row)).filter_map(|line| line.rsplit(" | ").next());
    let mut places = places.flat_map(|cell| cell.trim_end_matches(" |").split(", "));
    places.any(|place| place == message.place())
}

/// Formats a text as code, whatever characters it has.
fn code(text: &str) -> String {
    let text = text.replace('|', "\\|").replace('\n', " ");
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::super::message::{Kind, Message};
    use super::super::table::Table;

    #[test]
    fn a_text_has_one_row_with_all_of_its_places() {
        let message = |kind, path: &str| Message { kind, text: "no `x`|y; stop".into(), path: path.into() };
        let messages = [
            message(Kind::Line, "crates/a/src/b.rs"),
            message(Kind::Line, "crates/a/src/c/d.rs"),
            message(Kind::Error, "crates/a/src/b.rs"),
        ];
        let page = super::text(&messages, &Table::parse("").unwrap());
        assert!(page.contains("\n| `` no `x`\\|y; stop `` | stop | a: b.rs, a: c/d.rs |\n"), "{page}");
        assert_eq!(page.matches("| stop |").count(), 2, "{page}");
        let moved = |path: &str| Message { path: path.into(), ..messages[0].clone() };
        assert!(super::has(&page, &messages[0].text, &moved("crates/a/src/c/d.rs")));
        assert!(!super::has(&page, &messages[0].text, &moved("crates/a/src/c.rs")));
    }
}
