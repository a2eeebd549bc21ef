//! What is alike of vifs and vbds: who serves them here, where both ends' directories are, and how far a front is.

use super::Result;
use super::finding::{Finding, plain};
use super::keys::names;
use crate::status_reader::NoStatus;
use pregrant::DomId;
use pregrant::xenbus::{Class, Device, DeviceId, XenbusState};
use pregrant::xenstore::{Client, Transport};
use pregrant_host::drivers::BackStatus;

/// A class, in the words of those who run it.
pub struct Words {
    /// Which.
    pub class: Class,
    /// The command that serves it.
    pub back: &'static str,
    /// Who drives it in a guest.
    pub front: &'static str,
    /// What to do with a device whose directory is broken.
    pub attach_anew: &'static str,
}

impl Words {
    /// Who serves devices of this class here; `served` of them, where there is a backend.
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
            // It says what to do itself.
            Err(NoStatus::Denied(why)) => Finding::wrong(format_args!("`{}`: {why}", self.back)),
            Err(NoStatus::Failed(why)) => {
                Finding::wrong(format_args!("`{}`: {}", self.back, plain(why.as_bytes())))
                    .then("use the program of the version that runs")
            }
        })
    }

    /// A device that a backend may have which does not answer; None: one answers, or none runs.
    pub fn unknown(
        status: &std::result::Result<BackStatus, NoStatus>,
        name: &str,
        (own, front): (XenbusState, XenbusState),
    ) -> Option<Finding> {
        let silent =
            matches!(status, Err(NoStatus::Silent { .. } | NoStatus::Denied(_) | NoStatus::Failed(_)));
        silent.then(|| {
            Finding::note(format_args!(
                "{name}: back {own}, front {front}; its backend does not say more (see above)"
            ))
        })
    }

    /// Devices of other domains whose backs are here, by their directories.
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

    /// Devices of this domain, whose fronts are here; what is wrong with a directory is found.
    pub fn fronts<T: Transport>(&self, xs: &mut Client<T>, found: &mut Vec<Finding>) -> Result<Vec<Device>> {
        let mut devices = Vec::new();
        for handle in names(xs, &format!("device/{}", self.class.name()))? {
            let Ok(handle) = handle.parse() else { continue };
            match Device::front(xs, self.class, handle) {
                Ok(device) => devices.push(device),
                Err(e) => found.push(Finding::wrong(e).then(self.attach_anew)),
            }
        }
        Ok(devices)
    }

    /// How far a device of this domain is, by both ends' states.
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
