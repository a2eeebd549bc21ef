//! The vifs: those that this domain serves, and those that it has. From both ends' keys, and from who serves them.

use super::Result;
use super::devices::Words;
use super::finding::{Finding, plain};
use super::keys::{abilities, keys, who};
use crate::status_reader;
use pregrant::DomId;
use pregrant::net::path::PathName;
use pregrant::xenbus::{Class, Device, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Client, Transport};
use pregrant_host::drivers::status::{VifStatus, socket_path};
use pregrant_host::drivers::{BackStatus, FileRecovery};
use pregrant_host::linux::KernelBack;
use std::path::Path;

/// As they are called.
const WORDS: Words = Words {
    class: Class::VIF,
    back: "pregrant back",
    front: "pregrant front, or the kernel's (modprobe xen-netfront)",
    attach_anew: "detach and attach the vif",
};

/// The vifs of other domains, whose backs are here.
pub fn served_here<T: Transport>(
    xs: &mut Client<T>,
    domid: DomId,
    run_dir: &Path,
    real: bool,
) -> Result<Vec<Finding>> {
    let status = status_reader::read(&socket_path(run_dir, domid.0)).ok();
    let mut found = vec![WORDS.backend(xs, status.as_ref(), |s| s.vifs.len())?];
    for id in WORDS.backs(xs, domid)? {
        found.extend(served(xs, id, status.as_ref(), run_dir, real)?);
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
    let vif = format!("vif {}.{}{}", id.front.0, id.handle, who(xs, id.front));
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
    } else if real && KernelBack::of(Class::VIF).has(&id) {
        found.push(
            Finding::note(format_args!("{vif}: the kernel's netback has it, back {own}, front {front}"))
                .then(format_args!(
                    "to take it over while it runs: pregrant back --take {front_no}.{handle}"
                )),
        );
    } else {
        let line = format!("{vif}: nobody serves it, back {own}, front {front}");
        let left = real && FileRecovery::new(run_dir).lock_of(&id).exists();
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
    if queue.tx.path == PathName::Foreign.name() {
        return vec![
            Finding::note(format_args!("{paths}: this backend has all of the guest's memory mapped"))
                .then("no --path foreign at the backend, where the guest is to be isolated from it"),
        ];
    }
    let is_shared = |path: &str| path == "staging" || path == "data-ring";
    if is_shared(&queue.tx.path) && is_shared(&queue.rx.path) {
        return vec![Finding::ok(paths)];
    }
    let asks = keys.first().cloned().flatten().is_some_and(|v| v == "1");
    let why = status.refused_lists.first();
    vec![match (why, asks) {
        (Some(why), _) => {
            Finding::note(format_args!("{paths}; what it shares was refused: {}", plain(why.as_bytes())))
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
    for device in WORDS.fronts(xs, &mut found)? {
        let handle = device.id().handle;
        let vif = format!("vif {handle} of this domain (domain {})", domid.0);
        found.push(WORDS.front(xs, &device, &vif)?);
        found.push(Finding::ok(format_args!("{vif}: its back {}", abilities(xs, &device, &BACK_KEYS)?)));
        let offers = keys(xs, &device, &["feature-staging-grants", "staging-grants-sizes", "feature-sg"])?;
        found.push(if offers[0].as_deref() == Some("1") {
            let sizes = plain(offers[1].as_deref().unwrap_or_default().as_bytes());
            Finding::ok(format_args!("{vif}: its back takes staging grants, of {sizes} bytes"))
        } else {
            Finding::note(format_args!(
                "{vif}: its back knows no staging grants, so each frame costs a grant operation"
            ))
            .then("a back that does: pregrant back, in that domain")
        });
    }
    Ok(found)
}

/// What a front may have: the key that says so, and what that is; `!` where the key says that it has not.
const FRONT_KEYS: [(&str, &str); 9] = [
    ("feature-sg", "frames over several pages"),
    ("feature-gso-tcpv4", "uncut TCP over IPv4"),
    ("feature-gso-tcpv6", "uncut TCP over IPv6"),
    ("!feature-no-csum-offload", "blank checksums over IPv4"),
    ("feature-ipv6-csum-offload", "blank checksums over IPv6"),
    ("feature-rx-notify", "tells when it posts RX slots"),
    ("request-multicast-control", "asks for the multicast that it names alone"),
    ("ctrl-ring-ref", "a control ring"),
    ("feature-staging-grants", "staging buffers, granted once"),
];

/// What a back may have.
const BACK_KEYS: [(&str, &str); 10] = [
    ("feature-sg", "frames over several pages"),
    ("feature-gso-tcpv4", "uncut TCP over IPv4"),
    ("feature-gso-tcpv6", "uncut TCP over IPv6"),
    ("feature-ipv6-csum-offload", "blank checksums over IPv6"),
    ("feature-split-event-channels", "an event channel for each direction"),
    ("feature-multicast-control", "leaves out multicast that the guest does not name"),
    ("feature-ctrl-ring", "a control ring"),
    ("feature-xdp-headroom", "room ahead of frames, for XDP"),
    ("multi-queue-max-queues", "several queues"),
    ("feature-staging-grants", "staging buffers, granted once"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant::xenbus::toolstack::Vif;
    use pregrant_xenstored::LocalStore;

    /// What is said of vif 5.0, whose guest is there or not and has a name or none.
    fn said(is_there: bool, name: Option<&str>) -> Vec<Finding> {
        let store = LocalStore::new();
        let mut xs = store.client(DomId(0));
        if is_there {
            store.with_server(|s| s.introduce(DomId(5))).unwrap();
        }
        Vif::new(DomId(5), DomId(0), 0, [2, 0, 0, 0, 0, 5]).create(&mut xs).unwrap();
        if let Some(name) = name {
            xs.write("/local/domain/5/name", name).unwrap();
        }
        served_here(&mut xs, DomId(0), Path::new("/nonexistent"), false).unwrap()
    }

    #[test]
    fn a_guest_without_a_name_is_not_gone() {
        let begins = |found: &[Finding], text: &str| {
            assert!(found.iter().any(|f| f.text.starts_with(text)), "no {text:?}: {found:?}");
        };
        begins(&said(true, Some("web\u{1b}[1m")), "vif 5.0 (web?[1m): ");
        begins(&said(true, None), "vif 5.0: ");
        begins(&said(true, Some("")), "vif 5.0: ");
        // Its directory stays where the toolstack forgot it.
        begins(&said(false, None), "vif 5.0 (gone): ");
    }
}
