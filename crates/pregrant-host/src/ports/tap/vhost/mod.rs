//! A queue of a tap through vhost-net: a worker of the kernel's moves frames between two rings in
//! our memory and the tap, and no frame is a system call.
//!
//! ```text
//!   guest TX: outgoing frames --sender--> ring --kick, if it sleeps--> worker --> interface
//!   guest RX: arena <--receiver-- ring <-- worker <-- interface        --call, if we asked--> our worker thread wakes
//!             memory of a queue: | ring | ring | frames out | buffers for frames in |
//! ```
//! | file | |
//! |---|---|
//! | `kernel` | `/dev/vhost-net`: which rings, which tap, who wakes whom |
//! | `virtqueue` | a ring, the driver's side |
//! | `sender` | frames that are out, and where they are |
//! | `receiver` | buffers that wait for frames |
//! | `shared` | all of it, for a port and for who lends it frames |
//!
//! A wake-up of the worker costs three writes. So [`is_asleep`](Vhost::is_asleep) says whether few
//! frames are better written by their owner; none is in the ring then, and order is kept.
//! Calls are asked for before our own thread sleeps, and when the ring is full for half of it.
//!
//! Payload that is lent goes by reference: its descriptors name the guest's pages, which stay
//! mapped until the worker has read them, or was stopped ([`shared`]). Of a frame that is lent
//! header and head are private copies.
//!
//! Invariants: what a descriptor names is memory of the queue's own mapping, which lives until the
//! worker was stopped, or is lent until its frame is completed; a frame is written to the tap once,
//! in order, also when the worker has to be stopped in between.
//!
//! Nothing here waits for the worker: it may stand, and our thread has other vifs. Frames that find
//! no room are [kept back](Vhost::stands), a burst of them, and the guest's others stay on its own
//! ring until there is room; the worker notifies us when half of the frames out came back. Frames
//! that are given all the same are refused. A queue that ends has the sending ring taken from the
//! worker, at once.
//!
//! A ring over which the worker says what cannot be, or with which it does not go on for a second
//! while it is asked, is stopped, what it did not take is written by a call each, and both rings
//! restart; where the kernel refuses that, it is tried again a second later, and frames for the
//! guest wait in the tap. A dead process leaves nothing: the kernel closes the device, and what the
//! worker had taken of the tap ahead of us goes back to it. Lost are frames in the rings: of the
//! guest's up to a ring's, which were answered already, and of those for it what came and was not
//! delivered ([held](Vhost::held)).
//!
//! What a guest may do: nothing to the rings, which it does not have; frames in them are private
//! copies, or payload that it may change until the kernel has copied it: that is what it sent then.

mod kernel;
mod receiver;
mod sender;
mod shared;
#[cfg(test)]
mod tests;
mod virtqueue;

use super::cut_frames::CutFrames;
use super::header::HEADER;
use crate::backing::Backing;
use crate::clock::coarse;
use crate::mapping::Mapping;
use crate::ports::tap::gather::{Frame, Vector};
use crate::ports::tap::tap_log::TapLines;
use kernel::{Device, Doors, Which, Worker};
use pregrant::port::{Arena, BURST_FRAMES, MAX_FRAME, Piece, Token};
use receiver::{Receiver, Wrong};
use rustix::fd::{AsFd, OwnedFd};
use sender::{AREA, Sender};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use virtqueue::Virtqueue;

pub use shared::SharedVhost;
pub use virtqueue::Buffer;

/// Number of descriptors of the ring of buffers for received frames.
pub const SIZE: u16 = 256;
/// Descriptors of the sending ring: one for each slot of a guest's ring with zero-copy payload, and
/// one for each frame.
const TX_SIZE: u16 = 512;
/// While the worker sleeps, up to this many frames are written by a system call each, since waking
/// the worker costs as much.
pub const FEW: usize = 3;
/// The longest time that the worker may make no progress before it is stopped.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes of a ring, and the offsets of all parts.
const RING: usize = Virtqueue::bytes(TX_SIZE).next_multiple_of(4096);
const FRAMES_AT: usize = 2 * RING;
const BUFFERS_AT: usize = FRAMES_AT + AREA;
const BYTES: usize = (BUFFERS_AT + Receiver::bytes(SIZE)).next_multiple_of(4096);

/// The reason why the rings had to be stopped.
#[derive(Debug)]
enum Broken {
    Wrong(Wrong),
    Silent,
    Refused(io::Error),
}

