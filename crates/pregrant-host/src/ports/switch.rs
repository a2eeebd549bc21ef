//! A learning switch between the vifs of one worker.
//!
//! ```text
//!   guest 1 --TX--> tx_burst --learn source--+      +--> queue --rx_burst--> guest 2
//!                                            |      |
//!                                    MAC table, find destination: one port, or all but the sender's
//! ```
//!
//! Known unicast goes to its port; broadcast, multicast and unknown unicast go to every other port; nothing returns to
//! the port it came from. Each queue to a guest is bounded ([`QUEUE_BYTES`]): what does not fit is dropped and counted at
//! the port that was too slow. A frame keeps its blank checksum and its segmentation where the receiver takes them; for
//! others its checksum is finished on its way into the queue, and it is cut before ([`segments`](super::segments)). A vif with
//! several queues is one port with several handles; a flow keeps to one of them, to the one that the guest said where it did
//! ([`FramePort::steer`]).
//!
//! A switch belongs to one worker. The lock inside is taken once per burst, and twice more for each frame that is to be cut,
//! and never contended there; it makes the handles `Send`, as a port has to be.
//!
//! What a guest may do: forge addresses, as far as its port's [`Sources`] allow; send to everybody, but no large segments, for
//! TCP is not for groups; send noise. It costs others no more than their own queue's room.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pregrant::net::headers::{IpHeaders, IpVersion, MacAddr, PROTOCOL_TCP, PROTOCOL_UDP, addresses};
use pregrant::port::{Arena, Burst, FrameDesc, FramePort, Offload, Offloads, PortDrop, Steering};

use super::mac_table::{Claim, MacTable, Source};
use super::queue::FrameQueue;
use super::segments::CutFrame;

/// Bytes that may wait in each queue to a guest.
pub const QUEUE_BYTES: usize = 512 * 1024;
/// Ports of one switch.
pub const MAX_PORTS: usize = 256;

/// What went through a port, seen from its guest: TX is what the guest sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchStats {
    /// Frames that the guest sent.
    pub tx_frames: u64,
    /// Of these, sent on to every other port.
    pub flooded: u64,
    /// Frames shorter than an Ethernet header, or with a source that no station may have: dropped.
    pub bad_frames: u64,
    /// Sources that were not learnt, since the port's share of the table is used up.
    pub not_learnt: u64,
    /// Frames with a source that this guest may not use: dropped.
    pub forged: u64,
    /// Large segments to a group: dropped.
    pub gso_to_group: u64,
    /// Frames queued for the guest.
    pub rx_frames: u64,
    /// Frames for the guest that found its queue full.
    pub rx_overflow: u64,
    /// Frames for the guest that needed a checksum or segmentation which their headers do not allow.
    pub rx_unfinishable: u64,
}

/// With which source addresses a guest may send. Another port's pinned address is never among them, nor is a group's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sources {
    /// Any that is not believed to be another port's: nobody said which is its own.
    #[default]
    Learnt,
    /// This one alone, which is pinned.
    Own(MacAddr),
    /// Any, also one that was learnt at another port; its own, if it has one, is pinned.
    Any(Option<MacAddr>),
}

impl Sources {
    fn pinned(self) -> Option<MacAddr> {
        match self {
            Self::Learnt => None,
            Self::Own(mac) => Some(mac),
            Self::Any(own) => own,
        }
    }
}

/// No further port fits into the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the switch has {MAX_PORTS} ports already; give this vif another switch (another bridge)")]
pub struct SwitchFull;

#[derive(Debug)]
struct Vif {
    queues: Vec<FrameQueue>,
    handles: usize,
    caps: Offloads,
    sources: Sources,
    /// Where the guest wants its frames; None: by flow.
    steering: Option<Arc<dyn Steering>>,
    stats: SwitchStats,
}

#[derive(Debug, Default)]
struct Fabric {
    vifs: Vec<Option<Vif>>,
    macs: MacTable,
    now_ns: u64,
}

/// Where a frame goes.
#[derive(Clone, Copy)]
enum Way {
    To(u16),
    All,
    Nowhere,
}

impl Fabric {
    fn way(&self, from: u16, dst: MacAddr) -> Way {
        if dst.is_group() {
            return Way::All;
        }
        match self.macs.find(dst, self.now_ns) {
            Some(port) if port == from => Way::Nowhere,
            Some(port) => Way::To(port),
            None => Way::All,
        }
    }

