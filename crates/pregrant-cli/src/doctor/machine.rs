//! The machine: Xen, its device nodes, the kernel's own drivers. Read from /sys and /dev.

use super::finding::{Finding, Rank};
use pregrant_host::linux::{KernelNetback, NODES};
use std::fs;
use std::path::Path;

/// gntalloc's limit that suffices for two queues with all staging buffers, both directions, a page each, and their rings.
const PAGES_FOR_TWO_QUEUES: u32 = 2 * (2 * 256 + 2) + 4;

/// What is found on this machine.
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
    let kernel = KernelNetback::default();
    all.extend(kernels_netback(kernel.is_loaded(), kernel.autoprobe() || !kernel.has_bus()));
    all
}

fn word(dir: &Path, file: &str) -> Option<String> {
    Some(fs::read_to_string(dir.join(file)).ok()?.trim().to_string())
}

/// Which hypervisor, from `/sys/hypervisor`.
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
            .then("use the loopback: pregrant loopback serve --dir DIR --guest 5"),
        None => Finding::wrong("no Xen: there is no /sys/hypervisor/type").then(
            "use the loopback: pregrant loopback serve --dir DIR --guest 5; pregrant doctor --loopback DIR",
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

/// What a front in this domain may grant.
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

fn kernels_netback(loaded: bool, autoprobe: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    if loaded {
        found.push(Finding::note("the kernel's netback is loaded: it takes every new vif that nobody keeps from it").then(
            "to serve all vifs with pregrant, unload it (modprobe -r xen-netback); to serve some, pregrant back --vif DOMID",
        ));
    }
    if !autoprobe {
        found.push(
            Finding::note("the kernel takes no new devices by itself (drivers_autoprobe is 0): a backend runs and hands it what is not its own, or one was killed")
                .then("if none runs: echo 1 > /sys/bus/xen-backend/drivers_autoprobe, or start one; until then new disks are nobody's either"),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_limit_of_grants_is_told_with_a_larger_one() {
        let found = gntalloc_limit(Some("1024\n")).unwrap();
        assert_eq!(found.rank, Rank::Note);
        assert!(found.remedy.unwrap().contains("echo 2048"));
        assert_eq!(gntalloc_limit(Some("4096")).unwrap().rank, Rank::Ok);
        assert_eq!(gntalloc_limit(None), None);
    }

    #[test]
    fn a_machine_without_xen_is_shown_the_loopback() {
        let found = hypervisor(Path::new("/nonexistent"));
        assert_eq!(found.rank, Rank::Wrong);
        assert!(found.remedy.unwrap().contains("pregrant loopback serve"));
    }
}
