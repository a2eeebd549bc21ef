//! The frame hook of a guest's front by command: which received frames it wants, and what becomes
//! of them before the guest's stack or kernel has a frame.
//!
//! ```text
//!   Frontend --head--> does it match? --no--> Pass
//!                        '--yes--> Pass, Drop
//!                                  Tx: turned round in the head, back in the buffers that it came in
//!                                  Redirect: turned round, out by another vif of the guest's (Exit)
//! ```
//! A frame that is turned round goes to its sender, from the hardware address of the vif by which
//! it leaves; an echo request to this vif becomes its answer. All of it is done to the private copy
//! of the head.
//!
//! What a peer may do: send anything. A frame from a group's address passes: no host is its sender.
//! Another such guest sends frames back again, without end.

use super::echo;
use super::packet_filter::PacketFilter;
use pregrant::net::front::{Diverted, FrontQueue, FrontStep, HookAction, HookFrame, HookStats};
use pregrant::net::headers::MacAddr;
use pregrant::platform::Platform;
use pregrant::port::{Arena, BURST_FRAMES};
use pregrant::xenstore::Transport;
use pregrant_host::drivers::{Frontend, FrontendError};
use std::fmt;
use std::time::Duration;

/// The frames that a hook acts on.
#[derive(Clone, Debug)]
pub enum Matching {
    All,
    /// Echo requests for the vif.
    EchoRequests,
    /// The frames that a packet filter selects.
    Filter(PacketFilter),
}

pub struct FrameHook<P: Platform, T: Transport> {
    mac: MacAddr,
    matching: Matching,
    action: HookAction,
    diverted: Diverted,
    exit: Option<Exit<P, T>>,
}

impl<P: Platform, T: Transport> FrameHook<P, T> {
    /// Creates the hook of a vif with this address. Redirected frames leave by `exit`.
    pub fn new(mac: MacAddr, matching: Matching, action: HookAction, exit: Option<Exit<P, T>>) -> Self {
        Self { mac, matching, action, diverted: Diverted::new(), exit }
    }

    /// Receives a burst of queue `i`, and adds the frames that pass to `out`. Returns how many
    /// there were.
    pub fn recv(
        &mut self,
        guest: &mut Frontend<P, T>,
        i: usize,
        out: &mut Arena,
    ) -> Result<usize, FrontendError> {
        let Self { mac, matching, action, diverted, exit } = self;
        let leaves_by = exit.as_ref().map_or(*mac, |exit| exit.mac);
        let hook = |frame: &mut HookFrame| {
            let wanted = match matching {
                Matching::All => true,
                Matching::EchoRequests => echo::is_request(frame.head(), *mac),
                Matching::Filter(filter) => filter.matches(frame.head(), frame.len()),
            };
            act(frame, wanted, *action, (*mac, leaves_by))
        };
        let n = guest.recv_hooked(i, out, diverted, (1, BURST_FRAMES), hook)?;
        if let Some(exit) = exit {
            exit.send(diverted)?;
        }
        Ok(n)
    }

    /// Returns the vif by which the hook's frames leave, if there is one.
    pub fn exit(&mut self) -> Option<&mut Exit<P, T>> {
        self.exit.as_mut()
    }

    /// Describes in one line what the hook did since `guest` connected.
    pub fn line(&self, guest: &Frontend<P, T>) -> HookLine {
        let vif = guest.vif();
        let stats = (0..vif.nr_queues()).filter_map(|i| vif.queue(i)).map(FrontQueue::hook_stats).sum();
        let exit = self.exit.as_ref();
        HookLine { stats, exit: exit.map(|exit| (exit.guest.device().id().to_string(), exit.unsent)) }
    }
}

/// Length of the two MAC addresses in bytes.
const ADDRESSES: usize = 12;

