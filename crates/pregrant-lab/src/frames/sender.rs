//! Sends datagrams, and reports at the end how many arrived and how fast.

use super::Result;
use super::datagram::{Counters, Data, MOST, mix, read_acks};
use super::receiver::SOCKET_BYTES;
use pregrant_cli::screen;
use pregrant_cli::stop::Stop;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant, SystemTime};

/// The time after which a datagram is sent again while no round trip was measured.
const PATIENCE: Duration = Duration::from_secs(1);
/// The shortest wait for an acknowledgement, even if the round trip is shorter.
const PATIENCE_LEAST: Duration = Duration::from_millis(200);
/// Interval of checks for late datagrams. One timeout serves all, since setting one and reading the
/// clock may each be a system call.
const CHECK: Duration = Duration::from_millis(20);
/// Longest wait for an acknowledgement, however often none came.
const PATIENCE_MOST: Duration = Duration::from_secs(4);

/// Estimates the round-trip time like RFC 6298, so that a slow link, or one with queues, does not
/// count as lossy.
#[derive(Default)]
struct RoundTrip {
    /// The mean of the round trip times, and their mean deviation from it.
    seen: Option<(Duration, Duration)>,
}

impl RoundTrip {
    /// Notes that a datagram that was sent once was acknowledged after `took`. (If it was sent
    /// twice, it is unknown which one was acknowledged.)
    fn took(&mut self, took: Duration) {
        self.seen = Some(match self.seen {
            None => (took, took / 2),
            Some((mean, deviation)) => ((mean * 7 + took) / 8, (deviation * 3 + mean.abs_diff(took)) / 4),
        });
    }

    /// Returns how long to wait for an acknowledgement.
    fn patience(&self) -> Duration {
        let patience = self.seen.map_or(PATIENCE, |(mean, deviation)| mean + 4 * deviation);
        patience.clamp(PATIENCE_LEAST, PATIENCE_MOST)
    }
}

/// True if the error means that the other end, its machine or the link is unavailable for a while.
/// The user decides how long to wait.
fn is_away(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
    )
}

pub(super) struct Plan {
    pub(super) to: SocketAddr,
    pub(super) count: u64,
    pub(super) size: RangeInclusive<u16>,
    pub(super) window: usize,
    pub(super) patience: Duration,
}

/// A datagram that was sent; `acked` is true once it was acknowledged, until it is forgotten.
struct Open {
    number: u64,
    sent: Instant,
    repeat: bool,
    acked: bool,
}

/// Sends all datagrams. Returns an error if any were lost or damaged.
pub(super) fn send(plan: &Plan) -> Result<()> {
    let stop = Stop::on_signals()?;
    let own: IpAddr =
        if plan.to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((own, 0))?;
    socket.connect(plan.to).map_err(|e| format!("{}: {e}; is there a route to it?", plan.to))?;
    // the kernel's limit may be less
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES);
    socket.set_read_timeout(Some(CHECK))?;
    let mut flight = Flight::new(plan, socket);
    let done = flight.run(&stop);
    flight.progress.clear();
    done?;
    flight.print_summary()
}

struct Flight<'a> {
    plan: &'a Plan,
    socket: UdpSocket,
    run: u64,
    next: u64,
    /// Datagrams in flight, oldest sending first; some in between may be acknowledged already.
    open: VecDeque<Open>,
    acked: u64,
    retransmitted: u64,
    damaged_answers: u64,
    last_counters: Counters,
    last_reply: Instant,
    checked: Instant,
    round_trip: RoundTrip,
    /// Timeout. It is doubled whenever a datagram was late, until one arrives at its first sending.
    patience: Duration,
    bytes: Vec<u8>,
    began: Instant,
    sent_bytes: u64,
    progress: screen::Progress,
}

impl<'a> Flight<'a> {
    fn new(plan: &'a Plan, socket: UdpSocket) -> Self {
        let now = Instant::now();
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64;
        Self {
            plan,
            socket,
            run: mix(since ^ u64::from(std::process::id()).rotate_left(32)),
            next: 0,
            open: VecDeque::new(),
            acked: 0,
            retransmitted: 0,
            damaged_answers: 0,
            last_counters: Counters::default(),
            last_reply: now,
            checked: now,
            round_trip: RoundTrip::default(),
            patience: PATIENCE,
            bytes: Vec::new(),
            began: now,
            sent_bytes: 0,
            progress: screen::Progress::new(),
        }
    }

    /// Returns the length of the datagram with this number, which is the same each time it is sent.
    fn size(&self, number: u64) -> usize {
        let (from, to) = (u64::from(*self.plan.size.start()), u64::from(*self.plan.size.end()));
        (from + mix(self.run ^ number) % (to - from + 1)) as usize
    }

    fn run(&mut self, stop: &Stop) -> Result<()> {
        let mut came = vec![0; MOST];
        while self.acked < self.plan.count {
            if stop.asked() {
                let (acked, count) = (self.acked, self.plan.count);
                return Err(format!(
                    "interrupted by a signal after {acked} of {count} datagram(s); start it again"
                )
                .into());
            }
            let now = Instant::now();
            if now.duration_since(self.last_reply) > self.plan.patience {
                if self.acked == 0 {
                    let Plan { to, patience, .. } = self.plan;
                    return Err(format!(
                        "{to} does not answer within {} s: is `pregrant-lab frames --serve` running there?",
                        patience.as_secs()
                    )
                    .into());
                }
                return Ok(()); // the end of the count says so
            }
            while self.open.len() < self.plan.window && self.next < self.plan.count {
                self.transmit(self.next, false, now)?;
                self.next += 1;
            }
            self.receive(&mut came)?;
            if now.duration_since(self.checked) >= CHECK {
                self.checked = now;
                self.send_again(now)?;
            }
        }
        Ok(())
    }

