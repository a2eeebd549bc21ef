//! docs/messages.toml: remedies of texts that have none in themselves, by text or by file.
//!
//! ```text
//!   [[message]]                        [[file]]
//!   text = "the text in the source"    path = "crates/.../"     a file or a folder
//!   remedy = "What to do."             remedy = "What to do."   of errors; a line has its own
//!   seen = "vif 0 of ...: {text}"      the line or error that it is a part of, where it is a part
//! ```
//! `seen` or `remedy` may be absent. A remedy that the page never shows, since the text itself or
//! the file's row says what to do, is refused: it would get out of date unseen.
//!
//! The file is a small part of TOML: these two tables with basic strings, and a comment above them.

use super::message::{Kind, Message, words};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The smallest share of common words with which a new text counts as the successor of a removed
/// one.
const ALIKE: f64 = 0.3;
/// The place of the source's text in what an operator sees.
const TEXT_HERE: &str = "{text}";
/// Bonus for two texts in the same file.
const SAME_FILE: f64 = 0.25;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    /// The entry is the remedy for a whole file instead of one text.
    of_file: bool,
    /// The text, or the file's path.
    key: String,
    /// The text as an operator sees it; `{text}` is the text in the source.
    seen: Option<String>,
    /// The remedy; None: the text states it, or the entry of the text's file has it.
    remedy: Option<String>,
}

/// All remedies, in the file's order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// The comment above the first entry.
    head: String,
    entries: Vec<Entry>,
}

