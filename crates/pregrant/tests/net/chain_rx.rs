//! RX through staging, persistent grants and copy, into requests with any id and page: frames that
//! are answered OKAY must be in their memory.
#![cfg(not(miri))]

use pregrant::net::back::{Polled, RxQueue, SharedControl};
use pregrant::net::features::RxAccepts;
use pregrant::net::path::staging::back::RxHeads;
use pregrant::net::path::{AnyPath, Chain, FrontPath, PersistentPath, RX_ORDER, StagingPath};
use pregrant::platform::{Access, GrantPool};
use pregrant::port::Offload;
use pregrant::ring::{BackRing, NetRx, RingPages};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::RxRequest;
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::model_front::RxModel;
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort, TwoDomains, Way, byte};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn what_is_answered_okay_is_in_its_memory(
        limit in 1usize..300,
        // A path whose pages are mapped to be read leaves all frames to the next one.
        heads in proptest::sample::select(&[RxHeads::InPage, RxHeads::InBoth, RxHeads::InBuffer][..]),
        acc in prop_oneof![4 => Just(Access::ReadWrite), 1 => Just(Access::ReadOnly)],
        rounds in prop::collection::vec((prop::collection::vec((0u16..256, 0u8..20), 1..60), prop::collection::vec(1usize..9000, 1..30)), 1..8),
    ) {
        let domains = TwoDomains::new();
        let (front_ring, back_ring) = domains.ring::<NetRx>();
        let (_fc, bc) = domains.channel();
        let ring_memory = front_ring.into_pages();
        let mut model = RxModel::starting_at(RingPages::<NetRx, _>::new(ring_memory.clone()), u32::MAX - 50);
        let (area, buffers) = domains.stage(Way::Staging(256), Access::ReadWrite, 0).unzip();
        let area = area.unwrap();
        let mut refs = vec![GrantRef::NONE; 256];
        let memory = domains.guest.alloc(HOST, Access::ReadWrite, &mut refs).unwrap();
        let mut ro = [GrantRef::NONE];
        let _ro = domains.guest.alloc(HOST, Access::ReadOnly, &mut ro).unwrap();
        let (ring, _) = BackRing::attach(back_ring, None).unwrap();
        let mut back = RxQueue::new(ring, Chain::new(RX_ORDER, vec![
            AnyPath::Staging(StagingPath::new(buffers.unwrap()).expect("memory").with_rx_heads(heads, false)),
            AnyPath::Persistent(PersistentPath::new(limit, acc).expect("memory")),
        ]), RxAccepts::ALL).expect("memory");
        let (mut port, control) = (TestPort::default(), SharedControl::default());
        let mut asked: std::collections::VecDeque<RxRequest> = Default::default();
        let mut frames: std::collections::VecDeque<Vec<u8>> = Default::default();
        let mut page = 0usize;
        let mut salt = 0u8;
        for (posts, lens) in rounds {
            for (id, kind) in posts {
                if model.free() == 0 { break; }
                page = (page + 1) % 256; // each page once among those in flight
                let gref = match kind { 0 => 99_999, 1 => 0, 2 => ro[0].0, _ => refs[page].0 };
                let id = if kind < 15 { page as u16 } else { id };
                let r = RxRequest { id, gref };
                model.post(r);
                asked.push_back(r);
            }
            for len in lens {
                salt = salt.wrapping_add(1);
                let f: Vec<u8> = (0..len).map(|a| byte(a).wrapping_add(salt)).collect();
                frames.push_back(f.clone());
                port.gives.push_back((f, Offload::default()));
            }
            // One batch at a time, so that what a later one writes is not taken for an earlier
            // one's.
            loop {
                let more = back.poll(&domains.host, GUEST, &bc, &mut port, &control).unwrap();
                let got = model.frames().unwrap();
                let mut last: std::collections::BTreeMap<(bool, u32), Vec<u8>> = Default::default();
                for fr in &got {
                    let want = frames.pop_front().unwrap();
                    let mut at = 0;
                    let staged = want.len() <= 256;
                    for (k, rsp) in fr.slots.iter().enumerate() {
                        let req = asked.pop_front().unwrap();
                        prop_assert_eq!(req.id, rsp.id);
                        let n = if fr.failed() { continue } else { rsp.status as usize };
                        let mut put = |staged, from: usize, to: usize| {
                            let key = if staged { (true, u32::from(req.id)) } else { (false, req.gref) };
                            let offset = rsp.offset + (from - at) as u16;
                            last.insert(key, [&offset.to_le_bytes()[..], &want[from..to]].concat());
                        };
                        // Of a long frame's first slot the bytes ahead of the buffer's end.
                        let head = if k == 0 && !staged { n.min(256) } else { 0 };
                        match heads {
                            _ if staged => put(true, at, at + n),
                            RxHeads::InBuffer if head > 0 => {
                                put(true, at, at + head);
                                put(false, at + head, at + n);
                            }
                            _ => put(false, at, at + n),
                        }
                        at += n;
                    }
                    if !fr.failed() { prop_assert_eq!(at, want.len()); }
                }
                for ((staged, k), v) in last {
                    let off = u16::from_le_bytes([v[0], v[1]]) as usize;
                    let want = &v[2..];
                    let mut is = vec![0u8; want.len()];
                    if staged {
                        assert!(off + want.len() <= 256);
                        assert!(area.bytes().copy_out(area.start(k as u16) + off, &mut is));
                    } else {
                        let p = refs.iter().position(|r| r.0 == k).expect("a page that may be written");
                        assert!(memory.copy_out(p * PAGE_SIZE + off, &mut is));
                    }
                    prop_assert!(is == want, "staged {staged} {k}");
                }
                if more != Polled::More { break; }
            }
        }
        let s = back.stats();
        prop_assert_eq!(s.staging + s.granted + s.persistent, s.frames);
        prop_assert!(acc == Access::ReadWrite || s.persistent == 0);
    }
}
