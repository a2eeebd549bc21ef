//! A back that answers as it likes, against our front.

use crate::world::{GUEST, HOST, World, figures};
use pregrant::PeerFault;
use pregrant::blk::back::VbdConfig;
use pregrant::blk::disk::IoError;
use pregrant::blk::features::{SECTORS_MAX, read_figures};
use pregrant::blk::front::queue::{FrontQueue, QueueConfig};
use pregrant::blk::front::{Ask, NotAsked};
use pregrant::grants::regions::{Granting, Regions};
use pregrant::platform::local::{LocalDomain, LocalMap, LocalXen};
use pregrant::platform::{Access, PeerMem};
use pregrant::ring::{Blkif64, RingKind, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{Abi, OP_READ, OP_WRITE, RSP_EOPNOTSUPP, RSP_ERROR, RSP_OKAY, Response};
use pregrant::xenbus::bus::OwnKeys;
use proptest::prelude::*;

/// A tag, and how it went.
pub type Taken = (u64, Result<(), IoError>);

pub struct Ends {
    pub guest: LocalDomain,
    pub host: LocalDomain,
    pub front: FrontQueue<LocalDomain>,
    pub ring: RingPages<Blkif64, LocalMap>,
    pub xen: LocalXen,
    pub regions: Regions<LocalDomain>,
}

impl Ends {
    pub fn new(granting: Granting) -> Self {
        let xen = LocalXen::new();
        let (guest, host) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let mut regions = Regions::new(HOST);
        let config = QueueConfig { abi: Abi::X86_64, ring_order: 0, pages: 32, granting, max_indirect: 20 };
        let (front, refs, _) = FrontQueue::new(&guest, &mut regions, config).unwrap();
        let ring = RingPages::new(host.map(GUEST, &refs, Access::ReadWrite).unwrap());
        Self { guest, host, front, ring, xen, regions }
    }

    fn submit(&mut self, ask: &Ask<'_>, tag: u64) -> Result<(), NotAsked> {
        self.front.submit(&self.guest, &mut self.regions, ask, tag)
    }

    fn ask(&mut self, ask: &Ask<'_>, tag: u64) {
        self.submit(ask, tag).unwrap();
        self.front.publish(&self.guest);
    }

    /// Puts an answer at this index.
    pub fn answer(&self, at: u32, rsp: Response) {
        Blkif64::write_rsp(&self.ring, at, &rsp);
        self.ring.store(Word::RspProd, at.wrapping_add(1));
    }

    pub fn take(&mut self) -> Result<Vec<Taken>, PeerFault> {
        let mut taken = Vec::new();
        self.front.take(&self.guest, |a| taken.push((a.tag, a.outcome)))?;
        Ok(taken)
    }

    pub fn id(&self, at: u32) -> u64 {
        Blkif64::read_req(&self.ring, at).id()
    }
}

/// A disk so long that its length in bytes would overflow is refused.
#[test]
fn a_disk_that_is_longer_than_offsets_reach_is_refused() {
    let mut world = World::new(VbdConfig::default(), figures());
    let mut says = |sectors: u64| {
        world.back_bus.own.borrow_mut().insert("sectors".into(), sectors.to_string());
        read_figures(&mut OwnKeys(&mut world.back_bus)).map(|figures| figures.sectors)
    };
    assert_eq!(says(SECTORS_MAX).ok(), Some(SECTORS_MAX));
    for sectors in [SECTORS_MAX + 1, 1 << 55, u64::MAX] {
        assert!(says(sectors).is_err(), "{sectors}");
    }
}

const READ: Ask<'static> = Ask::Read { sector: 0, sectors: 8 };

#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn ids_that_were_never_asked_and_answers_that_come_twice_are_faults() {
    let okay = |id| Response { id, op: OP_READ, status: RSP_OKAY };
    for wrong in [1u64, 31, 32, u64::MAX, 1 << 32, 5 << 32] {
        let mut ends = Ends::new(Granting::PerFrame);
        ends.ask(&READ, 1);
        let id = ends.id(0);
        ends.answer(0, okay(id ^ wrong));
        assert_eq!(ends.take(), Err(PeerFault::UnknownRequest(id ^ wrong)));
    }
    // Twice, while another request is in flight; and again when the place has another request.
    let mut ends = Ends::new(Granting::PerFrame);
    ends.ask(&READ, 1);
    ends.ask(&READ, 2);
    let id = ends.id(0);
    ends.answer(0, okay(id));
    assert_eq!(ends.take(), Ok(vec![(1, Ok(()))]));
    ends.answer(1, okay(id));
    assert_eq!(ends.take(), Err(PeerFault::UnknownRequest(id)));
    let mut ends = Ends::new(Granting::Standing);
    ends.ask(&READ, 1);
    let id = ends.id(0);
    ends.answer(0, okay(id));
    assert_eq!(ends.take(), Ok(vec![(1, Ok(()))]));
    ends.ask(&READ, 2);
    assert_eq!(ends.id(1) as u32, id as u32, "the same place");
    ends.answer(1, okay(id));
    assert_eq!(ends.take(), Err(PeerFault::UnknownRequest(id)));
}