impl Table {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut table = Self { head: String::new(), entries: Vec::new() };
        for (line, number) in text.lines().zip(1..) {
            let wrong = |what: &str| format!("docs/messages.toml:{number}: {what}");
            match (line.trim(), table.entries.last_mut()) {
                ("[[message]]" | "[[file]]", _) => {
                    let of_file = line.trim() == "[[file]]";
                    table.entries.push(Entry { of_file, key: String::new(), seen: None, remedy: None });
                }
                ("", _) => {}
                (comment, None) if comment.starts_with('#') => {
                    let _ = writeln!(table.head, "{comment}");
                }
                (pair, Some(entry)) => {
                    let (key, value) =
                        pair.split_once(" = ").ok_or_else(|| wrong("expected `key = \"...\"`"))?;
                    let value = basic_string(value).ok_or_else(|| wrong("expected a string in quotes"))?;
                    match (key, entry.of_file) {
                        ("text", false) | ("path", true) => entry.key = value,
                        ("remedy", _) => entry.remedy = Some(value),
                        ("seen", of_file) if !of_file || value.contains(TEXT_HERE) => {
                            entry.seen = Some(value)
                        }
                        ("seen", _) => return Err(wrong("what is seen of a file's texts has {text} in it")),
                        _ => return Err(wrong("the keys are text or path, seen, and remedy")),
                    }
                }
                _ => return Err(wrong("expected [[message]] or [[file]]")),
            }
        }
        let is_empty = |entry: &&Entry| {
            let texts = [&entry.remedy, &entry.seen];
            let has_empty = texts.into_iter().flatten().any(String::is_empty);
            entry.key.is_empty() || has_empty || texts.iter().all(|text| text.is_none())
        };
        match table.entries.iter().find(is_empty) {
            Some(entry) => Err(format!(
                "docs/messages.toml: an entry lacks a key, or both seen and remedy, or one of them is empty: {entry:?}"
            )),
            None => Ok(table),
        }
    }

    pub fn text(&self) -> String {
        let mut text = self.head.clone();
        for Entry { of_file, key, seen, remedy } in &self.entries {
            let (table, name) = if *of_file { ("file", "path") } else { ("message", "text") };
            let _ = write!(text, "\n[[{table}]]\n{name} = {}\n", quoted(key));
            for (name, value) in [("seen", seen), ("remedy", remedy)] {
                if let Some(value) = value {
                    let _ = writeln!(text, "{name} = {}", quoted(value));
                }
            }
        }
        text
    }

    /// The entry of a text, and that of its file.
    fn of<'a>(&'a self, message: &Message) -> [Option<&'a Entry>; 2] {
        let own = self.entries.iter().find(|entry| !entry.of_file && entry.key == message.text);
        let holds = |entry: &&Entry| entry.of_file && message.path.starts_with(&entry.key);
        let files = self.entries.iter().filter(holds).filter(|_| message.kind == Kind::Error);
        [own, files.max_by_key(|entry| entry.key.len())]
    }

    /// The entry of a text whose remedy is its own, and not its file's.
    fn with_remedy<'a>(&'a self, message: &Message) -> Option<&'a Entry> {
        let [own, file] = self.of(message);
        own.filter(|own| own.remedy.is_some() && file.is_none_or(|file| file.remedy != own.remedy))
    }

    /// Returns the remedy that a text itself states, unless that is a placeholder and the text's
    /// entry has a remedy.
    fn said<'a>(&self, message: &'a Message) -> Option<&'a str> {
        let has_entry = self.with_remedy(message).is_some();
        message.own_remedy().filter(|said| !has_entry || !is_placeholder(said))
    }

    /// The remedy: the text's own, else that of its entry, else that of its file. The text's own is
    /// shown as an operator sees it.
    pub fn remedy(&self, message: &Message) -> Option<String> {
        let [own, _] = self.of(message);
        if let Some(said) = self.said(message) {
            let whole = own.and_then(|own| own.seen.clone()).filter(|seen| !seen.contains(TEXT_HERE));
            let seen = whole.map(|text| Message { text, ..message.clone() });
            return Some(seen.as_ref().and_then(Message::own_remedy).unwrap_or(said).into());
        }
        self.entry(message).and_then(|entry| entry.remedy.clone())
    }

    /// Returns the entry that has the remedy of a text which states none itself.
    fn entry<'a>(&'a self, message: &Message) -> Option<&'a Entry> {
        let [_, file] = self.of(message);
        self.with_remedy(message).or(file.filter(|file| file.remedy.is_some()))
    }

    /// The keys of the remedies that no message shows.
    pub fn unshown(&self, messages: &[Message]) -> Vec<&str> {
        let without = messages.iter().filter(|message| self.said(message).is_none());
        let shown: Vec<&Entry> = without.filter_map(|message| self.entry(message)).collect();
        let is_shown = |entry: &Entry| shown.iter().any(|one| std::ptr::eq(*one, entry));
        let unshown = self.entries.iter().filter(|entry| entry.remedy.is_some() && !is_shown(entry));
        unshown.map(|entry| entry.key.as_str()).collect()
    }

    /// Returns the text as an operator sees it: if the text is a part of a line, the whole line.
    pub fn seen(&self, message: &Message) -> String {
        let [own, file] = self.of(message).map(|entry| entry.and_then(|entry| entry.seen.as_deref()));
        own.or(file).unwrap_or(TEXT_HERE).replace(TEXT_HERE, &message.text)
    }

    /// The keys that no message has.
    pub fn stale(&self, messages: &[Message]) -> Vec<&str> {
        let is_known = |entry: &&Entry| {
            let has_key = |m: &Message| match entry.of_file {
                true => m.path.starts_with(&entry.key),
                false => m.text == entry.key,
            };
            messages.iter().any(has_key)
        };
        self.entries.iter().filter(|entry| !is_known(entry)).map(|entry| entry.key.as_str()).collect()
    }

    /// Moves each remedy whose text is gone to a text without one, the most similar pairs first.
    /// `is_from` says whether a text that is gone was in the same place as a message.
    pub fn rekey(&mut self, messages: &[Message], is_from: impl Fn(&str, &Message) -> bool) {
        let free: Vec<&Message> = messages.iter().filter(|message| self.remedy(message).is_none()).collect();
        let stale = self.stale(messages);
        let is_gone = |e: &Entry| !e.of_file && e.remedy.is_some() && stale.contains(&e.key.as_str());
        let gone = self.entries.iter().zip(0..).filter(|(entry, _)| is_gone(entry));
        let pairs = gone.flat_map(|(entry, at)| {
            let place = |message: &Message| if is_from(&entry.key, message) { SAME_FILE } else { 0.0 };
            free.iter().map(move |m| (likeness(&entry.key, &m.text) + place(m), at, m.text.clone()))
        });
        let mut pairs: Vec<(f64, usize, String)> = pairs.filter(|(alike, ..)| *alike >= ALIKE).collect();
        pairs.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
        let (mut given, mut taken) = (BTreeSet::new(), BTreeSet::new());
        for (_, at, text) in pairs {
            if !given.contains(&text) && taken.insert(at) {
                given.insert(text.clone());
                self.entries[at].key = text;
            }
        }
    }
}

