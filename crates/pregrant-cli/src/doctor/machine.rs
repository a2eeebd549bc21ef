//! Checks the machine from /sys and /dev: Xen, its device nodes, and the kernel's own drivers.

use super::finding::{Finding, Rank};
use super::kernel_module;
use crate::module_status;
use pregrant::xenbus::Class;
use pregrant_host::linux::{KernelBack, ModuleBack, NODES};
use std::fs;
use std::path::Path;

/// The limit of gntalloc that is enough for two queues: a page for each staging buffer in both
/// directions, and the pages of their rings.
const PAGES_FOR_TWO_QUEUES: u32 = 2 * (2 * 256 + 2) + 4;

/// Returns the findings about this machine.
pub fn findings() -> Vec<Finding> {
    let mut all = vec![hypervisor(Path::new("/sys/hypervisor"))];
    if all[0].rank == Rank::Wrong {
        return all; // the rest would be wrong for this one reason
    }
    all.extend(nodes());
    all.extend(gntalloc_limit(
        fs::read_to_string("/sys/module/xen_gntalloc/parameters/limit").ok().as_deref(),
    ));
    all.push(tun(Path::new("/dev/net/tun").exists()));
    all.extend(bridge_netfilter(Path::new("/proc/sys/net/bridge")));
    let kernel = KernelBack::of(Class::VIF);
    all.extend(kernels_netback(kernel.is_loaded(), kernel.autoprobe() || !kernel.has_bus()));
    let module = ModuleBack::here();
    if module.is_loaded() {
        let status = module_status::read().and_then(|daemon| daemon.status.ok());
        all.extend(kernel_module::loaded(module.version().as_deref(), status.as_ref(), kernel.is_loaded()));
    }
    all
}

fn word(dir: &Path, file: &str) -> Option<String> {
    Some(fs::read_to_string(dir.join(file)).ok()?.trim().to_string())
}

fn hypervisor(dir: &Path) -> Finding {
    match word(dir, "type").as_deref() {
        Some("xen") => {
            let part = |file| word(dir, file).unwrap_or_default();
            let version =
                format!("{}.{}{}", part("version/major"), part("version/minor"), part("version/extra"));
            let kind = word(dir, "guest_type").map(|t| format!(", this domain is {t}")).unwrap_or_default();
            Finding::ok(format_args!("Xen {version}{kind}"))
        }
        Some(other) => Finding::wrong(format_args!("the hypervisor is {other}, not Xen"))
            .then("use the loopback: pregrant-lab loopback serve --dir DIR --guest 5"),
        None => Finding::wrong("no Xen: there is no /sys/hypervisor/type").then(
            "use the loopback: pregrant-lab loopback serve --dir DIR --guest 5; pregrant doctor --loopback DIR",
        ),
    }
}

fn nodes() -> Vec<Finding> {
    let node = |name: &pregrant_host::linux::NodeName| {
        let open = fs::OpenOptions::new().read(true).write(true).open(name.path);
        match open {
            Ok(_) => Finding::ok(format_args!("{}: {}", name.path, name.purpose)),
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                Finding::wrong(format_args!("{} ({}): {e}", name.path, name.purpose)).then("run as root")
            }
            // Each end needs two of the three.
            Err(e) => Finding::note(format_args!("{} ({}): {e}", name.path, name.purpose))
                .then(format_args!("modprobe {}; at each boot: a line {0} in /etc/modules", name.module)),
        }
    };
    NODES.iter().map(node).collect()
}

/// Reports how many pages a front in this domain may grant.
fn gntalloc_limit(limit: Option<&str>) -> Option<Finding> {
    let limit: u32 = limit?.trim().parse().ok()?;
    let text = format!("gntalloc grants at most {limit} pages");
    Some(if limit < PAGES_FOR_TWO_QUEUES {
        Finding::note(format_args!("{text}: a front here has staging for one queue, not for two")).then(format_args!(
            "echo {} > /sys/module/xen_gntalloc/parameters/limit; at each boot: options xen-gntalloc limit={0} in \
             /etc/modprobe.d",
            PAGES_FOR_TWO_QUEUES.next_power_of_two()
        ))
    } else {
        Finding::ok(text)
    })
}

