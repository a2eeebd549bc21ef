//! Runs a guest's part in a TCP transfer, by smoltcp over the vif.

use super::guest::{attach, config, connect};
use super::process_command::Transfer;
use super::report::{Arrival, Numbered, Report, Transferred};
use super::{ProcessArgs, Result, send_report};
use crate::station::Station;
use crate::station::guest_stack::{GuestStack, StackConfig};
use crate::station::transfer::{Progress, TransferClient, TransferServer};
use pregrant::net::front::FrontQueue;
use pregrant::net::headers::MacAddr;
use pregrant::net::path::PathName;
use pregrant::platform::{Clock, Platform};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// The port of the server.
const PORT: u16 = 5001;
/// The seed of the bytes.
const SEED: u64 = 0x5eed;
/// Longest duration of a transfer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The interval at which the server reports its progress.
const REPORT_EVERY: Duration = Duration::from_millis(200);

/// The time that an end stays after its connection has closed.
const LINGER: Duration = Duration::from_millis(50);

enum End {
    Client(TransferClient),
    Server(TransferServer),
}

/// Connects vif 0, transfers the bytes, and closes the vif.
pub fn play(args: &ProcessArgs, command: &Transfer) -> Result<Report> {
    let mut guest = attach(&args.broker, args.domid, 0, config(PathName::Staging, command.data_len, 1))?;
    connect(&mut guest)?;
    let (own, back) = guest.states()?;
    let staged = guest.vif().staging_accepted(0);
    send_report(&Report::Note(format!(
        "domain {}: connected (front {own:?}, back {back:?}), {}",
        args.domid,
        if staged { "staging lists accepted" } else { "ordinary grants" }
    )))?;
    let address = |last| Ipv4Addr::new(10, 0, 0, last);
    let mac = MacAddr([0x00, 0x16, 0x3e, 0, args.domid as u8, 0]);
    let mut config = StackConfig::new(mac, address(command.own));
    (config.mtu, config.numbered) = (command.mtu, true);
    let began = guest.platform().clock().now_ns();
    let mut stack = GuestStack::new(&config, began);
    let mut end = match command.to {
        Some(to) => {
            let to = (address(to), PORT);
            End::Client(TransferClient::new(&mut stack, to, command.bytes, SEED, began)?)
        }
        None => End::Server(TransferServer::new(&mut stack, PORT)?),
    };
    let mut station = Station::new(guest, stack);
    let mut report = None;
    let mut report_at = command.report_at;
    let mut arrivals = Vec::new();
    let mut over: Option<Instant> = None;
    let until = Instant::now() + PATIENCE;
    let mut reported = Instant::now();
    loop {
        let mut moment = None;
        // Once it is done, no one may come any more: whether all is quiet is checked without
        // being woken.
        let due = if report.is_some() { LINGER } else { PATIENCE };
        let came = station.turn(due, |stack, now| -> Result<()> {
            let progress = match &mut end {
                End::Client(client) => client.pump(stack, now)?,
                End::Server(server) => server.pump(stack, now)?,
            };
            moment = Some((now, progress));
            Ok(())
        })?;
        let Some((now, progress)) = moment else { continue };
        let bytes = match progress {
            Progress::Moving(bytes) if command.to.is_none() => bytes,
            _ => 0,
        };
        if command.arrivals && came > 0 {
            arrivals.push(Arrival { at_ns: now, frames: came as u32, bytes });
        }
        if report_at.take_if(|at| bytes >= *at).is_some() {
            send_report(&Report::Reached(bytes))?;
        }
        if bytes > 0 && reported.elapsed() > REPORT_EVERY {
            reported = Instant::now();
            send_report(&Report::Moved(bytes))?;
        }
        if let Progress::Done(done) = progress {
            report.get_or_insert(done);
            let closed = match &end {
                End::Client(client) => client.is_closed(station.stack()),
                End::Server(server) => server.is_closed(station.stack()),
            };
            // Delayed acknowledgements are still to go out when the connection is over on this
            // side.
            let since = *over.get_or_insert_with(Instant::now);
            if !closed || came > 0 || !station.is_quiet() {
                over = None;
            } else if since.elapsed() > LINGER {
                break;
            }
        }
        if Instant::now() > until {
            return Err(format!("the transfer was not over after {PATIENCE:?}: {progress:?}").into());
        }
    }
    let overflow = station.stack().overflow();
    let numbers = station.stack().numbers().cloned().unwrap_or_default();
    let came = numbers.came();
    let numbers = Numbered {
        sent: numbers.sent(),
        next: came.next(),
        missing: came.lost(),
        again: came.duplicated() + came.reordered(),
    };
    let guest = station.guest();
    let (tx, rx) = guest.vif().queue(0).map(FrontQueue::stats).unwrap_or_default();
    let done = report.ok_or("a transfer without an end")?;
    let transferred = Transferred {
        bytes: done.bytes,
        sum: done.sum,
        seconds: done.elapsed_ns as f64 / 1e9,
        frames: [tx.frames, rx.frames],
        staged: [tx.staging, rx.staging],
        notifications: guest.platform().counters().notifications,
        overflow,
        numbers,
        missed_wakeups: guest.missed_wakeups(),
        arrivals,
    };
    if !guest.close(Duration::from_secs(5))? {
        return Err("the back did not let go of our memory in 5 s".into());
    }
    Ok(Report::Transfer(Box::new(transferred)))
}
