//! The content of slots, with one type for each ring of the protocol, and the trait for access to a
//! ring's words.

use crate::wire::blkif::{self, Abi};
use crate::wire::netif::{RxRequest, RxResponse, TxRequest, TxResponse};
use crate::wire::netif_ctrl::{CtrlRequest, CtrlResponse};

/// The four indices of the shared header, at offsets 0, 4, 8 and 12.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// Index after the last published request. The front writes it.
    ReqProd = 0,
    /// The back wants to be notified when `req_prod` passes this. The back writes it.
    ReqEvent = 1,
    /// Index after the last published response. The back writes it.
    RspProd = 2,
    /// The front wants to be notified when `rsp_prod` passes this. The front writes it.
    RspEvent = 3,
}

/// The words of a ring. Slots are addressed by free-running index, which is masked here, so that
/// every index is in range.
pub trait RingMem {
    /// The content of a slot; its size is [`SLOT_WORDS`](RingKind::SLOT_WORDS).
    type Kind: RingKind;
    /// Number of slots, a power of two. It is private and never read from the page.
    fn size(&self) -> u32;
    /// Loads an index with acquire order.
    fn load(&self, w: Word) -> u32;
    /// Stores an index with release order.
    fn store(&self, w: Word, v: u32);
    /// Prefetches the cache lines of `n` slots from `idx` on for writing: the reader of a slot
    /// writes its answer there next, so each line crosses between the cores once per direction.
    #[inline(always)]
    fn prefetch(&self, idx: u32, n: u32) {
        let _ = (idx, n);
    }
    /// Reads the first `W` words of the slot at `idx`, relaxed. More words than a slot has do not
    /// compile.
    fn read<const W: usize>(&self, idx: u32) -> [u32; W];
    /// Writes the first `W` words of the slot at `idx`, relaxed. More words than a slot has do not
    /// compile.
    fn write<const W: usize>(&self, idx: u32, words: [u32; W]);
    /// The full fence between our store for the peer and our load of the peer's store. Loom tests
    /// use memory without it, to show that they find the lost wake-up.
    #[inline(always)]
    fn full_fence(&self) {
        crate::sync::fence(crate::sync::Ordering::SeqCst);
    }
}

/// A ring's slot size, and how its requests and responses are read and written: each exactly once,
/// in relaxed words.
pub trait RingKind {
    /// Number of 32-bit words in a slot.
    const SLOT_WORDS: usize;
    /// The request, which the front writes.
    type Req: Copy;
    /// The response, which the back writes.
    type Rsp: Copy + Default;
    /// The words of a response in memory that outlives the back.
    type Record: Default + AsRef<[u32]> + AsMut<[u32]>;
    /// Reads the request at index `idx`.
    fn read_req<M: RingMem<Kind = Self>>(m: &M, idx: u32) -> Self::Req;
    /// Writes the request at index `idx`.
    fn write_req<M: RingMem<Kind = Self>>(m: &M, idx: u32, req: &Self::Req);
    /// Reads the response at index `idx`.
    fn read_rsp<M: RingMem<Kind = Self>>(m: &M, idx: u32) -> Self::Rsp;
    /// Writes the response at index `idx`; no byte more than the response has.
    fn write_rsp<M: RingMem<Kind = Self>>(m: &M, idx: u32, rsp: &Self::Rsp);
    /// Whether the slot at index `idx`, whose request has no published answer, may hold an answer:
    /// a back may have died before it published that. Few requests look like one.
    fn may_be_answered<M: RingMem<Kind = Self>>(m: &M, idx: u32) -> bool {
        let _ = (m, idx);
        false
    }
    /// Encodes a response as a record.
    fn rsp_words(rsp: &Self::Rsp) -> Self::Record;
    /// Decodes a record.
    fn rsp_from_words(words: Self::Record) -> Self::Rsp;
}

/// A kind of ring whose requests are answered in any order.
pub trait AnyOrder: RingKind<Record = [u32; 4]> {
    /// A slot's words.
    type Slot: AsRef<[u32]> + AsMut<[u32]> + Copy;
    /// A slot whose words are all zero.
    const ZERO: Self::Slot;
    /// Reads the slot at index `idx`, once.
    fn read_slot<M: RingMem<Kind = Self>>(m: &M, idx: u32) -> Self::Slot;
    /// Decodes the request in a slot's words.
    fn req_from_slot(slot: &Self::Slot) -> Self::Req;
}

/// netif's TX ring: slots of 12 bytes, responses of 4 (the other 8 stay the front's own).
#[derive(Clone, Copy, Debug)]
pub struct NetTx;

/// netif's RX ring: slots of 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct NetRx;

/// netif's control ring: slots of 16 bytes, responses of 12 (the other 4 stay the front's own).
#[derive(Clone, Copy, Debug)]
pub struct NetCtrl;

impl RingKind for NetTx {
    const SLOT_WORDS: usize = 3;
    type Req = TxRequest;
    type Rsp = TxResponse;
    type Record = [u32; 2];
    #[inline(always)]
    fn read_req<M: RingMem<Kind = Self>>(m: &M, idx: u32) -> TxRequest {
        TxRequest::from_words(m.read::<3>(idx))
    }
    #[inline(always)]
    fn write_req<M: RingMem<Kind = Self>>(m: &M, idx: u32, req: &TxRequest) {
        m.write::<3>(idx, req.to_words());
    }
    #[inline(always)]
    fn read_rsp<M: RingMem<Kind = Self>>(m: &M, idx: u32) -> TxResponse {
        TxResponse::from_word(m.read::<1>(idx)[0])
    }
    #[inline(always)]
    fn write_rsp<M: RingMem<Kind = Self>>(m: &M, idx: u32, rsp: &TxResponse) {
        m.write::<1>(idx, [rsp.to_word()]);
    }
    fn may_be_answered<M: RingMem<Kind = Self>>(m: &M, idx: u32) -> bool {
        // An answer's id and status overwrite the request's gref, and the request's own id is still
        // there.
        let [first, _, last] = m.read::<3>(idx);
        first as u16 == last as u16 && matches!((first >> 16) as i16, -2..=1)
    }
    fn rsp_words(rsp: &TxResponse) -> [u32; 2] {
        [rsp.to_word(), 0]
    }
    fn rsp_from_words(words: [u32; 2]) -> TxResponse {
        TxResponse::from_word(words[0])
    }
}

