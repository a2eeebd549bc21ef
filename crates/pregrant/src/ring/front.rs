//! The front's end of a ring: writes requests and takes the answers.

use super::{Notify, RingKind, RingMem, Word};
use crate::error::PeerFault;
use core::marker::PhantomData;

/// The front's private view of a ring.
#[derive(Debug)]
pub struct FrontRing<K, M> {
    mem: M,
    size: u32,
    /// Index of the next request to write (`req_prod_pvt`).
    req_prod_pvt: u32,
    /// The index that was published last.
    req_prod: u32,
    /// Index of the next response to take.
    rsp_cons: u32,
    /// The back's index, as last read and checked.
    rsp_prod: u32,
    /// The fault of the back, once it has made one.
    fault: Option<PeerFault>,
    kind: PhantomData<K>,
}

impl<K: RingKind, M: RingMem<Kind = K>> FrontRing<K, M> {
    /// The front's end of a ring whose page was just initialised.
    pub fn new(mem: M) -> Self {
        Self {
            size: mem.size(),
            mem,
            req_prod_pvt: 0,
            req_prod: 0,
            rsp_cons: 0,
            rsp_prod: 0,
            fault: None,
            kind: PhantomData,
        }
    }

    /// A front's end that starts at `index`, for tests of the wrap of the indices.
    pub fn starting_at(mem: M, index: u32) -> Self {
        mem.store(Word::ReqProd, index);
        mem.store(Word::RspProd, index);
        mem.store(Word::ReqEvent, index.wrapping_add(1));
        mem.store(Word::RspEvent, index.wrapping_add(1));
        Self {
            size: mem.size(),
            mem,
            req_prod_pvt: index,
            req_prod: index,
            rsp_cons: index,
            rsp_prod: index,
            fault: None,
            kind: PhantomData,
        }
    }

    /// Number of slots that can be filled now. A slot is free when its answer was taken.
    #[inline(always)]
    pub fn free(&self) -> u32 {
        self.size - self.req_prod_pvt.wrapping_sub(self.rsp_cons)
    }

    /// Number of requests written whose answer was not taken.
    #[inline(always)]
    pub fn in_flight(&self) -> u32 {
        self.req_prod_pvt.wrapping_sub(self.rsp_cons)
    }

    /// The ring index of the next request.
    #[inline(always)]
    pub fn next_index(&self) -> u32 {
        self.req_prod_pvt
    }

    /// Writes a request to the next slot. The caller has checked that one is [`free`](Self::free).
    #[inline(always)]
    pub fn push(&mut self, req: &K::Req) {
        debug_assert!(self.free() > 0);
        K::write_req(&self.mem, self.req_prod_pvt, req);
        self.req_prod_pvt = self.req_prod_pvt.wrapping_add(1);
    }

    /// Writes a request at `ahead` slots after the next one without counting it: a batch is written
    /// this way and counted by one [`advance`](Self::advance). The caller has checked that `ahead`
    /// < [`free`](Self::free).
    #[inline(always)]
    pub fn write(&self, ahead: u32, req: &K::Req) {
        debug_assert!(ahead < self.free());
        K::write_req(&self.mem, self.req_prod_pvt.wrapping_add(ahead), req);
    }

    /// Counts `n` written requests.
    #[inline(always)]
    pub fn advance(&mut self, n: u32) {
        debug_assert!(n <= self.free());
        self.req_prod_pvt = self.req_prod_pvt.wrapping_add(n);
    }

    /// Publishes all written requests to the back.
    #[inline(always)]
    pub fn publish(&mut self) -> Notify {
        let (old, new) = (self.req_prod, self.req_prod_pvt);
        if old == new {
            return Notify::No;
        }
        self.req_prod = new;
        self.mem.store(Word::ReqProd, new);
        self.mem.full_fence();
        Notify::test(old, new, self.mem.load(Word::ReqEvent))
    }

    /// Number of answers that can be taken. Reads the back's index again if fewer than `want` are
    /// cached. An error is a fault of the back, and is returned by every later call too.
    #[inline(always)]
    pub fn available(&mut self, want: u32) -> Result<u32, PeerFault> {
        let cached = self.rsp_prod.wrapping_sub(self.rsp_cons);
        if cached >= want {
            return Ok(cached);
        }
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let rsp_prod = self.mem.load(Word::RspProd);
        let in_flight = self.req_prod.wrapping_sub(self.rsp_cons);
        let n = rsp_prod.wrapping_sub(self.rsp_cons);
        // Answers to requests that were never made, or an index that went backwards.
        if n > in_flight || n < cached {
            let rsp_cons = self.rsp_cons;
            return Err(self.fail(PeerFault::RspProdOverrun { rsp_prod, rsp_cons, in_flight }));
        }
        self.rsp_prod = rsp_prod;
        Ok(n)
    }

    /// Records that an answer is invalid: from now on no answer is read.
    #[cold]
    pub fn fail(&mut self, fault: PeerFault) -> PeerFault {
        self.rsp_prod = self.rsp_cons;
        self.fault = Some(fault);
        fault
    }

    /// Prefetches the slots of the next `n` answers, before the first is read.
    #[inline(always)]
    pub fn prefetch(&self, n: u32) {
        self.mem.prefetch(self.rsp_cons, n);
    }

    /// Copies the answer at `ahead` slots after the next one from the ring. Call it once for each
    /// answer.
    #[inline(always)]
    pub fn read(&self, ahead: u32) -> K::Rsp {
        K::read_rsp(&self.mem, self.rsp_cons.wrapping_add(ahead))
    }

    /// The ring index of the next answer.
    #[inline(always)]
    pub fn rsp_cons(&self) -> u32 {
        self.rsp_cons
    }

    /// Marks `n` answers as taken, which frees their slots.
    #[inline(always)]
    pub fn consume(&mut self, n: u32) {
        debug_assert!(n <= self.rsp_prod.wrapping_sub(self.rsp_cons));
        self.rsp_cons = self.rsp_cons.wrapping_add(n);
    }

    /// Call before sleeping: asks to be notified when the `ahead`-th answer from here is published
    /// (1: the next; a higher number coalesces events), then checks once more. Returns true if
    /// there is work, do not sleep.
    pub fn final_check(&mut self, ahead: u32) -> Result<bool, PeerFault> {
        let want = ahead.max(1);
        if self.available(want)? >= want {
            return Ok(true);
        }
        self.mem.store(Word::RspEvent, self.rsp_cons.wrapping_add(want));
        self.mem.full_fence();
        Ok(self.available(want)? >= want)
    }

    /// The index after the last answer that the back has published, taken or not, and the number of
    /// published requests without an answer. If the back's index is invalid, it counts as having
    /// published none more.
    pub fn answers(&mut self) -> (u32, u32) {
        let n = self.available(u32::MAX).unwrap_or(0);
        (self.rsp_cons.wrapping_add(n), self.req_prod.wrapping_sub(self.rsp_cons).wrapping_sub(n))
    }

    /// Number of slots.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the memory when the queue is closed.
    pub fn into_mem(self) -> M {
        self.mem
    }
}
