//! The stages of one connection of a vif's front, and what exists in each.
//!
//! | stage | own state | what exists | what the back may do meanwhile |
//! |---|---|---|---|
//! | `Down` | 1, 5, 6 | no queue; pages of an earlier connection | nothing |
//! | `SetUp` | 4, or 1 until the keys are there | queues, a control ring; no frame | take rings and keys |
//! | `Live`, `Connected` | 4 | the same, and frames travel | serve the rings, keep pages mapped |
//! | `Live`, `Away` | 4 | the same; at 2 the rings are watched | at 2, take up the rings |
//! | `Closing` | 5, or 4 after an error until 5 is written | queues on which no frame travels | let go of pages |
//!
//! | from | event | to |
//! |---|---|---|
//! | `Down` | the back is at 2 | `SetUp` |
//! | `SetUp` | the back is at 4 | `Live` |
//! | `SetUp` | the back is at 4, and has refused more memory than frames need | `Closing`, then the minimum |
//! | `Live` | the back is at 1, 2, 3, 7 or 8 | `Away` |
//! | `Live` | the back keeps fewer pages mapped than it advertised | `Closing`, then the minimum |
//! | `Away` | the back is at 4 and accepts what was shared | `Connected`: requests are repeated |
//! | `Away` | the back refuses what was shared, does not serve the rings ([`taking_up`](super::taking_up)), or the renewal fails | `Closing` |
//! | any with queues | a fault, `restart`, `close`, `removed` while queues are handed out | `Closing` |
//! | any with queues, all of them here | the back is at 5 or 6, or is gone; `removed`, `restored` | `Down` |
//! | any with queues handed out | the back is at 5 or 6, or is gone | the same, until `Recall` has brought them back |
//!
//! Invariants: queues are handed out in `Live` and in `Closing` alone, and a vif whose queues are
//! handed out does not leave these before it has them back. A queue's link says that it is live
//! exactly in `Live`, but for the time between `FrontStep::Recall` and `take_back`.
//!
//! What a back may do: write any state at any time, and so move its front along these lines.

use super::ctrl::CtrlFront;
use super::halves::QueueLink;
use super::queue::FrontQueue;
use super::taking_up::TakingUp;
use crate::error::PlatformError;
use crate::memory;
use crate::net::path::PageAnnouncement;
use crate::platform::Platform;
use crate::units::GrantRef;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The stage of a vif's connection. The table above says which events lead where.
pub(crate) enum Stage<P: Platform> {
    /// The vif has no queue.
    Down,
    /// The back has been offered rings and channels, and is not connected yet.
    SetUp { queues: Vec<FrontQueue<P>>, ctrl: Option<CtrlFront<P>> },
    /// The vif is connected, and frames can travel.
    Live(Live<P>),
    /// No frame travels any more. The back may still have the rings mapped.
    Closing { queues: Queues<P>, ctrl: Option<CtrlFront<P>> },
}

/// A connection on which frames can travel.
pub(crate) struct Live<P: Platform> {
    pub queues: Queues<P>,
    pub ctrl: Option<CtrlFront<P>>,
    pub announcing: Announcing,
    pub back: BackIs,
}

/// The queues of a connection: the vif has them, or it has handed them out.
pub(crate) enum Queues<P: Platform> {
    Here(Vec<FrontQueue<P>>),
    HandedOut(Vec<HandedOut<P>>),
}

/// State of a queue that the vif keeps while another owner has the queue.
pub(crate) struct HandedOut<P: Platform> {
    /// The flags and channels that are shared with the queue's halves.
    pub link: Arc<QueueLink<P>>,
    /// The grants of the queue's TX and RX pages, while the vif announces these to the back.
    pub refs: [Box<[GrantRef]>; 2],
}

/// The state of the back of a live front.
pub(crate) enum BackIs {
    Connected,
    /// The back has left state 4. `taking_up` exists while it is in state 2, in which it may
    /// already serve the rings.
    Away {
        taking_up: Option<TakingUp>,
    },
}

