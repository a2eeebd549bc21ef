//! A chain of all paths, and frames whose fragments use different paths: staged, in any page, or
//! invalid. The bytes of pages and buffers change in each round.
#![cfg(not(miri))]

use pregrant::net::back::{Polled, SharedControl, TxQueue};
use pregrant::net::path::FrontPath;
use pregrant::net::path::{AnyPath, Chain, MapPath, PersistentPath, StagingPath, TX_ORDER};
use pregrant::platform::{Access, GrantPool};
use pregrant::port::Arena;
use pregrant::ring::{BackRing, NetTx, RingPages};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{TXF_MORE_DATA, TxRequest};
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::model_front::{Slot, TxModel};
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort, TwoDomains, Way, byte};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Src {
    Staged,
    Page(u8),
    Bad,
    BadStaged,
}

fn src() -> impl Strategy<Value = Src> {
    prop_oneof![
        6 => Just(Src::Staged),
        12 => (0u8..40).prop_map(Src::Page),
        1 => Just(Src::Bad),
        1 => Just(Src::BadStaged),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn any_mix_of_sources_gives_the_bytes_of_the_guest(
        limit in 0usize..30,
        map in any::<bool>(),
        lent in any::<bool>(),
        heads in any::<bool>(),
        rounds in prop::collection::vec(prop::collection::vec(prop::collection::vec((src(), 0u16..1500, 0u16..1800), 1..6), 1..40), 1..8),
    ) {
        let domains = TwoDomains::new();
        let (front_ring, back_ring) = domains.ring::<NetTx>();
        let (fc, bc) = domains.channel();
        let ring_memory = front_ring.into_pages();
        let mut model = TxModel::starting_at(RingPages::<NetTx, _>::new(ring_memory.clone()), u32::MAX - 100);
        let (area, buffers) = domains.stage(Way::Staging(2048), Access::ReadOnly, 0).unzip();
        let area = area.unwrap();
        let mut refs = vec![GrantRef::NONE; 40];
        let memory = domains.guest.alloc(HOST, Access::ReadOnly, &mut refs).unwrap();
        let (ring, _) = BackRing::attach(back_ring, None).unwrap();
        let mut paths = vec![AnyPath::Staging(StagingPath::new(buffers.unwrap()).expect("memory").with_heads(heads))];
        if limit > 0 { paths.push(AnyPath::Persistent(PersistentPath::new(limit, Access::ReadOnly).expect("memory"))); }
        if map { paths.push(AnyPath::Map(MapPath::default())); }
        let mut back = TxQueue::new(ring, Chain::new(TX_ORDER, paths)).expect("memory");
        let mut port = TestPort { lent, ..TestPort::default() };
        let (mut arena, control) = (Arena::new(), SharedControl::default());
        let mut id = 0u16;
        let mut salt = 1u8;
        let (mut total_given, mut total_failed) = (0u64, 0u64);
        for frames in rounds {
            salt = salt.wrapping_mul(7).wrapping_add(3);
            let content: Vec<u8> = (0..memory.len()).map(|a| byte(a).wrapping_add(salt)).collect();
            assert!(memory.copy_in(0, &content));
            let mut staged = vec![0u8; area.bytes().len()];
            for (a, b) in staged.iter_mut().enumerate() { *b = byte(a ^ 0x5555).wrapping_mul(salt | 1); }
            assert!(area.bytes().copy_in(0, &staged));
            let mut want = Vec::new();
            let mut good_frames = Vec::new();
            for slots in frames {
                if (model.free() as usize) < slots.len() { break; }
                let n = slots.len();
                let mut reqs = Vec::new();
                let mut bytes = Vec::new();
                let mut good = true;
                let first_len = slots[0].2.max(20);
                let is_long = usize::from(first_len) + slots[1..].iter().map(|s| usize::from(s.2)).sum::<usize>() > 2048;
                let head = heads && is_long && !matches!(slots[0].0, Src::Staged | Src::BadStaged);
                let head_at = area.start(id);
                for (k, (src, offset, len)) in slots.into_iter().enumerate() {
                    let len = if k == 0 { len.max(20) } else { len };
                    let (gref, offset) = match src {
                        Src::Staged => {
                            let offset = offset % (2048 - len + 1).max(1);
                            let at = area.start(id) + offset as usize;
                            bytes.extend_from_slice(&staged[at..at + len as usize]);
                            (0, offset)
                        }
                        Src::Page(p) => {
                            let at = p as usize * PAGE_SIZE + offset as usize;
                            bytes.extend_from_slice(&content[at..at + len as usize]);
                            (refs[p as usize].0, offset)
                        }
                        // A head that is all of its fragment needs no grant.
                        Src::Bad => { good &= len == 0 || head && k == 0; bytes.extend(std::iter::repeat_n(0, len as usize)); (77_777, offset) }
                        Src::BadStaged => { good &= len == 0; (0, 2049) }
                    };
                    reqs.push(TxRequest { gref, offset, flags: if k + 1 < n { TXF_MORE_DATA } else { 0 }, id, size: len });
                    id = (id + 1) % 256;
                }
                if head { bytes[..first_len as usize].copy_from_slice(&staged[head_at..head_at + first_len as usize]); }
                let total: u32 = reqs.iter().map(|r| u32::from(r.size)).sum();
                reqs[0].size = total as u16;
                model.play(&reqs.iter().map(|r| Slot::Data(*r)).collect::<Vec<_>>());
                if good { want.push(bytes); }
                good_frames.push(good);
            }
            while back.poll(&domains.host, GUEST, &bc, &mut port, &mut arena, &control).unwrap() == Polled::More {}
            let answers = model.answers().unwrap();
            prop_assert_eq!(answers.len(), good_frames.len());
            for (a, good) in answers.iter().zip(&good_frames) {
                prop_assert_eq!(a.iter().all(|s| *s == 0), *good, "{:?}", a);
            }
            let took: Vec<Vec<u8>> = port.took.drain(..).map(|f| f.0).filter(|f| !f.is_empty()).collect();
            prop_assert_eq!(took.len(), want.len());
            for (t, w) in took.iter().zip(&want) { prop_assert!(t == w, "bytes differ"); }
            total_given += want.len() as u64;
            total_failed += good_frames.iter().filter(|g| !**g).count() as u64;
        }
        let s = back.stats();
        prop_assert_eq!(s.errors, total_failed);
        prop_assert_eq!(s.frames, total_given);
        prop_assert_eq!(s.staging + s.granted + s.persistent, total_given, "{:?}", s);
        prop_assert!(domains.xen.counts().mapped <= 2 + 128 + limit, "{}", domains.xen.counts().mapped);
        drop(back);
        drop((fc, bc));
        assert_eq!(domains.xen.counts().mapped, 0);
    }
}
