//! The ports of a case: a sink, a source, an echo. Each queue has one of its own, which goes with
//! it to its worker.
//!
//! ```text
//!   TX    guest --ring--> SinkPort    (numbers are checked, of the untimed burst every byte)
//!   RX    guest <--ring-- SourcePort  (from the first mark to the last)
//!   echo  guest <--ring--> EchoPort   (each frame with the time at which it was here)
//! ```
//! The guest marks the begin and the end of the time that is counted by a frame of its own that
//! travels alone ([`is_mark`]); so the counters of both ends cover the same frames.

use super::fault::Fault;
use super::mark::{is_mark, mark, whole_frames};
use super::signals::{COUNTED, OVER, Presence, Signals, WARM_UP, WHOLE, locked};
use hdrhistogram::Histogram;
use pregrant::platform::Clock;
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads, Payload, PortOwner, ZeroCopyBurst};
use pregrant_host::MonotonicClock;
use pregrant_host::ports::checking_sink::{Check, CheckingSink};
use pregrant_host::ports::generator::{Filling, Generator};
use pregrant_host::ports::sequence::Head;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub struct SinkPort {
    sink: CheckingSink,
    /// True if the port asks for private bytes, although it only reads heads.
    look: bool,
    signals: Presence,
    /// The gaps between bursts; None: they are not measured.
    gaps: Option<Gaps>,
}

struct Gaps {
    all: Histogram<u64>,
    last_ns: u64,
}

impl Gaps {
    fn new() -> Option<Self> {
        Some(Self { all: Histogram::new_with_bounds(1, 100_000_000_000, 3).ok()?, last_ns: 0 })
    }

    /// Notes that a burst arrived at `now_ns`. Only gaps that began while frames were `counted`
    /// count.
    fn note(&mut self, now_ns: u64, counted: bool) {
        if counted && self.last_ns > 0 {
            self.all.saturating_record(now_ns.saturating_sub(self.last_ns));
        }
        self.last_ns = if counted { now_ns } else { 0 };
    }
}

impl SinkPort {
    /// Creates a port for a case; with `gaps` it records the time between bursts.
    pub fn new(signals: Arc<Signals>, look: bool, gaps: bool) -> Self {
        let sink = CheckingSink::new(Check::Number);
        locked(&signals.sinks).push(sink.counters());
        let gaps = if gaps { Gaps::new() } else { None };
        Self { sink, look, signals: Presence(signals), gaps }
    }
}

impl FramePort for SinkPort {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.burst_came(|| is_mark(frames));
        if is_mark(frames) {
            self.signals.mark();
            return frames.frames.len();
        }
        let whole = self.wants_whole();
        self.sink.take(frames);
        if whole {
            self.signals.checked.fetch_add(frames.iter().count() as u64, Ordering::Relaxed);
        }
        frames.frames.len()
    }
    fn payload(&self) -> Payload {
        if self.look { Payload::Private } else { Payload::ZeroCopy }
    }
    fn tx_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) -> usize {
        // A mark is short, and comes alone: never here.
        self.burst_came(|| false);
        let whole = self.wants_whole();
        self.sink.take_zero_copy(frames);
        if whole {
            let checked = (0..frames.len()).filter(|&i| frames.len_of(i) > 0).count();
            self.signals.checked.fetch_add(checked as u64, Ordering::Relaxed);
        }
        frames.len()
    }
    fn rx_burst(&mut self, _into: &mut Arena) -> usize {
        0
    }
}

impl SinkPort {
    /// Called when a burst has arrived: records the gap before it.
    fn burst_came(&mut self, is_mark: impl Fn() -> bool) {
        if let Some(gaps) = &mut self.gaps {
            // The mark that ends the count ends the last gap too: a back that froze before it
            // shows.
            let counted = self.signals.marks.load(Ordering::Relaxed) == COUNTED;
            gaps.note(MonotonicClock.now_ns(), counted);
            if counted && is_mark() {
                *locked(&self.signals.gaps) = Some(gaps.all.clone());
            }
        }
    }

