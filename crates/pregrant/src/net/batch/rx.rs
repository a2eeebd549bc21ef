//! Frames for the guest, placed in its RX requests.
//!
//! ```text
//!   burst frames:  [ f0 ][      f1       ]
//!   ring slots:    [ f0 ][ f1 ][extra][ f1 more ]     one response for each, at the request's own index
//! ```
//!
//! A frame takes ceil(len / (4096 - h)) slots and one more for each extra (GSO, hash, XDP;
//! docs/protocol 2.6); h is the headroom that the guest's XDP program asked for, else 0. It is
//! placed only if all of its slots are there. Each request is read once.

use super::{BATCH_SLOTS, Todo, bits, mask};
use crate::array::within;
use crate::error::{PeerFault, PlatformError};
use crate::memory;
use crate::net::ahead::{AHEAD, SHORT};
use crate::net::checksum;
pub use crate::net::features::RxAccepts;
use crate::net::headers::{IpHeaders, IpVersion};
use crate::port::{Arena, BURST_FRAMES, Burst, FrameDesc, Offload, Offloads};
use crate::ring::{BackRing, NetRx, RingMem};
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;
use crate::wire::netif::{
    Extra, GSO_TYPE_TCPV4, GSO_TYPE_TCPV6, HASH_ALGORITHM_TOEPLITZ, NR_SLOTS_MIN, RSP_ERROR, RXF_CSUM_BLANK,
    RXF_DATA_VALIDATED, RXF_EXTRA_INFO, RXF_MORE_DATA, RxResponse,
};
use alloc::boxed::Box;

/// One RX request, with the fragment of a frame that goes there.
#[derive(Clone, Copy, Debug, Default)]
pub struct RxSlot {
    /// The request's id.
    pub id: u16,
    /// The grant reference of the request's page.
    pub gref: u32,
    /// Offset of the fragment in the page, after the headroom.
    pub offset: u16,
    /// Bytes of the fragment; 0: it was delivered, and the rest of its frame was not.
    pub len: u16,
    /// Offset of the fragment in the burst's bytes.
    pub at: u32,
    /// Index of the request's answer in [`RxBatch::rsps`].
    pub rsp: u16,
}

impl RxSlot {
    /// Copies the fragment of `burst` to byte `place` of the guest's memory.
    #[inline(always)]
    #[must_use]
    pub fn copy_to(&self, burst: &Burst<'_>, to: &impl SharedBytes, place: usize) -> bool {
        burst.copy_to(self.at as usize, self.len.into(), to, place)
    }
}

/// The hash of one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHash {
    /// The bit number of the hash's `HASH_TYPE_*`.
    pub hash_type: u8,
    /// The hash value.
    pub value: u32,
}

impl FrameHash {
    /// The extra info that passes the hash to the guest.
    pub fn extra(self) -> Extra {
        Extra::Hash { hash_type: self.hash_type, algorithm: HASH_ALGORITHM_TOEPLITZ, value: self.value }
    }
}

/// One frame of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct RxFrame {
    /// The frame's index in the burst.
    pub frame: u16,
    /// Index of the frame's first fragment in [`RxBatch::slots`].
    pub first_slot: u16,
    /// Number of the frame's fragments.
    pub nr_slots: u16,
    /// Number of the frame's first bytes that are delivered already, and not part of its first
    /// fragment.
    pub head: u16,
}

impl RxFrame {
    /// Indices of the frame's fragments.
    #[inline(always)]
    pub fn slots(&self) -> core::ops::Range<usize> {
        let first = usize::from(self.first_slot);
        first..first + usize::from(self.nr_slots)
    }
}

