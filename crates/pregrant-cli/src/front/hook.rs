//! The experiments `hook=ACTION` and `match=FRAMES` of `pregrant front`: the values that they can
//! have, and the vif by which the hook's frames leave.

use super::Result;
use super::frame_hook::{Exit, FrameHook, Matching};
use super::packet_filter::PacketFilter;
use crate::usage::Usage;
use pregrant::DomId;
use pregrant::net::front::HookAction;
use pregrant::net::headers::MacAddr;
use pregrant::platform::Platform;
use pregrant::xenstore::Transport;
use pregrant_host::drivers::Frontend;
use std::path::PathBuf;

/// What the hook does with frames that match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Pass,
    Drop,
    Tx,
    /// The hook sends the frame by this vif of this guest.
    Redirect(DomId, u32),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Match {
    All,
    EchoRequests,
    Program(PathBuf),
}

/// Parses an action, such as `drop` or `redirect=5.1`.
pub(super) fn action(text: &str) -> std::result::Result<Action, String> {
    let vif = |text: &str| {
        let (domid, handle) = text.split_once('.')?;
        Some(Action::Redirect(DomId(domid.parse().ok()?), handle.parse().ok()?))
    };
    match (text, text.strip_prefix("redirect=")) {
        ("pass", _) => Some(Action::Pass),
        ("drop", _) => Some(Action::Drop),
        ("tx", _) => Some(Action::Tx),
        (_, Some(text)) => vif(text),
        _ => None,
    }
    .ok_or_else(|| {
        "pass, drop, tx, or redirect=DOMID.HANDLE with another vif of this guest, as redirect=5.1".into()
    })
}

/// Parses `all`, `icmp-echo`, or the name of a file.
pub(super) fn matching(text: &str) -> std::result::Result<Match, String> {
    Ok(match text {
        "all" => Match::All,
        "icmp-echo" => Match::EchoRequests,
        file => Match::Program(file.into()),
    })
}

impl Match {
    /// Reads and verifies the hook's program, if one is given.
    pub(super) fn read(&self) -> Result<Matching> {
        let path = match self {
            Self::All => return Ok(Matching::All),
            Self::EchoRequests => return Ok(Matching::EchoRequests),
            Self::Program(path) => path,
        };
        let filter = PacketFilter::read(path).map_err(|e| {
            format!(
                "--experiment match={path}: {e}. The value must be all, icmp-echo, or a file with a classic BPF program: \
                 tcpdump -y EN10MB -ddd 'tcp port 80' > FILE",
                path = path.display()
            )
        })?;
        Ok(Matching::Filter(filter))
    }
}

impl Action {
    /// Returns the vif to which frames are redirected, if it is another one than the hook's own.
    pub(super) fn exit(self, domid: Option<DomId>, own: u32) -> std::result::Result<Option<u32>, Usage> {
        let Self::Redirect(to, handle) = self else { return Ok(None) };
        match domid {
            Some(domid) if domid != to => Err(Usage::new(format_args!(
                "--experiment hook=redirect={}.{handle}: this is {domid}, and a guest sends by its own vifs alone: name one of them, \
                 as redirect={}.1",
                to.0, domid.0
            ))),
            _ if handle == own => Err(Usage::new(format_args!(
                "--experiment hook=redirect={}.{handle} names the vif that the hook is on; for that one write hook=tx",
                to.0
            ))),
            _ => Ok(Some(handle)),
        }
    }

    fn for_frames(self) -> HookAction {
        match self {
            Self::Pass => HookAction::Pass,
            Self::Drop => HookAction::Drop,
            Self::Tx => HookAction::Tx,
            Self::Redirect(_, handle) => HookAction::Redirect(handle),
        }
    }
}

/// Creates the hook of a vif, with the other vif that the hook may need.
pub(super) fn hook<P: Platform, T: Transport>(
    action: Action,
    matching: Matching,
    mac: [u8; 6],
    exit: Option<Frontend<P, T>>,
) -> Result<FrameHook<P, T>> {
    let exit = match exit {
        Some(vif) => {
            let mac = mac_of(&vif)?;
            Some(Exit::new(vif, MacAddr(mac)))
        }
        None => None,
    };
    Ok(FrameHook::new(MacAddr(mac), matching, action.for_frames(), exit))
}

/// Returns the hardware address that the toolstack gave a vif.
pub(super) fn mac_of<P: Platform, T: Transport>(guest: &Frontend<P, T>) -> Result<[u8; 6]> {
    let missing =
        || format!("{}/mac is missing, or no address; attach the vif again", guest.device().own_dir());
    Ok(guest.mac().ok_or_else(missing)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_what_they_say() {
        let one = Action::Redirect(DomId(5), 1);
        for (text, said) in
            [("pass", Action::Pass), ("drop", Action::Drop), ("tx", Action::Tx), ("redirect=5.1", one)]
        {
            assert_eq!(action(text), Ok(said));
        }
        for bad in [
            "",
            "redirect",
            "redirect=",
            "redirect=5",
            "redirect=5.",
            "redirect=.1",
            "redirect=70000.1",
            "Tx",
        ] {
            assert!(action(bad).is_err_and(|why| why.contains("redirect=DOMID.HANDLE")), "{bad}");
        }
        assert_eq!(one.exit(Some(DomId(5)), 0).unwrap(), Some(1));
        assert!(one.exit(Some(DomId(5)), 1).is_err() && one.exit(Some(DomId(6)), 0).is_err());
        assert_eq!(Action::Tx.exit(None, 0).unwrap(), None);
    }
}
