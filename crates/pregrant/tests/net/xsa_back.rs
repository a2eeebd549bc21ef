//! Xen's security advisories on the data path, a hostile front against our back: those that
//! `netif_rules` and similar tests do not show. docs/threat-model.md has the table.
#![cfg(not(miri))]

use pregrant::net::batch::{RxBatch, TxBatch};
use pregrant::net::features::RxAccepts;
use pregrant::net::path::AnyClaims;
use pregrant::platform::{Access, GrantPool, PeerMem};
use pregrant::port::{Arena, BURST_FRAMES, Offload};
use pregrant::ring::{BackRing, NetRx, NetTx, RingKind, RingMem, RingPages, Word};
use pregrant::wire::grant::GrantStatus;
use pregrant::wire::netif::{
    Extra, RSP_NULL, RSP_OKAY, RXF_EXTRA_INFO, RxRequest, TXF_EXTRA_INFO, TxRequest,
};
use pregrant::{GrantRef, PAGE_SIZE, PeerFault};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::mutator::while_mutating;
use pregrant_testkit::two_domains::{GUEST, HOST, SLOTS, TwoDomains, WAYS, Way};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

/// A ring in private memory that counts how often each slot is read.
struct Counting<K> {
    kind: PhantomData<K>,
    words: [Cell<u32>; 4],
    slots: Vec<[u32; 3]>,
    reads: RefCell<Vec<u32>>,
}

impl<K> Counting<K> {
    fn new(slots: Vec<[u32; 3]>) -> Self {
        let words = [slots.len() as u32, 0, 0, 0].map(Cell::new);
        Self { kind: PhantomData, words, reads: RefCell::new(vec![0; slots.len()]), slots }
    }
}

impl<K: RingKind> RingMem for &Counting<K> {
    type Kind = K;
    fn size(&self) -> u32 {
        self.slots.len().next_power_of_two() as u32
    }
    fn load(&self, w: Word) -> u32 {
        self.words[w as usize].get()
    }
    fn store(&self, w: Word, v: u32) {
        self.words[w as usize].set(v);
    }
    fn read<const W: usize>(&self, idx: u32) -> [u32; W] {
        self.reads.borrow_mut()[idx as usize] += 1;
        std::array::from_fn(|i| self.slots[idx as usize][i])
    }
    fn write<const W: usize>(&self, _: u32, _: [u32; W]) {}
}

/// Slots with any bits, half of them close enough to valid ones to form frames.
fn slots() -> impl Strategy<Value = Vec<[u32; 3]>> {
    let slot = (any::<[u32; 3]>(), any::<bool>())
        .prop_map(|([a, b, c], tame)| if tame { [a, b & 0x000F_03FF, c & 0x03FF_00FF] } else { [a, b, c] });
    proptest::collection::vec(slot, 1..256)
}

proptest! {
    /// Validated and used values come from one read: no slot is read twice, and each that is
    /// consumed was read.
    #[test]
    fn xsa_155_197_tx_slots_are_read_once(slots in slots()) {
        let memory = Counting::<NetTx>::new(slots);
        let (mut ring, _) = BackRing::attach(&memory, None).expect("a fresh ring");
        let (mut batch, mut arena) = (TxBatch::new().expect("memory"), Arena::new());
        loop {
            let taken = batch.take(&mut ring, &mut arena, AnyClaims::default());
            prop_assert!(memory.reads.borrow().iter().all(|n| *n <= 1), "a slot is read twice");
            let consumed = &memory.reads.borrow()[..ring.req_cons() as usize];
            prop_assert!(consumed.iter().all(|n| *n == 1), "a slot is consumed unread");
            if taken.is_err() || batch.nr_frames == 0 {
                break;
            }
            prop_assert_eq!(batch.answers().len() as u32, ring.unanswered(), "an answer for each slot");
            let _ = ring.answer(batch.answers());
        }
    }

    #[test]
    fn xsa_155_197_rx_slots_are_read_once(
        slots in slots(), lens in proptest::collection::vec((14..9000usize, any::<bool>()), 1..20),
    ) {
        let memory = Counting::<NetRx>::new(slots);
        let (mut ring, _) = BackRing::attach(&memory, None).expect("a fresh ring");
        let mut arena = Arena::new();
        for (len, gso) in lens {
            let offload = if gso { Offload { gso_type: 1, gso_size: 1448, ..Offload::default() } } else { Offload::default() };
            let _ = arena.push(&vec![0; len], offload);
        }
        let mut batch = RxBatch::new().expect("memory");
        let (used, _) = batch.place(&mut ring, &arena.burst(), RxAccepts::ALL, &[]).expect("an honest index");
        prop_assert!(memory.reads.borrow().iter().all(|n| *n <= 1), "a slot is read twice");
        let read: u32 = memory.reads.borrow().iter().sum();
        let extras = arena.burst().frames[..used].iter().filter(|d| d.offload.gso_type != 0).count();
        prop_assert_eq!(read as usize + extras, batch.answers().len(), "the slot under an extra is not read");
    }
}

