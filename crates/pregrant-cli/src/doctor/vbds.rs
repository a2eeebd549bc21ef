//! Checks vbds: those that this domain serves, and those that it has. The findings come from both
//! ends' keys, and from the backends' statuses.

use super::Result;
use super::devices::{Place, Words};
use super::finding::{Finding, plain};
use super::keys::{Ability, abilities, who};
use crate::status_reader;
use pregrant::DomId;
use pregrant::blk::device_number;
use pregrant::blk::features::{DEVICE_PATH, DEVICE_TYPE, FEATURE_PERSISTENT, PARAMS, type_is_cdrom};
use pregrant::xenbus::back::HOTPLUG_STATUS;
use pregrant::xenbus::{Class, Device, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Client, Transport};
use pregrant_host::drivers::overdue::OVERDUE;
use pregrant_host::drivers::status::{DeviceStatus, FLUSH_FAILED, blk_socket_path};
use std::path::Path;

const WORDS: Words = Words {
    class: Class::VBD,
    back: "pregrant blkback",
    front: "pregrant blkfront, or the kernel's (modprobe xen-blkfront)",
    reattach: "detach and attach the disk",
    kernel: "blkback",
    take: None,
    correct: "correct what it says; then connect its front again, or detach and attach the disk (xl block-detach, block-attach)",
};

/// Reports the vbds of other domains whose backs are in this domain.
pub fn served_here<T: Transport>(
    xs: &mut Client<T>,
    domid: DomId,
    run_dir: &Path,
    real: bool,
) -> Result<Vec<Finding>> {
    let status = &status_reader::read(&blk_socket_path(run_dir, domid.0));
    let mut found = vec![WORDS.backend(xs, status, |s| s.devices.len())?];
    for id in WORDS.backs(xs, domid)? {
        found.extend(served(xs, id, &Place { run_dir, real, status })?);
    }
    Ok(found)
}

/// Reports on a vbd that this domain serves, or should serve.
fn served<T: Transport>(xs: &mut Client<T>, id: DeviceId, place: &Place<'_>) -> Result<Vec<Finding>> {
    let device = Device::new(id, Side::Back);
    let (own, front) = (device.state(xs)?, device.peer_state(xs)?);
    let (front_no, handle) = (id.front.0, id.handle);
    let vbd = format!("vbd {front_no}.{handle} ({}){}", device_number::name(handle), who(xs, id.front));
    let answer = place.status.as_ref().ok();
    let status = answer.and_then(|s| s.devices.iter().find(|d| (d.front, d.handle) == (front_no, handle)));
    let more = status.map(|status| served_by_us(xs, &device, &vbd, status)).transpose()?;
    let served_here = Words::served_here(&vbd, &Words::ends(own, front));
    let ours = more.map(|more| [served_here].into_iter().chain(more).collect());
    let start = |(own, front), left| {
        match own {
        // At 5 its front may be in use.
        XenbusState::Connected | XenbusState::Closing if left && front != XenbusState::Closed => {
            "its backend has ended and left it connected: start pregrant blkback, which goes on with its rings".into()
        }
        _ => "start pregrant blkback, or modprobe xen-blkback".into(),
    }
    };
    let mut found = WORDS.served(xs, (id, &vbd), (own, front), place, ours, &start)?;
    // The event that a front with rings waits for.
    if own == XenbusState::InitWait && matches!(front, XenbusState::Initialised | XenbusState::Connected) {
        found.extend(waits(xs, &device, &vbd)?);
    }
    Ok(found)
}

/// Reports one disk by the status of our backend.
fn served_by_us<T: Transport>(
    xs: &mut Client<T>,
    device: &Device,
    vbd: &str,
    status: &DeviceStatus,
) -> Result<Vec<Finding>> {
    let mut found: Vec<Finding> = status.closes_in_use().then(|| in_use(vbd)).into_iter().collect();
    if status.connected_s.is_some() {
        found.push(Finding::ok(format_args!("{vbd}: {}", plain(status.what.as_bytes()))));
        found.push(Finding::ok(format_args!("{vbd}: its front {}", abilities(xs, device, &FRONT_KEYS)?)));
        found.extend(counted(vbd, status));
    }
    if let Some(why) = &status.waits_for {
        let text = format_args!("{vbd}: its image is waited for: {}", plain(why.as_bytes()));
        found.push(Finding::wrong(text).then(
            "correct what it says: the disk is tried again by itself, 10 s later at most; a process that has the lock of an image \
             is to end first, or one of the two disks is to have another image",
        ));
    }
    Ok(found)
}

