//! Requests and responses of blkif, in both ABIs (docs/protocol 5.3).
//!
//! ```text
//!   slot, 112 or 108 bytes: | op | ... which of four requests it is, by op
//!     READ, WRITE, WRITE_BARRIER, FLUSH   segments in the slot, at most 11 -----------> data pages
//!     INDIRECT                            grefs of at most 8 pages of 512 segments ---> data pages
//!     DISCARD                             sectors only
//! ```
//! C: xen/include/public/io/blkif.h. Little-endian. A 32-bit x86 guest aligns `u64` to 4, so
//! everything behind the first 4 bytes is at another place, and the slot is shorter; the frontend
//! says which [`Abi`] it uses in the key `protocol`. Sectors are 512 bytes, whatever the disk's own
//! are.
//!
//! Invariants: decoding never fails, because a request that cannot be served must be answered by
//! its id. Counts and segments are checked by the methods that hand them out. Pads are written as
//! zero (XSA-216).
//!
//! What the peer may do: any op, more segments than fit, segments that end before they start,
//! sectors past the end of the disk, numbers that overflow when added. The last two need the disk's
//! size: the driver checks them.

use super::WireError;
use core::mem::offset_of;

/// `BLKIF_OP_READ`: reads sectors of the disk.
pub const OP_READ: u8 = 0;
/// `BLKIF_OP_WRITE`: writes sectors of the disk.
pub const OP_WRITE: u8 = 1;
/// `BLKIF_OP_WRITE_BARRIER`: a write that is ordered after all earlier and before all later
/// requests.
pub const OP_WRITE_BARRIER: u8 = 2;
/// `BLKIF_OP_FLUSH_DISKCACHE`: flushes the disk's cache, and has no segments.
pub const OP_FLUSH_DISKCACHE: u8 = 3;
/// `BLKIF_OP_DISCARD`: discards sectors.
pub const OP_DISCARD: u8 = 5;
/// `BLKIF_OP_INDIRECT`: the actual operation is in another field.
pub const OP_INDIRECT: u8 = 6;
/// `BLKIF_DISCARD_SECURE`: the data must not be recoverable afterwards.
pub const DISCARD_SECURE: u8 = 0x1;

/// `BLKIF_RSP_OKAY`: the request succeeded.
pub const RSP_OKAY: i16 = 0;
/// `BLKIF_RSP_ERROR`: the request failed or is invalid.
pub const RSP_ERROR: i16 = -1;
/// `BLKIF_RSP_EOPNOTSUPP`: the back does not support the request.
pub const RSP_EOPNOTSUPP: i16 = -2;

/// `BLKIF_MAX_SEGMENTS_PER_REQUEST`: number of segments for which a slot has room.
pub const SEGMENTS_MAX: usize = 11;
/// `BLKIF_MAX_INDIRECT_PAGES_PER_REQUEST`: number of segment pages for which an indirect request
/// has room.
pub const INDIRECT_PAGES_MAX: usize = 8;
/// Number of segments in one indirect page.
pub const SEGMENTS_PER_INDIRECT_PAGE: usize = crate::PAGE_SIZE / Segment::SIZE;
/// Bytes of a sector as requests count them, whatever the disk's sector size.
pub const SECTOR_BYTES: usize = 512;
/// Number of sectors of a page. A segment's last sector is below this number.
pub const SECTORS_PER_PAGE: u8 = (crate::PAGE_SIZE / SECTOR_BYTES) as u8;

/// Words of the longest slot. With [`Abi::X86_32`] a slot has one word fewer.
pub const SLOT_WORDS_MAX: usize = 28;

const _: () = assert!(SEGMENTS_PER_INDIRECT_PAGE == 512 && SECTORS_PER_PAGE == 8);

/// How the frontend lays out its requests. C: `XEN_IO_PROTO_ABI_*`,
/// xen/include/public/io/protocols.h.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Abi {
    /// `u64` is aligned to 8: x86_64, and both kinds of Arm.
    X86_64,
    /// `u64` is aligned to 4: 32-bit x86.
    X86_32,
}

impl Abi {
    /// The layout assumed if a front does not write `protocol`, as in Linux's and QEMU's backs: on
    /// x86 the 32-bit layout, even for a 64-bit guest.
    pub const UNSAID: Self =
        if cfg!(any(target_arch = "x86", target_arch = "x86_64")) { Self::X86_32 } else { Self::X86_64 };

