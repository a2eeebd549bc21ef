//! A ring of blkif's slots, word by word, as a hostile end of it sees it: none of the drivers' code
//! is in it.

use pregrant::platform::local::{LocalMap, LocalRegion};
use pregrant::platform::{Access, GrantPool, PeerMem};
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{Abi, Request, SLOT_WORDS_MAX};
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::two_domains::{GUEST, HOST, TwoDomains};

/// Bytes of the indices, ahead of the slots.
const HEADER: usize = 64;
const REQ_PROD: usize = 0;
const REQ_EVENT: usize = 4;
const RSP_PROD: usize = 8;
const RSP_EVENT: usize = 12;

#[derive(Clone)]
pub struct BlkRing<S = LocalRegion> {
    memory: S,
    abi: Abi,
    /// The grants of its pages.
    pub refs: Vec<GrantRef>,
    /// Number of slots.
    pub size: u32,
}

impl BlkRing {
    /// A ring of this many pages, granted to the back, with all of its indices at `start`.
    pub fn new(domains: &TwoDomains, abi: Abi, pages: usize, start: u32) -> Self {
        let mut refs = vec![GrantRef::NONE; pages];
        let memory = domains.guest.alloc(HOST, Access::ReadWrite, &mut refs).expect("a ring");
        let ring = Self { memory, abi, refs, size: size(abi, pages) };
        for word in [REQ_PROD, RSP_PROD] {
            ring.store(word, start);
        }
        for word in [REQ_EVENT, RSP_EVENT] {
            ring.store(word, start.wrapping_add(1));
        }
        ring
    }

    /// Takes the pages back; no one has them mapped.
    pub fn close(self, domains: &TwoDomains) {
        assert!(domains.guest.release(self.memory).is_ok(), "a closed disk has its ring mapped");
    }
}

impl BlkRing<LocalMap> {
    /// A guest's, mapped by its back.
    pub fn map(domains: &TwoDomains, abi: Abi, refs: Vec<GrantRef>) -> Self {
        let memory = domains.host.map(GUEST, &refs, Access::ReadWrite).expect("a ring that is granted");
        Self { memory, abi, size: size(abi, refs.len()), refs }
    }
}

impl<S: SharedBytes> BlkRing<S> {
    fn store(&self, at: usize, word: u32) {
        assert!(self.memory.store_u32(at, word));
    }

    fn load(&self, at: usize) -> u32 {
        self.memory.load_u32(at).expect("a word of the ring")
    }

    fn slot(&self, index: u32) -> usize {
        HEADER + (index % self.size) as usize * self.abi.slot_words() * 4
    }

    pub fn write(&self, index: u32, words: &[u32; SLOT_WORDS_MAX]) {
        let at = self.slot(index);
        words
            .iter()
            .take(self.abi.slot_words())
            .enumerate()
            .for_each(|(k, word)| self.store(at + 4 * k, *word));
    }

    pub fn words(&self, index: u32) -> [u32; SLOT_WORDS_MAX] {
        let (at, n) = (self.slot(index), self.abi.slot_words());
        std::array::from_fn(|k| if k < n { self.load(at + 4 * k) } else { 0 })
    }

    /// The slot, as its back reads it.
    pub fn request(&self, index: u32) -> Request {
        Request::from_words(self.abi, &self.words(index))
    }

    /// Words of an answer; a layout without the last one has 0 there.
    pub fn answer(&self, index: u32) -> [u32; 4] {
        let (at, n) = (self.slot(index), self.abi.response_words());
        std::array::from_fn(|k| if k < n { self.load(at + 4 * k) } else { 0 })
    }

    pub fn to_words(&self, request: &Request) -> [u32; SLOT_WORDS_MAX] {
        request.to_words(self.abi)
    }

    pub fn write_answer(&self, index: u32, words: [u32; 4]) {
        let (at, n) = (self.slot(index), self.abi.response_words());
        words.iter().take(n).enumerate().for_each(|(k, word)| self.store(at + 4 * k, *word));
    }

    /// The end of the requests.
    pub fn req_prod(&self) -> u32 {
        self.load(REQ_PROD)
    }

    /// Publishes the end of the answers.
    pub fn show_answers(&self, rsp_prod: u32) {
        self.store(RSP_PROD, rsp_prod);
    }

    /// Publishes the end of the requests.
    pub fn show(&self, req_prod: u32) {
        self.store(REQ_PROD, req_prod);
    }

    /// The end of the answers.
    pub fn rsp_prod(&self) -> u32 {
        self.load(RSP_PROD)
    }

    /// Writes over an index that only delays events.
    pub fn set_event(&self, of_requests: bool, value: u32) {
        self.store(if of_requests { REQ_EVENT } else { RSP_EVENT }, value);
    }
}

/// Number of slots of a ring.
fn size(abi: Abi, pages: usize) -> u32 {
    let slots = (pages * PAGE_SIZE - HEADER) / (abi.slot_words() * 4);
    1 << slots.ilog2()
}
