//! `pregrant-lab bench latency` measures how long a request and a response take, with one frame at
//! a time that is sent back.

use super::Result;
use super::net::{MODES, PATHS};
use super::output::{Output, Run};
use super::stand::Stand;
use super::timing::seconds;
use crate::columns::Columns;
use crate::record::Record;
use pregrant::net::path::PathName;
use pregrant_cli::choice::choice;
use pregrant_cli::table::{Table, figure};
use pregrant_host::drivers::{Mode, RxCoalescing};
use pregrant_testbed::process::process_command::{Case, Dir};

const DATA_LEN: u32 = 256;

/// Arguments of `bench latency`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("json", |a| a.help("Write a JSON object per row and direction to this file (\"-\": standard output, without the table)")))]
#[command(after_help = "Examples:
  pregrant-lab bench latency
  pregrant-lab bench latency --path staging --mode event --seconds 2
  pregrant-lab bench latency --mode event --rx-coalesce off,32,load

Request: from the guest's stamp before it sends to the stamp at the backend's port. Response: from there to the
guest's stamp after it received. One frame of 64 B in flight.")]
pub struct LatencyArgs {
    /// Paths, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = [PathName::Copy, PathName::Staging], value_parser = choice(PATHS, PathName::name))]
    pub path: Vec<PathName>,
    /// How both ends wait, with commas between the modes
    #[arg(long, value_delimiter = ',', default_values = ["poll", "event"], value_parser = choice(MODES, Mode::name))]
    pub mode: Vec<Mode>,
    /// With event: how many frames a guest that sleeps waits for, 100 us at most: off, a number, or
    /// load, with commas between them
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [RxCoalescing::Off])]
    pub rx_coalesce: Vec<RxCoalescing>,
    /// Seconds of each row
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    pub seconds: f64,
    #[command(flatten)]
    pub output: Output,
}

/// Measures one row. Returns one record for each direction; its `frames_per_s` is the rate of round
/// trips.
pub fn measure(stand: &mut Stand, path: PathName, mode: Mode, seconds: f64) -> Result<[Record; 2]> {
    measure_coalesced(stand, path, mode, RxCoalescing::Off, seconds)
}

fn measure_coalesced(
    stand: &mut Stand,
    path: PathName,
    mode: Mode,
    rx_coalescing: RxCoalescing,
    seconds: f64,
) -> Result<[Record; 2]> {
    let data_len = (path == PathName::Staging).then_some(DATA_LEN);
    let (guest, back) =
        stand.play(Case { burst: 1, seconds, mode, data_len, rx_coalescing, ..Case::of(Dir::Echo, path) })?;
    let [request, response] = guest.latency.as_ref().ok_or("the guest did not measure a latency")?;
    Ok([("tx", request), ("rx", response)].map(|(dir, took)| {
        let mut r = Record::new("latency", path.name(), dir, 64);
        // The operations of the whole round trip are in the lines of both directions.
        r.set_ends(&guest, &back, 0);
        r.lost = guest.came.missing;
        r.mode = mode.name().into();
        r.data_len = data_len.map(u64::from);
        r.depth = Some(1);
        r.rx_coalesce = (rx_coalescing != RxCoalescing::Off).then(|| rx_coalescing.to_string());
        r.set_latencies(took);
        r
    }))
}

pub fn table(rows: &[[Record; 2]]) -> Table {
    let us = |ns: Option<u64>| figure(ns.unwrap_or(0) as f64 / 1000.0);
    Columns::of(rows)
        .left("path", |[tx, _]| &tx.path)
        .left("mode", |[tx, _]| &tx.mode)
        .right("coalesced", |[tx, _]| tx.rx_coalesce.as_deref().unwrap_or("off"))
        .right("request us, median", |[tx, _]| us(tx.p50()))
        .right("99 %", |[tx, _]| us(tx.p99()))
        .right("response us, median", |[_, rx]| us(rx.p50()))
        .right("99 %", |[_, rx]| us(rx.p99()))
        .right("events/round trip", |[tx, _]| figure(tx.notifications as f64 / tx.frames.max(1) as f64))
        .all()
}

pub fn measure_all(args: &LatencyArgs, run: &mut Run) -> Result<()> {
    let mut stand = Stand::start()?;
    let mut rows = Vec::new();
    for &mode in &args.mode {
        for &path in &args.path {
            let coalescings = if mode == Mode::Poll { &[RxCoalescing::Off] } else { &args.rx_coalesce[..] };
            for &coalescing in coalescings {
                let row = measure_coalesced(&mut stand, path, mode, coalescing, args.seconds)?;
                row.iter().try_for_each(|record| run.write(record))?;
                rows.push(row);
            }
        }
    }
    run.print(table(&rows))
}
