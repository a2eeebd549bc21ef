//! Staging buffers as no honest front lists them: any length, any gap, any number up to a list
//! page's 512.

use crate::guest_pages::{bytes_of, fill};
use crate::tape::Tape;
use pregrant::net::path::StagedBuffers;
use pregrant::net::path::staging::list::{self as staging_list, DataLen};
use pregrant::platform::local::{LocalMap, LocalRegion};
use pregrant::platform::{Access, GrantPool, PeerMem};
use pregrant::wire::staging::StagingEntry;
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::two_domains::{GUEST, HOST, TwoDomains};

/// Largest number of pages of the buffers of one list.
const PAGES: usize = 16;

/// The guest's side of a list that the back accepted.
pub struct Staged {
    pub region: LocalRegion,
    list: LocalRegion,
    /// For each id the offset of its buffer in `region`.
    pub places: Vec<usize>,
    /// Length of a buffer in bytes.
    pub len: usize,
    pub copy_only: bool,
}

impl Staged {
    /// Lays out, lists and grants buffers according to the tape; the back reads the list, validates
    /// and maps it.
    pub fn new(domains: &TwoDomains, tape: &mut Tape<'_>, acc: Access) -> (Self, StagedBuffers<LocalMap>) {
        let len = match tape.below(6) {
            0 => 128,
            1 => 256,
            2 => 4096,
            3 => 65535,
            _ => 16 + u32::from(tape.u16() % 4081),
        };
        let len = DataLen::new(len).expect("a length that buffers can have");
        let bytes = len.buffer_bytes() as usize;
        let (most, gap) = (1 + tape.u16() as usize % 512, tape.u8() as usize);
        let mut places = Vec::new();
        let mut at = tape.u8() as usize;
        while places.len() < most {
            if at % PAGE_SIZE + bytes > PAGE_SIZE {
                // No page is left out: the local Xen maps neighbours only.
                at = places.last().map_or(at, |last: &usize| last + 1).next_multiple_of(PAGE_SIZE);
            }
            if at + bytes > PAGES * PAGE_SIZE {
                break;
            }
            places.push(at);
            at += bytes + gap;
        }
        let mut refs = [GrantRef::NONE; PAGES];
        let region = domains.guest.alloc(HOST, acc, &mut refs).expect("the buffers' pages");
        fill(&region);
        let mut list_ref = [GrantRef::NONE];
        let list = domains.guest.alloc(HOST, Access::ReadOnly, &mut list_ref).expect("the list's page");
        let entry = |(id, &at): (usize, &usize)| StagingEntry {
            id: id as u16,
            gref: refs[at / PAGE_SIZE].0,
            offset: (at % PAGE_SIZE) as u16,
        };
        assert!(staging_list::write(&list, places.iter().enumerate().map(entry)));

        let page = domains.host.map(GUEST, &list_ref, Access::ReadOnly).expect("the list is granted");
        let entries = staging_list::read(&page, 512).expect("memory");
        let accepted = staging_list::validate(&entries, 0, len).expect("a list by the rules");
        let map = domains.host.map(GUEST, &accepted.refs, acc).expect("the buffers are granted");
        let buffers =
            StagedBuffers { map, place: accepted.place, len: len.buffer_bytes(), copy_only: len.copy_only() };
        (Self { region, list, places, len: bytes, copy_only: len.copy_only() }, buffers)
    }

    /// Offset in the region of `len` bytes at `offset` in the buffer of `id`, if the buffer has
    /// them.
    pub fn place(&self, id: u16, offset: u16, len: usize) -> Option<usize> {
        let place = self.places.get(id as usize)?;
        (offset as usize + len <= self.len).then_some(place + offset as usize)
    }

    /// The bytes at `offset` in the buffer of `id`.
    pub fn bytes_of(&self, id: u16, offset: u16, len: usize) -> Option<Vec<u8>> {
        Some(bytes_of(&self.region, self.place(id, offset, len)?, len))
    }

    /// Ends the grants; the back has let go.
    pub fn close(self, domains: &TwoDomains) {
        for region in [self.region, self.list] {
            assert!(domains.guest.release(region).is_ok(), "the back still maps a staging page");
        }
    }
}
