//! The two halves of a queue, as C calls them: each by itself.
//!
//! ```text
//!   Tx   skb --copied once--> granted memory --> ring      under the netdev_queue lock
//!   Rx   ring --> granted memory --copied once--> skb      in NAPI poll of the queue, alone
//! ```
//! What the back may do: see the crate. After a fault the result is [`FAULT`](crate::front::FAULT).

use crate::front::or_fault;
use crate::in_place::InPlace;
use crate::platform::Kernel;
use crate::shim;
use alloc::boxed::Box;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use pregrant::PeerFault;
use pregrant::net::front::{GrantedPiece, RxHalf, TxHalf};
use pregrant::net::gso::MIN_GSO_SIZE;
use pregrant::net::headers::MacAddr;
use pregrant::net::stats::DirStats;
use pregrant::port::{Offload, Piece, PieceMut, Sink, Source};
use pregrant::shm::{copy_from_shared, copy_to_shared};
use pregrant::wire::netif::{GSO_TYPE_TCPV4, GSO_TYPE_TCPV6};

/// The sending half: `struct pregrant_tx`.
pub struct Tx {
    p: Kernel,
    half: Box<TxHalf<Kernel>>,
    /// Path `persistent`: ordinary pages stay granted, and the back keeps those that it has seen
    /// mapped.
    persists: bool,
}

/// The receiving half: `struct pregrant_rx`.
pub struct Rx {
    p: Kernel,
    half: Box<RxHalf<Kernel>>,
    /// Zero-copy RX of long frames.
    in_place: Option<InPlace>,
    /// Like [`Tx::persists`].
    persists: bool,
}

impl Tx {
    pub fn new(device: shim::Device, half: Box<TxHalf<Kernel>>, persists: bool) -> Self {
        Self { p: Kernel { device }, half, persists }
    }
    pub fn into_half(self) -> Box<TxHalf<Kernel>> {
        self.half
    }
}

impl Rx {
    /// Creates the half. `kept` is the list of frames in place that the queue used before it was
    /// stopped.
    pub fn new(
        device: shim::Device,
        half: Box<RxHalf<Kernel>>,
        in_place: usize,
        kept: Option<InPlace>,
        persists: bool,
    ) -> Self {
        let in_place = if in_place > 0 { InPlace::new(in_place, &half, kept) } else { None };
        Self { p: Kernel { device }, half, in_place, persists }
    }
    pub fn into_parts(self) -> (Box<RxHalf<Kernel>>, Option<InPlace>) {
        (self.half, self.in_place)
    }
}

/// A frame to send.
#[derive(Clone, Copy)]
pub struct Frame {
    /// The skb, or the address of the bytes.
    pub from: *mut c_void,
    /// `from` is an address of bytes.
    pub is_linear: bool,
    pub len: usize,
    pub offload: Offload,
}

impl Source for Frame {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }
    #[inline(always)]
    fn offload(&self) -> &Offload {
        &self.offload
    }
    #[inline(always)]
    fn copy_to(&self, at: usize, to: PieceMut<'_>) {
        let (to, len) = to.as_raw();
        // SAFETY: bytes that the skb has, or that there are, to memory of that length.
        unsafe {
            match self.is_linear {
                true => copy_to_shared(self.from.cast::<u8>().add(at), to, len),
                false => shim::pk_skb_read(self.from, at, to, len),
            }
        }
    }
}

/// Copies an skb to the ring, or `len` bytes if `csum` has PREGRANT_LINEAR. The backend sees the
/// frame after pregrant_tx_publish. 1: sent; 0: no room now; below 0: it cannot be sent.
///
/// # Safety
/// There are `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_tx_send(
    tx: &mut Tx,
    from: *const c_void,
    len: usize,
    csum: u32,
    gso_type: u32,
    gso_size: u32,
) -> i32 {
    let offload = offload_of(csum, gso_type, gso_size);
    match tx.half.queue(&tx.p, &Frame { from: from.cast_mut(), is_linear: csum & 4 != 0, len, offload }) {
        Ok(n) => n as i32,
        Err(e) => -e.code,
    }
}

