//! Reads TX slots and validates frames: no other code reads TX requests.
//!
//! ```text
//!   ring slots:   [first: total, flags, id] [extra]* [fragment]*      [first] ...
//!                        |                     |         |
//!   TxBatch:      frames[i] ----------------- offload   slots[first_slot .. first_slot + nr_slots]
//!                 rsps: one for each ring slot, in ring order, extras as NULL
//! ```
//!
//! Each request is copied from the ring once for each time that it is taken (a batch that finds the
//! control state locked goes back to its ring), and the copies are validated by the rules of
//! docs/protocol 2.6, which distinguish three kinds of errors: a frame that is dropped and answered
//! with ERROR, a failed grant operation (found later by the path), and a fault that closes the
//! device ([`PeerFault`]). A batch has at most 64 frames. No frame is started without room for the
//! longest frame, nor after one with which the batch has [`BATCH_SEGMENTS`] segments, since the
//! port cuts large segments in their sender's time.
//!
//! What a peer may do: send any slots. The worst results are a fault, or a batch of errors. Every
//! slot that was consumed is answered.

use super::{BATCH_SLOTS, Thresholds, Todo, mask};
use crate::array::within;
use crate::bounded::Bounded;
use crate::error::{PeerFault, PlatformError};
use crate::memory;
use crate::net::gso::MIN_GSO_SIZE;
use crate::net::headers::MacAddr;
use crate::port::{Arena, BURST_FRAMES, Offload, Offloads, Token};
use crate::ring::{BackRing, NetTx, RingMem};
use crate::units::PAGE_SIZE;
use crate::wire::netif::{
    DROP_SLOTS, Extra, FATAL_SLOTS, MIN_FRAME, RSP_ERROR, RSP_NULL, RSP_OKAY, TXF_CSUM_BLANK,
    TXF_DATA_VALIDATED, TXF_EXTRA_INFO, TXF_MORE_DATA, TxRequest, TxResponse,
};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

/// Most extra infos in one frame: no valid frame has more than there are types.
const MAX_EXTRAS: usize = 8;
/// Largest number of ring slots of one frame.
const FRAME_SLOTS_MAX: usize = FATAL_SLOTS + MAX_EXTRAS;
/// Largest number of paths that recognise requests by a flag.
pub const CLAIMS: usize = 2;

/// The identity of a path that claims requests. No two paths have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim(u8);

impl Claim {
    /// The claim number `k` of [`CLAIMS`].
    pub const fn new(k: u8) -> Self {
        assert!((k as usize) < CLAIMS, "there are more paths that claim requests");
        Self(k)
    }

    /// Whether both claims are the same path's.
    #[inline(always)]
    pub const fn is(self, other: Self) -> bool {
        self.0 == other.0
    }
}

/// Tells which requests belong to a path, for the paths of a queue's chain: a batch does not know
/// their flags.
///
/// All requests of a frame must be claimed by the same path, or the frame is dropped.
pub trait Claims: Copy {
    /// Whether any path claims requests. If not, a batch checks no further.
    fn any(self) -> bool;
    /// The path that claims the request. None: it is an ordinary request.
    fn claim(self, req: &TxRequest) -> Option<Claim>;
    /// For a claimed frame of one request that names a place instead of a page: true if the place
    /// exists. None: the request names a page, as one with a grant does.
    fn is_place(self, claim: Claim, req: &TxRequest) -> Option<bool>;
    /// The flag of an ordinary request that names a shared buffer by number instead of a grant; 0:
    /// there is no such flag.
    fn buffer_flag(self) -> u16;
}

/// A guest's request to change its list of multicast addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MulticastAsk {
    /// `XEN_NETIF_EXTRA_TYPE_MCAST_ADD`: add the address.
    Add(MacAddr),
    /// `XEN_NETIF_EXTRA_TYPE_MCAST_DEL`: delete the address.
    Del(MacAddr),
}

/// Number of segments after which a batch starts no further frame: those of four of the longest
/// frames at an MSS of 536, the least that every IPv4 host accepts. The last frame may add 1366
/// more, at [`MIN_GSO_SIZE`].
pub const BATCH_SEGMENTS: usize = 512;

