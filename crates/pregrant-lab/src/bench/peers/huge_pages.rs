//! Checks how many huge pages are free, from which DPDK gets its memory, and what to do if there
//! are too few.

use std::fs;

/// Checks that at least this number of bytes is free. `Err`: the reason why not, and the remedy.
pub fn ask_for(bytes: u64) -> Result<(), String> {
    let text = fs::read_to_string("/proc/meminfo").map_err(|e| format!("/proc/meminfo: {e}"))?;
    enough(&text, bytes)
}

fn enough(meminfo: &str, bytes: u64) -> Result<(), String> {
    let field = |name: &str| -> u64 {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    let (free, page) = (field("HugePages_Free"), field("Hugepagesize") << 10);
    if page == 0 {
        return Err("this kernel has no huge pages, which DPDK needs".into());
    }
    let wanted = bytes.div_ceil(page);
    if free >= wanted {
        return Ok(());
    }
    Err(format!(
        "of {wanted} huge pages of {} MiB that DPDK needs {free} are free; as root: sysctl vm.nr_hugepages={}",
        page >> 20,
        // Those of all pairs that may run at once.
        wanted * 2
    ))
}

#[cfg(test)]
mod tests {
    use super::enough;

    #[test]
    fn too_few_are_refused_with_the_remedy() {
        let text = |free: u32| {
            format!("MemTotal: 1 kB\nHugePages_Total: 64\nHugePages_Free: {free}\nHugepagesize: 2048 kB\n")
        };
        assert_eq!(enough(&text(64), 128 << 20), Ok(()));
        let said = enough(&text(63), 128 << 20).unwrap_err();
        assert!(said.contains("of 64 huge pages of 2 MiB") && said.contains("vm.nr_hugepages=128"), "{said}");
        assert!(enough("MemTotal: 1 kB\n", 1).is_err());
    }
}
