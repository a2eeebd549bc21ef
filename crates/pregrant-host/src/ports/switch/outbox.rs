//! The sending side of one worker: its memory, and a mailbox for each queue that it had frames for.
//!
//! ```text
//!   a burst:  plan    for each frame: learn the source, find the destination, choose the queue
//!             move    the queue that most of the memory is for gets the memory, if the burst came in memory of ours
//!             copy    all others get copies, into mail that is open until the burst is done
//!             finish  mail is posted, readers that wait are woken
//! ```
//!
//! A reader that is behind finds larger mail, not more mail: the newest mail that still waits is
//! recalled and filled up, and replaced by four times as much memory when it was too small, up to
//! 64 KiB. So its memory is well filled, however small the bursts are.
//!
//! Memory is charged in full to its receiver, so it is never moved to a queue whose frames take
//! less than half of the burst, or less than a quarter of the memory (long frames start on page
//! boundaries, with gaps between). For such a queue frames are copied, into mail of their size.
//! Memory is never shared by two receivers: each could keep all of it, and write what the other
//! reads.
//!
//! Invariants: an outbox has a lock, which the one worker of its number takes once per burst. Ports
//! that were not given to a worker share an outbox and may wait for one another. Each mailbox has
//! one writer, its outbox. Frames of one flow are in one mailbox, in order; after a port moved to
//! another worker, its frames are in mail that was started later ([`Outbox::seal`]).

use super::fabric::Fabric;
use super::inbox::Inbox;
use super::lent_burst::{Lends, LentBurst};
use super::mail::{Mail, Pool, Refused, size_for};
use super::mailbox::{Reader, Writer};
use super::recent::Recent;
use super::stats::SwitchStats;
use super::vif::{View, Vif};
use crate::ports::segments::CutSegment;
use pregrant::net::headers::{HeaderFault, IpHeaders, MacAddr, addresses};
use pregrant::port::{BURST_FRAMES, Burst, Completions, FrameDesc, Loan, Offload, Offloads, ZeroCopyBurst};
use std::sync::Arc;

/// Largest number of bytes of mail that frames are copied to, except for a larger frame.
const COPIED_BYTES_MAX: usize = 64 * 1024;
/// Largest number of receiving queues of a burst whose shares are tracked. If there are more, each
/// share is small.
const SHARES: usize = 8;

/// A queue of a vif, as the receiver of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Dest {
    port: u16,
    queue: u16,
}

/// The destination of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Destination {
    To(Dest),
    All,
    /// The frame is dropped: it is invalid, or its receiver is behind the port that it comes from.
    Nowhere,
    /// No other port could have the frame's receiver.
    NoPort,
}

/// The number of bytes of a burst that go to one queue.
#[derive(Clone, Copy, Debug)]
struct Share {
    dest: Dest,
    bytes: usize,
}

/// The numbers of bytes of a burst for each receiver, if they are known beforehand.
#[derive(Clone, Copy, Debug, Default)]
struct Shares {
    of: [Option<Share>; SHARES],
    /// Number of bytes that go to all ports.
    all: usize,
}

impl Shares {
    #[inline(always)]
    fn add(&mut self, dest: Dest, bytes: usize) {
        for share in &mut self.of {
            let share = share.get_or_insert(Share { dest, bytes: 0 });
            if share.dest == dest {
                share.bytes += bytes;
                return;
            }
        }
    }

    fn of(&self, dest: Dest) -> usize {
        let own = self.of.iter().flatten().find(|share| share.dest == dest);
        own.map_or(0, |share| share.bytes) + self.all
    }
}

/// A vif as the receiver of frames.
struct To {
    vif: Arc<Vif>,
    /// One entry for each queue, created with the first frame for the queue.
    queues: Vec<Option<Out>>,
    /// The counts of the current burst.
    stats: SwitchStats,
}

