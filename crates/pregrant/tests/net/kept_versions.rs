//! Records that outlive a vif's back, in another version than the successor knows: it does nothing,
//! and the next back that knows the version continues (docs/protocol 1.1).
#![cfg(not(miri))]

use crate::gref_mapping::{Pair, announcing, entries};
use pregrant::PAGE_SIZE;
use pregrant::net::back::BackVif;
use pregrant::net::back::control_page::CONTROL_BYTES;
use pregrant::net::front::FrontVif;
use pregrant::platform::local::Pages;
use pregrant::shm::SharedBytes;
use pregrant::xenbus::connect_error::ConnectError;

use pregrant_testkit::two_domains::{GUEST, HOST};

/// Offsets of the magic and the version in each copy of a record.
type Places = &'static [(usize, usize)];

/// Each record: its memory, its name, its places.
const RECORDS: [(&str, &str, Places); 4] = [
    ("0/tx", "redo page", &[(8, 44)]),
    ("0/rx", "redo page", &[(8, 44)]),
    ("control", "control page", &[(0, CONTROL_BYTES / 2 - 4), (CONTROL_BYTES / 2, CONTROL_BYTES - 4)]),
    ("0/grefs", "table of gref mappings", &[(0, 2 * GREF_COPY), (GREF_COPY, 2 * GREF_COPY + 4)]),
];
/// Bytes of a copy of the table.
const GREF_COPY: usize = (4 + 2 * 4096) * 4;

fn memory(pair: &Pair, name: &str) -> Pages {
    if name == "control" { pair.kept.control.clone() } else { pair.kept.pages[name].clone() }
}

/// A vif whose guest has had pages mapped, and whose back has died.
fn left() -> Pair {
    let mut pair = Pair::new(announcing(), entries(768));
    pair.exchange(0, 3, 900);
    pair
}

/// Another process resumes the live rings, or returns why it cannot.
fn succeed(pair: &mut Pair) -> Result<bool, ConnectError<String>> {
    let Pair { h, bb, kept, .. } = pair;
    pair.back = Pair::back(&pair.config, kept, pair.page_limit);
    let (pages, back) = (kept.pages.clone(), &mut pair.back);
    back.reattach(h, bb, &mut |name, bytes| {
        let page = pages.get(name).cloned().unwrap_or_else(|| Pages::new(bytes.div_ceil(PAGE_SIZE)));
        Some(Box::new(page) as Box<dyn SharedBytes + Send>)
    })
}

#[test]
fn a_record_of_an_unknown_version_is_refused_with_words_and_left() {
    for (at, name, places) in RECORDS {
        for magic in [false, true] {
            let mut pair = left();
            let memory = memory(&pair, at);
            let words: Vec<_> = places
                .iter()
                .map(|(of_magic, of_version)| if magic { *of_magic } else { *of_version })
                .collect();
            let right: Vec<_> = words.iter().map(|at| memory.load_u32(*at).expect("a word")).collect();
            if !magic {
                // The copy that was not written yet has none.
                assert!(right.contains(&1) && right.iter().all(|version| *version <= 1), "{at}: {right:?}");
            }
            let wrong = if magic { u32::from_le_bytes(*b"PG?9") } else { 2 };
            words.iter().for_each(|at| assert!(memory.store_u32(*at, wrong)));
            let before =
                pair.kept.pages.iter().map(|(name, page)| (name.clone(), bytes(page))).collect::<Vec<_>>();
            let refused = succeed(&mut pair);
            let Err(e @ ConnectError::Unknown(_)) = refused else { panic!("{at}: {refused:?}") };
            assert!(e.is_for_another() && !e.is_busy() && !e.is_of_backing());
            let text = e.to_string();
            let found = if magic { "its first word is 0x393f4750" } else { "version 2" };
            for part in
                [name, found, "versions up to 1", "start the version of pregrant that wrote it", "detach"]
            {
                assert!(text.contains(part), "{at}: no {part:?}: {text}");
            }
            // Its guest sees nothing, and for the next back all is as it was.
            drop(std::mem::replace(&mut pair.back, BackVif::new(GUEST, 0, pair.config.clone())));
            assert_eq!((pair.mapped(), &*pair.bb.own.borrow()["state"]), (0, "4"));
            let after =
                pair.kept.pages.iter().map(|(name, page)| (name.clone(), bytes(page))).collect::<Vec<_>>();
            assert!(at == "0/grefs" || before == after, "{at}: something was written");
            words.iter().zip(right).for_each(|(at, right)| assert!(memory.store_u32(*at, right)));
            pair.restart();
            assert!(pair.back.gref_pages(0) > [0, 0], "{at}: its table is there");
            pair.exchange(0, 3, 900);
            pair.close();
        }
    }
}

fn bytes(page: &Pages) -> Vec<u8> {
    let mut bytes = vec![0; page.len()];
    assert!(page.copy_out(0, &mut bytes));
    bytes
}

/// Records from before there were version words: these are 0 in them.
#[test]
fn records_without_a_version_are_of_the_first() {
    let mut pair = left();
    for (at, _, places) in RECORDS {
        places.iter().for_each(|(_, version)| assert!(memory(&pair, at).store_u32(*version, 0)));
    }
    pair.restart();
    assert!(pair.back.gref_pages(0) > [0, 0]);
    pair.exchange(0, 3, 900);
    assert_eq!(memory(&pair, "0/tx").load_u32(44), Some(1), "from now on it has one");
    pair.close();
}

/// A new connection does not use what is kept of a former one, in any version. Its successor finds
/// what it wrote, and nothing of the former connection.
#[test]
fn a_new_connection_forgets_what_was_kept() {
    for version in [1, 2] {
        let mut pair = left();
        pair.front.close(&mut pair.fb, None).expect("a map");
        while !pair.front.is_closed() {
            let Pair { back, h, bb, .. } = &mut pair;
            back.step(h, bb, &mut |_, _| None).expect("a map");
            pair.front.step(&pair.g, &mut pair.fb).expect("a map");
        }
        for (at, _, places) in RECORDS {
            places
                .iter()
                .for_each(|(_, at_version)| assert!(memory(&pair, at).store_u32(*at_version, version)));
        }
        // Another process, and another front, which sets less.
        pair.back = Pair::back(&pair.config, &pair.kept, pair.page_limit);
        pair.back.inherit(&mut pair.bb).expect("a map");
        pair.front = FrontVif::new(HOST, crate::gref_mapping::by_hand(), false);
        pair.fb.own.borrow_mut().insert("state".into(), "1".into());
        pair.connect();
        pair.exchange(0, 3, 900);
        pair.restart();
        assert_eq!(pair.back.gref_pages(0), [0, 0], "version {version}: this guest asked for no page");
        pair.exchange(0, 3, 900);
        pair.close();
    }
}
