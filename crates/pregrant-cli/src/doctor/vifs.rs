//! Checks vifs: those that this domain serves, and those that it has. The findings come from both
//! ends' keys, and from the backends' statuses.

use super::Result;
use super::devices::{Place, Words};
use super::finding::{Finding, plain};
use super::kernel_module;
use super::keys::{Ability, abilities, keys, who};
use super::pool;
use crate::status_reader::{self, NoStatus};
use pregrant::DomId;
use pregrant::net::features::{MAPPED_PAGES, REQUEST_MULTICAST, XDP_HEADROOM};
use pregrant::net::path::research::keys as research;
use pregrant::net::path::staging::keys::MAX_PAGES;
use pregrant::net::path::{FrameCost, PathName, data_ring, persistent};
use pregrant::xenbus::{Class, Device, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Client, Transport};
use pregrant_host::drivers::status::{DirStatus, VifStatus, socket_path};
use pregrant_host::linux::{Gntalloc, ModuleBack};
use std::path::Path;

const WORDS: Words = Words {
    class: Class::VIF,
    back: "pregrant back",
    front: "pregrant front, or the kernel's (modprobe xen-netfront)",
    reattach: "detach and attach the vif",
    kernel: "netback",
    take: Some("to take it over while it runs: pregrant back --take"),
    correct: "correct what it says; then detach and attach the vif (xl network-detach, network-attach)",
};

/// Reports the vifs of other domains whose backs are in this domain.
pub fn served_here<T: Transport>(
    xs: &mut Client<T>,
    domid: DomId,
    run_dir: &Path,
    real: bool,
) -> Result<Vec<Finding>> {
    let module = Some(ModuleBack::here()).filter(|module| real && module.is_loaded());
    served_beside(xs, domid, run_dir, real, module.as_ref())
}

/// The same, beside the kernel's module if that is loaded.
fn served_beside<T: Transport>(
    xs: &mut Client<T>,
    domid: DomId,
    run_dir: &Path,
    real: bool,
    module: Option<&ModuleBack>,
) -> Result<Vec<Finding>> {
    let status = &status_reader::read(&socket_path(run_dir, domid.0));
    let mut found = Vec::new();
    // Without a process the module has them.
    if module.is_none() || !matches!(status, Err(NoStatus::Absent)) {
        found.push(WORDS.backend(xs, status, |s| s.vifs.len())?);
    }
    for id in WORDS.backs(xs, domid)? {
        found.extend(served(xs, id, &Place { run_dir, real, status }, module)?);
    }
    Ok(found)
}