/// Number of batches created, each for a queue's whole life.
static BATCHES: AtomicU64 = AtomicU64::new(0);
/// A serial number and the six bits of a frame form a token. Four million queues have distinct
/// numbers, for 2^36 batches each; then numbers repeat.
const SERIAL_MASK: u64 = u64::MAX >> 6;
const QUEUE_SHIFT: u32 = 36;

/// One fragment of a frame, as a private, validated copy. `offset + len <= 4096`, except for a
/// frame whose path has its bytes in no page.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxSlot {
    /// Grant reference of the page; 0: the bytes are in a shared [`buffer`](Self::buffer). In a
    /// [claimed](TxBatch::claimed) frame its path defines the meaning.
    pub gref: u32,
    /// The shared buffer that holds the bytes: the one of the request's id, or the one that the
    /// request [names](Claims::buffer_flag).
    pub buffer: u16,
    /// Offset in the page, in bytes.
    pub offset: u16,
    /// Number of bytes.
    pub len: u16,
    /// The request's id.
    pub id: u16,
    /// Number of the fragment's bytes, from the first on, that are in the arena already.
    pub fetched: u16,
}

/// One frame of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxFrame {
    /// Index of the frame's first fragment in [`TxBatch::slots`].
    pub first_slot: u16,
    /// Number of the frame's fragments.
    pub nr_slots: u16,
    /// Index of the frame's first answer in [`TxBatch::rsps`].
    pub first_rsp: u16,
    /// Number of the frame's answers: fragments and extra infos.
    pub nr_rsps: u16,
}

/// Up to 64 frames taken from a TX ring.
#[derive(Debug)]
pub struct TxBatch {
    /// The frames; frame `i` is also frame `i` of the arena.
    pub frames: [TxFrame; BURST_FRAMES],
    /// Number of frames.
    pub nr_frames: usize,
    /// The fragments of all frames.
    pub slots: Box<[TxSlot; BATCH_SLOTS]>,
    nr_slots: usize,
    /// The serial number of the batch, unique over all queues.
    pub serial: u64,
    /// The answers, in ring order. They are OKAY until an error is found.
    pub rsps: Box<[TxResponse; BATCH_SLOTS]>,
    nr_rsps: usize,
    /// Frames whose answers must wait until their path
    /// [retires](crate::net::path::BackPath::retire) them.
    pub held: Todo,
    /// The port accepts zero-copy payload, with these offloads, so a path may leave payload in its
    /// pages. None: the port wants no payload of a path that maps pages for it; see
    /// [`standing`](Self::standing).
    pub takes: Option<Offloads>,
    /// The port also accepts long frames whose pages are mapped anyway
    /// ([`Payload::Named`](crate::port::Payload::Named),
    /// [`Standing`](crate::port::Payload::Standing)).
    pub standing: Option<StandingTakes>,
    /// Which frames are copied, for all batches.
    pub thresholds: Thresholds,
    /// Frames of which only [`heads`](Self::heads) bytes are in the arena.
    pub zero_copy: Todo,
    /// Bytes of a zero-copy frame that are in the arena.
    pub heads: [u16; BURST_FRAMES],
    /// Frames that paths claim.
    claimed: [Todo; CLAIMS],
    /// Frames that failed.
    pub failed: Todo,
    /// Requests with a multicast request instead of a frame: nothing is fetched for them.
    pub no_frame: Todo,
    /// Large segments whose checksum is not blank.
    pub unblanked: Todo,
    /// Frames that no port can accept: answered OKAY, and dropped.
    pub unfit: Todo,
    /// Number of segments into which the batch's frames must be cut.
    segments: usize,
    /// The multicast requests, each with the index of its answer in [`TxBatch::rsps`].
    pub multicast: Bounded<(u16, MulticastAsk)>,
}

impl TxBatch {
    /// A batch without frames, with room for the most that one has.
    #[inline(never)]
    pub fn new() -> Result<Box<Self>, PlatformError> {
        let (slots, rsps) = (memory::array(TxSlot::default())?, memory::array(TxResponse::default())?);
        let multicast = Bounded::new(BURST_FRAMES)?;
        memory::boxed(Self {
            frames: [TxFrame::default(); BURST_FRAMES],
            nr_frames: 0,
            slots,
            nr_slots: 0,
            // No two queues of a process use the same numbers, since a port may serve several, at
            // once or one after another.
            serial: (BATCHES.fetch_add(1, Ordering::Relaxed) << QUEUE_SHIFT) & SERIAL_MASK,
            rsps,
            nr_rsps: 0,
            held: 0,
            takes: None,
            standing: None,
            thresholds: Thresholds::USUAL,
            zero_copy: 0,
            heads: [0; BURST_FRAMES],
            claimed: [0; CLAIMS],
            failed: 0,
            no_frame: 0,
            unblanked: 0,
            unfit: 0,
            segments: 0,
            multicast,
        })
    }
}

