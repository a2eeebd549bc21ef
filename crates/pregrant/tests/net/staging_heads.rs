//! RX: the head of a frame that is longer than a staging buffer is in the buffer, in the page or in
//! both (docs/protocol 3.3); and ends that disagree about it.
#![cfg(not(miri))]

use pregrant::net::back::{BackVif, Polled, PreviousState, SharedControl, VifConfig};
use pregrant::net::features::RxAccepts;
use pregrant::net::front::{FrontConfig, FrontVif, Granting, Lent};
use pregrant::net::path::staging::Heads;
use pregrant::net::path::staging::back::RxHeads;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::net::path::{AnyPath, FrontPath, PathConfig, StagingPath};
use pregrant::platform::Access;
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::port::{Arena, Offload};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RXF_MORE_DATA, RxRequest, RxResponse};
use pregrant::{PAGE_SIZE, PeerFault};
use pregrant_testkit::bus::{connect, device};
use pregrant_testkit::raw_back::Rx;
use pregrant_testkit::two_domains::{GUEST, HOST, RxGame, TestPort, TwoDomains, Way};

const PAGE: u16 = PAGE_SIZE as u16;

fn frame(len: usize) -> Vec<u8> {
    (0..len).map(|k| (k * 7 % 251) as u8 | 1).collect()
}

/// The model front with buffers of 256 bytes; its pages and buffers are full of zeros.
fn model(domains: &TwoDomains, heads: RxHeads) -> RxGame {
    let (area, buffers) = domains.stage(Way::Staging(256), Access::ReadWrite, 0).unzip();
    let path =
        StagingPath::new(buffers.expect("staging buffers")).expect("memory").with_rx_heads(heads, false);
    domains.rx_model_by(AnyPath::Staging(path).into(), area, u32::MAX - 3, RxAccepts::ALL)
}

/// Bytes of buffer `id`, and of its page.
fn memory(g: &RxGame, id: u16) -> (Vec<u8>, Vec<u8>) {
    let area = g.area.as_ref().expect("a staging area");
    let (mut buffer, mut page) = (vec![0; 256], vec![0; PAGE_SIZE]);
    assert!(area.bytes().copy_out(area.start(id), &mut buffer));
    assert!(g.memory.copy_out(usize::from(id) * PAGE_SIZE, &mut page));
    (buffer, page)
}

/// Byte for byte: the buffer has the bytes before byte 256 of the first page, and the page has the
/// rest. Answers are the same as without heads.
#[test]
fn the_head_of_a_longer_frame_is_in_its_buffer() {
    for heads in [RxHeads::InPage, RxHeads::InBoth, RxHeads::InBuffer] {
        for (len, headroom) in [
            (257, 0),
            (260, 0),
            (1514, 0),
            (4096, 0),
            (4097, 0),
            (9000, 0),
            (65_535, 0),
            (260, 64),
            (60, 256),
        ] {
            let domains = TwoDomains::new();
            let mut g = model(&domains, heads);
            g.back.set_headroom(headroom);
            let sent = frame(len);
            g.port.gives.push_back((sent.clone(), Offload::default()));
            for id in 0..18 {
                g.model.post(RxRequest { id, gref: g.refs[usize::from(id)].0 });
            }
            assert_eq!(g.run(), Ok(()));
            let came = g.model.frames().expect("answers by the rules").remove(0);
            let what = format!("{heads:?} {len} behind {headroom}");
            let room = usize::from(PAGE - headroom);
            let whole = (came.bytes(), came.slots.len(), came.slots[0].offset);
            assert_eq!(whole, (len, len.div_ceil(room), headroom), "{what}");
            let (buffer, page) = memory(&g, 0);
            let from = usize::from(headroom);
            let first = len.min(room);
            let head = first.min(256 - from);
            let ahead = |n: usize| [&vec![0; from][..], &sent[..n], &vec![0; 256 - from - n]].concat();
            let in_buffer = if heads == RxHeads::InPage { 0 } else { head };
            assert!(buffer == ahead(in_buffer), "{what}: the buffer");
            let in_page = if heads == RxHeads::InBuffer { head } else { 0 };
            assert!(
                page[..from + in_page].iter().all(|byte| *byte == 0),
                "{what}: what is in the buffer alone"
            );
            assert!(page[from + in_page..from + first] == sent[in_page..first], "{what}: the page");
            let copies = g.back.stats().grant_ops.copies as usize;
            assert_eq!(copies, len.div_ceil(room), "{what}: one for each slot");
            g.close();
            domains.assert_empty();
        }
    }
}

