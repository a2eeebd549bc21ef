//! Validates a guest's requests: only this file decides which requests reach a disk
//! (docs/protocol 5.3).
//!
//! ```text
//!   Request (a private copy) --validate--> ValidRequest, and Parts of pages          refused: ERROR or EOPNOTSUPP, and the disk gets nothing
//!                                 ^ lists of indirect pages, copied once
//! ```
//! Invariants of a valid request: a transfer has 1 to `max` segments, each of whole logical sectors
//! within its page, whose total is the transfer's length; its sectors are on the disk, without
//! overflow, and begin and end with logical sectors; a read-only disk is never written; no two
//! segments are merged, whatever their references are (XSA-229).
//!
//! What a guest may do: write anything to a slot or a segment list. `handle` is not checked, as in
//! other backends.

use crate::blk::disk::{Discard, DiskFigures};
use crate::blk::path::{Direction, Part};
use crate::units::GrantRef;
use crate::wire::blkif::{
    DISCARD_SECURE, IndirectRequest, OP_FLUSH_DISKCACHE, OP_READ, OP_WRITE, OP_WRITE_BARRIER, RSP_EOPNOTSUPP,
    RSP_ERROR, Request, RwRequest, SECTOR_BYTES, Segment,
};
use alloc::vec::Vec;

/// The rules by which a queue validates requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// The disk's current properties.
    pub figures: DiskFigures,
    /// Whether barriers are offered.
    pub barrier: bool,
    /// Largest number of segments of an indirect request; 0: indirect requests are not offered.
    pub max_indirect: u16,
}

impl Rules {
    /// Largest number of segments of a request.
    pub fn most_parts(&self) -> usize {
        crate::wire::blkif::SEGMENTS_MAX.max(self.max_indirect.into())
    }
}

/// The operation that a request asks of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// Reads the segments from the disk.
    #[default]
    Read,
    /// Writes the segments to the disk.
    Write,
    /// Flushes the disk's cache.
    Flush,
    /// Flushes, writes the segments, and flushes again.
    FlushWrite,
    /// Flushes, and if there are segments, writes them and flushes again; all of it after all
    /// earlier and before all later requests.
    Barrier,
    /// Discards sectors.
    Discard {
        /// Whether the data must not be recoverable.
        secure: bool,
    },
}

impl Kind {
    /// The direction of the request's data.
    pub fn way(self) -> Direction {
        if self == Self::Read { Direction::Read } else { Direction::Write }
    }
}

/// A request that passed the validation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ValidRequest {
    /// The operation.
    pub kind: Kind,
    /// The first sector, in units of 512 bytes.
    pub sector: u64,
    /// Number of sectors.
    pub sectors: u64,
}

/// Why a request is answered without the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The request is invalid.
    Wrong,
    /// This disk does not support the request.
    NotSupported,
    /// A page of the request's segment list cannot be accessed.
    NoList,
}

impl Refusal {
    /// The status of the answer.
    pub fn status(self) -> i16 {
        match self {
            Self::NotSupported => RSP_EOPNOTSUPP,
            Self::Wrong | Self::NoList => RSP_ERROR,
        }
    }
}

/// The operation that the answer carries: the request's, or for an indirect request the actual
/// operation, as Linux's backends answer.
pub fn answered_op(req: &Request) -> u8 {
    match req {
        Request::ReadWrite(r) => r.op,
        Request::Indirect(r) => r.op,
        Request::Discard(_) => crate::wire::blkif::OP_DISCARD,
        Request::Other { op, .. } => *op,
    }
}

/// Validates a request. `read_list` copies the first bytes of the given pages, once; `list` is
/// memory for that.
///
/// # Errors
///
/// The request must be answered with the error at once; `parts` has no meaning then.
pub fn validate(
    req: &Request,
    rules: &Rules,
    parts: &mut Vec<Part>,
    list: &mut Vec<u8>,
    read_list: impl FnOnce(&[u32], &mut [u8]) -> bool,
) -> Result<ValidRequest, Refusal> {
    parts.clear();
    let figures = &rules.figures;
    match req {
        Request::ReadWrite(r) => validate_direct(r, rules, parts),
        Request::Indirect(r) => validate_indirect(r, rules, parts, list, read_list),
        Request::Discard(r) => {
            let Discard { secure, .. } =
                figures.discard.filter(|_| !figures.read_only).ok_or(Refusal::NotSupported)?;
            let asks_secure = r.flag & DISCARD_SECURE != 0;
            if asks_secure && !secure {
                return Err(Refusal::NotSupported); // "done" would be false
            }
            on_disk(figures, r.sector, r.nr_sectors)?;
            let kind = Kind::Discard { secure: asks_secure };
            Ok(ValidRequest { kind, sector: r.sector, sectors: r.nr_sectors })
        }
        Request::Other { .. } => Err(Refusal::NotSupported),
    }
}

