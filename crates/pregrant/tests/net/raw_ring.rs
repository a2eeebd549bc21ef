//! Both ends of a control ring under the test's control.
#![cfg(not(miri))]

use crate::gref_mapping::Pair;
use pregrant_testkit::two_domains::{GUEST, HOST};

use pregrant::platform::local::{LocalMap, LocalRegion};
use pregrant::platform::{Access, GrantPool, PeerMem};
use pregrant::ring::{NetCtrl, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif_ctrl::{CtrlRequest, CtrlResponse, CtrlType, GrefEntry};
use pregrant::{GrantRef, PAGE_SIZE};

/// A guest's end of the control ring that asks as much as it likes, with a list page for each
/// request.
pub struct RawRing {
    pub ring: RingPages<NetCtrl, LocalMap>,
    lists: Vec<(LocalRegion, GrantRef)>,
    rsp_cons: u32,
    req_prod: u32,
}

impl RawRing {
    /// Takes the ring from a front that sends no requests meanwhile.
    pub fn of(pair: &mut Pair) -> Self {
        let gref = pair.fb.own.borrow()["ctrl-ring-ref"].parse().expect("a number");
        let map = pair.h.map(GUEST, &[GrantRef(gref)], Access::ReadWrite).expect("the front's ring");
        let ring = RingPages::new(map);
        let at = ring.load(Word::RspProd);
        Self { ring, lists: Vec::new(), rsp_cons: at, req_prod: at }
    }

    pub fn ask(&mut self, pair: &Pair, id: u16, msg_type: CtrlType, queue: u32, entries: &[GrefEntry]) {
        let mut data = [queue, 0, 0];
        if !entries.is_empty() {
            let mut refs = [GrantRef::NONE];
            let page = pair.g.alloc(HOST, Access::ReadWrite, &mut refs).expect("a page");
            let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_bytes()).collect();
            assert!(page.copy_in(0, &bytes));
            self.lists.push((page, refs[0]));
            data = [queue, refs[0].0, entries.len() as u32];
        }
        let request = CtrlRequest { id, msg_type: msg_type.raw(), data };
        self.ring.write::<4>(self.req_prod, request.to_words());
        self.req_prod = self.req_prod.wrapping_add(1);
        self.ring.store(Word::ReqProd, self.req_prod);
    }

    /// Number of requests that a front has sent on it.
    pub fn requests(&self) -> u32 {
        self.ring.load(Word::ReqProd)
    }

    /// The `k`-th request from the ring's beginning.
    pub fn request(&self, k: u32) -> CtrlRequest {
        CtrlRequest::from_words(self.ring.read::<4>(k))
    }

    /// The back's part: answers the `k`-th.
    pub fn answer(&self, k: u32, (id, msg_type, status, data): (u16, u16, u32, u32)) {
        self.ring.write::<3>(k, CtrlResponse { id, msg_type, status, data }.to_words());
        self.ring.store(Word::RspProd, k + 1);
    }

    /// The back's part: fills a list that it may write to.
    pub fn scribble(&self, pair: &Pair, list: u32) {
        let list =
            pair.h.map(GUEST, &[GrantRef(list)], Access::ReadWrite).expect("the back is to write to it");
        assert!(list.copy_in(0, &[0xA5; PAGE_SIZE]));
    }

    /// Id, status, data of what was answered since.
    pub fn answers(&mut self) -> Vec<(u16, u32, u32)> {
        let mut answers = Vec::new();
        while self.rsp_cons != self.ring.load(Word::RspProd) {
            let CtrlResponse { id, status, data, .. } =
                CtrlResponse::from_words(self.ring.read::<3>(self.rsp_cons));
            answers.push((id, status, data));
            self.rsp_cons = self.rsp_cons.wrapping_add(1);
        }
        assert!(self.req_prod.wrapping_sub(self.rsp_cons) <= 128);
        answers
    }

    /// The statuses in the `k`-th list.
    pub fn statuses(&self, k: usize, n: usize) -> Vec<u16> {
        let status = |at: usize| {
            let mut entry = [0; GrefEntry::SIZE];
            assert!(self.lists[k].0.copy_out(at * GrefEntry::SIZE, &mut entry));
            GrefEntry::from_bytes(entry).status
        };
        (0..n).map(status).collect()
    }

    pub fn end(self, pair: &Pair) {
        for (page, _) in self.lists {
            assert!(pair.g.release(page).is_ok(), "a list is mapped still");
        }
    }
}