/// Up to 64 frames with the slots that they are placed in.
#[derive(Debug)]
pub struct RxBatch {
    /// The frames.
    pub frames: [RxFrame; BURST_FRAMES],
    /// Number of frames.
    pub nr_frames: usize,
    /// The fragments of all frames.
    pub slots: Box<[RxSlot; BATCH_SLOTS]>,
    nr_slots: usize,
    /// The answers, in ring order.
    pub rsps: Box<[RxResponse; BATCH_SLOTS]>,
    nr_rsps: usize,
    /// Frames that failed: their answers have ERROR.
    pub failed: Todo,
    /// Number of frames of the burst that were skipped because the guest can never receive them.
    pub dropped: usize,
    /// Bytes that stay free before a fragment.
    pub headroom: u16,
    /// Whether the ids of the fragments' requests ascend from `first_id` on, modulo 2^16, so that
    /// they are all different.
    pub ids_rise: bool,
    /// The ring index of the batch's first request.
    pub first_index: u32,
    /// The id of the batch's first request, if the front uses the slots' indices as ids, as most
    /// do.
    first_id: u16,
    /// The id of the request that was used last, minus `first_id`; -1 before the batch's first
    /// request.
    last_ahead: i32,
}

/// How much of a burst was placed.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Number of frames used up.
    used: usize,
    /// Number of requests of the ring that were used.
    taken: u32,
}

/// The result of placing one frame.
enum Placed {
    /// The frame was placed or dropped.
    Done,
    /// The batch has no room for the frame.
    Full,
    /// The frame needs this many requests, counted from the batch's first one.
    Wants(u32),
}

impl RxBatch {
    /// A batch without frames, with room for the most that one has.
    #[inline(never)]
    pub fn new() -> Result<Box<Self>, PlatformError> {
        let (slots, rsps) = (memory::array(RxSlot::default())?, memory::array(RxResponse::default())?);
        memory::boxed(Self {
            frames: [RxFrame::default(); BURST_FRAMES],
            nr_frames: 0,
            slots,
            nr_slots: 0,
            rsps,
            nr_rsps: 0,
            failed: 0,
            dropped: 0,
            headroom: 0,
            ids_rise: true,
            first_index: 0,
            first_id: 0,
            last_ahead: -1,
        })
    }
}

impl RxAccepts {
    /// A front that accepts every kind of frame.
    pub const ALL: Self = Self { sg: true, gso_tcpv4: true, gso_tcpv6: true, csum: true, ipv6_csum: true };

    /// The offloads that the front supports, for its ports.
    pub fn offloads(self) -> Offloads {
        let gso = self.sg && self.gso_tcpv4 && self.gso_tcpv6;
        Offloads { csum: self.csum && self.ipv6_csum, gso }
    }

    /// Whether some frames of `burst` have work that this front does not accept, so that
    /// [`finish`](Self::finish) must look at them.
    #[inline]
    pub fn leaves_work(self, burst: &Burst<'_>) -> bool {
        if self != Self::ALL {
            return true;
        }
        // Most bursts have no work at all, which is seen without a branch for each frame.
        let work = |offload: Offload| u8::from(offload.csum_blank) | offload.gso_type;
        if burst.frames.iter().fold(0, |all, desc| all | work(desc.offload)) == 0 {
            return false;
        }
        // Another guest claims what it likes about its frames, and a port may pass that on.
        let mut with_work = burst.iter().filter(|(_, offload)| work(*offload) != 0);
        with_work.any(|(frame, _)| IpHeaders::parse(frame).is_ok_and(|ip| !ip.is_plain()))
    }

    /// Completes frames with work that this front does not accept, and work that netif cannot
    /// express: a blank checksum after a tag (docs/protocol 2.7). Frames that cannot be completed
    /// are dropped. Returns how many. If a port respects [`offloads`](Self::offloads), there is
    /// nothing else to do here.
    #[cold]
    pub fn finish(self, arena: &mut Arena) -> usize {
        let mut dropped = 0;
        if arena.lent().is_some() && arena.burst().frames.iter().any(|desc| desc.offload.csum_blank) {
            arena.make_private(0); // a checksum is over all bytes
        }
        for i in 0..arena.len() {
            let FrameDesc { at, len, offload } = arena.desc(i);
            if len == 0 || !offload.csum_blank && offload.gso_type == 0 {
                continue;
            }
            let frame = arena.part_mut(at as usize, len as usize);
            match frame.and_then(|frame| self.taken(frame, offload)) {
                Some(taken) => arena.set_offload(i, taken),
                None => {
                    arena.drop_frame(i);
                    dropped += 1;
                }
            }
        }
        dropped
    }

