//! `pregrant doctor --vbd`: whether a disk that was just attached can be had, as its backend knows
//! it. For the toolstack's script (dist/block-pregrant), which fails with the reason where it
//! cannot.
//!
//! ```text
//!   backend: a vbd is found --opens its image, and closes it--> status: it was tried; what is missing, or who has it
//!   this:    asks the status until it was
//! ```
//! It waits for a backend that is starting, and for an image that somebody has and may let go of,
//! and not as long as the toolstack waits for its script.

use super::Result;
use super::finding::plain;
use crate::daemon::chosen;
use crate::status_reader::{self, NoStatus};
use pregrant::DomId;
use pregrant::platform::Clock;
use pregrant::xenbus::XenbusState;
use pregrant_host::MonotonicClock;
use pregrant_host::drivers::BackStatus;
use pregrant_host::drivers::status::blk_socket_path;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time that a backend may need to start and to find the disk.
const STARTING: Duration = Duration::from_secs(10);
/// The time that the backend may need to decide whether the disk is available. (libxl gives a
/// script 40 s.)
const DECIDING: Duration = Duration::from_secs(20);
/// Interval at which a backend renews its status, and at which the status is read here.
const CHECK: Duration = Duration::from_millis(100);

/// Parses a guest and the number of its disk, such as `5.51712`.
pub fn one_vbd(text: &str) -> std::result::Result<(u16, u32), String> {
    let one = chosen(text).ok().and_then(|chosen| Some((chosen.front, chosen.handle?)));
    one.ok_or_else(|| "a guest and its disk's number, as in backend/vbd: 5.51712".into())
}

/// The answer that a backend's status gives about one disk.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Said {
    Served,
    Missing(String),
    /// The result is not known yet; these are the findings so far.
    NotYet(String),
    Unknown(String),
}

fn said(status: &BackStatus, (front, handle): (u16, u32)) -> Said {
    let Some(d) = status.devices.iter().find(|d| (d.front, d.handle) == (front, handle)) else {
        return Said::Unknown(format!(
            "pregrant blkback (process {}) does not serve vbd {front}.{handle}: was it started for other disks (--vbd), or has the \
             kernel's blkback it?",
            status.pid
        ));
    };
    let why = d.waits_for.as_ref().map(|why| plain_whole(why));
    let is_closed =
        [XenbusState::Closing, XenbusState::Closed].map(|state| format!("{state:?}")).contains(&d.state);
    match (d.is_tried, why) {
        _ if d.connected_s.is_some() => Said::Served,
        // Nothing is known of its image. It may be a former disk of this number, whose end its
        // backend has not seen.
        (_, None) if is_closed => Said::NotYet(format!(
            "vbd {front}.{handle} is closed{}",
            d.last_failure.as_ref().map(|why| format!(": {}", plain_whole(why))).unwrap_or_default()
        )),
        (true, None) => Said::Served,
        (true, Some(why)) => Said::Missing(why),
        (false, why) => {
            Said::NotYet(why.unwrap_or_else(|| "its backend has not opened its image yet".into()))
        }
    }
}

/// Returns all of a text that a backend has already shortened, without control characters.
fn plain_whole(text: &str) -> String {
    text.as_bytes().chunks(100).map(plain).collect()
}

/// Waits until it is known whether this disk of a guest is available.
///
/// # Errors
///
/// The disk is not available: the reason, worded for the user who attached it.
pub fn wait(run_dir: &Path, domid: DomId, vbd: (u16, u32)) -> Result<()> {
    let began = Instant::now();
    let began_ns = MonotonicClock.now_ns();
    loop {
        let (why, most) = match status_reader::read(&blk_socket_path(run_dir, domid.0)) {
            Err(NoStatus::Absent) => {
                ("no pregrant blkback runs in this domain: start it first".into(), STARTING)
            }
            Err(NoStatus::Denied(why)) => return Err(why.into()),
            Err(NoStatus::Failed(why)) => (why, DECIDING),
            Err(silent @ NoStatus::Silent { .. }) => (format!("pregrant blkback: {silent}"), DECIDING),
            // It may be of another disk of this number, which has just gone.
            Ok(status) if status.at_ns < began_ns => {
                ("the backend's status does not change: is its process stopped?".into(), DECIDING)
            }
            Ok(status) => match said(&status, vbd) {
                Said::Served => return Ok(()),
                Said::Missing(why) => return Err(why.into()),
                Said::NotYet(why) => (why, DECIDING),
                Said::Unknown(why) => (why, STARTING),
            },
        };
        if began.elapsed() >= most {
            return Err(why.into());
        }
        std::thread::sleep(CHECK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample;
    use pregrant_host::drivers::status::{AnyDeviceStatus, DeviceStatus};

    #[test]
    fn a_disk_is_served_missing_or_not_decided() {
        let mut status = sample::status();
        let said_of = |status: &BackStatus| said(status, (5, 0));
        assert!(matches!(said_of(&status), Said::Unknown(why) if why.contains("4711")));
        status.devices.push(DeviceStatus {
            any: AnyDeviceStatus { state: "InitWait".into(), last_failure: None, ..sample::device().any },
            ..sample::device()
        });
        assert_eq!(said_of(&status), Said::Served);
        let device = &mut status.devices[0];
        (device.is_tried, device.waits_for) = (false, None);
        assert!(matches!(said_of(&status), Said::NotYet(_)));
        status.devices[0].waits_for = Some("process 7 has its lock".into());
        assert_eq!(said_of(&status), Said::NotYet("process 7 has its lock".into()));
        status.devices[0].is_tried = true;
        assert_eq!(said_of(&status), Said::Missing("process 7 has its lock".into()));
        (status.devices[0].any.state, status.devices[0].waits_for) = ("Closed".into(), None);
        assert_eq!(said_of(&status), Said::NotYet("vbd 5.0 is closed".into()));
        status.devices[0].any.connected_s = Some(1.0);
        assert_eq!(said_of(&status), Said::Served);
        assert_eq!(one_vbd("5.51712"), Ok((5, 51712)));
        assert!(one_vbd("5").is_err());
    }
}
