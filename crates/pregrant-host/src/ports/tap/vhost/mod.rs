//! A queue of a tap through vhost-net: a worker of the kernel's moves frames between two rings in our memory and the tap, and no
//! frame is a system call.
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
//! | `sender` | frames that are out, and where they lie |
//! | `receiver` | buffers that wait for frames |
//! | `shared` | all of it, for a port and for who lends it frames |
//!
//! A wake-up of the worker costs three writes. So [`is_asleep`](Vhost::is_asleep) says whether few frames are better written by
//! whoever has them; none is in the ring then, and order is kept. Calls are asked for before our own thread sleeps, and when the ring is
//! full for half of it.
//!
//! Payload that is lent goes by reference: its descriptors name the guest's pages, which stay mapped until the worker has read them, or was
//! stopped ([`shared`]). Of a frame that is lent header and head are private copies.
//!
//! Invariants: what a descriptor names is memory of the queue's own mapping, which lives until the worker was stopped, or is lent until its frame is
//! completed; a frame is written to the tap once, in order, also when the worker has to be stopped in between.
//!
//! A ring over which the worker tells what cannot be, or with which it does not go on for a second while it is sent more or asked, is stopped, what it did not take
//! is written by a call each, and both rings begin anew; where the kernel refuses that, it is tried again a second later, and frames
//! for the guest wait in the tap. A dead process leaves nothing: the kernel closes the device, and what the worker had taken of the tap
//! ahead of us goes back to it. Lost are frames in the rings: of the guest's up to a ring's, which were answered already, and of those
//! for it what came and was not delivered ([held](Vhost::held)).
//!
//! What a guest may do: nothing to the rings, which it does not have; frames in them are private copies, or payload that it may change until the
//! kernel has copied it: that is what it sent then.

mod kernel;
mod receiver;
mod sender;
mod shared;
#[cfg(test)]
mod tests;
mod virtqueue;

use super::header::HEADER;
use crate::clock::coarse;
use crate::line_budget::LineBudget;
use crate::mapping::{Mapping, sealed_memfd};
use crate::ports::tap::gather::{Frame, Vector};
use kernel::{Device, Doors, Which, Worker};
use pregrant::port::{Arena, Piece, Token};
use receiver::{Receiver, Wrong};
use rustix::fd::{AsFd, OwnedFd};
use sender::{AREA, Sender};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use virtqueue::Virtqueue;

pub use shared::SharedVhost;
pub use virtqueue::Buffer;

/// Descriptors of the ring of buffers for frames.
pub const SIZE: u16 = 256;
/// Of that of frames that are sent: one for each slot of a guest's ring whose payload is lent, and one for each frame.
const TX_SIZE: u16 = 512;
/// Frames that are written by a call each where the worker sleeps: its wake-up costs as much as so many.
pub const FEW: usize = 3;
/// How long the worker may not go on.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes of a ring, and where everything is.
const RING: usize = Virtqueue::bytes(TX_SIZE).next_multiple_of(4096);
const FRAMES_AT: usize = 2 * RING;
const BUFFERS_AT: usize = FRAMES_AT + AREA;
const BYTES: usize = (BUFFERS_AT + Receiver::bytes(SIZE)).next_multiple_of(4096);

/// Why rings had to be stopped.
#[derive(Debug)]
enum Broken {
    Wrong(Wrong),
    Silent,
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
            Self::Silent => write!(f, "its worker does not go on for {} s", PATIENCE.as_secs()),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Vhost<D: Worker = Device> {
    /// None: it was stopped, and not yet begun anew.
    device: Option<D>,
    tap: Arc<OwnedFd>,
    memory: Arc<Mapping>,
    tx: Sender,
    rx: Receiver,
    /// Of lent frames, those that nobody reads any more, and of which nobody was told.
    completed: Vec<Token>,
    /// How many frames had come back when that was asked while lent ones were out, and since when it is so many, by the coarse clock.
    waits: Option<(u64, Duration)>,
    tx_doors: Doors,
    rx_doors: Doors,
    /// When it was stopped last.
    stopped: Option<Instant>,
}

/// The rings, as they begin.
fn rings(memory: &Arc<Mapping>) -> (Sender, Receiver) {
    let ring = |i, size| Virtqueue::new(Arc::clone(memory), i * RING, size);
    let (area, buffers) = (FRAMES_AT..BUFFERS_AT, Arc::clone(memory));
    (
        Sender::new(ring(1, TX_SIZE), Arc::clone(memory), area),
        Receiver::new(ring(0, SIZE), buffers, BUFFERS_AT),
    )
}

impl<D: Worker> Vhost<D> {
    /// For this queue of a tap, whose header has 12 bytes.
    ///
    /// # Errors
    /// There is no vhost-net, it is not ours to open, or lacks what is needed; no memory or descriptor is left.
    pub fn new(tap: Arc<OwnedFd>) -> io::Result<Self> {
        // The worker is a thread of the kernel's: where there is none, nothing else is worth while.
        let device = D::open()?;
        let memory = Arc::new(Mapping::new(sealed_memfd("pregrant vhost", BYTES)?, BYTES)?);
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
            waits: None,
            tx_doors,
            rx_doors,
            stopped: None,
        };
        this.begin(device)?;
        Ok(this)
    }