/// Whether a text consists of one placeholder, without any word.
fn is_placeholder(text: &str) -> bool {
    text.starts_with('{') && text.find('}') == Some(text.len() - 1)
}

/// The share of words that both have.
fn likeness(a: &str, b: &str) -> f64 {
    let (a, b): (BTreeSet<_>, BTreeSet<_>) = (words(a).into_iter().collect(), words(b).into_iter().collect());
    a.intersection(&b).count() as f64 / a.union(&b).count().max(1) as f64
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn basic_string(text: &str) -> Option<String> {
    let inner = text.trim().strip_prefix('"')?.strip_suffix('"')?;
    let mut said = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return None,
            '\\' => said.push(chars.next().filter(|c| matches!(c, '"' | '\\'))?),
            c => said.push(c),
        }
    }
    Some(said)
}

#[cfg(test)]
mod tests {
    use super::super::message::{Kind, Message};
    use super::Table;

    const TEXT: &str = "# Remedies.\n\n[[message]]\ntext = \"a \\\"b\\\" is full of {n} frames\"\nremedy = \"Wait.\"\n\n\
                        [[file]]\npath = \"crates/a/src/b.rs\"\nremedy = \"Call.\"\n";

    fn message(kind: Kind, text: &str) -> Message {
        Message { kind, text: text.into(), path: "crates/a/src/b.rs".into() }
    }

    #[test]
    fn a_file_is_read_and_written_as_it_is() {
        assert_eq!(Table::parse(TEXT).unwrap().text(), TEXT);
        assert!(Table::parse("text = \"a\"\n").is_err());
        assert!(Table::parse("[[message]]\ntext = a\n").is_err());
        assert!(Table::parse("[[message]]\npath = \"a\"\nremedy = \"b\"\n").is_err());
        assert!(Table::parse("[[message]]\ntext = \"a\"\n").is_err());
        let with_seen = |remedy: &str| format!("[[message]]\ntext = \"a\"\nseen = \"b\"\n{remedy}");
        assert!(Table::parse(&with_seen("")).is_ok());
        assert!(Table::parse(&with_seen("remedy = \"\"\n")).is_err(), "an empty remedy is none");
    }

    #[test]
    fn a_text_s_own_remedy_is_first_and_its_file_s_last() {
        let table = Table::parse(TEXT).unwrap();
        let remedy = |kind, text: &str| table.remedy(&message(kind, text));
        assert_eq!(remedy(Kind::Line, "a \"b\" is full of {n} frames").as_deref(), Some("Wait."));
        assert_eq!(remedy(Kind::Error, "something else").as_deref(), Some("Call."));
        let folder = Table::parse(&TEXT.replace("crates/a/src/b.rs", "crates/a/")).unwrap();
        assert_eq!(folder.remedy(&message(Kind::Error, "something else")).as_deref(), Some("Call."));
        assert_eq!(remedy(Kind::Error, "no device; attach one").as_deref(), Some("attach one"));
        assert_eq!(remedy(Kind::Line, "something else"), None);
    }

