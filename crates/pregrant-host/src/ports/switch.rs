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
//! others it is finished on its way into the queue. A vif with several queues is one port with several handles; a flow
//! keeps to one of them, to the one that the guest said where it did ([`FramePort::steer`]).
//!
//! A switch belongs to one worker. The lock inside is taken once per burst and never contended there; it makes the
//! handles `Send`, as a port has to be.
//!
//! What a guest may do: forge addresses (see [`SwitchPort::pin`]; the table is bounded per port), send to everybody, send
//! noise. It costs others no more than their own queue's room.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pregrant::net::headers::{IpHeaders, IpVersion, MacAddr, PROTOCOL_TCP, PROTOCOL_UDP, addresses};
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads, PortDrop, Steering};

use super::mac_table::MacTable;
use super::queue::FrameQueue;

/// Octets that may wait in each queue to a guest.
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
    /// Sources that were not believed: pinned to another port, or the port's share of the table is used up.
    pub not_learnt: u64,
    /// Frames queued for the guest.
    pub rx_frames: u64,
    /// Frames for the guest that found its queue full.
    pub rx_overflow: u64,
    /// Frames for the guest that needed a checksum or segmentation which their headers do not allow.
    pub rx_unfinishable: u64,
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

    fn deliver(&mut self, port: u16, frame: &[u8], offload: Offload) {
        let Some(Some(vif)) = self.vifs.get_mut(usize::from(port)) else { return };
        let queue = match (vif.queues.len(), &vif.steering) {
            (1, _) => 0,
            (n, Some(steering)) => steering.queue_of(frame) % n,
            (n, None) => flow_hash(frame) as usize % n,
        };
        let done = vif.queues[queue].push_finished(frame, offload, vif.caps);
        vif.stats.rx_frames += u64::from(done.frames);
        vif.stats.rx_overflow += u64::from(done.overflow);
        vif.stats.rx_unfinishable += u64::from(done.unfinishable);
    }

    fn forward(&mut self, from: u16, frames: &Burst<'_>) {
        let mut stats = SwitchStats::default();
        // A burst is mostly one conversation: the table is asked when an address differs from the last frame's.
        let mut last: Option<(MacAddr, MacAddr, Way)> = None;
        for (frame, offload) in frames.iter() {
            stats.tx_frames += 1;
            let Some((dst, src)) = addresses(frame) else {
                stats.bad_frames += 1;
                continue;
            };
            let way = match last {
                Some((d, s, way)) if d == dst && s == src => way,
                _ => {
                    if src.is_group() || src.is_zero() {
                        stats.bad_frames += 1;
                        continue;
                    }
                    if !self.macs.learn(src, from, self.now_ns) {
                        stats.not_learnt += 1;
                    }
                    let way = self.way(from, dst);
                    last = Some((dst, src, way));
                    way
                }
            };
            match way {
                Way::To(port) => self.deliver(port, frame, offload),
                Way::Nowhere => {}
                Way::All => {
                    stats.flooded += 1;
                    for port in 0..self.vifs.len() as u16 {
                        if port != from {
                            self.deliver(port, frame, offload);
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
        }
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
        Ok(SwitchPort { fabric: Arc::clone(&self.fabric), port, queue: 0 })
    }

    /// A port for a vif with `queues` queues, one handle for each.
    pub fn add_multi_queue_port(&self, queues: usize, caps: Offloads) -> Result<Vec<SwitchPort>, SwitchFull> {
        if queues == 0 {
            return Ok(Vec::new());
        }
        let port = self.add(queues, caps)?;
        let handle = |queue| SwitchPort { fabric: Arc::clone(&self.fabric), port, queue };
        Ok((0..queues).map(handle).collect())
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
}

impl SwitchPort {
    /// Says what the guest behind this port can take unfinished, once that is negotiated. Frames that already wait are
    /// as they were queued.
    pub fn set_guest_caps(&self, caps: Offloads) {
        if let Some(Some(vif)) = lock(&self.fabric).vifs.get_mut(usize::from(self.port)) {
            vif.caps = caps;
        }
    }

    /// Ties an address to this port: frames to it come here, whoever else uses it as a source.
    pub fn pin(&self, mac: MacAddr) {
        lock(&self.fabric).macs.pin(mac, self.port);
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
        lock(&self.fabric).forward(self.port, frames);
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
            *entry = None;
            fabric.macs.forget_port(self.port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant::net::checksum;

    const NONE: Offload = Offload { csum_blank: false, csum_ok: false, gso_type: 0, gso_size: 0 };
    const ALL: Offloads = Offloads { csum: true, gso: true };

    fn mac(n: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, n])
    }

    fn frame(dst: MacAddr, src: MacAddr) -> Vec<u8> {
        let mut f = vec![0u8; 60];
        f[..6].copy_from_slice(&dst.0);
        f[6..12].copy_from_slice(&src.0);
        f[12..14].copy_from_slice(&[0x88, 0xB5]);
        f
    }

    fn send(port: &mut SwitchPort, frame: &[u8], offload: Offload) {
        let mut arena = Arena::new();
        assert!(arena.push(frame, offload));
        assert_eq!(port.tx_burst(&arena.burst()), 1);
    }

    fn received(port: &mut SwitchPort) -> Vec<(Vec<u8>, Offload)> {
        let mut arena = Arena::new();
        let n = port.rx_burst(&mut arena);
        let got: Vec<_> = arena.burst().iter().map(|(f, o)| (f.to_vec(), o)).collect();
        assert_eq!(got.len(), n);
        got
    }

    fn three() -> (Switch, Vec<SwitchPort>) {
        let switch = Switch::new();
        let ports = (0..3).map(|_| switch.add_port(ALL).unwrap()).collect();
        (switch, ports)
    }

    #[test]
    fn unknown_floods_known_does_not_and_nothing_returns() {
        let (_switch, mut p) = three();
        send(&mut p[0], &frame(mac(2), mac(1)), NONE);
        let counts = |p: &mut Vec<SwitchPort>| p.iter_mut().map(|p| received(p).len()).collect::<Vec<_>>();
        assert_eq!(counts(&mut p), [0, 1, 1]);
        send(&mut p[1], &frame(mac(1), mac(2)), NONE);
        assert_eq!(counts(&mut p), [1, 0, 0]);
        send(&mut p[0], &frame(mac(2), mac(1)), NONE);
        assert_eq!(counts(&mut p), [0, 1, 0]);
        send(&mut p[0], &frame(MacAddr::BROADCAST, mac(1)), NONE);
        send(&mut p[0], &frame(MacAddr([1, 0, 0x5E, 0, 0, 9]), mac(1)), NONE);
        assert_eq!(counts(&mut p), [0, 2, 2]);
        // To a station behind the same port: already there.
        send(&mut p[0], &frame(mac(1), mac(7)), NONE);
        assert_eq!(counts(&mut p), [0, 0, 0]);
        assert_eq!(p[0].stats().tx_frames, 5);
    }

    #[test]
    fn a_station_moves_and_ages() {
        let (switch, mut p) = three();
        send(&mut p[0], &frame(MacAddr::BROADCAST, mac(1)), NONE);
        send(&mut p[1], &frame(MacAddr::BROADCAST, mac(1)), NONE);
        p.iter_mut().for_each(|p| drop(received(p)));
        send(&mut p[2], &frame(mac(1), mac(3)), NONE);
        assert_eq!((received(&mut p[0]).len(), received(&mut p[1]).len()), (0, 1));
        switch.set_now(super::super::mac_table::AGE_NS + 1);
        assert_eq!(switch.known_addresses(), 0);
        send(&mut p[2], &frame(mac(1), mac(3)), NONE);
        assert_eq!((received(&mut p[0]).len(), received(&mut p[1]).len()), (1, 1));
    }

    #[test]
    fn a_forged_source_does_not_take_a_pinned_address() {
        let (_switch, mut p) = three();
        p[0].pin(mac(1));
        send(&mut p[1], &frame(MacAddr::BROADCAST, mac(1)), NONE);
        p.iter_mut().for_each(|p| drop(received(p)));
        send(&mut p[2], &frame(mac(1), mac(3)), NONE);
        assert_eq!((received(&mut p[0]).len(), received(&mut p[1]).len()), (1, 0));
        assert_eq!(p[1].stats().not_learnt, 1);
    }

    #[test]
    fn bad_frames_go_nowhere() {
        let (switch, mut p) = three();
        send(&mut p[0], &frame(mac(2), MacAddr([3, 0, 0, 0, 0, 1])), NONE);
        send(&mut p[0], &frame(mac(2), MacAddr([0; 6])), NONE);
        send(&mut p[0], &[1, 2, 3], NONE);
        assert_eq!(p[0].stats().bad_frames, 3);
        assert_eq!((received(&mut p[1]).len(), switch.known_addresses()), (0, 0));
    }

    #[test]
    fn a_slow_guest_loses_frames_and_others_do_not() {
        let (_switch, mut p) = three();
        let mut sent = 0u64;
        let big = {
            let mut f = frame(MacAddr::BROADCAST, mac(1));
            f.resize(1500, 0);
            f
        };
        let mut got = 0;
        while p[1].stats().rx_overflow == 0 {
            send(&mut p[0], &big, NONE);
            sent += 1;
            got += received(&mut p[2]).len() as u64;
        }
        assert_eq!(got, sent);
        assert_eq!(p[2].stats().rx_overflow, 0);
        assert_eq!(p[1].stats().rx_frames, sent - 1);
        assert!(sent as usize * 1500 > QUEUE_BYTES / 2 && sent as usize * 1500 < QUEUE_BYTES * 2);
    }

    #[test]
    fn a_port_that_leaves_takes_its_addresses_along() {
        let (switch, mut p) = three();
        send(&mut p[2], &frame(MacAddr::BROADCAST, mac(3)), NONE);
        assert_eq!(switch.known_addresses(), 1);
        drop(p.pop());
        assert_eq!(switch.known_addresses(), 0);
        let again = switch.add_port(ALL).unwrap();
        assert_eq!(again.port, 2);
        assert!(!again.has_frames());
    }

    #[test]
    fn the_number_of_ports_is_bounded() {
        let switch = Switch::new();
        let held: Vec<_> = (0..MAX_PORTS).map(|_| switch.add_port(ALL).unwrap()).collect();
        assert_eq!(switch.add_port(ALL).err(), Some(SwitchFull));
        drop(held);
        assert!(switch.add_port(ALL).is_ok());
    }

    /// A UDP datagram with a finished checksum, and a TCP segment of 3000 octets.
    fn ip_frame(protocol: u8, l4: &[u8]) -> Vec<u8> {
        let mut f = frame(MacAddr::BROADCAST, mac(1));
        f.truncate(12);
        f.extend([0x08, 0, 0x45, 0]);
        f.extend((20 + l4.len() as u16).to_be_bytes());
        f.extend([0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        f.extend(l4);
        checksum::fill(&mut f).unwrap();
        f
    }

    #[test]
    fn unfinished_work_is_kept_or_done_as_the_receiver_can() {
        let switch = Switch::new();
        let mut from = switch.add_port(ALL).unwrap();
        let mut able = switch.add_port(ALL).unwrap();
        let mut plain = switch.add_port(Offloads::default()).unwrap();

        let finished = ip_frame(17, &[0, 1, 0, 2, 0, 12, 0, 0, 1, 2, 3, 4]);
        let mut blank = finished.clone();
        checksum::make_blank(&mut blank).unwrap();
        let offload = Offload { csum_blank: true, csum_ok: true, ..NONE };
        send(&mut from, &blank, offload);
        assert_eq!(received(&mut able), [(blank, offload)]);
        assert_eq!(received(&mut plain), [(finished, Offload { csum_ok: true, ..NONE })]);

        let mut tcp = vec![0u8; 3020];
        tcp[12] = 0x50;
        let mut large = ip_frame(6, &tcp);
        checksum::make_blank(&mut large).unwrap();
        let offload = Offload { csum_blank: true, csum_ok: true, gso_type: 1, gso_size: 1000 };
        send(&mut from, &large, offload);
        assert_eq!(received(&mut able), [(large, offload)]);
        let cut = received(&mut plain);
        assert_eq!(cut.iter().map(|(f, _)| f.len()).collect::<Vec<_>>(), [1054; 3]);
        assert!(cut.iter().all(|(f, o)| checksum::verify(f).unwrap() && o.gso_type == 0));

        // Not a packet whose checksum could be finished.
        send(&mut from, &frame(MacAddr::BROADCAST, mac(1)), Offload { csum_blank: true, ..NONE });
        assert_eq!((received(&mut able).len(), received(&mut plain).len()), (1, 0));
        assert_eq!(plain.stats().rx_unfinishable, 1);
    }

    #[test]
    fn queues_of_one_vif_share_its_frames_by_flow() {
        let switch = Switch::new();
        let mut from = switch.add_port(ALL).unwrap();
        let mut queues = switch.add_multi_queue_port(2, ALL).unwrap();
        // A broadcast from one of its queues is not heard by the other.
        send(&mut queues[0], &frame(MacAddr::BROADCAST, mac(9)), NONE);
        assert_eq!(received(&mut queues[1]).len(), 0);
        let mut seen = [0; 2];
        for port in 0..64u8 {
            let flow = ip_frame(17, &[0, port, 0, 2, 0, 8, 0, 0]);
            send(&mut from, &flow, NONE);
            send(&mut from, &flow, NONE);
            let got = [received(&mut queues[0]).len(), received(&mut queues[1]).len()];
            assert!(got == [2, 0] || got == [0, 2], "flow {port} was spread: {got:?}");
            seen[0] += got[0];
            seen[1] += got[1];
        }
        assert!(seen[0] > 16 && seen[1] > 16, "{seen:?}");
        drop(queues.pop());
        assert_eq!(switch.known_addresses(), 2, "the port lives while one of its queues does");
    }

    /// Each flow in the queue that its port's number names; 9 queues, of which there are 2.
    #[derive(Debug)]
    struct ByPort;

    impl Steering for ByPort {
        fn queue_of(&self, frame: &[u8]) -> usize {
            usize::from(frame[35] % 9)
        }
    }

    #[test]
    fn a_guest_says_which_queue() {
        let switch = Switch::new();
        let mut from = switch.add_port(ALL).unwrap();
        let mut queues = switch.add_multi_queue_port(2, ALL).unwrap();
        queues.iter_mut().for_each(|q| q.steer(Some(Arc::new(ByPort))));
        for port in 0..9u8 {
            send(&mut from, &ip_frame(17, &[0, port, 0, 2, 0, 8, 0, 0]), NONE);
            let got = [received(&mut queues[0]).len(), received(&mut queues[1]).len()];
            assert_eq!(got, if port % 2 == 0 { [1, 0] } else { [0, 1] }, "flow {port}");
        }
        queues.iter_mut().for_each(|q| q.steer(None));
        let flow = ip_frame(17, &[0, 1, 0, 2, 0, 8, 0, 0]);
        send(&mut from, &flow, NONE);
        assert_eq!(received(&mut queues[flow_hash(&flow) as usize % 2]).len(), 1);
    }
}
