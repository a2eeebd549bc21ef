//! Libraries that fio names and no one calls here: the clients of Ceph, Gluster, NBD and NFS, and
//! what drives RDMA and persistent memory. Those of either release; one that a release's fio does
//! not name is in no one's way.
//!
//! Debian's fio resolves all of them when it starts. With what they need themselves they are
//! larger than everything else in a guest's image, so one small library stands in for all: it has
//! each function under the version that fio asks for, and each function ends the process.

use super::image::{at, tool, tool_output};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Each library that is missing, and how the names of its functions begin.
const ABSENT: [(&str, &str); 9] = [
    ("libgfapi.so.0", "glfs_"),
    ("libibverbs.so.1", "ibv_"),
    ("libnbd.so.0", "nbd_"),
    ("libnfs.so.14", "nfs_"),
    ("libpmem.so.1", "pmem_"),
    ("libpmemblk.so.1", "pmemblk_"),
    ("librados.so.2", "rados_"),
    ("librbd.so.1", "rbd_"),
    ("librdmacm.so.1", "rdma_"),
];

/// Makes stand-ins for the missing libraries of `program` in the folder `libraries`.
pub(super) fn make(program: &Path, libraries: &Path) -> Result<(), String> {
    let table = tool_output(Command::new("readelf").args(["--dyn-syms", "-W"]).arg(program))?;
    let (code, versions) = source(&String::from_utf8_lossy(&table));
    let made = libraries.join(ABSENT[0].0);
    let file = |ending: &str| made.with_extension(ending);
    fs::write(file("c"), code).map_err(|e| at(&file("c"), e))?;
    fs::write(file("map"), versions).map_err(|e| at(&file("map"), e))?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-nostdlib", "-fPIC", "-w", "-o"]).arg(&made).arg(file("c"));
    gcc.arg(format!("-Wl,--version-script={}", file("map").display()));
    tool(&mut gcc)?;
    for (name, _) in &ABSENT[1..] {
        let copy = libraries.join(name);
        fs::copy(&made, &copy).map_err(|e| at(&copy, e))?;
    }
    Ok(())
}

/// Returns C code for the undefined functions in a table of symbols, and the linker's list of their
/// versions.
fn source(table: &str) -> (String, String) {
    let (mut code, mut by_version) = (String::new(), BTreeMap::<&str, String>::new());
    for line in table.lines() {
        // Num: Value Size Type Bind Vis Ndx Name@Version (index)
        let mut fields = line.split_whitespace().skip(6);
        let (Some("UND"), Some(symbol)) = (fields.next(), fields.next()) else { continue };
        let (name, version) = symbol.split_once('@').unwrap_or((symbol, ""));
        if !ABSENT.iter().any(|(_, begin)| name.starts_with(begin)) {
            continue;
        }
        code.push_str(&format!("void {name}(void) {{ __builtin_trap(); }}\n"));
        if !version.is_empty() {
            by_version.entry(version).or_default().push_str(&format!(" {name};"));
        }
    }
    let versions = by_version.iter().map(|(version, names)| format!("{version} {{ global:{names} }};\n"));
    (code, versions.collect())
}

#[cfg(test)]
mod tests {
    use super::source;

    #[test]
    fn functions_of_absent_libraries_are_made_under_their_versions() {
        let table = "   Num:    Value          Size Type    Bind   Vis      Ndx Name\n\
             1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND glfs_read@GFAPI_3.4.0 (3)\n\
             2: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND rados_connect\n\
             3: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND read@GLIBC_2.2.5 (2)\n\
             4: 0000000000001000     8 FUNC    GLOBAL DEFAULT   14 rados_here\n";
        let (code, versions) = source(table);
        let made: Vec<&str> =
            code.lines().filter_map(|l| l.strip_prefix("void ")?.split('(').next()).collect();
        assert_eq!(made, ["glfs_read", "rados_connect"]);
        assert_eq!(versions, "GFAPI_3.4.0 { global: glfs_read; };\n");
    }
}
