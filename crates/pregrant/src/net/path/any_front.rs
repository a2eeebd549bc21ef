//! Any path's memory at the front, as one type: a further path is a variant, and an arm of each
//! `match`. Paths without a variant use ordinary pages.

use super::copy::front::OrdinaryPages;
use super::data_ring::front::{RecvArea, SendArea};
use super::foreign::front::ForeignPages;
use super::front::FrontPath;
use super::guest_copy::front::BackPages;
use super::named_memory::{Answers, Received};
use super::path_name::PathName;
use super::staging::front::StagingArea;
use super::staging::keys::Offer;
use crate::error::{PeerFault, PlatformError};
use crate::net::ahead::SHORT;
use crate::net::front::regions::Granted;
use crate::net::front::rx_answers::Part;
use crate::net::stats::DirStats;
use crate::platform::Platform;
use crate::port::{Arena, Offload, Sink, Source};
use crate::wire::netif::RxResponse;

/// The memory that a queue's frames can travel in, matched once for a run of frames.
#[repr(u8)] // a tag that is a byte: it is matched for each answer of TX
pub enum AnyFrontPath<P: Platform> {
    /// Staging buffers.
    Staging(StagingArea<P>),
    /// TX: the half of a data ring.
    DataRing(SendArea<P>),
    /// Pages that are named by their frames.
    Foreign(ForeignPages<P>),
    /// Ordinary pages.
    Copy(OrdinaryPages<P>),
}

impl<P: Platform> AnyFrontPath<P> {
    /// Which path.
    pub fn name(&self) -> PathName {
        match self {
            Self::Staging(_) => PathName::Staging,
            Self::DataRing(_) => PathName::DataRing,
            Self::Foreign(_) => PathName::Foreign,
            Self::Copy(_) => PathName::Copy,
        }
    }

    /// Ids that have memory.
    pub fn ids(&self) -> u32 {
        match self {
            Self::Staging(area) => area.entries(),
            Self::DataRing(area) => area.ids(),
            Self::Foreign(pages) => pages.ids(),
            Self::Copy(pages) => pages.ids(),
        }
    }

    /// TX: `n` ids share its memory, of which as many as have memory are in flight at a time.
    /// False: it cannot serve so many.
    pub fn serve_ids(&mut self, n: u32) -> Result<bool, PlatformError> {
        match self {
            Self::Copy(pages) => pages.serve_ids(n).map(|()| true),
            Self::Staging(_) | Self::DataRing(_) | Self::Foreign(_) => Ok(n <= self.ids()),
        }
    }

    /// [`FrontPath::slot_bytes`].
    #[inline(always)]
    pub fn slot_bytes(&self) -> usize {
        match self {
            Self::Staging(area) => area.slot_bytes(),
            Self::DataRing(area) => area.slot_bytes(),
            Self::Foreign(pages) => pages.slot_bytes(),
            Self::Copy(pages) => pages.slot_bytes(),
        }
    }

    /// TX: whether it carries frames of any length, over several slots where they are long; else
    /// those that fit one slot.
    #[inline(always)]
    pub fn carries_all(&self) -> bool {
        match self {
            Self::Staging(area) => area.carries_all(),
            Self::DataRing(_) => false,
            Self::Foreign(_) | Self::Copy(_) => true,
        }
    }

    /// Whether it carries all since none is over several slots.
    pub fn of_one_slot(&self) -> bool {
        match self {
            Self::Staging(area) => area.of_one_slot(),
            Self::DataRing(_) | Self::Foreign(_) | Self::Copy(_) => false,
        }
    }

    /// TX: whether the first slot of a frame over several is in this memory, though another path
    /// carries the others.
    #[inline(always)]
    pub fn takes_first(&self) -> bool {
        match self {
            Self::Staging(area) => area.takes_first(),
            Self::DataRing(_) | Self::Foreign(_) | Self::Copy(_) => false,
        }
    }

    /// RX: whether the first bytes of a longer frame, which another path carries, are here: as many
    /// as are ahead of byte [`slot_bytes`](Self::slot_bytes) in its first slot.
    #[inline(always)]
    pub fn holds_heads(&self) -> bool {
        match self {
            Self::Staging(area) => area.holds_heads(),
            Self::DataRing(_) | Self::Foreign(_) | Self::Copy(_) => false,
        }
    }

