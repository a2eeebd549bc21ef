//! Grant table entries, both versions, and how grant operations end (docs/protocol 8.1).
//!
//! ```text
//!   guest: writes domid, frame -- release barrier --> writes flags (one 16-bit store)
//!   Xen:   compares and exchanges (flags, domid) as one word, sets reading and writing while in use
//!   guest: compares and exchanges flags to 0, only while neither is set; else the page stays granted
//! ```
//! C: xen/include/public/grant_table.h. Little-endian. 512 entries of version 1 in a page, 256 of
//! version 2.
//!
//! Invariants: word 0 of an entry is flags and domid, so that it can be exchanged at once.
//!
//! What the peer may do: nothing to the table itself, which the guest shares with Xen alone. It
//! names references as it likes, so a reference that it sends may point at any entry: the status of
//! each operation decides.

use core::fmt;
use core::mem::offset_of;

/// `GTF_invalid`: the entry grants nothing.
pub const GTF_INVALID: u16 = 0;
/// `GTF_permit_access`: the domain may map or copy the page.
pub const GTF_PERMIT_ACCESS: u16 = 1;
/// `GTF_accept_transfer`: the domain may transfer a page to the guest.
pub const GTF_ACCEPT_TRANSFER: u16 = 2;
/// `GTF_transitive`, version 2: the grant names another domain's grant.
pub const GTF_TRANSITIVE: u16 = 3;
/// `GTF_type_mask`: the bits of the type.
pub const GTF_TYPE_MASK: u16 = 3;
/// `GTF_readonly`: the domain may not write to the page. Written by the guest.
pub const GTF_READONLY: u16 = 0x4;
/// `GTF_reading`: the page is in use for reading. Written by Xen.
pub const GTF_READING: u16 = 0x8;
/// `GTF_writing`: the page is in use for writing. Written by Xen.
pub const GTF_WRITING: u16 = 0x10;
/// `GTF_PWT`: mappings of the page get the cache attribute "write-through", on x86.
pub const GTF_PWT: u16 = 0x20;
/// `GTF_PCD`: mappings of the page get the cache attribute "cache disable", on x86.
pub const GTF_PCD: u16 = 0x40;
/// `GTF_PAT`: mappings of the page get the cache attribute of the PAT bit, on x86.
pub const GTF_PAT: u16 = 0x80;
/// `GTF_sub_page`, version 2: only a part of the page is granted, and only for copies.
pub const GTF_SUB_PAGE: u16 = 0x100;
/// `GTF_transfer_committed`, for [`GTF_ACCEPT_TRANSFER`]. Written by Xen.
pub const GTF_TRANSFER_COMMITTED: u16 = 0x4;
/// `GTF_transfer_completed`, for [`GTF_ACCEPT_TRANSFER`]. Written by Xen.
pub const GTF_TRANSFER_COMPLETED: u16 = 0x8;

/// Number of entries of version 1 in a page of the table.
pub const V1_PER_PAGE: usize = crate::PAGE_SIZE / GrantEntryV1::SIZE;
/// Number of entries of version 2 in a page of the table.
pub const V2_PER_PAGE: usize = crate::PAGE_SIZE / GrantEntryV2::SIZE;
/// Number of `u16` statuses of version 2 in a page; they use the bits [`GTF_READING`] and
/// [`GTF_WRITING`].
pub const V2_STATUS_PER_PAGE: usize = crate::PAGE_SIZE / 2;
/// `GNTTAB_NR_RESERVED_ENTRIES`: references reserved for Xen's tools (0 is the console, 1
/// xenstore).
pub const RESERVED_ENTRIES: u32 = 8;

const _: () = assert!(V1_PER_PAGE == 512 && V2_PER_PAGE == 256 && V2_STATUS_PER_PAGE == 2048);

/// An entry by which a guest grants one page to one domain.
///
/// C: `struct grant_entry_v1`, xen/include/public/grant_table.h. Little-endian. 8 bytes.
///
/// ```text
/// |  0     1  |  2     3  |  4    5    6    7  |
/// |   flags   |   domid   |        frame       |
/// ```
/// * `flags`: `GTF_*`. The guest writes all but reading and writing, which Xen writes.
/// * `domid`: who may use the page. Written by the guest.
/// * `frame`: the page's number in the guest. Written by the guest.
///
/// # Trust
/// Guests never see each other's tables. Xen, and the loopback, take every field as the guest's
/// claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct GrantEntryV1 {
    /// The flags `GTF_*`.
    pub flags: u16,
    /// The domain that may use the page.
    pub domid: u16,
    /// Frame number of the page in the guest.
    pub frame: u32,
}

const _: () = assert!(size_of::<GrantEntryV1>() == GrantEntryV1::SIZE);
const _: () = assert!(offset_of!(GrantEntryV1, domid) == 2 && offset_of!(GrantEntryV1, frame) == 4);

impl GrantEntryV1 {
    /// Bytes of an entry.
    pub const SIZE: usize = 8;