/// The offload of a frame, of what C has: `PREGRANT_CSUM_*`, `PREGRANT_GSO_*`, a segment's bytes.
#[inline(always)]
pub(crate) fn offload_of(csum: u32, gso_type: u32, gso_size: u32) -> Offload {
    Offload {
        csum_blank: csum & 1 != 0,
        csum_ok: csum & 2 != 0,
        gso_type: gso_type as u8,
        gso_size: gso_size as u16,
    }
}

/// Like pregrant_tx_send, for an skb whose last bytes are in these `n` granted pages; `ids` gets
/// the ids of their requests. Unless 1 is returned, the backend sees none of it, and the grants
/// remain the caller's.
///
/// # Safety
/// The skb has `len` bytes; there are `n` pieces, and room for as many ids.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_tx_send_pieces(
    tx: &mut Tx,
    skb: shim::Skb,
    len: usize,
    csum: u32,
    gso_type: u32,
    gso_size: u32,
    pieces: *const GrantedPiece,
    n: u32,
    ids: *mut u16,
) -> i32 {
    let frame = Frame { from: skb, is_linear: false, len, offload: offload_of(csum, gso_type, gso_size) };
    // SAFETY: the caller's; `GrantedPiece` is C's `struct pregrant_granted_piece`.
    let (pieces, ids) = unsafe {
        (core::slice::from_raw_parts(pieces, n as usize), core::slice::from_raw_parts_mut(ids, n as usize))
    };
    match tx.half.queue_pieces(&tx.p, &frame, pieces, ids) {
        Ok(queued) => i32::from(queued),
        Err(e) => -e.code,
    }
}

/// The number of ids that granted pages may have; 0: the backend must not get any.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_tx_piece_ids(tx: &Tx) -> u32 {
    if tx.half.front().takes_pieces() { tx.half.front().ids() } else { 0 }
}

/// Number of requests of granted pages without a response, or whose response was not read; 0 on a
/// new ring.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_tx_pieces_out(tx: &Tx) -> u32 {
    tx.half.front().pieces_out()
}

/// Returns ids of granted pages whose response has arrived, at most `room`. Call it after each
/// pregrant_tx_reclaim until it returns 0.
///
/// # Safety
/// There is room for so many ids.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_tx_answered_pieces(tx: &mut Tx, ids: *mut u16, room: u32) -> u32 {
    // SAFETY: the caller's.
    let ids = unsafe { core::slice::from_raw_parts_mut(ids, room as usize) };
    ids.iter_mut().map_while(|to| tx.half.answered_piece().map(|id| *to = id)).count() as u32
}

/// Publishes what was sent, and sends an event if the backend wants one.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_tx_publish(tx: &mut Tx) {
    tx.half.publish(&tx.p);
}

/// Number of free TX slots.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_tx_room(tx: &Tx) -> u32 {
    tx.half.room()
}

/// Number of TX requests without a response.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_tx_in_flight(tx: &Tx) -> u32 {
    tx.half.front().in_flight()
}

/// Reads TX responses. Returns how many; below 0: a fault.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_tx_reclaim(tx: &mut Tx) -> i32 {
    or_fault(tx.p.device, tx.half.reclaim(&tx.p, 1).map(|n| n as i32))
}

/// Asks for an event when `ahead` responses have arrived that were not read yet, and unmasks the
/// channel. 1: they have arrived already; below 0: a fault.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_tx_arm(tx: &mut Tx, ahead: u32) -> i32 {
    or_fault(tx.p.device, tx.half.final_check(&tx.p, ahead).map(i32::from))
}

/// Asks the backend to deliver multicast frames to an address, or to stop that. False: there is no
/// room now.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_tx_multicast(tx: &mut Tx, mac: &[u8; 6], wanted: bool) -> bool {
    tx.half.multicast(&tx.p, MacAddr(*mac), wanted)
}