#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn another_operation_and_more_answers_than_requests_are_faults_and_a_status_is_not() {
    let mut ends = Ends::new(Granting::PerFrame);
    ends.ask(&READ, 1);
    ends.answer(0, Response { id: ends.id(0), op: OP_WRITE, status: RSP_OKAY });
    assert_eq!(ends.take(), Err(PeerFault::WrongOperation { asked: OP_READ, answered: OP_WRITE }));
    let mut ends = Ends::new(Granting::PerFrame);
    ends.ask(&READ, 1);
    ends.answer(5, Response::default());
    assert!(matches!(ends.take(), Err(PeerFault::RspProdOverrun { .. })));
    let mut ends = Ends::new(Granting::PerFrame);
    for (at, status) in [RSP_ERROR, RSP_EOPNOTSUPP, 1, i16::MIN, i16::MAX].into_iter().enumerate() {
        ends.ask(&READ, at as u64);
        ends.answer(at as u32, Response { id: ends.id(at as u32), op: OP_READ, status });
        let e = if status == RSP_EOPNOTSUPP { IoError::NotSupported } else { IoError::Failed };
        assert_eq!(ends.take(), Ok(vec![(at as u64, Err(e))]));
    }
}

/// When memory is short, a part of a longer ring's pages is not used as a ring: both ends compute
/// its size from its pages, so the back gets a smaller ring.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn a_ring_has_as_many_pages_as_its_back_is_asked_for() {
    let xen = LocalXen::new();
    let guest = xen.domain(GUEST.0);
    xen.number_frames(GUEST, 4 + 32);
    let mut regions = Regions::new(HOST);
    for pages in [4, 32] {
        let granted = regions.take(&guest, Access::ReadWrite, pages, Granting::Standing).unwrap();
        regions.mark_exposed();
        regions.put(&guest, granted);
    }
    let config = |ring_order| {
        let granting = Granting::Standing;
        QueueConfig { abi: Abi::X86_64, ring_order, pages: 32, granting, max_indirect: 20 }
    };
    assert!(FrontQueue::new(&guest, &mut regions, config(1)).is_err());
    let (front, refs, _) = FrontQueue::new(&guest, &mut regions, config(2)).unwrap();
    assert_eq!((refs.len(), front.room()), (4, 128));
}

/// The back keeps a page mapped that it has answered for: it is granted to no one else, and used
/// again when it is let go of.
#[test]
fn xsa_396_a_page_that_is_still_mapped_is_not_used_again() {
    let mut ends = Ends::new(Granting::PerFrame);
    ends.ask(&READ, 1);
    let pregrant::wire::blkif::Request::ReadWrite(req) = Blkif64::read_req(&ends.ring, 0) else {
        unreachable!()
    };
    let kept = ends.host.map(GUEST, &[pregrant::GrantRef(req.seg[0].gref)], Access::ReadWrite).unwrap();
    ends.answer(0, Response { id: req.id, op: OP_READ, status: RSP_OKAY });
    assert_eq!(ends.take(), Ok(vec![(1, Ok(()))]));
    assert_eq!(ends.front.busy_pages(), 1);
    let mut asked = 0;
    while ends.submit(&READ, 2) != Err(NotAsked::Full) {
        asked += 1;
    }
    assert_eq!(asked, 31);
    drop(kept);
    assert_eq!(ends.submit(&READ, 2), Ok(()));
    assert_eq!(ends.front.busy_pages(), 0);
    let Ends { guest, host: _, front, ring, xen, mut regions } = ends;
    drop(ring);
    front.end(&guest, &mut regions);
    regions.release(&guest);
    assert!(regions.is_empty());
    assert_eq!((xen.counts().grants, xen.counts().mapped), (0, 0));
}

fn data_pages(ends: &Ends, at: u32) -> Vec<Vec<u8>> {
    let pregrant::wire::blkif::Request::ReadWrite(req) = Blkif64::read_req(&ends.ring, at) else {
        unreachable!("a request of few pages")
    };
    let page = |segment: &pregrant::wire::blkif::Segment| {
        let page = ends.host.map(GUEST, &[pregrant::GrantRef(segment.gref)], Access::ReadWrite).unwrap();
        let mut bytes = vec![0; 4096];
        assert!(page.copy_out(0, &mut bytes));
        bytes
    };
    req.segments().unwrap().iter().map(page).collect()
}

