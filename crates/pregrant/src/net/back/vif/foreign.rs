//! All of a guest, as a connecting back maps it: for each queue, or not at all.
//!
//! ```text
//!   offered, because the operator said so --> request-foreign --> mapped --> foreign-active = 1
//! ```
//! What a front may do: ask. It is given nothing that it does not have; the vif's log says that it is not apart from this back.

use super::Vif;
use crate::net::back::refusal::ListRefusal;
use crate::net::path::{ForeignPath, foreign};
use crate::platform::Platform;
use crate::xenbus::back::Begin;
use crate::xenbus::bus::DeviceBus;
use crate::xenbus::refusal::ConnectError;
use alloc::format;
use alloc::vec::Vec;
use core::fmt;

impl<P: Platform> Vif<P> {
    /// The paths of each queue, TX and RX, of a guest that `asks`; none where it does not, or cannot be mapped. One that names frames
    /// to a predecessor goes on doing so: then it is an error.
    pub(super) fn whole_guest<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        asks: bool,
        nr_queues: usize,
        begin: Begin,
    ) -> Result<Vec<[ForeignPath<P>; 2]>, ConnectError<B::Error>> {
        let names_frames = match begin {
            Begin::Fresh => false,
            Begin::Reattach => {
                bus.own_text(foreign::ACTIVE).map_err(ConnectError::Keys)?.as_deref() == Some("1")
            }
        };
        if begin == Begin::Reattach && !names_frames
            || begin == Begin::Fresh && !(asks && self.config.foreign)
        {
            return Ok(Vec::new());
        }
        let lost = |why: &dyn fmt::Display| {
            let text =
                format!("its guest names frames to a predecessor that mapped all of its memory, and {why}");
            ConnectError::Lost(text)
        };
        if !self.config.foreign {
            return Err(lost(&"this back was not told to do so (--path foreign)"));
        }
        if !asks {
            return Err(lost(&format_args!("does not ask for it any more ({})", foreign::REQUEST)));
        }
        let of = self.of;
        let paths: Result<_, _> = (0..nr_queues).map(|_| ForeignPath::pair(p, of)).collect();
        match paths {
            Err(e) if names_frames => Err(lost(&e)),
            Err(e) => {
                self.refused.push((0, "tx", ListRefusal::Whole(e)));
                Ok(Vec::new())
            }
            Ok(paths) => Ok(paths),
        }
    }
}