/// Which frames a port accepts in pages that stay mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StandingTakes {
    /// The offloads that the port supports.
    pub caps: Offloads,
    /// The port accepts frames of more than this many bytes.
    pub above: u32,
}

/// The kind of a frame that was read.
enum Outcome {
    Frame(Offload),
    /// A multicast request, with no frame.
    Multicast(MulticastAsk),
    /// The frame is invalid: each of its slots is answered with ERROR, and nothing is passed on.
    Drop,
}

impl TxBatch {
    /// Takes frames from the ring until the ring is empty or the batch or the arena is full.
    /// Returns the frames that must be fetched. After a fault the device must be closed; nothing of
    /// this batch is answered.
    #[inline(always)]
    pub fn take<M: RingMem<Kind = NetTx>>(
        &mut self,
        ring: &mut BackRing<NetTx, M>,
        arena: &mut Arena,
        claims: impl Claims,
    ) -> Result<Todo, PeerFault> {
        if claims.any() {
            return Ok(self.take_as::<M, _, false, true>(ring, arena, claims, &mut 0)?.0);
        }
        Ok(self.take_as::<M, _, false, false>(ring, arena, claims, &mut 0)?.0)
    }

    /// Like [`take`](Self::take), for frames of at most `credit` bytes in total, which is reduced
    /// by them. If it ended because the next frame is longer than the rest of the credit, returns
    /// that frame's length, too; it stays on the ring and is read again.
    pub fn take_within<M: RingMem<Kind = NetTx>>(
        &mut self,
        ring: &mut BackRing<NetTx, M>,
        arena: &mut Arena,
        claims: impl Claims,
        credit: &mut u64,
    ) -> Result<(Todo, Option<u64>), PeerFault> {
        self.take_as::<M, _, true, true>(ring, arena, claims, credit)
    }

    /// Makes the batch empty.
    #[inline]
    pub fn clear(&mut self, arena: &mut Arena) {
        self.serial = (self.serial + 1) & SERIAL_MASK;
        self.nr_frames = 0;
        self.nr_slots = 0;
        self.nr_rsps = 0;
        self.held = 0;
        self.zero_copy = 0;
        self.claimed = [0; CLAIMS];
        self.failed = 0;
        self.no_frame = 0;
        self.unblanked = 0;
        self.unfit = 0;
        self.segments = 0;
        self.multicast.clear();
        arena.clear();
    }

    /// The token of frame `i`, for the port or path that has it in flight.
    pub fn token(&self, i: usize) -> Token {
        Token::of(self.serial, i)
    }

    /// The frames that the path of `claim` must handle as a whole. It must check what their
    /// requests name, except for a [place](Claims::is_place), which is valid.
    #[inline(always)]
    pub fn claimed(&self, claim: Claim) -> Todo {
        self.claimed[within::<CLAIMS>(claim.0.into())]
    }

