//! The report: records of measurements as one HTML page that stands alone.
//!
//! ```text
//! demo, bench --report DIR ─┐                    ┌─ rates    (curve, bars), disks (bars)
//!                           ├─ records ─ digest ─┼─ costs                      page ─ folder ─ DIR/index.html
//! report FILE --out DIR ────┘  + facts           ├─ waits    (histogram)
//!                                                └─ restarts (timeline), others, machine, method
//! ```
//!
//! Beside the page are the records, the facts, two plots as pictures for a README, and the figures
//! as Markdown.
//!
//! From records and facts to the page it is a pure function (`page::page`): old results can be
//! shown again. The page names no other resource and has no script; a section without records is
//! not there. Records may come out of any file: every text is escaped, and no figure can make a
//! plot that is endless.

mod bars;
mod costs;
mod curve;
mod digest;
mod disks;
mod facts;
mod folder;
mod histogram;
mod markdown;
mod page;
mod picture;
mod plot;
mod quantity;
mod rates;
mod scale;
mod story;
mod style;
#[cfg(test)]
mod tests;
mod timeline;
mod waits;
mod words;

use crate::record::Record;
use facts::Facts;
use folder::Folder;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The names of a report's files.
const PAGE: &str = "index.html";
const RATES: &str = "frames.svg";
const RESTART: &str = "restart.svg";
const MARKDOWN: &str = "figures.md";
const RECORDS: &str = "records.jsonl";
const FACTS: &str = "machine.json";

/// The report that a command writes after its measurements, if the user asked for one.
pub struct Report {
    folder: Option<Folder>,
    facts: Facts,
}

impl Report {
    /// Creates the folder before anything is measured.
    pub fn open(dir: Option<&Path>) -> Result<Self> {
        let folder = dir.map(Folder::open).transpose()?;
        let facts = if folder.is_some() { Facts::here() } else { Facts::default() };
        Ok(Self { folder, facts })
    }

    /// Sets the text that describes the platform.
    pub fn platform(&mut self, text: &str) {
        self.facts.platform = Some(text.into());
    }

    /// Records the share of CPU time that other programs used meanwhile. Returns a warning if that
    /// affects the figures.
    pub fn others(&mut self, share: f64) -> Option<String> {
        self.facts.others = Some(share);
        self.facts.loaded()
    }

    /// Writes the report of what was measured, also if the run failed before its end. Returns the
    /// path of the page.
    pub fn write(mut self, records: &[Record], outcome: &Result<()>) -> Result<Option<PathBuf>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        if records.is_empty() {
            return Ok(None);
        }
        self.facts.failed = outcome.as_ref().err().map(ToString::to_string);
        Ok(Some(write(folder, records, &self.facts)?))
    }
}

fn write(folder: &Folder, records: &[Record], facts: &Facts) -> Result<PathBuf> {
    let mut lines = String::new();
    for record in records {
        lines += &serde_json::to_string(record)?;
        lines.push('\n');
    }
    folder.put(RECORDS, lines.as_bytes())?;
    folder.put(FACTS, serde_json::to_string_pretty(facts)?.as_bytes())?;
    let records = page::printable(records);
    let digest = digest::Digest::of(&records);
    let texts = [
        (RATES, picture::rates(&digest)),
        (RESTART, picture::restart(&digest)),
        (MARKDOWN, markdown::markdown(&digest, &page::printable_facts(facts))),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            folder.put(name, text.as_bytes())?;
        }
    }
    folder.put(PAGE, page::page(&records, facts).as_bytes())?;
    Ok(folder.file(PAGE))
}

/// Arguments of `pregrant-lab report`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pregrant-lab report out.jsonl --out report
  pregrant-lab report net.jsonl latency.jsonl limit.jsonl --out report

FILE is what --json wrote. The machine's facts come from machine.json beside a records.jsonl, if there is one.")]
pub struct ReportArgs {
    /// Files of JSON lines; they should be of one machine
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The folder to write index.html to, made if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Runs `pregrant-lab report`.
pub fn run(args: ReportArgs) -> Result<()> {
    let mut records = Vec::new();
    for file in &args.files {
        records.extend(read(file)?);
    }
    let facts = match &args.files[..] {
        [file] if file.file_name().is_some_and(|name| name == RECORDS) => {
            read_facts(&file.with_file_name(FACTS))?
        }
        _ => Facts::default(),
    };
    let page = write(&Folder::open(&args.out)?, &records, &facts)?;
    Ok(pregrant_cli::screen::print(format_args!("Report: {}", page.display()))?)
}

/// Reads the records of a file.
fn read(file: &Path) -> Result<Vec<Record>> {
    let text = fs::read_to_string(file)
        .map_err(|e| format!("cannot read {}: {e}; name a file that --json wrote", file.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let records: Vec<Record> = lines
        .map(|(i, line)| {
            serde_json::from_str(line).map_err(|e| {
                format!(
                    "{}, line {}, is no record: {e}; name a file that --json wrote",
                    file.display(),
                    i + 1
                )
            })
        })
        .collect::<std::result::Result<_, _>>()?;
    if records.is_empty() {
        return Err(format!("{} has no records; name a file that --json wrote", file.display()).into());
    }
    Ok(records)
}

/// Reads the facts stored next to a report's records; none if the file does not exist.
fn read_facts(file: &Path) -> Result<Facts> {
    match fs::read_to_string(file) {
        Ok(text) => serde_json::from_str(&text).map_err(|e| {
            format!("cannot understand {}: {e}; move it away to go on without", file.display()).into()
        }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Facts::default()),
        Err(e) => Err(format!("cannot read {}: {e}; move it away to go on without", file.display()).into()),
    }
}