/// Reports on a vif that this domain serves, or should serve.
fn served<T: Transport>(
    xs: &mut Client<T>,
    id: DeviceId,
    place: &Place<'_>,
    module: Option<&ModuleBack>,
) -> Result<Vec<Finding>> {
    let device = Device::new(id, Side::Back);
    let (own, front) = (device.state(xs)?, device.peer_state(xs)?);
    let ends = Words::ends(own, front);
    let (front_no, handle) = (id.front.0, id.handle);
    let vif = format!("vif {front_no}.{handle}{}", who(xs, id.front));
    let answer = place.status.as_ref().ok();
    let status = answer.and_then(|s| s.vifs.iter().find(|v| (v.front, v.handle) == (front_no, handle)));
    let mut ours = None;
    if let Some(status) = status {
        let asks = keys(xs, &device, &ASKS.map(|(key, _)| key))?;
        let asks = ASKS.iter().zip(asks).filter(|(_, v)| v.as_deref() == Some("1"));
        let asks: Vec<_> = asks.map(|((_, words), _)| *words).collect();
        let front = Finding::ok(format_args!("{vif}: its front {}", abilities(xs, &device, &FRONT_KEYS)?));
        let offer: Option<String> = device.get_own(xs, MAX_PAGES)?;
        let pool = pool::of_served(&vif, status, offer.as_deref());
        let rate = status.rate.as_ref().map(|rate| {
            let (rate, waits) = (plain(rate.as_bytes()), status.credit_waits);
            Finding::ok(format_args!(
                "{vif}: its guest may send {rate} at most (the toolstack's `rate`), and waited {waits} time(s)"
            ))
        });
        let own = [Words::served_here(&vif, &ends), front].into_iter().chain(rate);
        ours = Some(own.chain(path(&vif, status, &asks)).chain(pool).collect());
    }
    let has = |module: &ModuleBack| {
        module.vifs().into_iter().find(|vif| (vif.front, vif.handle) == (front_no, handle))
    };
    if let (None, Some(has)) = (&ours, module.and_then(has)) {
        ours = Some(kernel_module::vif(&vif, &ends, &has));
    }
    let start = |(own, _), left| match own {
        XenbusState::Connected if left => {
            "its backend has ended and left it connected: start pregrant back, which goes on with its rings"
                .into()
        }
        XenbusState::Connected => {
            format!(
                "start pregrant back; or for the kernel's driver, netback or pregrant_back: pregrant back --give-back {front_no}.{handle}"
            )
        }
        _ if module.is_some() => format!(
            "give it to the kernel's module: echo vif-{front_no}-{handle} > /sys/bus/xen-backend/drivers/pregrant_back/bind; or start pregrant back"
        ),
        _ => "start pregrant back, or modprobe xen-netback".into(),
    };
    let mut found = WORDS.served(xs, (id, &vif), (own, front), place, ours, &start)?;
    let plugged: Option<String> = device.get_own(xs, "hotplug-status")?;
    let waits = own == XenbusState::InitWait && front == XenbusState::Connected;
    if waits && plugged.as_deref() != Some("connected") {
        let remedy =
            "check the script's log; without a toolstack in this domain: pregrant back --hotplug self";
        found.push(Words::waits_for("hotplug script", &vif, plugged, remedy));
    }
    Ok(found)
}

/// Keys by which a front asks to share memory before frames arrive, each with a description.
const ASKS: [(&str, &str); 3] = [
    ("feature-staging-grants", "staging buffers"),
    (persistent::FEATURE, "pages that stay granted (feature-persistent)"),
    (research::REQUEST_FOREIGN, "all of its memory"),
];

/// Describes one direction of a queue, such as `staging of 256 bytes, then copy`.
fn way(dir: &DirStatus) -> String {
    let len = dir.data_len.map(|len| format!(" of {len} bytes")).unwrap_or_default();
    match dir.chain.split_first() {
        None => dir.path.clone(),
        Some((first, [])) => format!("{first}{len}"),
        Some((first, rest)) => format!("{first}{len}, then {}", rest.join(", ")),
    }
}

/// Reports the path by which a vif's frames travel, and what prevents a faster one. `asks` is the
/// memory that the vif's front wants to share.
fn path(vif: &str, status: &VifStatus, asks: &[&str]) -> Vec<Finding> {
    let Some(queue) = status.queues.first() else { return Vec::new() };
    let ways = [way(&queue.tx), way(&queue.rx)].map(|way| plain(way.as_bytes()));
    let paths = format!("{vif}: {} queue(s), TX {}, RX {}", status.queues.len(), ways[0], ways[1]);
    let dirs = || status.queues.iter().flat_map(|q| [("TX", &q.tx), ("RX", &q.rx)]);
    if dirs().any(|(_, dir)| dir.path == PathName::Foreign.name()) {
        return vec![
            Finding::note(format_args!("{paths}: this backend has all of the guest's memory mapped"))
                .then("no --path foreign at the backend, where the guest is to be isolated from it"),
        ];
    }
    // A path that this version does not know costs no one knows what.
    let cost = |dir: &DirStatus| FrameCost::of_shown(&dir.path).unwrap_or(FrameCost::NoGrantOperation);
    let of = |wanted: FrameCost| -> Vec<&str> {
        let mut names: Vec<_> = dirs().filter(|(_, dir)| cost(dir) == wanted).map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        names.reverse();
        names
    };
    let costs = [
        (FrameCost::GrantCopy, "each frame costs a grant copy"),
        (FrameCost::MapAndUnmap, "each frame costs a map and an unmap"),
        (FrameCost::CopyByGuest, "each frame costs the guest a grant copy"),
    ];
    let costs: Vec<_> = costs
        .into_iter()
        .map(|(cost, words)| (of(cost), words))
        .filter(|(dirs, _)| !dirs.is_empty())
        .map(|(dirs, words)| format!("{}: {words}", dirs.join(" and ")))
        .collect();
    if costs.is_empty() {
        return vec![Finding::ok(format_args!(
            "{paths}; no grant operation for a frame that the first of these takes"
        ))];
    }
    let costs = costs.join("; ");
    vec![match (status.refused_lists.first(), asks) {
        (Some(why), _) => {
            let why = plain(why.as_bytes());
            Finding::note(format_args!("{paths}; {costs}; what its front shares was refused: {why}"))
                .then("correct the front; it connects again when its driver is loaded again")
        }
        (None, []) => Finding::note(format_args!("{paths}; {costs}, for its front shares no memory before frames come"))
            .then("a front that does: pregrant front, in the guest, with --path staging (the default), persistent or gref-mapping"),
        (None, asks) => Finding::note(format_args!("{paths}; {costs}, though its front offers {}", asks.join(", ")))
            .then(
                "give the guest more grants (pregrant doctor in the guest), and the backend the pages: --persistent-grants, not 0; \
                 what was refused is in its log",
            ),
    }]
}

