//! Any path's memory at the front, as one type: a further path is a variant, and an arm of each
//! `match`. Paths without a variant use ordinary pages.

use super::copy::front::OrdinaryPages;
use super::data_ring::front::{RecvArea, SendArea};
use super::front::FrontPath;
use super::named_memory::{Answers, Received};
use super::path_name::PathName;
#[cfg(feature = "research")]
use super::research::foreign::front::ForeignPages;
#[cfg(feature = "research")]
use super::research::guest_copy::front::BackPages;
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

/// Memory of a queue's frames. It is matched once for a run of frames.
#[repr(u8)] // a tag that is a byte: it is matched for each answer of TX
pub enum AnyFrontPath<P: Platform> {
    /// Staging buffers, granted at set-up.
    Staging(StagingArea<P>),
    /// TX: the half of a data ring from which frames are sent.
    DataRing(SendArea<P>),
    /// Pages that requests name by their frame numbers.
    #[cfg(feature = "research")]
    Foreign(ForeignPages<P>),
    /// Ordinary pages, which every back can copy from and to.
    Copy(OrdinaryPages<P>),
}

impl<P: Platform> AnyFrontPath<P> {
    /// The path's name.
    pub fn name(&self) -> PathName {
        match self {
            Self::Staging(_) => PathName::Staging,
            Self::DataRing(_) => PathName::DataRing,
            #[cfg(feature = "research")]
            Self::Foreign(_) => PathName::Foreign,
            Self::Copy(_) => PathName::Copy,
        }
    }

    /// Number of ids (ring slots) for which there is memory.
    pub fn ids(&self) -> u32 {
        match self {
            Self::Staging(area) => area.entries(),
            Self::DataRing(area) => area.ids(),
            #[cfg(feature = "research")]
            Self::Foreign(pages) => pages.ids(),
            Self::Copy(pages) => pages.ids(),
        }
    }

    /// TX: shares the path's memory among `n` ids; as many frames are in flight at a time as there
    /// is memory for. Returns false if the path cannot serve `n` ids.
    pub fn serve_ids(&mut self, n: u32) -> Result<bool, PlatformError> {
        match self {
            Self::Copy(pages) => pages.serve_ids(n).map(|()| true),
            Self::Staging(_) | Self::DataRing(_) => Ok(n <= self.ids()),
            #[cfg(feature = "research")]
            Self::Foreign(_) => Ok(n <= self.ids()),
        }
    }

    /// Calls [`FrontPath::slot_bytes`] of the path.
    #[inline(always)]
    pub fn slot_bytes(&self) -> usize {
        match self {
            Self::Staging(area) => area.slot_bytes(),
            Self::DataRing(area) => area.slot_bytes(),
            #[cfg(feature = "research")]
            Self::Foreign(pages) => pages.slot_bytes(),
            Self::Copy(pages) => pages.slot_bytes(),
        }
    }

    /// TX: true if the path carries frames of any length, long ones over several slots; false if it
    /// carries only those that fit in one slot.
    #[inline(always)]
    pub fn carries_all(&self) -> bool {
        match self {
            Self::Staging(area) => area.carries_all(),
            Self::DataRing(_) => false,
            #[cfg(feature = "research")]
            Self::Foreign(_) => true,
            Self::Copy(_) => true,
        }
    }

    /// True if this path carries every frame because no frame needs more than one slot.
    pub fn of_one_slot(&self) -> bool {
        match self {
            Self::Staging(area) => area.of_one_slot(),
            #[cfg(feature = "research")]
            Self::Foreign(_) => false,
            Self::DataRing(_) | Self::Copy(_) => false,
        }
    }

    /// TX: whether the first slot of a frame over several is in this memory, though another path
    /// carries the others.
    #[inline(always)]
    pub fn takes_first(&self) -> bool {
        match self {
            Self::Staging(area) => area.takes_first(),
            #[cfg(feature = "research")]
            Self::Foreign(_) => false,
            Self::DataRing(_) | Self::Copy(_) => false,
        }
    }

    /// RX: whether the first bytes of a longer frame, which another path carries, are in this
    /// path's memory: as many as are ahead of byte [`slot_bytes`](Self::slot_bytes) in its first
    /// slot.
    #[inline(always)]
    pub fn holds_heads(&self) -> bool {
        match self {
            Self::Staging(area) => area.holds_heads(),
            #[cfg(feature = "research")]
            Self::Foreign(_) => false,
            Self::DataRing(_) | Self::Copy(_) => false,
        }
    }

    /// TX: tells the path that a longer frame, which another path carries, begins with `id`.
    #[inline(always)]
    pub fn head(&mut self, id: u16, frame: &impl Source) {
        match self {
            Self::Staging(area) => area.head(id, frame),
            #[cfg(feature = "research")]
            Self::Foreign(_) => {}
            Self::DataRing(_) | Self::Copy(_) => {}
        }
    }