    /// Parses the front's key `protocol`. `None`: a layout that is not supported.
    pub fn from_protocol(value: &[u8]) -> Option<Self> {
        match value {
            b"x86_64-abi" | b"arm-abi" => Some(Self::X86_64),
            b"x86_32-abi" => Some(Self::X86_32),
            _ => None,
        }
    }
    /// The value of the key `protocol` with which a front on x86 names this layout.
    pub const fn protocol(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-abi",
            Self::X86_32 => "x86_32-abi",
        }
    }
    /// Bytes of a slot.
    pub const fn slot_bytes(self) -> usize {
        self.slot_words() * 4
    }
    /// Words of a slot.
    pub const fn slot_words(self) -> usize {
        SLOT_WORDS_MAX - self.words_less()
    }
    /// Words of a response.
    pub const fn response_words(self) -> usize {
        4 - self.words_less()
    }
    /// By how many words all fields after the first word move down, compared with [`Abi::X86_64`].
    const fn words_less(self) -> usize {
        match self {
            Self::X86_64 => 0,
            Self::X86_32 => 1,
        }
    }
}

const _: () = assert!(Abi::X86_64.slot_bytes() == 112 && Abi::X86_32.slot_bytes() == 108);

/// One contiguous part of a data page, in sectors of 512 bytes.
///
/// C: `struct blkif_request_segment`, xen/include/public/io/blkif.h. Little-endian. 8 bytes.
///
/// ```text
/// |  0    1    2    3  |    4     |    5     |  6     7  |
/// |      gref (f)      | first (f)| last (f) |   pad 0   |
/// ```
/// * `gref`: granted page; writable when the request reads from the disk.
/// * `first_sect`, `last_sect`: sectors within the page, both included.
///
/// # Trust
/// Every field is peer data. [`Segment::nr_sectors`] checks the sectors, the grant's own status the
/// rest. Those of an indirect page stay writable by the front: copy the page once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Segment {
    /// Grant reference of the page.
    pub gref: u32,
    /// First sector in the page.
    pub first_sect: u8,
    /// Last sector in the page.
    pub last_sect: u8,
}

const _: () = assert!(size_of::<Segment>() == Segment::SIZE);
const _: () = assert!(offset_of!(Segment, first_sect) == 4 && offset_of!(Segment, last_sect) == 5);

impl Segment {
    /// Bytes of a segment.
    pub const SIZE: usize = 8;

    /// Decodes two little-endian words.
    pub const fn from_words(w: [u32; 2]) -> Self {
        Self { gref: w[0], first_sect: w[1] as u8, last_sect: (w[1] >> 8) as u8 }
    }
    /// Encodes two little-endian words; the pad is zero.
    pub const fn to_words(self) -> [u32; 2] {
        [self.gref, self.first_sect as u32 | (self.last_sect as u32) << 8]
    }
    /// Decodes an entry of an indirect page.
    pub const fn from_bytes(b: [u8; Self::SIZE]) -> Self {
        Self { gref: u32::from_le_bytes([b[0], b[1], b[2], b[3]]), first_sect: b[4], last_sect: b[5] }
    }
    /// Encodes an entry of an indirect page; the pad is zero.
    pub const fn to_bytes(self) -> [u8; Self::SIZE] {
        let g = self.gref.to_le_bytes();
        [g[0], g[1], g[2], g[3], self.first_sect, self.last_sect, 0, 0]
    }
    /// Number of sectors that the segment names, 1 to 8.
    ///
    /// # Errors
    ///
    /// [`WireError::BlkSectors`] when the segment ends before it starts or passes the end of the
    /// page.
    pub const fn nr_sectors(self) -> Result<u8, WireError> {
        if self.first_sect > self.last_sect || self.last_sect >= SECTORS_PER_PAGE {
            return Err(WireError::BlkSectors { first: self.first_sect, last: self.last_sect });
        }
        Ok(self.last_sect - self.first_sect + 1)
    }
}