    /// Implements [`take_within`](Self::take_within). It is compiled for each combination, so that
    /// guests without a rate, and queues whose paths claim no requests, need no checks for them.
    #[inline(always)]
    fn take_as<M: RingMem<Kind = NetTx>, C: Claims, const LIMITED: bool, const BY_FLAG: bool>(
        &mut self,
        ring: &mut BackRing<NetTx, M>,
        arena: &mut Arena,
        claims: C,
        credit: &mut u64,
    ) -> Result<(Todo, Option<u64>), PeerFault> {
        self.clear(arena);
        let mut short = None;
        let available = ring.available(BURST_FRAMES as u32)?;
        ring.prefetch(available.min(BURST_FRAMES as u32));
        let mut taken = 0;
        let buffer_flag = claims.buffer_flag();
        loop {
            // The common case, one slot without extras, in a loop whose state is all in registers.
            let (mut i, mut slot, mut rsp) = (self.nr_frames, self.nr_slots, self.nr_rsps);
            let mut room = arena.cursor();
            let mut long = None;
            while taken < available
                && i < BURST_FRAMES
                && rsp + FRAME_SLOTS_MAX <= BATCH_SLOTS
                && room.has_room()
            {
                let first = ring.read(taken);
                if LIMITED {
                    match credit.checked_sub(u64::from(first.size)) {
                        Some(left) => *credit = left,
                        None => {
                            short = Some(u64::from(first.size));
                            break;
                        }
                    }
                }
                let end = first.offset as usize + first.size as usize;
                let plain = first.flags & (TXF_MORE_DATA | TXF_EXTRA_INFO) == 0;
                let claim = if BY_FLAG { claims.claim(&first) } else { None };
                let place = claim.and_then(|claim| claims.is_place(claim, &first));
                let fits = place.unwrap_or(end <= PAGE_SIZE);
                if !plain || (first.size as usize) < MIN_FRAME || !fits {
                    long = Some(first);
                    break;
                }
                if let Some(Claim(k)) = claim {
                    self.claimed[within::<CLAIMS>(k.into())] |= 1 << i;
                }
                arena.place(&mut room, first.size as usize, offload_of(first.flags));
                self.frames[within::<BURST_FRAMES>(i)] =
                    TxFrame { first_slot: slot as u16, nr_slots: 1, first_rsp: rsp as u16, nr_rsps: 1 };
                self.slots[within::<BATCH_SLOTS>(slot)] =
                    slot_of(&first, first.size, if claim.is_none() { buffer_flag } else { 0 });
                self.rsps[within::<BATCH_SLOTS>(rsp)] = TxResponse { id: first.id, status: RSP_OKAY };
                (i, slot, rsp, taken) = (i + 1, slot + 1, rsp + 1, taken + 1);
            }
            arena.keep(room);
            (self.nr_frames, self.nr_slots, self.nr_rsps) = (i, slot, rsp);
            match long {
                Some(first) => taken += self.take_long(ring, first, taken, available, (arena, claims))?,
                None => break,
            }
            if self.segments >= BATCH_SEGMENTS {
                break;
            }
        }
        ring.consume(taken);
        Ok((mask(self.nr_frames) & !(self.failed | self.no_frame), short))
    }