    /// Has the worker begin, over rings that nobody has.
    fn begin(&mut self, device: D) -> io::Result<()> {
        // Frames in their order need no calls.
        self.tx.ring.disarm();
        let _ = self.rx.ring.publish();
        // SAFETY: the memory stays until `stop`, or until the device is closed: it is dropped before the memory.
        unsafe { device.give_ring(Which::Tx, &self.tx.ring, TX_SIZE, &self.tx_doors) }?;
        // SAFETY: as above.
        unsafe { device.give_ring(Which::Rx, &self.rx.ring, SIZE, &self.rx_doors) }?;
        device.attach(Which::Tx, self.tap.as_fd())?;
        let attached = device.attach(Which::Rx, self.tap.as_fd());
        self.device = Some(device);
        attached?;
        // There are buffers, and perhaps frames.
        self.rx_doors.kick();
        Ok(())
    }

    /// Whether it works. One that was stopped tries again, once in a while.
    pub fn is_up(&mut self) -> bool {
        match self.stopped {
            None => true,
            Some(at) if self.device.is_none() && at.elapsed() >= PATIENCE => {
                self.renew();
                self.device.is_some()
            }
            Some(_) => self.device.is_some(),
        }
    }

    fn renew(&mut self) {
        static LINES: LineBudget = LineBudget::new();
        self.stopped = Some(Instant::now());
        (self.tx, self.rx) = rings(&self.memory);
        if let Err(e) = D::open().and_then(|device| self.begin(device)) {
            self.device = None;
            LINES.warn(format_args!(
                "a tap's rings do not begin anew: {e}; frames for its guest wait meanwhile"
            ));
        }
    }

    /// Stops the worker, writes what it did not take, and begins anew. Returns how many frames were refused.
    #[cold]
    fn restart(&mut self, why: &Broken) -> usize {
        static LINES: LineBudget = LineBudget::new();
        LINES.warn(format_args!("a tap's rings begin anew: {why}"));
        let refused = self.stop();
        self.renew();
        refused
    }

    /// Stops the worker. Frames that it did not take are written by a call each, in order; returns how many were refused.
    fn stop(&mut self) -> usize {
        self.waits = None;
        if let Some(device) = self.device.take() {
            // Where the kernel refuses, closing it does the same.
            let _ = device.detach(Which::Tx);
            let _ = device.detach(Which::Rx);
        }
        let _ = self.tx.reclaim(); // what it lied about before is left as it is
        let mut refused = 0;
        let tap = &self.tap;
        self.tx.left(|frame| refused += usize::from(frame.write(tap.as_fd()).is_err()));
        self.completed.append(self.tx.completed());
        if !self.completed.is_empty() {
            // Who lent them may be about to sleep.
            self.rx_doors.call_again();
        }
        refused
    }

    /// Whether the worker has nothing to do, and sleeps: so few frames are better written by a call each. Where it is awake, or
    /// has some still, they would overtake those.
    pub fn is_asleep(&mut self) -> bool {
        self.tx.reclaim().is_ok() && self.tx.len() == 0 && self.tx.ring.would_kick(1)
    }

    /// Has a frame sent behind those before it, once it is [published](Self::publish). Returns how many were refused, where the worker
    /// had to be stopped; where none works any more, this one is among those that are written by a call.
    #[inline(always)]
    pub fn send(&mut self, header: &[u8; HEADER], frame: &[u8]) -> usize {
        if self.device.is_some() && self.tx.put(header, frame) {
            return 0;
        }
        self.send_late(header, frame)
    }

    /// There is no room, or no worker.
    #[cold]
    #[inline(never)]
    fn send_late(&mut self, header: &[u8; HEADER], frame: &[u8]) -> usize {
        let mut refused = 0;
        while self.device.is_some() {
            if self.tx.put(header, frame) {
                return refused;
            }
            refused += self.make_room_or_restart();
        }
        // SAFETY: the bytes are borrowed for longer than the call.
        let vectors = [&header[..], frame].map(|bytes| unsafe { Vector::private(bytes) });
        refused + usize::from(Frame::Many(&vectors).write(self.tap.as_fd()).is_err())
    }

    /// As [`send`](Self::send), of a frame of which `pieces` gives what follows its head. The token is [completed](Self::complete) once
    /// nobody reads it any more.
    ///
    /// # Safety
    /// The pieces' memory stays mapped until then.
    pub unsafe fn send_lent<'p, I: Iterator<Item = Piece<'p>>>(
        &mut self,
        header: &[u8; HEADER],
        head: &[u8],
        pieces: impl Fn() -> I,
        token: Token,
    ) -> usize {
        let mut refused = 0;
        while self.device.is_some() {
            // SAFETY: the caller's.
            if unsafe { self.tx.put_lent(header, head, pieces(), token) } {
                return refused;
            }
            refused += self.make_room_or_restart();
        }
        // SAFETY: the bytes are borrowed for longer than the call.
        let own = [&header[..], head].map(|bytes| unsafe { Vector::private(bytes) });
        // SAFETY: the caller's.
        let vectors: Vec<Vector> = own.into_iter().chain(unsafe { Vector::lent(pieces()) }).collect();
        refused += usize::from(Frame::Many(&vectors).write(self.tap.as_fd()).is_err());
        self.completed.push(token);
        refused
    }