impl<W: Into<Wrong>> From<W> for Broken {
    fn from(wrong: W) -> Self {
        Self::Wrong(wrong.into())
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(wrong) => wrong.fmt(f),
            Self::Silent => write!(f, "the vhost worker made no progress for {} s", PATIENCE.as_secs()),
            Self::Refused(e) => e.fmt(f),
        }
    }
}

/// The two rings of one queue of a tap.
#[derive(Debug)]
pub struct Vhost<D: Worker = Device> {
    /// The vhost device. None: it is stopped and was not restarted yet.
    device: Option<D>,
    tap: Arc<OwnedFd>,
    memory: Arc<Mapping>,
    tx: Sender,
    rx: Receiver,
    /// Zero-copy frames that are not read any more, and were not reported yet.
    completed: Vec<Token>,
    /// Frames that did not fit, each with its header; at most a burst. There are some only while
    /// the ring is full.
    kept: VecDeque<Vec<u8>>,
    /// The number of completed frames at the last check while frames were in flight or kept back,
    /// and since when that number has not changed, by the coarse clock.
    waits: Option<(u64, Duration)>,
    lines: Arc<TapLines>,
    tx_doors: Doors,
    rx_doors: Doors,
    /// Time at which the worker was last stopped.
    stopped: Option<Instant>,
    patience: Duration,
}

/// Creates the rings in their initial state.
fn rings(memory: &Arc<Mapping>) -> (Sender, Receiver) {
    let ring = Virtqueue::new(Arc::clone(memory), 0, SIZE);
    (sender(memory), Receiver::new(ring, Arc::clone(memory), BUFFERS_AT))
}

fn sender(memory: &Arc<Mapping>) -> Sender {
    let ring = Virtqueue::new(Arc::clone(memory), RING, TX_SIZE);
    Sender::new(ring, Arc::clone(memory), FRAMES_AT..BUFFERS_AT)
}

impl<D: Worker> Vhost<D> {
    /// Creates rings for this queue of a tap, whose header has 12 bytes.
    ///
    /// # Errors
    ///
    /// There is no vhost-net, the process may not open it, or it lacks a feature; or no memory or
    /// descriptor is left.
    pub fn new(tap: Arc<OwnedFd>, lines: Arc<TapLines>) -> io::Result<Self> {
        // The worker is a kernel thread. Without it nothing else is needed.
        let device = D::open()?;
        let memory = Arc::new(Mapping::new(&Backing::sealed("pregrant vhost", BYTES)?, BYTES)?);
        let (tx, rx) = rings(&memory);
        let rx_doors = Doors::new()?;
        let tx_doors = rx_doors.of_other_ring()?;
        let mut this = Self {
            device: None,
            tap,
            memory,
            tx,
            rx,
            completed: Vec::new(),
            kept: VecDeque::new(),
            waits: None,
            lines,
            tx_doors,
            rx_doors,
            stopped: None,
            patience: PATIENCE,
        };
        this.begin(device)?;
        Ok(this)
    }

    /// Starts the worker on both rings, which neither side uses yet.
    fn begin(&mut self, device: D) -> io::Result<()> {
        let _ = self.rx.ring.publish();
        // SAFETY: the memory stays until `stop`, or until the device is closed: it is dropped
        // before the memory.
        unsafe { device.give_ring(Which::Rx, &self.rx.ring, SIZE, &self.rx_doors) }?;
        self.begin_sending(&device)?;
        let attached = device.attach(Which::Rx, self.tap.as_fd());
        self.device = Some(device);
        attached?;
        // There are buffers, and perhaps frames.
        self.rx_doors.kick();
        Ok(())
    }

    /// Starts the worker on the sending ring, which neither side uses yet.
    fn begin_sending(&mut self, device: &D) -> io::Result<()> {
        // In normal operation completions need no calls.
        self.tx.ring.disarm();
        // SAFETY: the memory stays until the ring is detached, or until the device is closed: it is
        // dropped before the memory.
        unsafe { device.give_ring(Which::Tx, &self.tx.ring, TX_SIZE, &self.tx_doors) }?;
        device.attach(Which::Tx, self.tap.as_fd())
    }

    /// True if the worker works. Tries from time to time to restart a stopped worker.
    pub fn is_up(&mut self) -> bool {
        match self.stopped {
            None => true,
            Some(at) if self.device.is_none() && at.elapsed() >= self.patience => {
                self.renew();
                self.device.is_some()
            }
            Some(_) => self.device.is_some(),
        }
    }