/// A head that is all of a slot costs no grant operation.
#[test]
fn a_slot_that_is_a_head_is_not_copied() {
    let domains = TwoDomains::new();
    let mut ends = domains.rx(Way::Heads(4096), Granting::PerFrame, 0, false);
    let before = domains.xen.counts().copies;
    let mut port = TestPort { gives: [(frame(9000), Offload::default())].into(), ..TestPort::default() };
    ends.front.post(&domains.guest, &ends.front_chan).expect("grants to be had");
    let control = SharedControl::default();
    while ends.back.poll(&domains.host, GUEST, &ends.back_chan, &mut port, &control) == Ok(Polled::More) {}
    let mut got = Arena::new();
    assert_eq!(ends.front.recv(&mut got, 1), Ok(1));
    assert!(got.burst().frame(0) == frame(9000));
    assert_eq!(domains.xen.counts().copies - before, 2);
    ends.close(&domains);
    domains.assert_empty();
}

/// An id that is in no list, and one twice in a batch: the frame fails where its head has to be in
/// the buffer, and no other.
#[test]
fn a_head_without_a_buffer_is_an_error_where_it_has_to_have_one() {
    for (heads, fails) in [(RxHeads::InPage, false), (RxHeads::InBoth, false), (RxHeads::InBuffer, true)] {
        let domains = TwoDomains::new();
        let mut g = model(&domains, heads);
        let ids = [9, 9, 300, u16::MAX, 8];
        for (k, id) in ids.into_iter().enumerate() {
            g.model.post(RxRequest { id, gref: g.refs[k].0 });
            g.port.gives.push_back((frame(300), Offload::default()));
        }
        assert_eq!(g.run(), Ok(()));
        let failed: Vec<_> = g.model.frames().expect("answers").iter().map(|f| f.failed()).collect();
        assert_eq!(failed, [false, fails, fails, fails, false], "{heads:?}");
        // A page that is not granted fails it as ever.
        g.model.post(RxRequest { id: 7, gref: 99_999 });
        g.model.post(RxRequest { id: 6, gref: g.refs[6].0 });
        g.port.gives.extend([(frame(300), Offload::default()), (frame(300), Offload::default())]);
        assert_eq!(g.run(), Ok(()));
        let failed: Vec<_> = g.model.frames().expect("answers").iter().map(|f| f.failed()).collect();
        assert_eq!(failed, [true, false], "{heads:?}");
        g.close();
        domains.assert_empty();
    }
}

/// A back may answer anything: each byte of a frame is in the memory that the rules say, or the
/// device is closed.
#[test]
fn answers_whose_sizes_do_not_fit_are_faults() {
    let fault = |offset, status| Err(PeerFault::BadResponse { offset, status });
    for (offset, status, rest, due) in [
        (0, 257, None, Ok([256, 1, 0])),
        (0, 4096, None, Ok([256, 3840, 0])),
        (100, 300, None, Ok([156, 144, 0])),
        (255, 300, None, Ok([1, 299, 0])),
        (256, 300, None, Ok([0, 300, 0])),
        (3796, 300, None, Ok([0, 300, 0])),
        (3797, 300, None, fault(3797, 300)),
        (1, 4096, None, fault(1, 4096)),
        (u16::MAX, i16::MAX, None, fault(u16::MAX, i16::MAX)),
        (57, 200, None, fault(57, 200)), // short, and past its buffer
        (0, 200, Some((0, 100)), Ok([200, 0, 100])),
        (0, 0, Some((0, 100)), Ok([0, 0, 100])),
        (0, 300, Some((4000, 96)), Ok([256, 44, 96])),
        (255, 1, Some((0, 4096)), Ok([1, 0, 4096])),
        (4096, 0, Some((0, 14)), Ok([0, 0, 14])),
        (4097, 0, Some((0, 14)), fault(4097, 0)),
        (1, 4096, Some((0, 14)), fault(1, 4096)),
        (0, 300, Some((4000, 97)), fault(4000, 97)),
        (300, 3797, Some((0, 14)), fault(300, 3797)),
    ] {
        let mut r = Rx::new(Way::Heads(256));
        let area = r.front.chain().staging().expect("a staging area");
        assert!(area.bytes().copy_in(0, &[7; 256]));
        let flags = if rest.is_some() { RXF_MORE_DATA } else { 0 };
        r.back.answer_rx(RxResponse { id: 0, offset, flags, status });
        if let Some((offset, status)) = rest {
            r.back.answer_rx(RxResponse { id: 0, offset, flags: 0, status });
        }
        let what = format!("{status} at {offset}, {rest:?}");
        match due {
            Ok([head, behind, second]) => {
                assert_eq!(r.recv(), Ok(1), "{what}");
                let bytes = [vec![7; head], vec![1; behind], vec![2; second]].concat();
                assert!(r.frames() == [bytes], "{what}");
                assert_eq!(r.front.stats().granted, 1, "{what}");
            }
            Err(fault) => assert_eq!(r.recv(), Err(fault), "{what}"),
        }
        r.close();
    }
}