fn act(
    frame: &mut HookFrame,
    wanted: bool,
    action: HookAction,
    (own, leaves_by): (MacAddr, MacAddr),
) -> HookAction {
    if !wanted {
        return HookAction::Pass;
    }
    if matches!(action, HookAction::Tx | HookAction::Redirect(_)) {
        let is_from_host = frame.head().get(6).is_some_and(|first| first & 1 == 0);
        if frame.head().len() < ADDRESSES || !is_from_host {
            return HookAction::Pass;
        }
        turn_round(frame.head_mut(), own, leaves_by);
    }
    action
}

/// Rewrites the addresses of a received frame so that it goes back to its sender; a ping request
/// becomes the reply.
fn turn_round(head: &mut [u8], own: MacAddr, leaves_by: MacAddr) {
    if echo::is_request(head, own) {
        echo::answer(head);
    } else {
        head.copy_within(6..ADDRESSES, 0);
    }
    head[6..ADDRESSES].copy_from_slice(&leaves_by.0);
}

/// Another vif of the guest, by which a hook sends frames. Frames that arrive at this vif are
/// dropped, since it has no network stack.
pub struct Exit<P: Platform, T: Transport> {
    guest: Frontend<P, T>,
    mac: MacAddr,
    came: Arena,
    /// Number of frames that were dropped because there was no room, or no back.
    unsent: u64,
}

impl<P: Platform, T: Transport> Exit<P, T> {
    /// Interval at which the owner serves this vif, since no event wakes it.
    pub const LOOKED_AFTER: Duration = Duration::from_millis(100);

    /// Wraps a vif with this address, which may still wait for its backend.
    pub fn new(guest: Frontend<P, T>, mac: MacAddr) -> Self {
        Self { guest, mac, came: Arena::new(), unsent: 0 }
    }

    fn send(&mut self, diverted: &Diverted) -> Result<(), FrontendError> {
        for (_, burst) in diverted.runs() {
            let sent = self.guest.send(0, &burst)?;
            self.unsent += (burst.frames.len() - sent) as u64;
        }
        Ok(())
    }

    /// Processes answers, and drops what arrived. Called once in each round of the owner.
    ///
    /// # Errors
    /// The back broke the protocol.
    pub fn round(&mut self) -> Result<(), FrontendError> {
        self.guest.reclaim(0, 1)?;
        self.came.clear();
        self.guest.recv(0, &mut self.came, 1)?;
        Ok(())
    }

    /// Follows the backend's state.
    ///
    /// # Errors
    /// xenstore is gone, or the back broke the protocol.
    pub fn control(&mut self) -> Result<(), FrontendError> {
        if self.guest.control(Duration::ZERO)? != FrontStep::Waiting {
            self.guest.log_state();
        }
        Ok(())
    }

    /// Returns the vif, so that it can be closed.
    pub fn guest(&mut self) -> &mut Frontend<P, T> {
        &mut self.guest
    }
}

pub struct HookLine {
    stats: HookStats,
    exit: Option<(String, u64)>,
}

impl fmt::Display for HookLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HookStats { passed, dropped, sent_on, sent_copied, unsent, redirected } = self.stats;
        let frames = self.stats.frames();
        write!(
            f,
            "hook: {frames} frame(s), {passed} passed, {dropped} dropped, {sent_on} sent on in their buffers, \
             {sent_copied} by a copy, {unsent} without room"
        )?;
        match &self.exit {
            Some((id, unsent)) => write!(f, "; {redirected} redirected to {id}, {unsent} without room there"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_turned_round_goes_to_its_sender_from_the_vif_that_it_leaves_by() {
        let [own, out] = [MacAddr([2, 0, 0, 0, 0, 5]), MacAddr([2, 0, 0, 0, 0, 9])];
        let mut head = [[0xFF; 6], [2, 0, 0, 0, 0, 6]].concat();
        head.extend([8, 6, 1, 2, 3]);
        turn_round(&mut head, own, out);
        assert_eq!(head, [&[2, 0, 0, 0, 0, 6][..], &out.0, &[8, 6, 1, 2, 3]].concat());
    }
}
