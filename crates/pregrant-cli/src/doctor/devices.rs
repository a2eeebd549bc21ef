//! Checks of devices that vifs and vbds have in common: which backend serves them here, whether
//! both ends' directories exist, and the state of a front.

use super::Result;
use super::finding::{Finding, plain};
use super::keys::names;
use crate::status_reader::NoStatus;
use pregrant::DomId;
use pregrant::xenbus::{Class, Device, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Client, Transport};
use pregrant_host::drivers::{BackStatus, FileRecovery};
use pregrant_host::linux::KernelBack;
use std::path::Path;

/// The words of the findings about one class of devices.
pub struct Words {
    pub class: Class,
    /// The command that serves devices of this class.
    pub back: &'static str,
    /// The driver for devices of this class in a guest.
    pub front: &'static str,
    /// The remedy for a device whose directory in xenstore is broken.
    pub reattach: &'static str,
    /// The kernel's driver that serves devices of this class.
    pub kernel: &'static str,
    /// The command that takes a device from the kernel; the device's number must be appended.
    pub take: Option<&'static str>,
    /// The remedy when the back has reported the error.
    pub correct: &'static str,
}

/// The directory in which a backend is expected, and the status that was read there.
pub struct Place<'a> {
    /// The directory with the backend's locks.
    pub run_dir: &'a Path,
    /// True on a real Xen, where the kernel may serve devices.
    pub real: bool,
    pub status: &'a std::result::Result<BackStatus, NoStatus>,
}

/// The remedy for a device that no backend serves here, depending on whether it was `left` by a
/// backend that has ended.
pub type Start<'a> = &'a dyn Fn((XenbusState, XenbusState), bool) -> String;

impl Words {
    /// Finds out which backend serves devices of this class here. If it is one of ours, `served`
    /// returns how many devices it serves.
    pub fn backend<T: Transport>(
        &self,
        xs: &mut Client<T>,
        status: &std::result::Result<BackStatus, NoStatus>,
        served: impl FnOnce(&BackStatus) -> usize,
    ) -> Result<Finding> {
        let class = self.class.name();
        Ok(match status {
            Ok(s) => Finding::ok(format_args!(
                "a backend serves {} {class}(s): process {}, for {:.0} s",
                served(s),
                s.pid,
                s.uptime_s
            )),
            Err(NoStatus::Absent) if names(xs, &format!("backend/{class}"))?.is_empty() => {
                Finding::ok(format_args!("no guest has a {class} whose backend is this domain"))
            }
            Err(NoStatus::Absent) => Finding::note(format_args!("no `{}` runs in this domain", self.back)),
            Err(silent @ NoStatus::Silent { pid }) => {
                let pid = pid.map_or("PID".to_string(), |pid| pid.to_string());
                Finding::wrong(format_args!("`{}`: {silent}", self.back)).then(format_args!(
                    "is it stopped: grep State /proc/{pid}/status (kill -CONT {pid}); where it waits: cat /proc/{pid}/stack; or end it \
                     (kill -9 {pid}) and start the next one: its {class}s stay connected, and that goes on with them"
                ))
            }
            // The error itself has the remedy.
            Err(NoStatus::Denied(why)) => Finding::wrong(format_args!("`{}`: {why}", self.back)),
            Err(NoStatus::Failed(why)) => {
                Finding::wrong(format_args!("`{}`: {}", self.back, plain(why.as_bytes())))
                    .then("use the program of the version that runs")
            }
        })
    }