    #[cold]
    fn make_room_or_restart(&mut self) -> usize {
        match self.make_room() {
            Ok(()) => 0,
            Err(why) => self.restart(&why),
        }
    }

    /// Appends the tokens of lent frames that nobody reads any more. Where there are others, the call comes when half of what is out came back;
    /// where none came back for a second, as far as this is asked, the worker is stopped. Returns how many frames were refused then.
    pub fn complete(&mut self, done: &mut Vec<Token>) -> usize {
        let mut refused = 0;
        loop {
            let reclaimed = self.tx.reclaim();
            let half = self.tx.len().div_ceil(2) as u16;
            let again = match reclaimed {
                Ok(()) if self.tx.nr_lent() == 0 => Ok(false),
                Ok(()) => self.tx.ring.arm(half),
                Err(lie) => Err(lie),
            };
            match again {
                Ok(true) => {}
                Ok(false) => break,
                Err(lie) => refused += self.restart(&lie.into()),
            }
        }
        if self.tx.nr_lent() > 0 {
            let came = self.tx.nr_back();
            match self.waits {
                Some((before, since)) if before == came => {
                    if coarse().saturating_sub(since) > PATIENCE {
                        refused += self.restart(&Broken::Silent);
                    }
                }
                _ => self.waits = Some((came, coarse())),
            }
        }
        if self.tx.nr_lent() == 0 {
            self.waits = None;
        }
        done.append(self.tx.completed());
        done.append(&mut self.completed);
        refused
    }

    /// When this returns, within two seconds, nobody reads lent frames any more; who lent them is not told of it. Returns how many frames
    /// were refused, where the worker had to be stopped.
    pub fn give_up(&mut self) -> usize {
        let (since, mut refused) = (Instant::now(), 0);
        while self.tx.nr_lent() > 0 {
            refused += match self.make_room() {
                Ok(()) if since.elapsed() < PATIENCE => 0,
                Ok(()) => self.restart(&Broken::Silent),
                Err(why) => self.restart(&why),
            };
        }
        self.tx.completed().clear();
        self.completed.clear();
        refused
    }

    /// Waits until frames came back, half of those that are out where none did.
    fn make_room(&mut self) -> Result<(), Broken> {
        self.publish();
        let before = self.tx.len();
        self.tx.reclaim()?;
        if self.tx.len() < before {
            return Ok(());
        }
        let half = (before / 2).max(1) as u16;
        let since = Instant::now();
        while !self.tx.ring.arm(half)? {
            let left = PATIENCE.saturating_sub(since.elapsed());
            // It may be called for frames that came, too.
            self.tx_doors.wait(left);
            self.tx.reclaim()?;
            if self.tx.len() < before {
                break;
            }
            if left.is_zero() {
                return Err(Broken::Silent);
            }
        }
        self.tx_doors.call_again();
        self.tx.ring.disarm();
        Ok(self.tx.reclaim()?)
    }

    /// Shows the worker what was put.
    pub fn publish(&mut self) {
        if self.tx.ring.publish() {
            self.tx_doors.kick();
        }
    }

    /// Waits until all frames that are out came back, for a second at most without one.
    ///
    /// # Errors
    /// They did not: the worker has to be stopped.
    fn drain(&mut self) -> Result<(), Broken> {
        while self.tx.len() > 0 {
            self.make_room()?;
        }
        Ok(())
    }

    /// Moves frames for the guest, as long as there is room. Returns how many were malformed, and how many of the guest's were refused,
    /// where the worker had to be stopped. Where none was moved, the next one is told of by [`readable`](Self::readable).
    pub fn receive(&mut self, into: &mut Arena) -> (u64, usize) {
        let (mut malformed, mut refused) = (0, 0);
        let before = into.len();
        let received = loop {
            match self.rx.unload(into) {
                Ok(n) => malformed += n,
                Err(wrong) => break Err(wrong),
            }
            if into.len() > before || !into.has_room() {
                break Ok(());
            }
            match self.rx.ring.arm(1) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(lie) => break Err(lie.into()),
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

    /// Readable when frames came for the guest, once for each time that none was there; and when lent frames were read.
    fn readable(&self) -> &Arc<OwnedFd> {
        self.rx_doors.call()
    }

    /// Frames for the guest that are in the ring, at most.
    pub fn held(&self) -> usize {
        self.rx.held()
    }

    /// Waits until the worker has taken all. For who measures it.
    ///
    /// # Errors
    /// It does not.
    pub fn finish(&mut self) -> io::Result<()> {
        self.drain().map_err(|why| io::Error::other(why.to_string()))
    }
}

impl<D: Worker> Drop for Vhost<D> {
    fn drop(&mut self) {
        let _ = self.drain(); // what does not come back is written by calls
        self.stop();
    }
}