    /// RX: the length in bytes up to which frames are prefetched whole, before the batch is read.
    #[inline(always)]
    pub fn asked_bytes(&self) -> usize {
        match self {
            Self::Staging(area) => area.asked_bytes(),
            #[cfg(feature = "research")]
            Self::Foreign(_) => SHORT,
            Self::DataRing(_) | Self::Copy(_) => SHORT,
        }
    }

    /// Calls [`FrontPath::place`] of the path.
    #[inline(always)]
    pub fn place(&mut self, p: &P, id: u16) -> Result<u32, PlatformError> {
        match self {
            Self::Staging(area) => area.place(p, id),
            Self::DataRing(area) => area.place(p, id),
            #[cfg(feature = "research")]
            Self::Foreign(pages) => pages.place(p, id),
            Self::Copy(pages) => pages.place(p, id),
        }
    }

    /// Calls [`FrontPath::holds`] of the path.
    #[inline(always)]
    pub fn holds(&self, total: usize, nr_slots: usize) -> bool {
        match self {
            Self::Staging(area) => area.holds(total, nr_slots),
            Self::DataRing(area) => area.holds(total, nr_slots),
            #[cfg(feature = "research")]
            Self::Foreign(pages) => pages.holds(total, nr_slots),
            Self::Copy(pages) => pages.holds(total, nr_slots),
        }
    }

    /// Calls [`FrontPath::settle`] of the path.
    #[inline(always)]
    #[must_use]
    pub fn settle(&mut self, p: &P, id: u16) -> bool {
        match self {
            Self::Staging(area) => area.settle(p, id),
            Self::DataRing(area) => area.settle(p, id),
            #[cfg(feature = "research")]
            Self::Foreign(pages) => pages.settle(p, id),
            Self::Copy(pages) => pages.settle(p, id),
        }
    }

    /// TX: the largest number of bytes that were in use at the same time, for a path whose memory
    /// can be full; else 0.
    pub fn most(&self) -> u64 {
        match self {
            Self::DataRing(area) => area.most(),
            #[cfg(feature = "research")]
            Self::Foreign(_) => 0,
            Self::Staging(_) | Self::Copy(_) => 0,
        }
    }

    /// True if a back with this offer can use these buffers.
    pub fn is_offered(&self, offer: &Offer) -> bool {
        match self {
            Self::Staging(area) => area.is_offered(offer),
            #[cfg(feature = "research")]
            Self::Foreign(_) => true,
            Self::DataRing(_) | Self::Copy(_) => true,
        }
    }

    /// Called when the queue goes live with a back that made this offer.
    pub fn go_live(&mut self, offer: &Offer) {
        match self {
            Self::Staging(area) => area.go_live(offer),
            #[cfg(feature = "research")]
            Self::Foreign(_) => {}
            Self::DataRing(_) | Self::Copy(_) => {}
        }
    }

    /// The path's pages that are granted one by one, if it has any.
    #[inline]
    pub fn pages(&self) -> Option<&OrdinaryPages<P>> {
        match self {
            #[cfg(feature = "research")]
            Self::Foreign(pages) => Some(pages.pages()),
            Self::Copy(pages) => Some(pages),
            Self::Staging(_) | Self::DataRing(_) => None,
        }
    }

    /// The ordinary pages, so that a caller can add or remove some; None for other paths.
    pub fn pages_mut(&mut self) -> Option<&mut OrdinaryPages<P>> {
        match self {
            Self::Copy(pages) => Some(pages),
            #[cfg(feature = "research")]
            Self::Foreign(_) => None,
            Self::Staging(_) | Self::DataRing(_) => None,
        }
    }

    /// Returns the path's ordinary pages, to be used without the path.
    ///
    /// # Errors
    /// The path has no ordinary pages.
    pub fn into_pages(self) -> Result<OrdinaryPages<P>, Self> {
        match self {
            #[cfg(feature = "research")]
            Self::Foreign(pages) => Ok(pages.into_pages()),
            Self::Copy(pages) => Ok(pages),
            other @ (Self::Staging(_) | Self::DataRing(_)) => Err(other),
        }
    }

    /// Takes the path apart and returns its granted pages.
    #[inline(never)] // a kernel's stack has no room for all kinds of them
    pub fn give_back(self, give: &mut dyn FnMut(Granted<P>)) {
        match self {
            Self::Staging(area) => area.into_granted().into_iter().for_each(give),
            Self::DataRing(area) => give(area.into_granted()),
            #[cfg(feature = "research")]
            Self::Foreign(pages) => pages.into_pages().into_all().for_each(give),
            Self::Copy(pages) => pages.into_all().for_each(give),
        }
    }
}

/// RX memory that a response selects by its flags.
pub enum AnyFlaggedPath<P: Platform> {
    /// RX: the half of a data ring in which frames arrive.
    DataRing(RecvArea<P>),
    /// Pages that the back grants to this domain, which copies from them.
    #[cfg(feature = "research")]
    GuestCopy(BackPages<P>),
}