    /// Does the work that this front does not accept. Returns the work that is left. None: the
    /// frame cannot be completed.
    fn taken(self, frame: &mut [u8], offload: Offload) -> Option<Offload> {
        let ip = IpHeaders::parse(frame);
        let is_plain = ip.is_ok_and(|ip| ip.is_plain());
        let takes_gso = match offload.gso_type {
            0 => true,
            // Linux drops it after a tag, and its sender must segment it.
            _ if ip.is_ok() && !is_plain => false,
            GSO_TYPE_TCPV4 => self.gso_tcpv4,
            GSO_TYPE_TCPV6 => self.gso_tcpv6,
            _ => false,
        };
        if !takes_gso {
            return None;
        }
        let takes_blank = match ip.map(|ip| ip.version) {
            Ok(IpVersion::V4) => is_plain && self.csum,
            Ok(IpVersion::V6) => is_plain && self.ipv6_csum,
            // It may be either, so only a front that takes both gets it.
            Err(_) => self.csum && self.ipv6_csum,
        };
        if !offload.csum_blank || takes_blank {
            return Some(offload);
        }
        checksum::finish_blank(frame).ok()?;
        Some(Offload { csum_blank: false, ..offload })
    }
}

#[inline(always)]
fn flags_of(offload: Offload) -> u16 {
    let validated = RXF_DATA_VALIDATED * u16::from(offload.csum_blank | offload.csum_ok);
    (RXF_CSUM_BLANK * u16::from(offload.csum_blank)) | validated
}

/// Number of slots for a frame with this many extra infos, if a page has room for `room` bytes.
#[inline(always)]
pub fn slots_needed(len: usize, room: usize, extras: u32) -> u32 {
    len.div_ceil(room).max(1) as u32 + extras
}

impl RxBatch {
    /// Places the frames of `burst`, from the first on, in the slots that the guest has posted.
    /// `hashes` has the hashes of those frames that have one, or is empty. Returns how many frames
    /// were used up (placed or dropped) and, if there were too few slots, how many the next frame
    /// needs.
    #[inline(always)]
    pub fn place<M: RingMem<Kind = NetRx>>(
        &mut self,
        ring: &mut BackRing<NetRx, M>,
        burst: &Burst<'_>,
        accepts: RxAccepts,
        hashes: &[Option<FrameHash>],
    ) -> Result<(usize, u32), PeerFault> {
        if hashes.is_empty() && self.headroom == 0 {
            self.place_as::<M, false>(ring, burst, accepts, hashes)
        } else {
            self.place_more(ring, burst, accepts, hashes)
        }
    }

    #[cold]
    #[inline(never)]
    fn place_more<M: RingMem<Kind = NetRx>>(
        &mut self,
        ring: &mut BackRing<NetRx, M>,
        burst: &Burst<'_>,
        accepts: RxAccepts,
        hashes: &[Option<FrameHash>],
    ) -> Result<(usize, u32), PeerFault> {
        self.place_as::<M, true>(ring, burst, accepts, hashes)
    }