    fn transmit(&mut self, number: u64, repeat: bool, now: Instant) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.bytes);
        Data { run: self.run, number, repeat }.write(self.size(number), &mut bytes);
        self.sent_bytes += bytes.len() as u64;
        let sent = self.socket.send(&bytes);
        self.bytes = bytes;
        self.open.push_back(Open { number, sent: now, repeat, acked: false });
        match sent {
            Ok(_) => Ok(()),
            // No one there, or no room in a queue on the way: it is sent again.
            Err(e) if is_away(&e) || e.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => Ok(()),
            Err(e) => {
                Err(format!("{}: {e}, for datagrams of {} bytes", self.plan.to, self.bytes.len()).into())
            }
        }
    }

    /// Waits for acknowledgements, for a short time.
    fn receive(&mut self, came: &mut [u8]) -> Result<()> {
        let n = match self.socket.recv(came) {
            Ok(n) => n,
            Err(e) if is_away(&e) => {
                // Not there: no hurry.
                std::thread::sleep(Duration::from_millis(10));
                return Ok(());
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                return Ok(());
            }
            Err(e) => return Err(format!("{}: {e}", self.plan.to).into()),
        };
        let Some((counters, numbers)) = read_acks(&came[..n], self.run) else {
            self.damaged_answers += 1;
            return Ok(());
        };
        // Answers may overtake each other.
        if counters.received >= self.last_counters.received {
            self.last_counters = counters;
        }
        let now = Instant::now();
        for number in numbers {
            let found = self.open.iter_mut().find(|o| o.number == number && !o.acked);
            if let Some(open) = found {
                open.acked = true;
                self.acked += 1;
                self.last_reply = now;
                if !open.repeat {
                    self.round_trip.took(now.duration_since(open.sent));
                    self.patience = self.round_trip.patience();
                }
            }
        }
        while self.open.front().is_some_and(|o| o.acked) {
            self.open.pop_front();
        }
        if self.acked.is_multiple_of(1024) {
            self.progress.show_long(format_args!("{} of {} frames", self.acked, self.plan.count));
        }
        Ok(())
    }

    /// Sends datagrams again that were not acknowledged in time.
    fn send_again(&mut self, now: Instant) -> Result<()> {
        let late = |o: &&Open| !o.acked && now.duration_since(o.sent) >= self.patience;
        let due = self.open.iter().filter(late).count();
        if due == 0 {
            return Ok(());
        }
        self.patience = (self.patience * 2).min(PATIENCE_MOST);
        // A few: what fills a queue does not get through by being sent more.
        let late: Vec<u64> =
            self.open.iter().filter(|o| !o.acked).map(|o| o.number).take(due.min(16)).collect();
        self.open.retain(|o| !o.acked && !late.contains(&o.number));
        for number in late {
            self.retransmitted += 1;
            self.transmit(number, true, now)?;
        }
        Ok(())
    }

    fn print_summary(&self) -> Result<()> {
        let Counters { received, damaged, out_of_order, again } = self.last_counters;
        let damaged = damaged + self.damaged_answers;
        let lost = self.next - self.acked;
        let seconds = self.began.elapsed().as_secs_f64();
        screen::print(format_args!(
            "sent {}, received {received}, damaged {damaged}, lost {lost}, out of order {out_of_order}, \
             retransmitted {}, came again {again}; {seconds:.1} s, {:.0} frames/s, {:.1} Mbit/s",
            self.next,
            self.retransmitted,
            self.acked as f64 / seconds,
            self.sent_bytes as f64 * 8.0 / seconds / 1e6
        ))?;
        if damaged > 0 || lost > 0 || self.acked < self.plan.count {
            return Err(format!(
                "{lost} datagram(s) were lost, {damaged} were damaged on the way to or from {}",
                self.plan.to
            )
            .into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn a_link_that_is_away_is_no_end() {
        let error = |errno: Errno| Error::from_raw_os_error(errno.raw_os_error());
        for away in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::NETUNREACH, Errno::NETDOWN] {
            assert!(is_away(&error(away)), "{away}");
        }
        assert!(!is_away(&error(Errno::MSGSIZE)), "never gets better");
    }

    #[test]
    fn patience_follows_the_round_trip() {
        let ms = Duration::from_millis;
        let mut trip = RoundTrip::default();
        assert_eq!(trip.patience(), PATIENCE);
        trip.took(ms(400));
        assert_eq!(trip.patience(), ms(400 + 4 * 200));
        // A steady link: hardly longer than the trip itself, and never shorter.
        (0..100).for_each(|_| trip.took(ms(400)));
        assert!((ms(400)..ms(410)).contains(&trip.patience()), "{:?}", trip.patience());
        // It gets slower: no storm.
        trip.took(ms(800));
        assert!(trip.patience() > ms(800), "{:?}", trip.patience());
        (0..100).for_each(|_| trip.took(ms(1)));
        assert_eq!(trip.patience(), PATIENCE_LEAST);
        trip.took(Duration::from_secs(60));
        assert_eq!(trip.patience(), PATIENCE_MOST);
    }
}
