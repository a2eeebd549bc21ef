//! Pages of a queue that has ended while a consumer still reads frames in them.
//!
//! ```text
//!   FrontQueue --end--> Unreturned (frames are read here) --the last token is back--> Regions
//! ```
//! Invariants: they stay granted to their back, as all pages of a vif do. Until they are returned
//! they are not posted again, and no other vif has them.

use super::lent::{LentPages, UnknownToken};
use super::regions::Regions;
use crate::net::path::FrontChain;
use crate::platform::Platform;
use crate::port::{Piece, Token};

/// The pages of one queue.
pub struct Unreturned<P: Platform> {
    chain: FrontChain<P>,
    pages: LentPages,
}

impl<P: Platform> Unreturned<P> {
    /// None: the caller has none of the pages, and the memory is returned.
    pub fn or_release(
        chain: FrontChain<P>,
        pages: LentPages,
        p: &P,
        regions: &mut Regions<P>,
    ) -> Option<Self> {
        Self { chain, pages }.release_unlent(p, regions)
    }

    /// None: the caller has returned all pages, and the memory is returned.
    pub fn release_unlent(self, p: &P, regions: &mut Regions<P>) -> Option<Self> {
        if self.pages.out() > 0 {
            return Some(self);
        }
        self.chain.release(p, regions);
        None
    }

    /// See [`RxFront::piece`](super::RxFront::piece).
    pub fn piece(&self, token: Token, k: usize) -> Option<Piece<'_>> {
        self.pieces(token).nth(k)
    }

    /// See [`RxFront::release`](super::RxFront::release).
    pub fn release(&mut self, token: Token) -> Result<(), UnknownToken> {
        self.pages.release(token)
    }

    /// See [`RxFront::pieces`](super::RxFront::pieces).
    pub fn pieces(&self, token: Token) -> impl Iterator<Item = Piece<'_>> {
        self.pages.pieces_in(&self.chain, token)
    }

    /// Of the frames that the caller has by reference.
    pub fn tokens(&self) -> impl Iterator<Item = Token> {
        self.pages.tokens()
    }

    /// Frames that the caller has by reference.
    pub fn lent(&self) -> u32 {
        self.pages.out()
    }
}
