//! `cargo xtask messages`: warnings and errors with their remedies, from the source to a page.
//!
//! ```text
//!   crates/*/src --> source (lines at warn and error, errors' texts) --+--> page
//!   docs/messages.toml --> table (remedies that no text has) ----------+    docs/messages.md
//! ```
//! A text whose last clause says what to do has its remedy in itself. `cargo xtask ci tidy`
//! refuses a message without a remedy, a remedy without a message, and a page that is out of date.
//!
//! Remedies are not methods (`fn remedy()`) of error enums, because most texts are of no enum: they
//! are lines of the log, or are made with `format!` where a call failed, with the path, key or
//! device that only that place knows. Those would need this table all the same, so that a remedy
//! would stand in one of two places; and the page would have to be made from the methods' source
//! too. A variant without a remedy is refused here, as the compiler would.

mod message;
mod page;
mod source;
mod table;

use crate::workspace::{Workspace, read, write};
use message::Message;
use table::Table;

/// The page, from the root.
const PAGE: &str = "docs/messages.md";
/// The table with remedies for texts that state none themselves, from the root.
const TABLE: &str = "docs/messages.toml";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// True to give the remedies of texts that are gone to the texts that resemble them most.
    rekey: bool,
}

impl Plan {
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        match args {
            [] => Ok(Self { rekey: false }),
            ["--rekey"] => Ok(Self { rekey: true }),
            _ => Err(format!("messages takes --rekey or nothing, not {args:?}")),
        }
    }
}

/// Writes the page, and with `--rekey` the table.
pub fn make(w: &Workspace, plan: Plan) -> Result<(), String> {
    let messages = source::all(w.root())?;
    let at = w.root().join(TABLE);
    let mut table = Table::parse(&read(&at)?)?;
    if plan.rekey {
        let old = read(&w.root().join(PAGE))?;
        let before = table.clone();
        table.rekey(&messages, |text, message| {
            let gone = Message { text: text.into(), ..message.clone() };
            page::has(&old, &before.seen(&gone), message)
        });
        write(&at, table.text())?;
    }
    write(&w.root().join(PAGE), page::text(&messages, &table))?;
    println!("{PAGE} has {} messages", messages.len());
    let offences = offences(&messages, &table);
    offences.iter().for_each(|offence| println!("{offence}"));
    match offences.len() {
        0 => Ok(()),
        n => Err(format!("{n} offences, listed above")),
    }
}

/// Returns the offences for the layer `tidy`, one line each.
pub fn check(w: &Workspace) -> Result<Vec<String>, String> {
    let messages = source::all(w.root())?;
    let table = Table::parse(&read(&w.root().join(TABLE))?)?;
    let mut offences = offences(&messages, &table);
    if read(&w.root().join(PAGE))? != page::text(&messages, &table) {
        offences.push(format!("{PAGE}: is not the page of the source; run `cargo xtask messages`"));
    }
    Ok(offences)
}

fn offences(messages: &[Message], table: &Table) -> Vec<String> {
    let without = messages.iter().filter(|message| table.remedy(message).is_none());
    let mut offences: Vec<String> = without
        .map(|Message { path, text, .. }| {
            format!("{path}: {text:?} has no remedy: say in it after `;` what to do, or in {TABLE}")
        })
        .collect();
    let stale = table.stale(messages);
    let unshown = table.unshown(messages).into_iter().filter(|key| !stale.contains(key));
    offences.extend(unshown.map(|key| {
        format!(
            "{TABLE}: the remedy of {key:?} is never shown, since the text or its file's row says what to do: leave it out"
        )
    }));
    offences.extend(stale.iter().map(|text| format!("{TABLE}: {text:?} is no message of the source")));
    offences
}

#[cfg(test)]
mod tests {
    use super::message::{Kind, Message};
    use super::table::Table;
    use super::{Plan, offences};

    fn message(text: &str) -> Message {
        Message { kind: Kind::Line, text: text.into(), path: "crates/a/src/b.rs".into() }
    }

    #[test]
    fn each_message_has_a_remedy_and_each_remedy_a_message() {
        let table = |text: &str| Table::parse(&format!("[[message]]\ntext = {text:?}\nremedy = \"Wait.\"\n"));
        let messages = [message("the disk is full"), message("the disk is gone; attach it again")];
        assert_eq!(offences(&messages, &table("the disk is full").unwrap()), [""; 0]);
        assert_eq!(offences(&messages, &table("the disk is hot").unwrap()).len(), 2);
        let twice = offences(&messages[1..], &table("the disk is gone; attach it again").unwrap());
        assert!(twice.len() == 1 && twice[0].contains("never shown"), "{twice:?}");
    }

    #[test]
    fn arguments_are_rekey_or_none() {
        assert_eq!(Plan::parse(&[]), Ok(Plan { rekey: false }));
        assert_eq!(Plan::parse(&["--rekey"]), Ok(Plan { rekey: true }));
        assert!(Plan::parse(&["x"]).is_err());
    }
}
