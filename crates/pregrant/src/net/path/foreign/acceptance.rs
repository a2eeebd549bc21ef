//! Accepts `foreign`: a connecting back maps all of a guest for each queue, or nothing.
//!
//! ```text
//!   offered, because the operator said so --> request-foreign --> mapped --> foreign-active = 1
//! ```
//! What a front may do: request it. It gets no access that it does not have; the vif's log says
//! that it is not isolated from this back.

use super::back::ForeignPath;
use super::keys::{ACTIVE, REQUEST, WholeRefusal};
use crate::net::features::FrontRequest;
use crate::net::path::acceptance::{Accept, Accepted, Accepting, Lost, Said};
use crate::net::path::any_back::AnyPath;
use crate::net::path::any_refusal::Refusal;
use crate::platform::Platform;
use alloc::format;
use alloc::string::String;
use alloc::vec::{IntoIter, Vec};
use core::fmt;

/// See the module.
pub struct AcceptForeign<P: Platform> {
    allowed: bool,
    /// Of the queues that were not asked yet: TX, RX. The first one decides for all.
    paths: IntoIter<[ForeignPath<P>; 2]>,
}

impl<P: Platform> AcceptForeign<P> {
    /// The operator `allowed` it, or not.
    pub fn new(allowed: bool) -> Self {
        Self { allowed, paths: Vec::new().into_iter() }
    }

    /// The paths of each queue of a guest; none where it does not ask, or cannot be mapped. One
    /// that names frames to a predecessor goes on doing so: then it is an error.
    fn all(&self, cx: &mut Accepting<'_, P>, said: Said<'_>) -> Result<Vec<[ForeignPath<P>; 2]>, Lost> {
        let asks = cx.front.foreign;
        if !said.whole(asks && self.allowed) {
            return Ok(Vec::new());
        }
        let names_frames = said.is_reattach();
        let lost = |why: &dyn fmt::Display| {
            Lost(format!("its guest names frames to a predecessor that mapped all of its memory, and {why}"))
        };
        if !self.allowed {
            return Err(lost(&"this back does not run with --path foreign"));
        }
        if !asks {
            return Err(lost(&format_args!("does not ask for it any more ({REQUEST})")));
        }
        let paths: Result<_, _> = cx.front.queues.iter().map(|_| ForeignPath::pair(cx.p, cx.of)).collect();
        match paths {
            Err(e) if names_frames => Err(lost(&e)),
            Err(e) => {
                cx.refuse(0, "tx", Refusal::Foreign(WholeRefusal(e)));
                Ok(Vec::new())
            }
            Ok(paths) => Ok(paths),
        }
    }
}

impl<P: Platform> Accept<P> for AcceptForeign<P> {
    fn active_key(&self, _front: &FrontRequest, queue: usize) -> Option<String> {
        (queue == 0).then(|| ACTIVE.into())
    }

    fn accept(
        &mut self,
        cx: &mut Accepting<'_, P>,
        queue: usize,
        said: Said<'_>,
    ) -> Result<Accepted<P>, Lost> {
        if queue == 0 {
            self.paths = self.all(cx, said)?.into_iter();
        }
        let active = if self.paths.len() > 0 { "1" } else { "0" };
        let active = (queue == 0 && cx.front.foreign).then_some(active);
        let Some([tx, rx]) = self.paths.next() else { return Ok(Accepted { active, ..Accepted::NONE }) };
        let (tx, rx) = (Some(AnyPath::Foreign(tx)), Some(AnyPath::Foreign(rx)));
        Ok(Accepted { tx, rx, pages: 0, active })
    }
}