    #[test]
    fn a_part_is_shown_with_what_it_is_a_part_of() {
        let seen = "remedy = \"Call.\"\nseen = \"vif 0: {text}; see above\"\n";
        let table = Table::parse(&TEXT.replace("remedy = \"Call.\"\n", seen)).unwrap();
        assert_eq!(Table::parse(&table.text()).unwrap(), table);
        assert_eq!(table.seen(&message(Kind::Error, "no such page")), "vif 0: no such page; see above");
        assert_eq!(table.seen(&message(Kind::Line, "no such page")), "no such page");
        assert!(Table::parse(&TEXT.replace("remedy = \"Call.\"\n", "seen = \"vif 0\"\n")).is_err());
    }

    #[test]
    fn a_placeholder_is_no_remedy() {
        let text = "a mount needs it: {remedy}";
        let table = Table::parse(&format!("[[message]]\ntext = {text:?}\nremedy = \"Load it.\"\n")).unwrap();
        assert_eq!(table.remedy(&message(Kind::Error, text)).as_deref(), Some("Load it."));
        assert_eq!(table.remedy(&message(Kind::Error, "a mount: {remedy}")).as_deref(), Some("{remedy}"));
    }

    #[test]
    fn a_text_s_own_remedy_is_shown_as_it_is_seen() {
        let seen = "[[message]]\ntext = \"{}: gone; make {}\"\nseen = \"{path}: gone; make {directory}\"\n";
        let table = Table::parse(seen).unwrap();
        assert_eq!(Table::parse(&table.text()).unwrap(), table);
        let gone = message(Kind::Error, "{}: gone; make {}");
        assert_eq!(table.remedy(&gone).as_deref(), Some("make {directory}"));
        let part = Table::parse(&seen.replace("{path}: gone; make {directory}", "a: {text}. Use b")).unwrap();
        assert_eq!(part.remedy(&gone).as_deref(), Some("make {}"));
    }

    #[test]
    fn a_remedy_that_is_never_shown_is_found() {
        let row = |text: &str, remedy: &str| format!("[[message]]\ntext = {text:?}\nremedy = {remedy:?}\n");
        let (own, other) = ("no device; attach one", "no page");
        let table = |rows: &[String]| Table::parse(&[TEXT.to_string(), rows.concat()].concat()).unwrap();
        let messages = [message(Kind::Error, own), message(Kind::Error, other), message(Kind::Error, "none")];
        let full = "a \"b\" is full of {n} frames";
        assert_eq!(table(&[row(own, "Wait."), row(other, "Wait.")]).unshown(&messages), [full, own]);
        // The file's row says it.
        assert_eq!(table(&[row(other, "Call.")]).unshown(&messages), [full, other]);
        // Each text of the file has a remedy of its own.
        let file = "crates/a/src/b.rs";
        assert_eq!(table(&[row(other, "Wait.")]).unshown(&messages[..2]), [full, file]);
    }

    #[test]
    fn a_text_that_changed_keeps_its_remedy() {
        let mut table = Table::parse(TEXT).unwrap();
        let messages = [message(Kind::Line, "no such page"), message(Kind::Line, "a \"b\" holds {n} frames")];
        assert_eq!(table.stale(&messages).len(), 1);
        table.rekey(&messages, |_, _| false);
        assert_eq!(table.stale(&messages), [""; 0]);
        assert_eq!(table.remedy(&messages[1]).as_deref(), Some("Wait."));
        assert_eq!(table.remedy(&messages[0]), None);
        let others = [message(Kind::Line, "no page"), message(Kind::Line, "all frames are lost")];
        table.rekey(&others, |_, _| false);
        assert_eq!(table.stale(&others).len(), 1);
        table.rekey(&others, |_, message| message.text.contains("frames"));
        assert_eq!(table.remedy(&others[1]).as_deref(), Some("Wait."));
    }
}
