//! Moves bursts of frames between one queue of a tap and its descriptor.

use super::cut_frames::{CutFrames, FINISHED};
use super::gather::{self, Frame};
use super::header::{HEADER, header_of, take, take_shared};
use super::inbox::{Inbox, STRIDE};
use super::outbox::Outbox;
use super::tap_log::TapLines;
use super::transport::Transport;
use super::transport_kind::TransportKind;
use super::uring::DEPTH;
use super::vhost::{FEW, Vhost};
use pregrant::net::placed_offload::Taken;
use pregrant::port::{
    Arena, Burst, Completions, DropCounts, FramePort, Offload, Offloads, Payload, PieceMut, PortDrop,
    PortOwner, Room, ZeroCopyBurst,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, Once};

/// One queue of a tap.
#[derive(Debug)]
pub struct TapPort {
    fd: Arc<OwnedFd>,
    transport: Transport,
    inbox: Inbox,
    outbox: Outbox,
    /// The rest of the last frame read, if it had to be segmented. It is older than the inbox's
    /// frames.
    cut: CutFrames,
    /// Buffer for a frame that was read to shared memory and must be completed or segmented.
    private: Vec<u8>,
    drops: Arc<Drops>,
    /// True if an event reports new frames.
    is_notified: bool,
    /// Number of polls to skip, unless an event comes.
    skips: u8,
    /// True if the vhost ring is full, so that frames given to this port wait before it.
    stands: Cell<bool>,
}

/// Number of polls that are skipped after a poll that found nothing: a worker polls once more
/// before it sleeps, and once or twice around each batch from its guest. The number is low because
/// a worker that never sleeps gets its events late.
const SKIPS: u8 = 3;

/// Numbers of dropped frames, over all queues of a tap.
#[derive(Debug, Default)]
pub struct Drops {
    /// Number of frames that were refused because the interface is down, or its queue is full.
    refused: AtomicU64,
    /// Number of frames whose metadata from the guest contradicts the frames' headers.
    malformed: AtomicU64,
    /// Number of frames from the kernel whose virtio header contradicts the frames' headers.
    unreadable: AtomicU64,
}

impl DropCounts for Drops {
    fn read(&self) -> Vec<PortDrop> {
        let drop = |dir, reason, count: &AtomicU64| {
            let frames = count.load(Ordering::Relaxed);
            PortDrop { dir, reason, frames }
        };
        vec![
            drop("tx", "tap_refused", &self.refused),
            drop("tx", "bad_headers", &self.malformed),
            drop("rx", "bad_headers", &self.unreadable),
        ]
    }
}

/// Ensures that the end of io_uring is logged only once.
static CEASED: Once = Once::new();

impl TapPort {
    /// A port on this descriptor, which must be non-blocking.
    pub(super) fn new(
        fd: Arc<OwnedFd>,
        drops: Arc<Drops>,
        way: TransportKind,
        lines: &Arc<TapLines>,
    ) -> Self {
        let transport = way.transport(&fd, lines);
        Self {
            fd,
            transport,
            inbox: Inbox::new(),
            outbox: Outbox::new(),
            cut: CutFrames::default(),
            private: Vec::new(),
            drops,
            is_notified: false,
            skips: 0,
            stands: Cell::new(false),
        }
    }

    /// Returns the transport that moves the port's bursts.
    pub fn way(&self) -> TransportKind {
        match &self.transport {
            Transport::Vhost(_) => TransportKind::Vhost,
            Transport::Ring(_) => TransportKind::Burst,
            Transport::Calls => TransportKind::Frame,
        }
    }

