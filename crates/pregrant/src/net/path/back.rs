//! A path at the back.
//!
//! ```text
//!   TxBatch --fetch--> arena bytes        frames that a path does not serve come back in the Todo,
//!   burst --deliver--> RX slots           and the next of its [chain](super::Chain) is asked
//!           retire --> frames whose pages a path held longer than the call
//!     holds_frames --> payload that it left where the guest put it, for a port that takes it there
//! ```
//!
//! A path is called once for a batch, with a bit for each frame. It reads grefs, ids and lengths
//! only from the batch's private copies, and marks a frame that it cannot fetch as failed. It never
//! touches the ring: the queue answers, in the order of requests.

use super::PageExchange;
use crate::grants::MappedStats;
use crate::net::batch::{Claim, RxBatch, Todo, TxBatch};
use crate::net::path::held::HoldsFrames;
use crate::net::path::path_name::{BufferNames, PathName};
use crate::platform::{GrantPool, Platform};
use crate::port::{Arena, Burst, Piece, Token};
use crate::units::DomId;
use crate::wire::netif::{RxResponse, TxRequest};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Memory for RX that frames may find full.
pub trait ByteArea {
    /// Takes over what a predecessor gave out, of a ring with `ring_size` slots. `left` are the
    /// responses in slots that the front has not posted again, with their ring indices, the oldest
    /// first; the next one's index is `next`.
    fn resume(&mut self, ring_size: u32, left: &[(u32, RxResponse)], next: u32);
    /// Frames that found no room since the last call, and the most bytes in use at a time.
    fn take_counts(&mut self) -> (u64, u64);
}

/// Pages that a vif's owner gives to a queue, and wants back.
pub trait Shared {
    /// Does what the owner requests, between two batches. True: some are given back.
    fn apply_config(&mut self) -> bool;
    /// Whether to call [`apply_config`](Self::apply_config) again without a new request.
    fn waits(&self) -> bool;
}

/// Has a queue apply a new configuration before its next batch.
pub trait ConfigGeneration: Send + Sync {
    /// Once the current batch is over.
    fn advance(&self);
}

/// Requests of a queue that are a path's own, by a flag; none unless it says so.
pub trait RequestClaims: Copy + Default {
    /// Those of this path; None: it has none.
    const CLAIM: Option<Claim> = None;
    /// Whether any request can be.
    #[inline(always)]
    fn any(self) -> bool {
        false
    }
    /// Whether this one is.
    #[inline(always)]
    fn claims(self, req: &TxRequest) -> bool {
        let _ = req;
        false
    }
    /// As [`Claims::is_place`](crate::net::batch::Claims::is_place) says it.
    #[inline(always)]
    fn is_place(self, req: &TxRequest) -> Option<bool> {
        let _ = req;
        None
    }
    /// As [`Claims::buffer_flag`](crate::net::batch::Claims::buffer_flag) says it.
    #[inline(always)]
    fn buffer_flag(self) -> u16 {
        0
    }
}

/// A path, for one direction of one queue. Both directions default to serving nothing.
pub trait BackPath<P: Platform> {
    /// Its name in keys, tables and records; the frames that it serves are counted by it.
    const NAME: PathName;

    /// Fetches the frames in `todo` from domain `of` into `out`; returns those that it does not
    /// serve.
    fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        let _ = (p, of, batch, out);
        todo
    }
    /// Delivers the frames in `todo` to domain `of`, and fills their responses; returns those that
    /// it does not serve.
    fn deliver(&mut self, p: &P, of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        let _ = (p, of, batch, frames);
        todo
    }
    /// Pages that it mapped since the connect and keeps; None: it never does.
    fn pages(&self) -> Option<usize> {
        None
    }
    /// What became of the store of such pages; None: it has none.
    fn kept(&self) -> Option<MappedStats> {
        None
    }
    /// How many that may be from now on; those that are too many are unmapped.
    fn limit_pages(&mut self, p: &P, pages: usize) {
        let _ = (p, pages);
    }
    /// Lets go of pages that earlier calls still hold, and appends each [held](TxBatch::held) frame
    /// that is free now. Called after the port has seen the burst.
    fn retire(&mut self, p: &P, done: &mut Vec<Token>) {
        let _ = (p, done);
    }
    /// As [`PayloadSource::piece`](crate::port::PayloadSource::piece). None too where the frame is
    /// another path's.
    fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        let _ = (i, k);
        None
    }
    /// Whether no frame is left to another path.
    fn serves_all(&self) -> bool {
        false
    }
    /// Its buffers; None: it has none.
    fn buffers(&self) -> Option<BufferNames> {
        None
    }
    /// What it fills until nothing fits, where that is of its own kind.
    fn room(&mut self) -> Option<&mut dyn ByteArea> {
        None
    }
    /// What both directions of a queue have in common, where they have.
    fn shared(&mut self) -> Option<&mut dyn Shared> {
        None
    }
    /// Takes over what it shares with the queue's other direction.
    fn take_over(&mut self, from: &mut Self)
    where
        Self: Sized,
    {
        let _ = from;
    }
    /// Where its vif's owner asks for pages.
    fn exchange(&self) -> Option<Arc<PageExchange<P>>> {
        None
    }
    /// Whether it delivers into pages that are lent to the guest.
    fn is_lent(&self) -> bool {
        false
    }
    /// Gives these away.
    fn into_lent(self) -> Option<<P::Grants as GrantPool>::Region>
    where
        Self: Sized,
    {
        None
    }
    /// The payload that it can leave in place; None: it gives private bytes only.
    fn holds_frames(&mut self) -> Option<&mut dyn HoldsFrames<P>> {
        None
    }
}
