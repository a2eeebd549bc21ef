//! A TCP transfer from one guest to another whose bytes are summed at both ends.
//!
//! The client sends a seeded pattern, then half-closes; the server sums what comes until that,
//! answers with a receipt (count and sum, 16 bytes, little-endian), and closes. So the client knows
//! whether what it sent is what arrived, and a third party can compare the two reports. Both are
//! state machines that are pumped after each poll of the stack and never block.

use std::net::Ipv4Addr;
use std::time::Duration;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;

use super::guest_stack::GuestStack;

/// Length of a receipt in bytes.
const RECEIPT_LEN: usize = 16;
/// Bytes that are made or summed at a time.
const CHUNK: usize = 16 * 1024;

/// A sum over a stream of bytes, eight at a time, that depends on their order. Not against malice:
/// against bugs.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamSum {
    state: u64,
    partial: [u8; 8],
    count: u64,
}

impl StreamSum {
    /// Adds the next bytes of the stream. The sum does not depend on how the stream is divided into
    /// calls.
    pub fn add(&mut self, mut bytes: &[u8]) {
        let held = (self.count % 8) as usize;
        self.count += bytes.len() as u64;
        if held != 0 {
            let n = bytes.len().min(8 - held);
            self.partial[held..held + n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if held + n < 8 {
                return;
            }
            self.state = mix(self.state, u64::from_le_bytes(self.partial));
        }
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.state = mix(self.state, u64::from_le_bytes(*word));
        }
        self.partial[..rest.len()].copy_from_slice(rest);
    }

    /// Returns the number of bytes so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of the bytes so far.
    pub fn value(&self) -> u64 {
        let mut last = [0; 8];
        let held = (self.count % 8) as usize;
        last[..held].copy_from_slice(&self.partial[..held]);
        mix(mix(self.state, u64::from_le_bytes(last)), self.count)
    }
}

fn mix(state: u64, word: u64) -> u64 {
    (state ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

/// Writes the pattern of `seed` from byte `at` on.
pub fn pattern(seed: u64, mut at: u64, mut out: &mut [u8]) {
    let word = |i: u64| {
        // splitmix64: any word of the stream without those before it.
        let mut z = seed.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)).to_le_bytes()
    };
    while !out.is_empty() {
        let skip = (at % 8) as usize;
        let n = out.len().min(8 - skip);
        out[..n].copy_from_slice(&word(at / 8)[skip..skip + n]);
        out = &mut out[n..];
        at += n as u64;
    }
}

/// The results of a transfer at one of its ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransferReport {
    /// Number of payload bytes.
    pub bytes: u64,
    pub sum: u64,
    /// Time from the first byte (at the server) or from the start (at the client) to the end.
    pub elapsed_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferError {
    /// The socket could not be opened: the port is 0.
    BadPort(u16),
    /// The connection ended before the transfer was over, after this many bytes.
    Cut(u64),
    /// The server's receipt does not match the bytes that the client sent.
    Mismatch {
        /// The number and the sum of the bytes that were sent.
        sent: (u64, u64),
        /// The number and the sum of the bytes that arrived.
        arrived: (u64, u64),
    },
}

impl std::fmt::Display for TransferError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BadPort(port) => write!(f, "cannot open TCP port {port}; use one from 1 to 65535"),
            Self::Cut(bytes) => {
                write!(f, "the TCP connection ended after {bytes} bytes, before the transfer was over")
            }
            Self::Mismatch { sent, arrived } => write!(
                f,
                "sent {} bytes with sum {:016x}, but {} bytes with sum {:016x} arrived",
                sent.0, sent.1, arrived.0, arrived.1
            ),
        }
    }
}

impl std::error::Error for TransferError {}

/// The state of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    Waiting,
    /// The number of bytes transferred so far.
    Moving(u64),
    Done(TransferReport),
}

pub struct TransferClient {
    socket: SocketHandle,
    seed: u64,
    bytes: u64,
    sum: StreamSum,
    receipt: Vec<u8>,
    half_closed: bool,
    started_ns: u64,
    done: Option<TransferReport>,
}