    /// Implements [`place`](Self::place). It is compiled twice, so that frames without hashes and
    /// headroom need no checks for them.
    #[inline(always)]
    fn place_as<M: RingMem<Kind = NetRx>, const MORE: bool>(
        &mut self,
        ring: &mut BackRing<NetRx, M>,
        burst: &Burst<'_>,
        accepts: RxAccepts,
        hashes: &[Option<FrameHash>],
    ) -> Result<(usize, u32), PeerFault> {
        self.nr_frames = 0;
        self.nr_slots = 0;
        self.nr_rsps = 0;
        self.failed = 0;
        self.dropped = 0;
        self.ids_rise = true;
        let mut available = ring.available(burst.frames.len() as u32)?;
        ring.prefetch(available.min(burst.frames.len() as u32));
        self.first_index = ring.req_cons();
        (self.first_id, self.last_ahead) = ((self.first_index & (ring.size() - 1)) as u16, -1);
        let mut at = Progress::default();
        loop {
            if !MORE {
                self.place_plain(ring, burst, available, &mut at);
            }
            let Some(&desc) = burst.frames.get(at.used) else { break };
            let hash = if MORE { hashes.get(at.used).copied().flatten() } else { None };
            let cut = burst.cuts.get(at.used).copied().unwrap_or(0);
            match self.place_one(ring, (desc, cut), accepts, hash, available, &mut at) {
                Placed::Done => {}
                Placed::Full => break,
                Placed::Wants(need) => {
                    available = ring.available(need)?;
                    if available < need {
                        ring.consume(at.taken);
                        return Ok((at.used, need - at.taken));
                    }
                }
            }
        }
        ring.consume(at.taken);
        Ok((at.used, 0))
    }

    /// Places frames of one slot without extras, the common case, in a loop whose state is all in
    /// registers. It ends at the first frame of another kind, or without a slot.
    #[inline(never)]
    fn place_plain<M: RingMem<Kind = NetRx>>(
        &mut self,
        ring: &BackRing<NetRx, M>,
        burst: &Burst<'_>,
        available: u32,
        at: &mut Progress,
    ) {
        let Progress { mut used, mut taken } = *at;
        let (mut frame, mut slot, mut rsp) = (self.nr_frames, self.nr_slots, self.nr_rsps);
        let (first_id, mut last, mut rise) = (self.first_id, self.last_ahead, self.ids_rise);
        while let Some(desc) = burst.frames.get(used)
            && desc.len.wrapping_sub(1) < PAGE_SIZE as u32
            && desc.offload.gso_type == 0
            && taken < available
            && frame < BURST_FRAMES
            && slot < BATCH_SLOTS
            && rsp < BATCH_SLOTS
        {
            let req = ring.read(taken);
            let ahead = i32::from(req.id.wrapping_sub(first_id));
            rise &= ahead > last;
            last = ahead;
            let len = desc.len as u16;
            self.frames[within::<BURST_FRAMES>(frame)] =
                RxFrame { frame: used as u16, first_slot: slot as u16, nr_slots: 1, head: 0 };
            self.slots[within::<BATCH_SLOTS>(slot)] =
                RxSlot { id: req.id, gref: req.gref, offset: 0, len, at: desc.at, rsp: rsp as u16 };
            self.rsps[within::<BATCH_SLOTS>(rsp)] =
                RxResponse { id: req.id, offset: 0, flags: flags_of(desc.offload), status: len as i16 };
            (used, taken, frame, slot, rsp) = (used + 1, taken + 1, frame + 1, slot + 1, rsp + 1);
        }
        *at = Progress { used, taken };
        (self.nr_frames, self.nr_slots, self.nr_rsps) = (frame, slot, rsp);
        (self.last_ahead, self.ids_rise) = (last, rise);
    }