    /// Queues a frame for `port`, unless that one takes it cut only: then it is noted in `uncut`.
    fn deliver(&mut self, port: u16, frame: &[u8], offload: Offload, uncut: &mut Vec<u16>) {
        let Some(Some(vif)) = self.vifs.get_mut(usize::from(port)) else { return };
        // A large segment's checksum is finished after it was cut, so it needs both.
        if offload.gso_type != 0 && !(vif.caps.gso && vif.caps.csum) {
            return uncut.push(port);
        }
        let caps = vif.caps;
        let done = vif.queue_of(frame).push_finished(frame, offload, caps);
        vif.stats.rx_frames += u64::from(done.frames);
        vif.stats.rx_overflow += u64::from(done.overflow);
        vif.stats.rx_unfinishable += u64::from(done.unfinishable);
    }

    /// Queues for each of `ports` what `frame` was cut into; None: it could not be.
    fn deliver_cut(&mut self, ports: &[u16], frame: &[u8], cut: Option<&CutFrame>) {
        for &port in ports {
            let Some(Some(vif)) = self.vifs.get_mut(usize::from(port)) else { continue };
            let Some(cut) = cut else {
                vif.stats.rx_unfinishable += 1;
                continue;
            };
            let finished = Offload { csum_ok: true, ..Offload::default() };
            let queue = vif.queue_of(frame);
            let (mut queued, mut overflow) = (0, 0);
            for segment in cut.iter() {
                // In order: behind one that found no room there is none for another.
                if overflow == 0 && queue.push(segment, finished) {
                    queued += 1;
                } else {
                    overflow += 1;
                }
            }
            vif.stats.rx_frames += queued;
            vif.stats.rx_overflow += overflow;
        }
    }

    /// Whether `src` may send from `from`; the table and `stats` know of it then.
    fn admit(&mut self, from: u16, src: MacAddr, stats: &mut SwitchStats) -> bool {
        if src.is_group() || src.is_zero() {
            stats.bad_frames += 1;
            return false;
        }
        let Some(Some(vif)) = self.vifs.get(usize::from(from)) else { return false };
        let claim = match vif.sources {
            Sources::Own(own) if own == src => return true,
            Sources::Own(_) => {
                stats.forged += 1;
                return false;
            }
            Sources::Learnt => Claim::Free,
            Sources::Any(_) => Claim::Moved,
        };
        match self.macs.learn(src, from, claim, self.now_ns) {
            Source::Here => {}
            Source::NotLearnt => stats.not_learnt += 1,
            Source::Elsewhere => {
                stats.forged += 1;
                return false;
            }
        }
        true
    }

    /// Forwards frames from the `at`-th on, up to one that some receivers take cut only: those are in `uncut` then. Returns
    /// how many are done, that one included.
    fn forward(&mut self, from: u16, frames: &Burst<'_>, at: usize, uncut: &mut Vec<u16>) -> usize {
        let mut stats = SwitchStats::default();
        // A burst is mostly one conversation: the table is asked when an address differs from the last frame's.
        let mut last: Option<(MacAddr, MacAddr, Way)> = None;
        let mut done = at;
        while uncut.is_empty() && done < frames.frames.len() {
            let (bytes, FrameDesc { at, len, offload }) = (frames.bytes, frames.frames[done]);
            done += 1;
            let Some(frame) = bytes.get(at as usize..).and_then(|b| b.get(..len as usize)) else { continue };
            if frame.is_empty() {
                continue;
            }
            stats.tx_frames += 1;
            let Some((dst, src)) = addresses(frame) else {
                stats.bad_frames += 1;
                continue;
            };
            let way = match last {
                Some((d, s, way)) if d == dst && s == src => way,
                _ => {
                    if !self.admit(from, src, &mut stats) {
                        continue;
                    }
                    let way = self.way(from, dst);
                    last = Some((dst, src, way));
                    way
                }
            };
            if offload.gso_type != 0 && dst.is_group() {
                stats.gso_to_group += 1;
                continue;
            }
            match way {
                Way::To(port) => self.deliver(port, frame, offload, uncut),
                Way::Nowhere => {}
                Way::All => {
                    stats.flooded += 1;
                    for port in 0..self.vifs.len() as u16 {
                        if port != from {
                            self.deliver(port, frame, offload, uncut);
                        }
                    }
                }
            }
        }
        if let Some(Some(vif)) = self.vifs.get_mut(usize::from(from)) {
            vif.stats.tx_frames += stats.tx_frames;
            vif.stats.flooded += stats.flooded;
            vif.stats.bad_frames += stats.bad_frames;
            vif.stats.not_learnt += stats.not_learnt;
            vif.stats.forged += stats.forged;
            vif.stats.gso_to_group += stats.gso_to_group;
        }
        done
    }