/// Defines a ring kind with the given numbers of words per slot and per answer.
macro_rules! netif {
    ($kind:ty, $slot:literal, $req:ty, $answer:literal, $rsp:ty, $may_be_answered:expr) => {
        impl RingKind for $kind {
            const SLOT_WORDS: usize = $slot;
            type Req = $req;
            type Rsp = $rsp;
            type Record = [u32; $answer];
            #[inline(always)]
            fn read_req<M: RingMem<Kind = Self>>(m: &M, idx: u32) -> $req {
                <$req>::from_words(m.read::<$slot>(idx))
            }
            #[inline(always)]
            fn write_req<M: RingMem<Kind = Self>>(m: &M, idx: u32, req: &$req) {
                m.write::<$slot>(idx, req.to_words());
            }
            #[inline(always)]
            fn read_rsp<M: RingMem<Kind = Self>>(m: &M, idx: u32) -> $rsp {
                <$rsp>::from_words(m.read::<$answer>(idx))
            }
            #[inline(always)]
            fn write_rsp<M: RingMem<Kind = Self>>(m: &M, idx: u32, rsp: &$rsp) {
                m.write::<$answer>(idx, rsp.to_words());
            }
            fn may_be_answered<M: RingMem<Kind = Self>>(m: &M, idx: u32) -> bool {
                let may: fn([u32; $slot]) -> bool = $may_be_answered;
                may(m.read::<$slot>(idx))
            }
            fn rsp_words(rsp: &$rsp) -> [u32; $answer] {
                rsp.to_words()
            }
            fn rsp_from_words(words: [u32; $answer]) -> $rsp {
                <$rsp>::from_words(words)
            }
        }
    };
}

// An answer's flags and status, which is not 0, overwrite the request's gref; few references are
// that large.
netif!(NetRx, 2, RxRequest, 2, RxResponse, |[_, flags_status]| {
    flags_status >> 16 != 0 && flags_status & 0xFFFF < 0x40
});
// Its answers are kept in the control page.
netif!(NetCtrl, 4, CtrlRequest, 3, CtrlResponse, |_| false);

/// blkif's ring in the 64-bit layout: `protocol` is `x86_64-abi` or `arm-abi`. Slots of 112 bytes,
/// responses of 16.
#[derive(Clone, Copy, Debug)]
pub struct Blkif64;

/// blkif's ring in the 32-bit layout: `protocol` is `x86_32-abi`, or on x86 the front wrote no such
/// key. Slots of 108 bytes, responses of 12.
#[derive(Clone, Copy, Debug)]
pub struct Blkif32;

macro_rules! blkif {
    ($kind:ty, $abi:expr) => {
        impl RingKind for $kind {
            const SLOT_WORDS: usize = $abi.slot_words();
            type Req = blkif::Request;
            type Rsp = blkif::Response;
            type Record = [u32; 4];
            #[inline(always)]
            fn read_req<M: RingMem<Kind = Self>>(m: &M, idx: u32) -> blkif::Request {
                Self::req_from_slot(&Self::read_slot(m, idx))
            }
            #[inline(always)]
            fn write_req<M: RingMem<Kind = Self>>(m: &M, idx: u32, req: &blkif::Request) {
                const N: usize = $abi.slot_words();
                let words = req.to_words($abi);
                m.write::<N>(idx, core::array::from_fn(|i| words[i]));
            }
            #[inline(always)]
            fn read_rsp<M: RingMem<Kind = Self>>(m: &M, idx: u32) -> blkif::Response {
                const N: usize = $abi.response_words();
                let words = m.read::<N>(idx);
                blkif::Response::from_words(core::array::from_fn(|i| words.get(i).copied().unwrap_or(0)))
            }
            #[inline(always)]
            fn write_rsp<M: RingMem<Kind = Self>>(m: &M, idx: u32, rsp: &blkif::Response) {
                const N: usize = $abi.response_words();
                let words = rsp.to_words();
                m.write::<N>(idx, core::array::from_fn(|i| words[i]));
            }
            fn rsp_words(rsp: &blkif::Response) -> [u32; 4] {
                rsp.to_words()
            }
            fn rsp_from_words(words: [u32; 4]) -> blkif::Response {
                blkif::Response::from_words(words)
            }
        }

        impl AnyOrder for $kind {
            type Slot = [u32; $abi.slot_words()];
            const ZERO: Self::Slot = [0; $abi.slot_words()];
            #[inline(always)]
            fn read_slot<M: RingMem<Kind = Self>>(m: &M, idx: u32) -> Self::Slot {
                m.read(idx)
            }
            #[inline(always)]
            fn req_from_slot(slot: &Self::Slot) -> blkif::Request {
                let words = core::array::from_fn(|i| slot.get(i).copied().unwrap_or(0));
                blkif::Request::from_words($abi, &words)
            }
        }
    };
}

blkif!(Blkif64, Abi::X86_64);
blkif!(Blkif32, Abi::X86_32);