    /// Returns vhost-net, if it should send this many frames. None: they are written from here.
    fn vhost_for(&self, nr_frames: usize) -> Option<MutexGuard<'_, Vhost>> {
        let mut vhost = self.transport.vhost()?.lock();
        (vhost.is_up() && (!vhost.is_asleep() || nr_frames > FEW)).then_some(vhost)
    }

    /// Called when io_uring failed: a system call is used for each frame from now on.
    fn without_ring(&mut self, e: &io::Error) {
        self.transport = Transport::Calls;
        // LOG: once per process.
        CEASED.call_once(|| {
            log::info!("tap: io_uring failed ({e}); using one system call per frame from now on")
        });
    }

    /// Writes the frames of the outbox, in order. Returns how many the kernel refused.
    fn flush(&mut self) -> usize {
        let refused = |frame: Frame<'_>| usize::from(frame.write(self.fd.as_fd()).is_err());
        let frames = self.outbox.iter();
        let total = match self.transport.ring().filter(|_| frames.len() > 1) {
            None => frames.map(refused).sum(),
            Some(ring) => {
                let written = ring.write(self.fd.as_fd(), frames);
                let total = ring.done().iter().filter(|d| d.result.is_err()).count();
                match written {
                    Ok(()) => total,
                    Err(e) => {
                        let mut left = [true; DEPTH];
                        ring.done().iter().for_each(|d| left[d.number] = false);
                        let left = self.outbox.iter().zip(left).filter(|(_, left)| *left);
                        let total = total + left.map(|(frame, _)| refused(frame)).sum::<usize>();
                        self.without_ring(&e);
                        total
                    }
                }
            }
        };
        self.outbox.clear();
        total
    }

    /// Writes a whole frame after those before it. Returns how many frames were refused meanwhile.
    #[inline(always)]
    fn put(&mut self, header: &[u8; HEADER], frame: &[u8]) -> usize {
        if self.outbox.put(header, frame) {
            return 0;
        }
        let mut refused = self.flush();
        if !self.outbox.put(header, frame) {
            let pieces = [IoSlice::new(header), IoSlice::new(frame)];
            refused += usize::from(rustix::io::writev(&self.fd, &pieces).is_err());
        }
        refused
    }

    fn count(&self, malformed: u64, refused: usize) {
        let refused = refused + self.transport.vhost().map_or(0, |shared| shared.refused());
        self.drops.malformed.fetch_add(malformed, Ordering::Relaxed);
        self.drops.refused.fetch_add(refused as u64, Ordering::Relaxed);
    }

    /// Reads up to `n` frames. Ok: there may be more; otherwise the error of the last read.
    fn read(&mut self, n: usize) -> Result<(), Errno> {
        let room = self.inbox.room(n);
        let read = match self.transport.ring() {
            Some(ring) if n > 1 => {
                let read = ring.read(self.fd.as_fd(), room, STRIDE);
                for done in ring.done() {
                    if let Ok(len) = done.result {
                        self.inbox.put(done.number, len);
                    }
                }
                // An earlier read may have been too early to find a frame.
                let ended = ring.done().last().and_then(|last| last.result.err());
                if let Err(e) = read {
                    self.without_ring(&e);
                }
                ended.map_or(Ok(()), |e| Err(Errno::from_raw_os_error(e)))
            }
            _ => match rustix::io::read(&self.fd, room) {
                Ok(len) => {
                    self.inbox.put(0, len);
                    Ok(())
                }
                Err(e) => Err(e),
            },
        };
        self.inbox.learn(n);
        read
    }

    /// Handles the error of a read. If it means that there is no frame, and none waits here, the
    /// next frame will cause an event.
    fn ended(&mut self, with: Errno) {
        let is_empty =
            matches!(with, Errno::AGAIN | Errno::CANCELED) && self.inbox.len() + self.cut.len() == 0;
        self.skips = if self.is_notified && is_empty { SKIPS } else { 0 };
    }

    /// Reads a frame to its final place. None: there is no room for that.
    fn read_in_place(&mut self, into: &mut Arena) -> Option<Result<(), Errno>> {
        let room = into.free_to_read()?;
        let mut header = [0; HEADER];
        let read = rustix::io::readv(&self.fd, &mut [IoSliceMut::new(&mut header), IoSliceMut::new(room)]);
        let read = match read {
            Ok(read) => read,
            Err(e) => return Some(Err(e)),
        };
        #[cfg(test)]
        tests::IN_PLACE.with(|n| n.set(n.get() + 1));
        self.inbox.passed_by(read);
        let Some(frame) = room.get_mut(..read.saturating_sub(HEADER)).filter(|frame| !frame.is_empty())
        else {
            return Some(Ok(()));
        };
        match take(&mut header, frame) {
            Some(Taken::Frame(offload)) => {
                let len = frame.len();
                into.came(len, offload);
            }
            Some(Taken::Uncut(offload)) if self.cut.cut(frame, offload).is_ok() => {}
            _ => self.drops.unreadable(1),
        }
        Some(Ok(()))
    }

    /// Reads the next frame to `room`, which holds the longest frame. None: there is no frame. This
    /// is for a port that reads all of its frames in this manner, with [one system call
    /// each](TransportKind::Frame).
    pub fn read_to(&mut self, room: &PieceMut<'_>) -> Option<(usize, Offload)> {
        loop {
            if let Some(frame) = self.cut.pop() {
                room.copy_in(frame);
                return Some((frame.len(), FINISHED));
            }
            let mut header = [0; HEADER];
            let len = match gather::read(self.fd.as_fd(), &mut header, room) {
                Ok(read) => read.saturating_sub(HEADER),
                Err(e) => {
                    self.ended(e);
                    return None;
                }
            };
            if len == 0 {
                continue;
            }
            match take_shared(&header, room, len, &mut self.private) {
                Some(Taken::Frame(offload)) => return Some((len, offload)),
                Some(Taken::Uncut(offload)) if self.cut.cut(&self.private, offload).is_ok() => {}
                _ => self.drops.unreadable(1),
            }
        }
    }

    /// Moves frames that were read while there is room. True: none waits any more.
    fn unload(&mut self, into: &mut Arena) -> bool {
        while self.cut.unload(into) {
            let Some(read) = self.inbox.oldest() else { return true };
            if into.fits(read.len().saturating_sub(HEADER)) == 0 {
                return false;
            }
            let parts = read.split_first_chunk_mut::<HEADER>().filter(|(_, frame)| !frame.is_empty());
            if let Some((header, frame)) = parts {
                match take(header, frame) {
                    Some(Taken::Frame(offload)) if !into.push(frame, offload) => return false,
                    Some(Taken::Frame(_)) => {}
                    Some(Taken::Uncut(offload)) if self.cut.cut(frame, offload).is_ok() => {}
                    _ => self.drops.unreadable(1),
                }
            }
            self.inbox.pop();
        }
        false
    }
}