impl TransferClient {
    /// Starts to send `bytes` bytes of the pattern of `seed` to `to`.
    pub fn new(
        stack: &mut GuestStack,
        to: (Ipv4Addr, u16),
        bytes: u64,
        seed: u64,
        now_ns: u64,
    ) -> Result<Self, TransferError> {
        let socket = stack.add_socket();
        if stack.connect(socket, to).is_err() {
            stack.remove_socket(socket);
            return Err(TransferError::BadPort(to.1));
        }
        Ok(Self {
            socket,
            seed,
            bytes,
            sum: StreamSum::default(),
            receipt: Vec::with_capacity(RECEIPT_LEN),
            half_closed: false,
            started_ns: now_ns,
            done: None,
        })
    }

    /// Continues the transfer. It is called after each [`GuestStack::poll`].
    pub fn pump(&mut self, stack: &mut GuestStack, now_ns: u64) -> Result<Progress, TransferError> {
        if let Some(report) = self.done {
            return Ok(Progress::Done(report));
        }
        let (seed, bytes, sum) = (self.seed, self.bytes, &mut self.sum);
        let socket = stack.socket(self.socket);
        while socket.can_send() && sum.count() < bytes {
            let made = socket.send(|room| {
                let n = (room.len().min(CHUNK) as u64).min(bytes - sum.count()) as usize;
                pattern(seed, sum.count(), &mut room[..n]);
                sum.add(&room[..n]);
                (n, n)
            });
            if !matches!(made, Ok(1..)) {
                break;
            }
        }
        if sum.count() == bytes && !self.half_closed && socket.may_send() {
            socket.close();
            self.half_closed = true;
        }
        while socket.can_recv() && self.receipt.len() < RECEIPT_LEN {
            let wanted = RECEIPT_LEN - self.receipt.len();
            let receipt = &mut self.receipt;
            let got = socket.recv(|data| {
                let n = data.len().min(wanted);
                receipt.extend_from_slice(&data[..n]);
                (n, n)
            });
            if !matches!(got, Ok(1..)) {
                break;
            }
        }
        if let Some((count, value)) = self.receipt.first_chunk::<RECEIPT_LEN>().map(read_receipt) {
            let sent = (self.sum.count(), self.sum.value());
            if (count, value) != sent {
                return Err(TransferError::Mismatch { sent, arrived: (count, value) });
            }
            let report = TransferReport {
                bytes: sent.0,
                sum: sent.1,
                elapsed_ns: now_ns.saturating_sub(self.started_ns),
            };
            self.done = Some(report);
            return Ok(Progress::Done(report));
        }
        match socket.state() {
            tcp::State::SynSent | tcp::State::SynReceived => Ok(Progress::Waiting),
            // No receipt can come any more.
            tcp::State::Closed | tcp::State::TimeWait | tcp::State::Closing | tcp::State::LastAck => {
                Err(TransferError::Cut(self.sum.count()))
            }
            _ => Ok(Progress::Moving(self.sum.count())),
        }
    }
}

impl TransferClient {
    /// Returns the number of bytes that the server has acknowledged.
    pub fn acknowledged(&self, stack: &mut GuestStack) -> u64 {
        self.sum.count().saturating_sub(stack.socket(self.socket).send_queue() as u64)
    }

    /// True if the connection has ended on this side: the server has closed, too, and knows that we
    /// did.
    pub fn is_closed(&self, stack: &mut GuestStack) -> bool {
        self.done.is_some()
            && matches!(stack.socket(self.socket).state(), tcp::State::TimeWait | tcp::State::Closed)
    }
}

fn read_receipt(receipt: &[u8; RECEIPT_LEN]) -> (u64, u64) {
    let (words, _) = receipt.as_chunks::<8>();
    (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]))
}

/// Receives the bytes of one transfer.
pub struct TransferServer {
    socket: SocketHandle,
    sum: StreamSum,
    receipt: Option<usize>,
    first_ns: Option<u64>,
    done: Option<TransferReport>,
}

impl TransferServer {
    pub fn new(stack: &mut GuestStack, port: u16) -> Result<Self, TransferError> {
        let socket = stack.add_socket();
        if stack.socket(socket).listen(port).is_err() {
            stack.remove_socket(socket);
            return Err(TransferError::BadPort(port));
        }
        Ok(Self { socket, sum: StreamSum::default(), receipt: None, first_ns: None, done: None })
    }

    /// Probes a silent client several times within `most`; if `counts`, ends the connection of one
    /// that was silent for that long. There is no limit while no client has connected.
    pub fn limit_silence(&self, stack: &mut GuestStack, most: Duration, counts: bool) {
        let socket = stack.socket(self.socket);
        socket.set_timeout(counts.then_some(most.into()));
        socket.set_keep_alive(Some((most / 4).into()));
    }

