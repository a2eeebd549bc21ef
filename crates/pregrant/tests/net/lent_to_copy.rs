//! Frames for a guest whose bytes a port lends, on a platform that copies from there: they must
//! arrive whole, wherever their memory ends and their first slot is cut, and be given back once.
//!
//! ```text
//!   port: pieces, and heads in the arena --Loan--> RxQueue --copy_lent--> the guest's pages
//!                                                       '--staging--> its buffers, where a frame fits
//! ```
#![cfg(not(miri))]

use pregrant::net::back::{Polled, RxQueue, SharedControl};
use pregrant::net::features::RxAccepts;
use pregrant::net::path::staging::back::StagedBuffers;
use pregrant::net::path::{AnyPath, Chain, RX_ORDER, StagingPath};
use pregrant::platform::{Access, GrantPool, PeerMem, Platform};
use pregrant::port::{Arena, Burst, FramePort, Lender, LentPiece, Loan, Offload, Offloads, Piece};
use pregrant::ring::{BackRing, NetRx, RingPages};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::RxRequest;
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::dice::Dice;
use pregrant_testkit::model_front::RxModel;
use pregrant_testkit::ruled_domain::{RuledDomain, Rules};
use pregrant_testkit::two_domains::{GUEST, HOST, TwoDomains, byte};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

const SLOTS: usize = 256;
const HEAD: usize = 128;
const SEEDS: u64 = 20;
/// Length of a staging buffer.
const BUFFER: usize = 2048;
/// A reference that the guest has not granted.
const NO_GRANT: u32 = 99_999;

struct CopiesLent;
impl Rules for CopiesLent {
    fn copies_lent(&self) -> bool {
        true
    }
}

/// The bytes of a burst, with their places.
#[derive(Default)]
struct Shelf {
    pieces: Mutex<Vec<(u32, Vec<u8>)>>,
    may_wait: bool,
    released: AtomicU32,
}