impl Drops {
    fn unreadable(&self, frames: u64) {
        self.unreadable.fetch_add(frames, Ordering::Relaxed);
    }
}

impl FramePort for TapPort {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }

    fn room(&mut self) -> Room {
        if let (true, Some(shared)) = (self.stands.get(), self.transport.vhost()) {
            let mut vhost = shared.lock();
            let refused = vhost.go_on();
            self.stands.set(vhost.stands());
            drop(vhost);
            self.count(0, refused);
        }
        if self.stands.get() { Room::UNKNOWN } else { Room::Now }
    }

    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        let (mut malformed, mut refused) = (0, 0);
        if let Some(mut vhost) = self.vhost_for(frames.frames.len()) {
            for (frame, offload) in frames.iter() {
                match header_of(frame, frame.len(), offload) {
                    Some(header) => refused += vhost.send(&header, frame),
                    None => malformed += 1,
                }
            }
            vhost.publish();
            self.stands.set(vhost.stands());
            drop(vhost);
            self.count(malformed, refused);
            return frames.frames.len();
        }
        for (frame, offload) in frames.iter() {
            let Some(header) = header_of(frame, frame.len(), offload) else {
                malformed += 1;
                continue;
            };
            refused += self.put(&header, frame);
        }
        refused += self.flush();
        self.count(malformed, refused);
        frames.frames.len()
    }

    fn payload(&self) -> Payload {
        Payload::Named
    }

    fn tx_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) -> usize {
        let (mut malformed, mut refused) = (0, 0);
        frames.map_payload();
        if let (Some(mut vhost), Some(completions)) =
            (self.vhost_for(frames.len()), self.transport.vhost().cloned())
        {
            let completions: Arc<dyn Completions> = completions;
            for i in 0..frames.len() {
                let (len, offload) = (frames.len_of(i), frames.offload(i));
                if len == 0 {
                    continue;
                }
                let Some(header) = header_of(frames.head(i), len, offload) else {
                    malformed += 1;
                    continue;
                };
                if let Some(token) = frames.hold(i, &completions) {
                    // SAFETY: what is kept stays mapped until its token is completed.
                    refused +=
                        unsafe { vhost.send_zero_copy(&header, frames.head(i), || frames.pieces(i), token) };
                    continue;
                }
                frames.make_whole(i);
                if frames.len_of(i) != 0 {
                    refused += vhost.send(&header, frames.head(i));
                }
            }
            vhost.publish();
            self.stands.set(vhost.stands());
            drop(vhost);
            self.count(malformed, refused);
            return frames.len();
        }
        for i in 0..frames.len() {
            let (head, len) = (frames.head(i), frames.len_of(i));
            if len == 0 {
                continue;
            }
            let Some(header) = header_of(head, len, frames.offload(i)) else {
                malformed += 1;
                continue;
            };
            // A long head with private pages before it is rare, and not worth a third kind of
            // frame.
            if !frames.is_whole(i) && !Outbox::takes(head) {
                frames.make_whole(i);
            }
            let head = frames.head(i);
            if frames.is_whole(i) {
                if !head.is_empty() {
                    refused += self.put(&header, head);
                }
                continue;
            }
            // SAFETY: the pieces are lent for longer than this function runs, and at its end the
            // outbox is empty.
            if !unsafe { self.outbox.put_zero_copy(&header, head, frames.pieces(i)) } {
                refused += self.flush();
                // SAFETY: as above.
                let put = unsafe { self.outbox.put_zero_copy(&header, head, frames.pieces(i)) };
                refused += usize::from(!put);
            }
        }
        refused += self.flush();
        self.count(malformed, refused);
        frames.len()
    }

    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let before = into.len();
        if let Some(shared) = self.transport.vhost() {
            let mut vhost = shared.lock();
            if vhost.is_up() {
                let (malformed, refused) = vhost.receive(into, &mut self.cut);
                drop(vhost);
                self.drops.unreadable(malformed);
                self.count(0, refused);
                return into.len() - before;
            }
        }
        // While the vhost rings are down, their descriptor does not report frames that are read
        // here.
        if self.skips > 0 && self.transport.vhost().is_none() {
            self.skips -= 1;
            return 0;
        }
        self.inbox.begin();
        loop {
            if !self.unload(into) || !into.has_room() {
                break;
            }
            let in_place = if self.inbox.is_long() { self.read_in_place(into) } else { None };
            let n = if self.transport.ring().is_some() { self.inbox.wanted(into) } else { 1 };
            if let Err(e) = in_place.unwrap_or_else(|| self.read(n)) {
                self.unload(into);
                self.ended(e);
                break;
            }
        }
        into.len() - before
    }

    fn owned_by(&mut self, _owner: &PortOwner) {
        // The new worker may get no event for frames that are there already.
        (self.is_notified, self.skips) = (false, 0);
    }

    fn became_readable(&mut self) {
        (self.is_notified, self.skips) = (true, 0);
    }

    fn drop_counts(&self) -> Option<Arc<dyn DropCounts>> {
        Some(Arc::clone(&self.drops) as Arc<dyn DropCounts>)
    }

    fn held(&self) -> usize {
        self.cut.len() + self.inbox.len() + self.transport.vhost().map_or(0, |vhost| vhost.lock().held())
    }
}