/// Checks the vifs whose fronts are in this domain. `real` is true in a domain of Xen, and false on
/// the loopback.
pub fn of_this_domain<T: Transport>(xs: &mut Client<T>, domid: DomId, real: bool) -> Result<Vec<Finding>> {
    let grantable = if real { Gntalloc::limit() } else { None };
    let mut found = Vec::new();
    for device in WORDS.fronts(xs, &mut found)? {
        let handle = device.id().handle;
        let vif = format!("vif {handle} of this domain (domain {})", domid.0);
        found.push(WORDS.front(xs, &device, &vif)?);
        found.push(Finding::ok(format_args!("{vif}: its back {}", abilities(xs, &device, &BACK_KEYS)?)));
        found.push(offered(&vif, &keys(xs, &device, &OFFERS.map(|(key, _)| key))?));
        found.push(pool::of_auto(&vif, &keys(xs, &device, &pool::KEYS)?, grantable));
    }
    Ok(found)
}

/// Keys by which a back offers a path whose memory is shared before frames arrive, each with that
/// path.
const OFFERS: [(&str, PathName); 5] = [
    ("feature-staging-grants", PathName::Staging),
    (persistent::FEATURE, PathName::Persistent),
    ("feature-data-ring", PathName::DataRing),
    (research::FEATURE_FOREIGN, PathName::Foreign),
    // It may answer such requests, or not: its key is the control ring's.
    ("feature-ctrl-ring", PathName::GrefMapping),
];

/// Reports which paths without a grant operation for each frame a back offers.
fn offered(vif: &str, values: &[Option<String>]) -> Finding {
    let on = OFFERS.iter().zip(values).filter(|(_, value)| value.as_deref() == Some("1"));
    // Those that `pregrant front` has not are no advice.
    let paths: Vec<_> = on.map(|((_, path), _)| path).filter(|p| p.is_built()).map(|p| p.name()).collect();
    let has_ctrl_alone = paths == [PathName::GrefMapping.name()];
    if paths.is_empty() || has_ctrl_alone {
        let perhaps = if has_ctrl_alone {
            ", unless it keeps pages mapped on request (--path gref-mapping)"
        } else {
            ""
        };
        return Finding::note(format_args!(
            "{vif}: its back takes no memory that is shared before frames come: each costs a grant operation{perhaps}"
        ))
        .then("a back that does: pregrant back, in that domain");
    }
    Finding::ok(format_args!(
        "{vif}: its back takes frames without a grant operation for each: pregrant front --path {}",
        paths.join(", ")
    ))
}