fn validate_direct(r: &RwRequest, rules: &Rules, parts: &mut Vec<Part>) -> Result<ValidRequest, Refusal> {
    let segments = r.segments().map_err(|_| Refusal::Wrong)?;
    let figures = &rules.figures;
    let kind = match (r.op, segments.is_empty()) {
        (OP_READ, false) => Kind::Read,
        (OP_WRITE, false) => Kind::Write,
        (OP_WRITE_BARRIER, _) if !rules.barrier || !figures.flush => return Err(Refusal::NotSupported),
        (OP_WRITE_BARRIER, _) => Kind::Barrier,
        (OP_FLUSH_DISKCACHE, _) if !figures.flush => return Err(Refusal::NotSupported),
        (OP_FLUSH_DISKCACHE, true) => return Ok(ValidRequest { kind: Kind::Flush, sector: 0, sectors: 0 }),
        (OP_FLUSH_DISKCACHE, false) => Kind::FlushWrite,
        _ => return Err(Refusal::Wrong), // a transfer of nothing
    };
    if segments.is_empty() {
        return Ok(ValidRequest { kind, sector: 0, sectors: 0 });
    }
    transfer(kind, r.sector, segments.iter().copied(), figures, parts)
}

fn validate_indirect(
    r: &IndirectRequest,
    rules: &Rules,
    parts: &mut Vec<Part>,
    list: &mut Vec<u8>,
    read_list: impl FnOnce(&[u32], &mut [u8]) -> bool,
) -> Result<ValidRequest, Refusal> {
    if rules.max_indirect == 0 {
        return Err(Refusal::NotSupported);
    }
    let pages = r.pages(rules.max_indirect).map_err(|_| Refusal::Wrong)?;
    let kind = match r.op {
        OP_READ => Kind::Read,
        OP_WRITE => Kind::Write,
        _ => return Err(Refusal::Wrong),
    };
    list.clear();
    list.resize(usize::from(r.nr_segments) * Segment::SIZE, 0);
    if !read_list(pages, list) {
        return Err(Refusal::NoList);
    }
    let (segments, _) = list.as_chunks::<{ Segment::SIZE }>();
    transfer(kind, r.sector, segments.iter().map(|bytes| Segment::from_bytes(*bytes)), &rules.figures, parts)
}

fn transfer(
    kind: Kind,
    sector: u64,
    segments: impl Iterator<Item = Segment>,
    figures: &DiskFigures,
    parts: &mut Vec<Part>,
) -> Result<ValidRequest, Refusal> {
    if kind.way() == Direction::Write && figures.read_only {
        return Err(Refusal::Wrong);
    }
    let mut sectors = 0;
    for segment in segments {
        let n = u64::from(segment.nr_sectors().map_err(|_| Refusal::Wrong)?);
        if !n.is_multiple_of(figures.units()) {
            return Err(Refusal::Wrong);
        }
        sectors += n;
        let bytes = |sectors: u64| (sectors * SECTOR_BYTES as u64) as u16;
        let at = bytes(segment.first_sect.into());
        parts.push(Part { gref: GrantRef(segment.gref), at, len: bytes(n) });
    }
    on_disk(figures, sector, sectors)?;
    Ok(ValidRequest { kind, sector, sectors })
}

/// Checks that the range is not empty, consists of whole logical sectors, and is on the disk.
fn on_disk(figures: &DiskFigures, sector: u64, sectors: u64) -> Result<(), Refusal> {
    let units = figures.units();
    let whole = sector.is_multiple_of(units) && sectors.is_multiple_of(units);
    let end = sector.checked_add(sectors).filter(|end| *end <= figures.sectors);
    if sectors == 0 || !whole || end.is_none() { Err(Refusal::Wrong) } else { Ok(()) }
}