    /// Gives a port's own address to it, or back to another vif that has the same.
    fn pin(&mut self, port: u16) {
        let Some(Some(vif)) = self.vifs.get(usize::from(port)) else { return };
        if let Some(mac) = vif.sources.pinned() {
            self.macs.pin(mac, port);
        }
    }
}

impl Vif {
    /// The queue that a frame for the guest goes to.
    fn queue_of(&mut self, frame: &[u8]) -> &mut FrameQueue {
        let queue = match (self.queues.len(), &self.steering) {
            (1, _) => 0,
            (n, Some(steering)) => steering.queue_of(frame) % n,
            (n, None) => flow_hash(frame) as usize % n,
        };
        &mut self.queues[queue]
    }
}

/// A number that is the same for all frames of one flow: MAC and IP addresses, and ports where there are any.
fn flow_hash(frame: &[u8]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325u64; // FNV-1a
    let mut mix = |bytes: &[u8]| {
        for b in bytes {
            hash = (hash ^ u64::from(*b)).wrapping_mul(0x100_0000_01B3);
        }
    };
    mix(&frame[..frame.len().min(12)]);
    if let Ok(h) = IpHeaders::parse(frame) {
        match h.version {
            IpVersion::V4 => mix(&frame[h.l2_len + 12..h.l2_len + 20]),
            IpVersion::V6 => mix(&frame[h.l2_len + 8..h.l2_len + 40]),
        }
        if matches!(h.protocol, PROTOCOL_TCP | PROTOCOL_UDP) && !h.fragment && h.l4_len() >= 4 {
            mix(&frame[h.l4_at..h.l4_at + 4]);
        }
    }
    hash ^ (hash >> 32)
}

/// The switch. Clones are the same switch.
#[derive(Clone, Debug, Default)]
pub struct Switch {
    fabric: Arc<Mutex<Fabric>>,
}

fn lock(fabric: &Mutex<Fabric>) -> MutexGuard<'_, Fabric> {
    // Every state that a panic could leave is a legal one.
    fabric.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Switch {
    /// A switch without ports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells the time, for ageing; the worker calls it once per turn.
    pub fn set_now(&self, now_ns: u64) {
        let mut fabric = lock(&self.fabric);
        fabric.now_ns = now_ns;
        fabric.macs.sweep(now_ns);
    }

    /// A port for a vif with one queue, whose guest can take what `caps` says.
    pub fn add_port(&self, caps: Offloads) -> Result<SwitchPort, SwitchFull> {
        let port = self.add(1, caps)?;
        Ok(SwitchPort::new(&self.fabric, port, 0))
    }

    /// A port for a vif with `queues` queues, one handle for each.
    pub fn add_multi_queue_port(&self, queues: usize, caps: Offloads) -> Result<Vec<SwitchPort>, SwitchFull> {
        if queues == 0 {
            return Ok(Vec::new());
        }
        let port = self.add(queues, caps)?;
        Ok((0..queues).map(|queue| SwitchPort::new(&self.fabric, port, queue)).collect())
    }

    fn add(&self, queues: usize, caps: Offloads) -> Result<u16, SwitchFull> {
        let mut fabric = lock(&self.fabric);
        let free = fabric.vifs.iter().position(Option::is_none).unwrap_or(fabric.vifs.len());
        if free == MAX_PORTS {
            return Err(SwitchFull);
        }
        let vif = Vif {
            queues: (0..queues).map(|_| FrameQueue::new(QUEUE_BYTES)).collect(),
            handles: queues,
            caps,
            sources: Sources::default(),
            steering: None,
            stats: SwitchStats::default(),
        };
        if free == fabric.vifs.len() {
            fabric.vifs.push(Some(vif));
        } else {
            fabric.vifs[free] = Some(vif);
        }
        Ok(free as u16)
    }

    /// Addresses that are known, pinned ones included.
    pub fn known_addresses(&self) -> usize {
        lock(&self.fabric).macs.len()
    }
}

/// One queue of a vif at the switch. When the last handle of a port is dropped, its frames and addresses go.
#[derive(Debug)]
pub struct SwitchPort {
    fabric: Arc<Mutex<Fabric>>,
    port: u16,
    queue: usize,
    /// Of the frame under way: who takes it cut only, and what it is cut into.
    uncut: Vec<u16>,
    cut: CutFrame,
}