/// A back sees what is written to its disk, and beside that what it was shown before, or zeroes.
#[test]
fn xsa_376_403_a_disk_s_pages_show_what_is_asked_and_nothing_else() {
    for granting in [Granting::PerFrame, Granting::Standing] {
        let mut ends = Ends::new(granting);
        ends.ask(&READ, 1);
        assert_eq!(data_pages(&ends, 0), [[0; 4096]], "a page without a write");
        ends.ask(&Ask::Write { sector: 0, bytes: &[5; 4096 + 512] }, 2);
        let pages = data_pages(&ends, 1);
        assert!(pages[0] == [5; 4096] && pages[1][..512] == [5; 512] && pages[1][512..] == [0; 4096 - 512]);
        for at in 0..2 {
            let op = if at == 0 { OP_READ } else { OP_WRITE };
            ends.answer(at, Response { id: ends.id(at), op, status: RSP_OKAY });
        }
        assert_eq!(ends.take().unwrap().len(), 2);
        // The pages that came back last: what is behind the bytes was this back's to see.
        ends.ask(&Ask::Write { sector: 0, bytes: &[9; 512] }, 3);
        let page = &data_pages(&ends, 2)[0];
        assert!(page[..512] == [9; 512] && page[512..].iter().all(|byte| [0, 5].contains(byte)));
        let Ends { guest, front, ring, mut regions, .. } = ends;
        drop(ring);
        front.end(&guest, &mut regions);
    }
}

/// Slots that the back filled with ones have only the request's words afterwards.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn xsa_216_pads_of_a_disk_s_requests_are_zero() {
    let mut ends = Ends::new(Granting::PerFrame);
    (0..4).for_each(|at| ends.ring.write::<28>(at, [u32::MAX; 28]));
    let discard = Ask::Discard { sector: 8, sectors: 8, secure: true };
    for ask in [READ, Ask::Flush, discard, Ask::Read { sector: 0, sectors: 160 }] {
        ends.ask(&ask, 1);
    }
    for at in 0..4 {
        let request = Blkif64::read_req(&ends.ring, at);
        assert_eq!(ends.ring.read::<28>(at), request.to_words(Abi::X86_64), "{request:?}");
    }
    let Ends { guest, front, ring, mut regions, .. } = ends;
    drop(ring);
    front.end(&guest, &mut regions);
}

/// However requests end, all pages and places are there again.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn xsa_457_failures_of_a_disk_leak_neither_pages_nor_places() {
    for granting in [Granting::PerFrame, Granting::Standing] {
        let mut ends = Ends::new(granting);
        let room = ends.front.room();
        let data = [3; 12 * 4096];
        for at in 0..500u32 {
            let (ask, op) = match at % 3 {
                0 => (READ, OP_READ),
                1 => (Ask::Write { sector: 0, bytes: &data }, OP_WRITE),
                _ => (Ask::Read { sector: 0, sectors: 160 }, OP_READ),
            };
            ends.ask(&ask, at.into());
            let status = [RSP_OKAY, RSP_ERROR, RSP_EOPNOTSUPP, 77][at as usize % 4];
            ends.answer(at, Response { id: ends.id(at), op, status });
            assert_eq!(ends.take().unwrap().len(), 1);
            // The next one is too long, and takes nothing.
            let too_long = Ask::Read { sector: 0, sectors: 8 * 1000 };
            assert_eq!(ends.submit(&too_long, 0), Err(NotAsked::Length));
        }
        assert_eq!((ends.front.room(), ends.front.busy_pages()), (room, 0));
        let mut asked = 0;
        while ends.submit(&READ, 2) != Err(NotAsked::Full) {
            asked += 1;
        }
        assert_eq!(asked, 32, "all of its pages");
        let Ends { guest, front, ring, mut regions, .. } = ends;
        drop(ring);
        front.end(&guest, &mut regions);
    }
}

proptest! {
    /// Whatever is on the ring: each tag is returned at most once, none that was not sent, and no
    /// page is lost.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn answers_of_any_words(acts in prop::collection::vec((0u8..4, any::<u64>(), 0u8..8, any::<i16>(), 0u32..40), 1..200)) {
        let mut ends = Ends::new(Granting::PerFrame);
        let (mut next, mut rsp_prod, mut open) = (0u64, 0u32, std::collections::BTreeSet::new());
        let data = [7; 20 * 4096];
        for (act, id, op, status, k) in acts {
            match act {
                0 | 1 => {
                    let ask = match op % 4 {
                        0 => READ,
                        1 => Ask::Write { sector: id, bytes: &data[..512 * (1 + k as usize)] },
                        2 => Ask::Flush,
                        _ => Ask::Read { sector: id, sectors: 160 },
                    };
                    if ends.submit(&ask, next).is_ok() {
                        open.insert(next);
                        next += 1;
                        ends.front.publish(&ends.guest);
                    }
                }
                2 => {
                    // Often what was asked, and at times in that place anything.
                    let asked = Blkif64::read_req(&ends.ring, rsp_prod);
                    let honest = Response { id: asked.id(), op: pregrant::blk::back::request::answered_op(&asked), status };
                    let rsp = if k < 37 { honest } else { Response { id, op, status } };
                    ends.answer(rsp_prod, rsp);
                    rsp_prod = rsp_prod.wrapping_add(1);
                }
                _ => match ends.take() {
                    Ok(taken) => for (tag, _) in taken {
                        prop_assert!(open.remove(&tag), "{} twice, or never asked", tag);
                    },
                    Err(_) => break,
                },
            }
        }
        let Ends { guest, front, ring, xen, mut regions, .. } = ends;
        drop(ring);
        front.end(&guest, &mut regions);
        regions.release(&guest);
        prop_assert!(regions.is_empty());
        prop_assert_eq!(xen.counts().grants, 0);
    }
}