/// Reports that the front is closing and still uses the disk.
fn in_use(vbd: &str) -> Finding {
    Finding::note(format_args!("{vbd}: it is to be closed, and its guest has it in use")).then(
        "unmount it in the guest, and it goes; xl block-detach --force takes it away with what was not written yet",
    )
}

/// Returns the reason why a front that could be connected is not.
fn waits<T: Transport>(xs: &mut Client<T>, device: &Device, vbd: &str) -> Result<Vec<Finding>> {
    let mut key = |key: &str| device.get_own::<String, T>(xs, key);
    let is_named = |name: Option<String>| name.is_some_and(|name| !name.is_empty());
    let (script, plugged) = (key("script")?, key(HOTPLUG_STATUS)?);
    let has_image = is_named(key(PARAMS)?) || is_named(key(DEVICE_PATH)?);
    if is_named(script) && plugged.as_deref() != Some("connected") {
        let remedy = "install dist/block-pregrant in /etc/xen/scripts and name it in the disk's line; xl -vvv shows what a script says";
        return Ok(vec![Words::waits_for("script", vbd, plugged, remedy)]);
    }
    if type_is_cdrom(key(DEVICE_TYPE)?.as_ref()) && !has_image {
        let text = format_args!("{vbd}: an empty drive, whose front waits for an image");
        return Ok(vec![Finding::note(text).then("name one in the toolstack's key `params`")]);
    }
    Ok(Vec::new())
}

fn counted(vbd: &str, device: &DeviceStatus) -> Vec<Finding> {
    let count = |name: &str| device.counters.get(name).copied().unwrap_or_default();
    let (failed, refused, overflows) = (count("failed"), count("refused"), count("overflows"));
    let mut found = Vec::new();
    if device.gauges.get(FLUSH_FAILED).is_some_and(|failed| *failed > 0) {
        let text = format_args!(
            "{vbd}: a flush failed at its image: what its guest had written before may be lost, and each flush since then is \
             answered with an error"
        );
        found.push(Finding::wrong(text).then(
            "check the disk behind the image, and its free space (the log says what failed); then check the guest's file \
             system, and connect its front again: restart the guest, or detach and attach the disk",
        ));
    }
    if let Some(oldest_s) = device.oldest_s().filter(|oldest_s| *oldest_s >= OVERDUE.as_secs_f64()) {
        let text = format_args!(
            "{vbd}: its image does not answer: the oldest request has waited {oldest_s:.0} s, and its guest with it"
        );
        found.push(Finding::wrong(text).then(
            "check the storage under the image (dmesg, multipath -ll, iostat -x, the server of a network file system): what waits is \
             done when it answers; other guests' disks on other storage go on",
        ));
    }
    if failed > 0 {
        found.push(
            Finding::note(format_args!(
                "{vbd}: {failed} request(s) failed at the image, or for a page that was not to be had"
            ))
            .then("the backend's log says which; check the disk behind the image, and its free space"),
        );
    }
    if refused > 0 {
        found.push(
            Finding::note(format_args!("{vbd}: {refused} request(s) were refused: their own words forbid them"))
                .then("its front asks beyond the disk's end, writes to one that is read, or does not know the protocol"),
        );
    }
    if overflows > 0 {
        found.push(
            Finding::note(format_args!(
                "{vbd}: {overflows} time(s) a page of its front found no place among those that stay mapped, and was mapped for one request"
            ))
            .then("more places: pregrant blkback --persistent-grants, at most 8192"),
        );
    }
    found
}