    /// TX: a longer frame, which another path carries, begins with `id`.
    #[inline(always)]
    pub fn head(&mut self, id: u16, frame: &impl Source) {
        match self {
            Self::Staging(area) => area.head(id, frame),
            Self::DataRing(_) | Self::Foreign(_) | Self::Copy(_) => {}
        }
    }

    /// RX: of a frame of at most so many bytes all lines are asked for before the batch is read.
    #[inline(always)]
    pub fn asked_bytes(&self) -> usize {
        match self {
            Self::Staging(area) => area.asked_bytes(),
            Self::DataRing(_) | Self::Foreign(_) | Self::Copy(_) => SHORT,
        }
    }

    /// [`FrontPath::place`].
    #[inline(always)]
    pub fn place(&mut self, p: &P, id: u16) -> Result<u32, PlatformError> {
        match self {
            Self::Staging(area) => area.place(p, id),
            Self::DataRing(area) => area.place(p, id),
            Self::Foreign(pages) => pages.place(p, id),
            Self::Copy(pages) => pages.place(p, id),
        }
    }

    /// [`FrontPath::holds`].
    #[inline(always)]
    pub fn holds(&self, total: usize, nr_slots: usize) -> bool {
        match self {
            Self::Staging(area) => area.holds(total, nr_slots),
            Self::DataRing(area) => area.holds(total, nr_slots),
            Self::Foreign(pages) => pages.holds(total, nr_slots),
            Self::Copy(pages) => pages.holds(total, nr_slots),
        }
    }

    /// [`FrontPath::settle`].
    #[inline(always)]
    #[must_use]
    pub fn settle(&mut self, p: &P, id: u16) -> bool {
        match self {
            Self::Staging(area) => area.settle(p, id),
            Self::DataRing(area) => area.settle(p, id),
            Self::Foreign(pages) => pages.settle(p, id),
            Self::Copy(pages) => pages.settle(p, id),
        }
    }

    /// TX: the most bytes of it that were in use at a time, where it is a path that may be full.
    pub fn most(&self) -> u64 {
        match self {
            Self::DataRing(area) => area.most(),
            Self::Staging(_) | Self::Foreign(_) | Self::Copy(_) => 0,
        }
    }

    /// Whether its buffers are of a kind that such a back has.
    pub fn is_offered(&self, offer: &Offer) -> bool {
        match self {
            Self::Staging(area) => area.is_offered(offer),
            Self::DataRing(_) | Self::Foreign(_) | Self::Copy(_) => true,
        }
    }

    /// Frames are to travel, to a back that offers such buffers.
    pub fn go_live(&mut self, offer: &Offer) {
        match self {
            Self::Staging(area) => area.go_live(offer),
            Self::DataRing(_) | Self::Foreign(_) | Self::Copy(_) => {}
        }
    }

    /// Pages with a grant of their own each, if it has such.
    #[inline]
    pub fn pages(&self) -> Option<&OrdinaryPages<P>> {
        match self {
            Self::Foreign(pages) => Some(pages.pages()),
            Self::Copy(pages) => Some(pages),
            Self::Staging(_) | Self::DataRing(_) => None,
        }
    }

    /// The same, for others to be added.
    pub fn pages_mut(&mut self) -> Option<&mut OrdinaryPages<P>> {
        match self {
            Self::Copy(pages) => Some(pages),
            Self::Staging(_) | Self::DataRing(_) | Self::Foreign(_) => None,
        }
    }

    /// The same, to be used without the path.
    ///
    /// # Errors
    /// It has none.
    pub fn into_pages(self) -> Result<OrdinaryPages<P>, Self> {
        match self {
            Self::Foreign(pages) => Ok(pages.into_pages()),
            Self::Copy(pages) => Ok(pages),
            other @ (Self::Staging(_) | Self::DataRing(_)) => Err(other),
        }
    }

