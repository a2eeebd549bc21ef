//! Frames in pages of the guest's own, which a back keeps mapped because it was asked to: it
//! answers these requests as it likes, holds on to pages, and is followed by another one.
//!
//! ```text
//!   memory --send_own, send_headed--> TxFront --> requests, compared by the game
//!   GrefCache --question--> grants <--ADD, DEL-- answers of a tape
//! ```
//! No grant ends while a request names it, and a page counts as in flight if and only if one does.

use crate::guest_pages::{bytes_of, fill};
use crate::tape::Tape;
use pregrant::net::front::{GrefCache, HeadedFrame, TxFront};
use pregrant::platform::local::{LocalChan, LocalDomain, LocalMap, LocalRegion};
use pregrant::platform::{Access, GrantPool, GrantTable, PeerMem};
use pregrant::port::{FrameDesc, MAX_FRAME, Offload};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif_ctrl::{CtrlResponse, GrefEntry};
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::two_domains::{GUEST, HOST, TwoDomains};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Pages of the memory: more than the longest frame has.
const PAGES: usize = 24;
/// Largest number of these pages that are announced at the same time.
const PLACES: usize = 12;

pub struct OwnFrames {
    memory: LocalRegion,
    list: Vec<GrefEntry>,
    /// Grants that exist, with their pages.
    pages: RefCell<BTreeMap<u32, usize>>,
    pub held: Vec<LocalMap>,
}

impl OwnFrames {
    pub fn new(domains: &TwoDomains, tx: &mut TxFront<LocalDomain>) -> Self {
        let memory = GrantTable::pages(&domains.guest, PAGES).expect("the guest's pages");
        fill(&memory);
        let mut cache = GrefCache::new(PAGES, PLACES).expect("memory");
        cache.begin(PLACES);
        tx.set_cache(|| Ok(cache)).expect("memory");
        Self { memory, list: Vec::new(), pages: RefCell::default(), held: Vec::new() }
    }

    /// Whether this is the reference of such a page.
    pub fn names(&self, gref: u32) -> bool {
        self.pages.borrow().contains_key(&gref)
    }

    /// Plays one operation. Returns the frames that were sent. Requests without an answer have
    /// these references.
    pub fn play(
        &mut self,
        domains: &TwoDomains,
        (tx, chan): (&mut TxFront<LocalDomain>, &LocalChan),
        in_flight: &BTreeMap<u16, u32>,
        tape: &mut Tape<'_>,
    ) -> Vec<(Vec<u8>, Offload)> {
        let cache = tx.cache_mut().expect("it was given one");
        let Self { memory, list, pages, held } = self;
        let end = |gref: GrantRef| {
            assert!(in_flight.values().all(|named| *named != gref.0), "the grant of a frame in flight ends");
            domains.guest.revoke(gref).is_ok() && pages.borrow_mut().remove(&gref.0).is_some()
        };
        match tape.below(6) {
            0 => {
                let grant = |page: usize| {
                    let gref = domains.guest.grant(HOST, memory, page, Access::ReadOnly).expect("a grant");
                    let mut pages = pages.borrow_mut();
                    assert!(pages.values().all(|other| *other != page), "page {page} is granted twice");
                    pages.insert(gref.0, page);
                    Some(gref)
                };
                cache.question(list, grant, end);
                for entry in &*list {
                    held.extend(domains.host.map(GUEST, &[GrantRef(entry.gref)], Access::ReadOnly));
                }
            }
            1 => {
                let n = list.len() as u32;
                let (status, data) =
                    (tape.one_of(&[0, 0, 0, 1, 2, 77]), tape.one_of(&[n, n, n, 1, 0, u32::MAX]));
                let odd = tape.below(4) == 3;
                let statuses: Vec<u16> =
                    (0..n).map(|_| if odd { tape.one_of(&[0, 0, 2, 9]) } else { 0 }).collect();
                if tape.below(4) != 3 {
                    held.clear();
                }
                cache.take_answer(CtrlResponse { id: 0, msg_type: 9, status, data }, &statuses, end);
            }
            2 | 3 => return self.send(domains, (tx, chan), tape, false),
            4 => return self.send(domains, (tx, chan), tape, true),
            _ => {
                cache.renew();
                cache.begin(tape.below(PLACES + 1));
            }
        }
        Vec::new()
    }

    /// Sends frames from any place and of any length, some of them outside of the memory.
    fn send(
        &mut self,
        domains: &TwoDomains,
        (tx, chan): (&mut TxFront<LocalDomain>, &LocalChan),
        tape: &mut Tape<'_>,
        headed: bool,
    ) -> Vec<(Vec<u8>, Offload)> {
        let heads = [14, 66, 256, 4096, 4097, 0];
        let mut made = Vec::new();
        for _ in 0..1 + tape.below(4) {
            let page = tape.below(PAGES + 1);
            let at = page * PAGE_SIZE + tape.one_of(&[0usize, 0, 1, 2000, 4095]);
            let len = tape.one_of(&[60u32, 1514, 1, 4096, 9000, 65535, 0]);
            let gso = tape.below(4) == 3;
            let offload = match gso {
                true => Offload { csum_blank: true, csum_ok: true, gso_type: 1, gso_size: 1448 },
                false => Offload::default(),
            };
            let head: Vec<u8> = match headed {
                true => (0..tape.one_of(&heads)).map(|at: usize| (at * 5) as u8).collect(),
                false => Vec::new(),
            };
            // The guest writes to what no request names.
            if page < PAGES && !tx.cache().expect("its cache").is_in_flight(page) {
                assert!(self.memory.copy_in(page * PAGE_SIZE, &[tape.u8(); 64]));
            }
            made.push((head, FrameDesc { at: at as u32, len, offload }));
        }
        let sent = if headed {
            let frames: Vec<HeadedFrame<'_>> =
                made.iter().map(|(head, payload)| HeadedFrame { head, payload: *payload }).collect();
            tx.send_headed(&domains.guest, chan, &self.memory, &frames)
        } else {
            let frames: Vec<FrameDesc> = made.iter().map(|(_, desc)| *desc).collect();
            tx.send_own(&domains.guest, chan, &self.memory, &frames)
        };
        let whole = |(head, desc): &(Vec<u8>, FrameDesc)| {
            let (at, len) = (desc.at as usize, desc.len as usize);
            let all = head.len() + len;
            let fits = at <= self.memory.len() && len <= self.memory.len() - at;
            (fits && (1..=MAX_FRAME).contains(&all))
                .then(|| ([&head[..], &bytes_of(&self.memory, at, len)].concat(), desc.offload))
        };
        made.iter().take(sent.expect("grants to be had")).filter_map(whole).collect()
    }

    /// Pages that count as in flight are those that a request names.
    pub fn check(&self, tx: &TxFront<LocalDomain>, in_flight: &BTreeMap<u16, u32>) {
        let (cache, pages) = (tx.cache().expect("its cache"), self.pages.borrow());
        for page in 0..PAGES {
            let named = in_flight.values().any(|gref| pages.get(gref) == Some(&page));
            assert_eq!(cache.is_in_flight(page), named, "page {page}");
        }
    }

    pub fn close(mut self, domains: &TwoDomains, tx: &mut TxFront<LocalDomain>) {
        self.held.clear();
        let mut cache = tx.take_cache().expect("its cache");
        cache.disconnect(|gref| domains.guest.revoke(gref).is_ok());
        assert_eq!(cache.grants(), 0, "a grant does not end");
        assert!(domains.guest.release(self.memory).is_ok());
    }
}