/// A queue as the receiver of frames.
struct Out {
    mail: Writer<Box<Mail>>,
    spent: Reader<Box<Mail>>,
    inbox: Arc<Inbox>,
    open: Option<Box<Mail>>,
    /// Number of the newest mail's frames that are counted already: those that it had when it was
    /// recalled or, in a new mail, the first one.
    counted: usize,
    /// The length of the largest frame that still fitted the newest mail when it was posted; 0:
    /// none fitted.
    room: usize,
    /// Smallest size of the next mail, if the newest one still waits.
    next_size: usize,
    touched: bool,
    /// The zero-copy part of the current burst for this queue.
    lent: Option<Arc<LentBurst>>,
}

#[derive(Default)]
pub struct Outbox {
    view: Arc<View>,
    /// Number of vifs.
    nr_vifs: usize,
    version: u64,
    to: Vec<Option<To>>,
    pool: Pool,
    /// The destination of each frame of the current burst.
    ways: Vec<Destination>,
    /// Queues that got a part of the current burst.
    touched: Vec<Dest>,
    /// The queue to which memory was last moved, and which therefore returns some soonest.
    last_moved: Option<Dest>,
}

impl Out {
    fn new(inbox: &Arc<Inbox>) -> Self {
        let (mail, spent) = inbox.open();
        let inbox = Arc::clone(inbox);
        Self { mail, spent, inbox, open: None, counted: 0, room: 0, next_size: 0, touched: false, lent: None }
    }

    /// Collects the mails that were read.
    fn collect(&mut self, pool: &mut Pool) {
        while let Some(mail) = self.spent.take() {
            pool.put(mail);
        }
    }

    /// Copies a frame to mail. `share` is the number of bytes expected for this queue in the burst.
    #[inline(always)]
    fn push(
        &mut self,
        frame: &[u8],
        offload: Offload,
        caps: Offloads,
        share: impl FnOnce() -> usize,
        pool: &mut Pool,
    ) -> Result<(), Refused> {
        match &mut self.open {
            Some(mail) if mail.has_room(frame.len()) => mail.push(frame, offload, caps),
            _ => self.begin(frame.len(), share(), pool)?.push(frame, offload, caps),
        }
    }

    /// Returns mail with room for a frame of `len` bytes.
    #[cold]
    fn begin(&mut self, len: usize, share: usize, pool: &mut Pool) -> Result<&mut Mail, Refused> {
        self.post(pool);
        self.collect(pool);
        if len <= self.room
            && let Some(mail) = self.mail.recall()
        {
            self.counted = mail.len();
            return Ok(self.open.insert(mail));
        }
        if self.inbox.is_closed() || self.mail.is_full() {
            return Err(Refused::Full);
        }
        let least = size_for(len);
        let mut size = size_for(share.min(COPIED_BYTES_MAX)).max(least);
        if !self.mail.is_empty() {
            size = size.max(self.next_size);
        }
        while !self.inbox.charge(size) {
            if size <= least {
                return Err(Refused::Full);
            }
            size /= 2;
        }
        let mut mail = pool.get(size);
        mail.number = self.inbox.next_number();
        self.counted = 1;
        Ok(self.open.insert(mail))
    }

    /// Posts the mail that is being filled.
    fn post(&mut self, pool: &mut Pool) {
        let Some(mail) = self.open.take() else { return };
        if mail.len() == 0 {
            self.inbox.discharge(self.counted, mail.bytes.len());
            return pool.put(mail);
        }
        self.next_size =
            if mail.is_out_of_frames() { 0 } else { (mail.bytes.len() * 4).min(COPIED_BYTES_MAX) };
        self.room = mail.room();
        self.inbox.add(mail.len() - self.counted);
        // There was room when it was started, and only this worker posts.
        drop(self.mail.post(mail));
    }

