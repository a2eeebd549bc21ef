//! Checks the kernel's module `pregrant_back`: whether it is loaded, beside netback or alone, and
//! what its vifs do.

use super::finding::Finding;
use crate::module_status;
use pregrant_host::drivers::BackStatus;
use pregrant_host::drivers::status::VifStatus;
use pregrant_host::linux::ModuleVif;

/// How each boot has one of the two drivers.
const ONE_DRIVER: &str = "at each boot: the package pregrant-back-dkms, or docs/linux-back.md";

/// Reports on the module. `status` is that of its vifs, if it has any; `netback` says whether
/// Linux's driver is loaded.
pub fn loaded(version: Option<&str>, status: Option<&BackStatus>, netback: bool) -> Vec<Finding> {
    let version = version.map(|version| format!(" {version}")).unwrap_or_default();
    let name = format!("the kernel's module pregrant_back{version}");
    let module = status.and_then(|status| status.module.as_ref());
    let has = match (status, module) {
        (Some(status), Some(module)) => {
            let connected = status.vifs.iter().filter(|vif| vif.state == "Connected").count();
            let parameters: Vec<_> =
                module.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let (vifs, pages) = (status.vifs.len(), module.mapped_pages);
            format!(
                "is loaded ({}) and has {vifs} vif(s), {connected} of them connected; {pages} page(s) of guests are mapped",
                parameters.join(", ")
            )
        }
        _ => "is loaded, and has no vif".into(),
    };
    let mut found = vec![Finding::ok(format_args!("{name} {has}"))];
    if netback {
        found.push(
            Finding::note(
                "netback and pregrant_back are loaded: a new vif falls to the one that was loaded first",
            )
            .then(format_args!(
                "unload the one that has no vif (ls /sys/bus/xen-backend/drivers/vif, .../pregrant_back): rmmod xen-netback, or rmmod \
                 pregrant_back; {ONE_DRIVER}"
            )),
        );
    }
    if let Some(lost) = module.map(|module| module.maps_lost).filter(|lost| *lost > 0) {
        found.push(
            Finding::wrong(format_args!(
                "pregrant_back could not unmap {lost} page(s) of guests: their memory stays with Xen when they end"
            ))
            .then("report it with the kernel's log (dmesg | grep -B 5 -A 30 pk_unmap); the pages come back when this host boots again"),
        );
    }
    found
}

/// Reports on a vif that the module has; `ends` are the states of both ends.
pub fn vif(name: &str, ends: &str, vif: &ModuleVif) -> Vec<Finding> {
    let interface = vif.interface.as_deref();
    let by = interface.map(|name| format!(" by the interface {name}")).unwrap_or_default();
    let serves = format!("{name}: the kernel's pregrant_back serves it{by}, {ends}");
    if vif.state != "Connected" {
        // A script that it waits for is another finding.
        return vec![Finding::note(format_args!("{serves}: not connected"))
            .then("its guest's driver has to connect: restart that, or detach and attach the vif; `dmesg` has the module's reason")];
    }
    let status = module_status::status_of(vif);
    let mut found = vec![Finding::ok(serves), paths(name, &status)];
    if !status.link {
        let shown = interface.unwrap_or("INTERFACE");
        found.push(
            Finding::note(format_args!("{name}: no carrier: its guest takes no frames"))
                .then(format_args!("look at the guest: is its interface up; here: ip link show {shown}")),
        );
    }
    let errors: u64 =
        status.queues.iter().flat_map(|q| [&q.tx, &q.rx]).filter_map(|dir| dir.drops.get("error")).sum();
    if errors > 0 {
        found.push(
            Finding::note(format_args!("{name}: {errors} frame(s) were answered with an error since it connected"))
                .then("its guest sent what netif does not allow, or a grant failed: ethtool -S has them for each queue and direction"),
        );
    }
    found
}

fn paths(name: &str, status: &VifStatus) -> Finding {
    let queues = status.queues.len();
    match status.queues.first() {
        Some(queue) => {
            let (tx, rx) = (&queue.tx.path, &queue.rx.path);
            Finding::ok(format_args!("{name}: {queues} queue(s), TX {tx}, RX {rx}, by the frames that came"))
        }
        None => Finding::note(format_args!("{name}: its counters are not known"))
            .then("the module is older than this program: build both from one version"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Rank;
    use super::*;
    use crate::module_status::sample;

    fn status() -> BackStatus {
        sample::daemon().status.unwrap()
    }

    #[test]
    fn the_module_is_reported_with_its_version_and_parameters() {
        let [found] = &loaded(Some("0.1.0"), Some(&status()), false)[..] else { panic!("one finding") };
        let text = "the kernel's module pregrant_back 0.1.0 is loaded (queues=0) and has 1 vif(s), 1 of them connected; ";
        assert!(found.rank == Rank::Ok && found.text.starts_with(text), "{found}");
        let found = loaded(None, None, false);
        assert_eq!(found, [Finding::ok("the kernel's module pregrant_back is loaded, and has no vif")]);
    }

    #[test]
    fn both_drivers_are_reported_with_how_to_keep_one() {
        let found = &loaded(None, Some(&status()), true)[1];
        assert_eq!(found.rank, Rank::Note);
        assert!(found.text.starts_with("netback and pregrant_back are loaded"), "{found}");
        let remedy = found.remedy.as_ref().unwrap();
        assert!(remedy.contains("rmmod xen-netback") && remedy.contains("pregrant-back-dkms"), "{found}");
    }

    #[test]
    fn pages_that_were_not_unmapped_are_wrong() {
        let mut status = status();
        assert!(loaded(None, Some(&status), false).iter().all(|found| found.rank == Rank::Ok));
        status.module.as_mut().unwrap().maps_lost = 3;
        let found = &loaded(None, Some(&status), false)[1];
        assert!(found.rank == Rank::Wrong && found.text.contains("could not unmap 3 page(s)"), "{found}");
    }

    #[test]
    fn a_vif_of_the_module_says_what_it_lacks() {
        let of = |vif: &ModuleVif| super::vif("vif 1.0", "back 4 (Connected), front 4 (Connected)", vif);
        let connected = sample::vif();
        let found = of(&connected);
        assert!(found.iter().all(|found| found.rank == Rank::Ok), "{found:?}");
        let serves = "vif 1.0: the kernel's pregrant_back serves it by the interface vif1.0, back 4 (Connected), front 4 (Connected)";
        assert_eq!(found[0].text, serves);
        assert!(found[1].text.contains("1 queue(s), TX copy, RX copy"), "{found:?}");

        let mut no_link = connected.clone();
        no_link.counters.insert("link".into(), 0);
        no_link.queues[0].insert("tx_errors".into(), 2);
        let found = of(&no_link);
        assert!(found[2].rank == Rank::Note && found[2].text.contains("no carrier"), "{found:?}");
        assert!(found[3].text.contains("2 frame(s) were answered with an error"), "{found:?}");

        let waits = ModuleVif { state: "InitWait".into(), queues: Vec::new(), ..connected.clone() };
        let [found] = &of(&waits)[..] else { panic!("one finding") };
        assert!(found.rank == Rank::Note && found.text.ends_with("not connected"), "{found}");

        let older = ModuleVif { counters: Default::default(), queues: Vec::new(), ..connected };
        assert!(of(&older)[1].text.contains("counters are not known"));
    }
}