/// RX requests rewritten while they are read: their frames go to some page that the guest offers,
/// or fail.
#[test]
fn xsa_155_197_rx_requests_rewritten_while_they_are_read() {
    for way in [Way::Copy, Way::Staging(256), Way::Staging(65535)] {
        let domains = TwoDomains::new();
        for _ in 0..30 {
            let mut g = domains.rx_model(way, 0, RxAccepts::ALL);
            let ring = RingPages::<NetRx, _>::new(g.ring_memory.clone());
            let refs = g.refs.clone();
            let rewrite = |x: u32| {
                let gref = refs.get((x >> 8) as usize & 0x1FF).map_or(x, |r| r.0);
                let id = (x >> 4) as u16 & 0x1FF;
                ring.write::<2>(x >> 24, RxRequest { id, gref }.to_words());
            };
            let mut delivered = 0;
            while_mutating(rewrite, || {
                for _ in 0..SLOTS {
                    let id = (g.model.next_index() % SLOTS) as u16;
                    g.model.post(RxRequest { id, gref: g.refs[id as usize].0 });
                }
                g.port.gives.extend((0..64).map(|k| (vec![k; 14 + k as usize * 150], Offload::default())));
                assert_eq!(g.run(), Ok(()), "ids and grants are no reason to close");
                let stats = g.back.stats();
                delivered = stats.frames + stats.errors;
            });
            assert_eq!((delivered, g.port.gives.len()), (64, 0), "{way:?}");
            g.close();
        }
        domains.assert_empty();
    }
}

/// Answers over poisoned slots: an extra's pads are zero, and so is the id under a NULL.
#[test]
fn xsa_216_pads_of_answers_are_zero() {
    const POISON: u32 = 0xA5A5_A5A5;
    for way in WAYS {
        let domains = TwoDomains::new();
        let mut g = domains.rx_model(way, 0, RxAccepts::ALL);
        for _ in 0..3 {
            let id = g.model.next_index() as u16;
            g.model.post(RxRequest { id, gref: g.refs[id as usize].0 });
        }
        let ring = RingPages::<NetRx, _>::new(g.ring_memory.clone());
        for idx in (3..SLOTS).chain([1]) {
            ring.write::<2>(idx, [POISON; 2]); // 1: under the extra
        }
        let gso = Offload { csum_blank: true, csum_ok: true, gso_type: 2, gso_size: 1440 };
        g.port.gives.push_back((vec![1; 5000], gso));
        assert_eq!(g.run(), Ok(()));
        assert_eq!(ring.read::<2>(1), [1 | 1440 << 16, 2], "type, flags, size, type, pad, features");
        let first = ring.read::<2>(0);
        assert_eq!((first[0], (first[1] as u16) & RXF_EXTRA_INFO), (0, RXF_EXTRA_INFO), "id 0 at offset 0");
        assert!((3..SLOTS).all(|idx| ring.read::<2>(idx) == [POISON; 2]), "not asked, not written");
        g.close();

        let mut g = domains.tx_model(way, 0, 1);
        let request = TxRequest { gref: g.refs[0].0, offset: 0, flags: TXF_EXTRA_INFO, id: 3, size: 60 };
        let extra = Extra::Gso { size: 1448, gso_type: 1 };
        let [head, body, _] = extra.to_tx_words(false);
        g.model.play(&[Slot::Data(request), Slot::Extra([head, body, POISON])]);
        assert_eq!(g.run(), Ok(()));
        let null = (RSP_NULL as u16 as u32) << 16;
        assert_eq!(g.model.mem().read::<3>(1), [null, body, POISON]);
        assert_eq!(g.model.answers(), Ok(vec![vec![RSP_OKAY, RSP_NULL]]));
        g.close();
        domains.assert_empty();
    }
}