/// Reports the vbds whose fronts are in this domain.
pub fn of_this_domain<T: Transport>(xs: &mut Client<T>, domid: DomId) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    for device in WORDS.fronts(xs, &mut found)? {
        let handle = device.id().handle;
        let name = device_number::name(handle);
        let vbd = format!("vbd {handle} ({name}) of this domain (domain {})", domid.0);
        found.push(WORDS.front(xs, &device, &vbd)?);
        let states = [device.state(xs)?, device.peer_state(xs)?];
        found.extend((states == [XenbusState::Closing; 2]).then(|| in_use(&vbd)));
        // A back of another kind does not let its guests read it.
        if let Ok(Some(why)) = xs.read_if_there(&device.id().error_path(Side::Back)) {
            let text = format_args!("{vbd}: its back says: {}", plain(&why));
            found.push(Finding::wrong(text).then("that is to be corrected in the back's domain"));
        }
        found.push(Finding::ok(format_args!("{vbd}: its back {}", abilities(xs, &device, &BACK_KEYS)?)));
    }
    Ok(found)
}

const FRONT_KEYS: [Ability; 3] = [
    Ability::flag(FEATURE_PERSISTENT, "pages that stay mapped"),
    Ability::value("multi-queue-num-queues", "queues"),
    Ability::there("ring-page-order", "rings of several pages"),
];

const BACK_KEYS: [Ability; 15] = [
    Ability::flag(FEATURE_PERSISTENT, "pages that stay mapped"),
    Ability::value("feature-max-indirect-segments", "requests of more than 11 pages"),
    Ability::flag("feature-flush-cache", "flushes"),
    Ability::flag("feature-barrier", "barriers"),
    Ability::flag("feature-discard", "discards"),
    Ability::value("discard-granularity", "bytes of a discard at least"),
    Ability::value("discard-alignment", "offset of the first one in bytes"),
    Ability::flag("discard-secure", "discards after which nothing is left"),
    Ability::flag("discard-zeroes", "discards after which zeroes are read"),
    Ability::value("multi-queue-max-queues", "queues at most"),
    Ability::value("max-ring-page-order", "rings of several pages: the exponent of 2"),
    Ability::value("sectors", "of 512 bytes"),
    Ability::value("sector-size", "bytes"),
    Ability::value("physical-sector-size", "bytes"),
    Ability::value("info", "bits: 1 a CD, 2 removable, 4 read-only"),
];

#[cfg(test)]
mod tests {
    use super::super::keys::complete;
    use super::*;
    use crate::doctor::finding::Rank;
    use pregrant::blk::disk::{Discard, DiskFigures};
    use pregrant::blk::features::{BackFeatures, FrontRequest, QueueKeys, figures_pairs};
    use pregrant::units::{EvtchnPort, GrantRef};
    use pregrant::wire::blkif::Abi;
    use pregrant::xenbus::toolstack::Vbd;
    use pregrant_host::drivers::status::OLDEST_NS;
    use pregrant_xenstored::LocalStore;

    /// Returns the findings for vbd 5.51712 with these keys in its back's directory; a key that
    /// begins with `/` is in the front's directory.
    fn said(keys: &[(&str, &str)]) -> (Vec<Finding>, Vec<Finding>) {
        let store = LocalStore::new();
        let mut xs = store.client(DomId(0));
        store.with_server(|s| s.introduce(DomId(5))).unwrap();
        let vbd = Vbd::new(DomId(5), DomId(0), (51712, "xvda"), "/disk.img");
        vbd.create(&mut xs).unwrap();
        for (key, value) in keys {
            let at = match key.strip_prefix('/') {
                Some(key) => format!("{}/{key}", vbd.id.front_dir()),
                None if *key == "error" => vbd.id.error_path(Side::Back),
                None => format!("{}/{key}", vbd.id.back_dir()),
            };
            xs.write(&at, value).unwrap();
        }
        let here = served_here(&mut xs, DomId(0), Path::new("/nonexistent"), false).unwrap();
        let mut guest = store.client(DomId(5));
        (here, of_this_domain(&mut guest, DomId(5)).unwrap())
    }

    fn has(found: &[Finding], rank: Rank, text: &str) {
        assert!(found.iter().any(|f| f.rank == rank && f.text.contains(text)), "no {text:?}: {found:?}");
    }