/// Frames with heads in buffers are copied whole where others are passed by reference: none of
/// their pages leaves its slot.
#[test]
fn by_reference_they_are_copied() {
    let mut r = Rx::new(Way::Heads(256));
    r.back.answer_rx(RxResponse { id: 0, offset: 0, flags: 0, status: 1500 });
    r.back.answer_rx(RxResponse { id: 0, offset: 0, flags: RXF_MORE_DATA, status: 4096 });
    r.back.answer_rx(RxResponse { id: 0, offset: 0, flags: 0, status: 100 });
    let mut lent = Lent::default();
    assert_eq!(r.front.recv_by_reference(&mut r.arena, &mut lent, 1), Ok(2));
    assert_eq!((lent.frames(), r.front.lent()), (0, 0));
    assert!(r.frames() == [vec![1; 1500], [vec![2; 4096], vec![3; 100]].concat()]);
    r.close();
}

fn back(heads: bool) -> BackVif<LocalDomain> {
    let paths = PathConfig { staging: Heads { heads }, guest_copy: true, ..PathConfig::default() };
    BackVif::new(GUEST, 0, VifConfig { paths, ..VifConfig::default() })
}

/// Sends one frame of 300 bytes. The previous content of the buffers shows from where the front
/// took its first bytes.
fn one_comes(
    (g, front): (&LocalDomain, &mut FrontVif<LocalDomain>),
    (h, back): (&LocalDomain, &mut BackVif<LocalDomain>),
) {
    let mut port = TestPort { gives: [(frame(300), Offload::default())].into(), ..TestPort::default() };
    while back.poll_rx(h, 0, &mut port) == Ok(Polled::More) {}
    let mut got = Arena::new();
    let queue = front.queue_mut(0).expect("a queue");
    assert_eq!(queue.recv(g, &mut got, 1), Ok(1));
    assert!(got.burst().frame(0) == frame(300));
}

/// Which key each end writes, and the result: heads are only in the buffer if both ends write it,
/// in both places if the front may be the proposal's own; a successor follows the written keys.
#[test]
fn both_ends_say_that_heads_are_in_buffers() {
    const KEY: &str = "staging-grants-rx-heads";
    let len = DataLen::new(256);
    for (offers, asks, next_offers) in [
        (true, true, true),
        (true, true, false),
        (false, false, true),
        (true, false, true),
        (false, false, false),
    ] {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        // Without RX buffers there are no heads.
        let staging = Buffers::of(len, len.filter(|_| asks || !offers));
        let mut front = FrontVif::new(HOST, FrontConfig { staging, ..FrontConfig::default() }, false);
        let mut vif = back(offers);
        connect((&g, &mut front, &mut fb), (&h, &mut vif, &mut bb));
        let said = [&bb, &fb].map(|bus| bus.own.borrow().get(KEY).cloned());
        assert_eq!(said.each_ref().map(Option::is_some), [offers, asks]);
        let name = if asks { "staging+copy" } else { "staging" };
        let due = if staging.rx.is_some() { vec![name, "copy"] } else { vec!["copy"] };
        assert_eq!(vif.chain(0, 1), due);
        one_comes((&g, &mut front), (&h, &mut vif));
        drop(vif);
        let mut next = back(next_offers);
        assert_eq!(next.inherit(&mut bb), Ok(PreviousState::Connected));
        assert_eq!(next.reattach(&h, &mut bb, &mut |_, _| None).ok(), Some(true));
        assert_eq!(next.chain(0, 1), due);
        one_comes((&g, &mut front), (&h, &mut next));
        next.close(&h, &mut bb, None).expect("a map");
        let _ = front.step(&g, &mut fb);
        drop(front);
        assert_eq!(xen.counts().mapped, 0);
    }
}