/// The descriptor that is readable when there are frames for the guest.
impl AsFd for TapPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.vhost().map_or(self.fd.as_fd(), |vhost| vhost.readable())
    }
}

#[cfg(test)]
mod tests {
    use super::super::uring::Ring;
    use super::super::uring::tests::{cut, ends, ring};
    use super::*;

    thread_local! {
        /// Number of frames that were read to their final place.
        pub(super) static IN_PLACE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    fn port(fd: OwnedFd, ring: Option<Ring>) -> TapPort {
        TapPort {
            fd: Arc::new(fd),
            transport: ring.map_or(Transport::Calls, |ring| Transport::Ring(Box::new(ring))),
            inbox: Inbox::new(),
            outbox: Outbox::new(),
            cut: CutFrames::default(),
            private: Vec::new(),
            drops: Arc::default(),
            is_notified: false,
            skips: 0,
            stands: Cell::new(false),
        }
    }

    fn lost(port: &TapPort) -> Vec<(&'static str, &'static str, u64)> {
        let drops = port.drops().into_iter().filter(|drop| drop.frames > 0);
        drops.map(|drop| (drop.dir, drop.reason, drop.frames)).collect()
    }

    /// A frame from the kernel with an impossible header is not delivered to the guest, and is
    /// counted as RX.
    #[test]
    fn a_bad_header_of_the_kernels_counts_as_rx() {
        for with_ring in [true, false] {
            let (fd, peer_end) = ends();
            let mut port = port(fd, if with_ring { ring(true) } else { None });
            let mut arena = Arena::new();
            // A kind of segment that was not enabled; a checksum outside of the frame; a large
            // segment in a tunnel.
            for bad in [
                [1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                [1, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0],
                [1, 1, 0, 0, 200, 0, 84, 0, 16, 0, 0, 0],
            ] {
                rustix::io::write(&peer_end, &[&bad[..], &[0; 300]].concat()).unwrap();
            }
            rustix::io::write(&peer_end, &[0; HEADER + 60]).unwrap();
            while arena.is_empty() {
                port.rx_burst(&mut arena);
            }
            assert_eq!((arena.len(), arena.desc(0).len), (1, 60));
            assert_eq!(lost(&port), [("rx", "bad_headers", 3)]);
        }
    }

    #[test]
    fn frames_go_on_one_by_one_where_io_uring_ceases_to_work() {
        let Some(ring) = ring(true) else { return };
        cut(&ring);
        let (fd, peer_end) = ends();
        let mut port = port(fd, Some(ring));
        let mut arena = Arena::new();
        for i in 0..9 {
            assert!(arena.push(&[i; 60], Offload::default()));
        }
        assert_eq!(port.tx_burst(&arena.burst()), 9);
        let mut read = [0; 100];
        for i in 0..9 {
            assert_eq!(rustix::io::read(&peer_end, &mut read), Ok(HEADER + 60));
            assert!(read[HEADER..HEADER + 60] == [i; 60] && read[..HEADER] == [0; HEADER]);
        }
        assert!(rustix::io::read(&peer_end, &mut read).is_err(), "a frame came twice");
        assert!(port.drops().iter().all(|d| d.frames == 0));
        assert!(port.transport.ring().is_none());
    }

    #[test]
    fn long_frames_are_read_to_where_they_stay_and_others_as_before() {
        for with_ring in [true, false] {
            let (fd, peer_end) = ends();
            let ring = if with_ring { ring(true) } else { None };
            let mut port = port(fd, ring);
            let length = |i: usize| [60, 40_000, 65_535, 60, 20_000, 1514, 16_385, 50_000][i % 8] + i / 8;
            let frame = |i: usize| (0..length(i)).map(|k| (i * 31 + k / 7) as u8).collect::<Vec<u8>>();
            let (mut arena, mut came) = (Arena::new(), 0);
            IN_PLACE.set(0);
            for burst in 0..40 {
                for i in came..came + burst % 4 {
                    // The kernel's header is part of what is read; 12 bytes of header alone are no
                    // frame.
                    let header = [2 * (i % 2) as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                    rustix::io::write(&peer_end, &[&header[..], &frame(i)[..length(i).min(65_535)]].concat())
                        .unwrap();
                    if i % 5 == 0 {
                        rustix::io::write(&peer_end, &header).unwrap();
                    }
                }
                let due = came + burst % 4;
                loop {
                    arena.clear();
                    if port.rx_burst(&mut arena) == 0 {
                        break;
                    }
                    for (bytes, offload) in arena.burst().iter() {
                        assert!(bytes == &frame(came)[..length(came).min(65_535)], "frame {came}");
                        assert_eq!(offload.csum_ok, came % 2 == 1, "frame {came}");
                        came += 1;
                    }
                }
                assert_eq!((came, port.held()), (due, 0));
            }
            assert!(IN_PLACE.get() > 20 && port.drops().iter().all(|drop| drop.frames == 0));
        }
    }

    /// An invalid frame leaves nothing in the shared memory, and a bad header is counted.
    #[test]
    fn frames_are_read_to_memory_that_others_read() {
        let (fd, peer_end) = ends();
        let mut port = port(fd, None);
        let mut memory = vec![0; 1 << 16];
        let send = |header: [u8; HEADER], len: usize| {
            let frame: Vec<u8> = (0..len).map(|k| (k * 7 + len) as u8).collect();
            rustix::io::write(&peer_end, &[&header[..], &frame].concat()).unwrap();
            frame
        };
        let valid = [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let no_kind = [1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(port.read_to(&PieceMut::from(&mut memory[..])).is_none());
        for len in [60, 1514, 65_535] {
            send(valid, 0);
            send(no_kind, 100);
            let sent = send(valid, len);
            let (n, offload) = port.read_to(&PieceMut::from(&mut memory[..])).unwrap();
            assert!(n == len && offload.csum_ok && memory[..len] == sent);
            assert!(port.read_to(&PieceMut::from(&mut memory[..])).is_none());
        }
        assert_eq!(lost(&port), [("rx", "bad_headers", 3)]);
    }

    /// A port with an event may skip polls. It must never miss what an event reported, nor go long
    /// without a poll.
    #[test]
    fn a_port_that_is_notified_checks_less_often() {
        let (fd, peer_end) = ends();
        let mut port = port(fd, None);
        let mut arena = Arena::new();
        let send = || rustix::io::write(&peer_end, &[0; HEADER + 60]).unwrap();
        let mut calls_until_it_comes = |port: &mut TapPort| {
            arena.clear();
            (1..).find(|_| port.rx_burst(&mut arena) == 1).unwrap()
        };
        // No event reports it.
        for _ in 0..9 {
            assert_eq!(port.rx_burst(&mut Arena::new()), 0);
            send();
            assert_eq!(calls_until_it_comes(&mut port), 1);
        }
        for _ in 0..9 {
            assert_eq!(port.rx_burst(&mut Arena::new()), 0);
            send();
            port.became_readable();
            assert_eq!(calls_until_it_comes(&mut port), 1);
            // It found nothing after that one, and gets no event for the next.
            send();
            assert_eq!(calls_until_it_comes(&mut port), 1 + usize::from(SKIPS));
        }
    }

    /// Frames of a large read that do not fit in the arena are returned by the next call, whatever
    /// the last read returned.
    #[test]
    fn frames_that_wait_in_the_port_are_not_skipped() {
        let Some(with) = ring(true) else { return };
        let (fd, peer_end) = ends();
        let mut port = port(fd, Some(with));
        let mut arena = Arena::new();
        let send = |len: usize| assert!(rustix::io::write(&peer_end, &vec![0; HEADER + len]).is_ok());
        let mut take = |port: &mut TapPort, others: usize| {
            arena.clear();
            (0..others).for_each(|_| assert!(arena.push(&[0; 60_000], Offload::default())));
            port.rx_burst(&mut arena)
        };
        // Short frames in quick succession make calls ask for many.
        for _ in 0..6 {
            (0..20).for_each(|_| send(60));
            port.became_readable();
            assert_eq!(take(&mut port, 0), 20);
        }
        // More bytes than fit in the arena, so that some frames wait.
        send(60);
        (0..3).for_each(|_| send(50_000));
        port.became_readable();
        assert_eq!((take(&mut port, 3), port.held()), (2, 2));
        assert_eq!((take(&mut port, 0), port.held()), (2, 0));
    }
}