    /// Reports which backend serves a device of another domain, by both ends' states: one of ours,
    /// which `ours` describes; the kernel's own; one that does not answer; or none. Also reports
    /// the error that the back wrote.
    pub fn served<T: Transport>(
        &self,
        xs: &mut Client<T>,
        (id, name): (DeviceId, &str),
        (own, front): (XenbusState, XenbusState),
        place: &Place<'_>,
        ours: Option<Vec<Finding>>,
        start: Start<'_>,
    ) -> Result<Vec<Finding>> {
        let silent =
            matches!(place.status, Err(NoStatus::Silent { .. } | NoStatus::Denied(_) | NoStatus::Failed(_)));
        let ends = Self::ends(own, front);
        let mut found = if let Some(ours) = ours {
            ours
        } else if place.real && KernelBack::of(self.class).has(&id) {
            let note = Finding::note(format_args!("{name}: the kernel's {} has it, {ends}", self.kernel));
            vec![match self.take {
                Some(take) => note.then(format_args!("{take} {}.{}", id.front.0, id.handle)),
                None => note,
            }]
        } else if silent {
            vec![Finding::note(format_args!("{name}: {ends}; its backend does not say more (see above)"))]
        } else {
            let left = place.real && FileRecovery::new(place.run_dir).lock_of(&id).exists();
            let unserved = Finding::wrong(format_args!("{name}: no backend serves it, {ends}"));
            vec![unserved.then(start((own, front), left))]
        };
        if let Some(why) = xs.read_if_there(&id.error_path(Side::Back))? {
            found.push(Finding::wrong(format_args!("{name}: {}", plain(&why))).then(self.correct));
        }
        Ok(found)
    }

    /// Describes the states of both ends.
    pub fn ends(own: XenbusState, front: XenbusState) -> String {
        format!("back {own}, front {front}")
    }

    /// Reports that a device is served by the backend of which the status is.
    pub fn served_here(name: &str, ends: &str) -> Finding {
        Finding::ok(format_args!("{name}: served here, {ends}"))
    }

    /// Reports that a device waits until a script has ended.
    pub fn waits_for(what: &str, name: &str, plugged: Option<String>, remedy: &str) -> Finding {
        let said = plugged.map_or_else(|| "nothing".into(), |p| format!("{:?}", plain(p.as_bytes())));
        Finding::wrong(format_args!("{name}: waits for its {what}, which has said {said}")).then(remedy)
    }

    /// Returns the devices of other domains whose backs are in this domain, by their directories.
    pub fn backs<T: Transport>(&self, xs: &mut Client<T>, domid: DomId) -> Result<Vec<DeviceId>> {
        let (class, mut ids) = (self.class, Vec::new());
        let of_class = format!("backend/{}", class.name());
        for front in names(xs, &of_class)? {
            for handle in names(xs, &format!("{of_class}/{front}"))? {
                let (Ok(front), Ok(handle)) = (front.parse(), handle.parse()) else { continue };
                ids.push(DeviceId { class, front: DomId(front), back: domid, handle });
            }
        }
        Ok(ids)
    }

    /// Returns the devices whose fronts are in this domain. Invalid directories are reported as
    /// findings.
    pub fn fronts<T: Transport>(&self, xs: &mut Client<T>, found: &mut Vec<Finding>) -> Result<Vec<Device>> {
        let mut devices = Vec::new();
        for handle in names(xs, &format!("device/{}", self.class.name()))? {
            let Ok(handle) = handle.parse() else { continue };
            match Device::front(xs, self.class, handle) {
                Ok(device) => devices.push(device),
                Err(e) => found.push(Finding::wrong(e).then(self.reattach)),
            }
        }
        Ok(devices)
    }

    /// Reports the state of a device whose front is in this domain, from both ends' states.
    pub fn front<T: Transport>(&self, xs: &mut Client<T>, device: &Device, name: &str) -> Result<Finding> {
        let (own, back) = (device.state(xs)?, device.peer_state(xs)?);
        let line = format!("{name}: front {own}, back {back} in {}", device.peer_domid());
        Ok(match (own, back) {
            (XenbusState::Connected, XenbusState::Connected) => Finding::ok(line),
            (_, XenbusState::Unknown | XenbusState::Initialising) => {
                Finding::wrong(line).then("no backend is there: start one in that domain")
            }
            (XenbusState::Initialising, XenbusState::InitWait) => {
                Finding::note(line).then(format_args!("no front is there: {}", self.front))
            }
            _ => Finding::note(line),
        })
    }
}