    /// Places a frame of any kind, with what its first slot should have.
    #[inline(never)]
    fn place_one<M: RingMem<Kind = NetRx>>(
        &mut self,
        ring: &BackRing<NetRx, M>,
        (desc, cut): (FrameDesc, u16),
        accepts: RxAccepts,
        hash: Option<FrameHash>,
        available: u32,
        at: &mut Progress,
    ) -> Placed {
        let len = desc.len as usize;
        if len == 0 {
            at.used += 1;
            return Placed::Done;
        }
        let headroom = self.headroom;
        let room = PAGE_SIZE.saturating_sub(headroom.into()).max(1);
        if len > room && !accepts.sg {
            self.dropped += 1;
            at.used += 1;
            return Placed::Done;
        }
        let gso = desc.offload.gso_type != 0;
        let extras = gso as u32 + hash.is_some() as u32 + (headroom > 0) as u32;
        let mut need = slots_needed(len, room, extras);
        let mut first_room = room;
        if cut > 0 && len > room && usize::from(cut) < room {
            let with_cut = 1 + slots_needed(len - usize::from(cut), room, extras);
            if with_cut <= NR_SLOTS_MIN as u32 + extras {
                (need, first_room) = (with_cut, cut.into());
            }
        }
        if self.nr_frames == BURST_FRAMES || self.nr_rsps + need as usize > BATCH_SLOTS {
            return Placed::Full;
        }
        if available - at.taken < need {
            return Placed::Wants(at.taken + need);
        }
        self.frames[within::<BURST_FRAMES>(self.nr_frames)] = RxFrame {
            frame: at.used as u16,
            first_slot: self.nr_slots as u16,
            nr_slots: (need - extras) as u16,
            head: 0,
        };
        self.nr_frames += 1;
        let mut from = desc.at;
        let mut left = len;
        let mut first = true;
        while left > 0 {
            let piece = left.min(if first { first_room } else { room });
            let req = ring.read(at.taken);
            at.taken += 1;
            left -= piece;
            let ahead = i32::from(req.id.wrapping_sub(self.first_id));
            self.ids_rise &= ahead > self.last_ahead;
            self.last_ahead = ahead;
            let mut rsp = RxResponse { id: req.id, offset: headroom, flags: 0, status: piece as i16 };
            if left > 0 {
                rsp.flags |= RXF_MORE_DATA;
            }
            if first {
                rsp.flags |= flags_of(desc.offload) | if extras > 0 { RXF_EXTRA_INFO } else { 0 };
            }
            self.slots[within::<BATCH_SLOTS>(self.nr_slots)] = RxSlot {
                id: req.id,
                gref: req.gref,
                offset: headroom,
                len: piece as u16,
                at: from,
                rsp: self.nr_rsps as u16,
            };
            self.nr_slots += 1;
            self.rsps[within::<BATCH_SLOTS>(self.nr_rsps)] = rsp;
            self.nr_rsps += 1;
            from += piece as u32;
            if first && extras > 0 {
                let Offload { gso_size: size, gso_type, .. } = desc.offload;
                let gso = gso.then_some(Extra::Gso { size, gso_type });
                let hash = hash.map(FrameHash::extra);
                let xdp = (headroom > 0).then_some(Extra::Xdp { headroom });
                let mut behind = extras;
                for extra in [gso, hash, xdp].into_iter().flatten() {
                    behind -= 1;
                    self.rsps[within::<BATCH_SLOTS>(self.nr_rsps)] =
                        RxResponse::from_words(extra.to_words(behind > 0));
                    self.nr_rsps += 1;
                    at.taken += 1; // the request under an extra is used up unread
                }
            }
            first = false;
        }
        at.used += 1;
        Placed::Done
    }

    /// The set of all frames of the batch.
    #[inline(always)]
    pub fn todo(&self) -> Todo {
        mask(self.nr_frames)
    }

    /// Notes that the first `bytes` bytes of frame `i`, at most its first fragment, are delivered:
    /// later paths deliver the rest.
    #[inline(always)]
    pub fn delivered_head(&mut self, i: usize, bytes: u16) {
        let frame = &mut self.frames[within::<BURST_FRAMES>(i)];
        let slot = &mut self.slots[within::<BATCH_SLOTS>(frame.first_slot.into())];
        debug_assert!(bytes <= slot.len && frame.head == 0);
        slot.offset += bytes;
        slot.at += u32::from(bytes);
        slot.len -= bytes;
        frame.head = bytes;
    }

    /// Reverts [`delivered_head`](Self::delivered_head), for a path that delivers the whole frame.
    /// Returns how many bytes had been delivered.
    #[cold]
    pub fn whole_again(&mut self, i: usize) -> u16 {
        let frame = &mut self.frames[within::<BURST_FRAMES>(i)];
        let bytes = core::mem::take(&mut frame.head);
        let slot = &mut self.slots[within::<BATCH_SLOTS>(frame.first_slot.into())];
        slot.offset -= bytes;
        slot.at -= u32::from(bytes);
        slot.len += bytes;
        bytes
    }