/// A frame that uses another path as a whole has its head there, too; when that path is full, the
/// next frame is in its buffer and its page again.
#[test]
fn what_goes_another_way_goes_as_a_whole() {
    let staging = Buffers::of(DataLen::new(256), DataLen::new(256));
    let config = FrontConfig { staging, granting: Granting::PerFrame, ..FrontConfig::default() };
    for (config, way) in [
        (FrontConfig { data_ring: Some(2), ..config }, "data-ring"),
        (FrontConfig { guest_copy: true, ..config }, "guest-copy"),
        (FrontConfig { persistent: true, ..config }, "persistent"),
        (FrontConfig { gref_mapping: true, ..config }, "gref-mapping"),
    ] {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        let mut front = FrontVif::new(HOST, config, false);
        let mut vif = back(true);
        connect((&g, &mut front, &mut fb), (&h, &mut vif, &mut bb));
        let (mut port, mut got) = (TestPort::default(), Arena::new());
        for round in 0..40 {
            let sent: Vec<_> = [300, 60, 9000, 4096, 257, 256, 5000].map(|len| frame(len + round)).into();
            port.gives.extend(sent.iter().map(|bytes| (bytes.clone(), Offload::default())));
            while vif.poll_rx(&h, 0, &mut port) == Ok(Polled::More) {}
            got.clear();
            let queue = front.queue_mut(0).expect("a queue");
            assert_eq!(queue.recv(&g, &mut got, 1), Ok(sent.len()), "{way}");
            assert!((0..sent.len()).all(|i| got.burst().frame(i) == sent[i]), "{way}, {round}");
        }
        let stats = vif.stats(0).1;
        let by = [stats.data_ring, stats.guest_copy, stats.persistent, stats.gref_mapping];
        println!("{way}: {stats:?}");
        assert!(by.iter().sum::<u64>() + stats.granted + stats.staging == stats.frames, "{way}: {stats:?}");
        assert!(way == "gref-mapping" || by.iter().any(|n| *n > 0), "{way}: {stats:?}");
        assert!(way != "data-ring" || stats.granted > 0, "it is full at times: {stats:?}");
        vif.close(&h, &mut bb, None).expect("a map");
        let _ = front.step(&g, &mut fb);
        drop(front);
        assert_eq!(xen.counts().mapped, 0);
    }
}

/// A front that follows the text of 2016, without a revision, finds its heads in both places,
/// whatever the back's operator chose; one that writes a key that it was not offered changes
/// nothing.
#[test]
fn a_front_that_cannot_say_it_finds_them_in_both() {
    for (heads, revision, said, both) in [
        (false, "1", None, true),
        (true, "1", None, true),
        (false, "3", Some("1"), false),
        (true, "3", Some("no"), false),
    ] {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        let mut front = FrontVif::new(HOST, FrontConfig::default(), false);
        let mut vif = back(heads);
        let _ = vif.step(&h, &mut bb, &mut |_, _| None).expect("keys");
        // Our front, which then reads its pages: the back before it offered no heads.
        bb.own.borrow_mut().remove("staging-grants-rx-heads");
        front.step(&g, &mut fb).expect("an honest back");
        {
            let mut own = fb.own.borrow_mut();
            own.insert("staging-grants-revision".into(), revision.into());
            own.extend(said.map(|text| ("staging-grants-rx-heads".into(), text.to_string())));
        }
        for _ in 0..4 {
            let _ = vif.step(&h, &mut bb, &mut |_, _| None).expect("an honest front");
            front.step(&g, &mut fb).expect("an honest back");
        }
        assert!(front.staging_accepted(0));
        one_comes((&g, &mut front), (&h, &mut vif));
        let area = front.queue(0).expect("a queue").rx().chain().staging().expect("a staging area");
        let mut buffer = [0; 256];
        assert!(area.bytes().copy_out(area.start(0), &mut buffer));
        assert_eq!(buffer[..] == frame(300)[..256], both, "{heads}, {revision}, {said:?}");
        drop((vif, front));
    }
}