    fn renew(&mut self) {
        self.stopped = Some(Instant::now());
        (self.tx, self.rx) = rings(&self.memory);
        if let Err(e) = D::open().and_then(|device| self.begin(device)) {
            self.device = None;
            self.lines.warn(format_args!(
                "cannot restart the vhost-net rings: {e}; trying again each second, frames to the guest wait"
            ));
        }
    }

    /// Stops the worker, writes the frames that the worker has not taken, and restarts it. Returns
    /// how many frames were refused.
    #[cold]
    fn restart(&mut self, why: &Broken) -> usize {
        self.lines.warn(format_args!("restarting the vhost-net rings: {why}"));
        let refused = self.stop();
        self.renew();
        refused
    }

    /// Stops the worker. Frames that it has not taken are written by a system call each, in order.
    /// Returns how many frames were refused.
    fn stop(&mut self) -> usize {
        self.waits = None;
        if let Some(device) = self.device.take() {
            // If the kernel refuses, closing the device has the same effect.
            let _ = device.detach(Which::Tx);
            let _ = device.detach(Which::Rx);
        }
        self.write_left()
    }

    /// Writes the frames that the worker has not taken, and then the frames that were kept back, in
    /// order. The worker does not have the sending ring any more. Returns how many frames were
    /// refused.
    fn write_left(&mut self) -> usize {
        let _ = self.tx.reclaim(); // after a violation the rest stays as it is
        let mut refused = 0;
        let tap = &self.tap;
        self.tx.left(|frame| refused += usize::from(frame.write(tap.as_fd()).is_err()));
        for bytes in self.kept.drain(..) {
            // SAFETY: the bytes are borrowed for longer than the call.
            let vectors = [unsafe { Vector::private(&bytes) }];
            refused += usize::from(Frame::Many(&vectors).write(tap.as_fd()).is_err());
        }
        self.completed.append(self.tx.completed());
        self.report_completed();
        refused
    }

    /// Sends the RX ring's notification again if there are completed frames to report, since the
    /// worker that must collect them may be about to sleep.
    fn report_completed(&self) {
        if !self.completed.is_empty() {
            self.rx_doors.call_again();
        }
    }

    /// Returns true if the worker is idle and asleep, so that it is better to write a few frames by
    /// a system call each. While it is awake or has frames, those calls would overtake them.
    pub fn is_asleep(&mut self) -> bool {
        self.kept.is_empty() && self.tx.reclaim().is_ok() && self.tx.len() == 0 && self.tx.ring.would_kick(1)
    }

    /// Sends a frame after those before it, once it is [published](Self::publish). Returns how many
    /// frames were refused: because the worker had to be stopped, or more came than can be kept
    /// back. If there is no worker, this one is written by a call as well.
    #[inline(always)]
    pub fn send(&mut self, header: &[u8; HEADER], frame: &[u8]) -> usize {
        if self.device.is_some() && self.kept.is_empty() && self.tx.put(header, frame) {
            return 0;
        }
        self.send_late(header, frame)
    }

    /// The slow case of [`send`](Self::send): there is no room, or no worker.
    #[cold]
    #[inline(never)]
    fn send_late(&mut self, header: &[u8; HEADER], frame: &[u8]) -> usize {
        let refused = self.make_room();
        if self.device.is_none() {
            // SAFETY: the bytes are borrowed for longer than the call.
            let vectors = [&header[..], frame].map(|bytes| unsafe { Vector::private(bytes) });
            return refused + usize::from(Frame::Many(&vectors).write(self.tap.as_fd()).is_err());
        }
        if self.kept.is_empty() && self.tx.put(header, frame) {
            return refused;
        }
        refused + self.keep_back(header, frame, std::iter::empty())
    }