/// Every entry of lists of every length fails in turn, for each reason: exactly that entry is
/// reported, with its reason, and no other stays mapped.
#[test]
fn xsa_361_362_365_367_a_bad_entry_is_reported_and_no_other_is_mapped() {
    let domains = TwoDomains::new();
    for n in [1, 2, 17, 32, 33, 64] {
        let mut refs = vec![GrantRef::NONE; n];
        let pages = domains.guest.alloc(HOST, Access::ReadWrite, &mut refs).expect("pages");
        let mut other = [GrantRef::NONE];
        let read_only = domains.guest.alloc(HOST, Access::ReadOnly, &mut other).expect("a page");
        for (bad, status) in [
            (GrantRef(4_000_000), GrantStatus::BAD_GNTREF),
            (GrantRef::NONE, GrantStatus::BAD_GNTREF),
            (other[0], GrantStatus::PERMISSION_DENIED),
        ] {
            for k in 0..n {
                let mut list = refs.clone();
                list[k] = bad;
                let refused = domains.host.map(GUEST, &list, Access::ReadWrite).err().expect("a bad entry");
                assert_eq!((refused.index, refused.status), (Some(k), status), "entry {k} of {n}");
                assert_eq!(domains.xen.counts().mapped, 0, "entry {k} of {n}");
            }
        }
        assert!(domains.guest.release(pages).is_ok() && domains.guest.release(read_only).is_ok());
    }
    domains.assert_empty();
}

/// One slot is posted for frames that need three: only one burst waits in the back, however much
/// arrives and however often it is asked; everything else stays with the port.
#[test]
fn xsa_392_one_slot_for_longer_frames_keeps_one_burst() {
    for way in WAYS {
        let domains = TwoDomains::new();
        let mut g = domains.rx_model(way, 0, RxAccepts::ALL);
        g.model.post(RxRequest { id: 0, gref: g.refs[0].0 });
        const FRAMES: usize = 3000;
        g.port.gives.extend((0..FRAMES).map(|_| (vec![7; 2 * PAGE_SIZE + 1], Offload::default())));
        for _ in 0..1000 {
            assert_eq!(g.run(), Ok(()));
            assert_eq!(g.back.final_check(), Ok(false), "nothing to do until there are three");
        }
        let kept = FRAMES - g.port.gives.len();
        assert_eq!(kept, g.back.waiting());
        assert!(kept <= BURST_FRAMES, "{kept} frames are kept");
        assert_eq!(g.model.frames(), Ok(vec![]));
        g.close();
        domains.assert_empty();
    }
}

/// Jumps past the ring, steps backwards and over the wrap, before and between honest frames; and an
/// index that runs ahead of what was written, which is believed: the slots there are whatever the
/// guest left in them.
#[test]
fn wrong_indices_of_every_kind() {
    for start in [0, 1000, u32::MAX - 3, 1 << 31] {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(Way::Copy, start, 1);
        let gref = g.refs[0].0;
        let request = move |id| Slot::Data(TxRequest { gref, offset: 0, flags: 0, id, size: 60 });
        for round in 0..5u16 {
            g.model.play(&[request(round)]);
            assert_eq!(g.run(), Ok(()));
            let honest = g.model.next_index();
            for violation in
                [honest.wrapping_sub(1), honest.wrapping_add(257), honest ^ (1 << 31), start.wrapping_sub(1)]
            {
                g.model.publish_index(violation);
                let fault = PeerFault::ReqProdOverrun { req_prod: violation, req_cons: honest, size: SLOTS };
                assert_eq!(g.run(), Err(fault));
                assert_eq!(g.model.rsp_prod(), honest, "a false index has no answer");
            }
            // Between false indices the right one is still good: none has left a trace.
            g.model.publish_index(honest);
            assert_eq!(g.run(), Ok(()));
            assert_eq!(g.model.answers(), Ok(vec![vec![RSP_OKAY]]));
        }
        // 251 slots that no one wrote: no frames, each refused, each answered.
        let ahead = g.model.next_index().wrapping_add(SLOTS - 5);
        g.model.publish_index(ahead);
        assert_eq!(g.run(), Ok(()));
        assert_eq!((g.model.rsp_prod(), g.port.took.len()), (ahead, 5));
        assert_eq!(g.back.stats().errors, (SLOTS - 5) as u64);
        // And back to what was true before.
        g.model.publish();
        assert!(g.run().is_err());
        g.close();
        domains.assert_empty();
    }
}