    /// Ends a burst.
    fn finish(&mut self, pool: &mut Pool) {
        self.touched = false;
        self.post(pool);
        if !self.inbox.wake() {
            while let Some(mail) = self.mail.recall() {
                pool.put(mail);
            }
        }
        // A reader that has stalled since it was asked may not have seen this.
        if let Some(lent) = self.lent.take()
            && !self.inbox.takes_lent()
        {
            lent.keep();
        }
    }
}

impl To {
    fn out(&mut self, dest: Dest, touched: &mut Vec<Dest>) -> Option<&mut Out> {
        let at = usize::from(dest.queue);
        let inbox = self.vif.inboxes.get(at)?;
        let out = self.queues.get_mut(at)?.get_or_insert_with(|| Out::new(inbox));
        if !out.touched {
            out.touched = true;
            touched.push(dest);
        }
        Some(out)
    }

    fn count(&mut self, done: Result<(), Refused>) {
        match done {
            Ok(()) => self.stats.rx_frames += 1,
            Err(Refused::Full) => self.stats.rx_overflow += 1,
            Err(Refused::Unfinishable) => self.stats.rx_unfinishable += 1,
        }
    }
}

/// Returns true if the first bytes of a frame of `len` bytes contain the headers that select the
/// queue of its receiver.
fn has_headers(head: &[u8], len: usize) -> bool {
    match IpHeaders::parse_head(head, len) {
        Ok(headers) => headers.l4_at + 4 <= head.len(),
        Err(fault) => fault == HeaderFault::NotIp,
    }
}

/// True if a reader accepts a frame unchanged. A large segment's checksum is completed after
/// segmentation, so that needs both offloads.
fn is_taken_whole(caps: Offloads, offload: Offload) -> bool {
    offload.gso_type == 0 || caps.gso && caps.csum
}

impl Outbox {
    /// Updates the outbox's list of vifs, if the switch's has changed.
    #[inline(always)]
    fn see(&mut self, fabric: &Fabric) {
        if let Some(view) = fabric.newer_than(&mut self.version) {
            self.refresh(view);
        }
    }

    #[cold]
    fn refresh(&mut self, view: Arc<View>) {
        self.to.resize_with(view.len(), || None);
        for (to, vif) in self.to.iter_mut().zip(&*view) {
            match (&mut *to, vif) {
                (Some(to), Some(vif)) if to.vif.id == vif.id => to.vif = Arc::clone(vif),
                (_, None) => *to = None,
                (_, Some(vif)) => {
                    let queues = vif.inboxes.iter().map(|_| None).collect();
                    *to = Some(To { vif: Arc::clone(vif), queues, stats: SwitchStats::default() });
                }
            }
        }
        self.nr_vifs = view.iter().flatten().count();
        self.view = view;
    }

    /// Returns memory for a batch of this number of bytes.
    pub fn room(&mut self, bytes: usize) -> Box<[u8]> {
        let size = size_for(bytes);
        if !self.pool.has(size)
            && let Some(dest) = self.last_moved
            && let Some(Some(to)) = self.to.get_mut(usize::from(dest.port))
            && let Some(Some(out)) = to.queues.get_mut(usize::from(dest.queue))
        {
            out.collect(&mut self.pool);
        }
        self.pool.get_bytes(size)
    }

    /// Called when a port joins or leaves this worker: no more frames are added to mail that waits.
    /// So the frames of a port that joins are in mail with higher numbers than those that it sent
    /// elsewhere, and the frames of a port that left are never recalled.
    pub fn seal(&mut self) {
        let outs = self.to.iter_mut().flatten().flat_map(|to| to.queues.iter_mut().flatten());
        outs.for_each(|out| out.room = 0);
    }

    /// Forwards a burst of `sender`. `memory` contains its frames if it may be moved to a reader;
    /// the burst's bytes are not examined then.
    pub fn forward(
        &mut self,
        fabric: &Fabric,
        sender: Sender<'_>,
        frames: &Burst<'_>,
        memory: Option<Box<[u8]>>,
    ) {
        self.see(fabric);
        let (mut sender, mut memory) = (sender, memory);
        for descs in frames.frames.chunks(BURST_FRAMES) {
            self.forward_some(fabric, &mut sender, frames.bytes, descs, memory.take());
        }
    }

