//! The guest writes the list of staging buffers: any bytes, or a good list with something wrong in
//! it.
//!
//! `validate` sorts and compares neighbours; here every entry is compared with every other one of
//! its page, and both must agree. Of what was accepted each buffer is within the mapping and
//! shares no byte with another.

use crate::tape::Tape;
use pregrant::net::path::staging::list::{
    self as staging_list, DataLen, LIST_ENTRIES_MAX, LIST_PAGES_MAX, LONG_LIST_MAX, LONG_LIST_PAGES_MAX,
};
use pregrant::platform::local::Pages;
use pregrant::shm::SharedBytes;
use pregrant::wire::staging::{ENTRIES_PER_PAGE, StagingEntry};
use pregrant::{GrantRef, PAGE_SIZE};
use std::collections::{BTreeMap, BTreeSet};

/// Reads and validates what the tape wrote.
pub fn staging_list(data: &[u8]) {
    let mut tape = Tape::new(data);
    let len = tape.one_of(&[64, 128, 256, 2048, 4096, 65535, 65536, 0]);
    let Some(len) = DataLen::new(if len == 0 { u32::from(tape.u16()) } else { len }) else { return };
    let first_id = tape.one_of(&[0, 0, 256, 512, u16::MAX, u16::MAX - 100]);
    let bytes = len.buffer_bytes();
    let pages = tape.one_of(&[1, 1, 2, 3, LIST_PAGES_MAX, LIST_PAGES_MAX, LONG_LIST_PAGES_MAX]);
    let (page, room) = (Pages::new(pages), pages * ENTRIES_PER_PAGE);

    // A good list for its pages, then bytes of it changed; or bytes as they come.
    let entries = usize::from(tape.u16()) % (room + 2);
    let per_page = PAGE_SIZE / usize::from(bytes);
    let good = (0..entries).map(|k| StagingEntry {
        id: first_id.wrapping_add(k as u16),
        gref: 8 + (k / per_page) as u32,
        offset: (k % per_page * usize::from(bytes)) as u16,
    });
    let listed: Vec<StagingEntry> = good.collect();
    let fits = staging_list::write(&page, listed.iter().copied());
    assert_eq!(fits, entries <= room);
    let untouched = tape.is_over();
    for _ in 0..tape.below(8) {
        // An entry that is a little beside its place.
        let Some(e) = listed.get(usize::from(tape.u16()) % listed.len().max(1)) else { break };
        let by = i32::from(tape.u8() as i8);
        let moved = match tape.below(3) {
            0 => StagingEntry { id: e.id.wrapping_add_signed(by as i16), ..*e },
            1 => StagingEntry { gref: e.gref.wrapping_add_signed(by), ..*e },
            _ => StagingEntry { offset: e.offset.wrapping_add_signed(by as i16), ..*e },
        };
        let at = listed.iter().position(|other| other == e).unwrap_or(0);
        let _ = page.copy_in(at * StagingEntry::SIZE, &moved.to_bytes());
    }
    for _ in 0..tape.below(32) {
        let at = usize::from(tape.u16()) % (page.len() - 8);
        assert!(page.copy_in(at, tape.bytes(8)));
    }
    let rest = tape.rest();
    assert!(page.copy_in(0, &rest[..rest.len().min(page.len())]));

    for most in [LONG_LIST_MAX, LIST_ENTRIES_MAX, ENTRIES_PER_PAGE, 256, 1, 0] {
        let read = staging_list::read(&page, most).expect("memory");
        assert!(read.len() <= most);
        let mut raw = [0; 8];
        for (k, entry) in read.iter().enumerate() {
            assert!(page.copy_out(k * 8, &mut raw));
            assert_eq!((raw, entry.gref != 0), (entry.to_bytes(), true), "entries up to the terminator");
        }
        if untouched && fits {
            assert_eq!(read, listed[..entries.min(most)]);
        }
        validated(&read, first_id, len);
    }
}

fn validated(entries: &[StagingEntry], first_id: u16, len: DataLen) {
    let bytes = usize::from(len.buffer_bytes());
    let in_order =
        entries.iter().enumerate().all(|(k, e)| e.id == first_id.wrapping_add(k as u16) && e.gref != 0);
    let in_page = entries.iter().all(|e| usize::from(e.offset) + bytes <= PAGE_SIZE);
    let mut by_grant: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    entries.iter().for_each(|e| by_grant.entry(e.gref).or_default().push(e.offset.into()));
    let apart = by_grant.values().all(|offsets| {
        let clear = |(k, a): (usize, &usize)| offsets[..k].iter().all(|b| a.abs_diff(*b) >= bytes);
        offsets.iter().enumerate().all(clear)
    });
    let list = staging_list::validate(entries, first_id, len);
    assert_eq!(list.is_ok(), !entries.is_empty() && in_order && in_page && apart, "{list:?}");
    match list {
        Ok(list) => {
            let distinct: BTreeSet<_> = list.refs.iter().map(|r| r.0).collect();
            assert_eq!(distinct.len(), list.refs.len(), "each grant is mapped once");
            assert_eq!(list.place.len(), entries.len());
            for (entry, &place) in entries.iter().zip(&list.place) {
                let (page, offset) = (place as usize / PAGE_SIZE, place as usize % PAGE_SIZE);
                assert_eq!(list.refs[page], GrantRef(entry.gref));
                assert!(offset == usize::from(entry.offset) && offset + bytes <= PAGE_SIZE);
            }
        }
        Err(fault) => assert!(fault.to_string().len() < 200),
    }
}
