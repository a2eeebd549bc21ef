//! Frames of the guest's kernel in pages of the guest's own (the experiment `own-buffers` of
//! `pregrant front`).
//!
//! ```text
//!   tap --read--> | pages of a queue, a frame behind another, in a circle | --send_own--> ring
//!                   held until the answer where the back has them; else copied to the static pool
//! ```
//! Invariants: no page is read into that a request on the ring names. A frame begins at a page, and
//! there is room for the longest.
//!
//! What the back may do: read a page that it keeps mapped while a frame comes into it. Nothing but
//! frames of this vif is in there.

use super::Result;
use pregrant::PAGE_SIZE;
use pregrant::net::front::FrontVif;
use pregrant::platform::{GrantPool, Platform};
use pregrant::port::{BURST_FRAMES, FrameDesc, MAX_FRAME};
use pregrant::shm::SharedBytes;
use pregrant::xenstore::Transport;
use pregrant_host::drivers::{Frontend, FrontendError};
use pregrant_host::ports::tap::TapPort;

/// Number of pages of the longest frame.
pub(super) const FRAME_PAGES: usize = MAX_FRAME.div_ceil(PAGE_SIZE);

pub(super) struct OwnBuffers {
    circles: Vec<Circle>,
}

impl OwnBuffers {
    /// Gives the vif, which must not be connected yet, `pages` pages for each of `queues` queues.
    pub(super) fn new<P: Platform, T: Transport>(
        guest: &mut Frontend<P, T>,
        pages: usize,
        queues: usize,
    ) -> Result<Self> {
        let (platform, vif) = guest.driver();
        let table = platform.grants().per_frame().ok_or(
            "--experiment own-buffers: only the loopback grants single pages; use --loopback, or leave it out",
        )?;
        let memory = table.pages(pages * queues)?;
        vif.use_memory(memory, pages).map_err(|_| "--experiment own-buffers: the vif has memory already")?;
        let circle = |queue| Circle { first: queue * pages, pages, ..Circle::default() };
        Ok(Self { circles: (0..queues).map(circle).collect() })
    }

    /// Moves a burst of queue `i` from its port to its ring. Returns true if anything moved.
    pub(super) fn round<P: Platform, T: Transport>(
        &mut self,
        guest: &mut Frontend<P, T>,
        i: usize,
        port: &mut TapPort,
    ) -> Result<bool> {
        let (platform, vif) = guest.driver();
        let Some(circle) = self.circles.get_mut(i) else { return Ok(false) };
        if circle.unsent().is_empty() {
            circle.fill(vif, port);
        }
        let sent = vif.send_own(platform, i, circle.unsent()).map_err(FrontendError::from)?;
        circle.sent += sent;
        Ok(sent > 0)
    }

    /// Returns true if an answer from the back would make room for frames that were read, or for
    /// the next frames.
    pub(super) fn waits(&self) -> bool {
        self.circles.iter().any(|circle| circle.is_full || !circle.unsent().is_empty())
    }
}

/// The pages of one queue, which are used one after another, again and again.
#[derive(Default)]
struct Circle {
    /// The index of the queue's first page in the shared memory.
    first: usize,
    pages: usize,
    /// The offset at which the next frame is put.
    next: usize,
    frames: Vec<FrameDesc>,
    /// Number of frames, from the first on, that are on the ring already.
    sent: usize,
    /// The next page is not free, because the backend still has it.
    is_full: bool,
}

impl Circle {
    fn unsent(&self) -> &[FrameDesc] {
        self.frames.get(self.sent..).unwrap_or_default()
    }

    fn fill<P: Platform>(&mut self, vif: &FrontVif<P>, port: &mut TapPort) {
        self.frames.clear();
        (self.sent, self.is_full) = (0, false);
        let Some(memory) = vif.memory() else { return };
        let mut used = 0;
        while self.frames.len() < BURST_FRAMES {
            if self.next + FRAME_PAGES > self.pages {
                used += self.pages - self.next;
                self.next = 0;
            }
            if used + FRAME_PAGES > self.pages {
                return; // this burst's own frames
            }
            let page = self.first + self.next;
            if (page..page + FRAME_PAGES).any(|page| vif.is_held(page)) {
                self.is_full = true;
                return;
            }
            let at = page * PAGE_SIZE;
            let Some(room) = memory.piece_mut(at, FRAME_PAGES * PAGE_SIZE) else { return };
            let Some((len, offload)) = port.read_to(&room) else { return };
            self.frames.push(FrameDesc { at: at as u32, len: len as u32, offload });
            let pages = len.div_ceil(PAGE_SIZE);
            self.next += pages;
            used += pages;
        }
    }
}