    #[inline(always)]
    fn forward_some(
        &mut self,
        fabric: &Fabric,
        sender: &mut Sender<'_>,
        bytes: &[u8],
        descs: &[FrameDesc],
        memory: Option<Box<[u8]>>,
    ) {
        let from = sender.port;
        let mut stats = SwitchStats::default();
        let mut ways = std::mem::take(&mut self.ways);
        ways.clear();
        ways.resize(descs.len(), Destination::Nowhere);
        let bytes = memory.as_deref().unwrap_or(bytes);
        let shares = self.plan(fabric, from, bytes, descs, &mut ways, &mut stats);
        let winner = memory.as_ref().and_then(|memory| self.winner(memory.len(), &shares, descs, &ways));
        let winner = winner.filter(|dest| self.may_move(*dest, bytes.len()));
        self.pass(&Copied { from, bytes, shares: &shares, winner }, descs, &ways, sender.cut);
        match (memory, winner) {
            (Some(memory), Some(dest)) => self.hand_over(dest, memory, None, descs, &ways),
            (Some(memory), None) => {
                let unused = self.pool.with(memory);
                self.pool.put(unused);
            }
            (None, _) => {}
        }
        self.ways = ways;
        self.finish(sender, &shares, &stats);
    }

    /// Forwards a zero-copy burst whose heads are in our memory. The queue that most of it is for
    /// gets the memory together with the zero-copy payload; for all other frames the payload is
    /// first copied to its place. Returns how many frames stayed zero-copy.
    ///
    /// No byte is parsed that the guest can still write: each frame is whole, or its head contains
    /// all headers.
    #[inline(never)]
    pub fn forward_lent(
        &mut self,
        fabric: &Fabric,
        sender: Sender<'_>,
        frames: &mut ZeroCopyBurst<'_>,
        lends: &Lends,
        by: &Arc<dyn Completions>,
    ) -> usize {
        let (from, mut sender) = (sender.port, sender);
        self.see(fabric);
        frames.map_payload();
        for i in 0..frames.len() {
            // The headers select the queue.
            if !frames.is_whole(i) && !has_headers(frames.head(i), frames.len_of(i)) {
                frames.make_whole(i);
            }
        }
        let mut stats = SwitchStats::default();
        let mut ways = std::mem::take(&mut self.ways);
        ways.clear();
        ways.resize(frames.len(), Destination::Nowhere);
        let size = frames.bytes().len();
        let shares = self.plan(fabric, from, frames.bytes(), frames.frames(), &mut ways, &mut stats);
        let winner = self.winner(size, &shares, frames.frames(), &ways);
        let winner = winner.filter(|dest| self.may_move(*dest, size));
        let lent_to = winner.and_then(|dest| self.lends_to(dest, lends).map(|caps| (dest, caps)));
        let mut burst = lent_to.map(|_| lends.begin());
        let mut lent = 0;
        for (i, way) in ways.iter_mut().enumerate() {
            if frames.is_whole(i) || matches!(way, Destination::Nowhere | Destination::NoPort) {
                continue;
            }
            let Offload { csum_blank, .. } = frames.offload(i);
            let fits = lent_to
                .is_some_and(|(dest, caps)| *way == Destination::To(dest) && (!csum_blank || caps.csum));
            if let Some(burst) = burst.as_mut().and_then(Arc::get_mut)
                && fits
                && lends.hold(burst, frames, i, by)
            {
                lent += 1;
                continue;
            }
            stats.unlent += 1;
            frames.make_whole(i);
            if frames.len_of(i) == 0 {
                *way = Destination::Nowhere;
            }
        }
        // It is the port's own memory, or the port would not have been asked.
        let memory = frames.move_out().unwrap_or_default();
        let descs = frames.frames();
        self.pass(&Copied { from, bytes: &memory, shares: &shares, winner }, descs, &ways, sender.cut);
        if let Some((Some(Some(to)), n)) =
            lent_to.map(|(dest, _)| (self.to.get_mut(usize::from(dest.port)), lent))
        {
            to.stats.rx_lent += n as u64;
        }
        match winner {
            Some(dest) => {
                let burst = burst.filter(|_| lent > 0).map(|burst| (lends.lend(&burst), burst));
                self.hand_over(dest, memory, burst, descs, &ways);
            }
            None => {
                let unused = self.pool.with(memory);
                self.pool.put(unused);
            }
        }
        self.ways = ways;
        self.finish(&mut sender, &shares, &stats);
        lent
    }