    /// Gives its pages back, one by one, which allocates nothing.
    #[inline(never)] // a kernel's stack has no room for all kinds of them
    pub fn give_back(self, give: &mut dyn FnMut(Granted<P>)) {
        match self {
            Self::Staging(area) => area.into_granted().into_iter().for_each(give),
            Self::DataRing(area) => give(area.into_granted()),
            Self::Foreign(pages) => pages.into_pages().into_all().for_each(give),
            Self::Copy(pages) => pages.into_all().for_each(give),
        }
    }
}

/// RX memory that responses name by their flags.
pub enum AnyFlaggedPath<P: Platform> {
    /// RX: the half of a data ring.
    DataRing(RecvArea<P>),
    /// Pages that the back lends.
    GuestCopy(BackPages<P>),
}

impl<P: Platform> AnyFlaggedPath<P> {
    /// Flags by which a response may name memory, whether a queue has it or not.
    pub const FLAGS: u16 = RecvArea::<P>::FLAGS | BackPages::<P>::FLAGS;

    /// Those of them that say so whether a queue has it or not.
    pub const ALWAYS: u16 = RecvArea::<P>::ALWAYS | BackPages::<P>::ALWAYS;

    /// Which path.
    pub fn name(&self) -> PathName {
        match self {
            Self::DataRing(_) => PathName::DataRing,
            Self::GuestCopy(_) => PathName::GuestCopy,
        }
    }

    /// A response with one of these flags names it.
    #[inline(always)]
    pub fn flags(&self) -> u16 {
        match self {
            Self::DataRing(_) => RecvArea::<P>::FLAGS,
            Self::GuestCopy(_) => BackPages::<P>::FLAGS,
        }
    }

    /// Whether its frames are [fetched](BackPages::fetch), many at once: they are received into an
    /// arena alone.
    #[inline(always)]
    pub fn fetches(&self) -> bool {
        match self {
            Self::DataRing(_) => false,
            Self::GuestCopy(_) => true,
        }
    }

    /// Whether a piece of a frame over several slots can be there, as its response says it; where
    /// that is found out later, true.
    pub fn can_have(&self, rsp: &RxResponse) -> bool {
        match self {
            Self::DataRing(_) => true,
            Self::GuestCopy(pages) => pages.can_have(rsp),
        }
    }

    /// Receives frames of one slot each, without extras: `rsp`, the first of `answers`, and those
    /// behind it that are such too, until `to` takes no more. Returns how many.
    pub fn recv_run(
        &mut self,
        answers: Answers<'_, P>,
        rsp: RxResponse,
        to: &mut impl Sink,
    ) -> Result<u32, PeerFault> {
        match self {
            Self::DataRing(area) => area.recv_run(answers, rsp, to),
            Self::GuestCopy(pages) => pages.recv_run(answers, rsp, to),
        }
    }

    /// Receives a frame of these parts.
    pub fn recv_long(
        &mut self,
        frame: (&[Part], Offload),
        to: &mut impl Sink,
    ) -> Result<Received, PeerFault> {
        match self {
            Self::DataRing(area) => area.recv_long(frame, to),
            Self::GuestCopy(pages) => Ok(pages.recv_long(frame, to)),
        }
    }

    /// Copies from byte `skip` of a part on as much as `dst` has room for; checks all of the part.
    /// False: it is lost.
    pub fn copy(&self, p: &P, part: &Part, skip: usize, dst: &mut [u8]) -> Result<bool, PeerFault> {
        match self {
            Self::DataRing(area) => area.copy_piece(part, skip, dst).map(|()| true),
            Self::GuestCopy(pages) => Ok(pages.copy(p, part, skip, dst)),
        }
    }

    /// A call begins that receives into an arena.
    #[inline(always)]
    pub fn begin(&mut self) {
        match self {
            Self::DataRing(_) => {}
            Self::GuestCopy(pages) => pages.begin(),
        }
    }

    /// Fetches what such a call received, before its slots are posted again.
    #[inline(always)]
    pub fn fetch(&mut self, p: &P, out: &mut Arena, stats: &mut DirStats) {
        match self {
            Self::DataRing(_) => {}
            Self::GuestCopy(pages) => pages.fetch(p, out, stats),
        }
    }

    /// Its page or pages, to be given back.
    pub fn into_memory(self) -> Granted<P> {
        match self {
            Self::DataRing(area) => area.into_granted(),
            Self::GuestCopy(pages) => pages.into_granted(),
        }
    }
}
