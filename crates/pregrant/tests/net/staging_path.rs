//! Staging buffers: the list that a front writes and a back validates, and valid and invalid
//! requests that name buffers (docs/protocol 3.2, 3.3).
#![cfg(not(miri))] // Miri has data_path_race

use pregrant::net::back::{Polled, SharedControl};
use pregrant::net::features::RxAccepts;
use pregrant::net::front::Granting;
use pregrant::net::front::regions::Regions;
use pregrant::net::path::staging::front::StagingArea;
use pregrant::net::path::staging::list::{self as staging_list, DataLen, ListFault, colour};
use pregrant::net::path::{AnyPath, FrontPath, StagingPath};
use pregrant::platform::local::{LocalMap, Pages};
use pregrant::platform::{Access, PeerMem};
use pregrant::port::{Arena, Offload};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::GrantStatus;
use pregrant::wire::netif::{GSO_TYPE_TCPV4, RSP_ERROR, RSP_OKAY, RxRequest, TXF_MORE_DATA, TxRequest};
use pregrant::wire::staging::StagingEntry;
use pregrant::{GrantRef, PAGE_SIZE, PeerFault};
use pregrant_testkit::model_front::{RxFrame, Slot};
use pregrant_testkit::two_domains::{GUEST, HOST, RxGame, SLOTS, TestPort, TwoDomains, TxEnds, TxGame, Way};
use proptest::prelude::*;
use std::ptr::NonNull;

const OKAY: i16 = RSP_OKAY;
const ERROR: i16 = RSP_ERROR;

fn len(content: u32) -> DataLen {
    DataLen::new(content).expect("a length that buffers can have")
}

/// A list as an honest front with pages 8, 9, ... writes it.
fn entries(n: u32, content: u32, first_id: u16) -> Vec<StagingEntry> {
    let bytes = len(content).buffer_bytes() as u32;
    let per_page = PAGE_SIZE as u32 / bytes;
    (0..n)
        .map(|k| StagingEntry {
            id: first_id + k as u16,
            gref: 8 + k / per_page,
            offset: (k % per_page * bytes) as u16,
        })
        .collect()
}

fn raw(pages: &Pages, list: &[StagingEntry]) {
    for (k, e) in list.iter().enumerate() {
        assert!(pages.copy_in(k * StagingEntry::SIZE, &e.to_bytes()));
    }
}

// The list.

#[test]
fn lengths_are_what_keys_may_say() {
    for (value, buffer) in [(16, 16), (128, 128), (4096, 4096), (65535, 4096), (65536, 4096)] {
        let len = DataLen::new(value).expect("a length that buffers can have");
        assert_eq!((len.buffer_bytes(), len.copy_only()), (buffer, value > 4096));
    }
    assert_eq!(DataLen::new(65536), DataLen::new(65535));
    for value in [0, 15, 4097, 65534, 65537, u32::MAX] {
        assert_eq!(DataLen::new(value), None);
    }
}