    /// Returns true if the sink wants frames to be checked completely now.
    fn wants_whole(&mut self) -> bool {
        let whole = self.signals.marks.load(Ordering::Relaxed) == WHOLE;
        self.sink.set_check(if whole { Check::Payload } else { Check::Number });
        whole
    }
}

/// Produces numbered frames between the first mark and the last, then one mark. Frames after that
/// are ignored.
pub struct SourcePort {
    generator: Generator,
    signals: Presence,
    burst: u64,
    /// Number of frames of the untimed first burst.
    whole: u64,
    /// Number of marks that were sent: one at the end of the warm-up, one at the end of everything.
    marks: u32,
}

impl SourcePort {
    /// Tells the guest that no more frames follow for now.
    fn mark(&mut self, into: &mut Arena) -> usize {
        let sent = into.push(&mark(), Offload::default());
        self.marks += u32::from(sent);
        sent as usize
    }
}

impl SourcePort {
    /// Creates a port for a case, with frames of `size` bytes in bursts of `burst`.
    pub fn new(signals: Arc<Signals>, size: usize, burst: usize) -> Self {
        Self {
            generator: Generator::new(Head::default(), size),
            signals: Presence(signals),
            burst: burst as u64,
            whole: whole_frames(size),
            marks: 0,
        }
    }
}

impl FramePort for SourcePort {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        if is_mark(frames) {
            self.signals.mark();
        }
        frames.frames.len()
    }
    fn owned_by(&mut self, owner: &PortOwner) {
        locked(&self.signals.wakers).push(Arc::clone(&owner.waker));
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let most = match (self.signals.marks.load(Ordering::Relaxed), self.marks) {
            (WHOLE, 0) if self.generator.made() < self.whole => self.whole - self.generator.made(),
            (WHOLE, 0) | (OVER, 1) => return self.mark(into),
            (WARM_UP | COUNTED, 1) => {
                self.generator.set_filling(Filling::Head);
                self.burst
            }
            _ => return 0,
        };
        let first = self.generator.made();
        let n = self.generator.fill(into, most.min(self.burst));
        if first < self.whole {
            Fault::wanted().damage(into, first);
        }
        self.signals.made.fetch_add(n, Ordering::Relaxed);
        n as usize
    }
}

/// Frames that will be sent back, each with the time at which it was here.
#[derive(Default)]
pub struct Echo(Arena);

impl Echo {
    /// Adds a frame, with the time `now_ns`. Returns false if there is no room.
    pub fn take(&mut self, frame: &[u8], offload: Offload, now_ns: u64) -> bool {
        let Some(room) = self.0.room(frame.len(), offload) else { return false };
        room.copy_from_slice(frame);
        if let Some(stamp) = room.get_mut(40..48) {
            stamp.copy_from_slice(&now_ns.to_le_bytes());
        }
        true
    }

    /// Moves all frames to `into`, and returns their number.
    pub fn give(&mut self, into: &mut Arena) -> usize {
        let n = self.0.burst().iter().filter(|(frame, offload)| into.push(frame, *offload)).count();
        self.0.clear();
        n
    }
}

pub struct EchoPort {
    back: Echo,
    /// Number of frames made so far.
    nr: u64,
    signals: Presence,
}

impl EchoPort {
    pub fn new(signals: Arc<Signals>) -> Self {
        Self { back: Echo::default(), nr: 0, signals: Presence(signals) }
    }
}

impl FramePort for EchoPort {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        if is_mark(frames) {
            self.signals.mark();
            return 1;
        }
        let now_ns = MonotonicClock.now_ns();
        let mut took = 0;
        for (frame, offload) in frames.iter() {
            for _ in 0..Fault::wanted().echoes(self.nr) {
                if !self.back.take(frame, offload, now_ns) {
                    return took;
                }
            }
            self.nr += 1;
            took += 1;
        }
        took
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        self.back.give(into)
    }
}