impl<P: Platform> AnyFlaggedPath<P> {
    /// Flags by which a response can select memory, whether the queue has it or not.
    #[cfg(feature = "research")]
    pub const FLAGS: u16 = RecvArea::<P>::FLAGS | BackPages::<P>::FLAGS;
    /// Flags by which a response may name memory, whether a queue has it or not.
    #[cfg(not(feature = "research"))]
    pub const FLAGS: u16 = RecvArea::<P>::FLAGS;

    /// Response flags of paths that set them even on queues that did not negotiate the path.
    pub const ALWAYS: u16 = RecvArea::<P>::ALWAYS;

    /// The path's name.
    pub fn name(&self) -> PathName {
        match self {
            Self::DataRing(_) => PathName::DataRing,
            #[cfg(feature = "research")]
            Self::GuestCopy(_) => PathName::GuestCopy,
        }
    }

    /// The response flags by which the back selects this path.
    #[inline(always)]
    pub fn flags(&self) -> u16 {
        match self {
            Self::DataRing(_) => RecvArea::<P>::FLAGS,
            #[cfg(feature = "research")]
            Self::GuestCopy(_) => BackPages::<P>::FLAGS,
        }
    }

    /// True if frames of this path are [fetched](BackPages::fetch) in batches, and therefore
    /// received into an arena only.
    #[inline(always)]
    pub fn fetches(&self) -> bool {
        match self {
            Self::DataRing(_) => false,
            #[cfg(feature = "research")]
            Self::GuestCopy(_) => true,
        }
    }

    /// True if the memory that response `rsp` names can hold a fragment of a frame over several
    /// slots; also true if that is checked later only.
    #[cfg_attr(
        not(feature = "research"),
        expect(unused_variables, reason = "a data ring needs none of them")
    )]
    pub fn can_have(&self, rsp: &RxResponse) -> bool {
        match self {
            Self::DataRing(_) => true,
            #[cfg(feature = "research")]
            Self::GuestCopy(pages) => pages.can_have(rsp),
        }
    }

    /// Receives frames of one slot each, without extras: `rsp`, the first of `answers`, and those
    /// that follow and are of the same kind, until `to` is full. Returns how many frames it
    /// received.
    pub fn recv_run(
        &mut self,
        answers: Answers<'_, P>,
        rsp: RxResponse,
        to: &mut impl Sink,
    ) -> Result<u32, PeerFault> {
        match self {
            Self::DataRing(area) => area.recv_run(answers, rsp, to),
            #[cfg(feature = "research")]
            Self::GuestCopy(pages) => pages.recv_run(answers, rsp, to),
        }
    }

    /// Receives one frame that is made of these parts.
    pub fn recv_long(
        &mut self,
        frame: (&[Part], Offload),
        to: &mut impl Sink,
    ) -> Result<Received, PeerFault> {
        match self {
            Self::DataRing(area) => area.recv_long(frame, to),
            #[cfg(feature = "research")]
            Self::GuestCopy(pages) => Ok(pages.recv_long(frame, to)),
        }
    }

    /// Copies from byte `skip` of a part on as much as `dst` has room for; checks all of the part.
    /// False: the part's bytes are lost.
    #[cfg_attr(
        not(feature = "research"),
        expect(unused_variables, reason = "a data ring needs none of them")
    )]
    pub fn copy(&self, p: &P, part: &Part, skip: usize, dst: &mut [u8]) -> Result<bool, PeerFault> {
        match self {
            Self::DataRing(area) => area.copy_piece(part, skip, dst).map(|()| true),
            #[cfg(feature = "research")]
            Self::GuestCopy(pages) => Ok(pages.copy(p, part, skip, dst)),
        }
    }

    /// Called at the start of each call that receives into an arena.
    #[inline(always)]
    pub fn begin(&mut self) {
        match self {
            Self::DataRing(_) => {}
            #[cfg(feature = "research")]
            Self::GuestCopy(pages) => pages.begin(),
        }
    }

    /// Fetches the frames that the call received, before their slots are posted again.
    #[cfg_attr(
        not(feature = "research"),
        expect(unused_variables, reason = "a data ring needs none of them")
    )]
    #[inline(always)]
    pub fn fetch(&mut self, p: &P, out: &mut Arena, stats: &mut DirStats) {
        match self {
            Self::DataRing(_) => {}
            #[cfg(feature = "research")]
            Self::GuestCopy(pages) => pages.fetch(p, out, stats),
        }
    }

    /// Takes the path apart and returns its granted pages.
    pub fn into_memory(self) -> Granted<P> {
        match self {
            Self::DataRing(area) => area.into_granted(),
            #[cfg(feature = "research")]
            Self::GuestCopy(pages) => pages.into_granted(),
        }
    }
}