/// An entry is 8 bytes with its reference on an odd half-word: bytes, not a struct, are what is
/// shared.
#[test]
fn entries_are_unaligned() {
    let pages = Pages::new(1);
    assert!(staging_list::write(
        &pages,
        [StagingEntry { id: 0x0102, gref: 0x0304_0506, offset: 0x0708 }].into_iter()
    ));
    let mut content = [0xFF; 16];
    assert!(pages.copy_out(0, &mut content));
    assert_eq!(content, [2, 1, 6, 5, 4, 3, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_list_ends_at_its_terminator_its_page_or_the_most_that_is_wanted() {
    let pages = Pages::new(1);
    let full = entries(512, 64, 0);
    assert!(staging_list::write(&pages, full.iter().copied()));
    assert_eq!(staging_list::read(&pages, 600).expect("memory"), full, "a full page has no terminator");
    assert_eq!(staging_list::read(&pages, 512).expect("memory"), full);
    assert_eq!(staging_list::read(&pages, 256).expect("memory"), full[..256]);
    assert!(!staging_list::write(&pages, entries(513, 64, 0).into_iter()), "more than the page holds");

    // Entries behind the terminator do not count, whatever the terminator's other fields say.
    let mut list = entries(10, 64, 0);
    list[4] = StagingEntry { id: 4, gref: 0, offset: 256 };
    raw(&pages, &list);
    assert_eq!(staging_list::read(&pages, 512).expect("memory"), list[..4]);
    assert!(staging_list::write(&pages, list[..3].iter().copied()));
    assert_eq!(staging_list::read(&pages, 512).expect("memory"), list[..3]);

    // Two pages are one list.
    let pages = Pages::new(2);
    let list = entries(700, 64, 0);
    assert!(staging_list::write(&pages, list.iter().copied()));
    assert_eq!(staging_list::read(&pages, 1024).expect("memory"), list);
}

#[test]
fn honest_lists_are_accepted() {
    for content in [16, 64, 100, 128, 256, 2048, 2000, 4096, 65535] {
        for (n, first_id) in [(1, 0), (256, 0), (256, 256), (512, 0)] {
            let list = entries(n, content, first_id);
            let got = staging_list::validate(&list, first_id, len(content)).expect("an honest list");
            let pages = list.last().map_or(0, |e| e.gref - 7);
            assert_eq!(
                got.refs,
                (8..8 + pages).map(GrantRef).collect::<Vec<_>>(),
                "each page once, in order"
            );
            for (e, &place) in list.iter().zip(&got.place) {
                assert_eq!(place, (e.gref - 8) * PAGE_SIZE as u32 + e.offset as u32);
            }
        }
    }
}

/// docs/protocol 3.2's own example: with length 128, slot 34 counted from 1 is the second slot of
/// the second page.
#[test]
fn slot_34_of_128_bytes_is_the_second_of_the_second_page() {
    let got = staging_list::validate(&entries(256, 128, 0), 0, len(128)).expect("an honest list");
    assert_eq!((got.place[33], got.refs.len()), (4096 + 128, 8));
}

#[test]
fn pages_are_mapped_in_the_order_of_the_list() {
    let list = [(90, 0), (12, 0), (90, 2048), (40, 2048), (12, 2048)];
    let list: Vec<StagingEntry> =
        (0..).zip(list).map(|(id, (gref, offset))| StagingEntry { id, gref, offset }).collect();
    let got = staging_list::validate(&list, 0, len(2048)).expect("buffers apart");
    assert_eq!(got.refs, [GrantRef(90), GrantRef(12), GrantRef(40)]);
    assert_eq!(*got.place, [0, 4096, 2048, 8192 + 2048, 4096 + 2048]);
}

#[test]
fn an_empty_list_is_refused() {
    assert_eq!(staging_list::validate(&[], 0, len(128)), Err(ListFault::Empty));
    assert_eq!(
        staging_list::read(&Pages::new(1), 256).expect("memory"),
        [],
        "an untouched page is an empty list"
    );
}

#[test]
fn ids_out_of_their_places_are_refused() {
    for (first_id, entry, id) in
        [(0, 0, 1), (0, 7, 6), (0, 255, 0), (256, 0, 0), (256, 3, 3), (0, 9, u16::MAX)]
    {
        let mut list = entries(256, 128, first_id);
        list[entry].id = id;
        let expected = first_id + entry as u16;
        let fault = Err(ListFault::WrongId { entry, id, expected });
        assert_eq!(staging_list::validate(&list, first_id, len(128)), fault);
    }
    // The RX list of a front that forgot that its ids begin behind TX's.
    let fault = Err(ListFault::WrongId { entry: 0, id: 0, expected: 256 });
    assert_eq!(staging_list::validate(&entries(256, 128, 0), 256, len(128)), fault);
}

#[test]
fn buffers_past_their_page_are_refused() {
    for (content, offset) in
        [(128, 3969u16), (128, 4096), (128, u16::MAX), (4096, 1), (65535, 64), (2048, 2049)]
    {
        let mut list = entries(2, content, 0);
        list[1].offset = offset;
        list[1].gref = 99;
        assert_eq!(
            staging_list::validate(&list, 0, len(content)),
            Err(ListFault::PastPage { entry: 1, offset })
        );
    }
    let mut list = entries(2, 128, 0);
    list[1].offset = 4096 - 128;
    assert!(staging_list::validate(&list, 0, len(128)).is_ok(), "ends with its page");
}

#[test]
fn buffers_that_overlap_are_refused() {
    for (entry, other, shift) in [(1, 0, 0u16), (1, 0, 1), (1, 0, 127), (200, 3, 64), (40, 39, 127)] {
        let mut list = entries(256, 128, 0);
        let at = list[other].offset + shift;
        (list[entry].gref, list[entry].offset) = (list[other].gref, at);
        match staging_list::validate(&list, 0, len(128)) {
            Err(ListFault::Overlap { entry: a, other: b }) => {
                assert!(a > b && (a == entry || b == entry), "{a} and {b}, moved {entry}");
            }
            wrong => panic!("an overlap of {entry} and {other} gave {wrong:?}"),
        }
    }
    let twice = [StagingEntry { id: 0, gref: 8, offset: 0 }, StagingEntry { id: 1, gref: 8, offset: 0 }];
    let fault = Err(ListFault::Overlap { entry: 1, other: 0 });
    assert_eq!(staging_list::validate(&twice, 0, len(16)), fault);
    // Unaligned, and apart: legal.
    let apart = [StagingEntry { id: 0, gref: 8, offset: 3 }, StagingEntry { id: 1, gref: 8, offset: 131 }];
    assert!(staging_list::validate(&apart, 0, len(128)).is_ok());
}

/// The fault of a list whose ids are right, by a stable sort.
fn fault_by_sort(list: &[StagingEntry], bytes: usize) -> Option<ListFault> {
    let past = list.iter().position(|e| usize::from(e.offset) + bytes > PAGE_SIZE);
    if let Some(entry) = past {
        return Some(ListFault::PastPage { entry, offset: list[entry].offset });
    }
    let mut order: Vec<usize> = (0..list.len()).collect();
    order.sort_by_key(|&i| (list[i].gref, list[i].offset));
    let of_one_page = |w: &&[usize]| list[w[0]].gref == list[w[1]].gref;
    let overlaps = |w: &&[usize]| usize::from(list[w[0]].offset) + bytes > usize::from(list[w[1]].offset);
    let first = order.windows(2).filter(of_one_page).find(overlaps)?;
    Some(ListFault::Overlap { entry: first[0].max(first[1]), other: first[0].min(first[1]) })
}

proptest! {
    /// Several faults in one list: the one that a sort finds first is reported, and equal entries
    /// in the order of the list.
    #[test]
    fn the_first_fault_is_the_one_that_a_sort_finds(
        content in prop_oneof![Just(16u32), Just(100), Just(2048)],
        grefs in prop_oneof![Just(3u32), Just(40), Just(1_000_000)],
        steps in prop_oneof![Just(1u32), Just(16), Just(128)],
        past in prop::bool::weighted(0.2),
        list in prop::collection::vec((any::<u32>(), any::<u16>()), 1..400),
    ) {
        let most = PAGE_SIZE as u32 - content + if past { 20 } else { 0 };
        let list: Vec<StagingEntry> = (0..)
            .zip(list)
            .map(|(id, (gref, at))| {
                let offset = u32::from(at) % (most / steps + 1) * steps;
                StagingEntry { id, gref: 8 + gref % grefs, offset: offset as u16 }
            })
            .collect();
        let fault = staging_list::validate(&list, 0, len(content)).err();
        prop_assert_eq!(fault, fault_by_sort(&list, content as usize));
        // Of two kinds, ids and ends of pages are checked first.
        let mut wrong = list;
        let entry = wrong.len() - 1;
        wrong[entry].id += 1;
        let id = ListFault::WrongId { entry, id: wrong[entry].id, expected: entry as u16 };
        let fault = staging_list::validate(&wrong, 0, len(content)).err();
        match fault_by_sort(&wrong, content as usize) {
            Some(past @ ListFault::PastPage { entry: at, .. }) if at < entry => {
                prop_assert_eq!(fault, Some(past))
            }
            _ => prop_assert_eq!(fault, Some(id)),
        }
    }
}

#[test]
fn faults_say_which_entry() {
    let text = |list: &[StagingEntry]| {
        staging_list::validate(list, 0, len(128)).expect_err("a bad list").to_string()
    };
    let mut list = entries(4, 128, 0);
    list[2].id = 9;
    assert!(text(&list).contains("entry 2") && text(&list).contains('9'));
    list[2].id = 2;
    list[3].offset = 4000;
    assert!(text(&list).contains("entry 3") && text(&list).contains("4000"));
}

proptest! {
    /// Whatever is accepted is within its pages, apart from all others.
    #[test]
    fn accepted_buffers_are_apart(
        content in prop_oneof![Just(64u32), Just(128), Just(1500), Just(4096)],
        list in proptest::collection::vec((8..12u32, 0..4200u16), 1..8),
    ) {
        let list: Vec<StagingEntry> =
            (0..).zip(list).map(|(id, (gref, offset))| StagingEntry { id, gref, offset }).collect();
        let bytes = content as usize;
        let mut taken = std::collections::HashSet::new();
        let apart = list.iter().all(|e| (0..bytes).all(|k| taken.insert((e.gref, e.offset as usize + k))));
        let inside = list.iter().all(|e| e.offset as usize + bytes <= PAGE_SIZE);
        match staging_list::validate(&list, 0, len(content)) {
            Ok(got) => {
                prop_assert!(apart && inside);
                for (e, &place) in list.iter().zip(&got.place) {
                    prop_assert_eq!(got.refs[place as usize / PAGE_SIZE], GrantRef(e.gref));
                    prop_assert_eq!(place as usize % PAGE_SIZE, e.offset as usize);
                }
            }
            Err(_) => prop_assert!(!apart || !inside),
        }
    }
}

/// RX buffers must be writable: mapping them shows it.
#[test]
fn a_read_only_rx_list_cannot_be_mapped_for_writing() {
    let domains = TwoDomains::new();
    let area =
        StagingArea::new(&domains.guest, &mut Regions::new(HOST), Access::ReadOnly, len(256), SLOTS, 0)
            .expect("buffers");
    let list = domains.host.map(GUEST, area.list_refs(), Access::ReadOnly).expect("the list page");
    let entries = staging_list::read(&list, SLOTS as usize).expect("memory");
    let got = staging_list::validate(&entries, 0, len(256)).expect("an honest list");
    let refused = domains.host.map(GUEST, &got.refs, Access::ReadWrite).err().expect("read-only pages");
    assert_eq!((refused.index, refused.status), (Some(0), GrantStatus::PERMISSION_DENIED));
    assert_eq!(domains.xen.counts().mapped, 1, "nothing but the list page");
    drop(list);
    assert!(area.into_granted().into_iter().all(|granted| granted.release(&domains.guest).is_ok()));
    domains.assert_empty();
}

// The data path.

/// Fills buffer `id` with `id + 1`.
fn fill(g: &TxGame, id: u16) {
    let area = g.area.as_ref().expect("a staging way");
    assert!(area.bytes().copy_in(area.start(id), &vec![(id as u8).wrapping_add(1); area.slot_bytes()]));
}

fn staged(id: u16, offset: u16, size: u16) -> Slot {
    Slot::Data(TxRequest { gref: 0, offset, flags: 0, id, size })
}

/// Plays one-slot frames and gives the status of each, and what arrived.
fn play(g: &mut TxGame, frames: &[&[Slot]]) -> (Vec<Vec<i16>>, Vec<Vec<u8>>) {
    for frame in frames {
        g.model.play(frame);
    }
    assert_eq!(g.run(), Ok(()));
    let answers = g.model.answers().expect("answers by the rules");
    (answers, g.port.took.drain(..).map(|f| f.0).collect())
}

#[test]
fn a_request_without_a_grant_is_in_the_buffer_of_its_id() {
    for content in [64, 256, 4096, 65535] {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(Way::Staging(content), 5, 1);
        for id in [0, 1, 17, 255] {
            fill(&g, id);
        }
        let frames: [&[Slot]; 4] =
            [&[staged(255, 0, 64)], &[staged(0, 0, 14)], &[staged(17, 4, 60)], &[staged(1, 0, 64)]];
        let (answers, took) = play(&mut g, &frames);
        assert_eq!(answers, vec![vec![OKAY]; 4]);
        assert_eq!(took, [vec![0; 64], vec![1; 14], vec![18; 60], vec![2; 64]]);
        assert_eq!((g.back.stats().staging, domains.xen.counts().copies), (4, 0));
        g.close();
        domains.assert_empty();
    }
}

/// `offset + size` may reach the end of the buffer but not exceed it, although the page goes on.
#[test]
fn bytes_past_the_buffer_are_an_error() {
    for (content, offset, size, status) in [
        (256, 0, 256, OKAY),
        (256, 192, 64, OKAY),
        (256, 0, 257, ERROR),
        (256, 193, 64, ERROR),
        (256, 256, 14, ERROR),
        (256, 0, 4096, ERROR),
        (64, 50, 14, OKAY),
        (64, 51, 14, ERROR),
        (4096, 0, 4096, OKAY),
        (65535, 4082, 14, OKAY),
    ] {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(Way::Staging(content), 0, 1);
        let (answers, took) = play(&mut g, &[&[staged(3, offset, size)], &[staged(4, 0, 60)]]);
        assert_eq!(answers, [[status], [OKAY]], "{content}: {size} at {offset}");
        assert_eq!(took.len(), 1 + (status == OKAY) as usize);
        g.close();
        domains.assert_empty();
    }
    // Past the page it is what it is without staging: fatal.
    let domains = TwoDomains::new();
    let mut g = domains.tx_model(Way::Staging(65535), 0, 1);
    g.model.play(&[staged(3, 4083, 14)]);
    assert_eq!(g.run(), Err(PeerFault::CrossesPage { offset: 4083, size: 14 }));
    g.close();
    domains.assert_empty();
}

#[test]
fn ids_that_are_not_in_the_list_are_an_error() {
    for content in [64, 65535] {
        for id in [SLOTS as u16, 257, 511, 512, 513, u16::MAX] {
            let domains = TwoDomains::new();
            let mut g = domains.tx_model(Way::Staging(content), 0, 1);
            let (answers, took) = play(&mut g, &[&[staged(id, 0, 60)], &[staged(255, 0, 60)]]);
            assert_eq!((answers, took.len()), (vec![vec![ERROR], vec![OKAY]], 1), "id {id}");
            g.close();
            domains.assert_empty();
        }
    }
}

#[test]
fn ids_twice_in_a_batch_are_an_error() {
    let domains = TwoDomains::new();
    let mut g = domains.tx_model(Way::Staging(256), 0, 1);
    let twice: [&[Slot]; 4] =
        [&[staged(9, 0, 60)], &[staged(9, 0, 60)], &[staged(8, 0, 60)], &[staged(9, 64, 60)]];
    // A model that asks for ids in flight again; its own count of them is by place, so the answers
    // still tell.
    for frame in twice {
        g.model.write(frame);
    }
    g.model.publish();
    assert_eq!(g.run(), Ok(()));
    assert_eq!(g.model.answers(), Ok(vec![vec![OKAY], vec![ERROR], vec![OKAY], vec![ERROR]]));
    // In the next batch the id is free again.
    assert_eq!(play(&mut g, &[&[staged(9, 0, 60)]]).0, [[OKAY]]);
    g.close();
    domains.assert_empty();
}

/// docs/protocol 3.2, for RX: the second frame would overwrite the first before the guest saw it.
#[test]
fn rx_ids_twice_in_a_batch_are_an_error() {
    let domains = TwoDomains::new();
    let mut g = domains.rx_model(Way::Staging(256), 0, RxAccepts::ALL);
    let post = |g: &mut RxGame, ids: &[u16]| {
        ids.iter().for_each(|&id| g.model.post(RxRequest { id, gref: g.refs[id as usize].0 }));
    };
    let frame = |n: u8| (vec![n; 60], Offload::default());
    post(&mut g, &[9, 9, 8, 9]);
    g.port.gives.extend([1, 2, 3, 4].map(frame));
    assert_eq!(g.run(), Ok(()));
    let failed = |frames: Vec<RxFrame>| frames.iter().map(RxFrame::failed).collect::<Vec<_>>();
    assert_eq!(failed(g.model.frames().unwrap()), [false, true, false, true]);
    let mut first = [0; 60];
    let area = g.area.as_ref().unwrap();
    assert!(area.bytes().copy_out(area.start(9) + colour(9, 60, 256), &mut first));
    assert_eq!(first, [1; 60]);
    // In the next batch the id is free again.
    post(&mut g, &[9]);
    g.port.gives.extend([frame(5)]);
    assert_eq!(g.run(), Ok(()));
    assert_eq!(failed(g.model.frames().unwrap()), [false]);
    // Around the wrap of an honest front's ids, and back.
    post(&mut g, &[254, 255, 0, 1, 255]);
    g.port.gives.extend([1, 2, 3, 4, 5].map(frame));
    assert_eq!(g.run(), Ok(()));
    assert_eq!(failed(g.model.frames().unwrap()), [false, false, false, false, true]);
    g.close();
    domains.assert_empty();
}

/// Frames over several staged slots, and over staged and granted ones: each byte from exactly one
/// of the two.
#[test]
fn frames_may_mix_buffers_and_grants() {
    for content in [256, 65535] {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(Way::Staging(content), 0, 4);
        for id in 0..4 {
            fill(&g, id);
        }
        let data = |gref, offset, flags, id, size| Slot::Data(TxRequest { gref, offset, flags, id, size });
        let page = g.refs[2].0;
        let frames: [&[Slot]; 2] = [
            &[data(0, 0, TXF_MORE_DATA, 0, 300), data(0, 10, TXF_MORE_DATA, 1, 100), data(0, 0, 0, 2, 50)],
            &[data(0, 8, TXF_MORE_DATA, 3, 700), data(page, 100, 0, 4, 600)],
        ];
        let (answers, took) = play(&mut g, &frames);
        assert_eq!(answers, [vec![OKAY; 3], vec![OKAY; 2]]);
        assert!(took[0] == [vec![1; 150], vec![2; 100], vec![3; 50]].concat());
        assert!(took[1] == [vec![4; 100], g.content(2, 100, 600)].concat());
        assert_eq!(domains.xen.counts().copies, 1);
        // One bad buffer costs the whole frame.
        let bad: [&[Slot]; 1] =
            [&[data(0, 0, TXF_MORE_DATA, 0, 300), data(0, 0, TXF_MORE_DATA, 900, 100), data(0, 0, 0, 2, 50)]];
        assert_eq!(play(&mut g, &bad), (vec![vec![ERROR; 3]], vec![]));
        g.close();
        domains.assert_empty();
    }
}

/// A front that gives a grant is believed: then nothing is read from the buffer.
#[test]
fn a_request_with_a_grant_is_not_in_the_buffer() {
    let domains = TwoDomains::new();
    let mut g = domains.tx_model(Way::Staging(256), 0, 1);
    fill(&g, 6);
    let granted = Slot::Data(TxRequest { gref: g.refs[0].0, offset: 40, flags: 0, id: 6, size: 60 });
    let (answers, took) = play(&mut g, &[&[granted]]);
    assert_eq!((answers, took), (vec![vec![OKAY]], vec![g.content(0, 40, 60)]));
    g.close();
    domains.assert_empty();
}

/// Whatever a front's list page contains after the connect, its buffers stay where they were found.
/// This gives a page as its owner sees it, whatever access was granted.
struct Own(LocalMap);

// SAFETY: as what is in it, which is memory of this process.
#[allow(unsafe_code)]
unsafe impl SharedBytes for Own {
    fn base(&self) -> NonNull<u8> {
        self.0.base()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn the_list_is_not_read_again() {
    let domains = TwoDomains::new();
    let mut g = domains.tx_model(Way::Staging(256), 0, 1);
    for id in [2, 3] {
        fill(&g, id);
    }
    let list_ref = g.area.as_ref().expect("a staging way").list_refs()[0];
    // A second mapping stands for the front's own view of the page, which may be written.
    let list = Own(domains.host.map(GUEST, &[list_ref], Access::ReadOnly).expect("the list page"));
    assert!(staging_list::write(&list, std::iter::empty()));
    let (answers, took) = play(&mut g, &[&[staged(2, 0, 20)], &[staged(3, 0, 20)]]);
    assert_eq!((answers, took), (vec![vec![OKAY]; 2], vec![vec![3; 20], vec![4; 20]]));
    drop(list);
    g.close();
    domains.assert_empty();
}

#[test]
fn a_long_frame_s_first_bytes_are_in_a_buffer_too_and_its_grants_hold_all_of_it() {
    let domains = TwoDomains::new();
    let mut ends = domains.tx(Way::Staging(256), Granting::Standing, 0);
    let frame: Vec<u8> = (0..1500).map(|i| (i * 7 % 251) as u8).collect();
    let mut arena = Arena::new();
    assert!(arena.push(&frame, Offload::default()));
    let buffer = |ends: &TxEnds| {
        let mut content = [0; 256];
        let area = ends.front.chain().staging().expect("a staging area");
        assert!(area.bytes().copy_out(area.start(0), &mut content));
        content
    };
    assert_eq!(buffer(&ends), [0; 256]);
    assert_eq!(ends.front.send(&domains.guest, &ends.front_chan, &arena.burst()), Ok(1));
    assert_eq!(buffer(&ends), frame[..256]);
    // A back that reads the grants alone is not misled by what happens to the buffer.
    let area = ends.front.chain().staging().expect("a staging area");
    assert!(area.bytes().copy_in(0, &[0xee; 256]));
    let mut port = TestPort::default();
    let polled = ends.back.poll(
        &domains.host,
        GUEST,
        &ends.back_chan,
        &mut port,
        &mut Arena::new(),
        &SharedControl::default(),
    );
    assert_eq!(polled, Ok(Polled::More));
    assert_eq!(port.took.iter().map(|f| &f.0[..]).collect::<Vec<_>>(), [&frame[..]]);
    ends.close(&domains);
    domains.assert_empty();
}

#[test]
fn a_back_that_is_asked_to_takes_a_long_frame_s_head_from_its_buffer_and_the_rest_by_grants() {
    let domains = TwoDomains::new();
    for way in [Way::Staging(256), Way::Heads(256)] {
        let mut ends = domains.tx(way, Granting::Standing, 0);
        let frame: Vec<u8> = (0..1500).map(|i| (i * 7 % 251) as u8).collect();
        let mut arena = Arena::new();
        assert!(arena.push(&frame, Offload::default()) && arena.push(&frame[..256], Offload::default()));
        assert_eq!(ends.front.send(&domains.guest, &ends.front_chan, &arena.burst()), Ok(2));
        // Bytes that only the buffer has, only its reader gets.
        let area = ends.front.chain().staging().expect("a staging area");
        assert!(area.bytes().copy_in(area.start(0), &[0xee; 100]));
        let (mut port, control) = (TestPort::default(), SharedControl::default());
        let mut private = Arena::new();
        let polled = ends.back.poll(&domains.host, GUEST, &ends.back_chan, &mut port, &mut private, &control);
        assert_eq!(polled, Ok(Polled::More));
        let marked = if way == Way::Heads(256) { 100 } else { 0 };
        let due = [&[0xee; 100][..marked], &frame[marked..]].concat();
        assert_eq!(port.took.iter().map(|f| &f.0[..]).collect::<Vec<_>>(), [&due[..], &frame[..256]]);
        let stats = ends.back.stats();
        assert_eq!((stats.granted, stats.staging), (1, 1));
        ends.close(&domains);
    }
    domains.assert_empty();
}

/// docs/protocol 3.3: with 4096 bytes in each direction the first slot of any frame is staged, and
/// the others are not; a frame that must be segmented is no exception.
#[test]
fn the_first_slot_of_a_longer_frame_is_staged_with_4096() {
    let gso = Offload { gso_type: GSO_TYPE_TCPV4, gso_size: 1448, csum_blank: true, csum_ok: true };
    for (len, staged, copies) in [(4096, 2, 0), (4097, 0, 2), (5000, 0, 2), (9000, 0, 4), (65_535, 0, 30)] {
        let frame: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
        let domains = TwoDomains::new();
        let mut ends = domains.tx(Way::FirstSlots, Granting::PerFrame, 0);
        let mut port = TestPort::default();
        for offload in [Offload::default(), gso] {
            let mut arena = Arena::new();
            assert!(arena.push(&frame, offload));
            assert_eq!(ends.front.send(&domains.guest, &ends.front_chan, &arena.burst()), Ok(1));
            let (mut private, control) = (Arena::new(), SharedControl::default());
            let polled =
                ends.back.poll(&domains.host, GUEST, &ends.back_chan, &mut port, &mut private, &control);
            assert_eq!(polled, Ok(Polled::More));
            assert!(ends.front.reclaim(&domains.guest, 1).is_ok());
        }
        assert_eq!(port.took, [(frame.clone(), Offload::default()), (frame.clone(), gso)], "TX {len}");
        let (front, back) = (ends.front.stats(), ends.back.stats());
        assert_eq!(
            (front.staging, back.staging, domains.xen.counts().copies),
            (staged, staged, copies),
            "TX {len}"
        );
        ends.close(&domains);

        let mut ends = domains.rx(Way::FirstSlots, Granting::PerFrame, 0, false);
        let before = domains.xen.counts().copies;
        let mut port = TestPort { gives: port.took.drain(..).collect(), ..TestPort::default() };
        ends.front.post(&domains.guest, &ends.front_chan).expect("grants to be had");
        let control = SharedControl::default();
        while ends.back.poll(&domains.host, GUEST, &ends.back_chan, &mut port, &control) == Ok(Polled::More) {
        }
        let mut got = Arena::new();
        assert_eq!(ends.front.recv(&mut got, 1), Ok(2), "RX {len}");
        assert!((0..2).all(|i| got.burst().frame(i) == frame), "RX {len}");
        let (front, back) = (ends.front.stats(), ends.back.stats());
        let copied = domains.xen.counts().copies - before;
        assert_eq!((front.staging, back.staging, copied), (staged, staged, copies), "RX {len}");
        ends.close(&domains);
        domains.assert_empty();
    }
}

/// A frame that must be segmented is in its buffer if it fits, like any other.
#[test]
fn a_short_frame_that_is_to_be_cut_is_staged() {
    let gso = Offload { gso_type: GSO_TYPE_TCPV4, gso_size: 100, csum_blank: true, csum_ok: true };
    for (way, staged) in [(Way::Staging(256), 1), (Way::Staging(128), 0), (Way::Copy, 0)] {
        let domains = TwoDomains::new();
        let mut ends = domains.tx(way, Granting::PerFrame, 0);
        let mut arena = Arena::new();
        assert!(arena.push(&[9; 254], gso));
        assert_eq!(ends.front.send(&domains.guest, &ends.front_chan, &arena.burst()), Ok(1));
        let (mut port, control) = (TestPort::default(), SharedControl::default());
        let polled =
            ends.back.poll(&domains.host, GUEST, &ends.back_chan, &mut port, &mut Arena::new(), &control);
        assert_eq!((polled, port.took.len()), (Ok(Polled::More), 1));
        assert_eq!(port.took[0], (vec![9; 254], gso));
        assert_eq!((ends.front.stats().staging, ends.back.stats().staging), (staged, staged), "{way:?}");
        assert_eq!(ends.front.reclaim(&domains.guest, 1), Ok(2), "one for the extra info");
        ends.close(&domains);
        domains.assert_empty();
    }
}

/// docs/protocol 3.2: a list continues from page to page; a full one has no terminator. An id is
/// valid anywhere in its list, however many slots the ring has.
#[test]
fn a_list_has_as_many_pages_as_it_needs() {
    for n in [511, 512, 513, 1024, 2048, 4096, 32767] {
        let domains = TwoDomains::new();
        let (area, buffers) = domains.stage_some(Way::Staging(64), Access::ReadOnly, 0, n).unzip();
        assert_eq!(area.as_ref().map(|area| area.list_refs().len()), Some((n as usize).div_ceil(512)));
        let chain = AnyPath::Staging(StagingPath::new(buffers.expect("staging buffers")).expect("memory"));
        let mut g = domains.tx_model_by(chain.into(), area, 0, 1);
        let last = n as u16 - 1;
        [0, last / 2, last].into_iter().for_each(|id| fill(&g, id));
        let frames: [&[Slot]; 4] = [
            &[staged(last, 0, 64)],
            &[staged(0, 0, 14)],
            &[staged(last + 1, 0, 60)],
            &[staged(last / 2, 4, 60)],
        ];
        let (answers, took) = play(&mut g, &frames);
        assert_eq!(answers, [[OKAY], [OKAY], [ERROR], [OKAY]], "{n} buffers");
        let value = |id: u16| (id as u8).wrapping_add(1);
        assert_eq!(took, [vec![value(last); 64], vec![1; 14], vec![value(last / 2); 60]]);
        g.close();
        domains.assert_empty();
    }
}

/// docs/protocol 3.2: there may be more RX buffers than slots; the request's id names the buffer of
/// a frame.
#[test]
fn an_rx_list_may_be_longer_than_its_ring() {
    let domains = TwoDomains::new();
    let (area, buffers) = domains.stage_some(Way::Staging(256), Access::ReadWrite, 0, 1200).unzip();
    let chain = AnyPath::Staging(StagingPath::new(buffers.expect("staging buffers")).expect("memory"));
    let mut g = domains.rx_model_by(chain.into(), area, u32::MAX - 100, RxAccepts::ALL);
    let (mut id, frame) = (0u32, |n: u32| (vec![n as u8 ^ (n >> 8) as u8; 60], Offload::default()));
    for round in 0..12 {
        // Every buffer in its turn, and one that is not there.
        let ids: Vec<u16> = (0..100).map(|k| ((id + k * 7) % 1200) as u16).chain([1200 + round]).collect();
        id += 700;
        for (k, &id) in ids.iter().enumerate() {
            g.model.post(RxRequest { id, gref: g.refs[k].0 });
        }
        g.port.gives.extend((0..101).map(|k| frame(1000 * u32::from(round) + k)));
        assert_eq!(g.run(), Ok(()));
        let frames = g.model.frames().expect("answers by the rules");
        let area = g.area.as_ref().expect("a staging area");
        for (k, (came, &id)) in frames.iter().zip(&ids).enumerate() {
            assert_eq!(came.failed(), k == 100, "id {id}");
            if k < 100 {
                let mut bytes = [0; 60];
                let at = area.start(id) + usize::from(came.slots[0].offset);
                assert!(area.bytes().copy_out(at, &mut bytes));
                assert_eq!(bytes[..], frame(1000 * u32::from(round) + k as u32).0, "id {id}");
            }
        }
        assert_eq!(frames.len(), 101);
    }
    assert_eq!(g.back.stats().staging, 1200);
    g.close();
    domains.assert_empty();
}