/// The requests by which a front asks its back to keep the pages of the queues mapped.
pub(crate) enum Announcing {
    /// No request is outstanding. `mapped`: for each queue the number of pages that the back says
    /// it keeps mapped. `too_few`: it had offered more, so the front restarts with the minimum of
    /// memory.
    Over { mapped: Vec<usize>, too_few: bool },
    /// The back is asked to map the pages.
    Asking(PageAnnouncement),
    /// Another back has the rings, and is asked once the outstanding request has its answer.
    /// `awaits_ours`: the outstanding request is about these pages, and not one of the vif's owner.
    AskingAgain { awaits_ours: bool },
}

impl<P: Platform> Stage<P> {
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Live(_))
    }

    pub fn live(&self) -> Option<&Live<P>> {
        if let Self::Live(live) = self { Some(live) } else { None }
    }

    /// The queues that the vif has; none while they are handed out.
    #[inline(always)]
    pub fn queues(&self) -> &[FrontQueue<P>] {
        match self {
            Self::SetUp { queues, .. } => queues,
            Self::Live(Live { queues, .. }) | Self::Closing { queues, .. } => queues.here(),
            Self::Down => &[],
        }
    }

    #[inline(always)]
    pub fn queues_mut(&mut self) -> &mut [FrontQueue<P>] {
        match self {
            Self::SetUp { queues, .. } => queues,
            Self::Live(Live { queues, .. }) | Self::Closing { queues, .. } => queues.here_mut(),
            Self::Down => &mut [],
        }
    }

    /// The queues that the vif has, while frames can travel.
    #[inline(always)]
    pub fn live_queues(&self) -> &[FrontQueue<P>] {
        if let Self::Live(live) = self { live.queues.here() } else { &[] }
    }

    #[inline(always)]
    pub fn live_queues_mut(&mut self) -> &mut [FrontQueue<P>] {
        if let Self::Live(live) = self { live.queues.here_mut() } else { &mut [] }
    }

    /// The queues that are handed out.
    pub fn handed_out(&self) -> &[HandedOut<P>] {
        match self {
            Self::Live(Live { queues: Queues::HandedOut(out), .. })
            | Self::Closing { queues: Queues::HandedOut(out), .. } => out,
            _ => &[],
        }
    }

    /// The front's end of the control ring.
    pub fn ctrl_mut(&mut self) -> Option<&mut CtrlFront<P>> {
        match self {
            Self::SetUp { ctrl, .. } | Self::Live(Live { ctrl, .. }) | Self::Closing { ctrl, .. } => {
                ctrl.as_mut()
            }
            Self::Down => None,
        }
    }

    /// Starts the connection that was set up: frames can travel from now on.
    pub fn go_live(&mut self, announcing: Announcing) {
        match core::mem::replace(self, Self::Down) {
            Self::SetUp { queues, ctrl } => {
                queues.iter().for_each(|queue| queue.link().set_live(true));
                let (queues, back) = (Queues::Here(queues), BackIs::Connected);
                *self = Self::Live(Live { queues, ctrl, announcing, back });
            }
            other => *self = other,
        }
    }

    /// Stops all frames; owners of queues that are handed out see that, too.
    pub fn stop(&mut self) {
        if let Self::Live(live) = self {
            live.end_away();
        }
        let (queues, ctrl) = match core::mem::replace(self, Self::Down) {
            Self::Down => return,
            Self::SetUp { queues, ctrl } => (Queues::Here(queues), ctrl),
            Self::Live(Live { queues, ctrl, .. }) | Self::Closing { queues, ctrl } => (queues, ctrl),
        };
        queues.set_live(false);
        *self = Self::Closing { queues, ctrl };
    }

    /// Hands the live queues to the caller. Returns none if the vif is not live, or has handed them
    /// out already.
    pub fn hand_out(&mut self) -> (Vec<FrontQueue<P>>, Result<(), PlatformError>) {
        let Self::Live(live) = self else { return (Vec::new(), Ok(())) };
        let Queues::Here(queues) = &mut live.queues else { return (Vec::new(), Ok(())) };
        let queues = core::mem::take(queues);
        let is_announcing = live.announcing.is_under_way();
        let mut failed = Ok(());
        let mut copied = |refs: &[GrantRef]| match memory::collected(refs.iter().copied()) {
            Ok(refs) => refs,
            Err(e) => {
                failed = Err(e);
                Box::default()
            }
        };
        let out = queues.iter().map(|queue| HandedOut {
            link: queue.link().clone(),
            refs: if is_announcing { queue.page_refs().map(&mut copied) } else { Default::default() },
        });
        live.queues = Queues::HandedOut(out.collect());
        (queues, failed)
    }

    /// Gives the vif its queues back, in order.
    pub fn take_back(&mut self, back: Vec<FrontQueue<P>>) {
        debug_assert_eq!(back.len(), self.handed_out().len());
        let is_live = self.is_live();
        if let Self::Live(Live { queues, .. }) | Self::Closing { queues, .. } = self
            && let Queues::HandedOut(out) = queues
        {
            out.iter().for_each(|queue| queue.link.watch(false));
            *queues = Queues::Here(back);
            queues.set_live(is_live);
        }
    }
}