const FRONT_KEYS: [Ability; 17] = [
    Ability::flag("feature-sg", "frames over several pages"),
    Ability::flag("feature-gso-tcpv4", "uncut TCP over IPv4"),
    Ability::flag("feature-gso-tcpv6", "uncut TCP over IPv6"),
    Ability::not("feature-no-csum-offload", "blank checksums over IPv4"),
    Ability::flag("feature-ipv6-csum-offload", "blank checksums over IPv6"),
    Ability::flag("feature-rx-notify", "tells when it posts RX slots"),
    Ability::flag(REQUEST_MULTICAST, "asks for the multicast that it names alone"),
    Ability::value(XDP_HEADROOM, "bytes ahead of frames, for XDP"),
    Ability::value("multi-queue-num-queues", "queues"),
    Ability::there("ctrl-ring-ref", "a control ring"),
    Ability::flag("feature-staging-grants", "staging buffers, granted once"),
    Ability::value("staging-grants-revision", "rules of staging that it knows"),
    Ability::flag("staging-grants-rx-heads", "heads of long received frames in staging buffers"),
    Ability::flag(persistent::FEATURE, "pages granted once, to be kept mapped"),
    Ability::there(data_ring::keys::INDEX_REF, "a data ring"),
    Ability::flag(research::REQUEST_FOREIGN, "lets all of its memory be mapped"),
    Ability::there(research::GUEST_COPY_REF, "copies received frames itself"),
];

const BACK_KEYS: [Ability; 23] = [
    Ability::flag("feature-sg", "frames over several pages"),
    Ability::flag("feature-gso-tcpv4", "uncut TCP over IPv4"),
    Ability::flag("feature-gso-tcpv6", "uncut TCP over IPv6"),
    Ability::flag("feature-ipv6-csum-offload", "blank checksums over IPv6"),
    Ability::flag("feature-split-event-channels", "an event channel for each direction"),
    Ability::flag("feature-multicast-control", "leaves out multicast that the guest does not name"),
    Ability::flag("feature-dynamic-multicast-control", "begins and ends with that at any time"),
    Ability::flag("feature-ctrl-ring", "a control ring"),
    Ability::flag("feature-xdp-headroom", "room ahead of frames, for XDP"),
    Ability::value("multi-queue-max-queues", "queues at most"),
    Ability::value("max-tx-ring-page-order", "TX rings of several pages: the exponent of 2"),
    Ability::value("max-rx-ring-page-order", "RX rings of several pages: the exponent of 2"),
    Ability::flag("feature-staging-grants", "staging buffers, granted once"),
    Ability::value("staging-grants-sizes", "bytes of a staging buffer"),
    Ability::value(MAX_PAGES, "pages of staging lists that are longer than rings"),
    Ability::value(MAPPED_PAGES, "pages that stay mapped, where these are more than slots"),
    Ability::value("staging-grants-revision", "rules of staging that it knows"),
    Ability::flag("staging-grants-rx-heads", "heads of long received frames in staging buffers"),
    Ability::flag(persistent::FEATURE, "keeps pages mapped that it has seen"),
    Ability::flag(data_ring::keys::FEATURE, "data rings"),
    Ability::value(data_ring::keys::MAX_ORDER, "pages of one: the exponent of 2"),
    Ability::flag(research::FEATURE_FOREIGN, "maps all memory of a guest that lets it"),
    Ability::flag(research::FEATURE_GUEST_COPY, "lends pages to guests that copy themselves"),
];

#[cfg(test)]
mod tests {
    use super::super::finding::Rank;
    use super::super::keys::complete;
    use super::*;
    use crate::top::sample;
    use pregrant::net::features::{BackFeatures, ChannelKeys, CtrlKeys, FrontRequest, QueueKeys};
    use pregrant::net::path::staging::keys::{DataKeys, DataRequest, Lists};
    use pregrant::net::path::staging::list::DataLen;
    use pregrant::units::{EvtchnPort, GrantRef};
    use pregrant::xenbus::toolstack::Vif;
    use pregrant_host::drivers::status::QueueStatus;
    use pregrant_xenstored::LocalStore;

    /// Returns the findings for vif 5.0, whose guest exists or not, and has a name or not.
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