/// The frontend asks for a transfer whose segments are in the slot, or for a flush.
///
/// C: `struct blkif_request`, xen/include/public/io/blkif.h. Little-endian. 112 bytes, \[108 with
/// x86_32\].
///
/// ```text
/// |   0    |     1     |  2     3  |  4 ... 7  | 8[4] .. 15[11] | 16[12] .. 23[19] | 24[20] .. 111[107] |
/// | op (f) | nr_seg (f)| handle (f)| pad 0 [-] |     id (f)     |    sector (f)    |   seg[11] (f)      |
/// ```
/// * `op`: [`OP_READ`], [`OP_WRITE`], [`OP_WRITE_BARRIER`] or [`OP_FLUSH_DISKCACHE`].
/// * `nr_segments`: how many of `seg` count; 0 for a flush.
/// * `handle`: the disk's number; only for reads and writes, and no one checks it.
/// * `id`: chosen by the front, comes back in the response.
/// * `sector`: where on the disk, in units of 512 bytes.
///
/// # Trust
/// Every field is peer data. `nr_segments` is as sent: use [`RwRequest::segments`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RwRequest {
    /// The operation, one of `OP_*`.
    pub op: u8,
    /// Number of entries of `seg` that are used.
    pub nr_segments: u8,
    /// The disk's number, which no one checks.
    pub handle: u16,
    /// An identifier that the front chose.
    pub id: u64,
    /// First sector on the disk, in units of 512 bytes.
    pub sector: u64,
    /// The segments, of which the first `nr_segments` are used.
    pub seg: [Segment; SEGMENTS_MAX],
}

impl RwRequest {
    /// The segments that the request uses.
    ///
    /// # Errors
    /// [`WireError::BlkSegments`] when there are more than the slot holds.
    pub fn segments(&self) -> Result<&[Segment], WireError> {
        self.seg
            .get(..usize::from(self.nr_segments))
            .ok_or(WireError::BlkSegments { found: self.nr_segments.into(), max: SEGMENTS_MAX as u16 })
    }
}

/// The frontend says that it does not need the data of some sectors any more.
///
/// C: `struct blkif_request_discard`, xen/include/public/io/blkif.h. Little-endian. 32 bytes \[28\]
/// of the slot.
///
/// ```text
/// |  0  |    1    |  2     3  |  4 ... 7  | 8[4] .. 15[11] | 16[12] .. 23[19] | 24[20] .. 31[27] |
/// | op 5| flag (f)| handle (f)| pad 0 [-] |     id (f)     |    sector (f)    |  nr_sectors (f)  |
/// ```
/// * `flag`: [`DISCARD_SECURE`] or 0.
/// * `sector`, `nr_sectors`: units of 512 bytes.
///
/// # Trust
/// Every field is peer data; `sector + nr_sectors` may overflow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiscardRequest {
    /// [`DISCARD_SECURE`] or 0.
    pub flag: u8,
    /// The disk's number, which no one checks.
    pub handle: u16,
    /// An identifier that the front chose.
    pub id: u64,
    /// First sector on the disk, in units of 512 bytes.
    pub sector: u64,
    /// Number of sectors of 512 bytes.
    pub nr_sectors: u64,
}

/// The frontend asks for a transfer whose segments are in pages of their own.
///
/// C: `struct blkif_request_indirect`, xen/include/public/io/blkif.h. Little-endian. 64 bytes
/// \[56\] of the slot.
///
/// ```text
/// |  0  |   1   |  2     3  |  4 ... 7  | 8[4] .. | 16[12] .. | 24[20] 25 | 26, 27 | 28[24] .. 59[55] |
/// | op 6| op (f)| nr_seg (f)| pad 0 [-] |  id (f) | sector (f)| handle (f)| pad 0  |  gref[8] (f)     |
/// ```
/// * `op`: the real one: [`OP_READ`] or [`OP_WRITE`].
/// * `nr_segments`: over all pages, [`SEGMENTS_PER_INDIRECT_PAGE`] in each but the last.
/// * `grefs`: pages of [`Segment`]s, as many as `nr_segments` needs; readable is enough.
///
/// # Trust
/// Every field is peer data. Use [`IndirectRequest::pages`], with what this back offers in
/// `feature-max-indirect-segments`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndirectRequest {
    /// `indirect_op`: the actual operation.
    pub op: u8,
    /// Segments over all pages.
    pub nr_segments: u16,
    /// The disk's number, which no one checks.
    pub handle: u16,
    /// An identifier that the front chose.
    pub id: u64,
    /// First sector on the disk, in units of 512 bytes.
    pub sector: u64,
    /// Grant references of the pages with the segments.
    pub grefs: [u32; INDIRECT_PAGES_MAX],
}

impl IndirectRequest {
    /// The pages that hold the segments. `max` is what this back offers.
    ///
    /// # Errors
    /// [`WireError::BlkSegments`] when there are none, more than `max`, or more than eight pages
    /// hold.
    pub fn pages(&self, max: u16) -> Result<&[u32], WireError> {
        let found = self.nr_segments;
        let refused = WireError::BlkSegments { found, max };
        if found == 0 || found > max {
            return Err(refused);
        }
        self.grefs.get(..usize::from(found).div_ceil(SEGMENTS_PER_INDIRECT_PAGE)).ok_or(refused)
    }
}