    /// Continues the transfers: call it after each [`GuestStack::poll`]. After `Done`, poll the
    /// stack until [`TransferServer::is_closed`], so that the receipt reaches the client.
    pub fn pump(&mut self, stack: &mut GuestStack, now_ns: u64) -> Result<Progress, TransferError> {
        let sum = &mut self.sum;
        let socket = stack.socket(self.socket);
        while socket.can_recv() {
            self.first_ns.get_or_insert(now_ns);
            let got = socket.recv(|data| {
                sum.add(data);
                (data.len(), data.len())
            });
            if !matches!(got, Ok(1..)) {
                break;
            }
        }
        let state = socket.state();
        if let Some(report) = self.done {
            self.give_receipt(stack);
            return Ok(Progress::Done(report));
        }
        match state {
            tcp::State::Listen | tcp::State::SynReceived => Ok(Progress::Waiting),
            // The client half-closed, and everything before that was read above.
            tcp::State::CloseWait => {
                let elapsed_ns = now_ns.saturating_sub(self.first_ns.unwrap_or(now_ns));
                let report = TransferReport { bytes: self.sum.count(), sum: self.sum.value(), elapsed_ns };
                self.done = Some(report);
                self.receipt = Some(0);
                self.give_receipt(stack);
                Ok(Progress::Done(report))
            }
            tcp::State::Established => Ok(Progress::Moving(self.sum.count())),
            _ => Err(TransferError::Cut(self.sum.count())),
        }
    }

    fn give_receipt(&mut self, stack: &mut GuestStack) {
        let (Some(given), Some(report)) = (self.receipt, self.done) else { return };
        let mut receipt = [0; RECEIPT_LEN];
        receipt[..8].copy_from_slice(&report.bytes.to_le_bytes());
        receipt[8..].copy_from_slice(&report.sum.to_le_bytes());
        let socket = stack.socket(self.socket);
        let given = given + socket.send_slice(&receipt[given..]).unwrap_or(0);
        self.receipt = if given == RECEIPT_LEN {
            socket.close();
            None
        } else {
            Some(given)
        };
    }

    /// Removes the transfer's socket from `stack`, in any state of its connection.
    pub fn end(self, stack: &mut GuestStack) {
        stack.remove_socket(self.socket);
    }