    /// Decodes the entry's two little-endian words, of which Xen exchanges the first.
    pub const fn from_words(w: [u32; 2]) -> Self {
        Self { flags: w[0] as u16, domid: (w[0] >> 16) as u16, frame: w[1] }
    }
    /// Encodes the entry's two little-endian words.
    pub const fn to_words(self) -> [u32; 2] {
        [self.flags as u32 | (self.domid as u32) << 16, self.frame]
    }
    /// Whether Xen has marked the page as mapped or being copied, so that it must not be reused.
    pub const fn in_use(self) -> bool {
        self.flags & (GTF_READING | GTF_WRITING) != 0
    }
}

/// An entry by which a guest grants to one domain a page, a part of a page, or another domain's
/// grant.
///
/// C: `union grant_entry_v2`, xen/include/public/grant_table.h. Little-endian. 16 bytes. Use is
/// recorded separately, in the status pages.
///
/// ```text
/// |  0     1  |  2     3  |  4     5   |  6     7  |  8    9   10   11 | 12   13   14   15 |
/// |   flags   |   domid   |         pad 0          |                 frame                 |  full page
/// |   flags   |   domid   |  page_off  |  length   |                 frame                 |  sub page
/// |   flags   |   domid   | trans_domid|   pad 0   |        gref       |       pad 0       |  transitive
/// ```
/// * `flags`, `domid`, `frame`: as in [`GrantEntryV1`], with 64 bits of `frame`.
/// * `page_off`, `length`: bytes, the part of the page.
/// * `trans_domid`, `gref`: whose grant, and which.
///
/// All of it is written by the guest.
///
/// # Trust
/// As [`GrantEntryV1`]. `page_off + length` may point past the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantEntryV2 {
    /// A whole page. Entries of the types invalid and transfer are decoded to this, too.
    Full {
        /// The flags `GTF_*`.
        flags: u16,
        /// The domain that may use the page.
        domid: u16,
        /// Frame number of the page in the guest.
        frame: u64,
    },
    /// A part of a page: [`GTF_PERMIT_ACCESS`] with [`GTF_SUB_PAGE`].
    SubPage {
        /// The flags `GTF_*`.
        flags: u16,
        /// The domain that may use the page.
        domid: u16,
        /// Offset of the part in bytes.
        page_off: u16,
        /// Length of the part in bytes.
        length: u16,
        /// Frame number of the page in the guest.
        frame: u64,
    },
    /// Another domain's grant: [`GTF_TRANSITIVE`].
    Transitive {
        /// The flags `GTF_*`.
        flags: u16,
        /// The domain that may use the grant.
        domid: u16,
        /// The domain that made the grant.
        trans_domid: u16,
        /// The grant reference in that domain.
        gref: u32,
    },
}

impl GrantEntryV2 {
    /// Bytes of an entry.
    pub const SIZE: usize = 16;

    /// Decodes the entry's four little-endian words; the flags select the variant.
    pub const fn from_words(w: [u32; 4]) -> Self {
        let (flags, domid) = (w[0] as u16, (w[0] >> 16) as u16);
        let frame = w[2] as u64 | (w[3] as u64) << 32;
        match flags & GTF_TYPE_MASK {
            GTF_TRANSITIVE => Self::Transitive { flags, domid, trans_domid: w[1] as u16, gref: w[2] },
            GTF_PERMIT_ACCESS if flags & GTF_SUB_PAGE != 0 => {
                Self::SubPage { flags, domid, page_off: w[1] as u16, length: (w[1] >> 16) as u16, frame }
            }
            _ => Self::Full { flags, domid, frame },
        }
    }
    /// Encodes the entry's four little-endian words. `flags` is written unchanged and must match
    /// the variant.
    pub const fn to_words(self) -> [u32; 4] {
        match self {
            Self::Full { flags, domid, frame } => {
                [flags as u32 | (domid as u32) << 16, 0, frame as u32, (frame >> 32) as u32]
            }
            Self::SubPage { flags, domid, page_off, length, frame } => [
                flags as u32 | (domid as u32) << 16,
                page_off as u32 | (length as u32) << 16,
                frame as u32,
                (frame >> 32) as u32,
            ],
            Self::Transitive { flags, domid, trans_domid, gref } => {
                [flags as u32 | (domid as u32) << 16, trans_domid as u32, gref, 0]
            }
        }
    }
}

/// The result of one map, unmap or copy operation. C: `GNTST_*`, xen/include/public/grant_table.h.
///
/// It is a raw number, because Xen may add statuses. Each operation of a batch has its own, so a
/// hypercall that succeeds may contain failed operations.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub struct GrantStatus(pub i16);