/// The counters of TX, as ethtool.c names them.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_tx_counters(tx: &Tx, to: &mut MaybeUninit<[u64; 9]>) {
    to.write(counters(tx.half.stats(), tx.persists));
}

/// The counters of RX.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_rx_counters(rx: &Rx, to: &mut MaybeUninit<[u64; 9]>) {
    to.write(counters(rx.half.stats(), rx.persists));
}

/// The counters in the order of their names in `ethtool.c`. Frames in ordinary pages count as
/// granted or as persistent, depending on the vif's path.
pub fn counters(s: DirStats, persists: bool) -> [u64; 9] {
    let (granted, persistent) = if persists { (0, s.granted) } else { (s.granted, 0) };
    [s.frames, s.bytes, s.staging, s.data_ring, granted, persistent, s.errors, s.dropped, s.notifications]
}

/// The checksum of a frame as C has it: `PREGRANT_CSUM_*`.
#[inline(always)]
pub(crate) fn csum_of(offload: &Offload) -> u32 {
    u32::from(offload.csum_blank) | u32::from(offload.csum_ok) << 1
}

/// An offload as C has it: checksum, kind and size of segments. None: the frame must be dropped.
/// The back chooses the segment size, and one skb with tiny segments would become 65 000 packets.
#[inline(always)]
fn words(offload: Offload) -> Option<(u32, u32, u32)> {
    let is_good = match offload.gso_type {
        0 => true,
        GSO_TYPE_TCPV4 | GSO_TYPE_TCPV6 => offload.gso_size >= MIN_GSO_SIZE,
        _ => false,
    };
    is_good.then_some((csum_of(&offload), u32::from(offload.gso_type), u32::from(offload.gso_size)))
}

/// Receives frames as skbs, which C adds to a `struct pregrant_received`.
pub struct Skbs {
    pub to: *mut c_void,
    /// The rest of the NAPI budget.
    most: usize,
    /// An XDP program sees the frames, large ones as segments, each of which counts.
    decides: bool,
    /// Received staging buffers can be sent: C learns in which buffer a frame arrived.
    pub send_on: bool,
    /// The last frame's bytes in granted memory.
    last: *const u8,
}

impl Skbs {
    pub fn new(to: *mut c_void, most: usize, decides: bool, send_on: bool) -> Self {
        Self { to, most, decides, send_on, last: core::ptr::null() }
    }

    pub fn left(&self) -> usize {
        self.most
    }

    pub fn decides(&self) -> bool {
        self.decides
    }

    /// Charges a frame to the budget, and returns its offload as C has it. None: drop the frame.
    #[inline(always)]
    pub fn admit(&mut self, len: usize, offload: Offload) -> Option<(u32, u32, u32)> {
        let words = words(offload);
        let cut = self.decides && offload.gso_type != 0;
        let segments = if cut { self.segments(len, offload, words.is_some()) } else { 1 };
        self.most = self.most.saturating_sub(segments);
        words
    }

    #[cold]
    #[inline(never)]
    fn segments(&self, len: usize, offload: Offload, is_good: bool) -> usize {
        if is_good { len.checked_div(offload.gso_size.into()).unwrap_or(0) + 1 } else { 1 }
    }

    #[cold]
    #[inline(never)]
    pub fn refuse(&self) {
        // SAFETY: `to` is what C's caller gave.
        unsafe { shim::pk_frame_refused(self.to) }
    }
}