    /// True if the connection has ended on this side: the client has acknowledged the receipt.
    pub fn is_closed(&self, stack: &mut GuestStack) -> bool {
        self.done.is_some()
            && self.receipt.is_none()
            && stack.socket(self.socket).state() == tcp::State::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::super::guest_stack::tests::{carry, pair};
    use super::*;

    const SERVER: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 0, 0, 2), 4000);

    /// Runs a transfer over a wire that treats each frame according to `wire`; returns both reports
    /// and the number of frames moved.
    fn run(
        mtu: usize,
        bytes: u64,
        mut wire: impl FnMut(&mut GuestStack, &mut GuestStack) -> usize,
    ) -> (TransferReport, TransferReport, usize) {
        let (mut a, mut b) = pair(mtu);
        let mut client = TransferClient::new(&mut a, SERVER, bytes, 42, 0).unwrap();
        let mut server = TransferServer::new(&mut b, SERVER.1).unwrap();
        let (mut now, mut frames) = (0, 0);
        // Steps of simulated time, enough of them for any retransmission.
        for _ in 0..10_000_000 {
            now += 100_000;
            a.poll(now);
            let c = client.pump(&mut a, now).unwrap();
            a.poll(now);
            frames += wire(&mut a, &mut b);
            b.poll(now);
            let s = server.pump(&mut b, now).unwrap();
            b.poll(now);
            frames += wire(&mut b, &mut a);
            if let (Progress::Done(c), Progress::Done(s)) = (c, s)
                && server.is_closed(&mut b)
            {
                return (c, s, frames);
            }
        }
        panic!("the transfer did not end");
    }

    fn expected(bytes: u64) -> u64 {
        let mut all = vec![0; bytes as usize];
        pattern(42, 0, &mut all);
        let mut sum = StreamSum::default();
        sum.add(&all);
        sum.value()
    }

    #[test]
    fn every_byte_arrives_at_any_mtu() {
        let mut frames_at = Vec::new();
        for mtu in [576, 1500, 9000, 65521] {
            let (client, server, frames) = run(mtu, 3_000_001, carry);
            assert_eq!((client.bytes, server.bytes), (3_000_001, 3_000_001));
            assert_eq!((client.sum, server.sum), (expected(3_000_001), expected(3_000_001)));
            frames_at.push(frames);
        }
        assert!(frames_at.is_sorted_by(|a, b| a > b), "larger MTU, fewer frames: {frames_at:?}");
    }

    #[test]
    fn an_empty_transfer_ends_too() {
        let (client, server, _) = run(1500, 0, carry);
        assert_eq!((client.bytes, server.bytes, client.sum), (0, 0, expected(0)));
    }

    #[test]
    fn frames_lost_on_the_wire_are_sent_again() {
        let mut n = 0;
        let mut dropped = 0;
        let (client, server, _) = run(1500, 500_000, |from, to| {
            let count = from.outgoing().frames.len();
            for _ in 0..count {
                n += 1;
                let all = from.outgoing();
                if n % 37 == 0 {
                    dropped += 1;
                } else {
                    to.receive(&pregrant::port::Burst::of(all.bytes, &all.frames[..1]));
                }
                from.sent(1);
            }
            count
        });
        assert!(dropped > 5);
        assert_eq!((client.sum, server.sum), (expected(500_000), expected(500_000)));
    }

    /// The server frees the slot of a client that is gone, and keeps that of one that is only
    /// silent.
    #[test]
    fn a_client_that_is_gone_is_given_up_and_a_silent_one_is_not() {
        let (mut a, mut b) = pair(1500);
        let mut server = TransferServer::new(&mut b, SERVER.1).unwrap();
        server.limit_silence(&mut b, Duration::from_secs(40), true);
        let step = 100_000_000; // of simulated time
        let mut now = 0;
        while now < 500_000_000_000 {
            now += step;
            assert_eq!(
                server.pump(&mut b, now),
                Ok(Progress::Waiting),
                "no one came, and that is no silence"
            );
            b.poll(now);
        }
        let socket = a.add_socket();
        a.connect(socket, SERVER).unwrap();
        let until = now + 500_000_000_000;
        while now < until {
            now += step;
            a.poll(now);
            carry(&mut a, &mut b);
            b.poll(now);
            assert!(server.pump(&mut b, now).is_ok(), "it answers what it is asked");
            carry(&mut b, &mut a);
        }
        assert_eq!(server.pump(&mut b, now), Ok(Progress::Moving(0)));
        let gone = now;
        while server.pump(&mut b, now).is_ok() {
            now += step;
            assert!(now < gone + 500_000_000_000, "it keeps its place for ever");
            b.poll(now);
            b.sent(b.outgoing().frames.len());
        }
        assert!(now - gone > 20_000_000_000, "it is asked more than once");
    }

    #[test]
    fn a_reset_is_an_error_and_not_a_wait_for_ever() {
        let (mut a, mut b) = pair(1500);
        let mut client = TransferClient::new(&mut a, SERVER, 1000, 1, 0).unwrap();
        let mut result = Ok(Progress::Waiting);
        for now in (0..100).map(|n| n * 1_000_000) {
            a.poll(now);
            carry(&mut a, &mut b);
            b.poll(now); // no one listens: reset
            carry(&mut b, &mut a);
            a.poll(now);
            result = client.pump(&mut a, now);
            if result.is_err() {
                break;
            }
        }
        assert_eq!(result, Err(TransferError::Cut(0)));
        assert_eq!(
            TransferServer::new(&mut b, 0).err(),
            Some(TransferError::BadPort(0)),
            "port 0 cannot be listened on"
        );
    }

    #[test]
    fn the_sum_depends_on_bytes_and_order_and_not_on_the_cut() {
        let mut data = vec![0; 10_000];
        pattern(7, 0, &mut data);
        let mut whole = StreamSum::default();
        whole.add(&data);
        for step in [1, 3, 7, 8, 13, 999] {
            let mut cut = StreamSum::default();
            data.chunks(step).for_each(|c| cut.add(c));
            assert_eq!((cut.value(), cut.count()), (whole.value(), 10_000));
        }
        let mut swapped = data.clone();
        swapped.swap(100, 5000);
        let mut other = StreamSum::default();
        other.add(&swapped);
        assert_ne!(other.value(), whole.value());
        let mut tail = vec![0; 77];
        pattern(7, 9_923, &mut tail);
        assert_eq!(tail, data[9_923..], "the pattern can be made from any place");
    }
}