    /// Takes a frame of several slots, with extras, or an invalid one. Returns the number of ring
    /// slots that it used.
    #[cold]
    #[inline(never)]
    fn take_long<M: RingMem<Kind = NetTx>, C: Claims>(
        &mut self,
        ring: &BackRing<NetTx, M>,
        first: TxRequest,
        at: u32,
        available: u32,
        (arena, claims): (&mut Arena, C),
    ) -> Result<u32, PeerFault> {
        let (slot0, rsp0) = (self.nr_slots, self.nr_rsps);
        let left = available - at;
        let mut used = 1;
        let mut push_rsp = |id, status| {
            self.rsps[within::<BATCH_SLOTS>(self.nr_rsps)] = TxResponse { id, status };
            self.nr_rsps += 1;
        };
        push_rsp(first.id, RSP_OKAY);

        // Extra infos directly follow the first slot.
        let mut offload = offload_of(first.flags);
        let mut asked = None;
        let mut refused = false;
        let mut extras = 0;
        let mut more = first.flags & TXF_EXTRA_INFO != 0;
        while more {
            if used == left {
                return Err(PeerFault::SlotsMissing);
            }
            if extras == MAX_EXTRAS {
                return Err(PeerFault::TooManySlots);
            }
            let words = ring.read(at + used).to_words();
            let (extra, again) = Extra::parse([words[0], words[1]]).map_err(PeerFault::from_extra)?;
            match extra {
                Extra::Gso { size, gso_type } => {
                    offload.gso_type = gso_type;
                    offload.gso_size = size;
                }
                // A TX request can have one multicast request.
                Extra::McastAdd(mac) => refused |= asked.replace(MulticastAsk::Add(MacAddr(mac))).is_some(),
                Extra::McastDel(mac) => refused |= asked.replace(MulticastAsk::Del(MacAddr(mac))).is_some(),
                Extra::Hash { .. } | Extra::Xdp { .. } => {}
            }
            push_rsp(0, RSP_NULL);
            used += 1;
            extras += 1;
            more = again;
        }

        // The fragments. The length of the first one is the total minus the others.
        let total = first.size;
        let mut rest: u32 = 0;
        let claim = claims.claim(&first);
        let place = claim.and_then(|claim| claims.is_place(claim, &first));
        let buffer_flag = if claim.is_none() { claims.buffer_flag() } else { 0 };
        // The later slots are not all like the first.
        let mut mixed = false;
        let mut too_long = false;
        let mut nr = 1;
        self.slots[within::<BATCH_SLOTS>(slot0)] = slot_of(&first, 0, buffer_flag);
        let mut more = first.flags & TXF_MORE_DATA != 0;
        while more {
            if used == left {
                return Err(PeerFault::SlotsMissing);
            }
            if nr + 1 >= FATAL_SLOTS {
                return Err(PeerFault::TooManySlots);
            }
            let req = ring.read(at + used);
            if req.offset as usize + req.size as usize > PAGE_SIZE {
                return Err(PeerFault::CrossesPage { offset: req.offset, size: req.size });
            }
            rest += req.size as u32;
            too_long |= rest > total as u32;
            mixed |= claims.claim(&req) != claim;
            self.slots[within::<BATCH_SLOTS>(slot0 + nr)] = slot_of(&req, req.size, buffer_flag);
            push_rsp(req.id, RSP_OKAY);
            nr += 1;
            used += 1;
            more = req.flags & TXF_MORE_DATA != 0;
        }
        let outcome = if let (Some(ask), 1, false) = (asked, nr, refused) {
            Outcome::Multicast(ask)
        } else if too_long
            || mixed
            || asked.is_some()
            || place.is_some_and(|right| nr > 1 || !right)
            || (total as usize) < MIN_FRAME
            || nr >= DROP_SLOTS
            || offload.gso_type != 0 && offload.gso_size < MIN_GSO_SIZE
        {
            Outcome::Drop
        } else {
            let size = total - rest as u16;
            if place.is_none() && first.offset as usize + size as usize > PAGE_SIZE {
                return Err(PeerFault::CrossesPage { offset: first.offset, size });
            }
            self.slots[within::<BATCH_SLOTS>(slot0)].len = size;
            if let Some(Claim(k)) = claim {
                self.claimed[within::<CLAIMS>(k.into())] |= 1 << self.nr_frames;
            }
            Outcome::Frame(offload)
        };

        let i = within::<BURST_FRAMES>(self.nr_frames);
        self.nr_frames += 1;
        let is_frame = matches!(outcome, Outcome::Frame(_));
        self.frames[i] = TxFrame {
            first_slot: slot0 as u16,
            nr_slots: if is_frame { nr as u16 } else { 0 },
            first_rsp: rsp0 as u16,
            nr_rsps: (self.nr_rsps - rsp0) as u16,
        };
        match outcome {
            Outcome::Frame(offload) => {
                self.nr_slots += nr;
                if offload.gso_type != 0 {
                    self.segments += usize::from(total).div_ceil(usize::from(offload.gso_size).max(1));
                    self.unblanked |= Todo::from(!offload.csum_blank) << i;
                }
                // After a first full page there are mostly more of them.
                let slots = self.slots.get(slot0..slot0 + nr).unwrap_or_default();
                let full = slots.iter().position(|slot| usize::from(slot.len) == PAGE_SIZE).unwrap_or(1);
                let before = slots.iter().take(full).map(|slot| usize::from(slot.len)).sum();
                if arena.free_with_page_at(before, total as usize, offload).is_none() {
                    self.fail(i, arena); // cannot be: the arena has room for the longest frame
                }
            }
            Outcome::Multicast(ask) => {
                let _ = arena.room(0, Offload::default());
                self.no_frame |= 1 << i;
                let has_room = self.multicast.push((rsp0 as u16, ask)).is_ok();
                debug_assert!(has_room, "one for each frame at most");
                if !has_room {
                    self.fail(i, arena);
                }
            }
            Outcome::Drop => {
                let _ = arena.room(0, Offload::default());
                self.fail(i, arena);
            }
        }
        Ok(used)
    }

    /// Answers ERROR to the guest's multicast request number `k`.
    #[cold]
    pub fn refuse(&mut self, k: usize) {
        if let Some((at, _)) = self.multicast.get(k) {
            self.rsps[within::<BATCH_SLOTS>(usize::from(*at))].status = RSP_ERROR;
        }
    }

