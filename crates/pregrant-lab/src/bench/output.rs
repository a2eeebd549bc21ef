//! Writes the results of a bench as JSON lines, as the page of a report, and as a table on standard
//! output.

use super::{Result, none_went_wrong};
use crate::load::{self, COMPARED_MOST, Load, percent};
use crate::record::stats::LOADED;
use crate::record::{Record, RecordWriter};
use crate::report::Report;
use pregrant_cli::screen::{self, Progress, print};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Arguments of a bench that writes no page.
#[derive(Debug, clap::Args)]
pub struct Lines {
    /// Write a JSON object per row and repeat to this file ("-": standard output, without the
    /// table)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Arguments of a bench that writes a page.
#[derive(Debug, clap::Args)]
pub struct Output {
    #[command(flatten)]
    lines: Lines,
    /// Write a page with plots of the results to this folder, as index.html with the records beside
    /// it
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

impl Lines {
    /// Measures, and fails if a record shows that something went wrong.
    pub fn run(&self, measure: impl FnOnce(&mut Run) -> Result<()>) -> Result<()> {
        run(self.json.as_deref(), None, "", checked(measure))
    }
}

impl Output {
    /// Measures, and writes the page even if the run failed.
    pub fn run(&self, measure: impl FnOnce(&mut Run) -> Result<()>) -> Result<()> {
        run(self.lines.json.as_deref(), self.report.as_deref(), "", checked(measure))
    }

    /// Measures as [`run`](Self::run) does, for a bench that reports its own failures. An empty
    /// line precedes the name of the report.
    pub fn run_all(&self, measure: impl FnOnce(&mut Run) -> Result<()>) -> Result<()> {
        run(self.lines.json.as_deref(), self.report.as_deref(), "\n", measure)
    }
}

/// Measures, and checks whether a record shows that something went wrong.
fn checked(measure: impl FnOnce(&mut Run) -> Result<()>) -> impl FnOnce(&mut Run) -> Result<()> {
    |run| measure(run).and_then(|()| none_went_wrong(run.json.written()))
}

fn run(
    json: Option<&Path>,
    report: Option<&Path>,
    ahead: &str,
    measure: impl FnOnce(&mut Run) -> Result<()>,
) -> Result<()> {
    let mut run =
        Run { json: RecordWriter::open(json)?, page: Report::open(report)?, progress: Progress::new() };
    // To be read before it is waited for, also beside JSON lines.
    if let Some(loaded) = load::check() {
        run.progress.clear();
        screen::say(format_args!("pregrant-lab: {loaded}"));
    }
    let before = Load::now();
    let outcome = measure(&mut run);
    if let (Some(before), Some(now)) = (before, Load::now()) {
        run.say_load(now.others_since(&before))?;
    }
    let Run { json, page, .. } = run;
    if let (Some(place), false) = (page.write(json.written(), &outcome)?, json.is_stdout()) {
        print(format_args!("{ahead}Report: {}", place.display()))?;
    }
    outcome
}

/// Collects the results of a bench while it runs.
pub struct Run {
    json: RecordWriter,
    /// The report, with facts that are not in the records.
    pub page: Report,
    pub progress: Progress,
}

impl Run {
    /// Writes a record of a measurement that just ended.
    pub fn write(&mut self, record: &Record) -> Result<()> {
        let others = record.others.or_else(load::since_last);
        Ok(self.json.write(&Record { others, ..record.clone() })?)
    }

    /// Called after all measurements: prints a warning if other programs used too much of the
    /// machine meanwhile.
    fn say_load(&mut self, others: f64) -> Result<()> {
        let Some(loaded) = self.page.others(others) else { return Ok(()) };
        let text = format!(
            "{loaded}. Ratios of rows beside which others took more than {} % are not shown (\"{LOADED}\"). Run it again when nothing \
             else does.",
            percent(COMPARED_MOST)
        );
        if self.is_quiet() {
            screen::say(format_args!("pregrant-lab: {text}"));
        }
        self.print(format_args!("\n{text}"))
    }

    /// Returns true if the JSON lines go to standard output, where a table would disturb them.
    pub fn is_quiet(&self) -> bool {
        self.json.is_stdout()
    }

    /// Prints a table, or a text about it, after all measurements; prints nothing if JSON lines go
    /// to standard output.
    pub fn print(&self, text: impl Display) -> Result<()> {
        self.progress.clear();
        if !self.is_quiet() {
            print(text)?;
        }
        Ok(())
    }
}