impl Lender for Shelf {
    fn read(&self, read: &mut dyn FnMut(&[LentPiece<'_>])) {
        let mut pieces = self.pieces.lock().unwrap();
        let lent: Vec<_> = pieces
            .iter_mut()
            .map(|(at, bytes)| LentPiece { at: *at, piece: Piece::from(&mut bytes[..]) })
            .collect();
        read(&lent);
    }
    fn release(&self) {
        self.pieces.lock().unwrap().clear();
        self.released.fetch_add(1, Ordering::Relaxed);
    }
    fn may_wait(&self) -> bool {
        self.may_wait
    }
}

struct LendingPort {
    gives: VecDeque<Vec<u8>>,
    /// Of each frame that is lent its length, and what its first slot should have.
    cuts: VecDeque<(usize, usize)>,
    shelf: Arc<Shelf>,
    dice: Dice,
    bursts: u32,
}

impl FramePort for LendingPort {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, _: &Burst<'_>) -> usize {
        0
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        assert!(into.takes_lent());
        let mut pieces = self.shelf.pieces.lock().unwrap();
        assert!(pieces.is_empty(), "the burst before is given back");
        while into.has_room()
            && let Some(bytes) = self.gives.pop_front()
        {
            let to = into.room(bytes.len(), Offload::NONE).expect("room");
            to.fill(0xEE);
            let head = bytes.len().min(HEAD);
            to[..head].copy_from_slice(&bytes[..head]);
            let place = into.desc(into.len() - 1).at as usize;
            if bytes.len() <= HEAD {
                continue;
            }
            let cut = self.dice.below(3) * self.dice.below(PAGE_SIZE + 100);
            into.cut(into.len() - 1, cut as u16);
            self.cuts.push_back((bytes.len(), cut));
            let mut at = 0;
            while at < bytes.len() {
                let n = (1 + self.dice.below(3000)).min(bytes.len() - at);
                pieces.push(((place + at) as u32, bytes[at..at + n].to_vec()));
                at += n;
            }
        }
        let lends = !pieces.is_empty();
        drop(pieces);
        if lends {
            self.bursts += 1;
            into.lend(Loan::new(self.shelf.clone()));
        }
        into.len()
    }
}

/// Sends frames to a guest that posts few slots at a time, some with a wrong reference.
/// With `staging`, those that fit a buffer are staged.
fn play(may_wait: bool, staging: bool, seed: u64) {
    let domains = TwoDomains::new();
    let host = RuledDomain { domain: domains.host.clone(), rules: CopiesLent };
    let (front_ring, back_ring) = domains.ring::<NetRx>();
    let (_fc, chan) = domains.channel();
    let ring_memory = front_ring.into_pages();
    let mut model = RxModel::starting_at(RingPages::<NetRx, _>::new(ring_memory.clone()), u32::MAX - 50);
    let mut refs = vec![GrantRef::NONE; SLOTS];
    let memory = domains.guest.alloc(HOST, Access::ReadWrite, &mut refs).unwrap();
    let (ring, _) = BackRing::attach(back_ring, None).unwrap();
    let mut buffer_refs = vec![GrantRef::NONE; SLOTS * BUFFER / PAGE_SIZE];
    let buffers = domains.guest.alloc(HOST, Access::ReadWrite, &mut buffer_refs).unwrap();
    let place = (0..SLOTS).map(|id| (id * BUFFER) as u32).collect();
    let map = host.peer().map(GUEST, &buffer_refs, Access::ReadWrite).unwrap();
    let staged = StagedBuffers { map, place, len: BUFFER as u16, copy_only: false };
    let paths = staging.then(|| AnyPath::Staging(StagingPath::new(staged).expect("memory")));
    let chain = Chain::<RuledDomain<CopiesLent>>::new(RX_ORDER, paths);
    let mut back = RxQueue::in_room_of(&host, ring, chain, RxAccepts::ALL).expect("memory");
    let control = SharedControl::default();
    let shelf = Arc::new(Shelf { may_wait, ..Shelf::default() });
    let (gives, cuts, dice) = (VecDeque::new(), VecDeque::new(), Dice::new(seed));
    let mut port = LendingPort { gives, cuts, shelf: Arc::clone(&shelf), dice, bursts: 0 };
    let mut dice = Dice::new(!seed);
    let (mut asked, mut due) = (VecDeque::new(), VecDeque::new());
    let (mut page, mut failed, mut right, mut cut_ones) = (0, 0, 0, 0);
    for round in 0..60 {
        for _ in 0..dice.below(12) {
            let bytes: Vec<u8> = (0..14 + dice.below(9000)).map(|at| byte(at).wrapping_add(round)).collect();
            due.push_back(bytes.clone());
            port.gives.push_back(bytes);
        }
        for _ in 0..dice.below(40) {
            if model.free() == 0 {
                break;
            }
            page = (page + 1) % SLOTS;
            let gref = if dice.below(30) == 0 { NO_GRANT } else { refs[page].0 };
            let request = RxRequest { id: page as u16, gref };
            model.post(request);
            asked.push_back(request);
        }
        loop {
            let more = back.poll(&host, GUEST, &chan, &mut port, &control).unwrap();
            for frame in model.frames().unwrap() {
                let (want, mut at) = (due.pop_front().unwrap(), 0);
                let is_staged = staging && want.len() <= BUFFER;
                let is_bad =
                    !is_staged && frame.slots.iter().enumerate().any(|(k, _)| asked[k].gref == NO_GRANT);
                assert_eq!(frame.failed(), is_bad, "a frame fails for its own page alone");
                for slot in &frame.slots {
                    let request: RxRequest = asked.pop_front().unwrap();
                    if is_bad {
                        continue;
                    }
                    let mut got = vec![0; slot.status as usize];
                    let id = usize::from(request.id);
                    let (from, place) =
                        if is_staged { (&buffers, id * BUFFER) } else { (&memory, id * PAGE_SIZE) };
                    assert!(from.copy_out(place + usize::from(slot.offset), &mut got));
                    assert_eq!(got, want[at..at + got.len()], "round {round}");
                    at += got.len();
                }
                if want.len() > HEAD {
                    let (len, cut) = port.cuts.pop_front().unwrap();
                    assert_eq!(len, want.len());
                    let is_cut = len > PAGE_SIZE && cut > 0 && cut < PAGE_SIZE;
                    let first = if is_cut { cut } else { PAGE_SIZE.min(len) };
                    assert!(is_bad || frame.slots[0].status as usize == first, "{cut} of {len}");
                    cut_ones += u32::from(is_cut);
                }
                failed += u32::from(is_bad);
                right += u32::from(!is_bad && at == want.len());
                assert!(is_bad || at == want.len());
            }
            if more == Polled::Idle {
                break;
            }
        }
        let held = port.bursts - shelf.released.load(Ordering::Relaxed);
        assert!(held <= u32::from(may_wait && back.waiting() > 0), "{held} bursts are held in round {round}");
    }
    assert!(
        cfg!(miri) || right > 50 && failed > 5 && cut_ones > 50,
        "{right} right, {failed} failed, {cut_ones} cut"
    );
    drop(back);
    assert_eq!(port.bursts, shelf.released.load(Ordering::Relaxed));
}

#[test]
fn lent_frames_are_copied_from_where_they_are() {
    (1..=SEEDS).for_each(|seed| play(true, false, seed));
}

#[test]
fn those_that_no_staging_buffer_holds_are_cut_and_copied_too() {
    (1..=SEEDS).for_each(|seed| play(true, true, seed));
}

#[test]
fn what_may_not_wait_is_given_back_before_it_does() {
    (1..=SEEDS).for_each(|seed| play(false, false, seed));
}