    /// The tables contain every key that either end writes.
    #[test]
    fn the_tables_know_all_keys() {
        let data =
            DataRequest::Keys(DataKeys { list_refs: vec![GrantRef(9)], len: DataLen::new(64).unwrap() });
        let queue = QueueKeys {
            staging: Lists { tx: data.clone(), rx: data },
            data_ring: Some(GrantRef(9)).into(),
            guest_copy: Some(GrantRef(9)).into(),
            ..QueueKeys::new(GrantRef(8), GrantRef(9), ChannelKeys::Single(EvtchnPort(1)))
        };
        let front = |queues| {
            let mut front = FrontRequest {
                foreign: true,
                headroom: 256,
                ctrl: Some(CtrlKeys { ring: GrantRef(9), channel: EvtchnPort(2) }),
                ..FrontRequest::new(vec![queue.clone(); queues])
            };
            front.staging.rx_heads = true;
            front
        };
        complete::check(&FRONT_KEYS, &[front(1).pairs(), front(2).pairs()]);
        let mut back = BackFeatures::default();
        (back.staging.rx_heads, back.mapped_pages) = (true, 896);
        complete::check(&BACK_KEYS, &[back.pairs()]);
    }

    /// Returns the findings for a connected vif with these chains of paths, whose front asks for
    /// these kinds of memory.
    fn said_of(tx: &[&str], rx: &[&str], data_len: Option<u32>, asks: &[&str]) -> Finding {
        let mut status = sample::status().vifs.remove(0);
        status.queues.truncate(1);
        let of = |chain: &[&str]| chain.iter().map(|path| (*path).to_string()).collect::<Vec<_>>();
        let QueueStatus { tx: to, rx: from, .. } = &mut status.queues[0];
        for (dir, chain) in [(to, of(tx)), (from, of(rx))] {
            (dir.path, dir.chain, dir.data_len) = (chain[0].clone(), chain, data_len);
        }
        path("vif 5.0", &status, asks).remove(0)
    }

    /// If a path's memory is shared before frames arrive, the findings say that a frame needs no
    /// grant operation, whichever path it is.
    #[test]
    fn what_a_frame_costs_is_the_paths_to_say() {
        for shared in
            PathName::ALL.into_iter().filter(|path| path.frame_cost() == FrameCost::NoGrantOperation)
        {
            let chain = [shared.name(), "copy"];
            let found = said_of(&chain, &chain, None, &["pages"]);
            if shared == PathName::Foreign {
                assert!(found.text.contains("all of the guest's memory mapped"), "{found}");
                continue;
            }
            assert_eq!((found.rank, &found.remedy), (Rank::Ok, &None), "{found}");
            assert!(found.text.contains(&format!("TX {shared}, then copy")), "{found}");
        }
        let found = said_of(&["staging+copy", "copy"], &["staging", "copy"], Some(256), &[]);
        assert_eq!(found.rank, Rank::Ok, "{found}");
        assert!(
            found.text.contains("TX staging+copy of 256 bytes, then copy, RX staging of 256 bytes"),
            "{found}"
        );
        for (tx, rx, costs) in [
            ("copy", "copy", "TX and RX: each frame costs a grant copy"),
            ("map", "copy", "RX: each frame costs a grant copy; TX: each frame costs a map and an unmap"),
            ("persistent", "guest-copy", "RX: each frame costs the guest a grant copy"),
            ("gref-mapping", "copy", "RX: each frame costs a grant copy"),
        ] {
            let found = said_of(&[tx, "copy"], &[rx], None, &[]);
            assert_eq!(found.rank, Rank::Note, "{found}");
            assert!(found.text.contains(costs) && found.text.contains("shares no memory"), "{found}");
            assert!(found.remedy.unwrap().contains("pregrant front"));
        }
        let found = said_of(&["copy"], &["copy"], None, &["pages that stay granted (feature-persistent)"]);
        assert!(found.text.contains("though its front offers pages that stay granted"), "{found}");
        assert!(found.remedy.unwrap().contains("--persistent-grants"));
    }