    /// Keeps a frame back until there is room. Returns 1 if it was refused, else 0.
    fn keep_back<'p>(
        &mut self,
        header: &[u8; HEADER],
        head: &[u8],
        pieces: impl Iterator<Item = Piece<'p>>,
    ) -> usize {
        if self.kept.len() == BURST_FRAMES {
            return 1;
        }
        let mut bytes = [&header[..], head].concat();
        for piece in pieces {
            let at = bytes.len();
            bytes.resize(at + piece.len(), 0);
            piece.copy_out(&mut bytes[at..]);
        }
        if bytes.len() > HEADER + MAX_FRAME {
            return 1;
        }
        self.kept.push_back(bytes);
        0
    }

    /// Returns true while frames are kept back because the ring is full. Until
    /// [`go_on`](Self::go_on) has sent them, further frames should stay on the guest's ring.
    pub fn stands(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Sends frames that were kept back, as far as there is room. If some still wait, the worker
    /// notifies us when half of the frames in flight have completed; if none completes for a
    /// second, it is stopped. Returns how many frames were refused then.
    pub fn go_on(&mut self) -> usize {
        while self.stands() {
            let refused = self.make_room();
            if refused > 0 || !self.stands() {
                return refused;
            }
            // Ask for the call last, so that none is missed.
            let half = (self.tx.len() / 2).max(1) as u16;
            match self.tx.ring.arm(half) {
                Ok(true) => {}
                Ok(false) if self.stands_still() => return self.restart(&Broken::Silent),
                Ok(false) => return 0,
                Err(violation) => return self.restart(&violation.into()),
            }
        }
        0
    }

    /// Collects the buffers that the worker has completed, and sends frames that were kept back.
    /// Returns how many frames were refused, if the worker had to be stopped.
    fn make_room(&mut self) -> usize {
        if self.device.is_none() {
            return 0;
        }
        self.publish();
        if let Err(violation) = self.tx.reclaim() {
            return self.restart(&violation.into());
        }
        // Their owner has asked before, and may be about to sleep.
        self.completed.append(self.tx.completed());
        self.report_completed();
        while let Some((header, frame)) = self.kept.front().and_then(|bytes| bytes.split_first_chunk()) {
            if !self.tx.put(header, frame) {
                break;
            }
            self.kept.pop_front();
        }
        self.publish();
        0
    }

    /// Returns true if no frame completed for a second, over several calls.
    fn stands_still(&mut self) -> bool {
        let came = self.tx.nr_back();
        match self.waits {
            Some((before, since)) if before == came => coarse().saturating_sub(since) > self.patience,
            _ => {
                self.waits = Some((came, coarse()));
                false
            }
        }
    }

    /// Sends a frame as [`send`](Self::send) does, with the bytes behind its head in `pieces`. Its
    /// token is [completed](Self::complete) once the pieces are not read any more.
    ///
    /// # Safety
    /// The pieces' memory stays mapped until then.
    pub unsafe fn send_zero_copy<'p, I: Iterator<Item = Piece<'p>>>(
        &mut self,
        header: &[u8; HEADER],
        head: &[u8],
        pieces: impl Fn() -> I,
        token: Token,
    ) -> usize {
        // SAFETY: the caller's.
        let put = |this: &mut Self| unsafe {
            this.device.is_some()
                && this.kept.is_empty()
                && this.tx.put_zero_copy(header, head, pieces(), token)
        };
        if put(self) {
            return 0;
        }
        let mut refused = self.make_room();
        if put(self) {
            return refused;
        }
        if self.device.is_some() {
            // A private copy waits instead, so that the guest's pages need not.
            refused += self.keep_back(header, head, pieces());
            self.completed.push(token);
            self.report_completed();
            return refused;
        }
        // SAFETY: the bytes are borrowed for longer than the call.
        let own = [&header[..], head].map(|bytes| unsafe { Vector::private(bytes) });
        // SAFETY: the caller's.
        let vectors: Vec<Vector> = own.into_iter().chain(unsafe { Vector::zero_copy(pieces()) }).collect();
        refused += usize::from(Frame::Many(&vectors).write(self.tap.as_fd()).is_err());
        self.completed.push(token);
        refused
    }

    /// Appends the tokens of zero-copy frames that are not read any more. If others are in flight,
    /// the worker notifies us when half of the frames in flight have completed; if none completes
    /// for a second, it is stopped. Returns how many frames were refused then.
    pub fn complete(&mut self, done: &mut Vec<Token>) -> usize {
        let mut refused = 0;
        loop {
            let reclaimed = self.tx.reclaim();
            let half = self.tx.len().div_ceil(2) as u16;
            let again = match reclaimed {
                Ok(()) if self.tx.nr_in_flight() == 0 => Ok(false),
                Ok(()) => self.tx.ring.arm(half),
                Err(violation) => Err(violation),
            };
            match again {
                Ok(true) => {}
                Ok(false) => break,
                Err(violation) => refused += self.restart(&violation.into()),
            }
        }
        if self.tx.nr_in_flight() > 0 && self.stands_still() {
            refused += self.restart(&Broken::Silent);
        }
        if self.tx.nr_in_flight() == 0 && !self.stands() {
            self.waits = None;
        }
        done.append(self.tx.completed());
        done.append(&mut self.completed);
        refused
    }

    /// Ends all use of zero-copy frames: when this returns, none of them is read any more, and
    /// their owner gets no tokens for them. It does not wait for the worker; frames that the worker
    /// has not taken are written by a system call each. Returns how many frames were refused.
    pub fn give_up(&mut self) -> usize {
        let mut refused = match self.tx.reclaim() {
            Ok(()) => 0,
            Err(violation) => self.restart(&violation.into()),
        };
        if self.tx.nr_in_flight() > 0 {
            refused += self.take_back();
        }
        self.tx.completed().clear();
        self.completed.clear();
        refused
    }

    /// Takes the sending ring from the worker, writes the frames that the worker has not taken, and
    /// restarts that ring. The receiving ring continues. Returns how many frames were refused.
    fn take_back(&mut self) -> usize {
        let Some(device) = self.device.take() else { return self.write_left() };
        if let Err(e) = device.detach(Which::Tx) {
            // Closing the device has the same effect.
            self.device = Some(device);
            return self.restart(&Broken::Refused(e));
        }
        let refused = self.write_left();
        (self.tx, self.waits) = (sender(&self.memory), None);
        let started = self.begin_sending(&device);
        self.device = Some(device);
        refused + started.map_or_else(|e| self.restart(&Broken::Refused(e)), |()| 0)
    }

    /// Publishes new descriptors to the worker.
    pub fn publish(&mut self) {
        if self.tx.ring.publish() {
            self.tx_doors.kick();
        }
    }

    /// Moves frames for the guest while there is room. Returns how many were malformed, and how
    /// many of the guest's frames were refused, if the worker had to be stopped. If none was moved,
    /// [`readable`](Self::readable) reports the next one.
    pub fn receive(&mut self, into: &mut Arena, cut: &mut CutFrames) -> (u64, usize) {
        let (mut malformed, mut refused) = (0, 0);
        let before = into.len();
        let received = loop {
            match self.rx.unload(into, cut) {
                Ok(n) => malformed += n,
                Err(wrong) => break Err(wrong),
            }
            if into.len() > before || !into.has_room() {
                break Ok(());
            }
            match self.rx.ring.arm(1) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(violation) => break Err(violation.into()),
            }
        };
        if self.rx.ring.publish() {
            self.rx_doors.kick();
        }
        if let Err(wrong) = received {
            refused = self.restart(&wrong.into());
        }
        (malformed, refused)
    }

    /// Becomes readable when a frame arrives after there was none, and when zero-copy frames have
    /// been read.
    fn readable(&self) -> &Arc<OwnedFd> {
        self.rx_doors.call()
    }

    /// Returns an upper bound of the frames for the guest in the ring.
    pub fn held(&self) -> usize {
        self.rx.held()
    }

    /// Waits until the worker has taken all frames, at most for a second without progress.
    /// Benchmarks only.
    ///
    /// # Errors
    ///
    /// The worker made no progress.
    pub fn finish(&mut self) -> io::Result<()> {
        let wrong = |why: Broken| io::Error::other(why.to_string());
        let (mut came, mut since, mut waited) = (self.tx.nr_back(), Instant::now(), false);
        while self.tx.len() > 0 || self.stands() {
            if self.make_room() > 0 || self.device.is_none() {
                return Err(wrong(Broken::Silent));
            }
            if self.tx.nr_back() != came {
                (came, since) = (self.tx.nr_back(), Instant::now());
                continue;
            }
            let left = self.patience.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(wrong(Broken::Silent));
            }
            let half = (self.tx.len() / 2).max(1) as u16;
            if !self.tx.ring.arm(half).map_err(|violation| wrong(violation.into()))? {
                self.tx_doors.wait(left);
                waited = true;
            }
        }
        if waited {
            // The call may also have been for frames that arrived.
            self.tx_doors.call_again();
        }
        self.tx.ring.disarm();
        Ok(())
    }
}

impl<D: Worker> Drop for Vhost<D> {
    fn drop(&mut self) {
        // Frames that did not complete are written by calls.
        self.stop();
    }
}