impl Sink for Skbs {
    #[inline(always)]
    fn takes(&self) -> usize {
        self.most
    }
    /// Without memory the frame is dropped, and C counts it. If it stayed on the ring, NAPI would
    /// poll without end.
    #[inline(always)]
    fn take<'a>(&mut self, len: usize, offload: Offload, pieces: impl Iterator<Item = Piece<'a>>) -> bool {
        let Some((csum, kind, size)) = self.admit(len, offload) else {
            self.refuse();
            return true;
        };
        let mut linear = core::ptr::null_mut();
        // SAFETY: `to` is what C's caller gave.
        let skb = unsafe { shim::pk_skb_new(self.to, len, csum, kind, size, &mut linear) };
        if skb.is_null() {
            return true;
        }
        if linear.is_null() {
            for (from, len) in pieces.map(|piece| piece.as_raw()) {
                // SAFETY: a piece of memory that is mapped; C copies it, once.
                unsafe { shim::pk_skb_append(skb, from, len) };
            }
            return true;
        }
        let mut left = len;
        for (from, n) in pieces.map(|piece| piece.as_raw()) {
            let n = n.min(left);
            self.last = from;
            // SAFETY: from a piece of memory that is mapped, to what is left of the skb's `len`
            // bytes, which no one has written before.
            unsafe {
                copy_from_shared(from, linear, n);
                linear = linear.add(n);
            }
            left -= n;
        }
        true
    }
    #[inline(always)]
    fn in_buffer(&mut self, slot: u16, offset: u16, bytes: usize) {
        if self.send_on {
            // SAFETY: `to` is what C's caller gave.
            unsafe { shim::pk_in_buffer(self.to, slot, offset, bytes, self.last.cast_mut()) };
        }
    }
}

/// Adds an skb to `to` for each received frame, at most `most`. Returns how many of `most` were
/// used; below 0: a fault. Then call pregrant_rx_post. `decides`: an XDP program sees the frames,
/// and each segment of a large one counts as a frame. `send_on`: pk_in_buffer is called for each.
///
/// # Safety
/// `to` is a `struct pregrant_received`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_rx_receive(
    rx: &mut Rx,
    to: *mut c_void,
    most: u32,
    decides: bool,
    send_on: bool,
) -> i32 {
    let mut skbs = Skbs::new(to, most as usize, decides, send_on);
    or_fault(rx.p.device, rx.receive(&mut skbs).map(|()| most.saturating_sub(skbs.left() as u32) as i32))
}

impl Rx {
    #[inline(always)]
    fn receive(&mut self, skbs: &mut Skbs) -> Result<(), PeerFault> {
        match &mut self.in_place {
            None => self.half.take(&self.p, skbs, 1).map(drop),
            Some(in_place) => in_place.receive(&self.p, &mut self.half, skbs).map(drop),
        }
    }
}

/// Number of frames that stayed in their pages since the last call. `is_short`: others were copied
/// because no page was spare.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_rx_in_place(rx: &mut Rx, is_short: &mut MaybeUninit<bool>) -> u32 {
    let Rx { half, in_place, .. } = rx;
    let (frames, others) = in_place.as_mut().map_or((0, false), |in_place| in_place.news(half));
    is_short.write(others);
    frames
}

/// Posts RX buffers in free slots.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_rx_post(rx: &mut Rx) {
    rx.half.post_taken(&rx.p);
}

/// True if the backend accepts received staging buffers on TX.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_tx_sends_on(tx: &Tx) -> bool {
    tx.half.front().sends_on()
}

/// Sends `len` bytes at `offset` of the staging buffer of a slot, between pregrant_rx_receive and
/// pregrant_rx_post, under the TX lock. False: there is no room, or the buffer is shorter.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_tx_send_on(
    tx: &mut Tx,
    rx: &mut Rx,
    slot: u16,
    offset: u16,
    len: u16,
    csum: u32,
) -> bool {
    rx.half.send_on(&mut tx.half, slot, (offset, len), offload_of(csum, 0, 0))
}

/// Gives staging buffers that TX sent on, and that have a response, back to RX. Returns the number
/// of buffers without a response.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_rx_take_returned(rx: &mut Rx, tx: &mut Tx) -> u32 {
    rx.half.take_returned(&mut tx.half);
    rx.half.front().buffers().away()
}

/// Called before NAPI completes: asks for an event, and unmasks the channel. 1: there is work;
/// below 0: a fault.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_rx_arm(rx: &mut Rx) -> i32 {
    or_fault(rx.p.device, rx.half.final_check(&rx.p).map(i32::from))
}