    #[test]
    fn a_back_offers_each_path_without_grant_operations_by_a_key_that_is_known() {
        for path in PathName::ALL.into_iter().filter(|p| p.frame_cost() == FrameCost::NoGrantOperation) {
            assert!(OFFERS.iter().any(|(_, of)| *of == path), "{path} is not in OFFERS");
        }
    }

    #[test]
    fn what_a_back_takes_without_grant_operations_is_named() {
        let on = |keys: &[&str]| {
            let values: Vec<_> = OFFERS.map(|(key, _)| keys.contains(&key).then(|| "1".to_string())).into();
            offered("vif 0", &values)
        };
        let found = on(&["feature-persistent", "feature-ctrl-ring"]);
        assert_eq!(found.rank, Rank::Ok);
        assert!(found.text.ends_with("--path persistent, gref-mapping"), "{found}");
        for none in [&[][..], &["feature-ctrl-ring"]] {
            assert_eq!(on(none).rank, Rank::Note);
        }
    }

    /// A backend that hangs is not reported as missing, and its vifs are not reported as unserved.
    #[test]
    fn a_backend_that_does_not_answer_is_wrong_and_its_vifs_are_its_own() {
        let dir = std::env::temp_dir().join(format!("pregrant-doctor-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let hung = std::os::unix::net::UnixListener::bind(socket_path(&dir, 0)).unwrap();
        let store = LocalStore::new();
        let mut xs = store.client(DomId(0));
        store.with_server(|s| s.introduce(DomId(5))).unwrap();
        Vif::new(DomId(5), DomId(0), 0, [2, 0, 0, 0, 0, 5]).create(&mut xs).unwrap();
        let found = served_here(&mut xs, DomId(0), &dir, false).unwrap();
        drop(hung);
        let absent = served_here(&mut xs, DomId(0), &dir, false).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let me = format!("process {} runs and does not answer", std::process::id());
        assert!(found[0].rank == Rank::Wrong && found[0].text.contains(&me), "{found:?}");
        assert!(found[0].remedy.as_ref().unwrap().contains("kill -CONT"), "{found:?}");
        assert!(found[1].rank == Rank::Note && !found[1].text.contains("no backend serves"), "{found:?}");
        assert!(
            absent[0].rank == Rank::Note && absent[0].text.contains("no `pregrant back` runs"),
            "{absent:?}"
        );
        assert!(
            absent[1].rank == Rank::Wrong && absent[1].text.contains("no backend serves it"),
            "{absent:?}"
        );
    }

    /// A vif of the kernel's module is neither netback's nor unserved; one that no backend has can
    /// be given to the module.
    #[test]
    fn a_vif_of_the_kernels_module_is_reported_as_the_modules() {
        let dir = std::env::temp_dir().join(format!("pregrant-doctor-module-{}", std::process::id()));
        let vif = dir.join("bus/xen-backend/drivers/pregrant_back/vif-5-0");
        std::fs::create_dir_all(vif.join("net/vif5.0")).unwrap();
        std::fs::create_dir_all(dir.join("module/pregrant_back")).unwrap();
        std::fs::write(vif.join("state"), "InitWait\n").unwrap();
        let store = LocalStore::new();
        let mut xs = store.client(DomId(0));
        for guest in [5, 6] {
            store.with_server(|s| s.introduce(DomId(guest))).unwrap();
            Vif::new(DomId(guest), DomId(0), 0, [2, 0, 0, 0, 0, 5]).create(&mut xs).unwrap();
        }
        let module = ModuleBack::at(&dir);
        let found = served_beside(&mut xs, DomId(0), Path::new("/nonexistent"), true, Some(&module)).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let [has, unserved] = &found[..] else { panic!("{found:?}") };
        assert!(
            has.text.starts_with("vif 5.0: the kernel's pregrant_back serves it by the interface vif5.0"),
            "{has}"
        );
        assert!(unserved.text.starts_with("vif 6.0: no backend serves it"), "{unserved}");
        let bind = "echo vif-6-0 > /sys/bus/xen-backend/drivers/pregrant_back/bind";
        assert!(unserved.remedy.as_ref().unwrap().contains(bind), "{unserved}");
    }
}
