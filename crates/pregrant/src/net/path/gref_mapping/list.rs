//! The list of an ADD or DEL in a page of the guest's: copied once, and the copy is validated
//! (docs/protocol 2.11).
//!
//! ```text
//!   | ref, flags, status | ref, flags, status | ...      at most 512 of 8 bytes, from the page's byte 0 on
//! ```
//! The page is granted read-write: a back writes the status of each entry of a DEL. What a guest
//! may do: change the page while it is read, revoke it before the answer (then no status is
//! written, and the answer says INVALID_PARAMETER).

use crate::error::PlatformError;
use crate::memory;
use crate::platform::{Access, CopyOp, LocalBytes, PeerMem, Platform};
use crate::shm::SharedBytes;
use crate::sort::sorted;
use crate::units::{DomId, GrantRef};
use crate::wire::grant::GrantStatus;
use crate::wire::netif_ctrl::{CtrlStatus, GREF_LIST_MAX, GREF_READONLY, GrefEntry};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Why a list is invalid. For each of these reasons the guest gets INVALID_PARAMETER.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ListFault {
    /// The list is empty, or longer than a page.
    Count,
    /// The list's page cannot be read, or cannot be written although statuses go there.
    Page,
    /// An entry has reference 0, which is the console's.
    NoGrant,
    /// An entry has a flag without meaning.
    Flags,
    /// An entry's reference is in the list or the table already.
    Twice,
    /// There is no memory for the back's copy of the list.
    NoMemory,
}

impl From<PlatformError> for ListFault {
    fn from(_: PlatformError) -> Self {
        Self::NoMemory
    }
}

/// The first `n` entries of the page `gref` of domain `of`.
pub fn read<P: Platform>(p: &P, of: DomId, gref: u32, n: u32) -> Result<Box<[GrefEntry]>, ListFault> {
    let mut bytes = room(n)?;
    let len = bytes.len() as u16; // a page at most
    let mut ops =
        [CopyOp { gref: GrantRef(gref), offset: 0, len, at: 0, status: GrantStatus::GENERAL_ERROR }];
    let tried =
        gref != GrantRef::NONE.0 && p.peer().copy(of, LocalBytes::FromPeer(&mut bytes), &mut ops).is_ok();
    if !tried || ops[0].status != GrantStatus::OKAY {
        return Err(ListFault::Page);
    }
    entries(&bytes)
}

/// Like [`read`], for a page to which statuses can be written.
pub fn read_writable<P: Platform>(
    p: &P,
    of: DomId,
    gref: u32,
    n: u32,
) -> Result<Box<[GrefEntry]>, ListFault> {
    let mut bytes = room(n)?;
    if gref == GrantRef::NONE.0 {
        return Err(ListFault::Page);
    }
    let page = p.peer().map(of, &[GrantRef(gref)], Access::ReadWrite).map_err(|_| ListFault::Page)?;
    let there = page.copy_out(0, &mut bytes);
    unmap(p, page);
    if there { entries(&bytes) } else { Err(ListFault::Page) }
}

/// Writes the statuses of the first entries, and nothing else of the page. False: the page cannot
/// be written any more.
pub fn write_statuses<P: Platform>(p: &P, of: DomId, gref: u32, statuses: &[CtrlStatus]) -> bool {
    let Ok(page) = p.peer().map(of, &[GrantRef(gref)], Access::ReadWrite) else { return false };
    let written = statuses.iter().enumerate().all(|(k, status)| {
        page.copy_in(k * GrefEntry::SIZE + GrefEntry::STATUS_OFFSET, &(status.raw() as u16).to_le_bytes())
    });
    unmap(p, page);
    written
}

fn unmap<P: Platform>(p: &P, page: <P::Peer as PeerMem>::Map) {
    let mut done = Vec::new();
    // Without memory for the list, a page is unmapped as it is dropped.
    if memory::push(&mut done, page).is_ok() {
        p.peer().unmap(&mut done);
    }
}

/// Checks that each of these entries can be added on its own. `has` says which references are in
/// the table.
pub fn validate(entries: &[GrefEntry], has: impl Fn(u32) -> bool) -> Result<(), ListFault> {
    for entry in entries {
        if entry.gref == GrantRef::NONE.0 {
            return Err(ListFault::NoGrant);
        }
        if entry.flags & !GREF_READONLY != 0 {
            return Err(ListFault::Flags);
        }
        if has(entry.gref) {
            return Err(ListFault::Twice);
        }
    }
    let order = sorted(entries.iter().map(|entry| entry.gref))?;
    if order.array_windows().any(|[a, b]| a == b) { Err(ListFault::Twice) } else { Ok(()) }
}

fn room(n: u32) -> Result<Box<[u8]>, ListFault> {
    if !(1..=GREF_LIST_MAX as u32).contains(&n) {
        return Err(ListFault::Count);
    }
    Ok(memory::list(0, n as usize * GrefEntry::SIZE)?)
}

fn entries(bytes: &[u8]) -> Result<Box<[GrefEntry]>, ListFault> {
    Ok(memory::collected(bytes.as_chunks().0.iter().map(|bytes| GrefEntry::from_bytes(*bytes)))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(gref: u32, flags: u16) -> GrefEntry {
        GrefEntry { gref, flags, status: 0xFFFF }
    }

    #[test]
    fn what_is_listed_once_and_makes_sense_can_be_added() {
        let good = [entry(8, 0), entry(9, GREF_READONLY), entry(u32::MAX, 0)];
        assert_eq!(validate(&good, |_| false), Ok(()));
        assert_eq!(validate(&good, |r| r == 9), Err(ListFault::Twice));
        for (last, fault) in [
            (entry(0, 0), ListFault::NoGrant),
            (entry(7, 2), ListFault::Flags),
            (entry(7, 0x8001), ListFault::Flags),
            (entry(9, 0), ListFault::Twice),
        ] {
            assert_eq!(validate(&[&good[..], &[last]].concat(), |_| false), Err(fault));
        }
    }

    #[test]
    fn a_list_has_1_to_512_entries() {
        for (n, fits) in
            [(0, false), (1, true), (512, true), (513, false), (u32::MAX, false), (1 << 29, false)]
        {
            assert_eq!(room(n).is_ok(), fits, "{n}");
        }
    }
}
