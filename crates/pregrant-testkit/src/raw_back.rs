//! A back that a test controls, connected to our front: the test reads and writes the words of the
//! ring as it likes.
//!
//! ```text
//!   Tx { front: TxFront, .. } --requests--> ring page --> RawBack: a test answers, or writes what no back would
//!   Rx { front: RxFront, .. } <--responses--
//! ```

use crate::two_domains::{SLOTS, TwoDomains, Way, release_front};
use pregrant::net::front::Granting;
use pregrant::net::front::{RxFront, TxFront};
use pregrant::net::path::{AnyFrontPath, FrontChain, FrontPath};
use pregrant::platform::Access;
use pregrant::platform::local::{LocalChan, LocalDomain, LocalMap, LocalRegion};
use pregrant::port::{Arena, Offload};
use pregrant::ring::{FrontRing, NetRx, NetTx, RingKind, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RxResponse, TxRequest, TxResponse};
use pregrant::{PAGE_SIZE, PeerFault};

/// The back's end of a ring that a test controls.
pub struct RawBack<K> {
    pub ring: RingPages<K, LocalMap>,
    pub rsp_prod: u32,
}

impl RawBack<NetTx> {
    pub fn tx(&self, k: u32) -> TxRequest {
        TxRequest::from_words(self.ring.read::<3>(k))
    }
    pub fn answer_tx(&mut self, id: u16, status: i16) {
        self.answer([TxResponse { id, status }.to_word()]);
    }
}

impl RawBack<NetRx> {
    pub fn answer_rx(&mut self, rsp: RxResponse) {
        self.answer_rx_words(rsp.to_words());
    }
    pub fn answer_rx_words(&mut self, words: [u32; 2]) {
        self.answer(words);
    }
}

impl<K: RingKind> RawBack<K> {
    fn answer<const W: usize>(&mut self, words: [u32; W]) {
        self.ring.write(self.rsp_prod, words);
        self.rsp_prod = self.rsp_prod.wrapping_add(1);
        self.ring.store(Word::RspProd, self.rsp_prod);
    }
    pub fn publish_index(&self, rsp_prod: u32) {
        self.ring.store(Word::RspProd, rsp_prod);
    }
}

/// Our TX front, connected to a back that the test controls.
pub struct Tx {
    pub domains: TwoDomains,
    pub front: TxFront<LocalDomain>,
    pub back: RawBack<NetTx>,
    pub chans: (LocalChan, LocalChan),
    pub burst: Arena,
}

impl Tx {
    pub fn new(way: Way) -> Self {
        Self::with(way, SLOTS)
    }
    /// Creates both ends for this path, with this many staging buffers if the path has any.
    pub fn with(way: Way, buffers: u32) -> Self {
        let domains = TwoDomains::new();
        let (front_ring, ring) = domains.ring::<NetTx>();
        let chans = domains.channel();
        let area = domains.stage_some(way, Access::ReadOnly, 0, buffers).map(|(area, _)| area);
        let pages = domains.ordinary(way, Access::ReadOnly, Granting::PerFrame);
        let front = TxFront::new(&domains.guest, FrontRing::new(front_ring), FrontChain::new(area, pages))
            .expect("memory");
        Self { domains, front, back: RawBack { ring, rsp_prod: 0 }, chans, burst: Arena::new() }
    }
    pub fn send(&mut self, len: usize, offload: Offload) -> usize {
        self.burst.clear();
        assert!(self.burst.push(&vec![7; len], offload));
        self.front.send(&self.domains.guest, &self.chans.0, &self.burst.burst()).expect("grants to be had")
    }
    pub fn reclaim(&mut self) -> Result<u32, PeerFault> {
        self.front.reclaim(&self.domains.guest, 1)
    }
    pub fn close(self) {
        let Self { domains, front, back, chans, .. } = self;
        drop(back);
        release_front(&domains.guest, front.into_parts());
        drop(chans);
        domains.assert_empty();
    }
}

/// Our RX front, connected to a back that the test controls. All bytes of page and buffer `k` are
/// `k + 1`.
pub struct Rx {
    pub domains: TwoDomains,
    pub front: RxFront<LocalDomain>,
    pub back: RawBack<NetRx>,
    pub chans: (LocalChan, LocalChan),
    pub arena: Arena,
}

impl Rx {
    pub fn new(way: Way) -> Self {
        Self::with_spare(way, 0)
    }
    /// Creates both ends for this path, with this many pages more than slots.
    pub fn with_spare(way: Way, spare: u32) -> Self {
        let domains = TwoDomains::new();
        let (front_ring, ring) = domains.ring::<NetRx>();
        let chans = domains.channel();
        let area = domains.stage(way, Access::ReadWrite, 0).map(|(area, _)| area);
        if let Some(area) = &area {
            for id in 0..area.entries() {
                assert!(
                    area.bytes()
                        .copy_in(area.start(id as u16), &vec![(id as u8).wrapping_add(1); area.slot_bytes()])
                );
            }
        }
        let pages = match spare {
            0 => domains.ordinary(way, Access::ReadWrite, Granting::PerFrame),
            spare => Some(domains.some_pages(SLOTS + spare, Access::ReadWrite, Granting::Standing)),
        };
        if let Some(pages) = &pages {
            for id in 0..SLOTS as usize {
                assert!(pages.bytes().copy_in(id * PAGE_SIZE, &[(id as u8).wrapping_add(1); PAGE_SIZE]));
            }
        }
        let mut front =
            RxFront::new(&domains.guest, FrontRing::new(front_ring), FrontChain::new(area, pages), 1)
                .expect("memory");
        front.post(&domains.guest, &chans.0).expect("grants to be had");
        Self { domains, front, back: RawBack { ring, rsp_prod: 0 }, chans, arena: Arena::new() }
    }
    pub fn recv(&mut self) -> Result<usize, PeerFault> {
        self.arena.clear();
        self.front.recv(&mut self.arena, 1)
    }
    /// Number of slots that were posted.
    pub fn posted(&self) -> u32 {
        self.back.ring.load(Word::ReqProd)
    }
    /// Returns the front's pages, of which the first belongs to slot 0.
    pub fn pages(&self) -> LocalRegion {
        self.front.chain().pages().expect("a queue with pages").bytes().clone()
    }
    /// Writes bytes to the memory of slot 0: its buffer, and then its page.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        for path in self.front.chain().paths() {
            let (memory, start, room) = match path {
                AnyFrontPath::Staging(area) => (area.bytes(), area.start(0), area.slot_bytes()),
                AnyFrontPath::Copy(pages) => (pages.bytes(), pages.start(0), pages.slot_bytes()),
                _ => continue,
            };
            let n = room.saturating_sub(at).min(bytes.len());
            assert!(memory.copy_in(start + at, &bytes[..n]));
        }
    }
    pub fn frames(&self) -> Vec<Vec<u8>> {
        self.arena.burst().iter().map(|(bytes, _)| bytes.to_vec()).collect()
    }
    pub fn close(self) {
        let Self { domains, front, back, chans, .. } = self;
        drop(back);
        release_front(&domains.guest, front.into_parts());
        drop(chans);
        domains.assert_empty();
    }
}