impl GrantStatus {
    /// `GNTST_okay`: the operation succeeded.
    pub const OKAY: Self = Self(0);
    /// `GNTST_general_error`: the operation failed for a reason that Xen does not give.
    pub const GENERAL_ERROR: Self = Self(-1);
    /// `GNTST_bad_domain`: the domain does not exist, or may not use the grant.
    pub const BAD_DOMAIN: Self = Self(-2);
    /// `GNTST_bad_gntref`: the grant does not exist, or was revoked.
    pub const BAD_GNTREF: Self = Self(-3);
    /// `GNTST_bad_handle`: the mapping does not exist, or was unmapped already.
    pub const BAD_HANDLE: Self = Self(-4);
    /// `GNTST_bad_virt_addr`: the address to map at cannot be used.
    pub const BAD_VIRT_ADDR: Self = Self(-5);
    /// `GNTST_bad_dev_addr`: the device address to unmap is not the mapping's.
    pub const BAD_DEV_ADDR: Self = Self(-6);
    /// `GNTST_no_device_space`: the I/O address space has no room left.
    pub const NO_DEVICE_SPACE: Self = Self(-7);
    /// `GNTST_permission_denied`: the grant does not allow this access.
    pub const PERMISSION_DENIED: Self = Self(-8);
    /// `GNTST_bad_page`: the granted page cannot be shared.
    pub const BAD_PAGE: Self = Self(-9);
    /// `GNTST_bad_copy_arg`: the copy would cross the end of a page.
    pub const BAD_COPY_ARG: Self = Self(-10);
    /// `GNTST_address_too_big`: the page's address is too large for this domain.
    pub const ADDRESS_TOO_BIG: Self = Self(-11);
    /// `GNTST_eagain`: the page is not in memory now; the caller may try again.
    pub const EAGAIN: Self = Self(-12);
    /// `GNTST_no_space`: no more mappings are possible.
    pub const NO_SPACE: Self = Self(-13);

    /// Whether the operation succeeded.
    pub const fn is_okay(self) -> bool {
        self.0 == Self::OKAY.0
    }
    /// `Ok` if the operation succeeded.
    ///
    /// # Errors
    ///
    /// The status itself.
    pub const fn check(self) -> Result<(), Self> {
        if self.is_okay() { Ok(()) } else { Err(self) }
    }
    /// Xen's name of the status and its meaning. `None`: Xen does not define the number.
    const fn meaning(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::OKAY => ("okay", "done"),
            Self::GENERAL_ERROR => ("general_error", "failed for a reason that Xen does not tell"),
            Self::BAD_DOMAIN => ("bad_domain", "the domain does not exist or may not use this grant"),
            Self::BAD_GNTREF => ("bad_gntref", "the grant does not exist or was revoked"),
            Self::BAD_HANDLE => ("bad_handle", "the mapping does not exist or was unmapped already"),
            Self::BAD_VIRT_ADDR => ("bad_virt_addr", "the address to map at cannot be used"),
            Self::BAD_DEV_ADDR => ("bad_dev_addr", "the device address to unmap is not the mapping's"),
            Self::NO_DEVICE_SPACE => ("no_device_space", "no room left in the I/O address space"),
            Self::PERMISSION_DENIED => {
                ("permission_denied", "the grant does not allow this, such as writing when it is read-only")
            }
            Self::BAD_PAGE => ("bad_page", "the granted page cannot be shared"),
            Self::BAD_COPY_ARG => ("bad_copy_arg", "the copy would cross the end of a page"),
            Self::ADDRESS_TOO_BIG => ("address_too_big", "the page's address is too big for this domain"),
            Self::EAGAIN => ("eagain", "the page is not in memory now, try again"),
            Self::NO_SPACE => {
                ("no_space", "no more mappings are possible, raise Xen's gnttab_max_maptrack_frames")
            }
            _ => return None,
        })
    }
}

impl fmt::Display for GrantStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            Some((name, words)) => write!(f, "{words} (GNTST_{name}, {})", self.0),
            None => write!(f, "unknown grant status {}", self.0),
        }
    }
}

impl core::error::Error for GrantStatus {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn statuses_0_to_minus_13_have_words_and_no_others() {
        for raw in i16::MIN..=i16::MAX {
            let s = GrantStatus(raw);
            assert_eq!(s.meaning().is_some(), (-13..=0).contains(&raw));
            assert_eq!(s.check().is_ok(), raw == 0);
        }
    }

    #[test]
    fn a_status_tells_words_name_and_number() {
        assert_eq!(
            GrantStatus::BAD_GNTREF.to_string(),
            "the grant does not exist or was revoked (GNTST_bad_gntref, -3)"
        );
        assert_eq!(GrantStatus(-14).to_string(), "unknown grant status -14");
    }

    #[test]
    fn in_use_means_reading_or_writing() {
        let entry = |flags| GrantEntryV1 { flags, ..GrantEntryV1::default() };
        assert!(!entry(GTF_PERMIT_ACCESS | GTF_READONLY).in_use());
        assert!(entry(GTF_PERMIT_ACCESS | GTF_READING).in_use());
        assert!(entry(GTF_PERMIT_ACCESS | GTF_WRITING).in_use());
    }
}
