//! A guest's part in a TCP transfer: smoltcp over the vif.

use super::guest::{connect, wishes};
use super::order::{Arrival, Report, Transfer, Transferred};
use super::{ActorArgs, Result, tell};
use crate::guest_stack::{GuestStack, StackConfig};
use crate::transfer::{Progress, TransferClient, TransferServer};
use pregrant::net::headers::MacAddr;
use pregrant::platform::{Clock, Events, Platform, ReadySet};
use pregrant::port::Arena;
use pregrant_host::drivers::{Mode, Next, Pace};
use pregrant_host::loopback::MonotonicClock;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// The port of the server.
const PORT: u16 = 5001;
/// What the bytes are made from.
const SEED: u64 = 0x5eed;
/// Longest transfer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long an end stays after its connection is over.
const LINGER: Duration = Duration::from_millis(50);

/// Either end.
enum End {
    Client(TransferClient),
    Server(TransferServer),
}

/// Connects vif 0, transfers, closes.
pub fn play(args: &ActorArgs, order: &Transfer) -> Result<Report> {
    let mut guest = connect(args, 0, wishes(order.data_len, 1))?;
    let (own, back) = guest.states()?;
    let staged = guest.vif().staging_accepted(0);
    tell(&Report::Note(format!(
        "domain {}: connected (front {own:?}, back {back:?}), {}",
        args.domid,
        if staged { "staging lists accepted" } else { "ordinary grants" }
    )))?;
    let address = |last| Ipv4Addr::new(10, 0, 0, last);
    let mac = MacAddr([0x00, 0x16, 0x3e, 0, args.domid as u8, 0]);
    let mut config = StackConfig::new(mac, address(order.own));
    config.mtu = order.mtu;
    let clock = MonotonicClock;
    let mut stack = GuestStack::new(&config, clock.now_ns());
    let mut end = match order.to {
        Some(to) => End::Client(TransferClient::new(
            &mut stack,
            (address(to), PORT),
            order.bytes,
            SEED,
            clock.now_ns(),
        )?),
        None => End::Server(TransferServer::new(&mut stack, PORT)?),
    };
    let mut arena = Arena::new();
    let mut pace = Pace::new(Mode::Adaptive);
    let mut ready = ReadySet::default();
    let mut report = None;
    let mut tell_at = order.tell_at;
    let mut arrivals = Vec::new();
    let mut over: Option<Instant> = None;
    let until = Instant::now() + PATIENCE;
    loop {
        let now = clock.now_ns();
        arena.clear();
        let frames = guest.recv(0, &mut arena, 1)?;
        let mut moved = frames > 0;
        stack.receive(&arena.burst());
        stack.poll(now);
        let progress = match &mut end {
            End::Client(client) => client.pump(&mut stack, now)?,
            End::Server(server) => server.pump(&mut stack, now)?,
        };
        let bytes = match progress {
            Progress::Moving(bytes) if order.to.is_none() => bytes,
            _ => 0,
        };
        if order.arrivals && frames > 0 {
            arrivals.push(Arrival { at_ns: now, frames: frames as u32, bytes });
        }
        if tell_at.take_if(|at| bytes >= *at).is_some() {
            tell(&Report::Reached(bytes))?;
        }
        stack.poll(now);
        if !stack.outgoing().frames.is_empty() {
            let sent = guest.send(0, &stack.outgoing())?;
            stack.sent(sent);
            moved |= sent > 0;
        }
        moved |= guest.reclaim(0, 1)? > 0;
        if let Progress::Done(done) = progress {
            report.get_or_insert(done);
            let closed = match &end {
                End::Client(client) => client.is_closed(&mut stack),
                End::Server(server) => server.is_closed(&mut stack),
            };
            let quiet =
                closed && !moved && stack.outgoing().frames.is_empty() && guest.vif().in_flight(0) == 0;
            // Delayed acknowledgements are still to go out when the connection is over on this side.
            let since = *over.get_or_insert_with(Instant::now);
            if !quiet {
                over = None;
            } else if since.elapsed() > LINGER {
                break;
            }
        }
        if Instant::now() > until {
            return Err(format!("the transfer was not over after {PATIENCE:?}: {progress:?}").into());
        }
        match pace.after(moved) {
            Next::Again => {}
            Next::Control => {
                guest.control(Duration::ZERO)?;
            }
            Next::Sleep => {
                let timer =
                    stack.idle_for_ns(clock.now_ns()).map_or(Duration::from_millis(20), Duration::from_nanos);
                if !timer.is_zero() && !guest.arm(!stack.outgoing().frames.is_empty() || over.is_some())? {
                    guest.platform().events().wait(&mut ready, Some(timer.min(Duration::from_millis(20))));
                }
                guest.control(Duration::ZERO)?;
            }
        }
    }
    let (tx, rx) = guest.vif().stats(0);
    let done = report.ok_or("a transfer without an end")?;
    let transferred = Transferred {
        bytes: done.bytes,
        sum: done.sum,
        seconds: done.elapsed_ns as f64 / 1e9,
        frames: [tx.frames, rx.frames],
        staged: [tx.staged, rx.staged],
        notifications: guest.platform().counters().notifications,
        overflow: stack.overflow(),
        arrivals,
    };
    if !guest.close(Duration::from_secs(5))? {
        return Err("the back did not let go of our memory in 5 s".into());
    }
    Ok(Report::Transfer(Box::new(transferred)))
}