    /// Answers ERROR in every slot of frame `i`.
    #[cold]
    pub fn fail(&mut self, i: usize) {
        self.failed |= 1 << i;
        let f = self.frame(i);
        for k in f.slots() {
            self.rsp(*self.slot(k)).status = RSP_ERROR;
        }
    }

    /// The first fragment of the frame that is copied [`AHEAD`] frames after frame `i`, and its
    /// index, if it is long: prefetch it now.
    #[inline(always)]
    pub fn long_ahead(&self, i: usize, todo: Todo) -> Option<(usize, &RxSlot)> {
        if todo.checked_shr((i + AHEAD) as u32)? & 1 == 0 {
            return None;
        }
        let k = usize::from(self.frames.get(i + AHEAD)?.first_slot);
        let slot = self.slots.get(k)?;
        (usize::from(slot.len) > SHORT).then_some((k, slot))
    }

    /// Copies the fragments of the frames in `todo` from `burst` to mapped pages: `page` returns
    /// the page of fragment number k. If it is missing or too short, the whole frame is answered
    /// with ERROR.
    #[inline(always)]
    pub fn copy_in<'m, M: SharedBytes + 'm>(
        &mut self,
        burst: &Burst<'_>,
        todo: Todo,
        page: impl Fn(usize, &RxSlot) -> Option<&'m M>,
    ) {
        for i in bits(todo) {
            if let Some((k, slot)) = self.long_ahead(i, todo)
                && let Some(page) = page(k, slot)
            {
                page.prefetch_write(slot.offset.into(), slot.len.into());
            }
            for k in self.frame(i).slots() {
                let slot = self.slot(k);
                let copied = slot.len == 0
                    || page(k, slot).is_some_and(|page| slot.copy_to(burst, page, slot.offset.into()));
                if !copied {
                    self.fail(i);
                    break;
                }
            }
        }
    }

    /// Bytes of the frames of `burst` that were placed and have not failed.
    #[cold]
    pub fn good_bytes(&self, burst: &Burst<'_>) -> u64 {
        let frames = self.frames.iter().take(self.nr_frames).enumerate();
        let good = frames.filter(|(i, _)| self.failed & (1 << i) == 0);
        good.map(|(_, f)| u64::from(burst.len_of(f.frame.into()))).sum()
    }

    /// The ring index after the batch's last request.
    #[inline(always)]
    pub fn taken(&self) -> u32 {
        self.first_index.wrapping_add(self.nr_rsps as u32)
    }

    /// All answers, in ring order.
    #[inline(always)]
    pub fn answers(&self) -> &[RxResponse] {
        debug_assert!(self.nr_rsps <= BATCH_SLOTS);
        self.rsps.get(..self.nr_rsps).unwrap_or_default()
    }

    /// The fragments of frame `i`.
    #[inline(always)]
    pub fn slots_of(&self, i: usize) -> &[RxSlot] {
        self.slots.get(self.frame(i).slots()).unwrap_or_default()
    }

    /// Frame `i`.
    #[inline(always)]
    pub fn frame(&self, i: usize) -> RxFrame {
        self.frames[within::<BURST_FRAMES>(i)]
    }

    /// Fragment `k` of the batch.
    #[inline(always)]
    pub fn slot(&self, k: usize) -> &RxSlot {
        &self.slots[within::<BATCH_SLOTS>(k)]
    }

    /// The first fragment of frame `i`.
    #[inline(always)]
    pub fn first_slot(&self, i: usize) -> &RxSlot {
        self.slot(self.frame(i).first_slot.into())
    }

    /// The answer of a fragment.
    #[inline(always)]
    pub fn rsp(&mut self, slot: RxSlot) -> &mut RxResponse {
        &mut self.rsps[within::<BATCH_SLOTS>(slot.rsp.into())]
    }
}
