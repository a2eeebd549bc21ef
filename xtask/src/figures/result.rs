//! A file of `docs/results`: measured figures, one JSON object a line.
//!
//! ```text
//!   {"section": "Disks", "machine": "..", "note": ".."}              the first line
//!   {"table": "greedy", "title": "..", "commit": "..", "columns": [["dir", "direction"], ..]}
//!   {"of": "greedy", "dir": "read", "share": [0.898, 0.783, 0.990]}   a row
//! ```
//! A value is a text, a figure, or a median with the least and the greatest figure. A table says
//! what is known of its origin ([`ORIGIN`]). A row may have more than its table shows.
//!
//! Invariants: a row stands below its table; each column has a value in one row at least; a table
//! or a section has no key that this file does not know.

use serde_json::{Map, Value};

/// The origin of figures, in this order: a key, and the words before its value.
const ORIGIN: &[(&str, &str)] = &[
    ("source", ""),
    ("commit", "commit "),
    ("date", ""),
    ("command", ""),
    ("repeats", "repeats: "),
    ("machine", ""),
    ("beside", "what else ran: "),
];

#[derive(Debug, Default, PartialEq)]
pub struct Section {
    pub title: String,
    /// The facts that hold for all of its tables.
    pub note: String,
    /// The origin of the figures.
    pub origin: Vec<String>,
    /// The tables in the order of the file.
    pub tables: Vec<Table>,
}

/// One table with its rows.
#[derive(Debug, Default, PartialEq)]
pub struct Table {
    /// The name of the table in the file.
    pub id: String,
    pub title: String,
    pub note: String,
    /// The origin of the figures, if it differs from the section's.
    pub origin: Vec<String>,
    pub columns: Vec<(String, String)>,
    pub rows: Vec<Map<String, Value>>,
}

impl Section {
    /// Parses a file; the error names the line and the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
        let first = lines.next().ok_or("it is empty")?;
        let mut section = at(first, Self::head)?;
        for line in lines {
            at(line, |object| section.add(object))?;
        }
        for table in &section.tables {
            if let Some((key, _)) = table.columns.iter().find(|(key, _)| !table.has(key)) {
                return Err(format!("no row of table {:?} has a value for {key:?}", table.id));
            }
        }
        Ok(section)
    }

    fn head(mut object: Map<String, Value>) -> Result<Self, String> {
        let title = word(&mut object, "section")?.ok_or("the first line has no \"section\"")?;
        let note = word(&mut object, "note")?.unwrap_or_default();
        Ok(Self { title, note, origin: origin(object)?, tables: Vec::new() })
    }

    fn add(&mut self, mut object: Map<String, Value>) -> Result<(), String> {
        if let Some(id) = word(&mut object, "of")? {
            let table = self.tables.iter_mut().find(|table| table.id == id);
            table.ok_or(format!("there is no table {id:?} above"))?.rows.push(object);
            return Ok(());
        }
        let id = word(&mut object, "table")?.ok_or("neither a table nor a row \"of\" one")?;
        if self.tables.iter().any(|table| table.id == id) {
            return Err(format!("table {id:?} is above already"));
        }
        let columns = object.remove("columns").ok_or("a table has \"columns\"")?;
        self.tables.push(Table {
            id,
            title: word(&mut object, "title")?.ok_or("a table has a \"title\"")?,
            note: word(&mut object, "note")?.unwrap_or_default(),
            columns: serde_json::from_value(columns)
                .map_err(|e| format!("\"columns\" are [key, heading]: {e}"))?,
            origin: origin(object)?,
            rows: Vec::new(),
        });
        Ok(())
    }
}

impl Table {
    fn has(&self, key: &str) -> bool {
        self.rows.iter().any(|row| row.get(key).is_some_and(|value| !value.is_null()))
    }
}

/// Reads one line and passes its object on; an error has the line's number.
fn at<T>(
    (line, n): (&str, usize),
    read: impl FnOnce(Map<String, Value>) -> Result<T, String>,
) -> Result<T, String> {
    let object = serde_json::from_str(line).map_err(|e| e.to_string());
    object.and_then(read).map_err(|e| format!("line {n}: {e}"))
}

/// Removes a text from an object and returns it.
fn word(object: &mut Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match object.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(format!("{key:?} is a text, not {other}")),
    }
}

/// The origin that an object gives. Nothing else may be left in it.
fn origin(mut object: Map<String, Value>) -> Result<Vec<String>, String> {
    let mut said = Vec::new();
    for (key, words) in ORIGIN {
        match object.remove(*key) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) if *key == "command" => said.push(format!("`{text}`")),
            Some(Value::String(text)) => said.push(format!("{words}{text}")),
            Some(other) => said.push(format!("{words}{other}")),
        }
    }
    match object.keys().next() {
        None => Ok(said),
        Some(key) => Err(format!("{key:?} is not known")),
    }
}

#[cfg(test)]
mod tests {
    use super::Section;

    const SECTION: &str = r#"{"section": "Disks", "machine": "two cores"}"#;
    const TABLE: &str =
        r#"{"table": "t", "title": "T", "commit": "abc", "repeats": 9, "columns": [["k", "K"]]}"#;

    fn parse(lines: &[&str]) -> Result<Section, String> {
        Section::parse(&lines.join("\n"))
    }

    #[test]
    fn rows_come_to_their_tables() {
        let other = TABLE.replace("\"t\"", "\"u\"");
        let section =
            parse(&[SECTION, TABLE, &other, r#"{"of": "t", "k": 1}"#, "", r#"{"of": "u", "k": 2}"#]).unwrap();
        assert_eq!(
            (section.title.as_str(), section.origin.as_slice()),
            ("Disks", ["two cores".to_string()].as_slice())
        );
        let values: Vec<_> =
            section.tables.iter().map(|t| (t.id.as_str(), t.rows[0]["k"].as_u64())).collect();
        assert_eq!(values, [("t", Some(1)), ("u", Some(2))]);
        assert_eq!(section.tables[0].origin, ["commit abc", "repeats: 9"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let row = r#"{"of": "t", "k": 1}"#;
        for (lines, why) in [
            (vec![], "empty"),
            (vec![TABLE], "line 1: the first line has no \"section\""),
            (vec![SECTION, row], "line 2: there is no table \"t\" above"),
            (vec![SECTION, TABLE, TABLE], "line 3: table \"t\" is above already"),
            (vec![SECTION, TABLE], "no row of table \"t\" has a value for \"k\""),
            (vec![SECTION, TABLE, r#"{"of": "t", "k": null}"#], "no row of table"),
            (vec![SECTION, TABLE, r#"{"of": 3}"#], "line 3: \"of\" is a text"),
            (vec![SECTION, "{}"], "line 2: neither a table"),
            (vec![SECTION, "{"], "line 2: EOF"),
            (vec![r#"{"section": "S", "mood": "good"}"#], "line 1: \"mood\" is not known"),
        ] {
            let said = parse(&lines).unwrap_err();
            assert!(said.contains(why), "{said:?} is not {why:?}");
        }
    }
}