    #[test]
    fn a_disk_that_no_one_serves_is_wrong_at_both_ends() {
        let (here, guest) = said(&[]);
        has(&here, Rank::Note, "no `pregrant blkback` runs");
        has(&here, Rank::Wrong, "vbd 5.51712 (xvda): no backend serves it");
        has(&guest, Rank::Wrong, "vbd 51712 (xvda) of this domain (domain 5): front 1 (Initialising)");
    }

    #[test]
    fn a_disk_that_is_in_use_while_it_closes_is_shown() {
        let (_, guest) = said(&[("state", "5"), ("/state", "5")]);
        has(&guest, Rank::Note, "its guest has it in use");
        let (_, guest) = said(&[("state", "5"), ("/state", "6")]);
        assert!(!guest.iter().any(|f| f.text.contains("in use")), "{guest:?}");
    }

    #[test]
    fn what_a_front_waits_for_is_said() {
        let waiting = [("state", "2"), ("/state", "3")];
        let (here, guest) = said(&[&waiting[..], &[("script", "/x"), ("hotplug-status", "error")]].concat());
        has(&here, Rank::Wrong, "waits for its script, which has said \"error\"");
        has(&guest, Rank::Note, "back 2 (InitWait)");
        let (here, _) = said(&[&waiting[..], &[("device-type", "cdrom"), ("params", "")]].concat());
        has(&here, Rank::Note, "an empty drive");
        let (here, _) = said(&waiting);
        assert!(!here.iter().any(|f| f.text.contains("waits")), "{here:?}");
    }

    #[test]
    fn what_the_back_said_is_shown_without_harm() {
        let (here, _) = said(&[("state", "6"), ("error", "/disk.img: there is\u{1b} no such file")]);
        has(&here, Rank::Wrong, "/disk.img: there is? no such file");
    }

    #[test]
    fn counters_that_tell_of_trouble_are_findings() {
        let mut device = crate::top::sample::device();
        assert!(counted("vbd", &device).is_empty());
        for (name, text) in
            [("failed", "failed at the image"), ("refused", "refused"), ("overflows", "no place")]
        {
            device.counters = [(name.to_string(), 7)].into();
            let found = counted("vbd", &device);
            assert_eq!(found.len(), 1);
            has(&found, Rank::Note, text);
            has(&found, Rank::Note, "7 ");
            assert!(found[0].remedy.is_some());
        }
        device.counters.clear();
        for (failed, findings) in [(0, 0), (1, 1)] {
            device.gauges = [(FLUSH_FAILED.to_string(), failed)].into();
            let found = counted("vbd", &device);
            assert_eq!(found.len(), findings);
            found.iter().for_each(|_| has(&found, Rank::Wrong, "a flush failed"));
        }
        for (oldest_ns, findings) in [(0, 0), (4_900_000_000, 0), (5_000_000_000, 1), (95_000_000_000, 1)] {
            device.gauges = [(OLDEST_NS.to_string(), oldest_ns)].into();
            let found = counted("vbd", &device);
            assert_eq!(found.len(), findings, "{oldest_ns}");
            let text = format!("has waited {} s", oldest_ns / 1_000_000_000);
            found.iter().for_each(|_| has(&found, Rank::Wrong, &text));
        }
    }

    /// The tables contain every key that either end writes.
    #[test]
    fn the_tables_know_all_keys() {
        let queue = |pages| QueueKeys::new(vec![GrantRef(9); pages], EvtchnPort(1));
        let front = |queues, pages| FrontRequest {
            abi: Abi::X86_64,
            persistent: true,
            queues: vec![queue(pages); queues],
        };
        complete::check(&FRONT_KEYS, &[front(1, 1).pairs(), front(1, 2).pairs(), front(2, 4).pairs()]);
        let discard = Some(Discard { granularity: 4096, alignment: 512, secure: true, zeroes: true });
        let figures = DiskFigures {
            sectors: 8,
            sector_size: 512,
            physical_sector_size: 4096,
            read_only: false,
            cdrom: true,
            removable: true,
            flush: true,
            discard,
        };
        complete::check(&BACK_KEYS, &[BackFeatures::default().pairs(), figures_pairs(&figures, true)]);
    }
}