    /// Copies the frames that are not for the winner alone.
    #[inline(always)]
    fn pass(&mut self, of: &Copied<'_>, descs: &[FrameDesc], ways: &[Destination], cut: &mut CutSegment) {
        for (desc, way) in descs.iter().zip(ways) {
            match *way {
                Destination::Nowhere | Destination::NoPort => {}
                Destination::To(dest) if Some(dest) == of.winner => {}
                Destination::To(dest) => self.copy(of, *desc, [dest], cut),
                Destination::All => self.flood(of, *desc, cut),
            }
        }
    }

    /// Finds the destination of each frame, and how much of the burst each queue gets.
    #[inline(always)]
    fn plan(
        &self,
        fabric: &Fabric,
        from: u16,
        bytes: &[u8],
        descs: &[FrameDesc],
        ways: &mut [Destination],
        stats: &mut SwitchStats,
    ) -> Shares {
        let mut shares = Shares::default();
        let Some(Some(own)) = self.to.get(usize::from(from)) else { return shares };
        let sources = own.vif.sources;
        // A burst is mostly one conversation, so the table is only searched when an address differs
        // from the previous frame's.
        let mut last: Option<(MacAddr, MacAddr, Result<&Vif, Destination>, u16)> = None;
        for (desc, way) in descs.iter().zip(ways) {
            let Some(frame) = bytes.get(desc.at as usize..).and_then(|b| b.get(..desc.len as usize)) else {
                continue;
            };
            if frame.is_empty() {
                continue;
            }
            stats.tx_frames += 1;
            let Some((dst, src)) = addresses(frame) else {
                stats.bad_frames += 1;
                continue;
            };
            let (to, port) = match last {
                Some((d, s, to, port)) if d == dst && s == src => (to, port),
                _ => {
                    if !fabric.admit(from, src, sources, stats) {
                        continue;
                    }
                    let (to, port) = self.find(fabric, from, dst);
                    last = Some((dst, src, to, port));
                    (to, port)
                }
            };
            if desc.offload.gso_type != 0 && dst.is_group() {
                stats.gso_to_group += 1;
                continue;
            }
            *way = match to {
                Ok(vif) => Destination::To(Dest { port, queue: vif.queue_of(frame) }),
                Err(way) => way,
            };
            match *way {
                Destination::To(dest) => shares.add(dest, (desc.len as usize).next_multiple_of(64)),
                Destination::All => {
                    stats.flooded += 1;
                    shares.all += (desc.len as usize).next_multiple_of(64);
                }
                Destination::NoPort => stats.no_port += 1,
                Destination::Nowhere => {}
            }
        }
        shares
    }

    fn find(&self, fabric: &Fabric, from: u16, dst: MacAddr) -> (Result<&Vif, Destination>, u16) {
        // The sender's own vif counts as one.
        let all = if self.nr_vifs > 1 { Destination::All } else { Destination::NoPort };
        if dst.is_group() {
            return (Err(all), 0);
        }
        match fabric.macs.find(dst, fabric.now_ns()) {
            Some(port) if port == from => (Err(Destination::Nowhere), 0),
            Some(port) => match self.to.get(usize::from(port)) {
                Some(Some(to)) => (Ok(&*to.vif), port),
                _ => (Err(Destination::NoPort), 0),
            },
            None => (Err(all), 0),
        }
    }