/// A request in a frontend's slot. Its operation selects the variant, and so the layout of the
/// slot.
///
/// # Trust
/// Peer data, read once into this copy. [`Request::Other`] is answered with [`RSP_EOPNOTSUPP`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// A transfer or a flush: operations 0 to 3.
    ReadWrite(RwRequest),
    /// A discard, [`OP_DISCARD`].
    Discard(DiscardRequest),
    /// An indirect transfer, [`OP_INDIRECT`].
    Indirect(IndirectRequest),
    /// Any other operation. Only what its answer needs is kept.
    Other {
        /// The operation.
        op: u8,
        /// An identifier that the front chose.
        id: u64,
    },
}

impl Request {
    /// Decodes a slot's little-endian words. With [`Abi::X86_32`] the slot has one word fewer, and
    /// the last word passed is ignored.
    pub const fn from_words(abi: Abi, w: &[u32; SLOT_WORDS_MAX]) -> Self {
        let [op, second, h0, h1] = w[0].to_le_bytes();
        let high = u16::from_le_bytes([h0, h1]);
        let id_at = 2 - abi.words_less();
        let (id, sector, body) = (u64_at(w, id_at), u64_at(w, id_at + 2), id_at + 4);
        match op {
            OP_READ | OP_WRITE | OP_WRITE_BARRIER | OP_FLUSH_DISKCACHE => {
                let mut seg = [Segment { gref: 0, first_sect: 0, last_sect: 0 }; SEGMENTS_MAX];
                let mut i = 0;
                while i < SEGMENTS_MAX {
                    seg[i] = Segment::from_words([w[body + 2 * i], w[body + 2 * i + 1]]);
                    i += 1;
                }
                Self::ReadWrite(RwRequest { op, nr_segments: second, handle: high, id, sector, seg })
            }
            OP_DISCARD => Self::Discard(DiscardRequest {
                flag: second,
                handle: high,
                id,
                sector,
                nr_sectors: u64_at(w, body),
            }),
            OP_INDIRECT => {
                let mut grefs = [0; INDIRECT_PAGES_MAX];
                let mut i = 0;
                while i < INDIRECT_PAGES_MAX {
                    grefs[i] = w[body + 1 + i];
                    i += 1;
                }
                Self::Indirect(IndirectRequest {
                    op: second,
                    nr_segments: high,
                    handle: w[body] as u16,
                    id,
                    sector,
                    grefs,
                })
            }
            _ => Self::Other { op, id },
        }
    }

    /// Encodes a slot's little-endian words; those that the request does not use are zero.
    pub const fn to_words(&self, abi: Abi) -> [u32; SLOT_WORDS_MAX] {
        let mut w = [0; SLOT_WORDS_MAX];
        let id_at = 2 - abi.words_less();
        let body = id_at + 4;
        match self {
            Self::ReadWrite(r) => {
                let h = r.handle.to_le_bytes();
                w[0] = u32::from_le_bytes([r.op, r.nr_segments, h[0], h[1]]);
                put_u64(&mut w, id_at, r.id);
                put_u64(&mut w, id_at + 2, r.sector);
                let mut i = 0;
                while i < SEGMENTS_MAX {
                    [w[body + 2 * i], w[body + 2 * i + 1]] = r.seg[i].to_words();
                    i += 1;
                }
            }
            Self::Discard(r) => {
                let h = r.handle.to_le_bytes();
                w[0] = u32::from_le_bytes([OP_DISCARD, r.flag, h[0], h[1]]);
                put_u64(&mut w, id_at, r.id);
                put_u64(&mut w, id_at + 2, r.sector);
                put_u64(&mut w, body, r.nr_sectors);
            }
            Self::Indirect(r) => {
                let n = r.nr_segments.to_le_bytes();
                w[0] = u32::from_le_bytes([OP_INDIRECT, r.op, n[0], n[1]]);
                put_u64(&mut w, id_at, r.id);
                put_u64(&mut w, id_at + 2, r.sector);
                w[body] = r.handle as u32;
                let mut i = 0;
                while i < INDIRECT_PAGES_MAX {
                    w[body + 1 + i] = r.grefs[i];
                    i += 1;
                }
            }
            Self::Other { op, id } => {
                w[0] = *op as u32;
                put_u64(&mut w, id_at, *id);
            }
        }
        w
    }

    /// The request's id, which its answer must carry.
    pub const fn id(&self) -> u64 {
        match self {
            Self::ReadWrite(r) => r.id,
            Self::Discard(r) => r.id,
            Self::Indirect(r) => r.id,
            Self::Other { id, .. } => *id,
        }
    }
}

