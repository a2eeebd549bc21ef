//! XSA-155 and 197 at the front: each answer is read once. Shown with a ring that changes at a
//! chosen access.
#![cfg(not(miri))]

use pregrant::net::front::Granting;
use pregrant::net::front::RxFront;
use pregrant::net::front::regions::Regions;
use pregrant::net::path::FrontChain;
use pregrant::net::path::FrontPath;
use pregrant::net::path::copy::front::OrdinaryPages;
use pregrant::net::path::staging::front::StagingArea;
use pregrant::net::path::staging::list::DataLen;
use pregrant::platform::local::{LocalDomain, LocalRegion};
use pregrant::platform::{Access, GrantPool, GrantTable, InUse};
use pregrant::port::{Arena, Offload};
use pregrant::ring::{FrontRing, NetRx, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{Extra, RSP_ERROR, RXF_EXTRA_INFO, RXF_MORE_DATA, RxResponse};
use pregrant::{DomId, GrantRef, PAGE_SIZE, PeerFault, PlatformError};
use pregrant_testkit::own_grants::OwnGrants;
use pregrant_testkit::two_domains::{HOST, SLOTS, TwoDomains, Way};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const ANSWERS: usize = 8;
type Answers = [[u32; 2]; ANSWERS];

/// The back that writes between two accesses of the front: of `at`, all slots are as in `then`.
struct Rewriter {
    back: RingPages<NetRx, LocalRegion>,
    accesses: AtomicUsize,
    at: AtomicUsize,
    then: Answers,
}

/// The guest's memory. Each access to a ring's word or slot asks for its place once, and so may be
/// seen here.
struct Region {
    memory: LocalRegion,
    watched: Option<Arc<Rewriter>>,
}

// SAFETY: as the memory within.
#[allow(unsafe_code)]
unsafe impl SharedBytes for Region {
    fn base(&self) -> NonNull<u8> {
        if let Some(rewriter) = &self.watched {
            let k = rewriter.accesses.load(Relaxed);
            rewriter.accesses.store(k + 1, Relaxed);
            if k == rewriter.at.load(Relaxed) {
                write(&rewriter.back, &rewriter.then);
            }
        }
        self.memory.base()
    }
    fn len(&self) -> usize {
        self.memory.len()
    }
}

struct Guest(LocalDomain);

// SAFETY: everything is the domain's.
#[allow(unsafe_code)]
unsafe impl GrantPool for Guest {
    type Region = Region;
    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<Region, PlatformError> {
        Ok(Region { memory: self.0.alloc(to, acc, refs)?, watched: None })
    }
    fn release(&self, region: Region) -> Result<(), InUse<Region>> {
        self.0.release(region.memory).map_err(|e| InUse(Region { memory: e.0, watched: None }))
    }
    fn per_frame(&self) -> Option<&dyn GrantTable<Region = Region>> {
        None
    }
}

fn write(back: &RingPages<NetRx, LocalRegion>, answers: &Answers) {
    for (k, words) in answers.iter().enumerate() {
        back.write::<2>(k as u32, *words);
    }
}

/// The result of a run: frames with their bytes and offloads, or the fault, and the number of
/// errors.
type Came = (Result<usize, PeerFault>, Vec<(Vec<u8>, Offload)>, u64);

/// A new front takes the answers `now`, which become `then` at the access `at` of its `recv`.
/// Returns what came and the accesses that `recv` made.
fn run(way: Way, now: &Answers, then: &Answers, at: usize) -> (Came, usize) {
    let domains = TwoDomains::new();
    let guest = OwnGrants::new(domains.guest.clone(), Guest);
    let memory = domains.ring::<NetRx>().0.into_pages();
    let back = RingPages::<NetRx, _>::new(memory.clone());
    let rewriter = Arc::new(Rewriter {
        back,
        accesses: AtomicUsize::new(0),
        at: AtomicUsize::new(usize::MAX),
        then: *then,
    });
    let watched = Region { memory, watched: Some(rewriter.clone()) };
    let ring = FrontRing::new(RingPages::<NetRx, _>::new(watched));
    let fill = |region: &Region, stride: usize| {
        for id in 0..ANSWERS {
            let bytes: Vec<u8> = (0..stride).map(|at| (id * 29 + at / 8) as u8).collect();
            assert!(region.copy_in(id * stride, &bytes));
        }
    };
    let staging = match way {
        Way::Staging(len) | Way::Heads(len) => {
            let len = DataLen::new(len).expect("a length that buffers can have");
            let area = StagingArea::new(&guest, &mut Regions::new(HOST), Access::ReadWrite, len, SLOTS, 0)
                .expect("buffers");
            fill(area.bytes(), area.slot_bytes());
            Some(area)
        }
        _ => None,
    };
    let pages =
        OrdinaryPages::new(&guest, &mut Regions::new(HOST), Access::ReadWrite, SLOTS, Granting::Standing)
            .expect("pages");
    fill(pages.bytes(), PAGE_SIZE);
    let mut front = RxFront::new(&guest, ring, FrontChain::new(staging, Some(pages)), 1).unwrap();
    let chan = domains.channel();
    front.post(&guest, &chan.0).expect("standing grants");
    write(&rewriter.back, now);
    rewriter.back.store(Word::RspProd, ANSWERS as u32);
    rewriter.accesses.store(0, Relaxed);
    rewriter.at.store(at, Relaxed);
    let mut arena = Arena::new();
    let got = front.recv(&mut arena, 1);
    let frames = arena.burst().iter().map(|(bytes, offload)| (bytes.to_vec(), offload)).collect();
    ((got, frames, front.stats().errors), rewriter.accesses.load(Relaxed))
}

fn answers(of: impl Fn(u16) -> RxResponse) -> Answers {
    std::array::from_fn(|k| of(k as u16).to_words())
}

/// Memory that changes between two accesses gives the same result as memory whose first slots are
/// the old ones and the rest the new ones: no slot is read twice.
#[test]
fn xsa_155_197_rx_answers_are_read_once() {
    let answer = |offset, flags, status| RxResponse { id: 0, offset, flags, status };
    let plain = answers(|k| answer(8 * k, 0, 60 + k as i16));
    let other = answers(|k| answer(100 + k, 0, 20 + k as i16));
    let refused = answers(|_| answer(0, 0, RSP_ERROR));
    let chains = answers(|k| answer(k, if k % 3 < 2 { RXF_MORE_DATA } else { 0 }, 40 + k as i16));
    let at_the_end = answers(|k| answer(4000, 0, 500 + k as i16));
    let mut extras = answers(|k| answer(k, if k % 2 == 0 { RXF_EXTRA_INFO } else { 0 }, 30 + k as i16));
    for k in (1..ANSWERS).step_by(2) {
        extras[k] = Extra::Gso { size: 1448, gso_type: 1 }.to_words(false);
    }
    let all = [plain, other, refused, chains, at_the_end, extras];
    let mut changed = 0;
    for way in [Way::Copy, Way::Staging(256)] {
        for (now, then) in all.iter().flat_map(|now| all.iter().map(move |then| (now, then))) {
            let cut = |n: usize| std::array::from_fn(|k| if k < n { now[k] } else { then[k] });
            let of_one_read: Vec<Came> =
                (0..=ANSWERS).map(|n| run(way, &cut(n), &cut(n), usize::MAX).0).collect();
            let accesses = run(way, now, then, usize::MAX).1;
            assert!(accesses > ANSWERS, "the accesses are seen");
            for at in 0..accesses {
                let (came, _) = run(way, now, then, at);
                assert!(of_one_read.contains(&came), "{way:?}, at {at}, {now:x?} then {then:x?}: {came:x?}");
                changed += (came != of_one_read[0] && came != of_one_read[ANSWERS]) as u32;
            }
        }
    }
    assert!(changed > 100, "some runs see a change in their midst: {changed}");
}