impl<P: Platform> Live<P> {
    /// Called when the back is no longer away, or when that does not matter any more.
    pub fn end_away(&mut self) {
        if let BackIs::Away { taking_up: Some(_) } = self.back {
            self.queues.watch(false);
        }
        self.back = BackIs::Connected;
    }

    pub fn is_away(&self) -> bool {
        matches!(self.back, BackIs::Away { .. })
    }
}

impl<P: Platform> Queues<P> {
    #[inline(always)]
    pub fn here(&self) -> &[FrontQueue<P>] {
        if let Self::Here(queues) = self { queues } else { &[] }
    }

    #[inline(always)]
    pub fn here_mut(&mut self) -> &mut [FrontQueue<P>] {
        if let Self::Here(queues) = self { queues } else { &mut [] }
    }

    pub fn count(&self) -> usize {
        match self {
            Self::Here(queues) => queues.len(),
            Self::HandedOut(out) => out.len(),
        }
    }

    pub fn are_handed_out(&self) -> bool {
        matches!(self, Self::HandedOut(_))
    }

    /// Sets whether frames can travel, for the owners of the queues.
    fn set_live(&self, live: bool) {
        match self {
            Self::Here(queues) => queues.iter().for_each(|queue| queue.link().set_live(live)),
            Self::HandedOut(out) => out.iter().for_each(|queue| queue.link.set_live(live)),
        }
    }

    /// Sets whether the vif must learn of answers at queues that are handed out.
    pub fn watch(&self, yes: bool) {
        if let Self::HandedOut(out) = self {
            out.iter().for_each(|queue| queue.link.watch(yes));
        }
    }
}

impl Announcing {
    /// Nothing was asked, and nothing will be.
    pub const NONE: Self = Self::Over { mapped: Vec::new(), too_few: false };

    /// True if the back is being asked, or must be asked again.
    pub fn is_under_way(&self) -> bool {
        !matches!(self, Self::Over { .. })
    }

    /// True if a request about the pages is on the control ring, or was there when another back
    /// came.
    pub fn has_ring(&self) -> bool {
        matches!(self, Self::Asking(_) | Self::AskingAgain { awaits_ours: true })
    }

    /// Whether the back keeps fewer pages mapped than it advertised.
    pub fn is_too_few(&self) -> bool {
        matches!(self, Self::Over { too_few: true, .. })
    }

    /// Number of pages of queue `i` that the back says it keeps mapped.
    pub fn mapped(&self, i: usize) -> usize {
        if let Self::Over { mapped, .. } = self { mapped.get(i).copied().unwrap_or(0) } else { 0 }
    }
}
