//! Pages of a queue that has ended while a consumer still reads frames in them.
//!
//! ```text
//!   FrontQueue --end--> Unreturned (frames are read here) --the last token is back--> Regions
//!                '-- all its other memory --> Regions
//! ```
//! Invariants: they stay granted to their back, as all pages of a vif do. Until they are returned
//! they are not posted again, and no other vif has them.
//!
//! What the back may do: close and come again while frames are out. Each connection grants new
//! pages in place of these, so once there are [`UNRETURNED_MAX`] of them, the next connection
//! copies all frames.

use super::lent::{LentPages, UnknownToken};
use crate::net::front::regions::Regions;
use crate::net::path::FrontChain;
use crate::net::path::copy::front::OrdinaryPages;
use crate::platform::Platform;
use crate::port::{Piece, Token};

/// If consumers still have this number of pages of former queues, a new connection copies all
/// frames: an eighth of a grant table of version 1.
pub const UNRETURNED_MAX: usize = 4096;

/// Smallest number of pages that a former queue counts as, because its tables use memory and time,
/// too.
const LEAST: usize = 64;

/// The pages of one former queue.
pub struct Unreturned<P: Platform> {
    pages: OrdinaryPages<P>,
    lent: LentPages,
}

impl<P: Platform> Unreturned<P> {
    /// Releases the memory of a queue that has ended, but for pages that the caller still has.
    /// None: the caller has none, and all memory is returned.
    pub fn or_release(
        mut chain: FrontChain<P>,
        lent: LentPages,
        p: &P,
        regions: &mut Regions<P>,
    ) -> Option<Self> {
        let pages = if lent.out() > 0 { chain.take_pages() } else { None };
        chain.release(p, regions);
        let mut pages = pages?;
        let (first, more) = pages.room();
        for page in first..first.saturating_add(more as u16) {
            if !lent.is_lent(page)
                && let Some(granted) = pages.take_added(page)
            {
                regions.put(p, granted);
            }
        }
        Some(Self { pages, lent })
    }

    /// Releases the memory, once the caller has returned all pages.
    pub fn put(self, p: &P, regions: &mut Regions<P>) {
        debug_assert_eq!(self.lent(), 0);
        self.pages.into_all().for_each(|granted| regions.put(p, granted));
    }

    /// Number of pages that consumers of former queues still have.
    pub fn count(&self) -> usize {
        self.pages.count().max(LEAST)
    }

    /// Reads a frame's payload; see [`RxFront::piece`](crate::net::front::RxFront::piece).
    pub fn piece(&self, token: Token, k: usize) -> Option<Piece<'_>> {
        self.pieces(token).nth(k)
    }

    /// Releases a frame; see [`RxFront::release`](crate::net::front::RxFront::release).
    pub fn release(&mut self, token: Token) -> Result<(), UnknownToken> {
        self.lent.release(token)
    }

    /// Reads a frame's payload; see [`RxFront::pieces`](crate::net::front::RxFront::pieces).
    pub fn pieces(&self, token: Token) -> impl Iterator<Item = Piece<'_>> {
        self.lent.pieces_in(Some(&self.pages), token)
    }

    /// Releases those frames of which `has_done` says that the caller needs them no more.
    pub fn release_done(&mut self, has_done: impl Fn(&mut dyn Iterator<Item = Piece<'_>>) -> bool) {
        for page in 0..self.lent.numbers() {
            if let Some(token) = self.lent.token_of(page)
                && has_done(&mut self.pieces(token))
            {
                let known = self.release(token);
                debug_assert!(known.is_ok(), "it is lent");
            }
        }
    }

    /// Number of frames that the caller has by reference.
    pub fn lent(&self) -> u32 {
        self.lent.out()
    }
}
