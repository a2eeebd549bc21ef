//! Receives, counts and acknowledges datagrams.

use super::Result;
use super::datagram::{ACKS_MOST, Counters, Data, MOST, write_acks};
use pregrant_cli::screen;
use pregrant_cli::stop::Stop;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::AsFd;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

/// Largest number of senders at the same time. A new sender replaces the one that was silent for
/// longest.
pub(super) const RUNS_MAX: usize = 16;
/// Size of the receive buffer that is asked for.
pub(super) const SOCKET_BYTES: usize = 4 << 20;

pub(super) fn serve(port: u16) -> Result<()> {
    let stop = Stop::on_signals()?;
    // IPv6's takes IPv4 too, where there is IPv6.
    let any = |ip: IpAddr| UdpSocket::bind((ip, port));
    let socket = any(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| any(IpAddr::from([0, 0, 0, 0])));
    let socket = socket.map_err(|e| format!("UDP port {port}: {e}; choose another with --port"))?;
    socket.set_nonblocking(true)?;
    // the kernel's limit may be less
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES);
    let port = socket.local_addr()?.port();
    screen::print(format_args!("frames: receiving on UDP port {port}"))?;
    let mut receiver = Receiver::default();
    let mut bytes = vec![0; MOST + 1];
    let mut answer = Vec::new();
    while !stop.asked() {
        match socket.recv_from(&mut bytes) {
            Ok((n, from)) => {
                if receiver.came(&bytes[..n], from) {
                    receiver.answer(from, &mut answer, &socket);
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                receiver.answer_all(&mut answer, &socket);
                let mut fds = [
                    PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
                ];
                let _ = rustix::event::poll(&mut fds, None); // a signal: the loop checks it
            }
            // The answer to a datagram of ours: its sender has gone.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
            Err(e) => return Err(format!("UDP port {port}: {e}").into()),
        }
    }
    receiver.print_summary()
}

#[derive(Default)]
struct Receiver {
    runs: BTreeMap<SocketAddr, Run>,
    turn: u64,
}

#[derive(Default)]
struct Run {
    /// Number of the sender's run. None: no intact datagram has arrived yet.
    run: Option<u64>,
    seen: Seen,
    counters: Counters,
    highest: Option<u64>,
    fresh: Vec<u64>,
    /// The number of the receiver's turn in which the last datagram of this sender arrived.
    turn: u64,
}

/// Numbers that have arrived: all below `all`, and some above.
#[derive(Default)]
struct Seen {
    all: u64,
    above: std::collections::BTreeSet<u64>,
}

impl Seen {
    fn insert(&mut self, number: u64) -> bool {
        if number < self.all || !self.above.insert(number) {
            return false;
        }
        while self.above.remove(&self.all) {
            self.all += 1;
        }
        true
    }
}

/// The largest distance of a number from the first missing one. It is more than any window.
const AHEAD_MAX: u64 = 1 << 16;

impl Receiver {
    /// Processes a received datagram. Returns true if its sender waits for an answer.
    fn came(&mut self, bytes: &[u8], from: SocketAddr) -> bool {
        self.turn += 1;
        if !self.runs.contains_key(&from) && self.runs.len() == RUNS_MAX {
            let oldest = self.runs.iter().min_by_key(|(_, run)| run.turn).map(|(from, _)| *from);
            oldest.map(|from| self.runs.remove(&from));
        }
        let run = self.runs.entry(from).or_default();
        run.turn = self.turn;
        let Some(data) = Data::read(bytes) else {
            run.counters.damaged += 1;
            return false;
        };
        if run.run != Some(data.run) {
            // Datagrams that were damaged before any was whole are the first run's.
            let damaged = if run.run.is_none() { run.counters.damaged } else { 0 };
            let counters = Counters { damaged, ..Counters::default() };
            *run = Run { run: Some(data.run), counters, turn: self.turn, ..Run::default() };
        }
        if data.number >= run.seen.all + AHEAD_MAX {
            return false;
        }
        if run.seen.insert(data.number) {
            run.counters.received += 1;
            let late = run.highest.is_some_and(|highest| data.number < highest);
            run.counters.out_of_order += u64::from(late && !data.repeat);
            run.highest = run.highest.max(Some(data.number));
        } else {
            run.counters.again += 1;
        }
        // Again, too: the answer may have been lost.
        run.fresh.push(data.number);
        run.fresh.len() >= ACKS_MOST / 2
    }

    fn answer(&mut self, to: SocketAddr, bytes: &mut Vec<u8>, socket: &UdpSocket) {
        let Some(run) = self.runs.get_mut(&to).filter(|run| !run.fresh.is_empty()) else { return };
        write_acks(run.run.unwrap_or_default(), &run.counters, &run.fresh, bytes);
        run.fresh.clear();
        let _ = socket.send_to(bytes, to); // lost or refused: the sender asks again
    }

    fn answer_all(&mut self, bytes: &mut Vec<u8>, socket: &UdpSocket) {
        let waiting = self.runs.iter().filter(|(_, run)| !run.fresh.is_empty());
        let waiting: Vec<SocketAddr> = waiting.map(|(from, _)| *from).collect();
        waiting.into_iter().for_each(|from| self.answer(from, bytes, socket));
    }

    /// Prints at the end which datagrams arrived from which sender.
    fn print_summary(&self) -> Result<()> {
        for (from, Run { counters: c, .. }) in &self.runs {
            screen::print(format_args!(
                "{from}: received {}, damaged {}, out of order {}, came again {}",
                c.received, c.damaged, c.out_of_order, c.again
            ))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_counted_once_and_disorder_is_seen() {
        let mut receiver = Receiver::default();
        let from: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let mut bytes = Vec::new();
        for (number, repeat) in [(0, false), (2, false), (1, false), (4, false), (3, true), (3, true)] {
            Data { run: 1, number, repeat }.write(64, &mut bytes);
            receiver.came(&bytes, from);
        }
        bytes[40] ^= 1;
        receiver.came(&bytes, from);
        let run = &receiver.runs[&from];
        assert_eq!(run.counters, Counters { received: 5, damaged: 1, out_of_order: 1, again: 1 });
        assert_eq!((run.seen.all, run.seen.above.len()), (5, 0));
        // A new run of the same sender starts at 0.
        Data { run: 2, number: 0, repeat: false }.write(64, &mut bytes);
        receiver.came(&bytes, from);
        assert_eq!(receiver.runs[&from].counters, Counters { received: 1, ..Counters::default() });
    }

    #[test]
    fn what_senders_can_make_it_keep_is_bounded() {
        let mut receiver = Receiver::default();
        let mut bytes = Vec::new();
        for port in 1..100 {
            Data { run: 1, number: u64::from(port) * AHEAD_MAX, repeat: false }.write(64, &mut bytes);
            receiver.came(&bytes, ([127, 0, 0, 1], port).into());
        }
        assert_eq!(receiver.runs.len(), RUNS_MAX);
        assert!(receiver.runs.values().all(|run| run.seen.above.is_empty() && run.fresh.is_empty()));
    }
}