fn tun(there: bool) -> Finding {
    if there {
        Finding::ok("/dev/net/tun: taps")
    } else {
        Finding::wrong("/dev/net/tun is missing: no taps")
            .then("modprobe tun; without it: pregrant back --port switch")
    }
}

/// Reports whether the kernel also shows bridged frames to netfilter, by the switches in
/// `/proc/sys/net/bridge`. That directory exists once `br_netfilter` is loaded. Docker and
/// Kubernetes load that module, and it sets all three switches.
fn bridge_netfilter(dir: &Path) -> Option<Finding> {
    let keys = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables", "bridge-nf-call-arptables"];
    let on: Vec<_> = keys.into_iter().filter(|key| word(dir, key).is_some_and(|text| text != "0")).collect();
    let off: Vec<_> = on.iter().map(|key| format!("net.bridge.{key}=0")).collect();
    (!on.is_empty()).then(|| {
        Finding::note(format_args!(
            "bridged frames go through netfilter too ({} is 1): each costs more, and rules for this machine may drop them",
            on.join(", ")
        ))
        .then(format_args!(
            "unless bridged frames are to be filtered: sysctl -w {}; at each boot: the same in /etc/sysctl.d",
            off.join(" ")
        ))
    })
}

fn kernels_netback(loaded: bool, autoprobe: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    if loaded {
        found.push(Finding::note("the kernel's netback is loaded: it takes every new vif that no backend keeps from it").then(
            "to serve all vifs with pregrant, unload it (modprobe -r xen-netback); to serve some, pregrant back --vif DOMID",
        ));
    }
    if !autoprobe {
        found.push(
            Finding::note("the kernel takes no new devices by itself (drivers_autoprobe is 0): a backend runs and hands it what is not its own, or one was killed")
                .then("if none runs: echo 1 > /sys/bus/xen-backend/drivers_autoprobe, or start one; until then no backend handles new disks"),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_limit_of_grants_is_reported_with_a_larger_one() {
        let found = gntalloc_limit(Some("1024\n")).unwrap();
        assert_eq!(found.rank, Rank::Note);
        assert!(found.remedy.unwrap().contains("echo 2048"));
        assert_eq!(gntalloc_limit(Some("4096")).unwrap().rank, Rank::Ok);
        assert_eq!(gntalloc_limit(None), None);
    }

    /// Makes a copy of `/proc/sys/net/bridge` with these values.
    fn bridge(iptables: &str, ip6tables: &str, arptables: &str) -> Option<Finding> {
        let name = format!("pregrant-bridge-{}-{}{}{}", std::process::id(), iptables, ip6tables, arptables);
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        let files = [
            ("bridge-nf-call-arptables", arptables),
            ("bridge-nf-call-ip6tables", ip6tables),
            ("bridge-nf-call-iptables", iptables),
            ("bridge-nf-filter-pppoe-tagged", "0"),
            ("bridge-nf-filter-vlan-tagged", "0"),
            ("bridge-nf-pass-vlan-input-dev", "0"),
        ];
        files.iter().for_each(|(file, text)| fs::write(dir.join(file), format!("{text}\n")).unwrap());
        let found = bridge_netfilter(&dir);
        fs::remove_dir_all(&dir).unwrap();
        found
    }

    #[test]
    fn netfilter_on_bridges_is_reported_with_how_to_turn_it_off() {
        let found = bridge("1", "1", "0").unwrap();
        assert_eq!(found.rank, Rank::Note);
        let both = "(bridge-nf-call-iptables, bridge-nf-call-ip6tables is 1)";
        assert!(found.text.contains(both), "{}", found.text);
        let remedy = found.remedy.unwrap();
        let off = "sysctl -w net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0;";
        assert!(remedy.contains(off), "{remedy}");
        let one = bridge("1", "0", "0").unwrap().remedy.unwrap();
        assert!(one.contains("sysctl -w net.bridge.bridge-nf-call-iptables=0;"), "{one}");
        assert_eq!(bridge("0", "0", "0"), None);
        assert_eq!(bridge_netfilter(Path::new("/nonexistent")), None, "br_netfilter is not loaded");
    }

    #[test]
    fn a_machine_without_xen_is_shown_the_loopback() {
        let found = hypervisor(Path::new("/nonexistent"));
        assert_eq!(found.rank, Rank::Wrong);
        assert!(found.remedy.unwrap().contains("pregrant-lab loopback serve"));
    }
}