    /// Returns the queue that gets memory of `size` bytes. The frames for that queue have at least
    /// half of the burst's bytes, including gaps, and a quarter of the memory's; and all of them
    /// can be received unchanged.
    fn winner(
        &self,
        size: usize,
        shares: &Shares,
        descs: &[FrameDesc],
        ways: &[Destination],
    ) -> Option<Dest> {
        let (first, last) = (descs.first()?, descs.last()?);
        let burst = (last.at + last.len).saturating_sub(first.at) as usize;
        let least = burst.max(size / 2);
        let dest = shares.of.iter().flatten().find(|share| (share.bytes + shares.all) * 2 >= least)?.dest;
        let caps = self.to.get(usize::from(dest.port))?.as_ref()?.vif.caps;
        let goes_there = |way: Destination| way == Destination::To(dest) || way == Destination::All;
        let mut all = descs.iter().zip(ways).filter(|(_, way)| goes_there(**way));
        all.all(|(desc, _)| is_taken_whole(caps, desc.offload)).then_some(dest)
    }

    /// Charges `size` bytes to a queue, so that the burst's memory can be moved to its reader.
    /// False: there is no room for all of it, but single frames may still fit.
    fn may_move(&mut self, dest: Dest, size: usize) -> bool {
        let Some(Some(to)) = self.to.get_mut(usize::from(dest.port)) else { return false };
        let Some(out) = to.out(dest, &mut self.touched) else { return false };
        out.collect(&mut self.pool);
        !out.inbox.is_closed() && !out.mail.is_full() && out.inbox.charge(size)
    }

    /// Returns the offloads of a queue if it may get a zero-copy burst; otherwise None.
    fn lends_to(&self, dest: Dest, lends: &Lends) -> Option<Offloads> {
        let vif = &self.to.get(usize::from(dest.port))?.as_ref()?.vif;
        let inbox = vif.inboxes.get(usize::from(dest.queue))?;
        (inbox.takes_lent() && lends.has_room()).then_some(vif.caps)
    }

    /// Copies a frame to several queues.
    #[inline(always)]
    fn copy(
        &mut self,
        of: &Copied<'_>,
        desc: FrameDesc,
        dests: impl IntoIterator<Item = Dest>,
        cut: &mut CutSegment,
    ) {
        let frame = &of.bytes[desc.at as usize..][..desc.len as usize];
        let mut is_cut = None;
        for dest in dests {
            let Some(Some(to)) = self.to.get_mut(usize::from(dest.port)) else { continue };
            let caps = to.vif.caps;
            let share = || of.shares.of(dest);
            let Some(out) = to.out(dest, &mut self.touched) else { continue };
            if is_taken_whole(caps, desc.offload) {
                let done = out.push(frame, desc.offload, caps, share, &mut self.pool);
                to.count(done);
                continue;
            }
            // Segment once, however many receivers need it.
            if !*is_cut.get_or_insert_with(|| cut.cut(frame, desc.offload).is_ok()) {
                to.count(Err(Refused::Unfinishable));
                continue;
            }
            let finished = Offload { csum_ok: true, ..Offload::default() };
            let (mut queued, mut overflow) = (0, 0);
            for segment in cut.iter() {
                // Keep the order: after a segment that did not fit, none of the rest is queued.
                if overflow == 0 && out.push(segment, finished, caps, share, &mut self.pool).is_ok() {
                    queued += 1;
                } else {
                    overflow += 1;
                }
            }
            to.stats.rx_frames += queued;
            to.stats.rx_overflow += overflow;
        }
    }

