//! `pregrant bench latency`: one frame at a time, there and back; how long a request and a response take.

use super::net::{MODES, PATHS, Stand, seconds};
use crate::choice::choice;
use crate::process::order::{Case, Dir, Latencies, Played};
use crate::record::{Record, RecordWriter};
use crate::screen::print;
use crate::table::{Align, Table, figure};
use pregrant::net::path::PathName;
use pregrant_host::counters::Counters;
use pregrant_host::drivers::Mode;
use std::error::Error;
use std::path::PathBuf;

/// Staging's data length here.
const DATA_LEN: u32 = 256;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `bench latency`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pregrant bench latency
  pregrant bench latency --path staging --mode event --seconds 2

Request: from the guest's stamp before it sends to the stamp at the backend's port. Response: from there to the
guest's stamp after it received. One frame of 64 B in flight.")]
pub struct LatencyArgs {
    /// Paths, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = [PathName::Copy, PathName::Staging], value_parser = choice(PATHS, PathName::name))]
    pub path: Vec<PathName>,
    /// How both ends wait, with commas between the modes
    #[arg(long, value_delimiter = ',', default_values = ["poll", "event"], value_parser = choice(MODES, Mode::name))]
    pub mode: Vec<Mode>,
    /// Seconds of each row
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    pub seconds: f64,
    /// Write a JSON object per row and direction to this file ("-": standard output, without the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots of the results to this folder, as index.html with the records beside it
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

/// One row.
#[derive(Clone, Debug)]
pub struct Latency {
    /// The path.
    pub path: PathName,
    /// How both ends waited.
    pub mode: Mode,
    /// Frames that came back.
    pub frames: u64,
    /// In how long.
    pub seconds: f64,
    /// From the guest to the port.
    pub request: Latencies,
    /// From the port to the guest.
    pub response: Latencies,
    /// Operations of both ends.
    pub ops: Counters,
    /// CPU time of the guest and of the back.
    pub cpu_ns: [u64; 2],
    /// Frames that did not come back, by their numbers.
    pub lost: u64,
    /// What else went wrong: both ends' accounts.
    ends: [Played; 2],
}

/// Measures one row.
pub fn measure(stand: &mut Stand, path: PathName, mode: Mode, seconds: f64) -> Result<Latency> {
    let (guest, back) = stand.play(Case {
        burst: 1,
        seconds,
        mode,
        data_len: (path == PathName::Staging).then_some(DATA_LEN),
        ..Case::of(Dir::Echo, path)
    })?;
    let [request, response] = guest.latency.clone().ok_or("the guest did not measure a latency")?;
    Ok(Latency {
        path,
        mode,
        frames: guest.frames,
        seconds: guest.seconds,
        request,
        response,
        ops: guest.counters.plus(&back.counters),
        cpu_ns: [guest.cpu_ns, back.cpu_ns],
        lost: guest.missing,
        ends: [guest, back],
    })
}

impl Latency {
    /// As records, one for each direction: `frames_per_s` is the rate of frames there and back.
    pub fn records(&self) -> [Record; 2] {
        [("tx", &self.request), ("rx", &self.response)].map(|(dir, took)| {
            let mut r = Record::new("latency", &self.path.to_string(), dir, 64);
            r.count(self.frames, self.seconds);
            r.mode = self.mode.name().into();
            r.lost = self.lost;
            r.account(&self.ends[0], &self.ends[1]);
            // The operations of the whole round trip stand in both directions' lines.
            r.set_ops(self.ops);
            [r.frontend_cpu_ns, r.backend_cpu_ns] = self.cpu_ns;
            r.data_len = (self.path == PathName::Staging).then_some(DATA_LEN.into());
            r.depth = Some(1);
            r.latency_p50_ns = Some(took.p50_ns);
            r.latency_p99_ns = Some(took.p99_ns);
            r.latency_histogram = Some(took.histogram.clone());
            r
        })
    }
}

/// Rows as a table.
pub fn table(rows: &[Latency]) -> Table {
    let mut t = Table::new(&[
        ("path", Align::Left),
        ("mode", Align::Left),
        ("request us, median", Align::Right),
        ("99 %", Align::Right),
        ("response us, median", Align::Right),
        ("99 %", Align::Right),
        ("events/round trip", Align::Right),
    ]);
    for r in rows {
        let us = |ns: u64| figure(ns as f64 / 1000.0);
        t.row([
            r.path.to_string(),
            r.mode.name().into(),
            us(r.request.p50_ns),
            us(r.request.p99_ns),
            us(r.response.p50_ns),
            us(r.response.p99_ns),
            figure(r.ops.notifications as f64 / r.frames.max(1) as f64),
        ]);
    }
    t
}

/// Runs the benchmark.
pub fn run(args: LatencyArgs) -> Result<()> {
    super::reported(args.json.as_deref(), args.report.as_deref(), |json, _| measure_all(&args, json))
}

fn measure_all(args: &LatencyArgs, json: &mut RecordWriter) -> Result<()> {
    let mut stand = Stand::start()?;
    let mut rows = Vec::new();
    for &mode in &args.mode {
        for &path in &args.path {
            let row = measure(&mut stand, path, mode, args.seconds)?;
            for record in row.records() {
                json.write(&record)?;
            }
            rows.push(row);
        }
    }
    if !json.is_stdout() {
        print(table(&rows))?;
    }
    // Both directions' records tell the same of it.
    super::none_went_wrong(rows.iter().map(|row| row.records()).map(|[tx, _]| tx).collect::<Vec<_>>().iter())
}