/// The backend's result of one request.
///
/// C: `struct blkif_response`, xen/include/public/io/blkif.h. Little-endian. 16 bytes \[12\].
///
/// ```text
/// |  0 ... 7  |   8    |   9   | 10    11  | 12 ... 15 |
/// |   id (b)  | op (b) | pad 0 | status (b)| pad 0 [-] |
/// ```
/// * `id`: the request's.
/// * `op`: the request's; for an indirect one Linux sends the real op.
/// * `status`: [`RSP_OKAY`], [`RSP_ERROR`] or [`RSP_EOPNOTSUPP`].
///
/// # Trust
/// A hostile back answers ids that were never asked, or twice: the front keeps a map of what is in
/// flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Response {
    /// The id of the request.
    pub id: u64,
    /// The operation of the request.
    pub op: u8,
    /// The result, one of `BLKIF_RSP_*`.
    pub status: i16,
}

impl Response {
    /// Decodes a slot's first words. Both ABIs have the same fields; [`Abi::X86_32`] lacks the last
    /// word, which is a pad.
    pub const fn from_words(w: [u32; 4]) -> Self {
        Self { id: w[0] as u64 | (w[1] as u64) << 32, op: w[2] as u8, status: (w[2] >> 16) as i16 }
    }
    /// Encodes a slot's first words, of which [`Abi::response_words`] must be written. Pads are
    /// zero (XSA-216).
    pub const fn to_words(self) -> [u32; 4] {
        [self.id as u32, (self.id >> 32) as u32, self.op as u32 | (self.status as u16 as u32) << 16, 0]
    }
}

const fn u64_at(w: &[u32; SLOT_WORDS_MAX], at: usize) -> u64 {
    w[at] as u64 | (w[at + 1] as u64) << 32
}

const fn put_u64(w: &mut [u32; SLOT_WORDS_MAX], at: usize, v: u64) {
    w[at] = v as u32;
    w[at + 1] = (v >> 32) as u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_11_segments_are_refused() {
        let mut r = RwRequest { nr_segments: 11, ..RwRequest::default() };
        assert_eq!(r.segments().map(<[_]>::len), Ok(11));
        r.nr_segments = 12;
        assert_eq!(r.segments(), Err(WireError::BlkSegments { found: 12, max: 11 }));
        r.nr_segments = 0;
        assert_eq!(r.segments(), Ok(&[][..]));
    }

    #[test]
    fn a_segment_is_within_its_page() {
        let sectors = |first_sect, last_sect| Segment { gref: 8, first_sect, last_sect }.nr_sectors();
        assert_eq!(sectors(0, 7), Ok(8));
        assert_eq!(sectors(7, 7), Ok(1));
        assert_eq!(sectors(3, 2), Err(WireError::BlkSectors { first: 3, last: 2 }));
        assert_eq!(sectors(0, 8), Err(WireError::BlkSectors { first: 0, last: 8 }));
        assert_eq!(sectors(255, 255), Err(WireError::BlkSectors { first: 255, last: 255 }));
    }

    #[test]
    fn indirect_pages_are_as_many_as_the_segments_need() {
        let pages = |nr_segments, max| {
            let r = IndirectRequest { nr_segments, ..IndirectRequest::default() };
            r.pages(max).map(<[_]>::len)
        };
        assert_eq!(pages(1, 256), Ok(1));
        assert_eq!(pages(512, 4096), Ok(1));
        assert_eq!(pages(513, 4096), Ok(2));
        assert_eq!(pages(4096, u16::MAX), Ok(8));
        assert_eq!(pages(0, 256), Err(WireError::BlkSegments { found: 0, max: 256 }));
        assert_eq!(pages(257, 256), Err(WireError::BlkSegments { found: 257, max: 256 }));
        assert_eq!(pages(4097, u16::MAX), Err(WireError::BlkSegments { found: 4097, max: u16::MAX }));
    }

    #[test]
    fn abi_is_named_by_the_key() {
        assert_eq!(Abi::from_protocol(b"x86_64-abi"), Some(Abi::X86_64));
        assert_eq!(Abi::from_protocol(b"x86_32-abi"), Some(Abi::X86_32));
        assert_eq!(Abi::from_protocol(b"arm-abi"), Some(Abi::X86_64));
        assert_eq!(Abi::from_protocol(b"ppc-abi"), None);
        assert_eq!((Abi::X86_64.response_words(), Abi::X86_32.response_words()), (4, 3));
    }
}