    /// Copies a frame to all queues but its sender's and those that already have it.
    #[cold]
    fn flood(&mut self, of: &Copied<'_>, desc: FrameDesc, cut: &mut CutSegment) {
        let frame = &of.bytes[desc.at as usize..][..desc.len as usize];
        let view = Arc::clone(&self.view);
        let dests = (0..).zip(&*view).filter_map(|(port, vif)| {
            let vif = vif.as_ref().filter(|_| port != of.from)?;
            let dest = Dest { port, queue: vif.queue_of(frame) };
            (Some(dest) != of.winner).then_some(dest)
        });
        self.copy(of, desc, dests, cut);
    }

    /// Moves the burst's memory, and its zero-copy payload, to the queue that most of it is for.
    fn hand_over(
        &mut self,
        dest: Dest,
        memory: Box<[u8]>,
        lent: Option<(Loan, Arc<LentBurst>)>,
        descs: &[FrameDesc],
        ways: &[Destination],
    ) {
        let Some(Some(to)) = self.to.get_mut(usize::from(dest.port)) else { return };
        let (caps, vif) = (to.vif.caps, Arc::clone(&to.vif));
        let Some(Some(out)) = to.queues.get_mut(usize::from(dest.queue)) else { return };
        let mut mail = self.pool.with(memory);
        mail.number = out.inbox.next_number();
        let mut stats = SwitchStats::default();
        for (desc, way) in descs.iter().zip(ways) {
            let is_its = match way {
                Destination::To(to) => *to == dest,
                Destination::All => {
                    let at = desc.at as usize;
                    vif.queue_of(&mail.bytes[at..at + desc.len as usize]) == dest.queue
                }
                Destination::Nowhere | Destination::NoPort => false,
            };
            match is_its.then(|| mail.adopt(*desc, caps)) {
                None => {}
                Some(Ok(())) => stats.rx_frames += 1,
                Some(Err(_)) => stats.rx_unfinishable += 1,
            }
        }
        out.post(&mut self.pool);
        if let Some((loan, burst)) = lent {
            (mail.lent, out.lent) = (Some(loan), Some(burst));
        }
        (out.open, out.counted) = (Some(mail), 1);
        out.post(&mut self.pool);
        // The size of moved memory does not predict how much will be copied, so reset it.
        out.next_size = 0;
        self.last_moved = Some(dest);
        to.stats.rx_frames += stats.rx_frames;
        to.stats.rx_unfinishable += stats.rx_unfinishable;
    }

    /// Posts open mail, wakes waiting readers, counts, and records the receivers for the sender.
    #[inline(always)]
    fn finish(&mut self, sender: &mut Sender<'_>, shares: &Shares, stats: &SwitchStats) {
        for dest in self.touched.drain(..) {
            let Some(Some(to)) = self.to.get_mut(usize::from(dest.port)) else { continue };
            if let Some(Some(out)) = to.queues.get_mut(usize::from(dest.queue)) {
                out.finish(&mut self.pool);
            }
            if to.stats != SwitchStats::default() {
                to.vif.counters.add(&std::mem::take(&mut to.stats));
            }
        }
        if let Some(Some(to)) = self.to.get(usize::from(sender.port)) {
            to.vif.counters.add(stats);
        }
        let inbox = |dest: Dest| {
            self.to.get(usize::from(dest.port))?.as_ref()?.vif.inboxes.get(usize::from(dest.queue))
        };
        sender.recent.note(shares.of.iter().flatten().filter_map(|share| inbox(share.dest)));
    }
}

/// The port from which a burst comes.
pub struct Sender<'a> {
    /// The index of the sending port.
    pub port: u16,
    /// The queues that received the port's last burst.
    pub recent: &'a mut Recent,
    /// Scratch memory for segmentation.
    pub cut: &'a mut CutSegment,
}

/// The parameters that all copies of a burst share.
struct Copied<'a> {
    from: u16,
    bytes: &'a [u8],
    shares: &'a Shares,
    /// The queue that gets the memory, and therefore no copies.
    winner: Option<Dest>,
}