impl SwitchPort {
    fn new(fabric: &Arc<Mutex<Fabric>>, port: u16, queue: usize) -> Self {
        Self { fabric: Arc::clone(fabric), port, queue, uncut: Vec::new(), cut: CutFrame::default() }
    }

    /// Says what the guest behind this port can take unfinished, once that is negotiated. Frames that already wait are
    /// as they were queued.
    pub fn set_guest_caps(&self, caps: Offloads) {
        if let Some(Some(vif)) = lock(&self.fabric).vifs.get_mut(usize::from(self.port)) {
            vif.caps = caps;
        }
    }

    /// Says with which addresses the guest may send. Its own, where that is known, is behind this port from now on, whoever
    /// used it before; of two vifs with one address the later has it.
    pub fn set_sources(&self, sources: Sources) {
        let mut fabric = lock(&self.fabric);
        if let Some(Some(vif)) = fabric.vifs.get_mut(usize::from(self.port)) {
            vif.sources = sources;
            fabric.macs.forget_port(self.port);
            fabric.pin(self.port);
        }
    }

    /// What went through the port, all its queues together.
    pub fn stats(&self) -> SwitchStats {
        let fabric = lock(&self.fabric);
        fabric.vifs.get(usize::from(self.port)).and_then(Option::as_ref).map(|v| v.stats).unwrap_or_default()
    }

    /// Whether frames wait for the guest.
    pub fn has_frames(&self) -> bool {
        let fabric = lock(&self.fabric);
        let vif = fabric.vifs.get(usize::from(self.port)).and_then(Option::as_ref);
        vif.is_some_and(|v| !v.queues[self.queue].is_empty())
    }
}

impl FramePort for SwitchPort {
    /// Everything: the switch finishes it for those who cannot.
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }

    /// Takes all of them; what a slow receiver has no room for is counted at its port.
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        let mut done = 0;
        while done < frames.frames.len() {
            self.uncut.clear();
            done = lock(&self.fabric).forward(self.port, frames, done, &mut self.uncut);
            if !self.uncut.is_empty() {
                let (frame, offload) = (frames.frame(done - 1), frames.frames[done - 1].offload);
                let cut = self.cut.cut(frame, offload).is_ok().then_some(&self.cut);
                lock(&self.fabric).deliver_cut(&self.uncut, frame, cut);
            }
        }
        frames.frames.len()
    }

    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let mut fabric = lock(&self.fabric);
        match fabric.vifs.get_mut(usize::from(self.port)) {
            Some(Some(vif)) => vif.queues[self.queue].pop_into(into),
            _ => 0,
        }
    }

    fn drops(&self) -> Vec<PortDrop> {
        let stats = self.stats();
        let drop = |dir, reason, frames| PortDrop { dir, reason, frames };
        vec![
            drop("tx", "bad_frame", stats.bad_frames),
            drop("tx", "forged_source", stats.forged),
            drop("tx", "gso_to_group", stats.gso_to_group),
            drop("rx", "queue_full", stats.rx_overflow),
            drop("rx", "unfinishable", stats.rx_unfinishable),
        ]
    }

    fn held(&self) -> usize {
        let fabric = lock(&self.fabric);
        let vif = fabric.vifs.get(usize::from(self.port)).and_then(Option::as_ref);
        vif.map_or(0, |v| v.queues[self.queue].len())
    }

    /// Frames that already wait stay where they are.
    fn steer(&mut self, by: Option<Arc<dyn Steering>>) {
        if let Some(Some(vif)) = lock(&self.fabric).vifs.get_mut(usize::from(self.port)) {
            vif.steering = by;
        }
    }
}

impl Drop for SwitchPort {
    fn drop(&mut self) {
        let mut fabric = lock(&self.fabric);
        let Some(entry) = fabric.vifs.get_mut(usize::from(self.port)) else { return };
        let Some(vif) = entry else { return };
        vif.handles -= 1;
        if vif.handles == 0 {
            let own = entry.take().and_then(|vif| vif.sources.pinned());
            fabric.macs.forget_port(self.port);
            let has_it =
                |v: &Option<Vif>| own.is_some() && v.as_ref().is_some_and(|v| v.sources.pinned() == own);
            if let Some(heir) = fabric.vifs.iter().position(has_it) {
                fabric.pin(heir as u16);
            }
        }
    }
}

#[cfg(test)]
mod tests;
