//! The vifs: those that this domain serves, and those that it has. From both ends' keys, and from who serves them.

use super::Result;
use super::finding::{Finding, plain};
use crate::status_reader;
use pregrant::DomId;
use pregrant::xenbus::{Class, Device, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Client, Transport};
use pregrant_host::drivers::status::{VifStatus, socket_path};
use pregrant_host::drivers::{BackStatus, FileSuccession};
use pregrant_host::linux::KernelNetback;
use std::path::Path;

/// The vifs of other domains, whose backs are here.
pub fn served_here<T: Transport>(
    xs: &mut Client<T>,
    domid: DomId,
    run_dir: &Path,
    real: bool,
) -> Result<Vec<Finding>> {
    let status = status_reader::read(&socket_path(run_dir, domid.0)).ok();
    let mut found = Vec::new();
    match &status {
        Some(s) => found.push(Finding::ok(format_args!(
            "a backend serves {} vif(s): process {}, for {:.0} s",
            s.vifs.len(),
            s.pid,
            s.uptime_s
        ))),
        None if names(xs, "backend/vif")?.is_empty() => {
            found.push(Finding::ok("no guest has a vif whose backend is this domain"));
        }
        None => found.push(Finding::note("no `pregrant back` runs in this domain")),
    }
    for front in names(xs, "backend/vif")? {
        for handle in names(xs, &format!("backend/vif/{front}"))? {
            let (Ok(front), Ok(handle)) = (front.parse(), handle.parse()) else { continue };
            let id = DeviceId { class: Class::Vif, front: DomId(front), back: domid, handle };
            found.extend(served(xs, id, status.as_ref(), run_dir, real)?);
        }
    }
    Ok(found)
}

/// One vif that this domain serves, or is to serve.
fn served<T: Transport>(
    xs: &mut Client<T>,
    id: DeviceId,
    status: Option<&BackStatus>,
    run_dir: &Path,
    real: bool,
) -> Result<Vec<Finding>> {
    let device = Device::new(id, Side::Back);
    let (own, front) = (device.state(xs)?, device.peer_state(xs)?);
    let name = xs.read_if_there(&format!("/local/domain/{}/name", id.front.0))?;
    let name = name.map_or_else(|| "gone".into(), |n| plain(&n));
    let vif = format!("vif {}.{} ({name})", id.front.0, id.handle);
    let ours = status.and_then(|s| s.vifs.iter().find(|v| (v.front, v.handle) == (id.front.0, id.handle)));
    let (front_no, handle) = (id.front.0, id.handle);
    let mut found = Vec::new();
    if let Some(v) = ours {
        found.push(Finding::ok(format_args!("{vif}: served here, back {own}, front {front}")));
        found.push(Finding::ok(format_args!("{vif}: its front {}", abilities(xs, &device, &FRONT_KEYS)?)));
        found.extend(path(
            &vif,
            v,
            &keys(xs, &device, &["feature-staging-grants", "multi-queue-num-queues"])?,
        ));
    } else if real && KernelNetback::default().has(&id) {
        found.push(
            Finding::note(format_args!("{vif}: the kernel's netback has it, back {own}, front {front}"))
                .then(format_args!(
                    "to take it over while it runs: pregrant back --take {front_no}.{handle}"
                )),
        );
    } else {
        let line = format!("{vif}: nobody serves it, back {own}, front {front}");
        let left = real && FileSuccession::new(run_dir).lock_of(&id).exists();
        found.push(match own {
            XenbusState::Connected => Finding::wrong(line).then(if left {
                "its backend has ended and left it connected: start pregrant back, which goes on with its rings".into()
            } else {
                format!("start pregrant back; or for the kernel's netback: pregrant back --give-back {front_no}.{handle}")
            }),
            _ => Finding::wrong(line).then("start pregrant back, or modprobe xen-netback"),
        });
    }
    if let Some(why) = xs.read_if_there(&id.error_path(Side::Back))? {
        found.push(Finding::wrong(format_args!("{vif}: {}", plain(&why))).then(
            "correct what it says; then detach and attach the vif (xl network-detach, network-attach)",
        ));
    }
    let plugged: Option<String> = device.get_own(xs, "hotplug-status")?;
    let waits = own == XenbusState::InitWait && front == XenbusState::Connected;
    if waits && plugged.as_deref() != Some("connected") {
        let said = plugged.map_or_else(|| "nothing".into(), |p| format!("{:?}", plain(p.as_bytes())));
        found.push(
            Finding::wrong(format_args!("{vif}: waits for its hotplug script, which has said {said}")).then(
                format_args!(
                    "look at the script's log; without a toolstack in this domain: pregrant back --hotplug self"
                ),
            ),
        );
    }
    Ok(found)
}

