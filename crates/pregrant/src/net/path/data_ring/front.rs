//! The front's area of one queue: granted once, from set-up to disconnect (docs/protocol 4.5).
//!
//! ```text
//!   SendArea   frame --take--> place in `out` --> bytes      answer of its id --settle--> the oldest places are free
//!   RecvArea   response's place in `in` --copy_out--> private bytes
//! ```
//! The index page stays with the queue, each half with its direction. What a back may do: answer ids in any order (a place
//! is free when those before it are), never answer (the area is full, and frames go by the next path), name any place (a fault).

use super::places::{Places, Used};
use super::{PIECE_MAX, PLACE_BYTES, PREFETCHED, copy_in_around, copy_out_around, index};
use crate::error::PlatformError;
use crate::net::front::regions::{Granted, Granting, Region, Regions};
use crate::platform::{Access, Platform};
use crate::shm::SharedBytes;
use crate::units::GrantRef;
use crate::wire::netif::RxResponse;
use alloc::boxed::Box;
use alloc::vec;

/// An area as it is made.
pub struct DataArea<P: Platform> {
    /// The page that names the others.
    pub index: Granted<P>,
    /// TX; None: not wanted.
    pub out: Option<SendArea<P>>,
    /// RX.
    pub within: Option<RecvArea<P>>,
}

impl<P: Platform> DataArea<P> {
    /// 2^order pages, for those of the directions (TX, RX) that are wanted, and the page that names them; all or nothing. `ids`: of TX.
    pub fn new(
        p: &P,
        regions: &mut Regions<P>,
        order: u32,
        [tx, rx]: [bool; 2],
        ids: u32,
    ) -> Result<Self, PlatformError> {
        let each = 1usize << (order - 1);
        let index = regions.take(p, Access::ReadOnly, 1, Granting::Standing)?;
        let mut halves = [None, None];
        for (half, (wanted, acc)) in halves.iter_mut().zip([(rx, Access::ReadWrite), (tx, Access::ReadOnly)])
        {
            if !wanted {
                continue;
            }
            match regions.take(p, acc, each, Granting::Standing) {
                Ok(granted) => *half = Some(granted),
                Err(e) => {
                    halves.into_iter().flatten().chain([index]).for_each(|granted| regions.put(p, granted));
                    return Err(e);
                }
            }
        }
        // A region may be larger than what was asked for: half of an area is a power of two.
        let refs = |half: &Option<Granted<P>>| half.as_ref().map_or(&[][..], |g| &g.refs()[..each]).to_vec();
        let [within, out] = [&halves[0], &halves[1]].map(refs);
        let fits = index::write(index.bytes(), order, [&within, &out]);
        debug_assert!(fits, "an index page holds the references of each order");
        let size = (each * crate::PAGE_SIZE) as u32;
        let [within, out] = halves;
        Ok(Self {
            index,
            out: out.map(|granted| SendArea {
                granted,
                places: Places::new(size),
                used: Used::new(ids),
                by_id: vec![None; ids as usize].into_boxed_slice(),
            }),
            within: within.map(|granted| RecvArea { granted, size }),
        })
    }

    /// Gives the memory back.
    pub fn release(self, p: &P, regions: &mut Regions<P>) {
        let halves = [self.out.map(SendArea::into_granted), self.within.map(RecvArea::into_granted)];
        halves.into_iter().flatten().chain([self.index]).for_each(|granted| regions.put(p, granted));
    }

    /// The grant of the index page, for its key.
    pub fn index_ref(&self) -> GrantRef {
        self.index.refs()[0]
    }
}

/// The half of TX.
pub struct SendArea<P: Platform> {
    granted: Granted<P>,
    places: Places,
    /// By the order of their places: whether the request is answered.
    used: Used<Answered>,
    /// By id: its number there, while its frame is in the area and not answered.
    by_id: Box<[Option<u32>]>,
}

/// Whether a place's request is answered.
#[derive(Clone, Copy, Default, Debug)]
struct Answered(bool);

impl<P: Platform> SendArea<P> {
    /// Whether a frame of so many bytes finds room now.
    #[inline(always)]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.places.has_room(bytes) && self.used.has_room(1)
    }

    /// Copies the frame of `id` to the next place, which the request says. None: it is full.
    #[inline(always)]
    pub fn put(&mut self, id: u16, frame: &[u8]) -> Option<u32> {
        if !self.used.has_room(1) {
            return None;
        }
        let place = self.places.take(frame.len())?;
        let fits = copy_in_around(self.granted.bytes(), self.places.size() as usize, place as usize, frame);
        debug_assert!(fits, "a place lies in its half");
        self.by_id[usize::from(id)] = Some(self.used.note(Answered(false), self.places.head()));
        Some(place)
    }

    /// Asks for the first lines of a frame that will begin `ahead` bytes behind the next place.
    #[inline(always)]
    pub fn prefetch(&self, ahead: usize, bytes: usize) {
        let place = (self.places.next() as usize + ahead) & (self.places.size() as usize - 1);
        self.granted.bytes().prefetch_write(place, bytes);
    }

    /// The request of `id` is answered.
    #[inline(always)]
    pub fn settle(&mut self, id: u16) {
        let Some(number) = self.by_id[usize::from(id)].take() else { return };
        *self.used.at_mut(number) = Answered(true);
        if let Some(head) = self.used.forget(|answered| answered.0) {
            self.places.free_to(head);
        }
    }

    /// The half.
    pub fn bytes(&self) -> &Region<P> {
        self.granted.bytes()
    }

    /// The most bytes that were in use at a time.
    pub fn most(&self) -> u32 {
        self.places.most()
    }

    /// The memory, for [`Regions::put`].
    pub fn into_granted(self) -> Granted<P> {
        self.granted
    }
}

/// The half of RX.
pub struct RecvArea<P: Platform> {
    granted: Granted<P>,
    size: u32,
}

impl<P: Platform> RecvArea<P> {
    /// Where a response's piece is: in the half, and how long. None: the back names bytes outside of it.
    #[inline(always)]
    pub fn piece(&self, offset: u16, status: i16) -> Option<(usize, usize)> {
        let (place, len) = (usize::from(offset) * PLACE_BYTES, usize::try_from(status).ok()?);
        let size = self.size as usize;
        (place < size && len <= size.min(PIECE_MAX)).then_some((place, len))
    }

    /// The half.
    pub fn bytes(&self) -> &Region<P> {
        self.granted.bytes()
    }

    /// Copies a piece out from a place on, around the end, as much as `dst` has room for.
    #[inline(always)]
    #[must_use]
    pub fn copy_out(&self, place: usize, dst: &mut [u8]) -> bool {
        copy_out_around(self.granted.bytes(), self.size as usize, place & (self.size as usize - 1), dst)
    }

    /// Asks for the first lines of a response's piece, to be read. Whatever it names: nothing is read.
    #[inline(always)]
    pub fn prefetch(&self, rsp: RxResponse) {
        let len = usize::try_from(rsp.status).unwrap_or(0).min(PREFETCHED);
        self.granted.bytes().prefetch_read(usize::from(rsp.offset) * PLACE_BYTES, len);
    }

    /// The memory, for [`Regions::put`].
    pub fn into_granted(self) -> Granted<P> {
        self.granted
    }
}