    /// Answers ERROR in every data slot of frame `i`, and removes it from the burst.
    #[cold]
    pub fn fail(&mut self, i: usize, arena: &mut Arena) {
        self.failed |= 1 << i;
        arena.drop_frame(i);
        let f = self.frame(i);
        for rsp in part_mut(&mut self.rsps[..], f.first_rsp, f.nr_rsps) {
            if rsp.status != RSP_NULL {
                rsp.status = RSP_ERROR;
            }
        }
    }

    /// Answers ERROR only for fragment `k` of frame `i` and OKAY for its others (as Linux does when
    /// a grant operation fails), and removes the frame from the burst.
    #[cold]
    pub fn fail_slot(&mut self, i: usize, k: usize, arena: &mut Arena) {
        self.failed |= 1 << i;
        arena.drop_frame(i);
        let f = self.frame(i);
        // The first fragment's answer comes first, then the NULLs of the extras, then those of the
        // other fragments.
        let ahead = if k == 0 { 0 } else { (f.nr_rsps - f.nr_slots) as usize + k };
        self.rsps[within::<BATCH_SLOTS>(f.first_rsp as usize + ahead)].status = RSP_ERROR;
    }

    /// The frames that the port gets.
    #[inline(always)]
    pub fn given(&self) -> Todo {
        mask(self.nr_frames) & !(self.failed | self.no_frame | self.unfit)
    }

    /// All answers, in ring order.
    #[inline(always)]
    pub fn answers(&self) -> &[TxResponse] {
        debug_assert!(self.nr_rsps <= BATCH_SLOTS);
        self.rsps.get(..self.nr_rsps).unwrap_or_default()
    }

    /// The answers of frame `i`.
    pub fn answers_of(&self, i: usize) -> &[TxResponse] {
        let f = self.frame(i);
        let (first, n) = (usize::from(f.first_rsp), usize::from(f.nr_rsps));
        self.rsps.get(first..first + n).unwrap_or_default()
    }

    /// The fragments of frame `i`.
    #[inline(always)]
    pub fn slots_of(&mut self, i: usize) -> &mut [TxSlot] {
        let f = self.frame(i);
        part_mut(&mut self.slots[..], f.first_slot, f.nr_slots)
    }

    /// Frame `i`.
    #[inline(always)]
    pub fn frame(&self, i: usize) -> TxFrame {
        self.frames[within::<BURST_FRAMES>(i)]
    }

    /// Fragment `k` of the batch.
    #[inline(always)]
    pub fn slot(&mut self, k: usize) -> &mut TxSlot {
        &mut self.slots[within::<BATCH_SLOTS>(k)]
    }

    /// The first fragment of frame `i`.
    #[inline(always)]
    pub fn first_slot(&mut self, i: usize) -> &mut TxSlot {
        self.slot(self.frame(i).first_slot.into())
    }

    /// Number of bytes of zero-copy frame `i` that are in the arena.
    #[inline(always)]
    pub fn head(&mut self, i: usize) -> &mut u16 {
        &mut self.heads[within::<BURST_FRAMES>(i)]
    }
}

/// The `n` items from `first` on.
#[inline(always)]
fn part_mut<T>(all: &mut [T], first: u16, n: u16) -> &mut [T] {
    all.get_mut(usize::from(first)..usize::from(first) + usize::from(n)).unwrap_or_default()
}

/// The fragment of `len` bytes that a request names. The request names a shared buffer if it has
/// `buffer_flag`; an invalid number names no buffer.
#[inline(always)]
fn slot_of(req: &TxRequest, len: u16, buffer_flag: u16) -> TxSlot {
    let named = req.flags & buffer_flag != 0;
    let (gref, buffer) =
        if named { (0, u16::try_from(req.gref).unwrap_or(u16::MAX)) } else { (req.gref, req.id) };
    TxSlot { gref, buffer, offset: req.offset, len, id: req.id, fetched: 0 }
}

#[inline(always)]
fn offload_of(flags: u16) -> Offload {
    Offload {
        csum_blank: flags & TXF_CSUM_BLANK != 0,
        csum_ok: flags & (TXF_DATA_VALIDATED | TXF_CSUM_BLANK) != 0,
        gso_type: 0,
        gso_size: 0,
    }
}