/// Which path a vif's frames take, and why no faster one.
fn path(vif: &str, status: &VifStatus, keys: &[Option<String>]) -> Vec<Finding> {
    let Some(queue) = status.queues.first() else { return Vec::new() };
    let paths =
        format!("{vif}: {} queue(s), TX {}, RX {}", status.queues.len(), queue.tx.path, queue.rx.path);
    if queue.tx.path == "staging" && queue.rx.path == "staging" {
        return vec![Finding::ok(paths)];
    }
    let asks = keys.first().cloned().flatten().is_some_and(|v| v == "1");
    let why = status.refused_lists.first();
    vec![match (why, asks) {
        (Some(why), _) => {
            Finding::note(format_args!("{paths}; its staging list was refused: {}", plain(why.as_bytes())))
                .then("correct the front; it is connected anew when its driver is loaded again")
        }
        (None, true) => {
            Finding::note(format_args!("{paths}; its front has staging buffers for one direction alone"))
                .then("give the guest more grants: see pregrant doctor in the guest")
        }
        (None, false) => Finding::note(format_args!(
            "{paths}; its front offers no staging grants, so each frame costs a grant copy"
        ))
        .then("a front that does: pregrant front, in the guest"),
    }]
}

/// The vifs of this domain, whose fronts are here.
pub fn of_this_domain<T: Transport>(xs: &mut Client<T>, domid: DomId) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    for handle in names(xs, "device/vif")? {
        let Ok(handle) = handle.parse() else { continue };
        let device = match Device::front(xs, Class::Vif, handle) {
            Ok(device) => device,
            Err(e) => {
                found.push(Finding::wrong(e).then("detach and attach the vif"));
                continue;
            }
        };
        let vif = format!("vif {handle} of this domain (domain {})", domid.0);
        let (own, back) = (device.state(xs)?, device.peer_state(xs)?);
        let line = format!("{vif}: front {own}, back {back} in {}", device.peer_domid());
        found.push(match (own, back) {
            (XenbusState::Connected, XenbusState::Connected) => Finding::ok(line),
            (_, XenbusState::Unknown | XenbusState::Initialising) => {
                Finding::wrong(line).then("no backend is there: start one in that domain")
            }
            (XenbusState::Initialising, XenbusState::InitWait) => Finding::note(line)
                .then("no front is there: pregrant front, or the kernel's (modprobe xen-netfront)"),
            _ => Finding::note(line),
        });
        found.push(Finding::ok(format_args!("{vif}: its back {}", abilities(xs, &device, &BACK_KEYS)?)));
        let offers = keys(xs, &device, &["feature-staging-grants", "staging-grants-sizes", "feature-sg"])?;
        found.push(if offers[0].as_deref() == Some("1") {
            let sizes = plain(offers[1].as_deref().unwrap_or_default().as_bytes());
            Finding::ok(format_args!("{vif}: its back takes staging grants, of {sizes} octets"))
        } else {
            Finding::note(format_args!(
                "{vif}: its back knows no staging grants, so each frame costs a grant operation"
            ))
            .then("a back that does: pregrant back, in that domain")
        });
    }
    Ok(found)
}

/// What a front may have, by the keys that say so; `!` where the key says that it has not.
const FRONT_KEYS: [(&str, &str); 9] = [
    ("feature-sg", "frames over several pages"),
    ("feature-gso-tcpv4", "uncut TCP over IPv4"),
    ("feature-gso-tcpv6", "uncut TCP over IPv6"),
    ("!feature-no-csum-offload", "blank checksums over IPv4"),
    ("feature-ipv6-csum-offload", "blank checksums over IPv6"),
    ("feature-rx-notify", "a word when it posts slots"),
    ("request-multicast-control", "multicast control"),
    ("ctrl-ring-ref", "a control ring"),
    ("feature-staging-grants", "staging grants"),
];

/// What a back may have.
const BACK_KEYS: [(&str, &str); 10] = [
    ("feature-sg", "frames over several pages"),
    ("feature-gso-tcpv4", "uncut TCP over IPv4"),
    ("feature-gso-tcpv6", "uncut TCP over IPv6"),
    ("feature-ipv6-csum-offload", "blank checksums over IPv6"),
    ("feature-split-event-channels", "an event channel for each direction"),
    ("feature-multicast-control", "multicast control"),
    ("feature-ctrl-ring", "a control ring"),
    ("feature-xdp-headroom", "XDP headroom"),
    ("multi-queue-max-queues", "several queues"),
    ("feature-staging-grants", "staging grants"),
];

/// What the peer has of these, and what not.
fn abilities<T: Transport>(xs: &mut Client<T>, device: &Device, all: &[(&str, &str)]) -> Result<String> {
    let (mut has, mut lacks) = (Vec::new(), Vec::new());
    for (key, words) in all {
        let (name, wanted) = key.strip_prefix('!').map_or((*key, true), |name| (name, false));
        let value: Option<String> = device.get(xs, name)?;
        let there = value.is_some_and(|v| v.trim() != "0");
        if there == wanted { has.push(*words) } else { lacks.push(*words) }
    }
    let list = |words: Vec<&str>| if words.is_empty() { "nothing".into() } else { words.join(", ") };
    Ok(format!("has {}; not {}", list(has), list(lacks)))
}

/// Some of the peer's keys.
fn keys<T: Transport>(xs: &mut Client<T>, device: &Device, names: &[&str]) -> Result<Vec<Option<String>>> {
    let read = |name: &&str| Ok(device.get::<String, T>(xs, name)?);
    names.iter().map(read).collect()
}

/// The names in a directory; none when it is not there.
fn names<T: Transport>(xs: &mut Client<T>, path: &str) -> Result<Vec<String>> {
    match xs.directory(path) {
        Err(e) if e.is_not_found() => Ok(Vec::new()),
        other => Ok(other?),
    }
}
